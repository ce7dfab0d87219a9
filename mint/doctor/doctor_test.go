package doctor

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mintlog/mintlog/mint/admission"
	"github.com/mintlog/mintlog/mint/enrolment"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/gap"
	"github.com/mintlog/mintlog/store/ledger"
	"github.com/mintlog/mintlog/store/stream"
)

var now = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// expect wants the worst of the findings to be a verdict, and what is seen or to be mended there to hold the words.
func expect(t *testing.T, findings []Finding, verdict Verdict, words ...string) {
	t.Helper()
	worst, text := OK, ""
	for _, f := range findings {
		if f.Verdict.weight() > worst.weight() {
			worst = f.Verdict
		}
		if f.Verdict != OK {
			assert.NotEmpty(t, f.Mend, "%s says what to mend", f.Seen)
		}
	}
	for _, f := range findings {
		if f.Verdict == worst {
			text += f.Seen + " | " + f.Mend + "\n"
		}
	}
	assert.Equal(t, verdict, worst, "%v", findings)
	for _, word := range words {
		assert.Contains(t, text, word)
	}
}

func TestAnAPIServiceIsJudgedByItsConditionAndItsTrust(t *testing.T) {
	good := apiServiceFacts{available: "True", namespace: "mintlog", service: "mint", port: 443}
	f := func(verdict Verdict, change func(*apiServiceFacts), words ...string) {
		t.Helper()
		facts := good
		change(&facts)
		expect(t, judgeAPIService(facts), verdict, words...)
	}
	f(OK, func(*apiServiceFacts) {}, "mintlog/mint:443")
	f(Fail, func(a *apiServiceFacts) { *a = apiServiceFacts{missing: true} }, "there is no APIService", "install")
	f(Fail, func(a *apiServiceFacts) { a.service = "" }, "names no Service")
	f(Fail, func(a *apiServiceFacts) {
		a.available, a.reason, a.message = "False", "FailedDiscoveryCheck", "connection refused"
	}, "FailedDiscoveryCheck", "connection refused", "mint server runs")
	f(Fail, func(a *apiServiceFacts) { a.available = "" }, "has not said")
	f(Fail, func(a *apiServiceFacts) { a.insecure = true }, "insecureSkipTLSVerify")
}

func TestAnAPIServiceIsReadWithItsDefaults(t *testing.T) {
	u := &unstructured.Unstructured{Object: map[string]any{
		"spec":   map[string]any{"service": map[string]any{"namespace": "mintlog", "name": "mint"}, "caBundle": "aGVsbG8="},
		"status": map[string]any{"conditions": []any{map[string]any{"type": "Other", "status": "False"}, map[string]any{"type": "Available", "status": "True"}}},
	}}
	f := readAPIServiceObject(u)
	assert.Equal(t, int64(443), f.port)
	assert.Equal(t, "True", f.available)
	assert.Equal(t, "hello", string(f.bundle))
	empty := readAPIServiceObject(&unstructured.Unstructured{Object: map[string]any{}})
	assert.Empty(t, empty.service+empty.available+string(empty.bundle))
}

func TestAServiceNeedsAReadyEndpoint(t *testing.T) {
	no := false
	f := apiServiceFacts{namespace: "mintlog", service: "mint", port: 443}
	expect(t, []Finding{judgeEndpoints(f, nil)}, Fail, "no ready endpoint")
	expect(t, []Finding{judgeEndpoints(f, []discoveryv1.EndpointSlice{{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &no}}}}})}, Fail)
	expect(t, []Finding{judgeEndpoints(f, []discoveryv1.EndpointSlice{{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}}})}, OK, "1 ready")
}

// authority signs certificates until an end.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

func newAuthority(t *testing.T, name string, end time.Time) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour), NotAfter: end, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	certificate, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return authority{certificate, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a authority) serving(t *testing.T, host string, end time.Time) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: now.Add(-time.Hour), NotAfter: end, DNSNames: []string{host}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, a.key.Public(), a.key)
	require.NoError(t, err)
	certificate, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return certificate
}

