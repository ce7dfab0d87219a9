package archive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/stream"
)

// Defaults and bounds of an Archiver.
const (
	defaultBatch  = 500
	defaultWait   = time.Second
	defaultSettle = 6 * time.Second // VictoriaLogs writes what it took to disk within five
	defaultTries  = 5

	defaultVisible = 3 * time.Second // VictoriaLogs shows what it took after about one

	// maxHeld is how many events of one consumer wait for their confirmation at a time.
	maxHeld = 10_000
	// maxMissed is of how many events of one consumer misses are counted: of those that the stream has dropped meanwhile
	// nothing more is heard, and it hands out half as many before they are acknowledged.
	maxMissed  = 40_000
	maxBackoff = 30 * time.Second
	// maxDelay is how long an event that is missing again and again waits for its next try.
	maxDelay = 10 * time.Minute
	// callTimeout ends what an archive that hangs was asked, well within the time in which a message is acknowledged.
	callTimeout = 20 * time.Second
	// retentionAge is how long VictoriaLogs' configuration is taken to be what it was.
	retentionAge = 10 * time.Minute
)

// ArchiverOptions say from where an Archiver reads, where to it writes, and how patiently.
type ArchiverOptions struct {
	Archive *Archive
	Stream  *stream.Stream

	Batch   int           // events fetched at a time; 0: 500
	Wait    time.Duration // for a batch to fill; 0: a second
	Visible time.Duration // how long VictoriaLogs may take to show what it was sent; 0: 3 s
	// Settle is the time between an insert and the read-back that counts; 0: 6 s. If VictoriaLogs needs longer to
	// write to disk (-inmemoryDataFlushInterval), its crash can lose events.
	Settle time.Duration
	Tries  int // times that an event may be missing while others sent with it are there; 0: 5

	Now        func() time.Time // nil: time.Now
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// An Archiver brings the events of the stream into the archive. It acknowledges an event when it has read it back,
// later than VictoriaLogs needs to write it to disk, and asks what is there before it inserts, so a restart repeats
// nothing.
type Archiver struct {
	options ArchiverOptions
	metrics *archiverMetrics

	mu        sync.Mutex
	retention retention // guarded by mu, as is the next
	readAt    time.Time
}

type archiverMetrics struct {
	inserted, found, acknowledged, unconfirmed, errors prometheus.Counter
	setAside                                           *prometheus.CounterVec
	held                                               *prometheus.GaugeVec
}

func newArchiverMetrics(registerer prometheus.Registerer) (*archiverMetrics, error) {
	var collectors []prometheus.Collector
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "mintlog_archive_" + name, Help: help})
		collectors = append(collectors, c)
		return c
	}
	m := &archiverMetrics{
		inserted:     counter("inserted_total", "Events sent to VictoriaLogs."),
		found:        counter("found_total", "Events that VictoriaLogs had before they were sent."),
		acknowledged: counter("acknowledged_total", "Messages acknowledged after their event was read back."),
		unconfirmed:  counter("unconfirmed_total", "Events that were sent and not found when read back; each is tried again."),
		errors:       counter("errors_total", "Calls of VictoriaLogs or the stream that failed; each is tried again."),
		setAside: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mintlog_archive_set_aside_total", Help: "Events that are not archived, by reason.",
		}, []string{"reason"}),
		held: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "mintlog_archive_held", Help: "Events sent that wait for their confirmation.",
		}, []string{"consumer"}),
	}
	for _, reason := range []string{reasonTooLong, reasonRetention, reasonUnconfirmed} { // so that the first increase is seen
		m.setAside.WithLabelValues(reason)
	}
	if registerer == nil {
		return m, nil
	}
	var err error
	for _, c := range append(collectors, m.setAside, m.held) {
		err = errors.Join(err, registerer.Register(c))
	}
	return m, err
}

// Why an event is not archived.
const (
	reasonTooLong     = "too_long"
	reasonRetention   = "retention"
	reasonUnconfirmed = "unconfirmed"
)

// NewArchiver returns an Archiver that Run starts.
func NewArchiver(o ArchiverOptions) (*Archiver, error) {
	if o.Batch <= 0 {
		o.Batch = defaultBatch
	}
	if o.Wait <= 0 {
		o.Wait = defaultWait
	}
	if o.Visible <= 0 {
		o.Visible = defaultVisible
	}
	if o.Settle <= 0 {
		o.Settle = defaultSettle
	}
	if o.Tries <= 0 {
		o.Tries = defaultTries
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	m, err := newArchiverMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("register the archiver's metrics: %w", err)
	}
	return &Archiver{options: o, metrics: m}, nil
}

