package archive

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/event"
)

// hostile are values that a client can put into the fields it chooses, and names that an identity provider may give.
var hostile = []string{
	"", " ", "jane", "O'Brien \"q\" \\", "line\nbreak\r\ttab", "*", ">", "a*b>c", "ü€𝄞", "\u202e\ufeff\u2028", "\x00\x01\x7f",
	"007", "1.50", "-0", "1e3", "2026-01-01T00:00:00.000000Z", "10.0.0.1", "null", "true", "{}", "[]", `["a"]`, "{", "[",
	"_msg", "_time", "$1", "%s", "a|b", `" or 1:=1 or "`, "`", "missing _msg field", strings.Repeat("long ", 5000),
}

func pick(r *rand.Rand) string { return hostile[r.IntN(len(hostile))] }

// anyEvent has any value in any field, and a time within the last hours.
func anyEvent(r *rand.Rand) event.Event {
	e := mintEvent(r.IntN(3_000_000))
	e.AuditID, e.UserAgent, e.Source = pick(r), pick(r), pick(r)
	e.Stage = []event.Stage{event.RequestReceived, event.ResponseComplete, event.Panic}[r.IntN(3)]
	e.RequestURI = "/" + pick(r)
	if r.IntN(3) == 0 {
		e.RequestURI += "?dryRun=All"
	}
	e.User = event.User{Username: pick(r), UID: pick(r), Extra: map[string][]string{pick(r) + "k": {pick(r)}}}
	for range r.IntN(3) {
		e.User.Groups = append(e.User.Groups, pick(r))
	}
	if r.IntN(2) == 0 {
		e.ImpersonatedUser = &event.User{Username: pick(r)}
	}
	if r.IntN(4) == 0 {
		e.ObjectRef = nil
	} else {
		e.ObjectRef.Namespace, e.ObjectRef.Name, e.ObjectRef.UID = pick(r), pick(r), pick(r)
	}
	switch r.IntN(4) {
	case 0:
		e.ResponseStatus = nil
	case 1:
		e.ResponseStatus = &event.ResponseStatus{}
	case 2:
		e.ResponseStatus = &event.ResponseStatus{Code: 200, Message: "Connection closed early"}
	}
	switch r.IntN(3) {
	case 0:
		e.Annotations = nil
	case 1:
		e.Annotations = map[string]string{"authorization.k8s.io/decision": pick(r), pick(r) + "a": pick(r)}
	}
	return e
}

func readBack(t testing.TB, line []byte) event.Event {
	t.Helper()
	var r row
	require.NoError(t, json.Unmarshal(line, &r))
	e, err := fromRow(r)
	require.NoError(t, err)
	return e
}

func TestARowReadsBackAsTheEventItWas(t *testing.T) {
	e := mintEvent(1)
	e.ImpersonatedUser = &event.User{Username: "olga", Groups: []string{"tenant-beta-admin"}}
	line, err := encode(&e)
	require.NoError(t, err)
	assert.Equal(t, e, readBack(t, line))
}

func TestEveryEventKeepsItsIdentityAndWhatItSaysThroughARow(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		e := anyEvent(r)
		line, err := encode(&e)
		require.NoError(t, err)
		require.LessOrEqual(t, len(line), maxLine)
		got := readBack(t, line)
		require.Equal(t, e.Identity(), got.Identity(), "%+v", e)
		require.Equal(t, e.Outcome(), got.Outcome())
		require.Equal(t, e.EffectiveUser(), got.EffectiveUser())
		require.Equal(t, e.Impersonator(), got.Impersonator())
	}
}

func TestAnImpersonatedUserWithoutANameIsStillImpersonated(t *testing.T) {
	e := mintEvent(1)
	e.ImpersonatedUser = &event.User{}
	line, err := encode(&e)
	require.NoError(t, err)
	got := readBack(t, line)
	require.NotNil(t, got.ImpersonatedUser)
	assert.Equal(t, "jane", got.Impersonator())
	assert.Equal(t, e.Identity(), got.Identity())
}