func TestAServingCertificateIsJudgedByWhoSignedItForWhomAndUntilWhen(t *testing.T) {
	const day, host = 24 * time.Hour, "mint.mintlog.svc"
	year := now.Add(365 * day)
	ours, other := newAuthority(t, "ours", year), newAuthority(t, "other", year)
	f := func(verdict Verdict, leaf *x509.Certificate, bundle []byte, words ...string) {
		t.Helper()
		expect(t, judgeCertificate(certificateFacts{bundle: bundle, host: host, chain: []*x509.Certificate{leaf}, from: "10.0.0.1:443"}, now), verdict, words...)
	}
	f(OK, ours.serving(t, host, now.Add(60*day)), ours.pem, "good for 60 days", "caBundle signs it")
	f(Warn, ours.serving(t, host, now.Add(10*day)), ours.pem, "ends in 10 days")
	f(Fail, ours.serving(t, host, now.Add(-time.Minute)), ours.pem, "ended on 2026-07-01")
	f(Fail, ours.serving(t, host, now.Add(60*day)), other.pem, "does not take", host)
	f(Fail, ours.serving(t, "mint.other.svc", now.Add(60*day)), ours.pem, "does not take", host)

	expect(t, judgeAuthorities(ours.pem, now), OK, "365 days")
	expect(t, judgeAuthorities(newAuthority(t, "old", now.Add(day)).pem, now), Warn, "ends in 1 days")
	expect(t, judgeAuthorities(append(newAuthority(t, "old", now.Add(-time.Minute)).pem, ours.pem...), now), OK)
	expect(t, judgeAuthorities(nil, now), Fail, "caBundle")
}

func TestTheFrontProxyMustKeepOthersOut(t *testing.T) {
	year := now.Add(365 * 24 * time.Hour)
	proxy, clients := newAuthority(t, "front-proxy", year), newAuthority(t, "clients", year)
	f := func(verdict Verdict, data map[string]string, words ...string) {
		t.Helper()
		expect(t, judgeFrontProxy(data, now), verdict, words...)
	}
	names := `["front-proxy-client"]`
	f(OK, map[string]string{"requestheader-client-ca-file": string(proxy.pem), "requestheader-allowed-names": names, "client-ca-file": string(clients.pem)}, "front-proxy-client")
	f(Fail, nil, "does not call other API servers as a front proxy", "--requestheader-client-ca-file")
	f(Fail, map[string]string{"requestheader-client-ca-file": string(proxy.pem), "requestheader-allowed-names": `[]`}, "any certificate", "--requestheader-allowed-names")
	f(Fail, map[string]string{"requestheader-client-ca-file": string(proxy.pem), "requestheader-allowed-names": names, "client-ca-file": string(proxy.pem)}, "alike", "--client-ca-file")
	f(Warn, map[string]string{"requestheader-client-ca-file": string(newAuthority(t, "p", now.Add(48*time.Hour)).pem), "requestheader-allowed-names": names}, "ends in 2 days")
}

func TestAnAnswerOfTheAPIIsJudgedByItsCode(t *testing.T) {
	f := func(verdict Verdict, a answer, words ...string) {
		t.Helper()
		expect(t, []Finding{judgeAPI("what it serves", a)}, verdict, words...)
	}
	f(OK, answer{code: 200, took: 3 * time.Millisecond}, "in 3ms")
	f(Fail, answer{code: 503, message: "no endpoints"}, "503: no endpoints", "mint server runs")
	f(Fail, answer{code: 404}, "does not know", "APIService")
	f(Warn, answer{code: 403}, "may list credentials")
}

func policy(change func(*policyFacts)) policyFacts {
	f := policyFacts{name: admission.Grants, tried: true, policy: &admissionv1.ValidatingAdmissionPolicy{},
		bound: []admissionv1.ValidatingAdmissionPolicyBinding{{Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: admission.Grants, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}}}}
	change(&f)
	return f
}

