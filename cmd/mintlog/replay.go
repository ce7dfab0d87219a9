package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/mintlog/mintlog/cmd/printable"
	"github.com/mintlog/mintlog/store/archive"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/gap"
	"github.com/mintlog/mintlog/store/stream"
)

// replayFlags say what is replayed, whence and whereto.
type replayFlags struct {
	logLevel      string
	where         streamFlags
	mayMake       bool // an embedded stream: where one is to be was said
	from          archiveFlags
	since, until  moment
	nothingBefore bool
	namespace     string
	silence       time.Duration
	cluster       string
}

func replayCommand() *cobra.Command {
	f := &replayFlags{since: moment{text: "30d", ago: 30 * 24 * time.Hour}}
	c := &cobra.Command{
		Use:   "replay",
		Short: "Fill the stream again from the archive, and close gaps",
		Long: `replay reads events back out of VictoriaLogs, those that mintlog archived and those
that Cozystack's own pipeline wrote, and publishes them to the stream, so that the
projector rebuilds its evidence and every history: after a stream was lost, for what
ran before mintlog did, or for a gap that ingest found (mintlog gaps). What the stream
or the archive has already is recognised. What was refused is left out: it changes no
history.

It closes each gap within its range in which another pipeline's events show that the
log was written down there, from just before the gap until just after it, and never
silent for longer than --silence. What mintlog itself archived proves nothing of what
its ingest has missed. A gap before which nothing was ever read has no beginning: say
with --nothing-before that nothing is missing before --since, because that log or your
need to know of it begins there, and it is closed if the range covers it from there on.
Where several clusters write one archive, say with --cluster which is this one; where
several kube-apiservers of it do, nobody can tell from the archive on whose machine that
pipeline was up. Of each open gap it says what became of it, and why. No gap is closed
where rows that look like events of ours cannot be read.

While the stream is full it waits for it to be read; with an embedded stream (--state),
mintlog all must be stopped meanwhile, and nobody reads it: it then ends, and says how
to continue. Exit status 1: not everything in the range was replayed.`,
		Example: `  mintlog replay --nats nats://nats:4222 --victorialogs http://victoria-logs:9428 --since 30d
  mintlog replay --state /var/lib/mintlog --since 2026-03-01T10:00:00Z --until 2026-03-01T14:00:00Z
  mintlog replay --nats nats://nats:4222 --of-namespace tenant-acme`,
		RunE: func(c *cobra.Command, _ []string) error {
			f.mayMake = c.Flags().Changed("state")
			return f.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), time.Now)
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.logLevel, "log-level", "warn", "debug, info, warn or error")
	f.where.bindEmbedded(flags)
	f.from.bind(flags)
	flags.Var(&f.since, "since", "begin there: a duration before now (90m, 30d), a day or a time (2026-03-01T12:00:00Z)")
	flags.Var(&f.until, "until", "end there, in the same words; default: now")
	flags.BoolVar(&f.nothingBefore, "nothing-before", false, "nothing is missing before --since: gaps whose beginning nobody knows begin there; without it they stay open")
	flags.StringVar(&f.namespace, "of-namespace", "", "only events of this namespace; no gap is closed then")
	flags.DurationVar(&f.silence, "silence", time.Minute, "for how long another pipeline may have nothing within a gap that is closed; longer where little is logged")
	flags.StringVar(&f.cluster, "cluster", "", "what other pipelines call this cluster in their field cluster; needed where their rows are of several")
	return noArguments(c)
}

// query is what the flags ask for, seen from now.
func (f *replayFlags) query(now time.Time) (archive.Query, error) {
	q := archive.Query{Start: f.since.from(now), End: f.until.from(now), Namespace: f.namespace}
	if q.End.IsZero() {
		q.End = now
	}
	switch {
	case !q.Start.Before(q.End):
		return q, fmt.Errorf("--since %s is not before --until %s", f.since.text, f.until.text)
	case f.silence < time.Second:
		return q, fmt.Errorf("--silence %s: it is at least 1s", f.silence)
	}
	return q, nil
}

