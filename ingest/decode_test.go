package ingest

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/event"
)

// mint is a request as kube-apiserver records it, of 1.1 KB.
const mint = `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata",` +
	`"auditID":"6f7f9c66-16d5-4c4b-8b43-7cf2a5f0a1de","stage":"ResponseComplete",` +
	`"requestURI":"/apis/credentials.cozystack.io/v1alpha1/namespaces/tenant-acme/credentials/postgres-orders.app/mint?fieldManager=kubectl-create",` +
	`"verb":"create","user":{"username":"jane","groups":["tenant-acme-admin","system:authenticated"],` +
	`"extra":{"authentication.kubernetes.io/credential-id":["X509SHA256=0c1d5f0a3b9e8f7d6c5b4a39281706f5e4d3c2b1a0918273645546372819aabb"]}},` +
	`"impersonatedUser":{"username":"olga"},"sourceIPs":["192.0.2.7","10.0.0.1"],` +
	`"userAgent":"kubectl/v1.37.2 (linux/amd64) kubernetes/0c1d5f0","objectRef":{"resource":"credentials","namespace":"tenant-acme",` +
	`"name":"postgres-orders.app","apiGroup":"credentials.cozystack.io","apiVersion":"v1alpha1","subresource":"mint"},` +
	`"responseStatus":{"metadata":{},"code":201},"requestReceivedTimestamp":"2026-08-21T10:00:00.000001Z",` +
	`"stageTimestamp":"2026-08-21T10:00:00.011002Z","annotations":{"authorization.k8s.io/decision":"allow",` +
	`"authorization.k8s.io/reason":"RBAC: allowed by RoleBinding \"x/y\" of ClusterRole \"z\" to Group \"tenant-acme-admin\""}}`

// write is an update of an account Secret as kube-apiserver records it.
const write = `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"1b","stage":"ResponseComplete",` +
	`"requestURI":"/api/v1/namespaces/tenant-acme/secrets/postgres-orders.app.account","verb":"update",` +
	`"user":{"username":"system:serviceaccount:cozy-mintlog:mint"},"sourceIPs":["10.0.0.2"],` +
	`"objectRef":{"resource":"secrets","namespace":"tenant-acme","name":"postgres-orders.app.account",` +
	`"uid":"9c0f1a7e-2f3a-4d6b-9d0e-0c2b6a1f4e57","apiVersion":"v1","resourceVersion":"42"},"responseStatus":{"metadata":{},"code":200},` +
	`"requestReceivedTimestamp":"2026-08-21T10:00:00.003001Z","stageTimestamp":"2026-08-21T10:00:00.006001Z",` +
	`"annotations":{"authorization.k8s.io/decision":"allow","mutation.webhook.admission.k8s.io/round_0_index_0":"secret"}}`

// with replaces parts of a line: from, to, from, to…
func with(t testing.TB, line string, parts ...string) string {
	t.Helper()
	for i := 0; i < len(parts); i += 2 {
		require.Contains(t, line, parts[i])
		line = strings.Replace(line, parts[i], parts[i+1], 1)
	}
	return line
}

func TestAnEventIsDecodedAsItWasWritten(t *testing.T) {
	e, ours, err := Decode([]byte(mint))
	require.NoError(t, err)
	require.True(t, ours)
	require.Equal(t, event.Event{
		AuditID: "6f7f9c66-16d5-4c4b-8b43-7cf2a5f0a1de", Stage: event.ResponseComplete, Verb: "create",
		RequestURI: "/apis/credentials.cozystack.io/v1alpha1/namespaces/tenant-acme/credentials/postgres-orders.app/mint?fieldManager=kubectl-create",
		User: event.User{Username: "jane", Groups: []string{"tenant-acme-admin", "system:authenticated"}, Extra: map[string][]string{
			"authentication.kubernetes.io/credential-id": {"X509SHA256=0c1d5f0a3b9e8f7d6c5b4a39281706f5e4d3c2b1a0918273645546372819aabb"}}},
		ImpersonatedUser: &event.User{Username: "olga"}, SourceIPs: []string{"192.0.2.7", "10.0.0.1"},
		UserAgent: "kubectl/v1.37.2 (linux/amd64) kubernetes/0c1d5f0",
		ObjectRef: &event.ObjectRef{APIGroup: event.Group, APIVersion: "v1alpha1", Resource: "credentials", Subresource: "mint",
			Namespace: "tenant-acme", Name: "postgres-orders.app"},
		ResponseStatus: &event.ResponseStatus{Code: 201},
		Annotations: map[string]string{"authorization.k8s.io/decision": "allow",
			"authorization.k8s.io/reason": `RBAC: allowed by RoleBinding "x/y" of ClusterRole "z" to Group "tenant-acme-admin"`},
		RequestReceivedTimestamp: time.Date(2026, 8, 21, 10, 0, 0, 1000, time.UTC),
		StageTimestamp:           time.Date(2026, 8, 21, 10, 0, 0, 11002000, time.UTC),
	}, e)
}

