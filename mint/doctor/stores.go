package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mintlog/mintlog/store/archive"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/gap"
	"github.com/mintlog/mintlog/store/ledger"
	"github.com/mintlog/mintlog/store/stream"
)

const (
	// patience is how long a consumer may stand still: the archiver acknowledges what VictoriaLogs has kept for 6 s.
	patience = 10 * time.Second
	// glance is how far apart its looks at the stream are meanwhile.
	glance = time.Second
)

// Shares of a stream's bound from which on it is nearly full.
const (
	filling    = 0.7
	nearlyFull = 0.9
)

// streamFacts are two looks at the stream, and the gaps.
type streamFacts struct {
	streams       []stream.StreamState
	before, after []stream.ConsumerState
	apart         time.Duration // the looks
	gaps          []gap.Gap
}

func (d *Doctor) lookAtStream(ctx context.Context) []Finding {
	if d.Stream == nil {
		return []Finding{good("not looked at: --nats was not given (the stream of mintlog all is embedded and listens nowhere)")}
	}
	const reach = "see that NATS runs with JetStream, that --nats leads there from this machine, and that --nats-credentials may look at the streams"
	var f streamFacts
	var err error
	if _, f.before, err = d.Stream.Inspect(ctx); err != nil {
		return []Finding{fail(reach, "the stream cannot be looked at: %s", words(err))}
	}
	if f.gaps, err = d.Stream.Gaps(ctx); err != nil {
		return []Finding{fail(reach, "the gaps cannot be read: %s", words(err))}
	}
	for began := d.Now(); ; {
		if f.streams, f.after, err = d.Stream.Inspect(ctx); err != nil {
			return []Finding{fail(reach, "the stream cannot be looked at: %s", words(err))}
		}
		f.apart = d.Now().Sub(began)
		if f.apart >= patience || !slices.ContainsFunc(f.after, f.stands) {
			return judgeStream(f)
		}
		select {
		case <-ctx.Done():
			return judgeStream(f)
		case <-time.After(glance):
		}
	}
}

// stands reports whether something waited for a consumer at the first look, and it has handled nothing until the last.
func (f streamFacts) stands(c stream.ConsumerState) bool {
	i := slices.IndexFunc(f.before, func(b stream.ConsumerState) bool { return b.Name == c.Name })
	if i < 0 || waiting(f.before[i]) == 0 || waiting(c) == 0 || c.Handled != f.before[i].Handled {
		return false
	}
	return c.Name != stream.ProjectorIntents || c.Delivered == f.before[i].Delivered
}

// waiting is what a consumer has before it. The projector keeps a RequestReceived for more than a minute, until the final
// event can come no more: what was handed to it does not wait.
func waiting(c stream.ConsumerState) uint64 {
	if c.Name == stream.ProjectorIntents {
		return c.Pending
	}
	return c.Pending + uint64(max(c.Unsettled, 0))
}

func judgeStream(f streamFacts) []Finding {
	const parts = "see that ingest, projector and archiver run: each creates what is missing when it starts"
	var findings []Finding
	var bytes uint64
	for _, s := range f.streams {
		bytes += s.Bytes
		full := 0.0
		if s.MaxBytes > 0 && !s.Discards {
			full = float64(s.Bytes) / float64(s.MaxBytes)
		}
		switch {
		case s.Missing:
			findings = append(findings, fail(parts, "%s is missing", s.Name))
		case full >= nearlyFull:
			findings = append(findings, fail("see that projector and archiver read it; raise --stream-max-bytes or --evidence-max-bytes", "%s is %.0f %% full: it takes no more when it is full", s.Name, 100*full))
		case full >= filling:
			findings = append(findings, warn("see that projector and archiver read it; raise --stream-max-bytes or --evidence-max-bytes", "%s is %.0f %% full", s.Name, 100*full))
		}
		if s.Offline > 0 || s.Current > 0 && s.Current < s.Replicas {
			findings = append(findings, warn("see that every server of the NATS cluster runs", "%s has %d of %d replicas in step", s.Name, s.Current, s.Replicas))
		}
	}
	for i, c := range f.after {
		part, _, _ := strings.Cut(string(c.Name), "-")
		switch {
		case c.Missing:
			findings = append(findings, fail(parts, "the consumer %s is missing: events are kept for existing consumers only", c.Name))
		case !f.stands(c):
		case c.Pending > 0 && c.Unsettled == 0 && c.Readers == 0 && c.Delivered == f.before[i].Delivered:
			findings = append(findings, fail("see that the "+part+" runs", "%d events wait for the %s (%s) and nobody reads them", waiting(c), part, c.Name))
		default:
			findings = append(findings, warn("see the log of the "+part+": what it writes to may be down", "%d events wait for the %s (%s), and it handled none for %s", waiting(c), part, c.Name, f.apart.Round(time.Second)))
		}
	}
	findings = append(findings, judgeGaps(f.gaps)...)
	if !slices.ContainsFunc(findings, func(f Finding) bool { return f.Verdict != OK }) {
		findings = append(findings, good("%d streams with %d KiB, %d consumers that keep up, no gap open", len(f.streams), bytes>>10, len(f.after)))
	}
	return findings
}

