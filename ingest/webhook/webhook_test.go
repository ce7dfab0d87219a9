package webhook

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/ingest"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/stream"
	"github.com/mintlog/mintlog/test/output"
	"github.com/mintlog/mintlog/test/sandbox"
)

// mintItem is a mint as kube-apiserver sends it: an item has no kind and no apiVersion.
func mintItem(id string) string {
	return `{"level":"Metadata","auditID":"` + id + `","stage":"ResponseComplete",` +
		`"requestURI":"/apis/credentials.cozystack.io/v1alpha1/namespaces/tenant-acme/credentials/postgres-orders.app/mint",` +
		`"verb":"create","user":{"username":"jane"},"sourceIPs":["192.0.2.7"],"objectRef":{"resource":"credentials",` +
		`"namespace":"tenant-acme","name":"postgres-orders.app","apiGroup":"credentials.cozystack.io","apiVersion":"v1alpha1","subresource":"mint"},` +
		`"responseStatus":{"metadata":{},"code":201},"requestReceivedTimestamp":"2026-08-21T10:00:00.000001Z",` +
		`"stageTimestamp":"2026-08-21T10:00:00.011002Z","annotations":{"authorization.k8s.io/decision":"allow"}}`
}

const otherItem = `{"level":"Metadata","auditID":"o","stage":"ResponseComplete","verb":"get","user":{"username":"jane"},` +
	`"objectRef":{"resource":"pods","namespace":"a","name":"b"},"responseStatus":{"code":200}}`

func list(items ...string) string {
	return `{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":[` + strings.Join(items, ",") + "]}\n"
}

func zipped(body string) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(body)) // a Buffer takes all
	_ = w.Close()
	return b.Bytes()
}

// publisher keeps what it is given, and fails or waits as it is told.
type publisher struct {
	mu     sync.Mutex
	events []event.Event
	err    error
	block  chan struct{} // if set, a publication waits until it is closed or its context is done
	began  chan struct{} // if set, gets an element when a publication begins to wait
}

func (p *publisher) Publish(ctx context.Context, events []event.Event) error {
	p.mu.Lock()
	block := p.block
	p.mu.Unlock()
	if block != nil {
		p.began <- struct{}{}
		select {
		case <-block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	p.events = append(p.events, events...)
	return nil
}

func (p *publisher) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

func (p *publisher) ids() (ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.events {
		ids = append(ids, e.AuditID)
	}
	return ids
}

// bench is a Receiver with its certificates and a caller.
type bench struct {
	testing.TB
	options   Options
	published *publisher
	log       *output.Buffer
	registry  *prometheus.Registry
	serving   *sandbox.Authority
	clients   *sandbox.Authority
	ahead     atomic.Int64 // of the clock, in nanoseconds

	receiver *Receiver
	stop     context.CancelFunc
	done     chan error
	client   *http.Client
}

func newBench(t testing.TB) *bench {
	b := &bench{TB: t, published: &publisher{}, log: &output.Buffer{}, registry: prometheus.NewRegistry()}
	b.serving, b.clients = b.authority("serving"), b.authority("clients")
	directory := t.TempDir()
	file := func(name string) string { return filepath.Join(directory, name) }
	now := time.Now()
	b.options = Options{
		Address: "127.0.0.1:0", CertFile: file("tls.crt"), KeyFile: file("tls.key"), ClientCAFile: file("ca.crt"),
		Publisher: b.published, SetAside: file("aside"), Log: slog.New(slog.NewTextHandler(b.log, nil)), Registerer: b.registry,
		Now:            func() time.Time { return now.Add(time.Duration(b.ahead.Load())) },
		PublishTimeout: time.Minute,
	}
	b.serve(b.serving)
	b.believe(b.clients)
	return b
}

func (b *bench) authority(name string) *sandbox.Authority {
	b.Helper()
	a, err := sandbox.NewAuthority(name)
	require.NoError(b, err)
	return a
}

// serve writes a serving certificate of the authority.
func (b *bench) serve(by *sandbox.Authority) {
	b.Helper()
	certificate, key, err := by.Issue(sandbox.Identity{Name: "mintlog", Hosts: []string{"127.0.0.1"}})
	require.NoError(b, err)
	require.NoError(b, os.WriteFile(b.options.CertFile, certificate, 0o600))
	require.NoError(b, os.WriteFile(b.options.KeyFile, key, 0o600))
}

// believe writes the client CA.
func (b *bench) believe(clients *sandbox.Authority) {
	b.Helper()
	require.NoError(b, os.WriteFile(b.options.ClientCAFile, clients.PEM(), 0o600))
}

func (b *bench) start() {
	b.Helper()
	receiver, err := New(b.options)
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(b.Context())
	b.receiver, b.stop, b.done = receiver, cancel, make(chan error, 1)
	go func() { b.done <- receiver.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		require.NoError(b, <-b.done)
	})
	b.client = b.caller(b.clients, sandbox.Identity{Name: "kube-apiserver"}, true) // closes its connections before that
}

// caller is a client with a certificate of the authority, or with none.
func (b *bench) caller(by *sandbox.Authority, identity sandbox.Identity, http2 bool) *http.Client {
	b.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(b.serving.PEM())
	config := &tls.Config{RootCAs: roots}
	if by != nil {
		text, key, err := by.Issue(identity)
		require.NoError(b, err)
		pair, err := tls.X509KeyPair(text, key)
		require.NoError(b, err)
		config.Certificates = []tls.Certificate{pair}
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: http2, DisableCompression: true}
	b.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 5 * time.Minute}
}