func TestOnlyRequestsForOperationsAndWritesOfAccountSecretsAreOurs(t *testing.T) {
	f := func(want bool, line string, parts ...string) {
		t.Helper()
		_, ours, err := Decode([]byte(with(t, line, parts...)))
		require.NoError(t, err)
		require.Equal(t, want, ours)
	}
	f(true, mint)
	f(true, mint, `"subresource":"mint"`, `"subresource":"revoke"`)
	f(true, mint, `"stage":"ResponseComplete"`, `"stage":"RequestReceived"`)
	f(true, mint, `"stage":"ResponseComplete"`, `"stage":"Panic"`)
	f(true, mint, `/credentials/postgres-orders.app/mint?`, `/credentials/postgres-orders.app/%6dint/?`)
	f(true, mint, `"code":201`, `"code":403`)
	f(true, mint, `credentials.cozystack.io","apiVersion"`, `credentials\u002ecozystack.io","apiVersion"`)
	f(false, mint, `"subresource":"mint"`, `"subresource":"status"`)
	f(false, mint, `"verb":"create"`, `"verb":"get"`)
	f(false, mint, `"apiGroup":"credentials.cozystack.io"`, `"apiGroup":"example.com"`)
	f(false, mint, `"objectRef":`, `"other":`)
	f(false, mint, `"objectRef":`, `"ObjectRef":`) // keys are case sensitive
	f(false, `{"requestURI":"/apis/credentials.cozystack.io/v1alpha1/namespaces/a/credentials/b/mint"}`)
	f(false, `{"objectRef":null,"x":"credentials.cozystack.io"}`)

	f(true, write)
	f(true, write, `"stage":"ResponseComplete"`, `"stage":"Panic"`)
	f(true, write, `"verb":"update"`, `"verb":"delete"`)
	f(true, write, `"name":"postgres-orders.app.account"`, `"name":"x.\u0061ccount"`)
	f(false, write, `"stage":"ResponseComplete"`, `"stage":"RequestReceived"`)
	f(false, write, `"verb":"update"`, `"verb":"get"`)
	f(false, write, `"name":"postgres-orders.app.account"`, `"name":"postgres-orders-credentials"`)
	f(false, write, `"resource":"secrets"`, `"resource":"configmaps"`)
}

func TestALineThatCannotBeOursIsNotDecodedWhateverItHolds(t *testing.T) {
	for _, line := range []string{"", "garbage", `{"kind":`, "\xff\xfe", strings.Repeat("[", 100_000)} {
		_, ours, err := Decode([]byte(line))
		require.NoError(t, err)
		require.False(t, ours)
	}
}

func TestHostileLinesAreErrorsWithAReason(t *testing.T) {
	f := func(reason, line string, parts ...string) {
		t.Helper()
		_, ours, err := Decode([]byte(with(t, line, parts...)))
		require.False(t, ours)
		var decode *DecodeError
		require.ErrorAs(t, err, &decode)
		require.Equal(t, reason, decode.Reason)
		require.NotContains(t, err.Error(), "jane")
	}
	f(DuplicateKey, mint, `"verb":`, `"user":{"username":"root"},"verb":`)
	f(DuplicateKey, mint, `"username":"jane"`, `"username":"jane","username":"root"`)
	f(DuplicateKey, mint, `"username":"jane"`, `"username":"jane","usern\u0061me":"root"`)
	f(DuplicateKey, mint, `"authorization.k8s.io/decision":"allow"`, `"authorization.k8s.io/decision":"allow","authorization.k8s.io/decision":"forbid"`)
	f(InvalidUTF8, mint, `"jane"`, "\"jane\xff\"")
	f(Malformed, mint, `"username":"jane"`, `"username":["jane"]`)
	f(Malformed, mint, `"code":201`, `"code":"201"`)
	f(Malformed, mint, `"code":201`, `"code":1e400`)
	f(Malformed, mint, `"2026-08-21T10:00:00.000001Z"`, `"jane"`)
	f(Malformed, mint, `"2026-08-21T10:00:00.000001Z"`, `17`)
	f(Malformed, mint, `"objectRef":{`, `"objectRef":[{`)
	f(Malformed, mint, `"kind":"Event"`, `"kind":"Event","x":`+strings.Repeat(`{"a":`, 200_000))
	f(Malformed, mint[:len(mint)-1])
	f(Malformed, mint+mint)
	f(Malformed, "[]credentials.cozystack.io")
	f(Incomplete, mint, `"auditID":"6f7f9c66-16d5-4c4b-8b43-7cf2a5f0a1de",`, ``)
	f(Incomplete, mint, `"stage":"ResponseComplete",`, ``)
	f(Incomplete, mint, `"requestReceivedTimestamp":"2026-08-21T10:00:00.000001Z",`, ``)
	f(Incomplete, mint, `"2026-08-21T10:00:00.011002Z"`, `null`)
	f(Incomplete, mint, `"2026-08-21T10:00:00.011002Z"`, `"0000-01-01T00:00:00+14:00"`)
	f(Incomplete, mint, `"2026-08-21T10:00:00.011002Z"`, `"9999-12-31T23:59:59-14:00"`)
}

