package credential

import (
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/mintlog/mintlog/mint/account"
	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/store/ledger"
	"github.com/mintlog/mintlog/test/sandbox"
)

const note = "example.com/note"

func TestAWriteWhoseAnswerWasLostIsReadBack(t *testing.T) {
	f := func(name string, lost func() (*http.Response, error)) {
		t.Helper()
		for _, s := range []*subject{seeded(t, sandbox.TenantAcme, nil), declared(t, sandbox.TenantAcme)} {
			was := s.entries(t)
			landed := false
			mint := s.serve(t, first(func(w *write) (*http.Response, error) {
				landed = w.land(w.request.Context())
				return lost()
			}))
			answer, err := mint.mint(t, s)
			require.True(t, landed, name)
			s.tookEffect(t, answer, err, was)
			assert.Len(t, mint.faults.sent(), 1, name)
		}
	}
	f("the connection broke", func() (*http.Response, error) { return nil, errLost })
	f("an internal error", func() (*http.Response, error) { return answering(500, metav1.StatusReasonInternalError), nil })
	f("unavailable", func() (*http.Response, error) { return answering(503, metav1.StatusReasonServiceUnavailable), nil })
	f("a timeout", func() (*http.Response, error) { return answering(504, metav1.StatusReasonTimeout), nil })
}

func TestARevokeWhoseAnswerWasLostIsReadBack(t *testing.T) {
	s := seeded(t, sandbox.TenantAcme, nil)
	was := s.live(t)
	revoking := s.serve(t, first(func(w *write) (*http.Response, error) {
		require.True(t, w.land(w.request.Context()))
		return nil, errLost
	}))
	answer, err := revoking.revoke(t, s)
	require.NoError(t, err)
	now := s.live(t)
	assert.Equal(t, append([]string{answer.Status.ID}, ids(t, was)...), ids(t, now))
	assert.Equal(t, "Revoked", now.Annotations[ledger.OriginAnnotation])
	assert.False(t, bytes.Equal(was.Data["password"], now.Data["password"]), "the old password is gone")
}

func TestAWriteThatLandsWhileItIsLookedForIsFound(t *testing.T) {
	for _, s := range []*subject{seeded(t, sandbox.TenantAcme, nil), declared(t, sandbox.TenantAcme)} {
		was := s.entries(t)
		landed := make(chan bool, 1)
		mint := s.serve(t, first(func(w *write) (*http.Response, error) {
			late := context.WithoutCancel(w.request.Context())
			time.AfterFunc(3*readBackPause, func() { landed <- w.land(late) })
			return nil, errLost
		}))
		mint.faults.blind.Store(1)
		answer, err := mint.mint(t, s)
		require.True(t, <-landed)
		s.tookEffect(t, answer, err, was)
		assert.Len(t, mint.faults.sent(), 1)
	}
}

func TestAWriteThatNeverArrivedIsLookedForUntilTheBudgetIsSpent(t *testing.T) {
	for _, s := range []*subject{seeded(t, sandbox.TenantAcme, nil), declared(t, sandbox.TenantAcme)} {
		version := s.version(t)
		mint := s.serve(t, unsent)
		var received time.Time
		_, err := mint.mint(t, s, remaining(3*time.Second), func(c *call) { received = c.received })
		refusedForNow(t, err, "its history will tell")
		assert.GreaterOrEqual(t, time.Since(received), ledger.WriteBudget)
		assert.Equal(t, version, s.version(t))
		assert.Len(t, mint.faults.sent(), 1, "what may have landed is not sent again")
	}
}

func TestASecretThatCannotBeReadBackInTimeIsAnsweredTryAgain(t *testing.T) {
	s := seeded(t, sandbox.TenantAcme, nil)
	was := s.entries(t)
	mint := s.serve(t, first(func(w *write) (*http.Response, error) {
		require.True(t, w.land(w.request.Context()))
		return nil, errLost
	}))
	mint.faults.blind.Store(1000)
	_, err := mint.mint(t, s, remaining(4*time.Second)) // for the write to land in
	refusedForNow(t, err, "its history will tell")
	assert.Len(t, s.entries(t), len(was)+1, "and so it does")
}

