package projector

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	testclock "k8s.io/utils/clock/testing"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/history"
	"github.com/mintlog/mintlog/store/ledger"
	"github.com/mintlog/mintlog/store/stream"
	"github.com/mintlog/mintlog/test/output"
	"github.com/mintlog/mintlog/test/sandbox"
)

// The cluster is started by the first test that needs it, and stopped by TestMain.
var (
	interrupted, cancelInterrupted = signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	startedCluster                 *sandbox.Sandbox
	startCluster                   = sync.OnceValues(func() (*sandbox.Sandbox, error) {
		var err error
		startedCluster, err = sandbox.Start(interrupted, sandbox.Options{Apiservers: 1})
		return startedCluster, err
	})
)

func TestMain(m *testing.M) {
	code := m.Run()
	cancelInterrupted()
	if startedCluster != nil {
		if err := startedCluster.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// A bench is a namespace of the cluster, an embedded stream, and a Loop between them.
type bench struct {
	t         testing.TB
	namespace string
	admin     kubernetes.Interface // who makes and breaks things
	mint      kubernetes.Interface // the mint server's identity
	projector *rest.Config         // the projector's identity
	stream    *stream.Stream
	directory string
	evidence  int64 // bytes of the evidence bucket; 0: the default
	log       *output.Buffer
	registry  *prometheus.Registry
	loop      *Loop
	published int // since the loop was started
	stop      func()
}

func newBench(t testing.TB) *bench {
	cluster, err := startCluster()
	require.NoError(t, err, "the servers are built by: make tools")
	b := &bench{t: t, admin: cluster.Kubernetes(sandbox.ClusterAdmin, 0), directory: t.TempDir(), log: &output.Buffer{}}
	created, err := b.admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "tenant-"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	b.namespace = created.Name
	require.NoError(t, cluster.Enrol(t.Context(), b.namespace))
	b.mint = kubernetes.NewForConfigOrDie(b.serviceAccount(cluster, "mint"))
	b.projector = b.serviceAccount(cluster, "projector")
	b.openStream()
	t.Cleanup(func() {
		b.stopLoop()
		assert.NoError(t, b.stream.Close())
		if t.Failed() {
			t.Log(b.log.String())
		}
	})
	return b
}

func (b *bench) serviceAccount(cluster *sandbox.Sandbox, name string) *rest.Config {
	file, err := cluster.ServiceAccountKubeconfig(b.t.Context(), name, 0)
	require.NoError(b.t, err)
	config, err := clientcmd.BuildConfigFromFlags("", file)
	require.NoError(b.t, err)
	config.QPS = -1
	return config
}

func (b *bench) openStream() {
	var err error
	b.stream, err = stream.Open(b.t.Context(), stream.Options{Directory: b.directory, EvidenceBytes: b.evidence, Log: b.logger()})
	require.NoError(b.t, err)
}

func (b *bench) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// start runs a loop, after changes to its options.
func (b *bench) start(changes ...func(*Options)) {
	b.registry = prometheus.NewRegistry()
	options := Options{
		Stream: b.stream, Client: kubernetes.NewForConfigOrDie(b.projector).CoreV1(), Own: own,
		SettleIntents: time.Second, Log: b.logger(), Registerer: b.registry,
	}
	for _, change := range changes {
		change(&options)
	}
	loop, err := New(options)
	require.NoError(b.t, err)
	b.loop, b.published = loop, 0
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- loop.Run(ctx) }()
	b.stop = func() {
		cancel()
		select {
		case err := <-done:
			assert.NoError(b.t, err)
		case <-time.After(drainTime + 10*time.Second):
			assert.Fail(b.t, "the loop does not return")
		}
	}
}

func (b *bench) stopLoop() {
	if b.stop != nil {
		b.stop()
		b.stop = nil
	}
}

// An applicant is an account of the bench: its Secret, and the clock of its operations.
type applicant struct {
	*bench
	credential string
	operations int
}

// newAccount makes an account Secret with a Create in its ledger, and grants it to the projector.
func (b *bench) newAccount(credential string) *applicant {
	a := &applicant{bench: b, credential: credential}
	a.createSecret()
	a.grant()
	return a
}

func (a *applicant) createSecret() *corev1.Secret {
	book := ledger.Ledger{Account: newID(a.t)}
	book = book.Append(ledger.Entry{ID: newID(a.t), Operation: ledger.Create, At: time.Now(), Stored: book.StoredDigest("", []byte("first"))})
	secret, err := a.admin.CoreV1().Secrets(a.namespace).Create(a.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: a.secretName(), Labels: map[string]string{event.AccountLabel: "true"}, Annotations: map[string]string{ledger.Annotation: book.Encode()},
		},
		Type: corev1.SecretTypeBasicAuth,
		Data: map[string][]byte{"username": []byte("app"), "password": []byte("first")},
	}, metav1.CreateOptions{})
	require.NoError(a.t, err)
	return secret
}

func (a *applicant) secretName() string { return a.credential + ".account" }

// grant gives the projector what the accounts role gives it.
func (a *applicant) grant() {
	name := "credentials-" + a.credential
	_, err := a.admin.RbacV1().Roles(a.namespace).Create(a.t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{a.secretName()}, Verbs: []string{"get", "patch"}}},
	}, metav1.CreateOptions{})
	require.NoError(a.t, err)
	_, err = a.admin.RbacV1().RoleBindings(a.namespace).Create(a.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: sandbox.Namespace, Name: "projector"}},
	}, metav1.CreateOptions{})
	require.NoError(a.t, err)
}