func TestWhatALineSaysOfItsSourceIsNotBelieved(t *testing.T) {
	e, _, err := Decode([]byte(with(t, mint, `"verb":`, `"source":"archive","verb":`)))
	require.NoError(t, err)
	require.Empty(t, e.Source)
}

func TestWhatMayQuoteASecretIsDropped(t *testing.T) {
	line := with(t, write, `"code":200`, `"code":422,"status":"Failure","reason":"Invalid","message":"Invalid value: SCRAM-SHA-256$4096:secret"`,
		`"verb"`, `"requestObject":{"data":{"password":"secret"}},"responseObject":{"data":"secret"},"verb"`)
	e, ours, err := Decode([]byte(line))
	require.NoError(t, err)
	require.True(t, ours)
	text, err := json.Marshal(e)
	require.NoError(t, err)
	require.NotContains(t, string(text), "secret\"")
	require.NotContains(t, string(text), "SCRAM")
	require.Equal(t, 422, e.ResponseStatus.Code)
	require.Equal(t, map[string]string{"authorization.k8s.io/decision": "allow"}, e.Annotations)

	e, _, err = Decode([]byte(with(t, write, `"code":200`, `"code":200,"message":"Connection closed early"`)))
	require.NoError(t, err)
	require.Equal(t, event.Indeterminate, e.Outcome())
}

