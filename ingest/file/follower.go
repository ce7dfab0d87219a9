package file

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mintlog/mintlog/ingest"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/gap"
)

// A follower follows one log: the file at its path, and before it the rotated files that have not been read.
type follower struct {
	path   string
	source string // of its events
	name   string
	tailer *Tailer
	log    *slog.Logger
	awake  chan struct{} // holds one element when the log is to be looked at

	counters *counters
	patient  context.Context                 // of what stores something: it outlasts that of run for a while
	onLine   func(line []byte, offset int64) // found

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

	resumed  bool         // the checkpoint has been looked at
	changed  atomic.Bool  // files have come or gone
	looked   time.Time    // at which files there are
	batch    batch        // of what was read, and is not being published yet
	underway *publication // nil if there is none
	ahead    int64        // bytes that were read since the last time that all was published
	unsaved  bool         // something was read that the checkpoint does not know
	saved    time.Time    // when the checkpoint was moved last
	measured time.Time
	lastLook time.Time
	idle     bool // the log was at its end at the last look, and may have been written anew
	backlog  backlog
	failing  bool // the last step failed
	warnings int  // about lines since the last one that was logged
	warned   time.Time
}

func newFollower(t *Tailer, path, name string) *follower {
	f := &follower{
		path: path, name: name, source: ingest.Source("file", name), tailer: t,
		log:      t.options.Log.With("source", name, "path", path),
		counters: t.metrics.begin(name), patient: context.Background(),
		awake: make(chan struct{}, 1), read: map[string]finished{},
	}
	f.onLine = f.found
	return f
}

func (f *follower) wake() { mark(f.awake) }

func (f *follower) count(of *prometheus.CounterVec, n int64, reason ...string) {
	of.WithLabelValues(append([]string{f.name}, reason...)...).Add(float64(n))
}

func (f *follower) run(ctx context.Context) {
	defer f.close()
	patient, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(publishGrace, cancel) })()
	f.patient = patient
	for ctx.Err() == nil {
		progressed, err := f.step(ctx)
		f.report(ctx, err)
		if !progressed || time.Since(f.measured) >= measureInterval {
			f.measure()
		}
		if !progressed {
			f.wait(ctx)
		}
	}
	if f.current != nil && f.unsaved && f.settle(ctx) {
		f.save()
	}
}

// measure says how far the log has been read, and published.
func (f *follower) measure() {
	f.measured = time.Now()
	left := f.current.left() + f.ahead
	for _, c := range f.coming {
		left += c.sibling.size
	}
	f.tailer.metrics.lag.WithLabelValues(f.name).Set(float64(left))
	f.tellPosition()
	f.backlog.tell(f.log, f.tailer.options.Now(), left)
}

// tellPosition says until when what is ours is published.
func (f *follower) tellPosition() {
	if !f.seen.IsZero() && f.ahead == 0 {
		f.tailer.metrics.position.WithLabelValues(f.name).Set(float64(f.seen.UnixMilli()) / 1e3)
	}
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
		if !f.settle(ctx) {
			return false, ctx.Err()
		}
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

// readOn reads a chunk of the current file, and publishes what it finds.
func (f *follower) readOn(ctx context.Context) (bool, error) {
	before := f.current.scanner.Offset()
	readErr := f.current.read(f.onLine)
	f.noteRead(before)
	if readErr == nil && f.readsAhead(ctx) {
		return true, nil
	}
	if !f.settle(ctx) {
		return false, ctx.Err()
	}
	if f.unsaved && (readErr != nil || time.Since(f.saved) >= checkpointInterval) {
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

// noteRead takes note of what was read last, from the offset before.
func (f *follower) noteRead(before int64) {
	n := f.current.scanner.Offset() - before
	if n == 0 {
		return
	}
	f.ahead, f.unsaved = f.ahead+n, true
	f.bound()
	if t := lastTime(f.current.trail.tail); !t.IsZero() {
		f.seen = t
	}
}

// settle publishes the rest of what was found, and records what is missing of what was read. It reports false when ctx
// ended first. Only behind it may the checkpoint move, and another file be looked at.
func (f *follower) settle(ctx context.Context) bool {
	if !f.land(ctx) {
		return false
	}
	f.launch(ctx)
	if !f.land(ctx) {
		return false
	}
	f.counters.readBytes.Add(float64(f.ahead))
	f.counters.lines.Add(float64(f.current.takeLines()))
	f.backlog.bytes += f.ahead
	f.ahead = 0
	f.tellPosition()
	return f.recordGaps(ctx)
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

// save moves the checkpoint to the place, unless something before it is not published, or missing and not recorded.
func (f *follower) save() {
	if f.ahead > 0 || f.loss != nil || len(f.gaps) > 0 {
		return
	}
	f.tailer.checkpoints.set(f.path, f.state())
	f.unsaved, f.saved = false, time.Now()
}

// state is how far the log has been read.
func (f *follower) state() state {
	s := state{Place: f.place(), Time: f.seen, Read: maps.Clone(f.read), Coming: slices.Clone(f.coming)}
	s.Done = s.Place != nil && !f.begun()
	if f.current != nil && !f.begun() {
		s.Coming = slices.Insert(s.Coming, 0, coming{Name: f.current.rotated, ID: f.current.id, Zipped: f.current.zipped})
	}
	return s
}

// found decodes a line that could be ours into the batch.
func (f *follower) found(line []byte, offset int64) {
	lost, err := ingest.Salvage(line, func(e event.Event) {
		e.Source = f.source
		f.batch.events = append(f.batch.events, e)
	})
	f.batch.bytes += len(line)
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