func TestAChangeOfAnAnnotationAloneIsWrittenUpon(t *testing.T) {
	f := func(name string, after func(*write) (*http.Response, error)) {
		t.Helper()
		s := seeded(t, sandbox.TenantAcme, nil)
		was := s.entries(t)
		mint := s.serve(t, first(func(w *write) (*http.Response, error) {
			s.annotate(t, note, "kept")
			return after(w)
		}))
		answer, err := mint.mint(t, s)
		s.tookEffect(t, answer, err, was)
		assert.Equal(t, "kept", s.live(t).Annotations[note], name)
		assert.Len(t, mint.faults.sent(), 2, name)
	}
	f("a conflict", func(w *write) (*http.Response, error) { return w.send() })
	f("a conflict without an answer", func(w *write) (*http.Response, error) {
		require.False(t, w.land(w.request.Context()))
		return nil, errLost
	})
	f("a write that never arrived", func(*write) (*http.Response, error) { return nil, errLost })
}

func TestASecretThatChangesAtEveryWriteIsGivenUp(t *testing.T) {
	f := func(changes int) (*subject, []string, *server, *v1alpha1.CredentialMint, error) {
		s := seeded(t, sandbox.TenantAcme, nil)
		was := s.entries(t)
		mint := s.serve(t, func(n int, w *write) (*http.Response, error) {
			if n <= changes {
				s.annotate(t, note, strings.Repeat("x", n))
			}
			return w.send()
		})
		answer, err := mint.mint(t, s)
		return s, was, mint, answer, err
	}
	s, was, _, answer, err := f(maxAttempts - 1)
	s.tookEffect(t, answer, err, was)

	s, was, mint, _, err := f(maxAttempts)
	refusedForNow(t, err, "nothing was written")
	assert.Equal(t, was, s.entries(t))
	assert.Len(t, mint.faults.sent(), maxAttempts)
}

func TestOfTwoMintsAtOnceTheFirstWins(t *testing.T) {
	f := func(name string, s *subject, after func(*write) (*http.Response, error)) {
		t.Helper()
		was := s.entries(t)
		var other *v1alpha1.CredentialMint
		var otherErr error
		mint := s.serve(t, first(func(w *write) (*http.Response, error) {
			other, otherErr = s.serve(t, nil).mint(t, s)
			return after(w)
		}))
		_, err := mint.mint(t, s)
		refused(t, err, http.StatusConflict, "another mint came first")
		s.tookEffect(t, other, otherErr, was)
		assert.Len(t, mint.faults.sent(), 1, name)
	}
	send := func(w *write) (*http.Response, error) { return w.send() }
	lose := func(*write) (*http.Response, error) { return nil, errLost }
	f("an update", seeded(t, sandbox.TenantAcme, nil), send)
	f("an update that never arrived", seeded(t, sandbox.TenantAcme, nil), lose)
	f("a creation", declared(t, sandbox.TenantAcme), send)
	f("a creation that never arrived", declared(t, sandbox.TenantAcme), lose)
}

func TestARevokeThatCameFirstWinsOverAMint(t *testing.T) {
	s := seeded(t, sandbox.TenantAcme, nil)
	var other *v1alpha1.CredentialRevoke
	var otherErr error
	was := s.entries(t)
	_, err := s.serve(t, before(func() { other, otherErr = s.serve(t, nil).revoke(t, s) })).mint(t, s)
	refused(t, err, http.StatusConflict, "another revoke came first")
	require.NoError(t, otherErr)
	assert.Equal(t, append([]string{other.Status.ID}, was...), s.entries(t))
}