// operate writes an operation by the caller as the mint server does, and returns its event, which nobody has seen yet.
func (a *applicant) operate(caller string, changes ...func(*event.Event)) event.Event {
	began := time.Now()
	a.operations++
	id := newAuditID(a.t)
	a.update(a.mint, func(secret *corev1.Secret) {
		book, err := ledger.Parse(secret.Annotations[ledger.Annotation])
		require.NoError(a.t, err)
		stored := fmt.Sprint("stored-", a.operations)
		book = book.Append(ledger.Entry{
			ID: newID(a.t), Operation: ledger.Mint, At: time.Now(), AuditID: id,
			Caller: book.CallerDigest(id, caller), Stored: book.StoredDigest(id, []byte(stored)),
		})
		secret.Annotations[ledger.Annotation] = book.Encode()
		secret.Data["password"] = []byte(stored)
	})
	return a.requestOf(id, caller, began, changes...)
}

// requestOf is the event of a mint that was received then and has just been answered.
func (a *applicant) requestOf(id, user string, received time.Time, changes ...func(*event.Event)) event.Event {
	return request(0, user, append([]func(*event.Event){func(e *event.Event) {
		e.AuditID = id
		e.ObjectRef.Namespace, e.ObjectRef.Name = a.namespace, a.credential
		e.RequestReceivedTimestamp, e.StageTimestamp = received, time.Now()
	}}, changes...)...)
}

// writeOf is the event of an update of the Secret that has just happened.
func (a *applicant) writeOf(user string, changes ...func(*event.Event)) event.Event {
	return write(0, user, append([]func(*event.Event){func(e *event.Event) {
		e.AuditID = newAuditID(a.t)
		e.ObjectRef.Namespace, e.ObjectRef.Name, e.ObjectRef.UID = a.namespace, a.secretName(), string(a.secret().UID)
		e.RequestReceivedTimestamp, e.StageTimestamp = time.Now(), time.Now()
	}}, changes...)...)
}

func (a *applicant) update(client kubernetes.Interface, change func(*corev1.Secret)) {
	for {
		secret := a.secret()
		change(secret)
		_, err := client.CoreV1().Secrets(a.namespace).Update(a.t.Context(), secret, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) {
			continue
		}
		require.NoError(a.t, err)
		return
	}
}

func (a *applicant) secret() *corev1.Secret {
	secret, err := a.admin.CoreV1().Secrets(a.namespace).Get(a.t.Context(), a.secretName(), metav1.GetOptions{})
	require.NoError(a.t, err)
	return secret
}

func (a *applicant) history() history.History {
	h, err := history.Parse(a.secret().Annotations[history.Annotation])
	require.NoError(a.t, err)
	return h
}

func (b *bench) publish(events ...event.Event) {
	require.NoError(b.t, b.stream.Publish(b.t.Context(), events))
	b.published += len(events)
}

// names are those of the history, newest first: "jane", "jane<root" if impersonated, "jane?" if the answer is unknown.
func (a *applicant) names() []string {
	names := []string{}
	for _, e := range a.history().Entries {
		name := e.By
		if e.ImpersonatedBy != "" {
			name += "<" + e.ImpersonatedBy
		}
		if e.Response != history.Success {
			name += "?"
		}
		names = append(names, name)
	}
	return names
}

func (a *applicant) eventually(want ...string) {
	a.t.Helper()
	assert.EventuallyWithT(a.t, func(c *assert.CollectT) { assert.Equal(c, want, a.names()) }, 30*time.Second, 20*time.Millisecond)
}

// drained waits until every event published has been dealt with.
func (b *bench) drained() {
	b.t.Helper()
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		assert.GreaterOrEqual(c, b.count("mintlog_projector_events_total"), float64(b.published))
		assert.Empty(c, b.loop.events.all())
		assert.Empty(c, b.loop.intents.all())
		assert.Zero(c, b.loop.events.queue.Len())
	}, 30*time.Second, 20*time.Millisecond)
}

