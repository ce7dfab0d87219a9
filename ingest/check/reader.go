package check

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/mintlog/mintlog/ingest"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/ledger"
)

// A reader goes through one log. Its memory is that of the Scanner.
type reader struct {
	scanner    *ingest.Scanner
	tell       func(Problem)
	counts     Counts
	candidates []int64 // where the lines begin that could be ours, of the chunk that was read last
	told       int64   // lines that takeLines has given
}

func (r *reader) begin(source io.Reader) { r.scanner = ingest.NewScanner(source, 0) }

// read takes one chunk. Its error is that of the source.
func (r *reader) read() error {
	s := r.scanner
	offset, pending, skipping := s.Offset(), s.Pending(), s.Pending() > int64(len(s.Partial()))
	r.candidates = r.candidates[:0]
	err := s.Read(func(_ []byte, offset int64) { r.candidates = append(r.candidates, offset) })
	rest := s.Consumed()
	if skipping && len(rest) > 0 { // of its first line, the end is all there is
		end := bytes.IndexByte(rest, '\n') + 1
		r.counts.Lines++
		r.oversized(offset, pending+int64(end)-1)
		offset, rest = offset+pending+int64(end), rest[end:]
	}
	candidates := r.candidates
	for len(rest) > 0 {
		end := bytes.IndexByte(rest, '\n') + 1
		couldBeOurs := len(candidates) > 0 && candidates[0] == offset
		if couldBeOurs {
			candidates = candidates[1:]
		}
		r.line(rest[:end-1], offset, couldBeOurs)
		offset, rest = offset+int64(end), rest[end:]
	}
	r.counts.Bytes = s.Offset() + s.Pending()
	return err
}

// finish takes what stands behind the last line break, and tells of the error that ended the log if it is not its end.
func (r *reader) finish(err error) {
	s := r.scanner
	if s.Pending() > 0 {
		r.counts.NoLineBreak++
		if s.Pending() > int64(s.MaxLine) {
			r.counts.Lines++
			r.oversized(s.Offset(), s.Pending())
		} else {
			tell := r.tell
			r.tell = func(p Problem) {
				if p.Reason == ingest.Malformed {
					p.Reason, p.Detail = Partial, "the last line has no line break, and is no whole event"
				}
				tell(p)
			}
			r.line(s.Partial(), s.Offset(), true)
			r.tell = tell
		}
	}
	if !errors.Is(err, io.EOF) {
		r.stopped(err)
	}
}

// stopped tells of an error after which nothing more of the log can be read.
func (r *reader) stopped(err error) {
	p := Problem{Offset: r.counts.Bytes, Reason: ReadError}
	if r.counts.Bytes > 0 {
		p.Line = r.counts.Lines + 1 - r.counts.NoLineBreak
	}
	var damaged *damagedError
	if errors.As(err, &damaged) {
		p.Reason = DamagedGzip
	}
	p.Detail = describe(err)
	r.problem(p)
}

func (r *reader) oversized(offset, length int64) {
	r.problem(Problem{Line: r.counts.Lines, Offset: offset, Bytes: length, Reason: Oversized,
		Detail: fmt.Sprintf("longer than %d MiB", r.scanner.MaxLine>>20)})
}

func (r *reader) problem(p Problem) {
	r.counts.Unreadable++
	r.counts.UnreadableBytes += p.Bytes
	r.tell(p)
}

// takeLines is how many lines were read since the last call.
func (r *reader) takeLines() int64 {
	lines := r.counts.Lines - r.told
	r.told += lines
	return lines
}

// line counts the events in a line, without its line break, that begins at offset.
func (r *reader) line(line []byte, offset int64, couldBeOurs bool) {
	r.counts.Lines++
	if len(line) > r.scanner.MaxLine {
		r.oversized(offset, int64(len(line)))
		return
	}
	if plain(line) {
		if !couldBeOurs {
			r.counts.Events++
			return
		}
		if e, ours, err := ingest.Decode(line); err == nil {
			r.event(e, ours)
			return
		}
	}
	if p, found := r.examine(line); found {
		p.Line, p.Offset = r.counts.Lines, p.Offset+offset
		r.problem(p)
	}
}

func (r *reader) event(e event.Event, ours bool) {
	r.counts.Events++
	if !ours {
		return
	}
	operation, request := e.Operation()
	switch {
	case !request:
		r.counts.Writes++
	case operation == ledger.Mint:
		r.counts.Mint.count(e.Stage)
	default:
		r.counts.Revoke.count(e.Stage)
	}
}