func TestOfManyMintsAtOnceExactlyThoseThatWereAnsweredStand(t *testing.T) {
	s := seeded(t, sandbox.TenantAcme, nil)
	was := s.entries(t)
	answers, errs := make([]*v1alpha1.CredentialMint, 8), make([]error, 8)
	var all sync.WaitGroup
	for i := range answers {
		mint := s.serve(t, nil)
		all.Go(func() { answers[i], errs[i] = mint.mint(t, s) })
	}
	all.Wait()
	live := s.live(t)
	standing := map[string]bool{}
	for _, id := range ids(t, live)[:len(ids(t, live))-len(was)] {
		standing[id] = true
	}
	require.NotEmpty(t, standing)
	for i, answer := range answers {
		if errs[i] != nil {
			refused(t, errs[i], http.StatusConflict, "came first")
			continue
		}
		assert.True(t, standing[answer.Status.ID], "what was answered stands")
		delete(standing, answer.Status.ID)
		if answer.Status.ID == ids(t, live)[0] {
			s.holds(t, live, answer)
		}
	}
	assert.Empty(t, standing, "what was refused does not stand")
}

func TestAWriteThatTheTransportRepeatedTookEffectOnce(t *testing.T) {
	for _, s := range []*subject{seeded(t, sandbox.TenantAcme, nil), declared(t, sandbox.TenantAcme)} {
		was := s.entries(t)
		var code int
		mint := s.serve(t, first(func(w *write) (*http.Response, error) {
			require.True(t, w.land(w.request.Context()))
			answer, err := w.send()
			if err == nil {
				code = answer.StatusCode
			}
			return answer, err
		}))
		answer, err := mint.mint(t, s)
		require.Equal(t, http.StatusConflict, code, "kube-apiserver refuses the repetition")
		s.tookEffect(t, answer, err, was)
		assert.Len(t, mint.faults.sent(), 1)
	}
}

func TestACacheThatIsBehindDelaysNobody(t *testing.T) {
	s, fresh := seeded(t, sandbox.TenantAcme, nil), declared(t, sandbox.TenantAcme)
	_, err := s.cluster.AccountSecrets(t.Context(), sandbox.TenantAcme)
	require.NoError(t, err)
	s.freeze(t)
	for _, s := range []*subject{s, fresh} {
		was := s.entries(t)
		for range 3 {
			answer, err := s.serve(t, nil).mint(t, s)
			s.tookEffect(t, answer, err, was)
			was = s.entries(t)
		}
	}
}

func TestPreconditionsAreHeldAgainstTheLiveSecretWhereTheCacheIsBehind(t *testing.T) {
	s := seeded(t, sandbox.TenantAcme, nil)
	seed := s.entries(t)[0]
	s.freeze(t)
	mint := s.serve(t, nil)
	once, err := mint.mint(t, s)
	require.NoError(t, err)
	was := s.entries(t)
	given := func(p v1alpha1.Preconditions) func(*call) { return func(c *call) { c.preconditions = &p } }

	_, err = mint.mint(t, s, given(v1alpha1.Preconditions{ID: &seed}))
	refused(t, err, http.StatusConflict, "precondition id")
	assert.Equal(t, was, s.entries(t))

	twice, err := mint.mint(t, s, given(v1alpha1.Preconditions{ID: &once.Status.ID, Revision: &once.Status.Revision}))
	s.tookEffect(t, twice, err, was)
}

// refuse is the annotation that tells the policy of layRefusals for what reason to refuse a write.
const refuse = "refuse"