func (b *bench) count(name string, labels ...string) float64 {
	families, err := b.registry.Gather()
	require.NoError(b.t, err)
	var sum float64
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (len(labels) == 0 || m.GetLabel()[0].GetValue() == labels[0]) {
				sum += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func newID(t testing.TB) string {
	id, err := ledger.NewID(randomBytes{})
	require.NoError(t, err)
	return id
}

func newAuditID(t testing.TB) string {
	id := newID(t)
	return id[:8] + "-" + id[8:12] + "-" + id[12:16] + "-" + id[16:20] + "-" + id[20:]
}

type randomBytes struct{}

var drawn atomic.Uint64

func (randomBytes) Read(p []byte) (int, error) {
	return copy(p, fmt.Sprintf("%016x", drawn.Add(1)<<20|uint64(os.Getpid()))), nil
}

func TestAMintIsAttributedOnTheSecret(t *testing.T) {
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	b.publish(a.operate("jane"))
	a.eventually("jane")
	b.publish(a.operate("jane", func(e *event.Event) { e.User.Username = "root"; onBehalfOf("jane")(e) }))
	a.eventually("jane<root", "jane")
	b.publish(a.operate("olga", panicked))
	a.eventually("olga?", "jane<root", "jane")
	b.drained()
	assert.Equal(t, 3.0, b.count("mintlog_projector_patches_total"))
	assert.Equal(t, 3.0, b.count("mintlog_projector_lag_seconds"))
	assert.Zero(t, b.count("mintlog_projector_failures_total"))
	assert.Empty(t, a.history().Findings)
	assert.Equal(t, "app", string(a.secret().Data["username"]))
}

func TestAnEventDeliveredTwiceWritesOnce(t *testing.T) {
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	first := a.operate("jane")
	b.publish(first)
	a.eventually("jane")
	b.drained()
	before := a.secret().ResourceVersion
	again := first
	again.Source = "archive" // the stream itself would recognize the same once more
	again.StageTimestamp = again.StageTimestamp.Add(time.Microsecond)
	b.publish(again)
	require.Eventually(t, func() bool { return b.count("mintlog_projector_events_total") >= 2 }, 10*time.Second, 10*time.Millisecond)
	b.drained()
	assert.Equal(t, before, a.secret().ResourceVersion)
	assert.Equal(t, 1.0, b.count("mintlog_projector_patches_total"))
}

func TestABurstOnOneAccountIsWrittenInAFewPatches(t *testing.T) {
	b := newBench(t)
	a := b.newAccount("postgres-orders.app")
	var events []event.Event
	var want []string
	for n := range 25 {
		user := fmt.Sprint("user-", n)
		events = append(events, a.operate(user))
		want = append([]string{user}, want...)
	}
	b.publish(events...)
	b.start()
	a.eventually(want[:10]...)
	b.drained()
	assert.Less(t, b.count("mintlog_projector_patches_total"), 5.0)
	assert.Empty(t, a.history().Findings)
}

func TestSeveralLoopsOnOneStreamComeToOneHistory(t *testing.T) {
	b := newBench(t)
	b.start()
	registry := prometheus.NewRegistry()
	second, err := New(Options{Stream: b.stream, Client: kubernetes.NewForConfigOrDie(b.projector).CoreV1(), Own: own, Log: b.logger(), Registerer: registry})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- second.Run(ctx) }()
	accounts := []*applicant{b.newAccount("postgres-a.app"), b.newAccount("postgres-b.app"), b.newAccount("postgres-c.app")}
	first := b.registry
	for _, r := range []*prometheus.Registry{first, registry} { // until each takes its part
		b.registry = r
		require.Eventually(t, func() bool {
			b.publish(accounts[0].writeOf("ivan"))
			return b.count("mintlog_projector_events_total") > 0
		}, 30*time.Second, 10*time.Millisecond)
	}
	for n := range 12 {
		for _, a := range accounts {
			b.publish(a.operate(fmt.Sprint("user-", n)))
		}
	}
	for _, a := range accounts {
		a.eventually("user-11", "user-10", "user-9", "user-8", "user-7", "user-6", "user-5", "user-4", "user-3", "user-2")
	}
	cancel()
	require.NoError(t, <-done)
}

func TestWhatStandsInTheHistoryIsNeverBelieved(t *testing.T) {
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	b.publish(a.operate("jane"))
	a.eventually("jane")
	a.update(b.admin, func(s *corev1.Secret) {
		s.Annotations[history.Annotation] = strings.ReplaceAll(s.Annotations[history.Annotation], "jane", "mallory")
	})
	require.Equal(t, []string{"mallory"}, a.names())
	b.publish(a.writeOf("mallory"))
	a.eventually("jane")
	right := a.secret().Annotations[history.Annotation]
	a.update(b.admin, func(s *corev1.Secret) { s.Annotations[history.Annotation] = "no JSON" })
	b.publish(a.writeOf("mallory"))
	assert.Eventually(t, func() bool { return a.secret().Annotations[history.Annotation] == right }, 10*time.Second, 20*time.Millisecond)
}

func TestAnEmptyHistoryIsNoAnnotation(t *testing.T) {
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	b.publish(a.requestOf(newAuditID(t), "jane", time.Now(), answered(503)), a.writeOf("ivan"))
	b.drained()
	assert.NotContains(t, a.secret().Annotations, history.Annotation)
	a.update(b.admin, func(s *corev1.Secret) { s.Annotations[history.Annotation] = `{"entries":[{"by":"mallory"}]}` })
	b.publish(a.writeOf("mallory"))
	require.Eventually(t, func() bool { _, ok := a.secret().Annotations[history.Annotation]; return !ok }, 10*time.Second, 20*time.Millisecond)
}

func TestACommitThatComesAfterTheEventOfALeftClientIsStillAttributed(t *testing.T) {
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	left := a.requestOf("", "jane", time.Now(), answered(503))
	left.AuditID = newAuditID(t)
	b.publish(left)
	require.Eventually(t, func() bool { return len(b.loop.events.all()) == 1 }, 10*time.Second, 10*time.Millisecond)
	time.Sleep(2 * lookInterval) // it is looked at more than once, and kept
	a.update(b.mint, func(secret *corev1.Secret) {
		book, err := ledger.Parse(secret.Annotations[ledger.Annotation])
		require.NoError(t, err)
		book = book.Append(ledger.Entry{ID: newID(t), Operation: ledger.Mint, At: time.Now(), AuditID: left.AuditID,
			Caller: book.CallerDigest(left.AuditID, "jane"), Stored: book.StoredDigest(left.AuditID, []byte("stored-late"))})
		secret.Annotations[ledger.Annotation] = book.Encode()
		secret.Data["password"] = []byte("stored-late")
	})
	a.eventually("jane?")
	b.drained()
}

func TestAMintThatCreatesTheSecretIsAttributedThoughItsClientLeftBefore(t *testing.T) {
	b := newBench(t)
	b.start()
	a := &applicant{bench: b, credential: "postgres-new.app"}
	a.grant()
	book := ledger.Ledger{Account: newID(t)}
	id := newAuditID(t)
	b.publish(a.requestOf(id, "jane", time.Now().Add(-4*time.Second), answered(503), func(e *event.Event) { e.StageTimestamp = e.RequestReceivedTimestamp }))
	b.drained()
	book = book.Append(ledger.Entry{ID: newID(t), Operation: ledger.Mint, At: time.Now(), AuditID: id, Caller: book.CallerDigest(id, "jane"), Stored: "s"})
	_, err := b.mint.CoreV1().Secrets(b.namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: a.secretName(), Annotations: map[string]string{ledger.Annotation: book.Encode()},
			Labels: map[string]string{
				event.AccountLabel: "true", "internal.cozystack.io/managed-by-cozystack": "true", "internal.cozystack.io/tenantresource": "false",
			},
		},
		Type: corev1.SecretTypeBasicAuth,
		Data: map[string][]byte{"username": []byte("app"), "password": []byte("x")},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	a.eventually("jane?")
}

func TestARequestOfWhichOnlyTheReceptionIsKnownIsAttributedAfterTheSettlingTime(t *testing.T) {
	b := newBench(t)
	b.start(func(o *Options) { o.SettleIntents = 5 * time.Second })
	a := b.newAccount("postgres-orders.app")
	crashed := a.operate("jane")
	received(&crashed)
	finished := a.operate("olga")
	intent := finished
	received(&intent)
	b.publish(crashed, intent, finished)
	a.eventually("olga")
	a.eventually("olga", "jane?")
	assert.GreaterOrEqual(t, time.Since(crashed.RequestReceivedTimestamp), 5*time.Second)
	b.drained()
	assert.Equal(t, 2.0, b.count("mintlog_projector_patches_total"))
	assert.Equal(t, 2.0, b.count("mintlog_projector_folds_total"), "the reception of what is attributed is not folded")
}

func TestAnEventWaitsForTheRightToReadItsAccount(t *testing.T) {
	b := newBench(t)
	b.start()
	a := &applicant{bench: b, credential: "postgres-orders.app"}
	a.createSecret()
	b.publish(a.operate("jane"))
	b.drained()
	a.grant()
	a.eventually("jane")
	b.drained()
}

// operatedAt is operate at another time, by jane.
func (a *applicant) operatedAt(at time.Time) event.Event {
	id := newAuditID(a.t)
	a.update(a.mint, func(secret *corev1.Secret) {
		book, err := ledger.Parse(secret.Annotations[ledger.Annotation])
		require.NoError(a.t, err)
		book = book.Append(ledger.Entry{ID: newID(a.t), Operation: ledger.Mint, At: at, AuditID: id, Caller: book.CallerDigest(id, "jane"), Stored: book.StoredDigest(id, []byte(id))})
		secret.Annotations[ledger.Annotation] = book.Encode()
		secret.Data["password"] = []byte(id)
	})
	return a.requestOf(id, "jane", at, func(e *event.Event) { e.StageTimestamp = at })
}

func TestASuccessWaitsForItsGrantForHoursAndOutsideOfTheLoop(t *testing.T) {
	b := newBench(t)
	b.start()
	a := &applicant{bench: b, credential: "postgres-orders.app"}
	a.createSecret()
	b.publish(a.operatedAt(time.Now().Add(-shortGrace - time.Hour)))
	b.drained()
	assert.Zero(t, b.count("mintlog_projector_failures_total"))
	a.grant()
	b.stopLoop()
	require.NoError(t, b.stream.Close())
	b.openStream() // which hands out at once what was put off
	b.start()
	a.eventually("jane")
	b.drained()
	assert.Empty(t, b.loop.ungranted)
}

func TestASuccessIsLookedAtLessAndLessOftenUntilItIsLetGo(t *testing.T) {
	registry := prometheus.NewRegistry()
	now := time.Now()
	loop, err := New(Options{Clock: testclock.NewFakePassiveClock(now), Registerer: registry})
	require.NoError(t, err)
	f := func(age, want time.Duration, wantOK bool, changes ...func(*event.Event)) {
		t.Helper()
		e := request(0, "jane", append(changes, func(e *event.Event) { e.StageTimestamp = now.Add(-age) })...)
		delay, ok := loop.grantDelay(&stream.Message{Event: e, Sequence: uint64(age)})
		assert.Equal(t, wantOK, ok)
		if ok {
			assert.Equal(t, want, delay)
		}
	}
	f(-time.Hour, 2*time.Second, true)
	f(0, 2*time.Second, true)
	f(time.Minute, 6*time.Second, true)
	f(10*time.Minute, time.Minute, true)
	f(5*time.Hour, 10*time.Minute, true)
	f(24*time.Hour-1, 10*time.Minute, true)
	f(24*time.Hour, 0, false)
	f(-time.Hour, time.Minute, true, answered(503))
	f(0, time.Minute, true, answered(503))
	f(59*time.Second, time.Second, true, answered(503))
	f(time.Minute, 0, false, answered(503))
	f(time.Minute, 0, false, func(e *event.Event) { *e = write(0, "ivan") })
}

func TestNoMoreSuccessesWaitForGrantsThanLeaveRoomForOthers(t *testing.T) {
	now := testclock.NewFakePassiveClock(time.Now())
	loop, err := New(Options{Clock: now})
	require.NoError(t, err)
	waits := func(sequence uint64, age time.Duration) bool {
		e := request(0, "jane", func(e *event.Event) { e.StageTimestamp = now.Now().Add(-age) })
		_, ok := loop.grantDelay(&stream.Message{Event: e, Sequence: sequence})
		return ok
	}
	for n := range uint64(maxUngranted) {
		require.True(t, waits(n, time.Hour))
	}
	assert.False(t, waits(maxUngranted, time.Hour))
	assert.True(t, waits(maxUngranted, time.Minute), "a fresh one waits at any rate")
	assert.True(t, waits(7, time.Hour), "it waits already")
	now.SetTime(now.Now().Add(time.Hour)) // they came back elsewhere
	assert.True(t, waits(maxUngranted, time.Hour))
	assert.Len(t, loop.ungranted, 1)
}

func TestRequestsUnderMadeUpNamesAreLookedAtTwice(t *testing.T) {
	b := newBench(t)
	var reads atomic.Int64
	b.start(b.failing(func(*http.Request) (bool, bool) { reads.Add(1); return false, false }))
	(&applicant{bench: b, credential: "granted.none"}).grant()
	soon := func(grace time.Duration) func(*event.Event) { // 12 s before it ends
		return func(e *event.Event) { e.StageTimestamp = time.Now().Add(12*time.Second - grace) }
	}
	for n := range 10 {
		a := &applicant{bench: b, credential: fmt.Sprintf("made-up-%d.x", n)}
		b.publish(a.requestOf(newAuditID(t), "mallory", time.Now().Add(-otherGrace), answered(101), soon(otherGrace)))
	}
	absent := &applicant{bench: b, credential: "granted.none"}
	b.publish(absent.requestOf(newAuditID(t), "mallory", time.Now().Add(-otherGrace), answered(101), soon(commitLimit+clockSkew+time.Second)))
	b.drained()
	require.Eventually(t, func() bool { return b.count("mintlog_projector_failures_total", "not_granted") == 10 }, 30*time.Second, 20*time.Millisecond)
	require.Eventually(t, func() bool { return b.count("mintlog_projector_events_total") == 22 }, 10*time.Second, 20*time.Millisecond)
	b.drained()
	assert.Equal(t, int64(22), reads.Load())
}

func TestAHistoryIsWrittenThoughTheEvidenceBucketIsFull(t *testing.T) {
	b := newBench(t)
	b.stopLoop()
	require.NoError(t, b.stream.Close())
	b.evidence, b.directory = 50_000, t.TempDir()
	b.openStream()
	filled := 0
	for size := 8192; size >= 1; size /= 2 {
		for {
			_, err := b.stream.Evidence().Put(t.Context(), fmt.Sprintf("%02x", filled), make([]byte, size), 0)
			if err != nil {
				require.ErrorIs(t, err, stream.ErrFull)
				break
			}
			filled++
		}
	}
	b.start()
	a := b.newAccount("postgres-orders.app")
	b.publish(a.operate("jane"))
	a.eventually("jane")
	b.publish(a.operate("olga"))
	require.Eventually(t, func() bool { return len(a.names()) > 0 && a.names()[0] == "olga" }, 10*time.Second, 20*time.Millisecond)
	b.drained()
	assert.GreaterOrEqual(t, b.count("mintlog_projector_failures_total", "evidence_full"), 2.0)
	assert.Zero(t, b.count("mintlog_projector_failures_total", "evidence"))
	assert.Equal(t, 1, strings.Count(b.log.String(), "the evidence bucket is full"), "said once a minute")
}

func TestAnOldEventOfAnAccountThatMayNotBeReadIsLetGo(t *testing.T) {
	b := newBench(t)
	b.start()
	a := &applicant{bench: b, credential: "postgres-orders.app"}
	a.createSecret()
	old := func(age time.Duration) func(*event.Event) {
		return func(e *event.Event) {
			e.RequestReceivedTimestamp, e.StageTimestamp = time.Now().Add(-age), time.Now().Add(-age)
		}
	}
	b.publish(
		a.requestOf(newAuditID(t), "jane", time.Now(), old(successGrace+time.Second)),
		a.requestOf(newAuditID(t), "jane", time.Now(), answered(503), old(otherGrace+time.Second)),
		a.writeOf("ivan", old(otherGrace+time.Second)),
	)
	require.Eventually(t, func() bool { return b.count("mintlog_projector_failures_total", "not_granted") == 3 }, 10*time.Second, 10*time.Millisecond)
	b.drained()
	assert.Equal(t, 1, strings.Count(b.log.String(), "level=WARN"), "a success is missed, and clients can make any number of the others")
}

func TestEventsOfWhatIsNoAccountAreLetGo(t *testing.T) {
	b := newBench(t)
	b.start()
	unlabelled, opaque, broken, gone := b.newAccount("postgres-a.app"), &applicant{bench: b, credential: "postgres-b.app"}, b.newAccount("postgres-c.app"), &applicant{bench: b, credential: "postgres-d.app"}
	minted := unlabelled.operate("jane")
	sameOfOpaque := opaque.requestOf(minted.AuditID, "jane", minted.RequestReceivedTimestamp)
	unlabelled.update(b.admin, func(s *corev1.Secret) { delete(s.Labels, event.AccountLabel) })
	opaque.grant()
	gone.grant()
	_, err := b.admin.CoreV1().Secrets(b.namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Name: opaque.secretName(), Labels: map[string]string{event.AccountLabel: "true"}, Annotations: unlabelled.secret().Annotations,
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	broken.update(b.admin, func(s *corev1.Secret) { s.Annotations[ledger.Annotation] = `{"account":"hunter2"` })
	now := time.Now()
	b.publish(
		minted, sameOfOpaque,
		broken.requestOf(newAuditID(t), "jane", now), gone.requestOf(newAuditID(t), "jane", now),
		gone.requestOf(newAuditID(t), "jane", now, func(e *event.Event) { e.ObjectRef.Name = "../../configmaps/x" }),
		gone.requestOf(newAuditID(t), "jane", now, func(e *event.Event) { e.ObjectRef.Name = strings.Repeat("x", 300) }),
		gone.requestOf(newAuditID(t), "jane", now, func(e *event.Event) { e.ObjectRef.Namespace = "no such/namespace" }),
	)
	require.Eventually(t, func() bool { return b.count("mintlog_projector_events_total") == 7 }, 10*time.Second, 10*time.Millisecond)
	b.drained()
	for _, a := range []*applicant{unlabelled, opaque, broken} {
		assert.NotContains(t, a.secret().Annotations, history.Annotation)
	}
	assert.Zero(t, b.count("mintlog_projector_failures_total"))
	assert.NotContains(t, b.log.String(), "hunter2")
}

func TestAnAccountMadeAgainUnderTheSameNameStartsWithAnEmptyHistory(t *testing.T) {
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	first := a.operate("jane")
	b.publish(first)
	a.eventually("jane")
	require.NoError(t, b.admin.CoreV1().Secrets(b.namespace).Delete(t.Context(), a.secretName(), metav1.DeleteOptions{}))
	a.createSecret()
	late := first
	late.StageTimestamp = late.StageTimestamp.Add(time.Microsecond) // the log has it once more
	b.publish(late)
	b.publish(a.operate("olga"))
	a.eventually("olga")
	assert.Empty(t, a.history().Findings)
}

func TestAPasswordChangedByHandBearsItsAuthorsName(t *testing.T) {
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	b.publish(a.operate("jane"))
	a.eventually("jane")
	a.update(b.admin, func(s *corev1.Secret) { s.Data["password"] = []byte("by hand") })
	b.publish(a.writeOf("ivan"))
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Equal(c, []string{"ivan"}, a.history().Writers) }, 10*time.Second, 20*time.Millisecond)
	b.publish(a.operate("jane"))
	a.eventually("jane", "jane")
	assert.Empty(t, a.history().Writers)
}

