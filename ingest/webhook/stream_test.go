package webhook

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/stream"
	"github.com/mintlog/mintlog/test/natsserver"
)

// openStream opens a small stream, which is closed behind the receiver that is started after it.
func openStream(t *testing.T, o stream.Options) *stream.Stream {
	t.Helper()
	o.MaxBytes, o.EvidenceBytes = 64<<20, 64<<20
	s, err := stream.Open(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// stored are the audit ids and sources of the events in the stream, which is waited for to have so many, and what more
// there is.
func stored(t *testing.T, s *stream.Stream, n int) (list []string) {
	t.Helper()
	messages, err := s.Fetch(t.Context(), stream.ProjectorEvents, n, time.Minute)
	require.NoError(t, err)
	more, err := s.Fetch(t.Context(), stream.ProjectorEvents, 100, 300*time.Millisecond)
	require.NoError(t, err)
	for _, m := range append(messages, more...) {
		list = append(list, m.Event.AuditID+" "+m.Event.Source)
	}
	return list
}

func TestBatchesDeliveredAgainAndOutOfOrderGiveEachEventOnce(t *testing.T) {
	b := newBench(t)
	s := openStream(t, stream.Options{Directory: t.TempDir()})
	b.options.Publisher = s
	b.start()
	first, second := list(mintItem("1"), otherItem, mintItem("2")), list(mintItem("3"), mintItem("1"))
	for _, body := range []string{second, first, first, second} {
		require.Equal(t, 200, b.post(body).status)
	}
	a, err := b.send(b.client, http.MethodPost, "/audit/cp-2", "gzip", zipped(first)) // the same from elsewhere
	require.NoError(t, err)
	require.Equal(t, 200, a.status)
	require.Equal(t, []string{"3 webhook:cp-1", "1 webhook:cp-1", "2 webhook:cp-1"}, stored(t, s, 3))
}

// TestTheSameAuditIDOnTwoMintsIsTwoEvents is kubernetes#101597.
func TestTheSameAuditIDOnTwoMintsIsTwoEvents(t *testing.T) {
	b := newBench(t)
	s := openStream(t, stream.Options{Directory: t.TempDir()})
	b.options.Publisher = s
	b.start()
	later := strings.ReplaceAll(mintItem("same"), "10:00:00", "10:00:01")
	require.Equal(t, 200, b.post(list(mintItem("same"), later)).status)
	require.Len(t, stored(t, s, 2), 2)
}

func TestAClosedStreamGives503(t *testing.T) {
	b := newBench(t)
	s := openStream(t, stream.Options{Directory: t.TempDir()})
	b.options.Publisher = s
	b.start()
	require.Equal(t, 200, b.post(list(mintItem("1"))).status)
	require.NoError(t, s.Close())
	a := b.post(list(mintItem("2")))
	require.Equal(t, 503, a.status)
	require.Equal(t, "5", a.retryAfter)
}

func TestWhileTheStreamsServerIsGoneCallersAreToldToComeAgainAndNothingIsLost(t *testing.T) {
	b := newBench(t)
	o := natsserver.Options(t)
	nats := natsserver.Run(t, o)
	s := openStream(t, stream.Options{URL: nats.ClientURL()})
	b.options.Publisher = s
	b.start()
	require.Equal(t, 200, b.post(list(mintItem("before"))).status)
	nats.Shutdown()
	nats.WaitForShutdown()
	batches := []string{list(mintItem("1"), mintItem("2")), list(otherItem), list(mintItem("3"))}
	for i, want := range []int{503, 200, 503} { // in a batch without ours nothing is to be published
		a := b.post(batches[i])
		require.Equal(t, want, a.status)
		require.Equal(t, want == 503, a.retryAfter == "5")
	}
	require.Equal(t, 0.0, testutil.ToFloat64(b.receiver.metrics.inFlight))

	natsserver.Run(t, o)
	for _, batch := range batches {
		require.Eventually(t, func() bool { return b.post(batch).status == 200 }, 3*time.Minute, 100*time.Millisecond) // one post may take a minute
	}
	require.ElementsMatch(t, []string{"before webhook:cp-1", "1 webhook:cp-1", "2 webhook:cp-1", "3 webhook:cp-1"}, stored(t, s, 4))
}

func TestAnEventThatTheStreamNeverTakesIsSetAsideAndTheRestIsPublished(t *testing.T) {
	b := newBench(t)
	o := natsserver.Options(t)
	o.MaxPayload = 4 << 10
	nats := natsserver.Run(t, o)
	s := openStream(t, stream.Options{URL: nats.ClientURL()})
	b.options.Publisher = s
	b.start()
	large := strings.Replace(mintItem("never"), "/mint\"", "/mint?x="+strings.Repeat("y", 6<<10)+"\"", 1)
	require.Equal(t, 200, b.post(list(large, mintItem("1"), large, mintItem("2"), large)).status)
	require.Equal(t, []string{"1 webhook:cp-1", "2 webhook:cp-1"}, stored(t, s, 2))
	require.Equal(t, 3.0, b.setAside(tooLarge))
	kept := b.kept()[tooLarge]
	require.Len(t, kept, 1)
	require.Contains(t, kept[0], `"auditID":"never"`)
}