func TestAPolicyMustBeThereBoundCompiledAndInForce(t *testing.T) {
	f := func(verdict Verdict, change func(*policyFacts), words ...string) {
		t.Helper()
		findings := judgePolicy(policy(change))
		expect(t, findings, verdict, append(words, admission.Grants)...)
		assert.Len(t, findings, 1)
	}
	ignore := admissionv1.Ignore
	f(OK, func(*policyFacts) {}, "denied what it must")
	f(OK, func(p *policyFacts) { p.tried = false }, "has not said whether it compiles")
	f(OK, func(p *policyFacts) { p.tried = false; p.policy.Status.TypeChecking = &admissionv1.TypeChecking{} }, "compiles")
	f(Fail, func(p *policyFacts) { p.policy = nil }, "there is no ValidatingAdmissionPolicy", "chart")
	f(Fail, func(p *policyFacts) { p.bound = nil; p.open = admission.ErrOpen }, "not bound", "chart")
	f(Fail, func(p *policyFacts) {
		p.bound[0].Spec.ValidationActions = []admissionv1.ValidationAction{admissionv1.Audit}
	}, "denies everywhere")
	f(Fail, func(p *policyFacts) {
		p.bound[0].Spec.MatchResources = &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}}
	}, "denies everywhere")
	f(Fail, func(p *policyFacts) { p.policy.Spec.FailurePolicy = &ignore }, "failurePolicy is Ignore")
	f(Fail, func(p *policyFacts) {
		p.policy.Status.TypeChecking = &admissionv1.TypeChecking{ExpressionWarnings: []admissionv1.ExpressionWarning{{FieldRef: "spec.validations[2].expression"}}}
	}, "does not compile at spec.validations[2].expression")
	f(Fail, func(p *policyFacts) { p.open = admission.ErrOpen }, "not in force")
	f(Warn, func(p *policyFacts) { p.tried = false; p.open = errors.New("timeout") }, "could not be tried")
}

func TestADefinitionThatIsNotServedIsNamedWithTheReason(t *testing.T) {
	served := definitionFacts{name: "postgres", kind: "Postgres", hasBlock: true}
	plain := definitionFacts{name: "bucket", kind: "Bucket"}
	f := func(verdict Verdict, sights map[string]string, words []string, definitions ...definitionFacts) {
		t.Helper()
		expect(t, judgeDefinitions(definitions, sights), verdict, words...)
	}
	seen := map[string]string{"Postgres": "2026-01-01T00:00:00Z"}
	f(OK, seen, []string{"1 kinds are served: Postgres"}, served, plain)
	f(OK, nil, nil, served)
	f(Fail, map[string]string{}, []string{"has not seen the kinds Postgres", "accounts role runs"}, served)
	f(Fail, seen, []string{"the kind Redis is not served", "unknown format"}, served, definitionFacts{name: "redis", kind: "Redis", hasBlock: true, err: errors.New("unknown format")})
	f(Fail, seen, []string{"several definitions", "other, postgres"}, served, definitionFacts{name: "other", kind: "Postgres"})
	f(Warn, seen, []string{"no kind is served"}, plain)
	assert.Equal(t, map[string]bool{"Postgres": false, "Bucket": false}, servedKinds([]definitionFacts{served, {name: "other", kind: "Postgres"}, plain}))
}

func release(namespace, name, kind string) releaseFacts {
	return releaseFacts{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}, kind: kind, created: now.Add(-time.Hour)}
}

func secret(namespace, release, account string) secretFacts {
	return secretFacts{namespace: namespace, name: release + "." + account + ".account", release: release, labelled: true, created: now.Add(-time.Hour)}
}