// layRefusals has kube-apiserver refuse what the mint server writes, with an answer that quotes the password, where an
// annotation of the Secret asks for it.
func layRefusals(t *testing.T, w *world) {
	t.Helper()
	var validations []admissionv1.Validation
	for _, reason := range []metav1.StatusReason{
		metav1.StatusReasonInvalid, metav1.StatusReasonForbidden, metav1.StatusReasonRequestEntityTooLarge,
	} {
		validations = append(validations, admissionv1.Validation{
			Expression:        "object.metadata.annotations['" + refuse + "'] != '" + string(reason) + "'",
			MessageExpression: "'the password is ' + string(object.data.password)", Reason: &reason,
		})
	}
	fail := admissionv1.Fail
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "refusals.example.com"},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"secrets"}},
				},
			}}},
			MatchConditions: []admissionv1.MatchCondition{
				{Name: "mint", Expression: "request.userInfo.username == 'system:serviceaccount:mintlog:mint'"},
				{Name: "asked", Expression: "has(object.metadata.annotations) && '" + refuse + "' in object.metadata.annotations"},
			},
			Validations: validations,
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: policy.Name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: policy.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}
	admission := w.admin.AdmissionregistrationV1()
	_, err := admission.ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = admission.ValidatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, admission.ValidatingAdmissionPolicyBindings().Delete(context.Background(), policy.Name, metav1.DeleteOptions{}))
		assert.NoError(t, admission.ValidatingAdmissionPolicies().Delete(context.Background(), policy.Name, metav1.DeleteOptions{}))
	})
	mint, err := kubernetes.NewForConfig(w.mint)
	require.NoError(t, err)
	release := &cluster.Release{Namespace: sandbox.TenantAcme, Name: "probe", UID: "probe"}
	probe := account.NewSecret(release, definition.Account{Username: "app", SecretName: "probe.app.account"}, definition.Block{})
	probe.Annotations = map[string]string{ledger.Annotation: "a ledger", refuse: string(metav1.StatusReasonInvalid)}
	probe.Data[corev1.BasicAuthPasswordKey] = []byte("p")
	eventually(t, "the policy is in force", func() bool {
		_, err := mint.CoreV1().Secrets(sandbox.TenantAcme).Create(t.Context(), probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsInvalid(err)
	})
}

func TestWhatKubeAPIServerSaysOfASecretThatItRefusesIsNotPassedOn(t *testing.T) {
	layRefusals(t, theWorld(t))
	f := func(reason metav1.StatusReason, wantCode, code int32, says string, more ...func(*call)) {
		t.Helper()
		s := seeded(t, sandbox.TenantAcme, func(secret *corev1.Secret) { secret.Annotations[refuse] = string(reason) })
		version := s.version(t)
		var heard []byte
		var heardCode int
		mint := s.serve(t, func(_ int, w *write) (*http.Response, error) {
			answer, err := w.send()
			if err != nil {
				return nil, err
			}
			heardCode = answer.StatusCode
			heard, err = io.ReadAll(answer.Body)
			answer.Body = io.NopCloser(bytes.NewReader(heard))
			return answer, err
		})
		_, err := mint.mint(t, s, more...)
		require.Equal(t, int(wantCode), heardCode, "what kube-apiserver answers")
		sent := &corev1.Secret{}
		_, _, decodeErr := scheme.Codecs.UniversalDeserializer().Decode(mint.faults.sent()[0].body, nil, sent)
		require.NoError(t, decodeErr)
		stored := sent.Data["password"]
		encoded := base64.StdEncoding.EncodeToString(stored)
		require.True(t, bytes.Contains(heard, stored) || bytes.Contains(heard, []byte(encoded)), "its answer quotes the stored form")

		refused(t, err, code, says)
		status := statusOf(t, err)
		said, marshalErr := status.Marshal()
		require.NoError(t, marshalErr)
		for _, leak := range []string{string(stored), encoded, "SCRAM", "the password is"} {
			assert.False(t, bytes.Contains(said, []byte(leak)) || strings.Contains(err.Error(), leak), "ours does not")
		}
		assert.Equal(t, version, s.version(t))
		assert.Len(t, mint.faults.sent(), 1)
	}
	for _, more := range [][]func(*call){nil, {dry}} {
		f(metav1.StatusReasonInvalid, 422, 422, "nothing was written", more...)
		f(metav1.StatusReasonRequestEntityTooLarge, 413, 422, "nothing was written", more...)
		f(metav1.StatusReasonForbidden, 403, 403, "not enrolled", more...)
	}
}

