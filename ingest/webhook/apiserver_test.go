package webhook

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/mintlog/mintlog/ingest/file"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/stream"
	"github.com/mintlog/mintlog/test/sandbox"
	"github.com/mintlog/mintlog/test/sandbox/process"
)

// cluster has real kube-apiservers that send their audit events to a Receiver, and write them to files that are followed
// into the same stream.
type cluster struct {
	*bench
	*sandbox.Sandbox
	stream *stream.Stream
	gate   *gate
	client kubernetes.Interface
	stored map[string][]string // audit ids of the events in the stream, by verb and Secret
}

// gate publishes to a stream while it is open.
type gate struct {
	mu     sync.Mutex
	stream *stream.Stream
	closed bool
}

func (g *gate) Publish(ctx context.Context, events []event.Event) error {
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed {
		return stream.ErrFull
	}
	return g.stream.Publish(ctx, events)
}

func (g *gate) shut(closed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = closed
}

func startCluster(t *testing.T, apiservers int) *cluster {
	t.Helper()
	b := newBench(t)
	s := openStream(t, stream.Options{Directory: t.TempDir()})
	c := &cluster{bench: b, stream: s, gate: &gate{stream: s}, stored: map[string][]string{}}
	b.options.Publisher, b.options.RetryAfter = c.gate, time.Second
	b.start()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	var err error
	c.Sandbox, err = sandbox.Start(ctx, sandbox.Options{Apiservers: apiservers, ExtraAPIServerFlags: []string{
		"--audit-webhook-config-file=" + c.kubeconfig(),
		"--audit-webhook-batch-max-wait=100ms",
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	c.client = c.Kubernetes(sandbox.ClusterAdmin, 1) // 0 has the watches of kube-controller-manager, which hold up its end
	return c
}

// kubeconfig is what "mintlog ingest webhook-kubeconfig" prints.
func (c *cluster) kubeconfig() string {
	c.Helper()
	certificate, key, err := c.clients.Issue(sandbox.Identity{Name: "kube-apiserver"})
	require.NoError(c, err)
	directory := c.TempDir()
	write := func(name string, text []byte) string {
		path := filepath.Join(directory, name)
		require.NoError(c, os.WriteFile(path, text, 0o600))
		return path
	}
	root, err := process.Root()
	require.NoError(c, err)
	command := exec.Command(filepath.Join(root, "bin", "mintlog"), "ingest", "webhook-kubeconfig",
		"--server=https://"+c.receiver.Address().String(), "--name=cp-1", "--embed",
		"--certificate-authority="+write("ca.crt", c.serving.PEM()),
		"--client-certificate="+write("tls.crt", certificate), "--client-key="+write("tls.key", key))
	text, err := command.Output()
	require.NoError(c, err, "make build")
	return write("webhook.yaml", text)
}

// follow follows the audit logs' files as well.
func (c *cluster) follow() {
	c.Helper()
	tailer, err := file.New(file.Options{Paths: c.AuditLogs(), Checkpoint: filepath.Join(c.TempDir(), "ingest.json"), Publisher: c.stream})
	require.NoError(c, err)
	ctx, cancel := context.WithCancel(c.Context())
	done := make(chan error, 1)
	go func() { done <- tailer.Run(ctx) }()
	c.Cleanup(func() {
		cancel()
		require.NoError(c, <-done)
	})
}

// write creates an account Secret and updates it.
func (c *cluster) write(name string) {
	c.Helper()
	secrets := c.client.CoreV1().Secrets(sandbox.TenantAcme)
	secret, err := secrets.Create(c.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(c, err)
	secret.Labels = map[string]string{"changed": "true"}
	_, err = secrets.Update(c.Context(), secret, metav1.UpdateOptions{})
	require.NoError(c, err)
}

// await waits until the stream has had both writes of all the Secrets.
func (c *cluster) await(names ...string) {
	c.Helper()
	require.EventuallyWithT(c, func(t *assert.CollectT) {
		c.fetch()
		for _, name := range names {
			assert.NotEmpty(t, c.stored["create "+name])
			assert.NotEmpty(t, c.stored["update "+name])
		}
	}, 2*time.Minute, 10*time.Millisecond)
}

func (c *cluster) fetch() {
	c.Helper()
	messages, err := c.stream.Fetch(c.Context(), stream.ProjectorEvents, 1000, 100*time.Millisecond)
	require.NoError(c, err)
	for _, m := range messages {
		key := m.Event.Verb + " " + m.Event.ObjectRef.Name
		c.stored[key] = append(c.stored[key], m.Event.AuditID)
		require.NoError(c, m.Ack())
	}
}

func (c *cluster) matched() float64 { return testutil.ToFloat64(c.receiver.metrics.matched) }

func TestARealApiserverDeliversEachEventOnceThoughItsFileIsFollowedToo(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 2)
	var names []string
	write := func(name string) {
		names = append(names, name)
		c.write(name)
	}

	// By the webhook alone, beside everything else that a cluster does.
	write("alone.account")
	c.await(names...)

	// While nothing can be published, kube-apiserver holds on to its batches.
	c.gate.shut(true)
	write("held.account")
	require.Eventually(t, func() bool { return c.rejected(unpublished) >= 8 }, 2*time.Minute, 10*time.Millisecond)
	c.gate.shut(false)
	c.await(names...)

	// By both at once, and through a restart of the kube-apiserver.
	c.follow()
	for i := range 20 {
		if i == 10 {
			require.NoError(t, c.APIServer(1).Restart(t.Context()))
		}
		write(fmt.Sprintf("both-%d.account", i))
	}
	c.await(names...)
	require.Eventually(t, func() bool { return c.matched() >= float64(2*len(names)) }, 2*time.Minute, 10*time.Millisecond)
	c.fetch()
	for _, name := range names {
		require.Len(t, c.stored["create "+name], 1, name)
		require.Len(t, c.stored["update "+name], 1, name)
	}
	require.Greater(t, testutil.ToFloat64(c.receiver.metrics.items), c.matched())
	require.Empty(t, c.kept())
}

// writer creates account Secrets through one kube-apiserver, without a pause, and remembers those of which it was told
// that they are there.
type writer struct {
	names []string
	stop  chan struct{}
	done  chan struct{}
}

func (c *cluster) startWriter(apiserver int, prefix string) *writer {
	w := &writer{stop: make(chan struct{}), done: make(chan struct{})}
	secrets := c.Kubernetes(sandbox.ClusterAdmin, apiserver).CoreV1().Secrets(sandbox.TenantAcme)
	go func() {
		defer close(w.done)
		for i := 0; ; i++ {
			select {
			case <-w.stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			name := fmt.Sprintf("%s-%d.account", prefix, i)
			_, err := secrets.Create(c.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			if err == nil {
				w.names = append(w.names, name)
			}
		}
	}()
	return w
}

func (w *writer) end() []string {
	close(w.stop)
	<-w.done
	return w.names
}

// TestApiserversThatEndOneAfterTheOtherLoseNoEvent is kubernetes#50781. One that is stopped sends what it has before it
// ends. One that is killed takes a batch with it, which only the files still have.
func TestApiserversThatEndOneAfterTheOtherLoseNoEvent(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3) // the first has the watches of kube-controller-manager, which hold up its end
	run := func(prefix string, end func(apiserver int)) {
		first, second := c.startWriter(1, prefix+"-1"), c.startWriter(2, prefix+"-2")
		for _, apiserver := range []int{1, 2} {
			time.Sleep(300 * time.Millisecond)
			end(apiserver)
		}
		time.Sleep(300 * time.Millisecond)
		names := append(first.end(), second.end()...)
		require.NotEmpty(t, names)
		require.EventuallyWithT(t, func(t *assert.CollectT) {
			c.fetch()
			for _, name := range names {
				assert.NotEmpty(t, c.stored["create "+name])
			}
		}, 2*time.Minute, 50*time.Millisecond)
		for _, name := range names {
			require.Len(t, c.stored["create "+name], 1, name)
		}
	}
	run("stopped", func(apiserver int) { require.NoError(t, c.APIServer(apiserver).Restart(t.Context())) })
	require.Empty(t, c.kept())

	c.follow()
	run("killed", func(apiserver int) {
		c.APIServer(apiserver).Kill()
		require.NoError(t, c.APIServer(apiserver).Restart(t.Context()))
	})
}
