package archive

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/event"
)

func quietly(Replayed) {}

func TestTheArchiveIsReplayedInBoundedBatchesEachEventOnce(t *testing.T) {
	t.Parallel()
	v := startVictoriaLogs(t)
	list := mints(0, 2*replayBatch+1)
	require.NoError(t, insert(t, v.archive(), list))
	require.NoError(t, insert(t, v.archive(), append(list[:100:100], refused(1), intent(1))))
	v.insertForeign(list[:100]...)
	var got []event.Event
	var told []int
	replayed, err := v.archive().ReplayInto(t.Context(), Query{}, func(_ context.Context, batch []event.Event) error {
		assert.LessOrEqual(t, len(batch), replayBatch)
		got = append(got, batch...)
		return nil
	}, func(r Replayed) { told = append(told, r.Published+r.Refused) })
	require.NoError(t, err)
	assert.Equal(t, Replayed{Published: len(list) + 1, Refused: 1, Reached: list[0].RequestReceivedTimestamp}, replayed)
	assert.ElementsMatch(t, identities(append(list, intent(1))), identities(got))
	for _, e := range got {
		assert.Equal(t, "archive", e.Source)
	}
	assert.Equal(t, []int{replayBatch, 2 * replayBatch, len(list) + 2}, told)
}

func TestAReplayThatIsCutShortSaysWhereItIsToContinue(t *testing.T) {
	t.Parallel()
	v := startVictoriaLogs(t)
	list := mints(0, 2*replayBatch+200)
	require.NoError(t, insert(t, v.archive(), list))
	v.show()
	full := errors.New("full")
	got := map[string]bool{}
	publish := func(_ context.Context, batch []event.Event) error {
		if len(got) == replayBatch {
			return full
		}
		for _, e := range batch {
			got[e.Identity()] = true
		}
		return nil
	}
	replayed, err := v.archive().ReplayInto(t.Context(), Query{}, publish, quietly)
	require.ErrorIs(t, err, full)
	assert.Equal(t, Replayed{Published: replayBatch, Reached: list[len(list)-replayBatch].RequestReceivedTimestamp}, replayed)

	delete(got, list[len(list)-1].Identity()) // not to be full again
	replayed, err = v.archive().ReplayInto(t.Context(), Query{End: replayed.Reached.Add(time.Microsecond)}, publish, quietly)
	require.NoError(t, err)
	assert.Equal(t, len(list)-replayBatch+1, replayed.Published, "and the event at which it ended")
	assert.Len(t, got, len(list)-1)

	replayed, err = v.archive().ReplayInto(t.Context(), Query{End: epoch.Add(-time.Hour)}, publish, quietly)
	require.NoError(t, err)
	assert.Equal(t, Replayed{}, replayed)
}

func TestAReplayOutlivesAnArchiveThatFailsForAWhileAndNoQueryThatIsWrong(t *testing.T) {
	t.Parallel()
	v := startVictoriaLogs(t)
	require.NoError(t, insert(t, v.archive(), mints(0, 450)))
	v.show()
	target, err := url.Parse(v.URL)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	var asked atomic.Int64
	status := http.StatusServiceUnavailable
	flaky := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1)%2 == 0 {
			w.WriteHeader(status)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	defer flaky.Close()
	count := 0
	publish := func(_ context.Context, batch []event.Event) error { count += len(batch); return nil }
	_, err = New(flaky.URL, nil).ReplayInto(t.Context(), Query{}, publish, quietly)
	require.NoError(t, err)
	assert.Equal(t, 450, count)
	assert.GreaterOrEqual(t, asked.Load(), int64(5))

	status = http.StatusBadRequest
	asked.Store(1)
	_, err = New(flaky.URL, nil).ReplayInto(t.Context(), Query{}, publish, quietly)
	require.Error(t, err)
	assert.EqualValues(t, 2, asked.Load())
}