func TestAWriteThatKubeAPIServerDoesNotTakeIsAnsweredTryAgain(t *testing.T) {
	f := func(name string, fault fault) {
		t.Helper()
		s := seeded(t, sandbox.TenantAcme, nil)
		version := s.version(t)
		mint := s.serve(t, fault)
		_, err := mint.mint(t, s)
		refusedForNow(t, err, "nothing was written")
		assert.Equal(t, version, s.version(t), name)
		assert.Len(t, mint.faults.sent(), 1, "%s: it is for the caller to try again", name)
	}
	f("it has no time", func(int, *write) (*http.Response, error) {
		return answering(429, metav1.StatusReasonTooManyRequests), nil
	})
	f("the token has expired", func(_ int, w *write) (*http.Response, error) {
		w.request.Header.Set("Authorization", "Bearer expired")
		return w.send()
	})
}

func TestAMintInANamespaceThatIsNotEnrolledIsForbidden(t *testing.T) {
	w := theWorld(t)
	require.NoError(t, w.servers.AddNamespace(t.Context(), "tenant-gamma"))
	s := declared(t, "tenant-gamma")
	mint := s.serve(t, nil)
	var err error
	eventually(t, "it is known that the namespace may not be read", func() bool {
		_, err = mint.mint(t, s)
		return !apierrors.IsServiceUnavailable(err)
	})
	refused(t, err, http.StatusForbidden, "not enrolled")
	assert.Empty(t, mint.faults.sent())
	assert.Nil(t, s.live(t))
}

func TestAWriteBearsTheCallersAuditIDAndNoMoreTimeThanTheBudgetLeaves(t *testing.T) {
	const left = 4 * time.Second
	for _, s := range []*subject{seeded(t, sandbox.TenantAcme, nil), declared(t, sandbox.TenantAcme)} {
		mint := s.serve(t, nil)
		var c call
		_, err := mint.mint(t, s, remaining(left), func(given *call) { c = *given })
		require.NoError(t, err)
		require.Len(t, mint.faults.sent(), 1)
		sent := mint.faults.sent()[0]
		assert.Equal(t, []string{c.auditID}, sent.request.Header.Values(auditinternal.HeaderAuditID))
		timeout, err := time.ParseDuration(sent.request.URL.Query().Get("timeout"))
		require.NoError(t, err)
		assert.Positive(t, timeout)
		assert.LessOrEqual(t, timeout, left)
		deadline, ok := sent.request.Context().Deadline()
		require.True(t, ok)
		assert.WithinDuration(t, c.received.Add(ledger.WriteBudget), deadline, time.Second)
	}
}

// A slowBody is a body whose bytes come when it is released.
type slowBody struct {
	released <-chan struct{}
	rest     io.Reader
	once     sync.Once
}

func (b *slowBody) Read(p []byte) (int, error) {
	b.once.Do(func() { <-b.released })
	return b.rest.Read(p)
}

func TestAWriteThatIsStillUnderWayWhenTheBudgetIsSpentNeverLands(t *testing.T) {
	s := seeded(t, sandbox.TenantAcme, nil)
	version := s.version(t)
	const left = 4 * time.Second
	code, answered, arrives := make(chan int, 1), make(chan struct{}), make(chan struct{})
	mint := s.serve(t, func(_ int, w *write) (*http.Response, error) {
		// The network holds its body back, and brings no word that the client has left.
		body := &slowBody{released: arrives, rest: bytes.NewReader(w.body)}
		go func() {
			ctx := httptrace.WithClientTrace(context.WithoutCancel(w.request.Context()), &httptrace.ClientTrace{
				GotFirstResponseByte: sync.OnceFunc(func() { close(answered) }),
			})
			answer, err := w.sendAs(ctx, body)
			if err != nil {
				code <- 0
				return
			}
			_ = answer.Body.Close()
			code <- answer.StatusCode
		}()
		<-w.request.Context().Done()
		return nil, w.request.Context().Err()
	})
	_, err := mint.mint(t, s, remaining(left))
	refusedForNow(t, err, "its history will tell")
	select {
	case <-answered:
	case <-time.After(45 * time.Second): // by itself it would in a minute
		assert.Fail(t, "kube-apiserver has not given it up")
	}
	close(arrives)
	assert.Equal(t, http.StatusGatewayTimeout, <-code, "kube-apiserver gives it up too")
	for range 10 { // the body arrives
		time.Sleep(200 * time.Millisecond)
		require.Equal(t, version, s.version(t))
	}
}

