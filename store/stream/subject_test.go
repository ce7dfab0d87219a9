package stream

import (
	"encoding/hex"
	"strings"
	"testing"
	"testing/quick"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/event"
)

// unescape is the inverse of escape where no digest was taken.
func unescape(t testing.TB, token string) string {
	t.Helper()
	if token == "%" {
		return ""
	}
	var b strings.Builder
	for i := 0; i < len(token); i++ {
		if token[i] != '%' {
			b.WriteByte(token[i])
			continue
		}
		require.Greater(t, len(token), i+2)
		c, err := hex.DecodeString(token[i+1 : i+3])
		require.NoError(t, err)
		b.Write(c)
		i += 2
	}
	return b.String()
}

func checkToken(t testing.TB, s string) {
	t.Helper()
	token := escape(s)
	assert.NotEmpty(t, token)
	assert.LessOrEqual(t, len(token), maxToken)
	for i := range len(token) {
		assert.True(t, plain(token[i]) || token[i] == '%', "byte %q in a token", token[i])
	}
	if strings.HasPrefix(token, "%%") {
		assert.Greater(t, len(s), maxToken/3)
	} else {
		assert.Equal(t, s, unescape(t, token))
	}
}

func TestEscapeGivesOneTokenThatReadsBackAsTheName(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		assert.Equal(t, want, escape(in))
		checkToken(t, in)
	}
	f("tenant-acme", "tenant-acme")
	f("postgres-orders.app", "postgres-orders%2Eapp")
	f("*", "%2A")
	f(">", "%3E")
	f("a b\r\n", "a%20b%0D%0A")
	f("", "%")
	f("%", "%25")
	f("%2E", "%252E")
	f("ü", "%C3%BC")
	f("\x00\xff", "%00%FF")
	f(strings.Repeat("a", maxToken), strings.Repeat("a", maxToken))
}

func TestANameTooLongForATokenBecomesItsDigest(t *testing.T) {
	long, other := strings.Repeat("a", maxToken+1), strings.Repeat("a", maxToken)+"b"
	checkToken(t, long)
	assert.Len(t, escape(long), 2+64)
	assert.NotEqual(t, escape(long), escape(other))
	checkToken(t, strings.Repeat(".", 1<<20))
}

func TestEscapeNeverGivesTwoNamesOneToken(t *testing.T) {
	require.NoError(t, quick.Check(func(s string) bool { checkToken(t, s); return true }, nil))
	require.NoError(t, quick.Check(func(a, b string) bool { return a == b || escape(a) != escape(b) }, nil))
}

func FuzzEscape(f *testing.F) {
	for _, seed := range []string{"", "%", "%%", "a.b", "*", ">", "postgres-orders.app", "\xff", strings.Repeat(".", 171)} {
		f.Add(seed, seed+"x")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		checkToken(t, a)
		if a != b && escape(a) == escape(b) {
			t.Fatalf("%q and %q give one token", a, b)
		}
	})
}

func TestASubjectNamesStreamAccountAndOperation(t *testing.T) {
	f := func(e event.Event, want string) {
		t.Helper()
		assert.Equal(t, want, subject(&e))
	}
	f(mintEvent(1, 201), "mintlog.v1.events.tenant-acme.postgres-orders%2Eapp.mint")
	f(intent(1), "mintlog.v1.intents.tenant-acme.postgres-orders%2Eapp.mint")
	f(mintEvent(1, 403), "mintlog.v1.attempts.tenant-acme.postgres-orders%2Eapp.mint")

	revoke := mintEvent(1, 201)
	revoke.ObjectRef.Subresource = "revoke"
	f(revoke, "mintlog.v1.events.tenant-acme.postgres-orders%2Eapp.revoke")

	write := mintEvent(1, 200)
	write.Verb, write.ObjectRef = "patch", &event.ObjectRef{Resource: "secrets", Namespace: "tenant-acme", Name: "postgres-orders.app.account"}
	f(write, "mintlog.v1.events.tenant-acme.postgres-orders%2Eapp.write")

	hostile := mintEvent(1, 404)
	hostile.ObjectRef.Namespace, hostile.ObjectRef.Name = "*.>", "a b"
	f(hostile, "mintlog.v1.attempts.%2A%2E%3E.a%20b.mint")

	f(event.Event{Stage: event.Panic}, "mintlog.v1.attempts.%.%.other")
}
