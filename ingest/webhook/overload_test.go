package webhook

import (
	"context"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/event"
)

// hold has publications wait, and returns what lets them go.
func (b *bench) hold(callers int) (release func()) {
	b.published.block, b.published.began = make(chan struct{}), make(chan struct{}, callers)
	return sync.OnceFunc(func() { close(b.published.block) })
}

// TestASlowStreamCostsCallersABoundedTime is kubernetes#85489.
func TestASlowStreamCostsCallersABoundedTime(t *testing.T) {
	b := newBench(t)
	b.options.InFlight, b.options.Wait, b.options.PublishTimeout = 2, 10*time.Millisecond, 3*time.Second
	const callers = 100
	defer b.hold(callers)()
	b.start()
	body := list(mintItem("1"), strings.Repeat("7", 1<<20))
	var answers sync.Map
	var group sync.WaitGroup
	for i := range callers {
		group.Go(func() {
			a, err := b.send(b.client, http.MethodPost, "/audit/cp-1", "", []byte(body))
			assert.NoError(t, err)
			assert.Contains(t, []int{429, 503}, a.status)
			assert.Equal(t, "5", a.retryAfter)
			answers.Store(i, a.status)
		})
	}
	group.Wait() // for ever, if one waited for the stream
	require.Equal(t, float64(callers), b.rejected(overloaded)+b.rejected(unpublished))
	require.GreaterOrEqual(t, b.rejected(unpublished), 2.0)
	require.Greater(t, b.rejected(overloaded), b.rejected(unpublished))
	require.Equal(t, 0.0, testutil.ToFloat64(b.receiver.metrics.inFlight))
}

func TestNoMoreBodiesAreReadAtATimeThanMayBe(t *testing.T) {
	b := newBench(t)
	b.options.InFlight, b.options.Wait, b.options.PublishTimeout = 3, time.Minute, time.Minute
	const callers = 20
	release := b.hold(callers)
	defer release()
	b.start()
	body := list(mintItem("1"), strings.Repeat(" ", 1<<20)+"7")
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			a, err := b.send(b.client, http.MethodPost, "/audit/cp-1", "", []byte(body))
			assert.NoError(t, err)
			assert.Equal(t, 200, a.status)
		})
	}
	for range 3 {
		<-b.published.began
	}
	require.Never(t, func() bool { return len(b.published.began) > 0 }, 100*time.Millisecond, 10*time.Millisecond)
	require.Equal(t, 3.0, testutil.ToFloat64(b.receiver.metrics.inFlight))
	require.Equal(t, float64(3*len(body)), testutil.ToFloat64(b.receiver.metrics.bodyBytes))
	release()
	group.Wait()
	require.Len(t, b.published.ids(), callers)
}

func TestMemoryDoesNotGrowWithABody(t *testing.T) {
	b := newBench(t)
	b.start()
	item := strings.Replace(mintItem("1"), `"level"`, `"responseObject":{"x":"`+strings.Repeat("y", 1<<10)+`"},"level"`, 1)
	body := zipped(list(strings.Split(strings.Repeat(item+"\x00", 30<<20/len(item))+otherItem, "\x00")...))
	peak := uint64(0)
	b.options.Publisher = nil
	b.receiver.options.Publisher = publishFunc(func(context.Context, []event.Event) error {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		peak = max(peak, m.HeapAlloc)
		return nil
	})
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	a, err := b.send(b.client, http.MethodPost, "/audit/cp-1", "gzip", body)
	require.NoError(t, err)
	require.Equal(t, 200, a.status)
	require.NotZero(t, peak)
	require.Less(t, peak, before.HeapAlloc+(12<<20), "a 30 MB body may not be held as a whole")
}

// TestMemoryIsBoundedWhileTheStreamHangs has many callers with many events of ours each, of which none can be published.
func TestMemoryIsBoundedWhileTheStreamHangs(t *testing.T) {
	b := newBench(t)
	b.options.InFlight, b.options.Wait, b.options.PublishTimeout = 8, 10*time.Millisecond, 300*time.Millisecond
	b.start()
	body := zipped(list(strings.Split(strings.Repeat(mintItem("1")+"\x00", 20<<20/len(mintItem("1")))+mintItem("2"), "\x00")...))
	var peak atomic.Uint64
	b.receiver.options.Publisher = publishFunc(func(ctx context.Context, _ []event.Event) error {
		<-ctx.Done()
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		for seen := peak.Load(); m.HeapAlloc > seen && !peak.CompareAndSwap(seen, m.HeapAlloc); seen = peak.Load() {
		}
		return ctx.Err()
	})
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	var group sync.WaitGroup
	for range 60 {
		group.Go(func() {
			a, err := b.send(b.client, http.MethodPost, "/audit/cp-1", "gzip", body)
			assert.NoError(t, err)
			assert.Contains(t, []int{429, 503}, a.status)
			assert.Equal(t, "5", a.retryAfter)
		})
	}
	group.Wait()
	require.NotZero(t, peak.Load())
	require.Less(t, peak.Load(), before.HeapAlloc+(64<<20), "sixty bodies are 1.2 GB")
}
