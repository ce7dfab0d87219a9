package file

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mintlog/mintlog/ingest"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/gap"
	"github.com/mintlog/mintlog/store/stream"
)

// A follower follows one log: the file at its path, and before it the rotated files that have not been read.
type follower struct {
	path   string
	source string // of its events
	name   string
	tailer *Tailer
	log    *slog.Logger
	awake  chan struct{} // holds one element when the log is to be looked at

	unknownSince time.Time // what was read since then is not known, because the checkpoint was damaged; else zero

	current *segment            // what is being read; nil between two files
	done    *place              // the end of the last file, until something was read of the next
	last    string              // its name; empty if it has none
	read    map[string]finished // rotated files that were read to their end, by name
	coming  []coming            // the files that come after, oldest first
	fresh   bool                // what is there is all there is to read
	late    []sibling           // files that were written to after they had been read to their end
	seen    time.Time           // when the last line that was read was written; before that, until when nothing was there

	loss *loss     // is gone, and nothing has been read behind it
	gaps []gap.Gap // have not been recorded

	resumed  bool          // the checkpoint has been looked at
	changed  atomic.Bool   // files have come or gone
	looked   time.Time     // at which files there are
	batch    []event.Event // of the chunk that was read last
	lastLook time.Time
	idle     bool // the log was at its end at the last look, and may have been written anew
	backlog  backlog
	failing  bool // the last step failed
	warnings int  // about lines since the last one that was logged
	warned   time.Time
}

func newFollower(t *Tailer, path, name string) *follower {
	t.metrics.begin(name)
	return &follower{
		path: path, name: name, source: ingest.Source("file", name), tailer: t,
		log:   t.options.Log.With("source", name, "path", path),
		awake: make(chan struct{}, 1), read: map[string]finished{},
	}
}

func (f *follower) wake() { mark(f.awake) }

func (f *follower) count(of *prometheus.CounterVec, n int64, reason ...string) {
	of.WithLabelValues(append([]string{f.name}, reason...)...).Add(float64(n))
}

func (f *follower) run(ctx context.Context) {
	defer f.close()
	for ctx.Err() == nil {
		progressed, err := f.step(ctx)
		f.report(ctx, err)
		f.measure()
		if !progressed {
			f.wait(ctx)
		}
	}
}

// measure says how far the log has been read.
func (f *follower) measure() {
	left := f.current.left()
	for _, c := range f.coming {
		left += c.sibling.size
	}
	f.tailer.metrics.lag.WithLabelValues(f.name).Set(float64(left))
	if !f.seen.IsZero() {
		f.tailer.metrics.position.WithLabelValues(f.name).Set(float64(f.seen.UnixMilli()) / 1e3)
	}
	f.backlog.tell(f.log, f.tailer.options.Now(), left)
}

// A backlog is what is read at a stretch, without the log's end being reached.
type backlog struct {
	since, told time.Time
	bytes       int64
	events      int
}

// Reading that takes longer than patience is told of, again and again.
const (
	backlogPatience = 2 * time.Second
	backlogInterval = 5 * time.Second
)

func (b *backlog) tell(log *slog.Logger, now time.Time, left int64) {
	if b.since.IsZero() {
		b.since = now
	}
	if now.Sub(b.since) < backlogPatience || now.Sub(b.told) < backlogInterval {
		return
	}
	b.told = now
	log.Info("Reading a backlog of the audit log", "bytes", b.bytes, "of", b.bytes+left, "events", b.events,
		"seconds", int(now.Sub(b.since).Seconds()))
}

// report logs a failure once, and its end.
func (f *follower) report(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		f.count(f.tailer.metrics.readFailures, 1)
		if !f.failing {
			f.log.Error("The audit log cannot be read; trying again", "error", err)
		}
		f.failing = true
	} else if f.failing && f.current != nil {
		f.log.Info("The audit log is read again")
		f.failing = false
	}
}

// wait returns when the log may have changed, but not so soon that every single line of a busy log costs a look.
func (f *follower) wait(ctx context.Context) {
	f.backlog = backlog{}
	poll := time.NewTimer(f.tailer.options.Poll)
	defer poll.Stop()
	awake := f.awake
	if f.failing {
		awake = nil
	}
	select {
	case <-ctx.Done():
		return
	case <-awake:
		sleep(ctx, lookInterval-time.Since(f.lastLook))
	case <-poll.C:
	}
	f.lastLook = time.Now()
	f.idle = true
}

// step opens the next file, or reads and publishes a chunk of the current one, or ends it. It reports false when there
// is nothing to do until the log changes.
func (f *follower) step(ctx context.Context) (bool, error) {
	progressed, err := f.advance(ctx)
	if !progressed && err == nil {
		err = f.settleLoss(ctx)
	}
	return progressed, err
}

func (f *follower) advance(ctx context.Context) (bool, error) {
	if !f.resumed {
		if err := f.resume(); err != nil {
			return false, err
		}
		f.resumed = true
	}
	if f.current == nil {
		return f.openNext()
	}
	if f.changed.Load() || time.Since(f.looked) >= f.tailer.options.Poll {
		if err := f.look(); err != nil {
			return false, err
		}
	}
	if len(f.late) > 0 {
		err := f.readLate(ctx)
		return err == nil, err
	}
	if f.idle {
		f.idle = false
		if intact, err := f.checkIntact(); err != nil || !intact {
			return !intact, err
		}
	}
	return f.readOn(ctx)
}

