package archive

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/mintlog/mintlog/store/event"
)

const (
	replayBatch = 500 // events published at a time
	// replayTries is how often a page of a replay is asked for, with growing pauses of about two minutes in all.
	replayTries = 10
)

// Replayed says how far a replay came.
type Replayed struct {
	Published int
	// Refused are refused attempts and dry runs: they change no history, and the archive has them, so they are left.
	Refused int
	// Unreadable is about how many rows look like requests or writes of ours and give no event.
	Unreadable int
	// Reached is the time of reception from which on, to the end of what was asked for, all is published: whoever
	// continues asks for what is before a microsecond later. Zero: nothing is.
	Reached time.Time
}

// ReplayInto publishes the events that the query asks for, the newest first, in bounded batches, each marked with Source
// "archive". It tells of its progress behind each batch. A page that the archive fails to answer is asked for again for
// about two minutes; an error of publish ends the replay.
func (a *Archive) ReplayInto(ctx context.Context, q Query, publish func(context.Context, []event.Event) error, tell func(Replayed)) (Replayed, error) {
	var done Replayed
	batch, refused := make([]event.Event, 0, replayBatch), 0
	var reached time.Time
	flush := func() error {
		if len(batch) > 0 {
			if err := publish(ctx, batch); err != nil {
				return fmt.Errorf("publish what the archive has: %w", err)
			}
		}
		done.Published += len(batch)
		done.Refused += refused
		done.Reached = reached
		batch, refused = make([]event.Event, 0, replayBatch), 0
		tell(done)
		return nil
	}
	err := a.query(ctx, q, replayTries, func(e event.Event) error {
		reached = e.RequestReceivedTimestamp
		if e.Stage != event.RequestReceived && !e.Eligible() {
			refused++
		} else {
			batch = append(batch, e)
		}
		if len(batch)+refused < replayBatch {
			return nil
		}
		return flush()
	}, func() { done.Unreadable++ })
	if err != nil {
		return done, err
	}
	return done, flush()
}

// patiently asks for a page until it is there, an answer says that it will not be, or there were so many tries.
func (a *Archive) patiently(ctx context.Context, q Query, size, tries int) ([]*filed, error) {
	for failures := 1; ; failures++ {
		page, err := a.page(ctx, q, size)
		var status *StatusError
		final := errors.As(err, &status) && status.Code/100 != 5 && status.Code != 429 || errors.Is(err, ErrLineTooLong)
		if err == nil || final || failures >= tries || ctx.Err() != nil {
			return page, err
		}
		sleep(ctx, backoff(failures))
	}
}

// A Witness is what pipelines other than ours wrote of an audit log within a stretch of time. What our own archiver
// wrote came from our own ingest, and proves nothing of what that has missed.
type Witness struct {
	Rows     int      // in the stretch and just around it
	Clusters []string // that they say they are of, sorted
	// Silence is the first time in which they wrote nothing for longer than was allowed, zero if there is none: whether
	// they had nothing to write then, or were down, nobody knows.
	SilentFrom, SilentUntil time.Time
}

// Complete reports whether they were never silent for too long.
func (w Witness) Complete() bool { return w.Rows > 0 && w.SilentFrom.IsZero() }

// witnessSpan is how much time one query about a witness covers.
const witnessSpan = 24 * time.Hour

// Witness looks whether other pipelines wrote events of any kind from just before a stretch of time until just after it,
// and were never silent for longer than allowed, which is at least a second. Given a cluster, only what they say is of
// that one counts.
func (a *Archive) Witness(ctx context.Context, from, until time.Time, silence time.Duration, cluster string) (Witness, error) {
	silence = max(silence, time.Second).Round(time.Second)
	last, end := from.Add(-silence), until.Add(silence)
	var w Witness
	for first := last; first.Before(end); first = first.Add(witnessSpan) {
		spans, err := a.spans(ctx, first, first.Add(min(witnessSpan, end.Sub(first))), silence, cluster)
		if err != nil {
			return Witness{}, err
		}
		for _, s := range spans {
			w.Rows += s.rows
			w.Clusters = slices.Compact(slices.Sorted(slices.Values(append(w.Clusters, s.clusters...))))
			if s.first.Sub(last) > silence {
				w.SilentFrom, w.SilentUntil = last, s.first
				return w, nil
			}
			last = s.last
		}
	}
	if end.Sub(last) > silence {
		w.SilentFrom, w.SilentUntil = last, end
	}
	return w, nil
}

// A span is a piece of time, and the first and last of the rows in it.
type span struct {
	first, last time.Time
	rows        int
	clusters    []string
}

// maxClusters is how many clusters of a span are told at most.
const maxClusters = 8

// spans are the pieces of time of the given length in which other pipelines have rows, in their order.
func (a *Archive) spans(ctx context.Context, from, until time.Time, length time.Duration, cluster string) ([]span, error) {
	filter := timeFilter(from, until) + " _stream:{log_source=" + quote(logSource) + "} " + exactly(fieldEventID, "")
	if cluster != "" {
		filter += " " + exactly(fieldCluster, cluster)
	}
	query := fmt.Sprintf("%s | stats by (%s:%ds) min(%s) first, max(%s) last, count() rows, uniq_values(%s) limit %d clusters | sort by (%s)",
		filter, fieldTime, int(length.Seconds()), fieldTime, fieldTime, fieldCluster, maxClusters, fieldTime)
	var spans []span
	err := a.rows(ctx, query, func(r row) error {
		first, err := readTime(r, "first", "")
		if err != nil {
			return err
		}
		last, err := readTime(r, "last", "")
		if err != nil {
			return err
		}
		count, err := strconv.Atoi(r["rows"])
		if err != nil {
			return errors.New("rows is no number")
		}
		spans = append(spans, span{first, last, count, splitList(r["clusters"])})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for other pipelines' events: %w", err)
	}
	return spans, nil
}
