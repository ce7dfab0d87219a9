// Package robustness holds the test that ingest loses nothing while a real kube-apiserver writes and rotates its audit
// log and ingest is killed.
package robustness

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/gap"
	"github.com/mintlog/mintlog/store/stream"
	"github.com/mintlog/mintlog/test/natsserver"
	"github.com/mintlog/mintlog/test/sandbox"
	"github.com/mintlog/mintlog/test/sandbox/process"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

const (
	backups = 20       // rotated files that kube-apiserver keeps
	padding = 80 << 10 // bytes by which a request makes its line long
)

// house is a cluster whose audit log is 1 MB long, and comes by its files and by the webhook into one stream, and by
// its files alone into another.
type house struct {
	t *testing.T
	*sandbox.Sandbox
	directory    string
	both, alone  *reader
	mintServer   *process.Process
	files, again *process.Process // follow the files into both and into alone
	webhook      *process.Process // receives into both
	jane, admin  *http.Client
	mints        []mint
}

// A mint was answered with a password.
type mint struct {
	id         string // the audit id
	began, got time.Time
}

func open(t *testing.T) *house {
	t.Helper()
	h := &house{t: t, directory: t.TempDir()}
	h.both, h.alone = h.openStream(), h.openStream()
	root, err := process.Root()
	require.NoError(t, err)
	binary := filepath.Join(root, "bin", "mintlog")
	require.FileExists(t, binary, `run "make build"`)
	address, err := process.FreeAddress()
	require.NoError(t, err)
	// The sandbox stops with its context, and a test's own ends before its cleanups run.
	ctx := context.Background()
	clients, serving := h.authority("webhook-clients"), h.authority("webhook-serving")
	h.Sandbox, err = sandbox.Start(ctx, sandbox.Options{
		Directory: filepath.Join(h.directory, "sandbox"), Apiservers: 1, AuditLogMaxMegabytes: 1, AuditLogMaxBackups: backups,
		ExtraAPIServerFlags: []string{
			"--audit-log-compress",
			"--audit-webhook-config-file=" + h.webhookConfiguration(binary, address, clients, serving),
			"--audit-webhook-batch-max-wait=100ms",
			"--audit-webhook-batch-max-size=100", // of lines that long, more are a body beyond the receiver's limit
			"--audit-webhook-initial-backoff=1s",
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			h.keepLogs()
		}
		assert.NoError(t, h.Stop())
	})
	h.webhook = h.run("webhook", binary, "ingest", "webhook", "--nats="+h.both.url, "--address="+address,
		"--tls-cert-file="+h.file("webhook.crt"), "--tls-private-key-file="+h.file("webhook.key"),
		"--client-ca-file="+h.file("webhook-clients.crt"), "--set-aside="+h.file("set-aside"), "--retry-after=1s")
	h.files = h.run("files", binary, "ingest", "--nats="+h.both.url, "--state="+h.file("state"), "--audit-log="+h.AuditLog(0))
	// By a pattern, which must not take the rotated files for logs.
	pattern := filepath.Join(filepath.Dir(filepath.Dir(h.AuditLog(0))), "*", "*.log")
	h.again = h.run("again", binary, "ingest", "--nats="+h.alone.url, "--state="+h.file("state-again"), "--audit-log="+pattern)
	h.serveMint(ctx, binary)
	return h
}

func (h *house) file(name string) string { return filepath.Join(h.directory, name) }

func (h *house) run(name, binary string, arguments ...string) *process.Process {
	h.t.Helper()
	started, err := h.Run(h.t.Context(), name, binary, append(arguments, "--metrics-address=")...)
	require.NoError(h.t, err)
	return started
}

func (h *house) authority(name string) *sandbox.Authority {
	h.t.Helper()
	authority, err := sandbox.NewAuthority(name)
	require.NoError(h.t, err)
	h.write(name+".crt", authority.PEM())
	return authority
}

