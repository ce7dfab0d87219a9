package archive

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/stream"
	"github.com/mintlog/mintlog/test/output"
)

func openStream(t testing.TB, directory string) *stream.Stream {
	t.Helper()
	s, err := stream.Open(t.Context(), stream.Options{Directory: directory, Log: output.Logger(t)})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// startArchiver runs an Archiver that settles fast. It ends with stop, or with the test.
func startArchiver(t testing.TB, o ArchiverOptions) (archiver *Archiver, stop func()) {
	t.Helper()
	o.Wait, o.Visible, o.Registerer = 100*time.Millisecond, 100*time.Millisecond, prometheus.NewRegistry()
	if o.Settle == 0 {
		o.Settle = 100 * time.Millisecond
	}
	o.Log = output.Logger(t)
	a, err := NewArchiver(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			assert.NoError(t, <-ended)
		}
	}
	t.Cleanup(stop)
	return a, stop
}

func acknowledged(a *Archiver) int { return int(testutil.ToFloat64(a.metrics.acknowledged)) }

func waitAcknowledged(t testing.TB, a *Archiver, count int) {
	t.Helper()
	require.Eventually(t, func() bool { return acknowledged(a) >= count }, 3*time.Minute, 20*time.Millisecond,
		"%d acknowledged", count)
	assert.Equal(t, count, acknowledged(a))
}

// intent is the RequestReceived of a mint, refused what became of one that was not allowed.
func intent(i int) event.Event {
	e := mintEvent(i)
	e.Stage, e.ResponseStatus, e.Annotations, e.StageTimestamp = event.RequestReceived, nil, nil, e.RequestReceivedTimestamp
	return e
}

func refused(i int) event.Event {
	e := mintEvent(i)
	e.ResponseStatus, e.Annotations = &event.ResponseStatus{Code: 403}, map[string]string{"authorization.k8s.io/decision": "forbid"}
	return e
}

func TestEventsOfAllStreamsReachTheArchiveOnceAndAreAcknowledged(t *testing.T) {
	t.Parallel()
	v, s := startVictoriaLogs(t), openStream(t, t.TempDir())
	list := append(mints(0, 1200), intent(0), intent(1), refused(2))
	require.NoError(t, s.Publish(t.Context(), list))
	a, _ := startArchiver(t, ArchiverOptions{Archive: v.archive(), Stream: s})
	waitAcknowledged(t, a, len(list))
	assert.Equal(t, len(list), v.rows())
	assert.ElementsMatch(t, identities(list), identities(query(t, v.archive(), Query{})))
}

func TestNothingIsRepeatedAfterAStopBetweenInsertAndAcknowledgement(t *testing.T) {
	t.Parallel()
	v, directory := startVictoriaLogs(t), t.TempDir()
	first, err := stream.Open(t.Context(), stream.Options{Directory: directory})
	require.NoError(t, err)
	list := mints(0, 300)
	require.NoError(t, first.Publish(t.Context(), list))
	a, stop := startArchiver(t, ArchiverOptions{Archive: v.archive(), Stream: first, Settle: time.Hour})
	require.Eventually(t, func() bool { return testutil.ToFloat64(a.metrics.inserted) == 300 }, time.Minute, 5*time.Millisecond)
	stop()
	require.NoError(t, first.Close())
	require.Zero(t, acknowledged(a))

	second := openStream(t, directory)
	more := mints(300, 310)
	require.NoError(t, second.Publish(t.Context(), more))
	b, _ := startArchiver(t, ArchiverOptions{Archive: v.archive(), Stream: second})
	waitAcknowledged(t, b, 310)
	assert.Equal(t, 10.0, testutil.ToFloat64(b.metrics.inserted))
	assert.Equal(t, 310, v.rows())
}

