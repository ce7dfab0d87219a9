package file

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/ingest"
	"github.com/mintlog/mintlog/store/event"
)

// held is a Publisher that says what it is to publish, and waits to be let.
type held struct {
	*recorder
	begun chan []event.Event
	let   chan struct{}
}

func (h *held) Publish(ctx context.Context, events []event.Event) error {
	h.begun <- events
	<-h.let
	return h.recorder.Publish(ctx, events)
}

func TestWhileEventsArePublishedReadingGoesOnAndTheCheckpointStays(t *testing.T) {
	b := newBench(t)
	h := &held{b.recorder, make(chan []event.Event, 1), make(chan struct{})}
	b.options.Publisher, b.options.Poll = h, time.Hour
	all := ids("e", 0, 3000)
	b.append(lines(all)...)
	tailer, err := New(b.options)
	require.NoError(t, err)
	f := tailer.followers[0]
	step := func() {
		t.Helper()
		progressed, err := f.step(t.Context())
		require.NoError(t, err)
		require.True(t, progressed)
	}
	step() // opens the file
	step()
	first := <-h.begun
	for range 3 {
		step()
	}
	f.measure()
	require.Zero(t, tailer.offset(b.path), "nothing is acknowledged")
	require.Positive(t, f.ahead)
	require.Empty(t, h.begun, "one publication at a time")
	h.let <- struct{}{}
	<-f.underway.done
	step()
	second := <-h.begun
	require.Greater(t, len(second), 3*len(first), "what was found meanwhile goes together")
	require.Equal(t, int64(len(strings.Join(lines(all[:len(first)]), ""))), tailer.offset(b.path), "up to where the first began")

	// It is killed now: the second was not acknowledged.
	require.NoError(t, tailer.checkpoints.save())
	h.let <- struct{}{}
	<-f.underway.done
	f.close()
	b.recorder.mu.Lock()
	b.recorder.events = b.recorder.events[:len(first)]
	b.recorder.mu.Unlock()
	b.options.Publisher, b.options.Poll = b.recorder, 0
	b.start()
	b.arrive(all...)
}

func TestLinesOfOthersCostNoMemoryHoweverManyThereAre(t *testing.T) {
	b := newBench(t)
	b.options.Poll = time.Hour
	alike := strings.NewReplacer(`"verb":"create"`, `"verb":"list"`, `,"subresource":"mint"`, ``).Replace(mintLine("alike"))
	block := strings.Repeat(otherLine("other"), 99) + alike
	const chunks = 60
	b.append(strings.Repeat(block, (chunks+10)*ingest.DefaultChunk/len(block)))
	tailer, err := New(b.options)
	require.NoError(t, err)
	f := tailer.followers[0]
	defer f.close()
	step := func() {
		if progressed, err := f.step(t.Context()); err != nil || !progressed {
			t.Error("the log has ended", err)
		}
	}
	for range 3 {
		step()
	}
	f.saved = time.Now().Add(time.Hour) // the checkpoint takes some, each interval
	require.Zero(t, testing.AllocsPerRun(chunks, step), "objects a chunk")
}
