package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/mintlog/mintlog/cmd/printable"
	"github.com/mintlog/mintlog/store/gap"
	"github.com/mintlog/mintlog/store/stream"
)

// knownGaps are the gaps that were open when the stream was last read. They are there while it is down.
type knownGaps struct{ open atomic.Pointer[[]gap.Gap] }

// OpenGaps are those that no replay has closed.
func (k *knownGaps) OpenGaps() []gap.Gap {
	if open := k.open.Load(); open != nil {
		return *open
	}
	return nil
}

// follow is the part that keeps them as the stream has them.
func (k *knownGaps) follow(s *stream.Stream) part {
	return func(ctx context.Context) error {
		return s.FollowGaps(ctx, func(list []gap.Gap) {
			list = slices.DeleteFunc(list, func(g gap.Gap) bool { return !g.Open() })
			k.open.Store(&list)
		})
	}
}

func gapsCommand() *cobra.Command {
	var logLevel, output string
	var where streamFlags
	var open bool
	c := &cobra.Command{
		Use:   "gaps",
		Short: "List the parts of audit logs that are known to be missing",
		Long: `gaps lists what ingest found missing of audit logs, found last first: from when until
when, why, and whether a replay has closed it, and says which replay can close those
that are open. An operation in an open gap that no event explains has the finding Gap
beside Unattributed.

It asks an external stream (--nats), or a stopped mintlog all's (--state). While mintlog
all runs, the metric mintlog_gaps_open says how many are open, and VictoriaLogs has them:
_stream:{log_source="mintlog_gap"}.`,
		Example: `  mintlog gaps --nats nats://nats:4222 --open
  mintlog gaps --state /var/lib/mintlog -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("--output %q: it is table or json", output)
			}
			log, err := logger(logLevel)
			if err != nil {
				return err
			}
			list, err := listGaps(c.Context(), &where, runtime{log: log, registry: prometheus.NewRegistry(), closers: &[]func() error{}})
			if err != nil {
				return err
			}
			if open {
				list = slices.DeleteFunc(list, func(g gap.Gap) bool { return !g.Open() })
			}
			if output == "json" {
				return printGapsJSON(c.OutOrStdout(), list)
			}
			return printGaps(c.OutOrStdout(), list)
		},
	}
	flags := c.Flags()
	flags.StringVar(&logLevel, "log-level", "warn", "debug, info, warn or error")
	where.bindServer(flags)
	where.bindState(flags)
	flags.BoolVar(&open, "open", false, "only those that are open")
	flags.StringVarP(&output, "output", "o", "table", "table, or json (one object a line)")
	return noArguments(c)
}

// listGaps reads them and creates nothing.
func listGaps(ctx context.Context, where *streamFlags, p runtime) (list []gap.Gap, err error) {
	if where.url == "" {
		if err := where.embeddedThere(); err != nil {
			return nil, err
		}
	}
	open := where.open
	if where.url != "" {
		open = where.openExisting
	}
	s, err := open(ctx, p)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	list, err = s.Gaps(ctx)
	if errors.Is(err, nats.ErrReconnectBufExceeded) { // its words for that there is no connection
		return nil, errors.New("--nats: no server answers there")
	}
	return list, err
}

func printGaps(out io.Writer, list []gap.Gap) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(out, "No gaps are known.")
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "STATE\tSOURCE\tFROM\tUNTIL\tBYTES\tFOUND\tREASON")
	for _, g := range list {
		state, from, bytes := "Open", "<unknown>", "<unknown>"
		if !g.Open() {
			state = "Closed"
		}
		if !g.From.IsZero() {
			from = g.From.UTC().Format(time.RFC3339)
		}
		if g.Bytes > 0 {
			bytes = fmt.Sprint(g.Bytes)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", state, printable.Name(g.Source), from,
			g.End().UTC().Format(time.RFC3339), bytes, g.FoundAt.UTC().Format(time.RFC3339), printable.Escape(g.Reason))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(out, remedy(list))
	return err
}

// remedy says what can be done about those that are open; nothing if none is.
func remedy(list []gap.Gap) string {
	var since, until time.Time
	open, beginless := 0, 0
	for _, g := range list {
		if !g.Open() {
			continue
		}
		from, end := g.Window()
		if open++; from.IsZero() {
			beginless++
		} else if since.IsZero() || from.Before(since) {
			since = from
		}
		if end.After(until) {
			until = end
		}
	}
	if open == 0 {
		return ""
	}
	text := fmt.Sprintf("\nWhere another pipeline's events in VictoriaLogs cover the %d that are open, this fills and closes them:\n  mintlog replay", open)
	if beginless < open {
		text += " --since " + since.UTC().Format(time.RFC3339)
	} else {
		text += " --since TIME"
	}
	text += " --until " + until.UTC().Truncate(time.Second).Add(time.Second).Format(time.RFC3339)
	if beginless > 0 {
		text += " --nothing-before\nwith a --since before which nothing can be missing, or nobody needs it: nothing was ever read before some of them."
	}
	return text + "\n"
}

func printGapsJSON(out io.Writer, list []gap.Gap) error {
	for _, g := range list {
		text, err := json.Marshal(g)
		if err != nil {
			return fmt.Errorf("print a gap: %w", err)
		}
		if _, err := fmt.Fprintf(out, "%s\n", printable.JSON(text)); err != nil {
			return err
		}
	}
	return nil
}
