package webhook

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/mintlog/mintlog/ingest"
	"github.com/mintlog/mintlog/store/gap"
)

const (
	// holdOn is for how long kube-apiserver repeats a batch that is answered with 503 and a Retry-After, less a margin.
	// What it could not deliver by then it may have dropped.
	holdOn = 200 * time.Second
	// batchAge is how old the events of a batch can be, by kube-apiserver's defaults: it collects them for half a minute.
	batchAge = 30 * time.Second
	// maxOutageNames bounds of how many kube-apiservers an outage is remembered; a caller chooses its name.
	maxOutageNames = 64

	gapTimeout = 5 * time.Second
)

// An outage is a time in which nothing could be published, and the gaps that come of one that lasted too long.
type outage struct {
	mu    sync.Mutex
	since map[string]time.Time // by the kube-apiserver that was first told so
	gaps  []gap.Gap            // not recorded yet
}

// refused notes that a batch of the kube-apiserver could not be published.
func (o *outage) refused(name string, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, known := o.since[name]; known || len(o.since) >= maxOutageNames {
		return
	}
	if o.since == nil {
		o.since = map[string]time.Time{}
	}
	o.since[name] = now
}

// over notes that a batch could be published, and records what gaps there are, as far as that is possible now.
func (o *outage) over(ctx context.Context, now time.Time, recorder ingest.GapRecorder) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.since)+len(o.gaps) == 0 {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(o.since)) {
		if since := o.since[name]; now.Sub(since) > holdOn {
			o.gaps = append(o.gaps, gap.Gap{
				Source: ingest.Source("webhook", name), Reason: "events could not be published for longer than kube-apiserver holds on to them",
				From: since.Add(-batchAge), Until: now, FoundAt: now,
			})
		}
	}
	clear(o.since)
	if recorder == nil {
		o.gaps = nil
	}
	ctx, cancel := context.WithTimeout(ctx, gapTimeout)
	defer cancel()
	for ; len(o.gaps) > 0; o.gaps = o.gaps[1:] {
		if err := recorder.RecordGap(ctx, o.gaps[0]); err != nil {
			o.gaps = o.gaps[max(0, len(o.gaps)-maxOutageNames):]
			return err
		}
	}
	return nil
}