func (h *house) write(name string, content []byte) string {
	h.t.Helper()
	require.NoError(h.t, os.WriteFile(h.file(name), content, 0o600))
	return h.file(name)
}

// webhookConfiguration is the file for kube-apiserver, and writes the receiver's certificate.
func (h *house) webhookConfiguration(binary, address string, clients, serving *sandbox.Authority) string {
	h.t.Helper()
	certificate, key, err := serving.Issue(sandbox.Identity{Name: "webhook", Hosts: []string{"127.0.0.1"}})
	require.NoError(h.t, err)
	h.write("webhook.crt", certificate)
	h.write("webhook.key", key)
	certificate, key, err = clients.Issue(sandbox.Identity{Name: "kube-apiserver"})
	require.NoError(h.t, err)
	text, err := exec.Command(binary, "ingest", "webhook-kubeconfig", "--server=https://"+address, "--name=cp-1", "--embed",
		"--certificate-authority="+h.file("webhook-serving.crt"),
		"--client-certificate="+h.write("client.crt", certificate), "--client-key="+h.write("client.key", key)).Output()
	require.NoError(h.t, err)
	return h.write("webhook.yaml", text)
}

func (h *house) serveMint(ctx context.Context, binary string) {
	h.t.Helper()
	kubeconfig, err := h.ServiceAccountKubeconfig(ctx, "mint", 0)
	require.NoError(h.t, err)
	certificate, key := h.MintCertificate()
	host, port, err := net.SplitHostPort(h.MintAddress())
	require.NoError(h.t, err)
	h.mintServer = h.run("mint", binary, "mint", "--kubeconfig="+kubeconfig, "--bind-address="+host, "--secure-port="+port,
		"--tls-cert-file="+certificate, "--tls-private-key-file="+key)
	require.NoError(h.t, h.LayDefinition(ctx))
	_, err = h.LayRelease(ctx)
	require.NoError(h.t, err)
	require.NoError(h.t, h.LayAPI(ctx))
	require.NoError(h.t, h.AwaitMint(ctx, sandbox.TenantAcme, []string{"postgres-orders.app"}))
	h.jane, h.admin = h.client(sandbox.Jane), h.client(sandbox.ClusterAdmin)
}

func (h *house) client(person string) *http.Client {
	h.t.Helper()
	client, err := rest.HTTPClientFor(h.RESTConfig(person, 0))
	require.NoError(h.t, err)
	return client
}

// mint mints a password of an account that is declared, under an audit id of its own, and keeps it if it was answered.
func (h *house) mint() {
	h.t.Helper()
	m := mint{id: uuid.NewString(), began: time.Now()}
	request, err := http.NewRequestWithContext(h.t.Context(), http.MethodPost,
		h.APIServerURL(0)+"/apis/credentials.cozystack.io/v1alpha1/namespaces/"+sandbox.TenantAcme+"/credentials/postgres-orders.app/mint",
		strings.NewReader(`{"apiVersion": "credentials.cozystack.io/v1alpha1", "kind": "CredentialMint"}`))
	require.NoError(h.t, err)
	request.Header.Set("Audit-ID", m.id)
	request.Header.Set("Content-Type", "application/json")
	response, err := h.jane.Do(request)
	require.NoError(h.t, err)
	require.NoError(h.t, response.Body.Close())
	require.Equal(h.t, http.StatusCreated, response.StatusCode)
	m.got = time.Now()
	h.mints = append(h.mints, m)
}

// pad makes kube-apiserver write a long line.
func (h *house) pad() {
	h.t.Helper()
	request, err := http.NewRequestWithContext(h.t.Context(), http.MethodGet,
		h.APIServerURL(0)+"/api/v1/namespaces/"+sandbox.TenantAcme+"/secrets/none?pad="+strings.Repeat("a", padding), nil)
	require.NoError(h.t, err)
	response, err := h.admin.Do(request)
	require.NoError(h.t, err)
	require.NoError(h.t, response.Body.Close())
	require.Equal(h.t, http.StatusNotFound, response.StatusCode)
}

