package event_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/ledger"
)

var received = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)

// minted is jane's mint as kube-apiserver records it at its end, changed by change.
func minted(change func(*event.Event)) *event.Event {
	e := &event.Event{
		AuditID: "a1", Stage: event.ResponseComplete, Verb: "create",
		RequestURI: "/apis/credentials.cozystack.io/v1alpha1/namespaces/tenant-acme/credentials/postgres-orders.app/mint",
		User:       event.User{Username: "jane"},
		ObjectRef: &event.ObjectRef{
			APIGroup: event.Group, APIVersion: "v1alpha1", Resource: event.Resource, Subresource: "mint",
			Namespace: "tenant-acme", Name: "postgres-orders.app",
		},
		ResponseStatus:           &event.ResponseStatus{Code: 201},
		Annotations:              map[string]string{"authorization.k8s.io/decision": "allow"},
		RequestReceivedTimestamp: received,
		StageTimestamp:           received.Add(9 * time.Millisecond),
	}
	if change != nil {
		change(e)
	}
	return e
}

func TestTheOutcomeIsReadAsTheAuditLogAllows(t *testing.T) {
	f := func(name string, want event.Outcome, change func(*event.Event)) {
		t.Helper()
		assert.Equal(t, want, minted(change).Outcome(), name)
	}
	code := func(code int) func(*event.Event) {
		return func(e *event.Event) { e.ResponseStatus.Code = code }
	}
	f("created", event.Succeeded, nil)
	f("ok", event.Succeeded, code(200))
	f("nothing was written", event.Indeterminate, func(e *event.Event) {
		e.ResponseStatus = &event.ResponseStatus{Code: 200, Message: "Connection closed early"}
	})
	f("Expect: 100-continue", event.Indeterminate, code(100))
	f("Connection: upgrade", event.Indeterminate, code(101))
	f("a proxy's 503", event.Indeterminate, code(503))
	f("a timeout", event.Indeterminate, code(504))
	f("a redirect", event.Indeterminate, code(302))
	f("no status", event.Indeterminate, func(e *event.Event) { e.ResponseStatus = nil })
	f("panic", event.Indeterminate, func(e *event.Event) { e.Stage, e.ResponseStatus.Code = event.Panic, 500 })
	f("panic after a 2xx", event.Indeterminate, func(e *event.Event) { e.Stage = event.Panic })
	f("an unknown stage", event.Indeterminate, func(e *event.Event) { e.Stage = "ResponseStarted" })
	f("conflict", event.Refused, code(409))
	f("forbidden", event.Refused, func(e *event.Event) {
		e.Annotations["authorization.k8s.io/decision"], e.ResponseStatus.Code = "forbid", 403
	})
	f("a 2xx that was not allowed", event.Refused, func(e *event.Event) {
		e.Annotations["authorization.k8s.io/decision"] = "forbid"
	})
	f("no decision", event.Refused, func(e *event.Event) { e.Annotations = nil })
	f("received", event.Received, func(e *event.Event) {
		e.Stage, e.ResponseStatus, e.Annotations = event.RequestReceived, nil, nil
	})
}

func TestADryRunIsSeenHoweverTheURIIsWritten(t *testing.T) {
	f := func(query string, want bool) {
		t.Helper()
		e := minted(func(e *event.Event) { e.RequestURI += query })
		assert.Equal(t, want, e.DryRun(), query)
		assert.Equal(t, !want, e.Eligible(), query)
	}
	f("", false)
	f("?fieldManager=x", false)
	f("?dryRun=All", true)
	f("?%64ryRun=All", true)
	f("?a=%zz&dryRun=All", true)
	f("?dryRun", true)
	f("?xdryRun=All", false)
	f("#?dryRun=All", true)
}

func TestOnlyCreatesOfTheTwoSubresourcesAreOperations(t *testing.T) {
	f := func(want ledger.Operation, ok bool, change func(*event.Event)) {
		t.Helper()
		got, is := minted(change).Operation()
		assert.Equal(t, ok, is)
		assert.Equal(t, want, got)
	}
	f(ledger.Mint, true, nil)
	f(ledger.Revoke, true, func(e *event.Event) { e.ObjectRef.Subresource = "revoke" })
	f("", false, func(e *event.Event) { e.ObjectRef.Subresource = "" })
	f("", false, func(e *event.Event) { e.ObjectRef.Subresource = "mint/x" })
	f("", false, func(e *event.Event) { e.Verb = "get" })
	f("", false, func(e *event.Event) { e.ObjectRef.APIGroup = "other.io" })
	f("", false, func(e *event.Event) { e.ObjectRef.Resource = "pods" })
	f("", false, func(e *event.Event) { e.ObjectRef.Name = "" })
	f("", false, func(e *event.Event) { e.ObjectRef = nil })
}

// written is a change of an account Secret by kubectl.
func written(change func(*event.Event)) *event.Event {
	return minted(func(e *event.Event) {
		e.Verb, e.RequestURI = "patch", "/api/v1/namespaces/tenant-acme/secrets/postgres-orders.app.account"
		e.ObjectRef = &event.ObjectRef{APIVersion: "v1", Resource: "secrets", Namespace: "tenant-acme", Name: "postgres-orders.app.account", UID: "u1"}
		if change != nil {
			change(e)
		}
	})
}