type answer struct {
	status     int
	retryAfter string
	body       string
	protocol   int
}

func (b *bench) send(client *http.Client, method, path, encoding string, body []byte) (answer, error) {
	request, err := http.NewRequestWithContext(b.Context(), method, "https://"+b.receiver.Address().String()+path, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	if encoding != "" {
		request.Header.Set("Content-Encoding", encoding)
	}
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header.Get("Retry-After"), string(text), response.ProtoMajor}, err
}

// post sends a batch as kube-apiserver does.
func (b *bench) post(body string) answer {
	b.Helper()
	a, err := b.send(b.client, http.MethodPost, "/audit/cp-1?timeout=30s", "", []byte(body))
	require.NoError(b, err)
	return a
}

func (b *bench) rejected(reason string) float64 {
	return testutil.ToFloat64(b.receiver.metrics.rejected.WithLabelValues(reason))
}

func (b *bench) setAside(reason string) float64 {
	return testutil.ToFloat64(b.receiver.metrics.setAside.WithLabelValues(reason))
}

// kept are the contents of the files set aside, by reason.
func (b *bench) kept() map[string][]string {
	b.Helper()
	entries, err := os.ReadDir(b.options.SetAside)
	require.NoError(b, err)
	kept := map[string][]string{}
	for _, entry := range entries {
		require.Regexp(b, asideName, entry.Name())
		info, err := entry.Info()
		require.NoError(b, err)
		require.Equal(b, os.FileMode(0o600), info.Mode())
		content, err := os.ReadFile(filepath.Join(b.options.SetAside, entry.Name()))
		require.NoError(b, err)
		_, reason, _ := strings.Cut(entry.Name(), "_")
		reason = reason[:strings.Index(reason, "_cp-1_")]
		kept[reason] = append(kept[reason], string(content))
	}
	return kept
}