func TestWhatWaitsForItsConfirmationHoldsNoEvent(t *testing.T) {
	t.Parallel()
	v, s := startVictoriaLogs(t), openStream(t, t.TempDir())
	require.NoError(t, s.Publish(t.Context(), mints(0, 3)))
	a, err := NewArchiver(ArchiverOptions{Archive: v.archive(), Stream: s, Settle: time.Hour, Log: output.Logger(t)})
	require.NoError(t, err)
	f := a.newFill(stream.ArchiverEvents)
	require.NoError(t, f.step(t.Context()))
	require.Len(t, f.held, 3)
	for _, h := range f.held {
		require.Len(t, h.messages, 1)
		assert.Zero(t, h.messages[0].Event)
	}
}

func TestWhatTheArchiveHasFromElsewhereOrTheStreamHasTwiceIsNotInsertedAgain(t *testing.T) {
	t.Parallel()
	v, s := startVictoriaLogs(t), openStream(t, t.TempDir())
	list := mints(0, 20)
	require.NoError(t, insert(t, v.archive(), list[:5]))
	require.NoError(t, s.Publish(t.Context(), list))
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, s.Publish(cancelled, list), "its events are repeated under other message ids from now on")
	require.NoError(t, s.Publish(t.Context(), list))
	a, _ := startArchiver(t, ArchiverOptions{Archive: v.archive(), Stream: s, Batch: 7})
	require.Eventually(t, func() bool { return acknowledged(a) > 20 }, time.Minute, 20*time.Millisecond, "the stream has some twice")
	require.Eventually(t, func() bool { return testutil.ToFloat64(a.metrics.held.WithLabelValues("archiver-events")) == 0 }, time.Minute, 20*time.Millisecond)
	assert.Equal(t, 20, v.rows())
}

func TestWhatAReplayBringsFromAnotherPipelinesRowsIsNotInsertedAgain(t *testing.T) {
	t.Parallel()
	v, s := startVictoriaLogs(t), openStream(t, t.TempDir())
	theirs, ours := mints(0, 300), mints(300, 310)
	theirs[0].AuditID = theirs[1].AuditID // a client's choice
	theirs[2].AuditID = strings.Repeat("\x00", 9000)
	v.insertForeign(theirs...)
	require.NoError(t, insert(t, v.archive(), ours))
	v.show()
	replayed, err := v.archive().ReplayInto(t.Context(), Query{}, s.Publish, quietly)
	require.NoError(t, err)
	require.Equal(t, 310, replayed.Published)
	elsewhere := mintEvent(311) // out of another archive, into this one
	elsewhere.Source = sourceArchive
	first := mintEvent(312) // came by the stream too, and is kept in our shape as well
	v.insertForeign(first)
	require.NoError(t, s.Publish(t.Context(), []event.Event{elsewhere, first}))
	a, _ := startArchiver(t, ArchiverOptions{Archive: v.archive(), Stream: s})
	waitAcknowledged(t, a, 312)
	assert.Equal(t, 310+1+2+1, v.rows(), "one more for the event whose audit id is too long to ask for")
}

func TestEventsWaitWhileVictoriaLogsIsDownAndItsCrashLosesNone(t *testing.T) {
	t.Parallel()
	v, s := startVictoriaLogs(t), openStream(t, t.TempDir())
	a, _ := startArchiver(t, ArchiverOptions{Archive: New(v.URL, nil), Stream: s, Settle: defaultSettle + 9*time.Second})
	list := mints(0, 400)
	require.NoError(t, s.Publish(t.Context(), list[:200]))
	require.Eventually(t, func() bool {
		present, err := v.archive().present(t.Context(), references(list[:200]))
		return assert.NoError(t, err) && len(present) == 200
	}, time.Minute, 5*time.Millisecond)
	time.Sleep(time.Second) // an archiver that believes what is shown at once would have acknowledged by now
	v.Kill()                // what it shows is in its memory only
	require.NoError(t, s.Publish(t.Context(), list[200:]))
	require.Eventually(t, func() bool { return testutil.ToFloat64(a.metrics.errors) >= 2 }, time.Minute, 50*time.Millisecond)
	assert.Zero(t, acknowledged(a))
	require.NoError(t, v.Restart(t.Context()))
	waitAcknowledged(t, a, 400)
	assert.Less(t, testutil.ToFloat64(a.metrics.errors), 60.0, "it did not hammer on a server that was down")
	assert.ElementsMatch(t, identities(list), identities(query(t, v.archive(), Query{})))
	assert.Equal(t, 400, v.rows())
}