// escaped writes s as JSON with some characters escaped that need not be.
func escaped(random *rand.Rand, s string) string {
	var b strings.Builder
	for _, r := range s {
		switch random.IntN(20) {
		case 0:
			fmt.Fprintf(&b, `\u%04x`, r)
		case 1:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func TestThePrefilterDropsNothingThatFullDecodingMatches(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(of ...string) string { return escaped(random, of[random.IntN(len(of))]) }
	matched, escapedMatches := 0, 0
	for range 30_000 {
		line := fmt.Sprintf(`{"auditID":"a","stage":"%s","verb":"%s","objectRef":{"apiGroup":"%s","resource":"%s","subresource":"%s","namespace":"%s","name":"%s"},`+
			`"requestReceivedTimestamp":"2026-08-21T10:00:00Z","stageTimestamp":"2026-08-21T10:00:00Z"}`,
			pick("ResponseComplete", "RequestReceived"), pick("create", "update"), pick(event.Group, event.Group, ""),
			pick("credentials", "secrets"), pick("mint", "revoke", ""), pick("n"), pick("a", "b.account", "c.d.account"))
		_, ours, err := decode([]byte(line))
		require.NoError(t, err)
		if !ours {
			continue
		}
		matched++
		if !strings.Contains(line, event.Group) && !strings.Contains(line, `.account"`) {
			escapedMatches++
		}
		require.True(t, couldBeOurs([]byte(line)), line)
	}
	require.Greater(t, matched, 1000)
	require.Greater(t, escapedMatches, 100)
}

func TestTheEventBehindATornLineIsFound(t *testing.T) {
	second := with(t, mint, "6f7f9c66", "second00")
	f := func(wantIDs []string, wantLost int, line string) {
		t.Helper()
		var got []string
		lost, err := Salvage([]byte(line), func(e event.Event) { got = append(got, e.AuditID[:8]) })
		require.Equal(t, wantIDs, got)
		require.Equal(t, wantLost, lost)
		require.Equal(t, wantLost > 0, err != nil)
	}
	f([]string{"6f7f9c66"}, 0, mint)
	f([]string{"6f7f9c66", "second00"}, 0, mint+second) // only the line break was lost
	for _, cut := range []int{1, 14, 15, 400, len(mint) - 1} {
		f([]string{"second00"}, cut, mint[:cut]+second)
	}
	f([]string{"second00"}, 1000, mint[:500]+mint[:500]+second)
	f(nil, 600, mint[:600])
	f(nil, 600+len(mint)-1, mint[:600]+mint[:len(mint)-1])

	// A body with something like an event in it, torn, and torn right behind that.
	forged := with(t, mint, `"jane"`, `"root"`, "6f7f9c66", "forged00")
	body := `{"kind":"Event","level":"Request","requestObject":` + forged
	f([]string{"second00"}, len(body)+len(`,"x":1`), body+`,"x":1`+second)
	f([]string{"second00"}, len(body), body+second)
	f(nil, len(body)+1, body+",")
}

func TestAHostileTornLineCostsLittle(t *testing.T) {
	nested := strings.Repeat(`{"kind":"Event","a":`, 200_000) + `"credentials.cozystack.io`
	lost, err := Salvage([]byte(nested), func(event.Event) { t.Fatal("there is no event") })
	require.Error(t, err)
	require.Equal(t, len(nested), lost)
}

func TestNoEventIsLargerThanAStoreTakes(t *testing.T) {
	huge := strings.Repeat(`\u0001é"`, 20_000)
	huge = strings.ReplaceAll(huge, `"`, `\"`)
	list := `"` + strings.Repeat(huge[:4000]+`","`, 300) + `"`
	line := with(t, mint, `6f7f9c66`, huge, `"username":"jane"`, `"uid":"`+huge+`","username":"`+huge+`"`, `"tenant-acme-admin"`, list,
		`"extra":{`, `"extra":{"`+huge+`":[`+list+`],`, `"olga"`, `"`+huge+`","groups":[`+list+`]`, `"192.0.2.7"`, list,
		`"userAgent":"`, `"userAgent":"`+huge, `"namespace":"`, `"namespace":"`+huge, `"name":"`, `"name":"`+huge,
		`"apiVersion":"v1alpha1"`, `"apiVersion":"`+huge+`"`, `"code":201`, `"code":201,"message":"`+huge+`","reason":"`+huge+`"`,
		`RBAC: `, huge, `?fieldManager`, `?`+huge+`fieldManager`)
	e, ours, err := Decode([]byte(line))
	require.NoError(t, err)
	require.True(t, ours)
	text, err := json.Marshal(e)
	require.NoError(t, err)
	require.Less(t, len(text), 500<<10)
	require.True(t, utf8.Valid(text))
	require.Equal(t, "10.0.0.1", e.SourceIPs[len(e.SourceIPs)-1])

	other, _, err := Decode([]byte(with(t, line, huge+"-16d5", huge+"x-16d5")))
	require.NoError(t, err)
	require.NotEqual(t, e.Identity(), other.Identity(), "ids that differ behind the cut")
}

func TestACutURIStillSaysWhetherItAsksForADryRun(t *testing.T) {
	f := func(want bool, uri string) {
		t.Helper()
		e, _, err := Decode([]byte(with(t, mint, "?fieldManager=kubectl-create", uri)))
		require.NoError(t, err)
		require.Less(t, len(e.RequestURI), 10_000)
		require.Equal(t, want, e.DryRun())
	}
	long := strings.Repeat("a", 20_000)
	f(true, "?x="+long+"&dryRun=All")
	f(true, "?dryRun=All&x="+long)
	f(false, "?x="+long)
	f(false, "?"+strings.Repeat("dryRunx=1&", 2000))
	f(true, "/"+long+"?dryRun=All")
	f(false, "/"+long)
}

func TestALongNameOfAnAccountSecretIsStillOne(t *testing.T) {
	e, ours, err := Decode([]byte(with(t, write, `"name":"`, `"name":"`+strings.Repeat("a", 5000))))
	require.NoError(t, err)
	require.True(t, ours)
	require.True(t, e.IsWrite())
	require.Less(t, len(e.ObjectRef.Name), 2000)
}

// FuzzDecode holds that no line makes Decode panic, that what is ours is whole and passes the prefilter, and that the
// event survives being stored.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(mint))
	f.Add([]byte(write))
	f.Add([]byte(mint[:500] + mint))
	f.Fuzz(func(t *testing.T, line []byte) {
		e, ours, err := decode(line)
		if err != nil {
			var decode *DecodeError
			require.True(t, errors.As(err, &decode))
			require.False(t, ours)
		}
		if ours {
			require.True(t, couldBeOurs(line))
			require.NotEmpty(t, e.AuditID)
			text, err := json.Marshal(e)
			require.NoError(t, err)
			var stored event.Event
			require.NoError(t, json.Unmarshal(text, &stored))
			require.Equal(t, e.Identity(), stored.Identity())
		}
		lost, _ := Salvage(line, func(e event.Event) { require.NotEmpty(t, e.AuditID) })
		require.LessOrEqual(t, lost, len(line))
	})
}

func BenchmarkDecode(b *testing.B) {
	line := []byte(mint)
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for b.Loop() {
		e, ours, err := Decode(line)
		if err != nil || !ours || e.Identity() == "" {
			b.Fatal(err)
		}
	}
}

// BenchmarkDecodeLax is what a reader costs that sees neither duplicate keys nor those in another case.
func BenchmarkDecodeLax(b *testing.B) {
	line := []byte(mint)
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for b.Loop() {
		var e event.Event
		if err := json.Unmarshal(line, &e); err != nil || e.Identity() == "" {
			b.Fatal(err)
		}
	}
}
