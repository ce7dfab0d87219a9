package stream

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkPublishAndConsume is the time from the publish of one event, synced to disk, to its consumer.
func BenchmarkPublishAndConsume(b *testing.B) {
	s := open(b, Options{Directory: b.TempDir()})
	got := consumeAll(b, s, ProjectorEvents)
	i := 0
	for b.Loop() {
		require.NoError(b, s.Publish(context.Background(), mints(i, i+1)))
		receive(b, got)
		i++
	}
}

// BenchmarkPublish500 is the time to publish 500 events in one call, synced to disk.
func BenchmarkPublish500(b *testing.B) {
	s := open(b, Options{Directory: b.TempDir()})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, consumer := range []Consumer{ProjectorEvents, ArchiverEvents} { // so that the stream stays empty
		go func() { _ = s.Consume(ctx, consumer, func(m *Message) { _ = m.Ack() }) }()
	}
	i := 0
	start := time.Now()
	for b.Loop() {
		require.NoError(b, s.Publish(context.Background(), mints(i, i+500)))
		i += 500
	}
	b.ReportMetric(float64(i)/time.Since(start).Seconds(), "events/s")
}