func TestABatchIsPublishedWithItsApiserverAsTheSource(t *testing.T) {
	b := newBench(t)
	b.start()
	a := b.post(list(mintItem("1"), otherItem, mintItem("2")))
	require.Equal(t, answer{status: 200, protocol: 2}, a)
	require.Equal(t, []string{"1", "2"}, b.published.ids())
	require.Equal(t, "webhook:cp-1", b.published.events[0].Source)
	require.Equal(t, "jane", b.published.events[0].User.Username)

	a, err := b.send(b.client, http.MethodPost, "/audit/cp-2/", "gzip", zipped(list(mintItem("3"))))
	require.NoError(t, err)
	require.Equal(t, 200, a.status)
	require.Equal(t, "webhook:cp-2", b.published.events[2].Source)
	require.Equal(t, 4.0, testutil.ToFloat64(b.receiver.metrics.items))
	require.Equal(t, 3.0, testutil.ToFloat64(b.receiver.metrics.published))
	require.Equal(t, 2.0, testutil.ToFloat64(b.receiver.metrics.done))
	require.Empty(t, b.kept())
}

func TestWhenEachApiserverLastSentABatchIsToldOfBoundedlyMany(t *testing.T) {
	b := newBench(t)
	b.start()
	before := float64(time.Now().Unix())
	last := b.receiver.metrics.lastBatch
	for n := range maxNames + 5 {
		a, err := b.send(b.client, http.MethodPost, fmt.Sprintf("/audit/cp-%d", n), "gzip", zipped(list(otherItem)))
		require.NoError(t, err)
		require.Equal(t, 200, a.status)
	}
	require.Equal(t, maxNames, testutil.CollectAndCount(last))
	require.GreaterOrEqual(t, testutil.ToFloat64(last.WithLabelValues("cp-0")), before)
}

func TestWithoutAClientCAItRefusesToStart(t *testing.T) {
	f := func(want string, change func(*Options)) {
		t.Helper()
		b := newBench(t)
		change(&b.options)
		_, err := New(b.options)
		require.ErrorContains(t, err, want)
	}
	f("no client CA", func(o *Options) { o.ClientCAFile = "" })
	f("no such file", func(o *Options) { o.ClientCAFile += "x" })
	f("no certificate in it", func(o *Options) { o.ClientCAFile = o.KeyFile })
	f("no serving certificate", func(o *Options) { o.CertFile = "" })
	f("using the serving certificate", func(o *Options) { o.KeyFile = o.CertFile })
	f("no directory", func(o *Options) { o.SetAside = "" })
	f("making the directory", func(o *Options) { o.SetAside = o.KeyFile })
	f("no publisher", func(o *Options) { o.Publisher = nil })
	f("retry after", func(o *Options) { o.RetryAfter = time.Millisecond })
	f("negative", func(o *Options) { o.MaxBody = -1 })
	f("listening", func(o *Options) { o.Address = "192.0.2.1:1" })
}

func TestOnlyCallersWithACertificateOfTheClientCAAreLetIn(t *testing.T) {
	b := newBench(t)
	b.options.ClientNames = []string{"kube-apiserver", "another"}
	b.start()
	f := func(status int, client *http.Client) {
		t.Helper()
		a, err := b.send(client, http.MethodPost, "/audit/cp-1", "", []byte(list(mintItem("x"))))
		if status == 0 {
			require.Error(t, err)
			return
		}
		require.NoError(t, err)
		require.Equal(t, status, a.status)
	}
	kube := sandbox.Identity{Name: "kube-apiserver"}
	f(0, b.caller(nil, kube, true))
	f(0, b.caller(b.serving, kube, true))
	f(0, b.caller(b.clients, sandbox.Identity{Name: "kube-apiserver", Hosts: []string{"127.0.0.1"}}, true)) // a server's certificate
	f(401, b.caller(b.clients, sandbox.Identity{Name: "jane"}, true))
	f(401, b.caller(b.clients, sandbox.Identity{Name: "jane"}, false))
	require.Empty(t, b.published.ids())
	require.Equal(t, 2.0, b.rejected(stranger))
	f(200, b.caller(b.clients, sandbox.Identity{Name: "another"}, true))

	plain, err := http.Post("http://"+b.receiver.Address().String()+"/audit/cp-1", "application/json", strings.NewReader(list(mintItem("y"))))
	require.NoError(t, err)
	require.Equal(t, 400, plain.StatusCode)
	require.NoError(t, plain.Body.Close())
	require.Equal(t, []string{"x"}, b.published.ids())
}