func TestEnrolmentsMustMatchWhereApplicationsAre(t *testing.T) {
	whole := func(namespace string) enrolment.Enrolment {
		return enrolment.Enrolment{Namespace: namespace, Mint: true, Accounts: true}
	}
	f := func(verdict Verdict, facts enrolmentFacts, words ...string) {
		t.Helper()
		facts.served = map[string]bool{"Postgres": true}
		expect(t, judgeEnrolments(facts), verdict, words...)
	}
	apps, secrets := []releaseFacts{release("acme", "postgres-a", "Postgres")}, []secretFacts{secret("acme", "postgres-a", "app")}
	f(OK, enrolmentFacts{enrolled: []enrolment.Enrolment{whole("acme")}, releases: apps, secrets: secrets}, "1 namespaces")
	f(Fail, enrolmentFacts{enrolled: []enrolment.Enrolment{whole("beta")}, releases: apps, secrets: secrets}, "acme is not enrolled and has 1 account Secrets", "mintlog enroll acme")
	f(Warn, enrolmentFacts{enrolled: []enrolment.Enrolment{whole("beta")}, releases: append(apps, release("beta", "b", "Postgres"))}, "acme (1)", "mintlog enroll NAMESPACE")
	f(Warn, enrolmentFacts{enrolled: []enrolment.Enrolment{whole("acme"), whole("beta")}, releases: append(apps, release("beta", "b", "Bucket")), secrets: secrets}, "without an application of a served kind: beta", "mintlog unenroll")
	f(Fail, enrolmentFacts{enrolled: []enrolment.Enrolment{{Namespace: "acme", Mint: true}}, releases: apps}, "by half: the accounts role", "mintlog enroll acme")
	f(Fail, enrolmentFacts{enrolled: []enrolment.Enrolment{{Namespace: "acme", Accounts: true}}, releases: apps}, "by half: the mint server")
	f(Warn, enrolmentFacts{enrolled: []enrolment.Enrolment{{Namespace: "acme", Mint: true, Accounts: true, Others: []string{"user eve"}}}, releases: apps}, "user eve")
	f(Warn, enrolmentFacts{}, "no namespace is enrolled")
}

// grants are one application with two account Secrets, whose grant is right.
func grants() grantFacts {
	projector := rbacv1.Subject{Kind: "ServiceAccount", Namespace: "mintlog", Name: "projector"}
	meta := metav1.ObjectMeta{Namespace: "acme", Name: "credentials-postgres-a", Labels: map[string]string{grantLabel: "true"}}
	return grantFacts{
		projector: projector, now: now, enrolled: map[string]bool{"acme": true}, served: map[string]bool{"Postgres": true},
		releases: []releaseFacts{release("acme", "postgres-a", "Postgres")},
		secrets:  []secretFacts{secret("acme", "postgres-a", "one"), secret("acme", "postgres-a", "two")},
		roles: []rbacv1.Role{{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"postgres-a.one.account", "postgres-a.two.account"}, Verbs: []string{"get", "patch"},
		}}}},
		bindings: []rbacv1.RoleBinding{{ObjectMeta: meta, RoleRef: rbacv1.RoleRef{Kind: "Role", Name: meta.Name}, Subjects: []rbacv1.Subject{projector}}},
	}
}

