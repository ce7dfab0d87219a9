package credential

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
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
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/kubernetes"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mintlog/mintlog/mint/account"
	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
	mintrequest "github.com/mintlog/mintlog/mint/request"
	"github.com/mintlog/mintlog/mint/webhook"
	"github.com/mintlog/mintlog/store/ledger"
	"github.com/mintlog/mintlog/test/sandbox"
)

// start starts the real servers when the first test asks for them.
var start func() (*world, error)

func TestMain(m *testing.M) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	watching, unwatch := context.WithCancel(ctx)
	started := &world{}
	start = sync.OnceValues(func() (*world, error) { return started, started.start(ctx, watching) })
	code := m.Run()
	unwatch()
	started.running.Wait()
	if started.servers != nil {
		if err := started.servers.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// A world is a kube-apiserver, and what the mint server knows of it.
type world struct {
	servers  *sandbox.Sandbox
	admin    kubernetes.Interface
	mint     *clientrest.Config
	cluster  *cluster.Cluster
	watches  *gate
	webhooks *webhook.Clients
	running  sync.WaitGroup
	count    atomic.Int64
}

func theWorld(t *testing.T) *world {
	t.Helper()
	w, err := start()
	require.NoError(t, err, "the real servers are needed: make tools")
	return w
}

// start starts the servers, which run until ctx ends, and the mint server's caches, which run until watching ends.
func (w *world) start(ctx, watching context.Context) error {
	var err error
	if w.servers, err = sandbox.Start(ctx, sandbox.Options{Apiservers: 1}); err != nil {
		return err
	}
	w.admin = w.servers.Kubernetes(sandbox.ClusterAdmin, 0)
	if err := w.servers.LayDefinition(ctx); err != nil {
		return err
	}
	file, err := w.servers.ServiceAccountKubeconfig(ctx, "mint", 0)
	if err != nil {
		return err
	}
	if w.mint, err = clientcmd.BuildConfigFromFlags("", file); err != nil {
		return err
	}
	w.mint.QPS = -1
	config := clientrest.CopyConfig(w.mint)
	w.watches = &gate{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &gated{next: next, gate: w.watches} })
	if w.cluster, err = cluster.New(cluster.Options{Config: config, Log: slog.New(slog.DiscardHandler)}); err != nil {
		return err
	}
	w.webhooks = webhook.New(webhook.Options{})
	w.cluster.Notify(cluster.Notify{Kind: w.webhooks.Forget})
	w.running.Go(func() { _ = w.cluster.Run(watching) }) // it ends with its context and has no other error
	syncing, cancel := context.WithTimeout(watching, 2*time.Minute)
	defer cancel()
	return w.cluster.WaitForSync(syncing)
}

// freeze keeps the mint server's caches as they are until the test ends.
func (w *world) freeze(t *testing.T) {
	w.watches.Lock()
	t.Cleanup(w.watches.Unlock)
}

// A gate holds back, while it is locked, what kube-apiserver sends.
type gate struct{ sync.RWMutex }

type gated struct {
	next http.RoundTripper
	gate *gate
}

func (g *gated) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := g.next.RoundTrip(r)
	if err == nil {
		answer.Body = &gatedBody{ReadCloser: answer.Body, gate: g.gate}
	}
	return answer, err
}

type gatedBody struct {
	io.ReadCloser
	gate *gate
}

func (b *gatedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.gate.RLock()
	defer b.gate.RUnlock()
	return n, err
}

// A subject is an account that a test mints.
type subject struct {
	*world
	namespace  string
	release    string
	credential string
	secret     string
}

// declared declares an account of an application of its own. It has no Secret yet.
func declared(t *testing.T, namespace string) *subject {
	t.Helper()
	w := theWorld(t)
	application := fmt.Sprintf("a%d", w.count.Add(1))
	_, err := w.servers.InstallRelease(t.Context(), namespace, "Postgres", application, map[string]any{
		"users": map[string]any{"app": map[string]any{}},
	})
	require.NoError(t, err)
	release := "postgres-" + application
	s := &subject{world: w, namespace: namespace, release: release, credential: release + ".app", secret: release + ".app.account"}
	eventually(t, "the application is in the cache", func() bool { _, ok := w.cluster.Release(namespace, release); return ok })
	return s
}