func TestAReplayAsksALoginPageOnce(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "text/html")
	}))
	defer server.Close()
	_, err := New(server.URL, nil).ReplayInto(t.Context(), Query{}, func(context.Context, []event.Event) error { return nil }, quietly)
	require.ErrorContains(t, err, "answered 200 (text/html)")
	assert.Equal(t, int32(1), asked.Load())
}

func TestWhatTheReplayOfARowOfAnotherPipelineBringsIsTheSameEvent(t *testing.T) {
	t.Parallel()
	v := startVictoriaLogs(t)
	list := mints(0, 1000) // whose microseconds no floating-point number has exactly
	for i := range list {
		list[i].RequestReceivedTimestamp = list[i].RequestReceivedTimestamp.Add(time.Duration(i*37%1000) * time.Microsecond)
	}
	v.insertForeign(list...)
	var got []event.Event
	_, err := v.archive().ReplayInto(t.Context(), Query{}, func(_ context.Context, batch []event.Event) error {
		got = append(got, batch...)
		return nil
	}, quietly)
	require.NoError(t, err)
	assert.ElementsMatch(t, identities(list), identities(got))
}

func TestOtherPipelinesAreAWitnessWhereTheyWereNeverSilentForTooLong(t *testing.T) {
	t.Parallel()
	v := startVictoriaLogs(t)
	at := func(minute int) event.Event {
		e := mintEvent(0)
		e.AuditID, e.Verb = time.Duration(minute).String(), "get" // of anything: what is ours is rare
		e.RequestReceivedTimestamp = epoch.Add(time.Duration(minute) * time.Minute)
		return e
	}
	var theirs []event.Event
	for minute := -30; minute <= 30; minute++ {
		if minute < 10 || minute > 15 {
			theirs = append(theirs, at(minute))
		}
	}
	v.insertForeign(theirs...)
	var ours []event.Event
	for minute := -60; minute < 60; minute++ {
		ours = append(ours, at(minute))
	}
	require.NoError(t, insert(t, v.archive(), ours))
	v.show()
	f := func(complete bool, from, until int, silence time.Duration) Witness {
		t.Helper()
		w, err := v.archive().Witness(t.Context(), at(from).RequestReceivedTimestamp, at(until).RequestReceivedTimestamp, silence, "")
		require.NoError(t, err)
		assert.Equal(t, complete, w.Complete(), w)
		return w
	}
	f(true, -20, 5, time.Minute)
	f(false, -20, 5, 59*time.Second)
	w := f(false, 0, 20, time.Minute)
	assert.Equal(t, at(9).RequestReceivedTimestamp, w.SilentFrom)
	assert.Equal(t, at(16).RequestReceivedTimestamp, w.SilentUntil)
	f(true, 0, 20, 7*time.Minute)
	f(true, -30, -20, time.Minute)
	f(false, -32, -20, time.Minute) // nothing of theirs just before
	f(false, 20, 32, time.Minute)   // nor just after
	w = f(false, -50, -40, time.Minute)
	assert.Zero(t, w.Rows, "what is ours proves nothing")
	f(true, 5, 5, time.Minute)
	f(false, 12, 12, time.Minute)
}

func TestAWitnessIsSoughtThroughDays(t *testing.T) {
	t.Parallel()
	v := startVictoriaLogs(t, "-retentionPeriod=30d")
	var theirs []event.Event
	for hour := range 100 {
		e := mintEvent(hour)
		e.RequestReceivedTimestamp = epoch.Add(-time.Duration(hour) * time.Hour)
		theirs = append(theirs, e)
	}
	v.insertForeign(theirs...)
	w, err := v.archive().Witness(t.Context(), epoch.Add(-98*time.Hour), epoch.Add(-time.Hour), time.Hour, "")
	require.NoError(t, err)
	assert.True(t, w.Complete(), w)
	assert.Equal(t, 99, w.Rows, "not the one at the very end")
}