func TestAGrantMustNameExactlyTheAccountSecretsForTheProjectorAlone(t *testing.T) {
	f := func(verdict Verdict, change func(*grantFacts), words ...string) {
		t.Helper()
		facts := grants()
		change(&facts)
		expect(t, judgeGrants(facts), verdict, words...)
	}
	f(OK, func(*grantFacts) {}, "1 grants name exactly their 2 account Secrets")
	f(Fail, func(g *grantFacts) { g.roles = nil; g.bindings = nil }, "acme/postgres-a has no grant", "accounts role")
	f(Fail, func(g *grantFacts) { g.secrets = append(g.secrets, secret("acme", "postgres-a", "three")) }, "does not name postgres-a.three.account")
	f(Fail, func(g *grantFacts) { g.secrets = g.secrets[:1] }, "names what is no account Secret of it: postgres-a.two.account")
	f(Fail, func(g *grantFacts) { g.roles[0].Rules[0].ResourceNames = nil }, "more than account Secrets by name")
	f(Fail, func(g *grantFacts) { g.roles[0].Rules[0].Verbs = []string{"*"} }, "more than account Secrets by name")
	f(Fail, func(g *grantFacts) { g.bindings = nil }, "no RoleBinding credentials-postgres-a")
	f(Fail, func(g *grantFacts) {
		g.bindings[0].Subjects = append(g.bindings[0].Subjects, rbacv1.Subject{Kind: "User", Name: "eve"})
	}, "not for the ServiceAccount mintlog/projector alone")
	f(Fail, func(g *grantFacts) { g.releases = nil; g.secrets = nil }, "role acme/credentials-postgres-a", "RoleBinding before its Role")
	f(Fail, func(g *grantFacts) {
		g.releases, g.secrets, g.roles = nil, nil, nil
	}, "rolebinding acme/credentials-postgres-a")
	f(Fail, func(g *grantFacts) { g.secrets[1].labelled = false }, "without their label", "acme/postgres-a.two.account", "break-glass")
	f(Warn, func(g *grantFacts) { g.secrets = append(g.secrets, secret("acme", "postgres-gone", "app")) }, "acme/postgres-gone.app.account")

	f(OK, func(g *grantFacts) { g.enrolled = nil; g.roles = nil; g.bindings = nil }, "0 grants")
	f(OK, func(g *grantFacts) {
		g.secrets = nil
		g.roles[0].Rules[0].ResourceNames = []string{noSecret}
		g.bindings = nil
	}, "1 grants name exactly their 0")
	f(OK, func(g *grantFacts) { g.releases[0].created = now.Add(-time.Second); g.roles, g.bindings = nil, nil })
	f(OK, func(g *grantFacts) {
		g.secrets = append(g.secrets, secretFacts{namespace: "acme", name: "postgres-a.new.account", release: "postgres-a", labelled: true, created: now})
	})
}

func after(d time.Duration) *time.Duration { return &d }

func TestTheEventsOfADryRunTellWhichPartHoldsThemBack(t *testing.T) {
	f := func(verdict Verdict, change func(*eventFacts), words ...string) {
		t.Helper()
		both := arrival{asked: true, received: after(time.Second), final: after(2 * time.Second)}
		facts := eventFacts{credential: types.NamespacedName{Namespace: "acme", Name: "postgres-a.app"}, auditID: "id", answer: answer{code: http.StatusCreated}, waited: 30 * time.Second, stream: both, archive: both}
		change(&facts)
		expect(t, judgeEvents(facts), verdict, words...)
	}
	none := arrival{asked: true}
	f(OK, func(*eventFacts) {}, "arrived in the archive, the last after 2s")
	f(OK, func(e *eventFacts) { e.stream = arrival{} })
	f(Warn, func(e *eventFacts) { e.stream, e.archive = arrival{}, arrival{} }, "--victorialogs or --nats")
	f(Fail, func(e *eventFacts) { e.stream, e.archive = none, none }, "none of its audit events arrived in the stream within 30s", "ingest runs")
	f(Fail, func(e *eventFacts) { e.archive = none }, "arrived in the archive", "the archiver runs")
	f(Fail, func(e *eventFacts) { e.stream, e.archive = arrival{}, none }, "ingest, the stream and the archiver", "--nats")
	f(Fail, func(e *eventFacts) { e.archive.received, e.stream.received = nil, nil }, "RequestReceived did not", "policy.yaml")
	f(Fail, func(e *eventFacts) { e.archive.final = nil }, "the final audit event did not")
	f(Warn, func(e *eventFacts) { e.archive = arrival{asked: true, err: errors.New("connection refused")} }, "see the check archive", "connection refused")
	f(Warn, func(e *eventFacts) { e.stream = arrival{asked: true, err: errors.New("no responders")} }, "see the check stream")
	f(Warn, func(e *eventFacts) { e.answer = answer{code: http.StatusForbidden} }, "the right to create credentials/mint of acme/postgres-a.app is missing")
	f(Fail, func(e *eventFacts) {
		e.answer = answer{code: http.StatusServiceUnavailable, message: "the format's webhook is down"}
	}, "503: the format's webhook is down")
}