func (f *replayFlags) run(ctx context.Context, out, progress io.Writer, now func() time.Time) (err error) {
	log, err := logger(f.logLevel)
	if err != nil {
		return err
	}
	q, err := f.query(now())
	if err != nil {
		return err
	}
	archived, err := f.from.open()
	if err != nil {
		return err
	}
	if f.where.url == "" && !f.mayMake {
		if err := f.where.embeddedThere(); err != nil {
			return err // who forgot --nats would have filled a stream that nobody reads
		}
	}
	closers := []func() error{}
	s, err := f.where.open(ctx, runtime{log: log, registry: prometheus.NewRegistry(), closers: &closers})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()

	r := &replay{archive: archived, stream: s, query: q, silence: f.silence, nothingBefore: f.nothingBefore, cluster: f.cluster, embedded: f.where.url == "", out: out, now: now}
	telling := r.tell(progress)
	defer telling()
	return r.run(ctx)
}

// A replay fills the stream from the archive.
type replay struct {
	archive       *archive.Archive
	stream        *stream.Stream
	query         archive.Query
	silence       time.Duration
	nothingBefore bool // nothing is missing before the query's start
	cluster       string
	embedded      bool // nobody reads the stream meanwhile
	out           io.Writer
	now           func() time.Time

	tooLarge int

	mu    sync.Mutex
	doing string // guarded by mu, for people
}

func (r *replay) run(ctx context.Context) error {
	// Gaps are judged by what the archive has before it is read: what comes there later is not replayed.
	r.say("looking which gaps the archive covers")
	verdicts, err := r.judge(ctx)
	if err != nil {
		return err
	}
	r.say("asking the archive")
	done, err := r.archive.ReplayInto(ctx, r.query, r.publish, func(done archive.Replayed) {
		r.say(fmt.Sprintf("%d events so far, back to %s", done.Published, done.Reached.Format(time.RFC3339)))
	})
	if err != nil {
		return fmt.Errorf("replay, after %d events: %w%s", done.Published, err, r.onwards(done))
	}
	fmt.Fprintf(r.out, "replayed %d events from %s until %s\n", done.Published-r.tooLarge,
		r.query.Start.UTC().Format(time.RFC3339), r.query.End.UTC().Format(time.RFC3339))
	if done.Refused > 0 {
		fmt.Fprintf(r.out, "left out %d refused attempts and dry runs, which change no history\n", done.Refused)
	}
	if r.tooLarge > 0 {
		return fmt.Errorf("%d events are larger than the stream takes and were left out; no gap is closed", r.tooLarge)
	}
	if done.Unreadable > 0 {
		return fmt.Errorf("%d rows of the archive look like events of ours and cannot be read; no gap is closed", done.Unreadable)
	}
	return r.closeGaps(ctx, verdicts)
}

// onwards says how to continue a replay that ended early. It goes from the newest event to the oldest.
func (r *replay) onwards(done archive.Replayed) string {
	if done.Reached.IsZero() {
		return ""
	}
	return fmt.Sprintf("; to continue, repeat it with --since %s --until %s",
		r.query.Start.UTC().Format(time.RFC3339Nano), done.Reached.Add(time.Microsecond).Format(time.RFC3339Nano))
}

// How long publishing is tried again.
const (
	fullPause   = time.Second
	failedPause = 2 * time.Second
	failedLimit = 2 * time.Minute // while the stream does not answer
)