// readOn reads and publishes a chunk of the current file.
func (f *follower) readOn(ctx context.Context) (bool, error) {
	before := f.current.scanner.Offset()
	readErr := f.current.read(f.found)
	if !f.settle(ctx, before) {
		return false, ctx.Err()
	}
	if f.current.scanner.Offset() != before {
		f.save()
	}
	switch {
	case readErr == nil:
		return true, nil
	case errors.Is(readErr, io.EOF):
		return f.atEnd(ctx)
	case isDamaged(readErr):
		f.damaged(f.current.file.Name(), f.current.scanner.Offset(), readErr)
		return true, f.finish(ctx)
	}
	return false, readErr
}

// settle publishes what was found since the offset before, and records what is missing of it. It reports false when
// ctx ended first. Only behind it may the checkpoint move.
func (f *follower) settle(ctx context.Context, before int64) bool {
	m := f.tailer.metrics
	f.count(m.matched, int64(len(f.batch)))
	f.batch = urgentFirst(f.batch)
	if !f.publish(ctx) {
		return false
	}
	f.count(m.published, int64(len(f.batch)))
	f.backlog.events += len(f.batch)
	f.batch = f.batch[:0]
	now := f.current.scanner.Offset()
	if now == before {
		return true
	}
	f.bound()
	if t := lastTime(f.current.trail.tail); !t.IsZero() {
		f.seen = t
	}
	f.count(m.readBytes, now-before)
	f.count(m.lines, f.current.takeLines())
	f.backlog.bytes += now - before
	return f.recordGaps(ctx)
}

// urgentFirst puts what histories are made of before receptions, on which mints may wait, and these before what was
// refused, of which anybody can cause any number. Otherwise it keeps the order.
func urgentFirst(batch []event.Event) []event.Event {
	var done, received, refused []event.Event
	for _, e := range batch {
		switch {
		case e.Stage == event.RequestReceived:
			received = append(received, e)
		case e.Eligible():
			done = append(done, e)
		default:
			refused = append(refused, e)
		}
	}
	return slices.Concat(done, received, refused)
}

// place is the end of what was read.
func (f *follower) place() *place {
	if f.begun() {
		return f.current.trail.place(f.current.id)
	}
	return f.done
}

// begun reports whether a line of the current file was read.
func (f *follower) begun() bool { return f.current != nil && f.current.trail.offset > 0 }

// save moves the checkpoint to the place, unless something before it is missing and that has not been recorded.
func (f *follower) save() {
	if f.loss != nil || len(f.gaps) > 0 {
		return
	}
	s := state{Place: f.place(), Time: f.seen, Read: maps.Clone(f.read), Coming: slices.Clone(f.coming)}
	s.Done = s.Place != nil && !f.begun()
	if f.current != nil && !f.begun() {
		s.Coming = slices.Insert(s.Coming, 0, coming{Name: f.current.rotated, ID: f.current.id, Zipped: f.current.zipped})
	}
	f.tailer.checkpoints.set(f.path, s)
}

// found decodes a line that could be ours into the batch.
func (f *follower) found(line []byte, offset int64) {
	lost, err := ingest.Salvage(line, func(e event.Event) {
		e.Source = f.source
		f.batch = append(f.batch, e)
	})
	if err == nil {
		return
	}
	reason := ingest.Malformed
	var decode *ingest.DecodeError
	if errors.As(err, &decode) {
		reason = decode.Reason
	}
	f.count(f.tailer.metrics.decodeErrors, 1, reason)
	if lost < len(line) {
		reason = torn
	}
	f.drop(offset, int64(lost), reason, err)
	f.unusable(offset, int64(len(line)), int64(lost), reason)
}

// drop counts bytes that are given up, and logs them, at most one such line a minute.
func (f *follower) drop(offset, length int64, reason string, err error) {
	f.count(f.tailer.metrics.droppedBytes, length, reason)
	f.warnings++
	if now := f.tailer.options.Now(); now.Sub(f.warned) >= time.Minute {
		f.log.Warn("Bytes of the audit log cannot be used", "file", f.current.file.Name(), "offset", offset,
			"length", length, "reason", reason, "error", err, "since_last_warning", f.warnings)
		f.warned, f.warnings = now, 0
	}
}

// publish publishes the batch, but for events that are too large for the stream, which leave the batch. It reports false
// when ctx ended first.
func (f *follower) publish(ctx context.Context) bool {
	return len(f.batch) == 0 || f.persist(ctx, "Events cannot be published", "Events are published again", func(ctx context.Context) error {
		for len(f.batch) > 0 {
			if err := f.tailer.options.Publisher.Publish(ctx, f.batch); err == nil || !f.dropTooLarge(err) {
				return err
			}
		}
		return nil
	})
}

// persist does what stores something, again and again until it is stored. It reports false when ctx ended first; an
// attempt under way then has some time to come to its end.
func (f *follower) persist(ctx context.Context, failure, end string, do func(context.Context) error) bool {
	patient, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(publishGrace, cancel) })()
	failing := false
	for delay := f.tailer.options.RetryFirst; ; delay = min(2*delay, f.tailer.options.RetryLast) {
		err := do(patient)
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

// dropTooLarge takes the event out of the batch that err says can never be published, and reports whether it does.
func (f *follower) dropTooLarge(err error) bool {
	var large *stream.TooLargeError
	if !errors.As(err, &large) || large.Index < 0 || large.Index >= len(f.batch) {
		return false
	}
	f.withhold(f.batch[large.Index], large.Size)
	f.batch = slices.Delete(f.batch, large.Index, large.Index+1)
	f.drop(f.current.scanner.Offset(), large.Size, tooLarge, err)
	return true
}
