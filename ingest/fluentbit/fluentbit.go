// Package fluentbit makes events out of what Fluent Bit hands to an output plugin: chunks of records in msgpack, as its
// tail has parsed them from kube-apiserver's audit log and its filters have shaped them. It knows nothing of how Fluent
// Bit is linked to it.
package fluentbit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mintlog/mintlog/ingest"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/stream"
)

// What is published at once.
const (
	maxEvents = 1000
	maxBytes  = 4 << 20 // of what the events may take in memory, about
)

// Options say whose chunks are taken, and where their events go.
type Options struct {
	// Name tells this Fluent Bit from others, in the Source of the events.
	Name string
	// TagPrefix is what the tags of audit logs begin with. A chunk with another tag is not looked at: it may hold the
	// output of containers, in which anybody can write what looks like an audit event.
	TagPrefix string

	Publisher  ingest.Publisher
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// An Output takes chunks. Its methods may be called concurrently.
type Output struct {
	options Options
	source  string
	metrics *metrics

	misled  atomic.Bool // a chunk with another tag has come
	failing atomic.Bool // the last events could not be published
}

// New checks the options.
func New(o Options) (*Output, error) {
	if o.Name == "" || o.TagPrefix == "" {
		return nil, errors.New("an output of Fluent Bit needs a name and the prefix of audit logs' tags")
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("register the metrics of the output of Fluent Bit: %w", err)
	}
	return &Output{options: o, source: ingest.Source("fluentbit", o.Name), metrics: m}, nil
}

// Flush returns nil when every event of ours in the chunk is durably published. After an error it is to be called with
// the same chunk again: what was published is told by its identity. What cannot be used is counted with a reason, and
// never makes an error. The chunk may be changed when Flush has returned.
func (o *Output) Flush(ctx context.Context, tag string, chunk []byte) error {
	if !strings.HasPrefix(tag, o.options.TagPrefix) {
		o.metrics.foreign.Inc()
		if !o.misled.Swap(true) {
			o.options.Log.Error("Chunks are not those of an audit log, by their tag, and are not looked at: correct the output's match or its tag_prefix",
				"wanted", o.options.TagPrefix+"*")
		}
		return nil
	}
	f := flush{output: o, ctx: ctx}
	records, err := each(chunk, f.take, f.report)
	if err == nil {
		err = f.publish()
	}
	if err != nil {
		o.metrics.retried.Inc()
		if !o.failing.Swap(true) {
			o.options.Log.Error("Events cannot be published; Fluent Bit is told to come again", "error", err)
		}
		return err
	}
	if f.matched > 0 && o.failing.Swap(false) {
		o.options.Log.Info("Events are published again")
	}
	o.metrics.chunks.Inc()
	o.metrics.records.Add(float64(records))
	o.metrics.matched.Add(float64(f.matched))
	f.tellUnused()
	return nil
}

// A flush is one chunk's way.
type flush struct {
	output  *Output
	ctx     context.Context
	events  []event.Event // to be published
	size    int           // of these, about
	matched int
	unused  []unused
}

func (f *flush) report(u unused) { f.unused = append(f.unused, u) }

func (f *flush) take(e event.Event) error {
	e.Source = f.output.source
	f.events = append(f.events, e)
	f.size += footprint(&e)
	f.matched++
	if len(f.events) < maxEvents && f.size < maxBytes {
		return nil
	}
	return f.publish()
}

// footprint is what the parts of an event that a client can make long take, and some for the others.
func footprint(e *event.Event) int {
	const others = 2 << 10
	return others + len(e.AuditID) + len(e.RequestURI) + len(e.UserAgent) + len(e.User.Username)
}

// publish publishes the events collected, but for those that the stream never takes.
func (f *flush) publish() error {
	for len(f.events) > 0 {
		err := f.output.options.Publisher.Publish(f.ctx, f.events)
		if err == nil {
			break
		}
		var large *stream.TooLargeError
		if !errors.As(err, &large) || large.Index < 0 || large.Index >= len(f.events) {
			return err
		}
		f.report(unused{tooLarge, "", int(large.Size)})
		f.events = slices.Delete(f.events, large.Index, large.Index+1)
	}
	f.output.metrics.published.Add(float64(len(f.events)))
	f.events, f.size = f.events[:0], 0
	return nil
}

// maxDetails is how many of a chunk's unused parts are logged one by one.
const maxDetails = 3

// tellUnused counts and logs, without quoting anything. It comes when the chunk is done with, so once for each loss.
func (f *flush) tellUnused() {
	for i, u := range f.unused {
		f.output.metrics.unused.WithLabelValues(u.reason).Inc()
		f.output.metrics.unusedBytes.WithLabelValues(u.reason).Add(float64(u.bytes))
		if i < maxDetails {
			f.output.options.Log.Warn("Part of a chunk could have been an event of ours and cannot be used",
				"reason", u.reason, "detail", u.detail, "bytes", u.bytes)
		}
	}
	if more := len(f.unused) - maxDetails; more > 0 {
		f.output.options.Log.Warn("More parts of the chunk cannot be used", "parts", more)
	}
}
