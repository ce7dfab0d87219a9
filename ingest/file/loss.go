package file

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/gap"
)

// How far the bounds of a gap lie outside what was read around it: lines are not quite in the order of their times, and
// the clock of this machine may not be that of the kube-apiserver. The beginning is rounded down, so that the many
// places of a spoilt log at which something is missing are a few records.
const (
	disorder  = 5 * time.Second
	beginning = 10 * time.Second
)

// A loss is a part of the log that is gone, the end of which is not known before the next line has been read.
type loss struct {
	reason string
	from   time.Time // of the last line before it; zero if there is none
	bytes  int64     // 0 if not known
	behind int64     // the offset in the current file before which no line tells the end

	// unlessOlder says that nothing is missing if the next line is not younger than from.
	unlessOlder bool
}

// lose notes that a part of the log is gone between a line of the given time and the next that will be read. Until the
// gap is recorded the checkpoint does not move.
func (f *follower) lose(reason string, from time.Time, bytes int64) {
	f.count(f.tailer.metrics.gaps, 1)
	if f.loss == nil {
		f.loss = &loss{reason: reason, from: from}
	}
	f.loss.bytes += bytes
	f.loss.unlessOlder = false
}

// gone notes and logs that a part of the log was gone before it was read.
func (f *follower) gone(reason string, bytes int64, bounds ...any) {
	f.log.Error("A part of the audit log is missing: "+reason, bounds...)
	f.lose(reason, f.seen, bytes)
}

// unusable notes that of the line at offset, which could have been ours, some bytes give no event.
func (f *follower) unusable(offset, length, bytes int64, reason string) {
	consumed, start := f.consumed()
	at, end := within(consumed, offset-start), within(consumed, offset+length-start)
	if f.loss != nil {
		if f.resolve(consumed[min(at, within(consumed, f.loss.behind-start)):at]); f.loss != nil {
			f.loss.bytes, f.loss.behind = f.loss.bytes+bytes, offset+length
			return
		}
	}
	before := f.seen
	if t := lastTime(consumed[:at]); !t.IsZero() {
		before = t
	}
	f.lose("unusable lines: "+reason, before, bytes)
	f.loss.behind = start + int64(end)
}

// consumed is what was read last of whole lines, and where in the current file it begins.
func (f *follower) consumed() (b []byte, start int64) {
	b = f.current.scanner.Consumed()
	return b, f.current.scanner.Offset() - int64(len(b))
}

func within(b []byte, at int64) int { return int(max(0, min(at, int64(len(b))))) }

// bound ends the loss, if there is one, at the first line of what was read last that is behind it.
func (f *follower) bound() {
	if f.loss != nil {
		consumed, start := f.consumed()
		f.resolve(consumed[within(consumed, f.loss.behind-start):])
	}
}

// resolve ends the loss at the first line that follows it, if one of them tells its time.
func (f *follower) resolve(following []byte) {
	if until := firstTime(following); !until.IsZero() {
		f.end(until)
	}
}

// end makes a gap of the loss.
func (f *follower) end(until time.Time) {
	l := f.loss
	f.loss = nil
	if l.unlessOlder {
		if !until.After(l.from) {
			return
		}
		f.count(f.tailer.metrics.gaps, 1)
		f.log.Error("A part of the audit log is missing: "+l.reason, "from", l.from, "until", until)
	}
	f.addGap(l.reason, l.from, until, l.bytes)
}

func (f *follower) addGap(reason string, from, until time.Time, bytes int64) {
	if until.Before(from) { // a clock was put back
		from, until = until, from
	}
	g := gap.Gap{Source: f.source, Reason: reason, Until: until.Add(disorder), Bytes: bytes, FoundAt: f.tailer.options.Now()}
	if !from.IsZero() {
		g.From = from.Add(-disorder).Truncate(beginning)
	}
	if last := len(f.gaps) - 1; last >= 0 && f.gaps[last].From.Equal(g.From) {
		g.Bytes += f.gaps[last].Bytes
		f.gaps[last] = f.gaps[last].FoundAgain(g)
		return
	}
	f.gaps = append(f.gaps, g)
}

// withhold makes a gap of an event that is never published.
func (f *follower) withhold(e event.Event, bytes int64) {
	f.count(f.tailer.metrics.gaps, 1)
	f.addGap("an event that the stream does not take", e.StageTimestamp, e.StageTimestamp, bytes)
}

// recordGaps records what is known to be missing, again and again until it is kept. It reports false when ctx ended
// first.
func (f *follower) recordGaps(ctx context.Context) bool {
	for ; len(f.gaps) > 0; f.gaps = f.gaps[1:] {
		g := f.gaps[0]
		if f.tailer.options.Gaps != nil && !f.persist(ctx, "A gap cannot be recorded", "Gaps are recorded again", func(ctx context.Context) error {
			err := f.tailer.options.Gaps.RecordGap(ctx, g)
			if errors.Is(err, gap.ErrInvalid) {
				f.log.Error("A gap cannot be recorded", "reason", g.Reason, "from", g.From, "until", g.Until, "error", err)
				return nil
			}
			return err
		}) {
			return false
		}
	}
	return true
}

// settleLoss records a loss behind which nothing is to be read yet: it ends now at the latest.
func (f *follower) settleLoss(ctx context.Context) error {
	if f.loss == nil {
		return nil
	}
	f.loss.unlessOlder = false
	f.end(f.tailer.options.Now())
	if !f.recordGaps(ctx) {
		return ctx.Err()
	}
	f.save()
	return nil
}

// stageField is where a line says when it was written. It cannot stand inside a JSON string, but before the line's own
// one may stand in a body that a client sent: the last of a line is its own.
var stageField = []byte(`"stageTimestamp":"`)

// firstTime is that of the first line in b that tells one; zero if none does.
func firstTime(b []byte) time.Time {
	for line := range bytes.Lines(b) {
		if t := lastTime(line); !t.IsZero() {
			return t
		}
	}
	return time.Time{}
}

// lastTime is that of the last line in b that tells one; zero if none does.
func lastTime(b []byte) time.Time {
	for {
		at := bytes.LastIndex(b, stageField)
		if at < 0 {
			return time.Time{}
		}
		if t := timeAt(b[at+len(stageField):]); !t.IsZero() {
			return t
		}
		b = b[:bytes.LastIndexByte(b[:at], '\n')+1]
	}
}

// timeAt is the time with which b begins; zero if it is none that an audit log can have.
func timeAt(b []byte) time.Time {
	end := bytes.IndexByte(b[:min(len(b), 64)], '"')
	if end < 0 {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, string(b[:end]))
	if err != nil || t.Year() < 1970 || t.Year() > 9998 {
		return time.Time{}
	}
	return t.UTC()
}