func TestChangedCertificatesAreTakenOverAtOnce(t *testing.T) {
	b := newBench(t)
	b.start()
	require.Equal(t, 200, b.post(list(mintItem("1"))).status)

	b.serving = b.authority("new serving")
	require.NoError(t, os.WriteFile(b.options.CertFile, []byte("half a fi"), 0o600))
	b.ahead.Add(int64(lookInterval))
	require.Equal(t, 200, b.post(list(mintItem("2"))).status) // what cannot be used changes nothing
	require.Equal(t, 1.0, testutil.ToFloat64(b.receiver.metrics.reloadFailures))
	require.Contains(t, b.log.String(), "Changed certificates cannot be used")

	old := b.client
	b.serve(b.serving)
	newClients := b.authority("new clients")
	b.believe(newClients)
	b.ahead.Add(int64(lookInterval))
	b.client = b.caller(newClients, sandbox.Identity{Name: "kube-apiserver"}, true)
	require.Equal(t, 200, b.post(list(mintItem("3"))).status)

	// A connection that stands from before has no more rights than a new one.
	a, err := b.send(old, http.MethodPost, "/audit/cp-1", "", []byte(list(mintItem("4"))))
	require.NoError(t, err)
	require.Equal(t, 401, a.status)
	b.ahead.Add(int64(60 * 24 * time.Hour)) // the certificate is valid for thirty days
	require.Equal(t, 401, b.post(list(mintItem("5"))).status)
	require.Equal(t, []string{"1", "2", "3"}, b.published.ids())
}

func TestOnlyPostsToThePathOfAnApiserverAreTaken(t *testing.T) {
	b := newBench(t)
	b.start()
	f := func(status int, method, path string) {
		t.Helper()
		a, err := b.send(b.client, method, path, "", []byte(list(mintItem("x"))))
		require.NoError(t, err)
		require.Equal(t, status, a.status, "%s %s", method, path)
	}
	f(404, "POST", "/")
	f(404, "POST", "/audit")
	f(404, "POST", "/audit/")
	f(404, "POST", "/audit/a/b")
	f(404, "POST", "/audit/..%2Fa")
	f(404, "POST", "/audit/A")
	f(404, "POST", "/audit/-a")
	f(404, "POST", "/audit/a.b")
	f(404, "POST", "/audit/"+strings.Repeat("a", 64))
	f(404, "POST", "/other/a")
	f(405, "GET", "/audit/a")
	f(405, "PUT", "/audit/a")
	require.Empty(t, b.published.ids())
	require.Equal(t, 10.0, b.rejected(wrongPath))
	require.Equal(t, 2.0, b.rejected(wrongMethod))
	f(200, "POST", "/audit/"+strings.Repeat("a", 63))
}

func TestHostileItemsAreSetAsideAndTheRestOfTheBatchIsPublished(t *testing.T) {
	b := newBench(t)
	b.start()
	from := func(old, new string) string {
		item := mintItem("secretive")
		require.Contains(t, item, old)
		return strings.Replace(item, old, new, 1)
	}
	hostile := map[string][]string{
		ingest.DuplicateKey: {from(`"verb":`, `"user":{"username":"root"},"verb":`)},
		ingest.InvalidUTF8:  {from(`"jane"`, "\"jane\xff\"")},
		ingest.Malformed: {
			from(`"jane"`, `["jane"]`), from(`"jane"`, "\"ja\x01ne\""), from(`"jane"`, `"\q"`), from(`"code":201`, `code:201`),
			`"x.account"`, from(`"level"`, `"x":`+strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+`,,"level"`),
		},
		ingest.Incomplete: {from(`"auditID":"secretive",`, ``)},
		oversized:         {from(`"level"`, `"x":"`+strings.Repeat("y", ingest.DefaultMaxLine)+`","level"`)},
	}
	items := []string{mintItem("first"), "null", "7", `"words"`, "{}", "[]"}
	for _, list := range hostile {
		items = append(items, list...)
		items = append(items, mintItem("after"))
	}
	a := b.post(list(items...))
	require.Equal(t, 200, a.status)
	require.Equal(t, []string{"first", "after", "after", "after", "after", "after"}, b.published.ids())
	kept := b.kept()
	for reason, list := range hostile {
		require.Equal(t, float64(len(list)), b.setAside(reason), reason)
		if reason == oversized {
			list = []string{list[0][:ingest.DefaultMaxLine]}
		}
		require.ElementsMatch(t, list, kept[reason], reason)
	}
	require.NotContains(t, b.log.String(), "secretive")
	require.NotContains(t, b.log.String(), "jane")

	require.Equal(t, 200, b.post(list(items...)).status) // delivered again
	require.Equal(t, kept, b.kept())
}

