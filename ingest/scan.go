package ingest

import (
	"bytes"
	"io"
)

// Defaults of a Scanner, in bytes.
const (
	DefaultChunk   = 256 << 10
	DefaultMaxLine = 8 << 20
)

// A Scanner reads an audit log and picks the lines out of it that could be ours. It takes the log in chunks, one call
// of the source a time, and an error of the source, the end included, stands for that call only: when a file has
// grown, the Scanner reads on where it was. What follows the last line break waits until its own has come.
//
// Its memory is a chunk, and more only while a line is longer than that.
type Scanner struct {
	// MaxLine is the longest line in bytes that is looked at; of a longer one nothing is. Set before the first Read.
	MaxLine int
	// Oversized, if set, is told of a line that was too long to be looked at: where it began, how long it was with its
	// line break, and whether it could be ours. Of lines beyond MaxLine by less than a chunk only those count.
	Oversized func(offset, length int64, couldBeOurs bool)

	source   io.Reader
	chunk    int
	buffer   []byte
	start    int   // in buffer, of what has not been consumed
	end      int   // in buffer, of what has been read
	offset   int64 // of start, in the source
	consumed []byte
	skipped  skipped
	lines    int64
}

// skipped is what was thrown away of a line that is too long.
type skipped struct {
	bytes       int64
	couldBeOurs bool
	end         []byte // the last bytes, in which something may begin that makes it ours
}

// seam is longer than anything that makes a line ours.
const seam = 64

func (s *skipped) add(part []byte) {
	s.bytes += int64(len(part))
	s.end = append(s.end, part[:min(len(part), seam)]...)
	s.couldBeOurs = s.couldBeOurs || couldBeOurs(s.end) || couldBeOurs(part)
	if len(part) > seam {
		s.end = append(s.end[:0], part[len(part)-seam:]...)
	}
	s.end = append(s.end[:0], s.end[max(0, len(s.end)-seam):]...)
}

// NewScanner returns a Scanner on source, the first byte of which has the given offset in its log and begins a line.
func NewScanner(source io.Reader, offset int64) *Scanner {
	return &Scanner{MaxLine: DefaultMaxLine, source: source, chunk: DefaultChunk, offset: offset}
}

// Offset is where the first line begins that has not been read to its end.
func (s *Scanner) Offset() int64 { return s.offset }

// Pending is how many bytes have been read beyond Offset.
func (s *Scanner) Pending() int64 { return s.skipped.bytes + int64(s.end-s.start) }

// Partial is what has been read of the line at Offset, as far as it is kept; valid until the next Read.
func (s *Scanner) Partial() []byte { return s.buffer[s.start:s.end] }

// Lines is how many lines have been read to their end.
func (s *Scanner) Lines() int64 { return s.lines }

// Consumed is what the last Read took of whole lines, the last bytes before Offset. Of a line that was too long only
// an end is there. It is valid until the next Read.
func (s *Scanner) Consumed() []byte { return s.consumed }

// Read takes one chunk from the source and calls found with every whole line in it that could be ours, without its
// line break, and with the line's offset. The line is valid during the call only. The source's error is returned as it
// is, after all that came with it.
func (s *Scanner) Read(found func(line []byte, offset int64)) error {
	s.consumed = nil
	s.makeRoom()
	n, err := s.source.Read(s.buffer[s.end:])
	fresh := s.end
	s.end += n
	last := bytes.LastIndexByte(s.buffer[fresh:s.end], '\n')
	if last < 0 {
		if s.skipped.bytes > 0 || s.end-s.start > s.MaxLine {
			s.skipped.add(s.buffer[s.start:s.end])
			s.start, s.end = 0, 0
		}
		return err
	}
	s.consume(fresh+last+1, found)
	return err
}

// Finish ends the log: what follows the last line break is taken for a line. Nothing may be read afterwards.
func (s *Scanner) Finish(found func(line []byte, offset int64)) {
	s.consumed = nil
	if s.start == s.end && s.skipped.bytes == 0 {
		return
	}
	s.makeRoom()
	s.buffer[s.end] = '\n'
	s.end++
	s.consume(s.end, found)
	s.offset-- // the line break is ours
	s.consumed = s.consumed[:len(s.consumed)-1]
}

// consume takes the whole lines up to end, a place in the buffer. While it calls what was found, Offset and Consumed
// are behind all of them.
func (s *Scanner) consume(end int, found func(line []byte, offset int64)) {
	s.consumed = s.buffer[s.start:end]
	began, long := s.offset, s.skipped
	rest := 0 // of the line that is too long
	if long.bytes > 0 {
		rest = bytes.IndexByte(s.consumed, '\n') + 1
		long.add(s.consumed[:rest])
		s.skipped = skipped{}
	}
	block, offset := s.consumed[rest:], began+long.bytes
	s.lines += int64(bytes.Count(s.consumed, newline))
	s.start, s.offset = end, offset+int64(len(block))
	if long.bytes > 0 {
		s.tellOversized(began, long.bytes, long.couldBeOurs)
	}
	eachCandidate(block, func(line []byte, at int) {
		if len(line) > s.MaxLine {
			s.tellOversized(offset+int64(at), int64(len(line))+1, true)
			return
		}
		found(line, offset+int64(at))
	})
}

var newline = []byte{'\n'}

func (s *Scanner) tellOversized(offset, length int64, couldBeOurs bool) {
	if s.Oversized != nil {
		s.Oversized(offset, length, couldBeOurs)
	}
}

// makeRoom moves what is left of the last chunk to the buffer's beginning, and fits the buffer to it.
func (s *Scanner) makeRoom() {
	left := s.buffer[s.start:s.end]
	size := len(s.buffer)
	switch {
	case 2*len(left) < s.chunk:
		size = s.chunk
	case len(left) > size/2:
		size = min(2*size, s.MaxLine+s.chunk)
	}
	if size != len(s.buffer) {
		grown := make([]byte, size)
		copy(grown, left)
		s.buffer = grown
	} else if s.start > 0 {
		copy(s.buffer, left)
	}
	s.start, s.end = 0, len(left)
}
