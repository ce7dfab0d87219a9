package projector

import (
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	assert.Empty(t, b.warnings())
	assert.Equal(t, slog.LevelWarn, severity(errChanged, maxAttempts+1), "that is no traffic any more")
}

func TestAHistoryIsNotWrittenOnASecretMadeAgainMeanwhile(t *testing.T) {
	t.Parallel()
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
	require.Eventually(t, func() bool { return interfered.Load() && b.count("mintlog_projector_conflicts_total") > 0 }, patience, 10*time.Millisecond)
	b.drained()
	assert.Empty(t, a.names())
	assert.NotContains(t, b.log.String(), "first", "an answer that quotes what is stored")
}

func TestARefusedHistoryIsLoggedWithoutWhatTheAnswerQuotes(t *testing.T) {
	t.Parallel()
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

func TestALoopThatCannotReachTheAPIServerStopsAndLosesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.newAccount("postgres-orders.app")
	b.start(b.failing(func(r *http.Request) (bool, bool) {
		<-r.Context().Done() // until the loop gives up
		return true, false
	}))
	b.publish(a.operate("jane"))
	require.Eventually(t, func() bool { return len(b.loop.events.all()) == 1 }, patience, 10*time.Millisecond)
	b.stopLoop()
	b.start()
	a.eventually("jane")
}