func TestASuccessWithoutAnEntryIsReportedUnlessAnotherSecretHasIt(t *testing.T) {
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	later := func(e *event.Event) { e.RequestReceivedTimestamp = time.Now().Add(6 * time.Second) }
	elsewhere, nowhere := newAuditID(t), newAuditID(t)
	b.publish(
		a.writeOf(mintUser, later, func(e *event.Event) { e.AuditID, e.ObjectRef.UID = elsewhere, "another" }),
		a.requestOf(elsewhere, "jane", time.Now(), later), a.requestOf(nowhere, "jane", time.Now(), later),
	)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		findings := a.history().Findings
		if assert.Len(c, findings, 1) {
			assert.Equal(c, history.FindingUncommitted, findings[0].Type)
		}
	}, 10*time.Second, 20*time.Millisecond)
	b.drained()
	assert.Len(t, a.history().Findings, 1)
}

func TestTheEvidenceAloneKeepsTheHistory(t *testing.T) {
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	for _, user := range []string{"jane", "olga"} {
		b.publish(a.operate(user))
	}
	a.eventually("olga", "jane")
	b.stopLoop()
	require.NoError(t, b.stream.Close())
	b.openStream() // as after a restart
	b.start()
	a.update(b.admin, func(s *corev1.Secret) { delete(s.Annotations, history.Annotation) })
	b.publish(a.operate("ivan"))
	a.eventually("ivan", "olga", "jane")
}