// Run archives events and gaps until ctx is done and then returns nil. While VictoriaLogs is down they stay in the stream.
func (a *Archiver) Run(ctx context.Context) error {
	// What an Archiver before this one sent in its last moment has to be visible before it is asked for.
	sleep(ctx, a.options.Visible)
	var running sync.WaitGroup
	for _, consumer := range []stream.Consumer{stream.ArchiverEvents, stream.ArchiverIntents, stream.ArchiverAttempts} {
		running.Go(func() { a.newFill(consumer).run(ctx) })
	}
	running.Go(func() { a.archiveGaps(ctx) })
	running.Wait()
	return nil
}

// A fill brings the events of one consumer into the archive.
type fill struct {
	*Archiver
	consumer stream.Consumer
	log      *slog.Logger
	held     map[string]*held // by identity of the event
	missed   map[string]misses

	// doubtful: something may have been sent that is not shown yet, by this archiver or by one before it.
	doubtful bool
}

// misses counts the read-backs of an event in vain.
type misses struct {
	all     int
	counted int // those at which others were found: the archive worked, and this event was dropped
}

// held stands for an event that the archive was sent or has, until that is read back. The event itself is let go: what
// is held has no more than a few hundred bytes each.
type held struct {
	reference
	messages []*stream.Message
	due      time.Time
}

func (a *Archiver) newFill(consumer stream.Consumer) *fill {
	return &fill{
		Archiver: a, consumer: consumer, log: a.options.Log.With("consumer", string(consumer)),
		held: map[string]*held{}, missed: map[string]misses{}, doubtful: true,
	}
}

func (f *fill) run(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
		err := f.step(ctx)
		f.metrics.held.WithLabelValues(string(f.consumer)).Set(float64(len(f.held)))
		if err == nil {
			failures = 0
			continue
		}
		if ctx.Err() != nil {
			return
		}
		failures++
		f.metrics.errors.Inc()
		f.log.Warn("archiving", "error", err)
		sleep(ctx, backoff(failures))
	}
}

// step takes what the stream has and confirms what is due.
func (f *fill) step(ctx context.Context) error {
	if len(f.held) < maxHeld {
		messages, err := f.options.Stream.Fetch(ctx, f.consumer, f.options.Batch, f.options.Wait)
		if err != nil {
			return fmt.Errorf("fetch: %w", err)
		}
		if err := f.take(ctx, messages); err != nil {
			return err
		}
	} else {
		sleep(ctx, f.options.Wait)
	}
	return f.confirm(ctx)
}

// take sends the events that the archive does not have yet. On an error the messages are given back.
func (f *fill) take(ctx context.Context, messages []*stream.Message) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	fresh := map[string]*held{}
	var list []event.Event
	for _, m := range messages {
		r := referenceTo(&m.Event)
		if h := f.held[r.identity]; h != nil {
			h.messages = append(h.messages, m)
		} else if h := fresh[r.identity]; h != nil {
			h.messages = append(h.messages, m)
		} else {
			fresh[r.identity] = &held{reference: r, messages: []*stream.Message{m}}
			list = append(list, m.Event)
		}
		m.Event = event.Event{}
	}
	if len(list) == 0 {
		return nil
	}
	if err := f.insertMissing(ctx, list, fresh); err != nil {
		for _, h := range fresh {
			f.giveBack(h, 0)
		}
		return err
	}
	due := f.options.Now().Add(f.options.Settle)
	for id, h := range fresh {
		h.due = due
		f.held[id] = h
	}
	return nil
}

// insertMissing sends what is not there, and takes out of fresh what can never be.
func (f *fill) insertMissing(ctx context.Context, list []event.Event, fresh map[string]*held) error {
	if f.doubtful {
		if err := f.options.Archive.show(ctx); err != nil {
			f.log.Info("the archive cannot be made to show what it has; it was given time to", "error", err)
		}
	}
	references := make([]reference, len(list))
	for i := range list {
		references[i] = referenceTo(&list[i])
	}
	present, err := f.options.Archive.present(ctx, references)
	if err != nil {
		return err
	}
	f.doubtful = false
	f.metrics.found.Add(float64(len(present)))
	if err := f.leaveForeign(ctx, list, present, fresh); err != nil {
		return err
	}
	bounds := f.bounds(ctx)
	var lines [][]byte
	for i := range list {
		id := references[i].identity
		if present[id] || fresh[id] == nil {
			continue
		}
		if !bounds.takes(rowTime(&list[i]), f.options.Now()) {
			f.setAside(fresh[id], reasonRetention)
			delete(fresh, id)
			continue
		}
		line, err := encode(&list[i])
		if err != nil { // it is too long, or no JSON can hold it: trying again would not help
			f.setAside(fresh[id], reasonTooLong)
			delete(fresh, id)
			continue
		}
		lines = append(lines, line)
	}
	if err := f.options.Archive.insertLines(ctx, lines); err != nil {
		f.doubtful = true
		return err
	}
	f.metrics.inserted.Add(float64(len(lines)))
	return nil
}