// publish stores the events durably. It waits while the stream is full, as long as somebody reads it, and for a while
// when it does not answer.
func (r *replay) publish(ctx context.Context, events []event.Event) error {
	failing := time.Time{}
	for {
		err := r.stream.Publish(ctx, events)
		var tooLarge *stream.TooLargeError
		pause := failedPause
		switch {
		case err == nil:
			return nil
		case errors.As(err, &tooLarge):
			r.tooLarge++
			events = slices.Delete(slices.Clone(events), tooLarge.Index, tooLarge.Index+1)
			continue
		case errors.Is(err, stream.ErrFull) && r.embedded:
			return fmt.Errorf("%w: start mintlog all, which reads it, stop it again when mintlog_stream_pending is 0", err)
		case errors.Is(err, stream.ErrFull):
			r.say("the stream is full: waiting until projector and archiver have read of it")
			pause, failing = fullPause, time.Time{}
		case failing.IsZero():
			r.say("the stream does not answer: trying again")
			failing = r.now()
		case r.now().Sub(failing) > failedLimit:
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// A verdict is what may become of a gap that is open.
type verdict struct {
	gap    gap.Gap
	rows   int    // of other pipelines, in and around it
	reason string // why it stays open; empty: it is closed if all is replayed
}

func (r *replay) judge(ctx context.Context) ([]verdict, error) {
	gaps, err := r.stream.Gaps(ctx)
	if err != nil {
		return nil, err
	}
	var verdicts []verdict
	for _, g := range gaps {
		if !g.Open() {
			continue
		}
		v, err := r.judgeOne(ctx, g)
		if err != nil {
			return nil, err
		}
		verdicts = append(verdicts, v)
	}
	return verdicts, nil
}

func (r *replay) judgeOne(ctx context.Context, recorded gap.Gap) (verdict, error) {
	g := recorded
	from, until := g.Window()
	if g.From.IsZero() && r.nothingBefore {
		g.From, from = r.query.Start, r.query.Start
	}
	switch {
	case r.query.Namespace != "":
		return verdict{gap: recorded, reason: "the events of one namespace alone do not fill it"}, nil
	case g.From.IsZero():
		return verdict{gap: recorded, reason: "nobody knows when it begins: say with --nothing-before if it can be no earlier than --since"}, nil
	case !g.From.Before(g.End()):
		return verdict{gap: recorded, reason: "it ends before --since"}, nil
	case r.query.Start.After(from) || !until.Before(r.query.End):
		return verdict{gap: recorded, reason: fmt.Sprintf("the range does not cover it: that takes --since %s and an --until after %s",
			from.UTC().Format(time.RFC3339), until.UTC().Format(time.RFC3339))}, nil
	}
	w, err := r.archive.Witness(ctx, g.From, g.End(), r.silence, r.cluster)
	if err != nil {
		return verdict{}, err
	}
	v := verdict{gap: recorded, rows: w.Rows}
	switch {
	case len(w.Clusters) > 1:
		v.reason = fmt.Sprintf("other pipelines' events there are of the clusters %q: say with --cluster which is this one", w.Clusters)
	case w.Rows == 0 && r.cluster != "":
		v.reason = fmt.Sprintf("the archive has no other pipeline's events of the cluster %q there", r.cluster)
	case w.Rows == 0:
		v.reason = "the archive has no other pipeline's events there, and what mintlog archived proves nothing"
	case !w.Complete():
		v.reason = fmt.Sprintf("other pipelines have nothing from %s until %s, which is longer than --silence %s",
			w.SilentFrom.UTC().Format(time.RFC3339), w.SilentUntil.UTC().Format(time.RFC3339), r.silence)
	}
	return v, nil
}

// closeGaps closes those that are covered, and says what became of each.
func (r *replay) closeGaps(ctx context.Context, verdicts []verdict) error {
	for _, v := range verdicts {
		if v.reason == "" {
			err := r.stream.CloseGap(ctx, v.gap, r.now())
			switch {
			case errors.Is(err, stream.ErrNoSuchGap):
				v.reason = "it has grown meanwhile"
			case err != nil:
				return err
			}
		}
		if v.reason == "" {
			fmt.Fprintf(r.out, "closed the gap of %s: the archive has %d events of other pipelines around it\n", describe(v.gap), v.rows)
		} else {
			fmt.Fprintf(r.out, "left open the gap of %s: %s\n", describe(v.gap), v.reason)
		}
	}
	return nil
}

// describe names a gap on one line that is safe to print.
func describe(g gap.Gap) string {
	bounds := "until " + g.End().UTC().Format(time.RFC3339)
	if !g.From.IsZero() {
		bounds = "from " + g.From.UTC().Format(time.RFC3339) + " " + bounds
	}
	return printable.Name(g.Source) + " " + bounds
}

// say sets what is told of next.
func (r *replay) say(doing string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.doing = doing
}

// tell tells every two seconds what is being done, until the returned function is called.
func (r *replay) tell(progress io.Writer) (stop func()) {
	ticker, done := time.NewTicker(2*time.Second), make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		for {
			select {
			case <-ticker.C:
				r.mu.Lock()
				fmt.Fprintln(progress, r.doing)
				r.mu.Unlock()
			case <-done:
				return
			}
		}
	})
	return func() {
		ticker.Stop()
		close(done)
		telling.Wait()
	}
}
