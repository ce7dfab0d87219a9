package main

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
)

// newest is a credential whose newest operation is attributed in some way.
func newest(attribution, by, through string) v1alpha1.Credential {
	c := credential()
	c.Status.History = []v1alpha1.Operation{
		{ID: "id-7", Revision: 7, Operation: "Mint", At: at(0), Attribution: attribution, By: by, ImpersonatedBy: through},
		{ID: "id-6", Revision: 6, Operation: "Mint", At: at(0), Attribution: "AuditLog", By: "olga"},
	}
	return c
}

// inTurn answers with one after the other, and then with the last for ever.
func inTurn(answers ...http.HandlerFunc) http.HandlerFunc {
	var next atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) { answers[min(int(next.Add(1)), len(answers))-1](w, r) }
}

func TestAWaitEndsWhenTheAuditLogNamesSomebody(t *testing.T) {
	f := func(want string, first, then http.HandlerFunc, args ...string) {
		t.Helper()
		s := newServer(t)
		s.answers["GET "+app] = inTurn(first, then)
		r := s.command(t, append([]string{"wait", "postgres-orders.app", "--for", "attributed"}, args...)...)
		assert.Equal(t, exitOK, r.code, r.err)
		assert.Equal(t, "postgres-orders.app: "+want+"\n", r.out)
		assertSafe(t, r.out+r.err)
	}
	pending, jane := sends(200, newest("Pending", "", "")), sends(200, newest("AuditLog", "jane", "root"))
	f("Mint, revision 7, by jane through root", pending, jane)
	f("Mint, revision 7, by jane through root", sends(200, newest("Unattributed", "", "")), jane)
	f("Mint, revision 7, by jane through root", refuses(apierrors.NewTooManyRequestsError("busy")), jane)
	f("Mint, revision 7, by the platform", pending, sends(200, newest("Platform", "", "")))
	f(`Mint, revision 7, by "mallory\x1b[2J\nroot \u202e\u009b31m"`, pending, sends(200, newest("AuditLog", hostile, "")))
	f("Mint, revision 6, by olga", pending, pending, "--id=id-6")
}

func TestAWaitForAnAttributionTellsWhyItWasInVain(t *testing.T) {
	f := func(code int, want string, answer http.HandlerFunc, args ...string) {
		t.Helper()
		s := newServer(t)
		s.answers["GET "+app] = answer
		r := s.command(t, append([]string{"wait", "postgres-orders.app", "--for=attributed", "--timeout=2s"}, args...)...)
		assert.Equal(t, code, r.code, r.err)
		assert.Empty(t, r.out)
		assert.Contains(t, r.err, want)
	}
	f(exitTime, "event for revision 7 has not arrived\nSee kubectl credentials history", sends(200, newest("Pending", "", "")))
	f(exitTime, "came for revision 7 in good time", sends(200, newest("Unattributed", "", "")))
	f(exitTime, "does not have the operation", sends(200, newest("AuditLog", "jane", "")), "--id=id-8")
	f(exitOther, "nobody will be named", sends(200, newest("Expired", "", "")))
	f(exitNotFound, "List what there is", refuses(apierrors.NewNotFound(v1alpha1.Resource("credentials"), "postgres-orders.app")))
	f(exitRefused, "You need get", refuses(apierrors.NewForbidden(v1alpha1.Resource("credentials"), "postgres-orders.app", errors.New("no"))))
}

func TestFlagsOfAWaitThatCannotStandTogetherAreToldBeforeAnythingIsAsked(t *testing.T) {
	s := newServer(t)
	f := func(want, in string, args ...string) {
		t.Helper()
		r := s.onTerminal(t, terminal{in: strings.NewReader(in)}, append([]string{"wait", "postgres-orders.app"}, args...)...)
		assert.Equal(t, exitUsage, r.code, args)
		assert.Contains(t, r.err, want)
		assert.NotContains(t, r.err, "secret")
		assert.Empty(t, s.requests())
	}
	f("--for", "")
	f("--for", "", "--for=ready")
	f("--timeout", "", "--for=attributed", "--timeout=0s")
	f("only", "", "--for=attributed", "--address=h")
	f("only", "", "--for=login", "--address=h", "--id=x")
	f("--id is empty", "", "--for=attributed", "--id=")
	f("needs --address", "", "--for=login")
	f("--engine", "", "--for=login", "--address=h", "--engine=oracle")
	f("--tls", "", "--for=login", "--address=h", "--tls=prefer")
	f("--tls-ca", "", "--for=login", "--address=h", "--tls=require", "--tls-ca=f")
	f("empty", "", "--for=login", "--address=h")
	f("empty", "\n", "--for=login", "--address=h")
	f("more than the one line", "secret\nmore\n", "--for=login", "--address=h")
	f("more than the one line", strings.Repeat("s", longestPassword+1), "--for=login", "--address=h")
}

func TestTheEngineIsToldFromTheKindOrTheFormat(t *testing.T) {
	f := func(want, kind, format string) {
		t.Helper()
		assert.Equal(t, want, engineOf(v1alpha1.CredentialSpec{Application: v1alpha1.ApplicationReference{Kind: kind}, Format: format}))
	}
	f(postgresql, "Postgres", "plaintext")
	f(mariadb, "MariaDB", "plaintext")
	f(mariadb, "MySQL", "")
	f(postgresql, "Shop", "scram-sha-256")
	f(mariadb, "Shop", "mysql-native")
	f("", "Redis", "sha256")

	s := newServer(t)
	c := credential()
	c.Spec.Application.Kind, c.Spec.Format = "Redis", "sha256"
	s.answers["GET "+app] = sends(200, c)
	r := s.onTerminal(t, terminal{in: strings.NewReader("p")}, "wait", "postgres-orders.app", "--for=login", "--address=h")
	assert.Equal(t, exitUsage, r.code)
	assert.Contains(t, r.err, "give --engine")
}