func TestARowHasTheFieldsThatCozystacksPipelineWrites(t *testing.T) {
	e := mintEvent(1)
	e.ImpersonatedUser = &event.User{Username: "olga"}
	r := toRow(&e)
	want := row{
		"_time": e.RequestReceivedTimestamp.Format(time.RFC3339Nano), "_msg": e.RequestURI, "log_source": "audit_log",
		"stage": "ResponseComplete", "verb": "create", "auditID": e.AuditID, "stageTimestamp": e.StageTimestamp.Format(time.RFC3339Nano),
		"user_username": "jane", "user_uid": "7", "user_groups": `["tenant-acme-admin","system:authenticated"]`,
		"user_extra.authentication.kubernetes.io/credential-id": `["X509SHA256=0f"]`, "impersonatedUser.username": "olga",
		"objectRef.apiGroup": "credentials.cozystack.io", "objectRef.apiVersion": "v1alpha1", "objectRef.resource": "credentials",
		"objectRef.subresource": "mint", "objectRef.namespace": "tenant-acme", "objectRef.name": "postgres-orders.app",
		"responseStatus.code": "201", "sourceIPs": `["10.0.0.7","127.0.0.1"]`, "userAgent": "kubectl-credentials/1",
		"annotations.authorization.k8s.io/decision": "allow", "annotations.authorization.k8s.io/reason": `RBAC: allowed by RoleBinding "x"`,
		"eventID": e.Identity(), "operation": "Mint", "source": "file:audit.log", "impersonated": "true",
		"requestReceivedTimestamp": e.RequestReceivedTimestamp.Format(time.RFC3339Nano),
	}
	assert.Equal(t, want, r)
}

func TestARowOfCozystacksPipelineIsTheSameEvent(t *testing.T) {
	e := mintEvent(1)
	r := toRow(&e)
	for _, ours := range []string{"eventID", "operation", "source", "impersonated", "requestReceivedTimestamp"} {
		delete(r, ours)
	}
	r["tenant"], r["cluster"] = "root", "c1"
	got, err := fromRow(r)
	require.NoError(t, err)
	assert.Equal(t, e.Identity(), got.Identity())
}

func TestALongEventIsShrunkAlwaysAlikeAndKeepsItsIdentity(t *testing.T) {
	long := strings.Repeat("ü\x01", 100_000)
	list := make([]string, 5000)
	extra := map[string][]string{"authentication.kubernetes.io/credential-id": {"JTI=1"}}
	annotations := map[string]string{"authorization.k8s.io/decision": "allow"}
	for i := range list {
		list[i] = strings.Repeat("g", 100)
		extra[fmt.Sprint("key", i)] = []string{list[i]}
		annotations[fmt.Sprint("mutation.example/", i)] = list[i]
	}
	f := func(change func(*event.Event)) event.Event {
		t.Helper()
		e := mintEvent(1)
		change(&e)
		first, err := encode(&e)
		require.NoError(t, err)
		require.LessOrEqual(t, len(first), maxLine)
		second, err := encode(&e)
		require.NoError(t, err)
		require.Equal(t, first, second)
		got := readBack(t, first)
		require.Equal(t, e.Identity(), got.Identity())
		require.Equal(t, e.DryRun(), got.DryRun())
		return got
	}
	f(func(e *event.Event) { e.UserAgent = long })
	f(func(e *event.Event) { e.RequestURI = "/" + long })
	f(func(e *event.Event) { e.RequestURI = "/" + long + "?dryRun=All" })
	f(func(e *event.Event) { e.RequestURI += "&pad=" + long })
	f(func(e *event.Event) { e.RequestURI += "&pad=" + long + "&dryRun=" })
	f(func(e *event.Event) { e.RequestURI = "/x?" + strings.Repeat("a", shrunkField-7) + "&dryRunner=" + long })
	f(func(e *event.Event) { e.User.Extra = extra })
	f(func(e *event.Event) { e.User.Groups = list })
	f(func(e *event.Event) { e.ImpersonatedUser = &event.User{Groups: list, Extra: extra} })
	f(func(e *event.Event) { e.Annotations = annotations })
	f(func(e *event.Event) { e.ResponseStatus.Message = long })
	f(func(e *event.Event) { e.ObjectRef.Name = strings.Repeat("n", 200_000) })
	got := f(func(e *event.Event) {
		e.SourceIPs, e.User.Extra, e.UserAgent = append(append([]string{}, list...), "192.0.2.1"), extra, long
		e.User.Username = strings.Repeat("u", 10_000)
	})
	assert.Equal(t, "192.0.2.1", got.SourceIPs[len(got.SourceIPs)-1], "the one address that is not the client's to choose")
	assert.Equal(t, map[string][]string{"authentication.kubernetes.io/credential-id": {"JTI=1"}}, got.User.Extra)
}