// rotated counts the log's rotations: it remembers the names that it has seen.
type rotated map[string]bool

func (r rotated) look(log string) int {
	found, _ := filepath.Glob(strings.TrimSuffix(log, ".log") + "-*") // the pattern is well formed: no error
	for _, path := range found {
		r[strings.TrimSuffix(path, ".gz")] = true
	}
	return len(r)
}

// A reader reads a stream as the projector does, and tells events by their identities.
type reader struct {
	*stream.Stream
	url    string
	events map[string]map[string]string // by what was done under which audit id: identities, with what source came first
}

func (h *house) openStream() *reader {
	h.t.Helper()
	nats := natsserver.Run(h.t, natsserver.Options(h.t))
	r := &reader{url: nats.ClientURL(), events: map[string]map[string]string{}}
	var err error
	r.Stream, err = stream.Open(h.t.Context(), stream.Options{URL: r.url, MaxBytes: 256 << 20, EvidenceBytes: 16 << 20})
	require.NoError(h.t, err)
	h.t.Cleanup(func() { require.NoError(h.t, r.Close()) })
	return r
}

// What an answered mint leaves in the log.
const (
	asked    = "RequestReceived create mint"
	answered = "ResponseComplete create mint"
	stored   = "ResponseComplete write"
)

func done(e *event.Event) string {
	if e.IsWrite() {
		return string(e.Stage) + " write"
	}
	return string(e.Stage) + " " + e.Verb + " " + e.ObjectRef.Subresource
}

// read takes everything that has come.
func (r *reader) read(ctx context.Context) error {
	for _, consumer := range []stream.Consumer{stream.ProjectorEvents, stream.ProjectorIntents} {
		for {
			messages, err := r.Fetch(ctx, consumer, 500, 100*time.Millisecond)
			if err != nil {
				return err
			}
			for _, m := range messages {
				key := m.Event.AuditID + " " + done(&m.Event)
				if r.events[key] == nil {
					r.events[key] = map[string]string{}
				}
				r.events[key][m.Event.Identity()] = m.Event.Source
				if err := m.Ack(); err != nil {
					return err
				}
			}
			if len(messages) == 0 {
				break
			}
		}
	}
	return nil
}

// missing are what of the mints has not come.
func (r *reader) missing(mints []mint) (missing []mint) {
	for _, m := range mints {
		for _, what := range []string{asked, answered, stored} {
			if len(r.events[m.id+" "+what]) == 0 {
				missing = append(missing, m)
				break
			}
		}
	}
	return missing
}

// twice are what the projector would take for two events.
func (r *reader) twice() (twice []string) {
	for key, identities := range r.events {
		if len(identities) > 1 {
			twice = append(twice, fmt.Sprint(key, slices.Collect(maps.Keys(identities))))
		}
	}
	return twice
}

// sources are what came first with the events.
func (r *reader) sources() map[string]int {
	sources := map[string]int{}
	for _, identities := range r.events {
		for _, source := range identities {
			sources[source]++
		}
	}
	return sources
}

// explained reports whether a mint lies in one of the gaps altogether.
func explained(m mint, gaps []gap.Gap) bool {
	return slices.ContainsFunc(gaps, func(g gap.Gap) bool { return !m.began.Before(g.From) && !m.got.After(g.End()) })
}

// keepLogs copies what our processes said to where a failed run can be looked at.
func (h *house) keepLogs() {
	directory, err := os.MkdirTemp("", "mintlog-robustness-logs-")
	if err != nil {
		return
	}
	for _, name := range []string{"webhook", "files", "again", "mint"} {
		if content, err := os.ReadFile(filepath.Join(h.Directory(), "logs", name+".log")); err == nil {
			_ = os.WriteFile(filepath.Join(directory, name+".log"), content, 0o600)
		}
	}
	h.t.Log("the logs are kept in", directory)
}
