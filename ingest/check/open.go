package check

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
)

// A damagedError is that of a compressed log which does not decompress.
type damagedError struct{ err error }

func (e *damagedError) Error() string { return "decompressing: " + e.err.Error() }
func (e *damagedError) Unwrap() error { return e.err }

// describe says why a log could not be read, without its path.
func describe(err error) string {
	var path *fs.PathError
	var damaged *damagedError
	switch {
	case errors.As(err, &path):
		return path.Err.Error()
	case !errors.As(err, &damaged):
		return err.Error()
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "the compressed data ends early"
	case errors.Is(err, gzip.ErrHeader):
		return "what begins here is no compressed data"
	case errors.Is(err, gzip.ErrChecksum):
		return "the checksum is another"
	}
	return "the compressed data is spoilt"
}

// open opens a log for reading, decompressed if its name ends in .gz or it begins as compressed data does.
func (o *Options) open(ctx context.Context, path string, meter *meter) (io.Reader, func(), error) {
	var raw io.Reader
	closer := func() {}
	if path == StandardInput {
		raw = &interruptible{ctx: ctx, source: o.Stdin}
	} else {
		file, err := os.Open(path)
		if err != nil {
			return nil, nil, err
		}
		raw, closer = file, func() { _ = file.Close() }
	}
	source, err := decompressed(&metered{source: raw, meter: meter}, strings.HasSuffix(path, ".gz"))
	if err != nil {
		closer()
		return nil, nil, err
	}
	return source, closer, nil
}

const bufferSize = 64 << 10

func decompressed(raw io.Reader, zipped bool) (io.Reader, error) {
	buffered := bufio.NewReaderSize(raw, bufferSize)
	if start, _ := buffered.Peek(2); !zipped && string(start) != "\x1f\x8b" { // its error comes again at the first read
		return buffered, nil
	}
	unzipped, err := gzip.NewReader(buffered)
	if err != nil {
		return nil, damage(err)
	}
	return &unzipper{unzipped}, nil
}

// An unzipper tells damage from the log's end and from a failing disk.
type unzipper struct{ source *gzip.Reader }

func (u *unzipper) Read(b []byte) (int, error) {
	n, err := u.source.Read(b)
	if err != nil && err != io.EOF {
		err = damage(err)
	}
	return n, err
}

func damage(err error) error {
	var disk *fs.PathError
	if errors.As(err, &disk) {
		return err
	}
	return &damagedError{err}
}

// An interruptible reader stops waiting for its source when ctx ends. It copies: a read that was given up may still
// come.
type interruptible struct {
	ctx    context.Context
	source io.Reader
	buffer []byte
}

func (i *interruptible) Read(b []byte) (int, error) {
	if len(i.buffer) < len(b) {
		i.buffer = make([]byte, len(b))
	}
	into := i.buffer[:len(b)]
	type result struct {
		n   int
		err error
	}
	done := make(chan result, 1)
	go func() {
		n, err := i.source.Read(into)
		done <- result{n, err}
	}()
	select {
	case <-i.ctx.Done():
		i.buffer = nil
		return 0, context.Cause(i.ctx)
	case r := <-done:
		return copy(b, into[:r.n]), r.err
	}
}