func TestOnlyEventsOfTheDryRunCount(t *testing.T) {
	var a arrival
	a.see([]event.Event{{AuditID: "other", Stage: event.RequestReceived}, {AuditID: "id", Stage: event.ResponseComplete}}, "id", time.Second)
	assert.Nil(t, a.received)
	a.see([]event.Event{{AuditID: "id", Stage: event.RequestReceived}, {AuditID: "id", Stage: event.ResponseComplete}}, "id", 3*time.Second)
	require.True(t, a.complete())
	assert.Equal(t, time.Second, *a.final, "the first time counts")
	assert.Equal(t, 3*time.Second, *a.received)
}

func TestAStreamIsJudgedByWhatWaitsAndHowFullItIs(t *testing.T) {
	f := func(verdict Verdict, change func(*streamFacts), words ...string) {
		t.Helper()
		facts := streamFacts{
			streams: []stream.StreamState{{Name: "MINTLOG_EVENTS", Bytes: 100, MaxBytes: 1000, Replicas: 1}},
			before:  []stream.ConsumerState{{Name: stream.ArchiverEvents, Readers: 1}}, after: []stream.ConsumerState{{Name: stream.ArchiverEvents, Readers: 1}},
		}
		change(&facts)
		expect(t, judgeStream(facts), verdict, words...)
	}
	f(OK, func(*streamFacts) {}, "no gap open")
	f(Fail, func(s *streamFacts) { s.streams[0].Missing = true }, "MINTLOG_EVENTS is missing")
	f(Warn, func(s *streamFacts) { s.streams[0].Bytes = 700 }, "70 % full", "--stream-max-bytes")
	f(Fail, func(s *streamFacts) { s.streams[0].Bytes = 900 }, "90 % full")
	f(OK, func(s *streamFacts) { s.streams[0].Bytes = 1000; s.streams[0].Discards = true })
	f(Warn, func(s *streamFacts) { s.streams[0].Replicas, s.streams[0].Current, s.streams[0].Offline = 3, 2, 1 }, "2 of 3 replicas")
	f(Fail, func(s *streamFacts) { s.after[0].Missing = true }, "archiver-events is missing")
	pending := func(s *streamFacts) { s.before[0].Pending, s.after[0].Pending = 7, 7 }
	f(Warn, pending, "7 events wait for the archiver", "log of the archiver")
	f(Fail, func(s *streamFacts) { pending(s); s.before[0].Readers, s.after[0].Readers = 0, 0 }, "nobody reads them", "archiver runs")
	f(OK, func(s *streamFacts) { pending(s); s.after[0].Handled = 5 })
	f(OK, func(s *streamFacts) { s.after[0].Pending = 7 })
	f(Warn, func(s *streamFacts) { s.before[0].Unsettled, s.after[0].Unsettled = 3, 3 }, "3 events wait")
	intents := func(s *streamFacts) {
		s.before[0].Name, s.after[0].Name = stream.ProjectorIntents, stream.ProjectorIntents
	}
	f(OK, func(s *streamFacts) { intents(s); s.before[0].Unsettled, s.after[0].Unsettled = 3, 3 })
	f(OK, func(s *streamFacts) { intents(s); pending(s); s.after[0].Delivered = 5 })
	f(Warn, func(s *streamFacts) { intents(s); pending(s) }, "7 events wait for the projector")
	f(Warn, func(s *streamFacts) {
		s.gaps = []gap.Gap{{Source: "file:audit.log", Reason: "rotated file is gone", FoundAt: now}, {Source: "x", FoundAt: now, ClosedAt: now}}
	}, "1 gaps are open", "file:audit.log from the beginning to 2026-07-01T12:00:00Z", "mintlog replay")
}

func TestTheArchiveMustKeepEventsForAsLongAsTheMintServerCountsOnThem(t *testing.T) {
	const day = 24 * time.Hour
	expect(t, []Finding{judgeRetention(30*day, 30*day)}, OK, "30 days")
	expect(t, []Finding{judgeRetention(7*day, 30*day)}, Fail, "7 days", "-retentionPeriod", "--retention")
	expect(t, []Finding{judgeRetention(0, 30*day)}, Warn, "does not say")
}

