package file

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/mintlog/mintlog/ingest"
)

// A segment is one file of a log, opened for reading.
type segment struct {
	file     *os.File
	info     fs.FileInfo // when it was opened
	id       fileID
	rotated  string // the name it was rotated to; empty while it is the log itself
	zipped   bool
	late     bool // it is read anew, and the place is in another file
	replaced bool // another file has the log's path, so nothing is written to this one any more
	scanner  *ingest.Scanner
	trail    *trail
	taken    int64 // lines that takeLines has given
	seen     int64 // the file's size on disk when it was last looked at
}

// openSegment opens the file at path from its first byte or, if from is given, from there, and reports false if the
// file is not the one in which that place was taken.
func openSegment(path string, from *place, zipped bool) (*segment, bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, false, err
	}
	s, met, err := newSegment(file, from, zipped)
	if err != nil || !met {
		return nil, false, errors.Join(err, file.Close())
	}
	return s, true, nil
}

func newSegment(file *os.File, from *place, zipped bool) (*segment, bool, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, false, err
	}
	if !info.Mode().IsRegular() {
		return nil, false, fmt.Errorf("%s is no regular file", file.Name())
	}
	var source io.Reader = file
	if zipped {
		if source, err = gzip.NewReader(file); err != nil {
			return nil, false, &damagedError{err}
		}
	}
	s := &segment{file: file, info: info, id: identify(file.Name(), info), zipped: zipped, trail: &trail{}}
	if from != nil {
		met := false
		if s.trail, met, err = meet(*from, source); err != nil && zipped {
			err = &damagedError{err}
		}
		if err != nil || !met {
			return nil, false, err
		}
	}
	s.scanner = ingest.NewScanner(source, s.trail.offset)
	return s, true, nil
}

// A damagedError is that of a compressed file which does not decompress: half written, or spoilt.
type damagedError struct{ err error }

func (e *damagedError) Error() string { return "decompressing: " + e.err.Error() }
func (e *damagedError) Unwrap() error { return e.err }

func isDamaged(err error) bool {
	var damaged *damagedError
	return errors.As(err, &damaged)
}

// read takes one chunk. At the file's end the error is io.EOF.
func (s *segment) read(found func(line []byte, offset int64)) error {
	err := s.scanner.Read(found)
	s.trail.follow(s.scanner.Consumed(), s.scanner.Offset())
	if err != nil && !errors.Is(err, io.EOF) && s.zipped {
		return &damagedError{err}
	}
	return err
}

// cutOff reports whether what stands behind the last line break is no whole event.
func (s *segment) cutOff() bool {
	rest := bytes.TrimSpace(s.scanner.Partial())
	return s.scanner.Pending() == int64(len(s.scanner.Partial())) && len(rest) > 0 && !json.Valid(rest)
}

// finish takes what stands behind the last line break.
func (s *segment) finish(found func(line []byte, offset int64)) {
	s.scanner.Finish(found)
	s.trail.follow(s.scanner.Consumed(), s.scanner.Offset())
}

// intact reports whether the file still has all that was read from it: it was not truncated, nor written anew.
func (s *segment) intact() (bool, error) {
	if s.zipped {
		return true, nil
	}
	info, err := s.file.Stat()
	if err != nil {
		return false, err
	}
	if info.Size() < s.scanner.Offset()+s.scanner.Pending() {
		return false, nil
	}
	if s.scanner.Pending() > int64(len(s.scanner.Partial())) {
		return s.stands(s.trail.tail, s.trail.offset)
	}
	return s.stands(slices.Concat(s.trail.tail, s.scanner.Partial()), s.scanner.Offset()+s.scanner.Pending())
}

// stands reports whether the file has these bytes before end.
func (s *segment) stands(bytesBefore []byte, end int64) (bool, error) {
	now := make([]byte, len(bytesBefore))
	_, err := s.file.ReadAt(now, end-int64(len(now)))
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return bytes.Equal(now, bytesBefore), nil
}

// takeLines is how many lines were read since the last call.
func (s *segment) takeLines() int64 {
	lines := s.scanner.Lines() - s.taken
	s.taken += lines
	return lines
}

func (s *segment) close() error {
	if s == nil {
		return nil
	}
	return s.file.Close()
}

// left is about how many bytes of the file on disk have not been read.
func (s *segment) left() int64 {
	if s == nil {
		return 0
	}
	info, err := s.file.Stat()
	if err != nil {
		return 0
	}
	done := s.scanner.Offset()
	if s.zipped {
		if done, err = s.file.Seek(0, io.SeekCurrent); err != nil {
			return 0
		}
	}
	s.seen = info.Size()
	return max(0, s.seen-done)
}