func TestWhatIsDealtWithDoesNotComeAgain(t *testing.T) {
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	b.publish(a.operate("jane"), a.writeOf(projectorUser), a.writeOf("ivan"), a.requestOf(newAuditID(t), "jane", time.Now()))
	a.eventually("jane")
	b.drained()
	b.stopLoop()
	require.NoError(t, b.stream.Close())
	b.openStream() // which asks again for all that nobody has acknowledged
	b.start()
	b.publish(a.operate("olga"))
	a.eventually("olga", "jane")
	b.drained()
	assert.Equal(t, 1.0, b.count("mintlog_projector_events_total"))
}

// A failingTransport lets a share of requests fail after, or before, the server has seen them.
type failingTransport struct {
	http.RoundTripper
	fail func(*http.Request) (before, after bool)
}

func (f failingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	before, after := f.fail(r)
	if before {
		return nil, io.ErrUnexpectedEOF
	}
	response, err := f.RoundTripper.RoundTrip(r)
	if after && err == nil {
		_ = response.Body.Close()
		return nil, io.ErrUnexpectedEOF
	}
	return response, err
}

func (b *bench) failing(fail func(*http.Request) (before, after bool)) func(*Options) {
	config := rest.CopyConfig(b.projector)
	config.Wrap(func(r http.RoundTripper) http.RoundTripper { return failingTransport{r, fail} })
	return func(o *Options) { o.Client = kubernetes.NewForConfigOrDie(config).CoreV1() }
}

