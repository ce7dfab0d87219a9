package file

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/stream"
)

// While what was found is being published reading goes on, so that each waits little for the other: until so many events
// are together, or lines of so many bytes with such, or so much has been read.
const (
	aheadEvents = 1024
	aheadLines  = 2 << 20
	aheadBytes  = 16 << 20
)

// A batch is what was found.
type batch struct {
	events []event.Event
	bytes  int // of their lines
}

// A publication is what is being published. But for done its fields belong to who publishes until done is closed.
type publication struct {
	events   []event.Event
	behind   *state // how far the log had been read when it began; nil if that is no place to go on from
	tooLarge []tooLargeEvent
	stored   bool
	done     chan struct{}
}

// A tooLargeEvent is one that the stream never takes.
type tooLargeEvent struct {
	event event.Event
	err   *stream.TooLargeError
}

// readsAhead has what was found be published meanwhile, and reports whether reading may go on.
func (f *follower) readsAhead(ctx context.Context) bool {
	if f.underway != nil && f.underway.over() && !f.land(ctx) {
		return false
	}
	if f.underway == nil {
		f.launch(ctx)
	}
	return f.underway != nil && len(f.batch.events) < aheadEvents && f.batch.bytes < aheadLines && f.ahead < aheadBytes
}

func (p *publication) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// launch has the batch be published; no publication is under way.
func (f *follower) launch(ctx context.Context) {
	if len(f.batch.events) == 0 {
		f.batch.bytes = 0
		return
	}
	f.counters.matched.Add(float64(len(f.batch.events)))
	p := &publication{events: f.batch.events, done: make(chan struct{})}
	f.batch = batch{}
	if f.loss == nil && !f.current.late {
		s := f.state()
		p.behind = &s
	}
	f.underway = p
	go func() {
		defer close(p.done)
		p.stored = f.publish(ctx, p)
	}()
}

// land waits for the publication under way, and moves the checkpoint behind it. It reports false, from then on, when ctx
// ended before all was stored.
func (f *follower) land(ctx context.Context) bool {
	p := f.underway
	if p == nil {
		return true
	}
	<-p.done
	if !p.stored {
		return false
	}
	for _, large := range p.tooLarge {
		f.withhold(large.event, large.err.Size)
		f.drop(f.current.scanner.Offset(), large.err.Size, tooLarge, large.err)
	}
	p.tooLarge = nil
	if !f.recordGaps(ctx) {
		return false
	}
	f.underway = nil
	f.counters.published.Add(float64(len(p.events)))
	f.backlog.events += len(p.events)
	if p.behind != nil {
		f.tailer.checkpoints.set(f.path, *p.behind)
	}
	return true
}

// publish publishes events, but for those that are too large for the stream. It reports false when ctx ended first.
func (f *follower) publish(ctx context.Context, p *publication) bool {
	return f.persist(ctx, "Events cannot be published", "Events are published again", func(ctx context.Context) error {
		for len(p.events) > 0 {
			if err := f.tailer.options.Publisher.Publish(ctx, p.events); err == nil || !p.refuse(err) {
				return err
			}
		}
		return nil
	})
}

// refuse takes the event out that err says can never be published, and reports whether it does.
func (p *publication) refuse(err error) bool {
	var large *stream.TooLargeError
	if !errors.As(err, &large) || large.Index < 0 || large.Index >= len(p.events) {
		return false
	}
	p.tooLarge = append(p.tooLarge, tooLargeEvent{p.events[large.Index], large})
	p.events = slices.Delete(p.events, large.Index, large.Index+1)
	return true
}

// persist does what stores something, again and again until it is stored. It reports false when ctx ended first; an
// attempt under way then has some time to come to its end.
func (f *follower) persist(ctx context.Context, failure, end string, do func(context.Context) error) bool {
	failing := false
	for delay := f.tailer.options.RetryFirst; ; delay = min(2*delay, f.tailer.options.RetryLast) {
		err := do(f.patient)
		if err == nil {
			if failing {
				f.log.Info(end)
			}
			return true
		}
		f.count(f.tailer.metrics.publishFailures, 1)
		if !failing && ctx.Err() == nil {
			f.log.Error(failure+"; holding the position and trying again", "error", err)
			failing = true
		}
		sleep(ctx, delay/2+rand.N(delay))
		if ctx.Err() != nil {
			return false
		}
	}
}