func TestACallerWhoLeavesStopsNoMint(t *testing.T) {
	s := seeded(t, sandbox.TenantAcme, nil)
	was := s.entries(t)
	gone, leave := context.WithCancel(t.Context())
	leave()
	answer, err := s.serve(t, nil).mint(t, s, func(c *call) { c.context = gone })
	s.tookEffect(t, answer, err, was)

	staying, leave := context.WithCancel(t.Context())
	defer leave()
	was = s.entries(t)
	answer, err = s.serve(t, first(func(w *write) (*http.Response, error) {
		leave()
		require.True(t, w.land(w.request.Context()))
		return nil, errLost
	})).mint(t, s, func(c *call) { c.context = staying })
	s.tookEffect(t, answer, err, was)
}

func TestAMintThatArrivesAfterItsBudgetWritesNothing(t *testing.T) {
	for _, s := range []*subject{seeded(t, sandbox.TenantAcme, nil), declared(t, sandbox.TenantAcme)} {
		version := s.version(t)
		mint := s.serve(t, nil)
		_, err := mint.mint(t, s, remaining(-time.Millisecond))
		refusedForNow(t, err, "nothing was written")
		assert.Empty(t, mint.faults.sent())
		assert.Equal(t, version, s.version(t))
	}
}

func TestABudgetThatIsSpentBetweenTwoTriesEndsTheMint(t *testing.T) {
	s := seeded(t, sandbox.TenantAcme, nil)
	was := s.entries(t)
	mint := s.serve(t, first(func(w *write) (*http.Response, error) {
		s.annotate(t, note, "x")
		<-w.request.Context().Done()
		return answering(409, metav1.StatusReasonConflict), nil
	}))
	_, err := mint.mint(t, s, remaining(4*time.Second))
	refusedForNow(t, err, "")
	assert.Len(t, mint.faults.sent(), 1)
	assert.Equal(t, was, s.entries(t))
}

func TestAnAccountSecretThatIsDeletedMeanwhileIsMadeAnew(t *testing.T) {
	f := func(name string, after func(*write) (*http.Response, error)) {
		t.Helper()
		s := seeded(t, sandbox.TenantAcme, nil)
		uid := s.live(t).UID
		mint := s.serve(t, first(func(w *write) (*http.Response, error) {
			s.remove(t)
			return after(w)
		}))
		answer, err := mint.mint(t, s)
		s.tookEffect(t, answer, err, nil)
		assert.Equal(t, int64(1), answer.Status.Revision, name)
		assert.NotEqual(t, uid, s.live(t).UID, name)
	}
	f("a refusal", func(w *write) (*http.Response, error) { return w.send() })
	f("a write that never arrived", func(*write) (*http.Response, error) { return nil, errLost })
}

func TestAnAccountSecretThatIsDeletedMeanwhileMeetsNoPrecondition(t *testing.T) {
	s := seeded(t, sandbox.TenantAcme, nil)
	was := s.live(t)
	id := ids(t, was)[0]
	_, err := s.serve(t, before(func() { s.remove(t) })).mint(t, s, func(c *call) {
		c.preconditions = &v1alpha1.Preconditions{ID: &id, UID: &was.UID}
	})
	refused(t, err, http.StatusConflict, "precondition id")
	assert.Nil(t, s.live(t))
}

func TestAnAccountSecretThatIsReplacedMeanwhileIsTheNewAccounts(t *testing.T) {
	s := seeded(t, sandbox.TenantAcme, nil)
	var was []string
	answer, err := s.serve(t, before(func() {
		s.remove(t)
		s.seed(t, nil)
		was = s.entries(t)
	})).mint(t, s)
	s.tookEffect(t, answer, err, was)
}