func TestAnEventOutsideTheRetentionIsSetAsideAndTheRestProceeds(t *testing.T) {
	t.Parallel()
	v, s := startVictoriaLogs(t, "-retentionPeriod=3d"), openStream(t, t.TempDir())
	list := mints(0, 4)
	list[1].RequestReceivedTimestamp = time.Now().Add(-100 * 24 * time.Hour)
	list[2].RequestReceivedTimestamp = time.Now().Add(100 * 24 * time.Hour)
	require.NoError(t, s.Publish(t.Context(), list))
	a, _ := startArchiver(t, ArchiverOptions{Archive: v.archive(), Stream: s})
	waitAcknowledged(t, a, 2)
	assert.Equal(t, 2.0, testutil.ToFloat64(a.metrics.setAside.WithLabelValues(reasonRetention)))
	assert.Equal(t, 2, v.rows())
	left, err := s.Fetch(t.Context(), stream.ArchiverEvents, 10, time.Second)
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestAnEventTooLongForTheArchiveIsSetAsideAndTheRestProceeds(t *testing.T) {
	t.Parallel()
	v, s := startVictoriaLogs(t), openStream(t, t.TempDir())
	list := mints(0, 3)
	list[1].AuditID = strings.Repeat("x", 300<<10)
	require.NoError(t, s.Publish(t.Context(), list))
	a, _ := startArchiver(t, ArchiverOptions{Archive: v.archive(), Stream: s})
	waitAcknowledged(t, a, 2)
	assert.Equal(t, 1.0, testutil.ToFloat64(a.metrics.setAside.WithLabelValues(reasonTooLong)))
}

// between stands between an archiver and VictoriaLogs and does to its inserts what the test wants.
func between(t testing.TB, v *victoriaLogs, insert func(w http.ResponseWriter, r *http.Request, pass http.Handler)) *Archive {
	t.Helper()
	target, err := url.Parse(v.URL)
	require.NoError(t, err)
	pass := httputil.NewSingleHostReverseProxy(target)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/insert/"):
			insert(w, r, pass)
		case r.URL.Path == "/metrics":
			w.WriteHeader(http.StatusForbidden)
		default:
			pass.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return New(server.URL, &http.Client{Transport: flushing{}})
}

func TestAnEventThatIsDroppedWithAnAnswerOfSuccessIsTriedAgainUntilItIsThere(t *testing.T) {
	t.Parallel()
	v, s := startVictoriaLogs(t), openStream(t, t.TempDir())
	var inserts atomic.Int32
	archive := between(t, v, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if inserts.Add(1) > 1 {
			pass.ServeHTTP(w, r)
		}
	})
	require.NoError(t, s.Publish(t.Context(), mints(0, 1))) // of more than one some could be fetched, and inserted, later
	a, _ := startArchiver(t, ArchiverOptions{Archive: archive, Stream: s})
	waitAcknowledged(t, a, 1)
	assert.Equal(t, 1.0, testutil.ToFloat64(a.metrics.unconfirmed))
	assert.Len(t, query(t, v.archive(), Query{}), 1)
}

