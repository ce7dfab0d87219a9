package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/mintlog/mintlog/ingest/check"
)

// shownProblems is how many unreadable places of each log are printed without --all.
const shownProblems = 20

func checkCommand() *cobra.Command {
	var output string
	var all bool
	c := &cobra.Command{
		Use:   "check [FILE…]",
		Short: "Say what audit logs hold, and what cannot be read in them",
		Long: `check reads audit logs as ingest does, but publishes nothing. For each log and in
total it prints bytes, lines, events, and the matches among them: requests for mints
and revokes by stage, and writes of account Secrets at a final stage. It prints each
place that could not be read: the line, the byte at which it begins, how many bytes,
and why. What stands there is never printed.

A log is a file, or standard input for "-" or without arguments; compressed with gzip
or not. Lines and bytes are those of the decompressed text.

What "could not be read" means:
  A line that could be a match is decoded in full, as ingest does.
  Any other line counts as an event without being decoded if it is valid UTF-8, begins
  with {"kind":"Event","apiVersion":"audit.k8s.io/, has "user" and
  "requestReceivedTimestamp", holds no other beginning of an event and ends as events
  do. This is how kube-apiserver writes them, and it is fast.
  Every other line, whoever wrote it, is decoded in full, which is slower. It is
  readable if it holds whole audit events and nothing else: several in a line are
  several events. A JSON object that lacks kind, apiVersion, user or
  requestReceivedTimestamp, as a log shipper may leave it, is "not an audit event".
  Of a torn line, the event that fills its end is counted, and the rest unreadable.
  A line longer than 8 MiB is unreadable, whatever it holds: ingest skips it too.
  A last line without line break is readable if it is a whole event, else "partial".
  Empty lines are lines and nothing else.

The exit status is 1 if anything could not be read, a missing file or the end of a
truncated gzip file included, and 0 otherwise.`,
		Example: `  mintlog ingest check /var/log/audit/kube/audit*.log*
  kubectl exec -n logs shipper-0 -- cat /audit.log | mintlog ingest check -o json | jq .total.events`,
		RunE: func(c *cobra.Command, paths []string) error {
			report, err := checkReport(c, output)
			if err != nil {
				return err
			}
			if len(paths) == 0 {
				paths = []string{check.StandardInput}
			}
			if first := slices.Index(paths, check.StandardInput); first >= 0 && slices.Contains(paths[first+1:], check.StandardInput) {
				return fmt.Errorf("%s: standard input can be read once", check.StandardInput)
			}
			shown := int64(shownProblems)
			if all {
				shown = -1
			}
			counts, err := check.Run(c.Context(), check.Options{
				Paths: paths, Stdin: c.InOrStdin(), Report: report, Shown: shown, Progress: c.ErrOrStderr(), Now: time.Now,
			})
			if err != nil {
				return err
			}
			if counts.Unreadable > 0 {
				return fmt.Errorf("places that could not be read: %d", counts.Unreadable)
			}
			return nil
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	c.Flags().BoolVar(&all, "all", false, fmt.Sprintf("print every place that could not be read, not only the first %d of each log", shownProblems))
	return c
}

func checkReport(c *cobra.Command, output string) (check.Report, error) {
	switch output {
	case "text":
		return check.Text(c.OutOrStdout()), nil
	case "json":
		return check.JSON(c.OutOrStdout()), nil
	}
	return nil, fmt.Errorf("-o %q: use text or json", output)
}
