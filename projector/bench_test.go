package projector

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

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

// patience is how long a test waits for what has to come.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil { // most of these tests wait most of the time
		panic(err)
	}
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
		case <-time.After(drainTime + time.Minute):
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
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: projectorUser,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "patch", Namespace: a.namespace, Resource: "secrets", Name: a.secretName(),
		},
	}}
	require.Eventually(a.t, func() bool { // what comes before the authorizer knows may wait for a minute
		answer, err := a.admin.AuthorizationV1().SubjectAccessReviews().Create(a.t.Context(), review, metav1.CreateOptions{})
		return err == nil && answer.Status.Allowed
	}, patience, 10*time.Millisecond)
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
	assert.EventuallyWithT(a.t, func(c *assert.CollectT) { assert.Equal(c, want, a.names()) }, patience, 20*time.Millisecond)
}

// drained waits until every event published has been dealt with.
func (b *bench) drained() {
	b.t.Helper()
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		assert.GreaterOrEqual(c, b.count("mintlog_projector_events_total"), float64(b.published))
		assert.Empty(c, b.loop.events.all())
		assert.Empty(c, b.loop.intents.all())
		assert.Zero(c, b.loop.events.queue.Len())
	}, patience, 20*time.Millisecond)
}

// acknowledged waits until the stream knows that every event handed out has been dealt with.
func (b *bench) acknowledged() {
	b.t.Helper()
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		_, consumers, err := b.stream.Inspect(b.t.Context())
		assert.NoError(c, err)
		for _, consumer := range consumers {
			if consumer.Name == stream.ProjectorEvents {
				assert.Zero(c, consumer.Unsettled)
			}
		}
	}, patience, 20*time.Millisecond)
}

// taken waits until the loop has been handed so many events.
func (b *bench) taken(events int) {
	b.t.Helper()
	require.Eventually(b.t, func() bool { return b.count("mintlog_projector_events_total") >= float64(events) }, patience, 10*time.Millisecond)
}

// warnings are what the loop warns of: on a slow machine the stream's server has warnings of its own.
func (b *bench) warnings() (lines []string) {
	for line := range strings.Lines(b.log.String()) {
		if strings.Contains(line, "level=WARN") && strings.Contains(line, "namespace="+b.namespace) {
			lines = append(lines, line)
		}
	}
	return lines
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