func TestAnEventThatNeverArrivesIsSetAsideAfterItsTriesAndTheRestProceeds(t *testing.T) {
	t.Parallel()
	v, s := startVictoriaLogs(t, "-retentionPeriod=3d"), openStream(t, t.TempDir())
	archive := between(t, v, func(w http.ResponseWriter, r *http.Request, pass http.Handler) { pass.ServeHTTP(w, r) })
	list := mints(0, 3)
	list[1].RequestReceivedTimestamp = time.Now().Add(-100 * 24 * time.Hour) // VictoriaLogs drops it, and does not say what it retains
	require.NoError(t, s.Publish(t.Context(), list))
	a, _ := startArchiver(t, ArchiverOptions{Archive: archive, Stream: s, Tries: 2})
	next := 3
	require.Eventually(t, func() bool { // others go on arriving
		next++
		return assert.NoError(t, s.Publish(t.Context(), mints(next-1, next))) &&
			testutil.ToFloat64(a.metrics.setAside.WithLabelValues(reasonUnconfirmed)) == 1
	}, time.Minute, 100*time.Millisecond)
	waitAcknowledged(t, a, next-1)
	// More where it was read back alone at times, which says nothing of it.
	assert.GreaterOrEqual(t, testutil.ToFloat64(a.metrics.unconfirmed), 2.0)
}

func TestAnInsertWhoseAnswerWasLostIsNotRepeated(t *testing.T) {
	t.Parallel()
	v, s := startVictoriaLogs(t), openStream(t, t.TempDir())
	var inserts atomic.Int32
	archive := between(t, v, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if inserts.Add(1) > 1 {
			pass.ServeHTTP(w, r)
			return
		}
		pass.ServeHTTP(httptest.NewRecorder(), r)
		w.WriteHeader(http.StatusBadGateway)
	})
	require.NoError(t, s.Publish(t.Context(), mints(0, 1))) // of more than one some could be fetched, and inserted, later
	a, _ := startArchiver(t, ArchiverOptions{Archive: archive, Stream: s})
	waitAcknowledged(t, a, 1)
	assert.Equal(t, int32(1), inserts.Load())
	assert.Equal(t, 1, v.rows())
}

func TestWhileNothingIsFoundTheArchiveIsAtFaultAndNoEventIsSetAside(t *testing.T) {
	t.Parallel()
	v, s := startVictoriaLogs(t), openStream(t, t.TempDir())
	var dropping atomic.Bool
	dropping.Store(true)
	archive := between(t, v, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if !dropping.Load() {
			pass.ServeHTTP(w, r)
		}
	})
	require.NoError(t, s.Publish(t.Context(), mints(0, 3)))
	a, _ := startArchiver(t, ArchiverOptions{Archive: archive, Stream: s, Tries: 1})
	require.Eventually(t, func() bool { return testutil.ToFloat64(a.metrics.unconfirmed) >= 6 }, time.Minute, 20*time.Millisecond)
	assert.Zero(t, testutil.ToFloat64(a.metrics.setAside.WithLabelValues(reasonUnconfirmed)))
	dropping.Store(false)
	waitAcknowledged(t, a, 3)
}

func TestTheMissesOfEventsThatNeverComeBackAreForgotten(t *testing.T) {
	a, err := NewArchiver(ArchiverOptions{Log: output.Logger(t)})
	require.NoError(t, err)
	f := a.newFill(stream.ArchiverAttempts)
	for i := range maxMissed + 100 {
		f.missing(strconv.Itoa(i), &held{}, true)
	}
	require.Len(t, f.missed, maxMissed)
	for range defaultTries {
		f.missing("another", &held{}, true)
	}
	assert.Equal(t, 1.0, testutil.ToFloat64(a.metrics.setAside.WithLabelValues(reasonUnconfirmed)), "one that comes again is counted as ever")
	assert.Len(t, f.missed, maxMissed-1)
}

func TestBackoffGrowsToItsBoundAndVaries(t *testing.T) {
	for failures := 1; failures < 100; failures++ {
		d := backoff(failures)
		assert.Positive(t, d)
		assert.LessOrEqual(t, d, maxBackoff)
	}
	assert.GreaterOrEqual(t, backoff(50), maxBackoff/2)
	seen := map[time.Duration]bool{}
	for range 20 {
		seen[backoff(5)] = true
	}
	assert.Greater(t, len(seen), 1)
}