func TestABatchThatIsNoListIsRefusedBehindWhatCameBeforeAndKept(t *testing.T) {
	b := newBench(t)
	b.start()
	a := b.post(`{"items":[` + mintItem("1") + `,{"half":`)
	require.Equal(t, 400, a.status)
	require.Equal(t, []string{"1"}, b.published.ids())
	require.Equal(t, 400, b.post(`<html>`).status)
	require.Equal(t, 400, b.post(``).status)
	require.Equal(t, 400, b.post(`{"kind":"Status","code":500}`).status)
	require.Equal(t, 4.0, b.rejected(malformed))
	require.ElementsMatch(t, []string{`{"half":`, `<html>`, ``, ``}[:3], b.kept()[noList])
	require.NotContains(t, b.log.String(), "half")

	f := func(want int, encoding string, body []byte) {
		t.Helper()
		a, err := b.send(b.client, http.MethodPost, "/audit/cp-1", encoding, body)
		require.NoError(t, err)
		require.Equal(t, want, a.status)
	}
	whole := zipped(list(mintItem("2")))
	f(400, "gzip", []byte(list(mintItem("x"))))
	f(400, "gzip", whole[:len(whole)-5])
	f(400, "gzip", append(bytes.Clone(whole), "trailing"...))
	f(415, "br", whole)
	f(415, "gzip, gzip", whole)
	require.Equal(t, 3.0, b.rejected(unreadable))
	require.Equal(t, 2.0, b.rejected(encoding))
}

// TestHugeBatchesAreTakenUpToALimit is kubernetes#60432 and falco#2808.
func TestHugeBatchesAreTakenUpToALimit(t *testing.T) {
	b := newBench(t)
	b.start()
	var items []string
	for i := range 400 {
		items = append(items, strings.Replace(mintItem(fmt.Sprint(i)), `"level"`, `"responseObject":{"x":"`+strings.Repeat("y", 31<<10)+`"},"level"`, 1))
	}
	body := list(items...)
	require.Greater(t, len(body), 12<<20)
	for _, encoding := range []string{"gzip", ""} {
		content := []byte(body)
		if encoding == "gzip" {
			content = zipped(body)
		}
		a, err := b.send(b.client, http.MethodPost, "/audit/cp-1", encoding, content)
		require.NoError(t, err)
		require.Equal(t, 200, a.status)
	}
	require.Len(t, b.published.ids(), 800)
	require.Equal(t, 0.0, b.rejected(bodyTooBig))
}