func TestAKillBetweenEvidenceAndHistoryLosesNothing(t *testing.T) {
	b := newBench(t)
	a := b.newAccount("postgres-orders.app")
	tried := make(chan struct{}, 100)
	b.start(b.failing(func(r *http.Request) (bool, bool) {
		if r.Method == http.MethodPatch {
			tried <- struct{}{}
		}
		return r.Method == http.MethodPatch, false
	}))
	b.publish(a.operate("jane"))
	<-tried // the evidence is kept, the history is not
	b.stopLoop()
	assert.Empty(t, a.names())
	b.start()
	a.eventually("jane")
}

func TestABrokenConnectionIsTriedAgain(t *testing.T) {
	b := newBench(t)
	a := b.newAccount("postgres-orders.app")
	var calls atomic.Int64
	b.start(b.failing(func(*http.Request) (bool, bool) { n := calls.Add(1); return n%5 == 0, n%5 == 2 }))
	for _, user := range []string{"jane", "olga", "ivan"} {
		b.publish(a.operate(user))
		time.Sleep(50 * time.Millisecond)
	}
	a.eventually("ivan", "olga", "jane")
	b.drained()
	assert.Positive(t, b.count("mintlog_projector_failures_total"))
}

func TestAHistoryIsWrittenThoughTheSecretChangesMeanwhile(t *testing.T) {
	b := newBench(t)
	a := b.newAccount("postgres-orders.app")
	var interfered atomic.Bool
	b.start(b.failing(func(r *http.Request) (bool, bool) {
		if r.Method == http.MethodPatch && !interfered.Swap(true) {
			a.update(b.admin, func(s *corev1.Secret) { s.Annotations["meanwhile"] = "yes" })
		}
		return false, false
	}))
	b.publish(a.operate("jane"))
	a.eventually("jane")
	assert.Equal(t, "yes", a.secret().Annotations["meanwhile"])
	assert.Equal(t, 1.0, b.count("mintlog_projector_conflicts_total"))
}

