package file

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/stream"
	"github.com/mintlog/mintlog/test/natsserver"
)

// startStream opens a stream on a NATS server that takes messages of at most maxPayload bytes.
func startStream(t *testing.T, maxPayload int32) *stream.Stream {
	t.Helper()
	options := natsserver.Options(t)
	options.MaxPayload = maxPayload
	nats := natsserver.Run(t, options)
	s, err := stream.Open(t.Context(), stream.Options{URL: nats.ClientURL(), MaxBytes: 64 << 20, EvidenceBytes: 64 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestAnEventThatTheStreamNeverTakesDoesNotHoldBackTheRest(t *testing.T) {
	b := newBench(t)
	s := startStream(t, 4<<10)
	b.options.Publisher = s
	large := func(id string) string { return longLine(id, 6<<10) }
	b.append(large("never"), mintLine("a"), large("never2"), large("never3"), mintLine("b"), mintLine("c"), large("never4"))
	b.start()
	b.read()
	b.append(large("never5"))
	b.read()
	b.append(mintLine("d"))
	b.read()
	b.halt()

	messages, err := s.Fetch(t.Context(), stream.ProjectorEvents, 4, time.Minute)
	require.NoError(t, err)
	more, err := s.Fetch(t.Context(), stream.ProjectorEvents, 1, 300*time.Millisecond)
	require.NoError(t, err)
	require.Empty(t, more)
	var got []string
	for _, m := range messages {
		got = append(got, m.Event.AuditID)
	}
	require.Equal(t, []string{"a", "b", "c", "d"}, got)
	require.Greater(t, b.dropped(tooLarge), float64(5*6<<10))
	require.Contains(t, b.log.String(), "reason=too_large")
	require.NotContains(t, b.log.String(), "aaaa")
}
