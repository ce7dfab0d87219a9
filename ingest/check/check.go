// Package check reads audit logs as ingest does, but publishes nothing: it counts what they hold, and says what could
// not be read and where. It never quotes a line.
package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/mintlog/mintlog/store/event"
)

// Counts are what a log holds.
type Counts struct {
	Bytes           int64  `json:"bytes"` // of the log's text, decompressed
	Lines           int64  `json:"lines"` // a last one without line break among them
	Events          int64  `json:"events"`
	Mint            Stages `json:"mint"` // requests
	Revoke          Stages `json:"revoke"`
	Writes          int64  `json:"writes"` // of account Secrets, at a final stage
	Unreadable      int64  `json:"unreadable"`
	UnreadableBytes int64  `json:"unreadableBytes"`
	// NoLineBreak is how many logs end in a line without line break: one of them is cut off, or being written.
	NoLineBreak int64 `json:"noLineBreak"`
}

// Stages are how many requests there are at each stage.
type Stages struct {
	RequestReceived  int64 `json:"requestReceived"`
	ResponseComplete int64 `json:"responseComplete"`
	Panic            int64 `json:"panic"`
	Other            int64 `json:"other"`
}

func (s *Stages) count(stage event.Stage) {
	switch stage {
	case event.RequestReceived:
		s.RequestReceived++
	case event.ResponseComplete:
		s.ResponseComplete++
	case event.Panic:
		s.Panic++
	default: // a name that the log chose is not repeated
		s.Other++
	}
}

func (s *Stages) add(other Stages) {
	s.RequestReceived += other.RequestReceived
	s.ResponseComplete += other.ResponseComplete
	s.Panic += other.Panic
	s.Other += other.Other
}

func (s *Stages) sum() int64 { return s.RequestReceived + s.ResponseComplete + s.Panic + s.Other }

func (c *Counts) add(other Counts) {
	c.Bytes += other.Bytes
	c.Lines += other.Lines
	c.Events += other.Events
	c.Mint.add(other.Mint)
	c.Revoke.add(other.Revoke)
	c.Writes += other.Writes
	c.Unreadable += other.Unreadable
	c.UnreadableBytes += other.UnreadableBytes
	c.NoLineBreak += other.NoLineBreak
}

// Matches is how many of the events are ours.
func (c *Counts) Matches() int64 { return c.Mint.sum() + c.Revoke.sum() + c.Writes }

// A Problem is a place in a log that could not be read.
type Problem struct {
	Line   int64  `json:"line"`   // from 1 on; 0 if it is the log as a whole
	Offset int64  `json:"offset"` // of the first byte that could not be read, in the log's text
	Bytes  int64  `json:"bytes"`  // of the line that could not be read
	Reason string `json:"reason"` // one of the constants, or of those of ingest.DecodeError
	Detail string `json:"detail,omitempty"`
}

// Why a place could not be read, beside the reasons of ingest.DecodeError.
const (
	// NotAnEvent: a whole JSON object without what every audit event has.
	NotAnEvent = "not_an_audit_event"
	// Oversized: a line longer than ingest.DefaultMaxLine, in which ingest does not look either.
	Oversized = "oversized"
	// Torn: what a crash left of a line, with whole events around it.
	Torn = "torn"
	// Partial: the last line, cut off and without line break.
	Partial = "partial"
	// DamagedGzip: compressed data that ends early or is spoilt, or is none.
	DamagedGzip = "damaged_gzip"
	// ReadError: the file could not be opened or read.
	ReadError = "read_error"
)

// StandardInput is the path that stands for it.
const StandardInput = "-"

// Options say what is checked.
type Options struct {
	Paths    []string  // of the logs, one of them StandardInput at most
	Stdin    io.Reader // what StandardInput is
	Report   Report
	Shown    int64     // how many problems of each log are reported; negative: all
	Progress io.Writer // where progress is told, after two seconds and every two seconds
	Now      func() time.Time
}

// Run checks all the logs, and returns what they hold together. What could not be read is no error: an error is that
// of the report, or that ctx ended.
func Run(ctx context.Context, o Options) (Counts, error) {
	var total Counts
	meter := newMeter(o)
	for _, path := range o.Paths {
		if err := o.Report.begin(path); err != nil {
			return total, err
		}
		counts, err := o.log(ctx, path, meter)
		if err != nil {
			return total, fmt.Errorf("check %s: %w", name(path), err)
		}
		hidden := int64(0)
		if o.Shown >= 0 {
			hidden = max(0, counts.Unreadable-o.Shown)
		}
		if err := o.Report.end(counts, hidden); err != nil {
			return total, err
		}
		total.add(counts)
	}
	return total, o.Report.total(len(o.Paths), total)
}

// log checks one log. The error is that of the report or of ctx.
func (o *Options) log(ctx context.Context, path string, meter *meter) (Counts, error) {
	var reportErr error
	r := &reader{}
	r.tell = func(p Problem) {
		if o.Shown < 0 || r.counts.Unreadable <= o.Shown {
			reportErr = errors.Join(reportErr, o.Report.problem(p))
		}
	}
	source, closer, err := o.open(ctx, path, meter)
	if err != nil {
		r.stopped(err)
		return r.counts, reportErr
	}
	defer closer()
	for r.begin(source); ; {
		err := r.read()
		if ctx.Err() != nil {
			return r.counts, context.Cause(ctx)
		}
		if reportErr != nil {
			return r.counts, reportErr
		}
		if err != nil {
			r.finish(err)
			meter.count(r.takeLines())
			return r.counts, reportErr
		}
		meter.count(r.takeLines())
	}
}