func TestAnAccountUnderTrafficIsNoWarning(t *testing.T) {
	b := newBench(t)
	a := b.newAccount("postgres-orders.app")
	var patches atomic.Int64
	b.start(b.failing(func(r *http.Request) (bool, bool) {
		if n := patches.Add(1); r.Method == http.MethodPatch && n <= 3*2*maxAttempts {
			a.update(b.admin, func(s *corev1.Secret) { s.Annotations["meanwhile"] = fmt.Sprint(n) })
		}
		return false, false
	}))
	b.publish(a.operate("jane"))
	a.eventually("jane")
	assert.Greater(t, b.count("mintlog_projector_conflicts_total"), float64(maxAttempts))
	assert.Contains(t, b.log.String(), "level=DEBUG msg=\"projecting an account\"")
	assert.NotContains(t, b.log.String(), "level=WARN")
	assert.Equal(t, slog.LevelWarn, severity(errChanged, maxAttempts+1), "that is no traffic any more")
}

func TestAHistoryIsNotWrittenOnASecretMadeAgainMeanwhile(t *testing.T) {
	b := newBench(t)
	a := b.newAccount("postgres-orders.app")
	var interfered atomic.Bool
	b.start(b.failing(func(r *http.Request) (bool, bool) {
		if r.Method == http.MethodPatch && !interfered.Swap(true) {
			body, err := r.GetBody()
			assert.NoError(t, err)
			patch, err := io.ReadAll(body)
			assert.NoError(t, err)
			assert.Contains(t, string(patch), `"uid":"`+string(a.secret().UID)+`"`)
			assert.NoError(t, b.admin.CoreV1().Secrets(b.namespace).Delete(t.Context(), a.secretName(), metav1.DeleteOptions{}))
			a.createSecret()
		}
		return false, false
	}))
	b.publish(a.operate("jane"))
	require.Eventually(t, func() bool { return interfered.Load() && b.count("mintlog_projector_conflicts_total") > 0 }, 10*time.Second, 10*time.Millisecond)
	b.drained()
	assert.Empty(t, a.names())
	assert.NotContains(t, b.log.String(), "first", "an answer that quotes what is stored")
}

func TestARefusedHistoryIsLoggedWithoutWhatTheAnswerQuotes(t *testing.T) {
	b := newBench(t)
	a := b.newAccount("postgres-orders.app")
	var refusals atomic.Int64
	b.start(b.failing(func(r *http.Request) (bool, bool) {
		if r.Method == http.MethodPatch && refusals.Add(1) <= 2*maxAttempts { // it makes the API server answer 422 and quote the Secret
			r.Body = io.NopCloser(strings.NewReader(`{"data":{"username":7}}`))
			r.ContentLength = -1
		}
		return false, false
	}))
	b.publish(a.operate("jane"))
	a.eventually("jane")
	assert.Contains(t, b.log.String(), "refuses the history")
	assert.NotContains(t, b.log.String(), base64.StdEncoding.EncodeToString([]byte("stored-1")), "the password as stored")
	assert.NotContains(t, b.log.String(), "managedFields")
}

func TestAHistoryThatDoesNotFitBesideOtherAnnotationsIsCutShort(t *testing.T) {
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	a.update(b.admin, func(s *corev1.Secret) {
		s.Annotations["padding"] = ""
		room := history.MaxAnnotationBytes - history.AnnotationBytes(s.Annotations) - len(history.Annotation)
		s.Annotations["padding"] = strings.Repeat("p", room-4000) // for four ledger entries and two operations by such a name
	})
	long := strings.Repeat("l", 1000)
	for _, user := range []string{"jane", long, long, long} {
		b.publish(a.operate(user))
	}
	require.Eventually(t, func() bool { return strings.Contains(b.log.String(), "cut short") }, 10*time.Second, 10*time.Millisecond)
	b.drained()
	assert.Equal(t, []string{long, long}, a.names())
	assert.NotContains(t, b.log.String(), long)
}

