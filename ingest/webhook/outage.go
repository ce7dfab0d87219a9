package webhook

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/mintlog/mintlog/ingest"
	"github.com/mintlog/mintlog/store/gap"
	"github.com/mintlog/mintlog/store/stream"
)

const (
	// holdOn is for how long kube-apiserver repeats a batch that is answered with 503 and a Retry-After, less a margin.
	// What it could not deliver by then it may have dropped.
	holdOn = 200 * time.Second
	// tries is for how long it repeats one if nobody answers, less a margin.
	tries = 75 * time.Second
	// betweenTries is how far apart two repetitions of a batch are at most: one that does not come any more was taken by
	// another receiver, or dropped.
	betweenTries = 90 * time.Second
	// batchAge is how old the events of a batch can be, by kube-apiserver's defaults: it collects them for half a minute.
	batchAge = 30 * time.Second
	// attendInterval is how often it is noted that the receiver is there.
	attendInterval = 10 * time.Second
	// maxNames bounds of how many kube-apiservers something is remembered; a caller chooses its name.
	maxNames = 64

	gapTimeout = 5 * time.Second
)

// An Attendant remembers, beyond the life of a process, when receivers were there; *stream.Stream is one.
type Attendant interface {
	Attendance(ctx context.Context) (stream.Attendance, error)
	Attend(ctx context.Context, now time.Time, senders map[string]time.Time) error
}

// An outage is a time in which nothing could be published or received, and the gaps that come of one that lasted too
// long.
type outage struct {
	mu      sync.Mutex
	refused map[string]refused   // by the kube-apiserver that was told so
	senders map[string]time.Time // when each kube-apiserver last sent a batch
	gaps    []gap.Gap            // not recorded yet
}

// refused is from when until when batches of one kube-apiserver could not be published, so far.
type refused struct{ since, last time.Time }

// refuse notes that a batch of the kube-apiserver could not be published.
func (o *outage) refuse(name string, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if r, known := o.refused[name]; known {
		if now.Sub(r.last) <= betweenTries {
			o.refused[name] = refused{r.since, now}
			return
		}
		o.end(name, r.last)
	}
	if o.refused == nil {
		o.refused = map[string]refused{}
	}
	if len(o.refused) < maxNames {
		o.refused[name] = refused{now, now}
	}
}

// end makes a gap of what was refused, if that was for too long.
func (o *outage) end(name string, at time.Time) {
	if since := o.refused[name].since; at.Sub(since) > holdOn {
		o.miss(name, "events could not be published for longer than kube-apiserver holds on to them", since, at, at)
	}
	delete(o.refused, name)
}

func (o *outage) miss(name, reason string, since, until, now time.Time) {
	o.gaps = append(o.gaps, gap.Gap{
		Source: ingest.Source("webhook", name), Reason: reason, From: since.Add(-batchAge), Until: until, FoundAt: now,
	})
}

// published notes that a batch could be published.
func (o *outage) published(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forgetOld(now)
	for _, name := range slices.Sorted(maps.Keys(o.refused)) {
		o.end(name, now)
	}
}

// forget ends what was refused and did not come again, and returns when each kube-apiserver last sent a batch.
func (o *outage) forget(now time.Time) (senders map[string]time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forgetOld(now)
	return maps.Clone(o.senders)
}

func (o *outage) forgetOld(now time.Time) {
	for _, name := range slices.Sorted(maps.Keys(o.refused)) {
		if last := o.refused[name].last; now.Sub(last) > betweenTries {
			o.end(name, last)
		}
	}
}

// sent notes that a batch of the kube-apiserver has come and was taken.
func (o *outage) sent(name string, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.senders == nil {
		o.senders = map[string]time.Time{}
	}
	if _, known := o.senders[name]; known || len(o.senders) < maxNames {
		o.senders[name] = now
	}
}

// absent notes from when until when no receiver was there, if kube-apiservers may have dropped batches meanwhile.
func (o *outage) absent(before stream.Attendance, until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if before.At.IsZero() || until.Sub(before.At) <= tries {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(before.Senders)) {
		o.miss(name, "nobody received events for longer than kube-apiserver tries to send them", before.At, until, until)
	}
}

// record records what gaps there are, as far as that is possible now; without a recorder they are forgotten.
func (o *outage) record(ctx context.Context, recorder ingest.GapRecorder) error {
	o.mu.Lock()
	gaps := o.gaps
	o.gaps = nil
	o.mu.Unlock()
	if recorder == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, gapTimeout)
	defer cancel()
	var invalid error
	for i, g := range gaps {
		if err := recorder.RecordGap(ctx, g); errors.Is(err, gap.ErrInvalid) {
			invalid = errors.Join(invalid, err) // and will never be another
		} else if err != nil {
			o.mu.Lock()
			o.gaps = append(gaps[i:len(gaps):len(gaps)], o.gaps...)
			o.gaps = o.gaps[max(0, len(o.gaps)-2*maxNames):]
			o.mu.Unlock()
			return err
		}
	}
	return invalid
}

// attend notes again and again that the receiver is there, and at the first time for how long none was. It records the
// gaps that no batch comes to record.
func (r *Receiver) attend(ctx context.Context) {
	failing := false
	for ctx.Err() == nil {
		err := r.attendOnce(ctx)
		if failed := err != nil && ctx.Err() == nil; failed != failing {
			failing = failed
			if failed {
				r.options.Log.Error("It cannot be noted that events are received, or when they were not; trying again", "error", err)
			} else {
				r.options.Log.Info("It is noted again that events are received")
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(attendInterval):
		}
	}
}

// attendOnce notes nothing before the time is recorded in which no receiver was there: what is noted hides it from whoever
// starts next.
func (r *Receiver) attendOnce(ctx context.Context) error {
	now := r.options.Now()
	if r.options.Attendant != nil && !r.attended.Load() {
		before, err := r.options.Attendant.Attendance(ctx)
		if err != nil {
			return err
		}
		if !r.attended.Swap(true) {
			r.outage.absent(before, r.started)
		}
	}
	senders := r.outage.forget(now)
	if err := r.outage.record(ctx, r.options.Gaps); err != nil || r.options.Attendant == nil {
		return err
	}
	return r.options.Attendant.Attend(ctx, now, senders)
}