// seeded declares an account whose Secret stands as the accounts role seeds it, changed by change.
func seeded(t *testing.T, namespace string, change func(*corev1.Secret)) *subject {
	t.Helper()
	s := declared(t, namespace)
	s.seed(t, change)
	eventually(t, "the account Secret is in the cache", func() bool {
		_, err := s.cluster.AccountSecret(t.Context(), s.namespace, s.secret)
		return err == nil
	})
	return s
}

func (s *subject) seed(t *testing.T, change func(*corev1.Secret)) {
	t.Helper()
	release, ok := s.cluster.Release(s.namespace, s.release)
	require.True(t, ok)
	served, ok := s.cluster.Definition("Postgres")
	require.True(t, ok)
	secret := account.NewSecret(release, definition.Account{Name: "app", Username: "app", Segment: "app", SecretName: s.secret}, served.Block)
	random := make([]byte, 32)
	_, err := rand.Read(random)
	require.NoError(t, err)
	secret.Data[corev1.BasicAuthPasswordKey] = random
	book := ledger.Ledger{Account: newID(t)}
	book = book.Append(ledger.Entry{ID: newID(t), Operation: ledger.Create, At: time.Now().Add(-time.Minute), Stored: book.StoredDigest("", random)})
	secret.Annotations = map[string]string{ledger.Annotation: book.Encode(), ledger.OriginAnnotation: ledger.Create.Origin()}
	if change != nil {
		change(secret)
	}
	_, err = s.admin.CoreV1().Secrets(s.namespace).Create(t.Context(), secret, metav1.CreateOptions{})
	require.NoError(t, err)
}

func newID(t *testing.T) string {
	t.Helper()
	id, err := ledger.NewID(rand.Reader)
	require.NoError(t, err)
	return id
}

// live is the account's Secret, nil if there is none.
func (s *subject) live(t *testing.T) *corev1.Secret {
	t.Helper()
	secret, err := s.admin.CoreV1().Secrets(s.namespace).Get(t.Context(), s.secret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(t, err)
	return secret
}

func (s *subject) version(t *testing.T) string {
	t.Helper()
	return resourceVersion(s.live(t))
}

// entries are the ids in the account's ledger, newest first.
func (s *subject) entries(t *testing.T) []string {
	t.Helper()
	return ids(t, s.live(t))
}

func ids(t *testing.T, secret *corev1.Secret) []string {
	t.Helper()
	ids := []string{}
	if secret == nil {
		return ids
	}
	book, err := ledger.Parse(secret.Annotations[ledger.Annotation])
	require.NoError(t, err)
	for _, e := range book.Entries {
		ids = append(ids, e.ID)
	}
	return ids
}

func (s *subject) annotate(t *testing.T, key, value string) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
	require.NoError(t, err)
	_, err = s.admin.CoreV1().Secrets(s.namespace).Patch(t.Context(), s.secret, types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(t, err)
}

func (s *subject) remove(t *testing.T) {
	t.Helper()
	require.NoError(t, s.admin.CoreV1().Secrets(s.namespace).Delete(t.Context(), s.secret, metav1.DeleteOptions{}))
}

// tookEffect checks that the answer is a mint's that stands in the ledger on top of what was there before, and that the
// Secret holds its password.
func (s *subject) tookEffect(t *testing.T, answer *v1alpha1.CredentialMint, err error, before []string) {
	t.Helper()
	require.NoError(t, err)
	live := s.live(t)
	require.NotNil(t, live)
	require.Equal(t, append([]string{answer.Status.ID}, before...), ids(t, live))
	s.holds(t, live, answer)
}

// holds checks that the Secret holds the answer's password, and that the newest entry says so. It prints neither.
func (s *subject) holds(t *testing.T, secret *corev1.Secret, answer *v1alpha1.CredentialMint) {
	t.Helper()
	book, err := ledger.Parse(secret.Annotations[ledger.Annotation])
	require.NoError(t, err)
	newest := book.Newest()
	assert.Equal(t, answer.Status.Revision, newest.Revision)
	assert.Equal(t, ledger.Mint, newest.Operation)
	assert.Equal(t, "Minted", secret.Annotations[ledger.OriginAnnotation])
	assert.True(t, newest.Stored == book.StoredDigest(newest.AuditID, secret.Data["password"]), "the newest entry commits to the stored form")
	assert.True(t, answer.Status.Password != "" && verifies(secret.Data["password"], answer.Status.Password), "the Secret holds the password that was answered")
}

// verifies reports whether PostgreSQL, with this verifier, would let the password in.
func verifies(verifier []byte, password string) bool {
	parts := strings.FieldsFunc(string(verifier), func(r rune) bool { return r == '$' || r == ':' })
	if len(parts) != 5 {
		return false
	}
	salt, err := base64.StdEncoding.DecodeString(parts[2])
	if err != nil {
		return false
	}
	salted, err := pbkdf2.Key(sha256.New, password, salt, 4096, sha256.Size)
	if err != nil {
		return false
	}
	mac := hmac.New(sha256.New, salted)
	mac.Write([]byte("Client Key"))
	key := sha256.Sum256(mac.Sum(nil))
	return parts[3] == base64.StdEncoding.EncodeToString(key[:])
}

// A server is a mint server whose way to kube-apiserver has a fault.
type server struct {
	storage map[string]rest.Storage
	faults  *faults
	log     bytes.Buffer
}

// serve makes a mint server; without a fault, nil, its way is clear.
func (w *world) serve(t *testing.T, f fault) *server {
	t.Helper()
	s := &server{faults: &faults{fault: f}}
	config := clientrest.CopyConfig(w.mint)
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { s.faults.next = next; return s.faults })
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	s.storage = New(Options{
		Cluster: w.cluster, Client: client.CoreV1(), Webhooks: w.webhooks, Random: rand.Reader, Now: time.Now, Retention: time.Hour,
		Log: slog.New(slog.NewTextHandler(&s.log, nil)), Registerer: prometheus.NewRegistry(),
	})
	return s
}