func TestABodyBeyondTheLimitGets413AndACounter(t *testing.T) {
	b := newBench(t)
	whole := list(mintItem("1"), mintItem("2"))
	b.options.MaxBody = int64(len(whole))
	b.start()
	one := b.caller(b.clients, sandbox.Identity{Name: "kube-apiserver"}, false)
	count := 0
	f := func(status int, encoding string, body []byte) {
		t.Helper()
		for _, client := range []*http.Client{b.client, one} {
			a, err := b.send(client, http.MethodPost, "/audit/cp-1", encoding, body)
			require.NoError(t, err)
			require.Equal(t, status, a.status)
			if status == 413 {
				count++
			}
			require.Equal(t, float64(count), b.rejected(bodyTooBig))
		}
	}
	f(200, "", []byte(whole))
	f(200, "gzip", zipped(whole))
	f(413, "", []byte(whole+" "))
	f(413, "gzip", zipped(whole+" "))
	f(413, "", []byte(list(mintItem("3"), strings.Repeat("7", 10<<20)))) // and what fitted is published
	require.Contains(t, b.published.ids(), "3")
	f(413, "gzip", zipped(list(strings.Repeat("7", 100<<20))))                                 // a bomb
	f(413, "gzip", bytes.Repeat(zipped(""), len(whole)))                                       // nothing, compressed without end
	f(200, "gzip", append(zipped(whole[:100]), append(zipped(""), zipped(whole[100:])...)...)) // as gzip may be
}

func TestWhileEventsCannotBePublishedCallersAreToldToComeAgain(t *testing.T) {
	b := newBench(t)
	b.options.RetryAfter = 1500 * time.Millisecond
	b.start()
	for _, err := range []error{stream.ErrFull, stream.ErrClosed, errors.New("no responders")} {
		b.published.fail(err)
		a := b.post(list(mintItem("1")))
		require.Equal(t, 503, a.status)
		require.Equal(t, "2", a.retryAfter)
	}
	require.Equal(t, 3.0, b.rejected(unpublished))
	require.Equal(t, 200, b.post(list(otherItem)).status) // nothing of ours in it
	require.Equal(t, 1, strings.Count(b.log.String(), "Events cannot be published"))
	b.published.fail(nil)
	require.Equal(t, 200, b.post(list(mintItem("1"))).status)
	require.Equal(t, []string{"1"}, b.published.ids())
	require.Equal(t, 1, strings.Count(b.log.String(), "Events are published again"))
}

type publishFunc func(context.Context, []event.Event) error

func (f publishFunc) Publish(ctx context.Context, events []event.Event) error { return f(ctx, events) }

func TestRequestsThatHaveBegunAreFinishedWhenItStops(t *testing.T) {
	b := newBench(t)
	release := b.hold(1)
	defer release()
	b.start()
	answered := make(chan answer, 1)
	go func() {
		a, err := b.send(b.client, http.MethodPost, "/audit/cp-1", "", []byte(list(mintItem("1"))))
		assert.NoError(t, err)
		answered <- a
	}()
	<-b.published.began
	b.stop()
	require.Eventually(t, func() bool {
		_, err := b.send(b.caller(b.clients, sandbox.Identity{Name: "late"}, true), http.MethodPost, "/audit/cp-1", "", nil)
		return err != nil
	}, time.Minute, 10*time.Millisecond)
	require.Empty(t, answered)
	release()
	require.Equal(t, 200, (<-answered).status)
	err := <-b.done
	require.NoError(t, err)
	b.done <- err
	require.Equal(t, []string{"1"}, b.published.ids())
}

func TestACallerThatHangsUpDoesNotStopThePublication(t *testing.T) {
	b := newBench(t)
	release := b.hold(1)
	defer release()
	b.start()
	left := make(chan error, 1)
	ctx, hangUp := context.WithCancel(t.Context())
	go func() {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+b.receiver.Address().String()+"/audit/cp-1", strings.NewReader(list(mintItem("1"))))
		assert.NoError(t, err)
		request.Header.Set("Content-Type", "application/json")
		_, err = b.client.Do(request)
		left <- err
	}()
	<-b.published.began
	hangUp()
	require.ErrorIs(t, <-left, context.Canceled)
	require.Never(t, func() bool { return testutil.ToFloat64(b.receiver.metrics.inFlight) == 0 }, 200*time.Millisecond, 10*time.Millisecond)
	release()
	require.Eventually(t, func() bool { return len(b.published.ids()) == 1 }, time.Minute, 10*time.Millisecond)
}