// TestOurOwnPatchDoesNotComeBackAsWork reads what the real audit log holds of the commits and of the histories written,
// and lets the loop have it.
func TestOurOwnPatchDoesNotComeBackAsWork(t *testing.T) {
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	b.publish(a.operate("jane"))
	a.eventually("jane")
	b.drained()
	var commits, patches []event.Event
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		commits, patches = nil, nil
		for _, e := range b.logged(a.secretName()) {
			switch {
			case e.User.Username == mintUser && e.Verb == "update":
				commits = append(commits, e)
			case e.User.Username == projectorUser && e.Verb == "patch":
				patches = append(patches, e)
			}
		}
		assert.NotEmpty(c, commits)
		assert.NotEmpty(c, patches)
	}, 10*time.Second, 50*time.Millisecond)
	assert.Equal(t, string(a.secret().UID), commits[0].ObjectRef.UID, "a commit tells its Secret from another")
	folds, taken := b.count("mintlog_projector_folds_total"), b.count("mintlog_projector_events_total")
	b.publish(patches...)
	require.Eventually(t, func() bool { return b.count("mintlog_projector_events_total") == taken+float64(len(patches)) }, 10*time.Second, 10*time.Millisecond)
	b.drained()
	assert.Equal(t, folds, b.count("mintlog_projector_folds_total"))
	b.publish(commits...)
	require.Eventually(t, func() bool { return b.count("mintlog_projector_folds_total") == folds+1 }, 10*time.Second, 10*time.Millisecond)
	b.drained()
	assert.Equal(t, 1.0, b.count("mintlog_projector_patches_total"))
}

// logged are the events of a Secret in the kube-apiserver's audit log.
func (b *bench) logged(name string) []event.Event {
	file, err := os.Open(startedCluster.AuditLog(0))
	require.NoError(b.t, err)
	defer func() { _ = file.Close() }()
	var events []event.Event
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e event.Event
		if json.Unmarshal(lines.Bytes(), &e) == nil && e.IsWrite() && e.ObjectRef.Namespace == b.namespace && e.ObjectRef.Name == name {
			events = append(events, e)
		}
	}
	return events
}

func TestTheLoopStopsAndCarriesOnUnderTraffic(t *testing.T) {
	b := newBench(t)
	a := b.newAccount("postgres-orders.app")
	var want []string
	for round := range 6 {
		b.start()
		for n := range 3 {
			user := fmt.Sprintf("user-%d-%d", round, n)
			b.publish(a.operate(user))
			want = append([]string{user}, want...)
		}
		b.stopLoop()
	}
	b.start()
	a.eventually(want[:10]...)
	assert.Empty(t, a.history().Findings)
}

func TestAnEntryUnderARevisionThatAnEtcdRestoreUsesAgainFindsNothingOfTheFormer(t *testing.T) {
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	backup := a.secret()
	b.publish(a.operate("jane"))
	a.eventually("jane")
	a.update(b.admin, func(s *corev1.Secret) { s.Annotations, s.Data = backup.Annotations, backup.Data })
	late := a.operate("olga") // at the revision that jane's mint had
	b.publish(a.operate("ivan"))
	a.eventually("ivan")
	b.publish(late)
	a.eventually("ivan", "olga")
}

func TestUnreadableEvidenceIsReplaced(t *testing.T) {
	b := newBench(t)
	a := b.newAccount("postgres-orders.app")
	minted := a.operate("jane")
	book, err := ledger.Parse(a.secret().Annotations[ledger.Annotation])
	require.NoError(t, err)
	_, err = b.stream.Evidence().Put(t.Context(), entryKey(book, book.Newest()), []byte("no JSON"), 0)
	require.NoError(t, err)
	b.start()
	b.publish(minted)
	a.eventually("jane")
	value, _, err := b.stream.Evidence().Get(t.Context(), entryKey(book, book.Newest()))
	require.NoError(t, err)
	kept, err := decode(value)
	require.NoError(t, err)
	assert.Len(t, kept, 1)
	assert.Equal(t, 1.0, b.count("mintlog_projector_failures_total", "broken_evidence"))
}

func TestALoopWhoseStreamIsClosedSaysSo(t *testing.T) {
	b := newBench(t)
	loop, err := New(Options{Stream: b.stream, Client: b.admin.CoreV1(), Log: b.logger()})
	require.NoError(t, err)
	require.NoError(t, b.stream.Close())
	assert.ErrorIs(t, loop.Run(t.Context()), stream.ErrClosed)
	b.openStream()
}

func TestALoopThatCannotReachTheAPIServerStopsAndLosesNothing(t *testing.T) {
	b := newBench(t)
	a := b.newAccount("postgres-orders.app")
	b.start(b.failing(func(r *http.Request) (bool, bool) {
		<-r.Context().Done() // until the loop gives up
		return true, false
	}))
	b.publish(a.operate("jane"))
	require.Eventually(t, func() bool { return len(b.loop.events.all()) == 1 }, 10*time.Second, 10*time.Millisecond)
	b.stopLoop()
	b.start()
	a.eventually("jane")
}

func TestTheMetricsAreWellFormed(t *testing.T) {
	registry := prometheus.NewRegistry()
	_, err := New(Options{Registerer: registry})
	require.NoError(t, err)
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	assert.Empty(t, problems)
	_, err = New(Options{Registerer: registry})
	assert.Error(t, err, "registered twice")
}

// BenchmarkFromAnEventToTheHistory takes an event from its publication to the history on the Secret, one after the other
// on an account whose history is full.
func BenchmarkFromAnEventToTheHistory(b *testing.B) {
	bench := newBench(b)
	bench.start()
	a := bench.newAccount("postgres-orders.app")
	for b.Loop() {
		b.StopTimer()
		e := a.operate("jane")
		written := bench.count("mintlog_projector_patches_total")
		b.StartTimer()
		bench.publish(e)
		for bench.count("mintlog_projector_patches_total") == written {
			time.Sleep(100 * time.Microsecond)
		}
	}
}
