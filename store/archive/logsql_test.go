package archive

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/ledger"
)

func TestAQueryBecomesOneFilterWithEveryValueQuoted(t *testing.T) {
	f := func(q Query, want string) {
		t.Helper()
		assert.Equal(t, want, q.filter())
	}
	const always = `_time:[1970-01-01T00:00:00.000000000Z, 2262-01-01T00:00:00.000000000Z) _stream:{log_source="audit_log"} `
	f(Query{}, always+`(("objectRef.apiGroup":="credentials.cozystack.io" "objectRef.resource":="credentials" "objectRef.subresource":in("mint","revoke")) `+
		`or ("objectRef.resource":="secrets" "objectRef.name":"account" "objectRef.name":~"\\.account$"))`)
	f(Query{Operation: ledger.Revoke, Namespace: `a" or "b`, User: "x\n"}, always+
		`"objectRef.apiGroup":="credentials.cozystack.io" "objectRef.resource":="credentials" "objectRef.subresource":="revoke" `+
		`"objectRef.namespace":="a\" or \"b" ("user_username":="x\n" or "impersonatedUser.username":="x\n")`)
	f(Query{Credential: "postgres-orders.app", AuditID: "1"}, always+
		`(("objectRef.apiGroup":="credentials.cozystack.io" "objectRef.resource":="credentials" "objectRef.subresource":in("mint","revoke") "objectRef.name":="postgres-orders.app") `+
		`or ("objectRef.resource":="secrets" "objectRef.name":="postgres-orders.app.account")) "auditID":="1"`)
}

func TestATimeRangeIncludesItsStartAndNotItsEnd(t *testing.T) {
	start := time.Date(2026, 11, 3, 10, 0, 0, 123456789, time.FixedZone("", 3600))
	assert.Equal(t, "_time:[2026-11-03T09:00:00.123456000Z, 2026-11-03T09:00:01.123456789Z)", timeFilter(start, start.Add(time.Second)))
	assert.Equal(t, "_time:[1970-01-01T00:00:00.000000000Z, 1970-01-01T00:00:00.000000000Z)",
		timeFilter(time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC), time.Date(2, 1, 1, 0, 0, 0, 0, time.UTC)))
}

func TestWhatAFilterLetsThroughOutsideOfTheTimeRangeDoesNotComeOut(t *testing.T) {
	e := mintEvent(0)
	at := e.RequestReceivedTimestamp
	assert.True(t, Query{Start: at, End: at.Add(1)}.matches(&e))
	assert.False(t, Query{End: at}.matches(&e))
	assert.False(t, Query{Start: at.Add(1)}.matches(&e))
}

// FuzzQuote holds that a quoted value is one string token that says the value, whatever it is.
func FuzzQuote(f *testing.F) {
	for _, seed := range hostile {
		f.Add(seed)
	}
	f.Add("\xff\"")
	f.Fuzz(func(t *testing.T, s string) {
		quoted := quote(s)
		prefix, err := strconv.QuotedPrefix(quoted + ` or "objectRef.namespace":*`)
		require.NoError(t, err)
		require.Equal(t, quoted, prefix)
		back, err := strconv.Unquote(quoted)
		require.NoError(t, err)
		require.Equal(t, s, back)
		for _, c := range []byte(quoted) {
			require.GreaterOrEqual(t, c, byte(' '), "a control character is left as it is")
		}
	})
}