func TestTheNewestOperationShouldHaveItsEventInTheArchive(t *testing.T) {
	secrets := []secretFacts{secret("acme", "postgres-a", "one"), secret("acme", "postgres-a", "two")}
	assert.Nil(t, newestOperation(secrets))
	secrets[0].entries = []ledger.Entry{{Operation: ledger.Mint, AuditID: "a", At: now.Add(-time.Hour)}}
	secrets[1].entries = []ledger.Entry{{Operation: ledger.Create, At: now}, {Operation: ledger.Revoke, AuditID: "b", At: now.Add(-time.Minute)}}
	newest := newestOperation(secrets)
	require.NotNil(t, newest)
	assert.Equal(t, "postgres-a.two", newest.credential)

	f := func(verdict Verdict, age time.Duration, found bool, words ...string) {
		t.Helper()
		o := operationFacts{namespace: "acme", credential: "postgres-a.one", entry: ledger.Entry{Operation: ledger.Mint, At: now.Add(-age)}, found: found}
		expect(t, []Finding{judgeNewest(&o, 30*24*time.Hour, now)}, verdict, words...)
	}
	f(OK, time.Hour, true, "it has the event")
	f(Warn, time.Hour, false, "no event of the newest operation (Mint of acme/postgres-a.one", "mintlog gaps")
	f(OK, time.Minute, false, "too young")
	f(OK, 40*24*time.Hour, false, "older than what it keeps")
	expect(t, []Finding{judgeNewest(nil, 0, now)}, OK)
}

func TestANewestOperationWithoutANameTellsOfAProjectorThatStandsStill(t *testing.T) {
	entry := ledger.Entry{ID: "x", Revision: 2, Operation: ledger.Mint, AuditID: "a", At: now.Add(-time.Hour)}
	account := func(name string, change func(*secretFacts)) secretFacts {
		s := secret("acme", "postgres-a", name)
		s.entries = []ledger.Entry{entry, {ID: "older", Operation: ledger.Mint, AuditID: "b", At: now.Add(-2 * time.Hour)}}
		s.named = map[string]bool{"x": true}
		change(&s)
		return s
	}
	with := func(s *secretFacts) {}
	without := func(s *secretFacts) { s.named = map[string]bool{"older": true, "x": false} }
	newest := func(found bool) *operationFacts {
		return &operationFacts{namespace: "acme", credential: "postgres-a.one", entry: entry, found: found}
	}
	f := func(verdict Verdict, o *operationFacts, words []string, secrets ...secretFacts) {
		t.Helper()
		expect(t, judgeHistories(secrets, o, now), verdict, words...)
	}
	f(OK, nil, []string{"no account has an operation"})
	f(OK, newest(true), []string{"each of 1 accounts"}, account("one", with))
	f(Fail, newest(true), []string{"acme/postgres-a.one, bears no name", "see that the projector runs"}, account("one", without))
	f(Warn, newest(false), []string{"1 accounts whose newest operation bears no name: acme/postgres-a.one"}, account("one", without))
	f(Warn, nil, []string{"acme/postgres-a.one"}, account("one", without))
	mismatched := func(s *secretFacts) { without(s); s.judged = map[int64]bool{2: true} }
	f(Warn, newest(true), []string{"acme/postgres-a.one", "kubectl credentials history"}, account("one", mismatched))
	f(OK, newest(true), nil, account("one", func(s *secretFacts) { without(s); s.entries[0].At = now.Add(-time.Minute) }))
	f(OK, newest(true), nil, account("one", func(s *secretFacts) { without(s); s.entries[0].Operation = ledger.Create }))
	f(OK, newest(true), nil, account("one", func(s *secretFacts) { without(s); s.labelled = false }))
}