// A call is a request as kube-apiserver hands it on.
type call struct {
	context       context.Context
	auditID       string
	received      time.Time
	dryRun        bool
	preconditions *v1alpha1.Preconditions
}

func newCall(t *testing.T, changes []func(*call)) call {
	c := call{context: t.Context(), auditID: string(uuid.NewUUID()), received: time.Now()}
	for _, change := range changes {
		change(&c)
	}
	return c
}

// remaining leaves that much of the budget.
func remaining(d time.Duration) func(*call) {
	return func(c *call) { c.received = time.Now().Add(d - ledger.WriteBudget) }
}

func dry(c *call) { c.dryRun = true }

func (c call) incoming(namespace string) (context.Context, *metav1.CreateOptions) {
	ctx := genericapirequest.WithUser(genericapirequest.WithNamespace(c.context, namespace), &user.DefaultInfo{Name: "jane"})
	options := &metav1.CreateOptions{}
	if c.dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	return mintrequest.With(ctx, c.auditID, c.received), options
}

func (s *server) mint(t *testing.T, of *subject, changes ...func(*call)) (*v1alpha1.CredentialMint, error) {
	t.Helper()
	c := newCall(t, changes)
	ctx, options := c.incoming(of.namespace)
	answer, err := s.storage["credentials/mint"].(rest.NamedCreater).Create(ctx, of.credential,
		&v1alpha1.CredentialMint{Spec: v1alpha1.MintSpec{Preconditions: c.preconditions}}, nil, options)
	if err != nil {
		return nil, err
	}
	return answer.(*v1alpha1.CredentialMint), nil
}

func (s *server) revoke(t *testing.T, of *subject, changes ...func(*call)) (*v1alpha1.CredentialRevoke, error) {
	t.Helper()
	c := newCall(t, changes)
	ctx, options := c.incoming(of.namespace)
	answer, err := s.storage["credentials/revoke"].(rest.NamedCreater).Create(ctx, of.credential,
		&v1alpha1.CredentialRevoke{Spec: v1alpha1.RevokeSpec{Preconditions: c.preconditions}}, nil, options)
	if err != nil {
		return nil, err
	}
	return answer.(*v1alpha1.CredentialRevoke), nil
}

