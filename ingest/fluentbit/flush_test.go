package fluentbit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/ingest/fluentbit/fluentbittest"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/stream"
)

// publisher records what it is given. Its answers are those of fail.
type publisher struct {
	fail  func(call int, events []event.Event) error
	calls int
	got   []event.Event
}

func (p *publisher) Publish(_ context.Context, events []event.Event) error {
	p.calls++
	if p.fail != nil {
		if err := p.fail(p.calls, events); err != nil {
			return err
		}
	}
	p.got = append(p.got, events...)
	return nil
}

func output(t testing.TB, p *publisher) (*Output, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	o, err := New(Options{
		Name: "node-1", TagPrefix: "audit.", Publisher: p,
		Log: slog.New(slog.NewTextHandler(&log, nil)), Registerer: prometheus.NewRegistry(),
	})
	require.NoError(t, err)
	return o, &log
}

// mints is a chunk of n requests, each of its own audit id.
func mints(t testing.TB, n int) []byte {
	t.Helper()
	var chunk []byte
	for i := range n {
		line := strings.Replace(mint, "6f7f9c66-16d5-4c4b-8b43-7cf2a5f0a1de", fmt.Sprintf("audit-%d", i), 1)
		chunk = append(chunk, record(t, line, fluentbittest.Lifted, fluentbittest.V2)...)
	}
	return chunk
}

func TestAChunkIsDoneWithWhenItsEventsArePublished(t *testing.T) {
	p := &publisher{}
	o, _ := output(t, p)
	chunk := append(mints(t, 3), record(t, other, fluentbittest.Lifted, fluentbittest.V2)...)
	require.NoError(t, o.Flush(t.Context(), "audit.x", chunk))
	require.Len(t, p.got, 3)
	assert.Equal(t, "fluentbit:node-1", p.got[0].Source)
	assert.InDelta(t, 1, testutil.ToFloat64(o.metrics.chunks), 0)
	assert.InDelta(t, 4, testutil.ToFloat64(o.metrics.records), 0)
	assert.InDelta(t, 3, testutil.ToFloat64(o.metrics.matched), 0)
	assert.InDelta(t, 3, testutil.ToFloat64(o.metrics.published), 0)
}

func TestAChunkWithoutEventsOfOursNeedsNoStream(t *testing.T) {
	p := &publisher{fail: func(int, []event.Event) error { return errors.New("down") }}
	o, _ := output(t, p)
	require.NoError(t, o.Flush(t.Context(), "audit.x", record(t, other, fluentbittest.Lifted, fluentbittest.V2)))
	require.NoError(t, o.Flush(t.Context(), "audit.x", nil))
	assert.Zero(t, p.calls)
}

func TestAChunkThatCannotBePublishedIsHandedBackAndGivesTheSameEventsAgain(t *testing.T) {
	p := &publisher{fail: func(call int, _ []event.Event) error {
		if call == 2 || call == 4 {
			return errors.New("down")
		}
		return nil
	}}
	o, log := output(t, p)
	chunk := append(mints(t, 2*maxEvents+10), 0xc1)
	require.Error(t, o.Flush(t.Context(), "audit.x", chunk))
	require.Error(t, o.Flush(t.Context(), "audit.x", chunk))
	require.NoError(t, o.Flush(t.Context(), "audit.x", chunk))
	distinct := map[string]bool{}
	for i := range p.got {
		distinct[p.got[i].Identity()] = true
	}
	assert.Len(t, distinct, 2*maxEvents+10)
	assert.Len(t, p.got, 2*maxEvents+2*maxEvents+10, "the first piece came three times")
	assert.InDelta(t, 2, testutil.ToFloat64(o.metrics.retried), 0)
	assert.InDelta(t, 1, testutil.ToFloat64(o.metrics.unused.WithLabelValues(unreadable)), 0, "a loss is counted when it is one")
	assert.Equal(t, 1, strings.Count(log.String(), "cannot be published"))
	assert.Equal(t, 1, strings.Count(log.String(), "published again"))
}

func TestAnEventThatNoStreamTakesHoldsUpNoOther(t *testing.T) {
	p := &publisher{fail: func(_ int, events []event.Event) error {
		for i := range events {
			if events[i].AuditID == "audit-1" {
				return fmt.Errorf("publish: %w", &stream.TooLargeError{Index: i, Identity: "x", Size: 5, Limit: 4})
			}
		}
		return nil
	}}
	o, _ := output(t, p)
	require.NoError(t, o.Flush(t.Context(), "audit.x", mints(t, 3)))
	assert.Len(t, p.got, 2)
	assert.InDelta(t, 1, testutil.ToFloat64(o.metrics.unused.WithLabelValues(tooLarge)), 0)
}

func TestWhatCannotBeUsedIsCountedAndNeverQuoted(t *testing.T) {
	p := &publisher{}
	o, log := output(t, p)
	var chunk []byte
	for range 10 {
		chunk = append(chunk, edited(t, mint, func(m map[string]any) { m["user"] = "hunter2" })...)
	}
	require.NoError(t, o.Flush(t.Context(), "audit.x", chunk))
	assert.InDelta(t, 10, testutil.ToFloat64(o.metrics.unused.WithLabelValues("malformed")), 0)
	assert.InDelta(t, len(chunk), testutil.ToFloat64(o.metrics.unusedBytes.WithLabelValues("malformed")), 0)
	assert.NotContains(t, log.String(), "hunter2")
	assert.Equal(t, maxDetails+1, strings.Count(log.String(), "\n"), log.String())
}

// Anybody who runs a container can make it print audit events.
func TestTheOutputOfContainersIsNotLookedAt(t *testing.T) {
	p := &publisher{}
	o, log := output(t, p)
	for range 2 {
		require.NoError(t, o.Flush(t.Context(), "kubernetes.var.log.containers.audit.log", mints(t, 1)))
	}
	assert.Empty(t, p.got)
	assert.InDelta(t, 2, testutil.ToFloat64(o.metrics.foreign), 0)
	assert.Equal(t, 1, strings.Count(log.String(), "correct the output's match"), "said once")
}

func TestSeveralOutputsOfOneProcessCountEachForItself(t *testing.T) {
	registry := prometheus.NewRegistry()
	for _, name := range []string{"a", "b"} {
		_, err := New(Options{Name: name, TagPrefix: "audit.", Publisher: &publisher{}, Log: slog.Default(),
			Registerer: prometheus.WrapRegistererWith(prometheus.Labels{"output": name}, registry)})
		require.NoError(t, err)
	}
	_, err := New(Options{Name: "a"})
	assert.Error(t, err)
}