// leaveForeign acknowledges, and takes out of fresh, what a replay brought out of the archive and another pipeline has
// put there: in that pipeline's shape it has no id of ours, and to insert it would be to have it twice.
func (f *fill) leaveForeign(ctx context.Context, list []event.Event, present map[string]bool, fresh map[string]*held) error {
	var replayed []event.Event
	for i := range list {
		if list[i].Source == sourceArchive && !present[list[i].Identity()] {
			replayed = append(replayed, list[i])
		}
	}
	foreign, err := f.options.Archive.foreign(ctx, replayed)
	if err != nil {
		return err
	}
	f.metrics.found.Add(float64(len(foreign)))
	for id := range foreign {
		f.acknowledge(fresh[id])
		delete(fresh, id)
	}
	return nil
}

// confirm acknowledges what is read back when it is due, and gives back what is missing.
func (f *fill) confirm(ctx context.Context) error {
	now := f.options.Now()
	var due []reference
	for _, h := range f.held {
		if !now.Before(h.due) {
			due = append(due, h.reference)
		}
	}
	if len(due) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	present, err := f.options.Archive.present(ctx, due)
	missing := 0
	for _, r := range due {
		id := r.identity
		h := f.held[id]
		delete(f.held, id)
		switch {
		case err != nil:
			f.giveBack(h, 0)
		case present[id]:
			delete(f.missed, id)
			f.acknowledge(h)
		default:
			missing++
			f.missing(id, h, len(present) > 0)
		}
	}
	if missing > 0 {
		f.doubtful = true
		f.log.Warn("events were sent and are not in the archive; they are tried again", "events", missing, "of", len(due))
	}
	return err
}

func (f *fill) acknowledge(h *held) {
	for _, m := range h.messages {
		if err := m.Ack(); err != nil {
			f.log.Warn("acknowledge", "sequence", m.Sequence, "error", err)
			continue
		}
		f.metrics.acknowledged.Inc()
	}
}

// missing gives an event back, later each time, or sets it aside. While nothing at all is found the archive is at fault
// and not the event.
func (f *fill) missing(id string, h *held, othersFound bool) {
	f.metrics.unconfirmed.Inc()
	m, known := f.missed[id]
	if !known && len(f.missed) >= maxMissed {
		for forgotten := range f.missed {
			delete(f.missed, forgotten) // it counts anew if it comes again
			break
		}
	}
	m.all++
	if othersFound {
		m.counted++
	}
	if m.counted >= f.options.Tries {
		delete(f.missed, id)
		f.setAside(h, reasonUnconfirmed)
		return
	}
	f.missed[id] = m
	f.giveBack(h, m.all-1)
}

// giveBack asks for the messages again when what was sent of them must be visible, and later after each miss.
func (f *fill) giveBack(h *held, missesBefore int) {
	delay := min(f.options.Visible<<min(missesBefore, 16), maxDelay)
	for _, m := range h.messages {
		if err := m.NakWithDelay(delay + rand.N(f.options.Visible)); err != nil {
			f.log.Warn("give a message back", "sequence", m.Sequence, "error", err)
		}
	}
}

func (f *fill) setAside(h *held, reason string) {
	f.metrics.setAside.WithLabelValues(reason).Inc()
	f.log.Error("an event is not archived", "reason", reason, "event", h.identity, "received", h.time)
	for _, m := range h.messages {
		if err := m.Term("not archived: " + reason); err != nil {
			f.log.Warn("set a message aside", "sequence", m.Sequence, "error", err)
		}
	}
}

// bounds is the archive's retention as it was last read; what was never read has no bound.
func (a *Archiver) bounds(ctx context.Context) retention {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := a.options.Now(); a.readAt.IsZero() || now.Sub(a.readAt) > retentionAge {
		r, err := a.options.Archive.retention(ctx)
		if err != nil {
			a.options.Log.Warn("the archive does not say what it retains", "error", err)
		} else {
			a.retention = r
		}
		a.readAt = now
	}
	return a.retention
}

// backoff is longer the more attempts failed, and never the same length twice.
func backoff(failures int) time.Duration {
	longest := min(250*time.Millisecond<<min(failures, 10), maxBackoff)
	return longest/2 + rand.N(longest/2)
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
