package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mintlog/mintlog/store/archive"
	"github.com/mintlog/mintlog/store/ledger"
)

// whoFlags say what is asked of the archive.
type whoFlags struct {
	archive                         archiveFlags
	since, until                    moment
	namespace, credential, by, verb string
	denied, follow                  bool
	limit                           int
	output                          string
	mintUsers                       []string
}

func whoCommand() *cobra.Command {
	f := &whoFlags{since: moment{text: "24h", ago: 24 * time.Hour}}
	c := &cobra.Command{
		Use:   "who",
		Short: "Ask the archive who rotated which password",
		Long: `who asks VictoriaLogs who asked for mints and revokes, newest first: who (WHO), on
behalf of whom somebody else logged in (THROUGH is who really did), with which
credential (WITH: the id of a token or the digest of a certificate, and the pod of a
ServiceAccount), with what answer, and what became of it (EFFECT):

  Done      the mint server's write of the password stands in the log as well
  Reported  the mint server answered with success; the archive has no write
  Unknown   no answer that proves anything and no write: a client can skew the answer
            that is logged. "kubectl credentials history" knows, from the ledger

Without --denied, what was refused and what was a dry run is left out: it changed
nothing. Events are found in both shapes, mintlog's own and Cozystack's pipeline's.`,
		Example: `  mintlog who --since 30d --namespace tenant-acme
  mintlog who --credential postgres-orders.app --until 2026-03-01 -o json
  mintlog who --by jane --operation revoke
  mintlog who --denied --since 1h
  mintlog who --follow`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := checkGiven(c.Flags(), "namespace", "credential", "by", "operation"); err != nil {
				return err
			}
			return f.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), time.Now)
		},
	}
	flags := c.Flags()
	f.archive.bind(flags)
	flags.Var(&f.since, "since", "begin there: a duration before now (90m, 30d), a day or a time (2026-03-01T12:00:00Z)")
	flags.Var(&f.until, "until", "end there, in the same words; default: now")
	flags.StringVarP(&f.namespace, "namespace", "n", "", "only this namespace; default: all")
	flags.StringVar(&f.credential, "credential", "", "only this credential, <release>.<account>")
	flags.StringVar(&f.by, "by", "", "only what this user asked for, or asked for on behalf of another")
	flags.StringVar(&f.verb, "operation", "", "mint or revoke; default: both")
	flags.BoolVar(&f.denied, "denied", false, "only what was refused")
	flags.IntVar(&f.limit, "limit", 0, "the newest this many; default: all")
	flags.BoolVarP(&f.follow, "follow", "f", false, "go on with what comes, oldest first, until interrupted")
	flags.StringVarP(&f.output, "output", "o", "table", "table, json (one object a line) or csv")
	flags.StringSliceVar(&f.mintUsers, "mint-user", []string{"system:serviceaccount:mintlog:mint"}, "user names of the mint server: the write of nobody else is a commit")
	return noArguments(c)
}

// checkGiven wants a text in the flags that narrow an answer: one that a script left empty would give everybody's.
func checkGiven(flags *pflag.FlagSet, names ...string) error {
	for _, name := range names {
		if flag := flags.Lookup(name); flag.Changed && flag.Value.String() == "" {
			return fmt.Errorf("--%s is empty: leave it away to ask about all", name)
		}
	}
	return nil
}

// query is what the flags ask for, seen from now.
func (f *whoFlags) query(now time.Time) (archive.Query, error) {
	q := archive.Query{Start: f.since.from(now), End: f.until.from(now), Namespace: f.namespace, Credential: f.credential, User: f.by}
	switch strings.ToLower(f.verb) {
	case "":
	case "mint":
		q.Operation = ledger.Mint
	case "revoke":
		q.Operation = ledger.Revoke
	default:
		return q, fmt.Errorf("--operation %q: it is mint or revoke", f.verb)
	}
	switch {
	case !q.End.IsZero() && !q.Start.Before(q.End):
		return q, fmt.Errorf("--since %s is not before --until %s", f.since.text, f.until.text)
	case f.follow && !q.End.IsZero():
		return q, errors.New("--follow goes on for ever: leave --until away")
	case f.follow && f.limit != 0:
		return q, errors.New("--follow goes on for ever: leave --limit away")
	case f.limit < 0:
		return q, fmt.Errorf("--limit %d: it is at least 1; 0 is no limit", f.limit)
	}
	return q, nil
}

// run answers once, or again and again.
func (f *whoFlags) run(ctx context.Context, out, progress io.Writer, now func() time.Time) error {
	archived, err := f.archive.open()
	if err != nil {
		return err
	}
	q, err := f.query(now())
	if err != nil {
		return err
	}
	print, err := newAnswers(f.output, out, terminalWidth(out))
	if err != nil {
		return err
	}
	if f.follow {
		return f.watch(ctx, archived, q, print, progress, now)
	}
	count := 0
	searching := time.AfterFunc(2*time.Second, func() { fmt.Fprintln(progress, "asking the archive …") })
	defer searching.Stop()
	err = archived.Requests(ctx, q, f.mintUsers, func(a archive.Asked) error {
		if !f.wanted(&a) {
			return nil
		}
		searching.Stop()
		if err := print.add(&a); err != nil {
			return err
		}
		if count++; count == f.limit {
			return errLimit
		}
		return nil
	})
	if errors.Is(err, errLimit) {
		err = nil
	}
	if err := errors.Join(err, print.flush()); err != nil {
		return err
	}
	if count == 0 {
		fmt.Fprintln(progress, "The archive has no such request.")
	}
	return nil
}

var errLimit = errors.New("as many as were asked for")

// wanted leaves out what changed nothing, or what was not refused.
func (f *whoFlags) wanted(a *archive.Asked) bool {
	effect := a.Effect()
	return f.denied == (effect == archive.Refused) && effect != archive.DryRun
}

// How --follow looks: every followInterval, at what was received within followWindow, for what has settled.
const (
	followInterval = 2 * time.Second
	followWindow   = 15 * time.Minute
	followSettling = 5 * time.Second
)

// watch prints requests as they come to the archive, oldest first. One that comes later than followWindow is missed. An
// archive that fails once it has answered is asked again, from where it answered last.
func (f *whoFlags) watch(ctx context.Context, archived *archive.Archive, q archive.Query, print answers, progress io.Writer, now func() time.Time) error {
	told := map[string]time.Time{} // by identity: when it was received
	answered, failing := false, false
	for ctx.Err() == nil {
		asked := now()
		var fresh []archive.Asked
		err := archived.Requests(ctx, q, f.mintUsers, func(a archive.Asked) error {
			id := a.Event.Identity()
			settled := a.Commit != nil || a.Effect() == archive.Refused || now().Sub(a.Event.StageTimestamp) > followSettling
			if _, known := told[id]; !known && settled && f.wanted(&a) {
				told[id] = a.Event.RequestReceivedTimestamp
				fresh = append(fresh, a)
			}
			return nil
		})
		switch {
		case err == nil:
			if from := asked.Add(-followWindow); q.Start.Before(from) {
				q.Start = from
			}
			answered, failing = true, false
		case ctx.Err() != nil:
		case !answered:
			return err
		case !failing:
			failing = true
			fmt.Fprintf(progress, "The archive fails, and is asked again: %s\n", shown(err))
		}
		for _, a := range slices.Backward(fresh) {
			if err := print.add(&a); err != nil {
				return err
			}
		}
		if err := print.flush(); err != nil {
			return err
		}
		for id, received := range told {
			if received.Before(q.Start) {
				delete(told, id)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(followInterval):
		}
	}
	return nil
}