func TestOnlyWritesOfAccountSecretsAreWrites(t *testing.T) {
	f := func(want bool, change func(*event.Event)) {
		t.Helper()
		assert.Equal(t, want, written(change).IsWrite())
	}
	f(true, nil)
	f(true, func(e *event.Event) { e.Verb = "delete" })
	f(false, func(e *event.Event) { e.Verb = "get" })
	f(false, func(e *event.Event) { e.ObjectRef.Name = "postgres-orders-credentials" })
	f(false, func(e *event.Event) { e.ObjectRef.Name = ".account" })
	f(false, func(e *event.Event) { e.ObjectRef.APIGroup = "other.io" })
	f(false, func(e *event.Event) { e.ObjectRef.Resource = "configmaps" })
	f(false, func(e *event.Event) { e.ObjectRef = nil })
	assert.False(t, minted(nil).IsWrite())
}

func TestRequestsAndWritesNameTheSameAccount(t *testing.T) {
	for _, e := range []*event.Event{minted(nil), written(nil)} {
		namespace, credential := e.Account()
		assert.Equal(t, "tenant-acme", namespace)
		assert.Equal(t, "postgres-orders.app", credential)
	}
}

func TestAnImpersonatedRequestRanAsTheImpersonatedUser(t *testing.T) {
	e := minted(func(e *event.Event) { e.User.Username, e.ImpersonatedUser = "root", &event.User{Username: "jane"} })
	assert.Equal(t, "jane", e.EffectiveUser())
	assert.Equal(t, "root", e.Impersonator())
	assert.Equal(t, "jane", minted(nil).EffectiveUser())
	assert.Empty(t, minted(nil).Impersonator())
}

func TestTheIdentityChangesWithEveryFieldTheFoldReads(t *testing.T) {
	base := minted(nil).Identity()
	f := func(name string, change func(*event.Event)) {
		t.Helper()
		assert.NotEqual(t, base, minted(change).Identity(), name)
	}
	f("audit id", func(e *event.Event) { e.AuditID = "a2" })
	f("stage", func(e *event.Event) { e.Stage = event.Panic })
	f("verb", func(e *event.Event) { e.Verb = "get" })
	f("user", func(e *event.Event) { e.User.Username = "ivan" })
	f("impersonated", func(e *event.Event) { e.ImpersonatedUser = &event.User{Username: "jane"} })
	f("impersonated by an empty name", func(e *event.Event) { e.ImpersonatedUser = &event.User{} })
	f("group", func(e *event.Event) { e.ObjectRef.APIGroup = "" })
	f("resource", func(e *event.Event) { e.ObjectRef.Resource = "x" })
	f("subresource", func(e *event.Event) { e.ObjectRef.Subresource = "revoke" })
	f("namespace", func(e *event.Event) { e.ObjectRef.Namespace = "tenant-beta" })
	f("name", func(e *event.Event) { e.ObjectRef.Name = "x" })
	f("uid", func(e *event.Event) { e.ObjectRef.UID = "x" })
	f("no object", func(e *event.Event) { e.ObjectRef = nil })
	f("code", func(e *event.Event) { e.ResponseStatus.Code = 200 })
	f("closed early", func(e *event.Event) { e.ResponseStatus.Message = "Connection closed early" })
	f("decision", func(e *event.Event) { e.Annotations = nil })
	f("dry run", func(e *event.Event) { e.RequestURI += "?dryRun=All" })
	f("received", func(e *event.Event) { e.RequestReceivedTimestamp = received.Add(time.Microsecond) })
	f("end", func(e *event.Event) { e.StageTimestamp = received })
}

func TestTheIdentityIsTheSameFromEverySource(t *testing.T) {
	base := minted(nil).Identity()
	f := func(name string, change func(*event.Event)) {
		t.Helper()
		assert.Equal(t, base, minted(change).Identity(), name)
	}
	f("source", func(e *event.Event) { e.Source = "archive" })
	f("groups and extra, cut to fit", func(e *event.Event) { e.User.Groups = []string{"x"} })
	f("user agent", func(e *event.Event) { e.UserAgent = "curl" })
	f("time zone", func(e *event.Event) {
		e.RequestReceivedTimestamp = received.In(time.FixedZone("x", 7200))
	})
	f("nanoseconds", func(e *event.Event) { e.StageTimestamp = e.StageTimestamp.Add(999) })
}

func TestAnEventReadsItsOwnJSON(t *testing.T) {
	for _, e := range []*event.Event{minted(nil), written(nil), minted(func(e *event.Event) {
		e.User.Username = "a\n\"*>\u202e\x00b"
		e.ImpersonatedUser = &event.User{}
	})} {
		b, err := json.Marshal(e)
		require.NoError(t, err)
		var got event.Event
		require.NoError(t, json.Unmarshal(b, &got))
		assert.Equal(t, *e, got)
		assert.Equal(t, e.Identity(), got.Identity())
	}
}

func BenchmarkIdentity(b *testing.B) {
	e := minted(nil)
	b.ReportAllocs()
	for b.Loop() {
		e.Identity()
	}
}