func TestClocksAreComparedWithinWhatWholeSecondsTell(t *testing.T) {
	at := func(ahead time.Duration) reading {
		return reading{clock: now.Add(ahead).Truncate(time.Second), asked: now, answered: now.Add(100 * time.Millisecond)}
	}
	assert.Zero(t, at(0).ahead())
	assert.Zero(t, at(-900*time.Millisecond).ahead())
	assert.Equal(t, 9900*time.Millisecond, at(10*time.Second).ahead())
	assert.Equal(t, -9*time.Second, at(-10*time.Second).ahead())
	assert.Zero(t, reading{asked: now, answered: now}.ahead())

	f := func(verdict Verdict, api, mint, archive time.Duration, words ...string) {
		t.Helper()
		expect(t, judgeClocks(clockFacts{now: now, apiServer: at(api), mint: at(mint), archive: at(archive)}), verdict, words...)
	}
	f(OK, 0, 0, 0, "in step")
	f(Warn, 20*time.Second, 20*time.Second, 20*time.Second, "this machine's clock")
	f(Warn, 0, 4*time.Second, 0, "the mint server's clock", "NTP")
	f(Fail, 0, 10*time.Second, 0, "Skewed")
	f(Fail, 0, -10*time.Second, 0, "Skewed")
	f(Warn, 0, 0, time.Hour, "VictoriaLogs' clock")
	expect(t, judgeClocks(clockFacts{now: now}), Warn, "does not tell its time")

	g := func(verdict Verdict, o operationFacts, words ...string) {
		t.Helper()
		expect(t, judgeClocks(clockFacts{now: now, apiServer: at(0), newest: &o}), verdict, words...)
	}
	event := operationFacts{found: true, from: now.Add(-time.Hour), until: now.Add(-time.Hour + time.Second)}
	entry := func(at time.Time) operationFacts { o := event; o.entry.At = at; return o }
	g(OK, entry(event.from))
	g(OK, entry(event.until.Add(14*time.Second)))
	g(Fail, entry(event.until.Add(16*time.Second)), "its audit event of")
	g(Fail, entry(event.from.Add(-6*time.Second)), "its audit event of")
	g(Fail, entry(now.Add(time.Minute)), "in the future")
}

func TestWhoseVersionIsAskedIsNamedWithoutAPassword(t *testing.T) {
	d := Doctor{}
	for _, given := range []string{"http://sre:hunter2@127.0.0.1:1/metrics", "http://sre:hunter2@x y", "ftp://sre:hunter2@x"} {
		d.Metrics = []string{given}
		findings := d.lookAtVersions(t.Context())
		require.Len(t, findings, 1)
		assert.Equal(t, Warn, findings[0].Verdict)
		assert.NotContains(t, findings[0].Seen, "hunter2")
	}
}

func TestPartsOfAnotherVersionAreNamed(t *testing.T) {
	expect(t, judgeVersions(map[string][]string{"v1": {"http://a", "http://b"}}, "v1"), OK, "2 parts are of version v1")
	expect(t, judgeVersions(map[string][]string{"v1": {"http://a"}, "v2": {"http://b"}}, "v1"), Warn, "http://b is of version v2, this program of v1")
	expect(t, judgeVersions(map[string][]string{"v2": {"http://a"}}, "v1"), Warn, "http://a is of version v2")
}

func TestWhatCannotBeLookedAtNamesTheRightThatIsMissing(t *testing.T) {
	secrets := schema.GroupResource{Resource: "secrets"}
	expect(t, []Finding{unseen(apierrors.NewForbidden(secrets, "", errors.New("no")), rightSecrets)}, Warn, "the right to list secrets in all namespaces is missing", "may list secrets")
	expect(t, []Finding{unseen(context.DeadlineExceeded, rightSecrets)}, Fail, "no answer in time")
	quoting := apierrors.NewInvalid(schema.GroupKind{Kind: "Secret"}, "x", nil)
	quoting.ErrStatus.Message = "the stored password hunter2"
	assert.NotContains(t, words(quoting), "hunter2")
}

func TestManyObjectsAreCountedBehindTheFirst(t *testing.T) {
	assert.Equal(t, "a, b", some([]string{"b", "a"}))
	assert.Equal(t, "a, b, c, d, e and 2 more", some(strings.Split("g f e d c b a", " ")))
}