// A fault decides what becomes of the n-th write of a Secret; the first is 1.
type fault func(n int, w *write) (*http.Response, error)

// A write is a request of the mint server that writes a Secret.
type write struct {
	request *http.Request
	body    []byte
	next    http.RoundTripper
}

// send sends it on; it may be sent again.
func (w *write) send() (*http.Response, error) {
	return w.sendAs(w.request.Context(), bytes.NewReader(w.body))
}

func (w *write) sendAs(ctx context.Context, body io.Reader) (*http.Response, error) {
	r := w.request.Clone(ctx)
	r.Body, r.GetBody = io.NopCloser(body), nil
	return w.next.RoundTrip(r)
}

// land sends it on and loses the answer. It returns whether it was stored.
func (w *write) land(ctx context.Context) bool {
	answer, err := w.sendAs(ctx, bytes.NewReader(w.body))
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK || answer.StatusCode == http.StatusCreated
}

var errLost = fmt.Errorf("read tcp: %w", syscall.ECONNRESET)

// faults is the way of a mint server to kube-apiserver.
type faults struct {
	next  http.RoundTripper
	fault fault
	blind atomic.Int32 // so many reads fail

	mu     sync.Mutex
	writes []*write
}

func (f *faults) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet {
		if f.blind.Add(-1) >= 0 {
			return nil, errLost
		}
		return f.next.RoundTrip(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	w := &write{request: r, body: body, next: f.next}
	f.mu.Lock()
	f.writes = append(f.writes, w)
	n := len(f.writes)
	f.mu.Unlock()
	if f.fault == nil {
		return w.send()
	}
	return f.fault(n, w)
}

// sent are the writes that the mint server tried.
func (f *faults) sent() []*write {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]*write{}, f.writes...)
}

// first has only the first write meet the fault.
func first(f func(*write) (*http.Response, error)) fault {
	return func(n int, w *write) (*http.Response, error) {
		if n == 1 {
			return f(w)
		}
		return w.send()
	}
}

// before does something before the first write goes on its way.
func before(something func()) fault {
	return first(func(w *write) (*http.Response, error) {
		something()
		return w.send()
	})
}

// unsent loses every write before kube-apiserver has it.
func unsent(int, *write) (*http.Response, error) { return nil, errLost }

// answering is a failure as kube-apiserver words it, which a client may be tempted to repeat.
func answering(code int, reason metav1.StatusReason) *http.Response {
	status, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: "it could not be done",
	})
	if err != nil {
		panic(err) // it has nothing that would not marshal
	}
	return &http.Response{
		StatusCode: code, ProtoMajor: 1, ProtoMinor: 1, ContentLength: int64(len(status)), Body: io.NopCloser(bytes.NewReader(status)),
		Header: http.Header{"Content-Type": {"application/json"}, "Retry-After": {"1"}},
	}
}

// refused checks an error's code and words, and prints its code alone: the words may be what must not be seen.
func refused(t *testing.T, err error, code int32, says string) {
	t.Helper()
	status := statusOf(t, err)
	require.Equal(t, code, status.Code)
	require.True(t, strings.Contains(status.Message, says), "the answer says %q", says)
}

// refusedForNow checks that an error is a 503 that says when to try again.
func refusedForNow(t *testing.T, err error, says string) {
	t.Helper()
	refused(t, err, http.StatusServiceUnavailable, says)
	seconds, ok := apierrors.SuggestsClientDelay(err)
	assert.True(t, ok && seconds > 0, "it has a Retry-After")
}

func statusOf(t *testing.T, err error) metav1.Status {
	t.Helper()
	require.True(t, err != nil, "it is refused")
	status, ok := err.(apierrors.APIStatus)
	require.True(t, ok, "the refusal is one that a client can read")
	return status.Status()
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	require.Eventually(t, holds, time.Minute, 20*time.Millisecond, what)
}