func TestASecretOfAnotherThatTakesTheNameMeanwhileIsLeftAlone(t *testing.T) {
	f := func(s *subject, change func(*corev1.Secret), says string) {
		t.Helper()
		var foreign *corev1.Secret
		mint := s.serve(t, before(func() {
			if s.live(t) != nil {
				s.remove(t)
			}
			s.seed(t, change)
			foreign = s.live(t)
		}))
		_, err := mint.mint(t, s)
		refused(t, err, http.StatusConflict, says)
		assert.True(t, assert.ObjectsAreEqual(foreign, s.live(t)), "it is as it was")
	}
	unlabelled := func(secret *corev1.Secret) { delete(secret.Labels, cluster.AccountLabel) }
	const says = "the label " + cluster.AccountLabel + " is missing"
	f(declared(t, sandbox.TenantAcme), unlabelled, says)
	f(seeded(t, sandbox.TenantAcme, nil), unlabelled, says)
	f(declared(t, sandbox.TenantAcme), func(secret *corev1.Secret) { secret.Data["username"] = []byte("other") }, "another username")
}

func TestADryRunWritesNothingWhateverFails(t *testing.T) {
	f := func(name string, s *subject, refusal string, fault func(*subject, *write) (*http.Response, error)) {
		t.Helper()
		was := s.live(t)
		mint := s.serve(t, first(func(w *write) (*http.Response, error) { return fault(s, w) }))
		answer, err := mint.mint(t, s, dry)
		if refusal == "" {
			require.NoError(t, err, name)
			assert.True(t, answer.Status == v1alpha1.MintStatus{Username: "app"}, "%s: it answers nothing of a password", name)
		} else {
			refusedForNow(t, err, refusal)
		}
		now := s.live(t)
		assert.Equal(t, ids(t, was), ids(t, now), name)
		assert.Equal(t, was == nil, now == nil, name)
		if was != nil {
			assert.True(t, bytes.Equal(was.Data["password"], now.Data["password"]), name)
		}
		for _, w := range mint.faults.sent() {
			assert.Equal(t, []string{metav1.DryRunAll}, w.request.URL.Query()["dryRun"], name)
		}
	}
	send := func(_ *subject, w *write) (*http.Response, error) { return w.send() }
	lose := func(*subject, *write) (*http.Response, error) { return nil, errLost }
	land := func(_ *subject, w *write) (*http.Response, error) {
		require.True(t, w.land(w.request.Context()))
		return nil, errLost
	}
	repeat := func(_ *subject, w *write) (*http.Response, error) {
		require.True(t, w.land(w.request.Context()))
		return w.send()
	}
	busy := func(*subject, *write) (*http.Response, error) {
		return answering(429, metav1.StatusReasonTooManyRequests), nil
	}
	for _, make := range []func() *subject{
		func() *subject { return seeded(t, sandbox.TenantAcme, nil) },
		func() *subject { return declared(t, sandbox.TenantAcme) },
	} {
		f("nothing", make(), "", send)
		f("it never arrived", make(), "did not answer", lose)
		f("its answer was lost", make(), "did not answer", land)
		f("it was repeated", make(), "", repeat)
		f("kube-apiserver has no time", make(), "nothing was written", busy)
	}
	f("an annotation changed", seeded(t, sandbox.TenantAcme, nil), "", func(s *subject, w *write) (*http.Response, error) {
		s.annotate(t, note, "x")
		return w.send()
	})
}

func TestADryRunThatIsOvertakenIsRefused(t *testing.T) {
	s := seeded(t, sandbox.TenantAcme, nil)
	was := s.entries(t)
	var other *v1alpha1.CredentialMint
	var otherErr error
	_, err := s.serve(t, before(func() { other, otherErr = s.serve(t, nil).mint(t, s) })).mint(t, s, dry)
	refused(t, err, http.StatusConflict, "another mint came first")
	s.tookEffect(t, other, otherErr, was)
}