func judgeGaps(list []gap.Gap) []Finding {
	var open []string
	for _, g := range list {
		if !g.Open() {
			continue
		}
		from := "the beginning"
		if !g.From.IsZero() {
			from = g.From.UTC().Format(time.RFC3339)
		}
		open = append(open, fmt.Sprintf("%s from %s to %s (%s)", g.Source, from, g.End().UTC().Format(time.RFC3339), g.Reason))
	}
	if len(open) == 0 {
		return nil
	}
	return []Finding{warn("mintlog replay over that time, if another pipeline archives the audit log too; mintlog gaps lists them", "%d gaps are open in audit logs: %s", len(open), some(open))}
}

// operationFacts are the newest mint or revocation that any account's ledger has, and its event in the archive.
type operationFacts struct {
	namespace, credential string
	entry                 ledger.Entry
	found                 bool
	from, until           time.Time // of the event, by kube-apiserver's clock
}

// settled is the age from which an operation's event should be in the archive.
const settled = 2 * time.Minute

// The clocks of kube-apiserver and mint server may be that far apart in a join; the mint server writes until so long
// after an event's end.
const (
	joinSkew  = 5 * time.Second
	joinAfter = 10 * time.Second
)

// readNewest is nil where no ledger has an operation that somebody asked for.
func (d *Doctor) readNewest(ctx context.Context) (*operationFacts, error) {
	secrets, err := d.secrets()
	if err != nil {
		return nil, err
	}
	newest := newestOperation(secrets)
	if newest == nil || d.Archive == nil {
		return newest, nil
	}
	q := archive.Query{
		Namespace: newest.namespace, Credential: newest.credential, AuditID: newest.entry.AuditID,
		Start: newest.entry.At.Add(-clocksApart), End: newest.entry.At.Add(clocksApart),
	}
	err = d.Archive.Query(ctx, q, func(e event.Event) error {
		if _, ok := e.Operation(); ok && e.Eligible() && (!newest.found || e.Stage != event.RequestReceived) {
			newest.found, newest.from, newest.until = true, e.RequestReceivedTimestamp, e.StageTimestamp
		}
		return nil
	})
	return newest, err
}

func newestOperation(secrets []secretFacts) *operationFacts {
	var newest *operationFacts
	for _, s := range secrets {
		for _, e := range s.entries {
			if e.AuditID != "" && (newest == nil || e.At.After(newest.entry.At)) {
				newest = &operationFacts{namespace: s.namespace, credential: strings.TrimSuffix(s.name, event.AccountSecretSuffix), entry: e}
			}
		}
	}
	return newest
}

func (d *Doctor) lookAtArchive(ctx context.Context) []Finding {
	if d.Archive == nil {
		return []Finding{warn("give --victorialogs", "not looked at: --victorialogs was not given")}
	}
	state, err := d.Archive.State(ctx)
	if err != nil {
		return []Finding{fail("see that VictoriaLogs runs, and that --victorialogs leads there from this machine", "the archive cannot be asked: %s", words(err))}
	}
	findings := []Finding{judgeRetention(state.Retention, d.Retention)}
	newest, err := d.newest()
	if err != nil {
		return append(findings, unseen(err, rightSecrets))
	}
	return append(findings, judgeNewest(newest, state.Retention, d.Now()))
}

func judgeRetention(keeps, wanted time.Duration) Finding {
	days := func(t time.Duration) string { return fmt.Sprintf("%.4g days", t.Hours()/24) }
	switch {
	case keeps == 0:
		return warn("see that VictoriaLogs' -retentionPeriod is at least "+days(wanted), "the archive answers; it does not say for how long it keeps events")
	case keeps < wanted:
		return fail("raise VictoriaLogs' -retentionPeriod, or lower the mint server's --retention (and give doctor the same)", "the archive keeps events for %s, and the mint server counts on %s: older operations are taken for Unattributed when histories are rebuilt", days(keeps), days(wanted))
	}
	return good("the archive answers, and keeps events for %s of the %s that the mint server counts on", days(keeps), days(wanted))
}

func judgeNewest(o *operationFacts, keeps time.Duration, now time.Time) Finding {
	if o == nil {
		return good("no account has an operation yet whose event it should have")
	}
	what := fmt.Sprintf("the newest operation (%s of %s/%s at %s)", o.entry.Operation, o.namespace, o.credential, o.entry.At.UTC().Format(time.RFC3339))
	age := now.Sub(o.entry.At)
	switch {
	case o.found:
		return good("it has the event of %s", what)
	case keeps > 0 && age > keeps:
		return good("%s is older than what it keeps", what)
	case age < settled:
		return good("%s is too young to be missed", what)
	}
	return warn("see the checks events and stream; if both are well, mintlog gaps says what is known to be missing, and mintlog replay fetches what another pipeline has", "it has no event of %s", what)
}