func TestAnEventThatIsTooLongByItsIdentityIsRefused(t *testing.T) {
	e := mintEvent(1)
	e.AuditID = strings.Repeat("\x01", 50_000)
	_, err := encode(&e)
	assert.ErrorIs(t, err, errTooLong)
}

func TestFieldNamesStayWithinWhatVictoriaLogsTakes(t *testing.T) {
	e := mintEvent(1)
	e.User.Extra, e.Annotations = map[string][]string{}, map[string]string{"authorization.k8s.io/decision": "allow"}
	for i := range 300 {
		e.User.Extra[strings.Repeat("x", i)] = []string{"v"}
		e.Annotations[strings.Repeat("a", i)+".k8s.io"] = "v"
	}
	r := toRow(&e)
	assert.Less(t, len(r), 2*maxKeys+40)
	for name := range r {
		assert.LessOrEqual(t, len(name), maxFieldName)
	}
	got, err := fromRow(r)
	require.NoError(t, err)
	assert.Equal(t, e.Identity(), got.Identity())
}

func TestABrokenRowIsAnErrorAndNoEvent(t *testing.T) {
	e := mintEvent(1)
	f := func(field, value string) {
		t.Helper()
		r := toRow(&e)
		r[field] = value
		_, err := fromRow(r)
		assert.ErrorContains(t, err, field)
	}
	f("stageTimestamp", "yesterday")
	f("requestReceivedTimestamp", "0")
	f("responseStatus.code", "many")
}

func TestAnswersAreReadLineByLineHoweverTheyArrive(t *testing.T) {
	read := func(answer string) (rows []row, err error) {
		err = readRows(iotest.DataErrReader(iotest.OneByteReader(strings.NewReader(answer))), func(r row) error {
			rows = append(rows, maps.Clone(r))
			return nil
		})
		return rows, err
	}
	rows, err := read("{\"a\":\"1\"}\n\n{\"a\":\"2\"}")
	require.NoError(t, err)
	assert.Equal(t, []row{{"a": "1"}, {"a": "2"}}, rows)
	_, err = read("{\"a\":\"1\"}\n{\"a\":")
	assert.ErrorContains(t, err, "read the archive's answer")
	err = readRows(strings.NewReader(strings.Repeat("x", maxRow+1)), func(row) error { return nil })
	assert.ErrorIs(t, err, ErrLineTooLong)
}

func FuzzRow(f *testing.F) {
	f.Add("jane", "olga", "postgres-orders.app", "/x?dryRun=All", "allow", true)
	f.Add("\x00\"", "", "*", "?", "", true)
	f.Add("ü\u2028", "x", "a.b\n", "", "forbid", false)
	f.Fuzz(func(t *testing.T, user, effective, name, uri, decided string, impersonated bool) {
		e := mintEvent(1)
		valid := func(s string) string { return strings.ToValidUTF8(s, "\ufffd") } // as every decoder of JSON leaves it
		e.User.Username, e.ObjectRef.Name, e.RequestURI = valid(user), valid(name), valid(uri)
		e.Annotations["authorization.k8s.io/decision"] = valid(decided)
		if impersonated {
			e.ImpersonatedUser = &event.User{Username: valid(effective)}
		}
		line, err := encode(&e)
		if err != nil {
			require.ErrorIs(t, err, errTooLong)
			return
		}
		got := readBack(t, line)
		require.Equal(t, e.Identity(), got.Identity())
	})
}
