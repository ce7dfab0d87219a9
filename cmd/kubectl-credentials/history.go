package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mintlog/mintlog/cmd/printable"
	"github.com/mintlog/mintlog/mint/api/v1alpha1"
)

func newHistory(c *connection) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "history NAME",
		Short: "Show who changed a password, newest first",
		Long: `Show the newest operations on a credential, newest first, at most ten: what was done comes from the account's own
ledger, and who asked for it from the cluster's audit log (BY; THROUGH is who really logged in, if it was on behalf of
another). Where the two disagree there is a finding, and it is told in plain words.

With -o json or yaml the whole credential is printed: the operations stand in .status.history, newest first.`,
		Example: `  kubectl credentials history postgres-orders.app
  kubectl credentials history postgres-orders.app -o json | jq -r '.status.history[0].id'`,
		Args:              oneName,
		ValidArgsFunction: c.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "" && output != "json" && output != "yaml" {
				return usage("there is no output format %q: it is json or yaml", output)
			}
			client, err := c.open()
			if err != nil {
				return err
			}
			return client.history(cmd.Context(), c.terminal, credentialName(args[0]), output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "Output format: json or yaml; for people if absent.")
	return cmd
}

func (c *client) history(ctx context.Context, t terminal, credential, output string) error {
	text, err := c.get(ctx, credential)
	if err != nil {
		return err
	}
	if output != "" {
		return printObject(t.out, text, output)
	}
	answer, err := decodeCredential(text)
	if err != nil {
		return err
	}
	_, err = io.WriteString(t.out, describe(answer, t.now(), t.width))
	return written(err)
}

// describe is a credential's history for people, in lines of the width of a terminal; 0: of any.
func describe(c v1alpha1.Credential, now time.Time, width int) string {
	var b strings.Builder
	say := func(indent, format string, args ...any) {
		b.WriteString(wrapped(fmt.Sprintf(format, args...), indent, width))
	}
	say("", "%s in %s: user %s of %s %s, stored as %s", printable.Name(c.Name), printable.Name(c.Namespace), printable.Name(c.Spec.Username),
		printable.Name(c.Spec.Application.Kind), printable.Name(c.Spec.Application.Name), printable.Name(c.Spec.Format))
	say("", "%s", origin(c.Status.Password.Origin))
	if waiting := c.Status.Password.Waiting; waiting != "" {
		say("", "It waits: %s.", printable.Escape(waiting))
	}
	b.WriteString("\n")
	if len(c.Status.History) == 0 {
		b.WriteString("There is no operation on record.\n")
	} else {
		b.WriteString(operations(c.Status.History, now, width))
	}
	notes := notes(c.Status.History)
	if len(notes) > 0 {
		b.WriteString("\n")
	}
	for _, note := range notes {
		say("", "%s", note)
	}
	b.WriteString("\n")
	findings(say, c.Status.Findings)
	return b.String()
}

func origin(o string) string {
	switch o {
	case v1alpha1.OriginNotIssued:
		return "Nobody has ever seen its password: mint to get one."
	case v1alpha1.OriginMigrated:
		return "Its password was taken over from where the platform kept it before."
	case v1alpha1.OriginMinted:
		return "Its password was minted, and shown once to whoever asked."
	case v1alpha1.OriginRevoked:
		return "Its password was revoked, and nobody knows the one in its place: mint to get one."
	default:
		return "Origin of its password: " + printable.Name(o) + "."
	}
}

// operations are the history as a table. Where the width does not do, what the notes and -o json tell as well is left
// out, and said to be.
func operations(history []v1alpha1.Operation, now time.Time, width int) string {
	g := grid{header: []string{"REVISION", "OPERATION", "AGE", "AT", "BY", "THROUGH", "ATTRIBUTION", "RESPONSE", "ID"}}
	for _, o := range history {
		g.rows = append(g.rows, []string{
			fmt.Sprint(o.Revision), printable.Name(o.Operation), age(now, o.At.Time), exact(o.At.Time), printable.Name(o.By),
			printable.Name(o.ImpersonatedBy), printable.Name(o.Attribution), printable.Name(o.Response), printable.Name(o.ID),
		})
	}
	missing := g.fit(width, "ID", "RESPONSE", "AT")
	var b strings.Builder
	_ = g.print(&b, true) // a builder takes everything
	if len(missing) > 0 {
		b.WriteString(wrapped(fmt.Sprintf("Too wide for this terminal: %s. All of it: -o json, or through a pipe.", strings.Join(missing, ", ")), "", width))
	}
	return b.String()
}

// notes tell what a word in the history means for whoever reads it.
func notes(history []v1alpha1.Operation) []string {
	var notes []string
	add := func(word, meaning string, applies func(v1alpha1.Operation) bool) {
		var revisions []string
		for _, o := range history {
			if applies(o) {
				revisions = append(revisions, fmt.Sprint(o.Revision))
			}
		}
		if len(revisions) > 0 {
			notes = append(notes, fmt.Sprintf("%s (revision %s): %s", word, strings.Join(revisions, ", "), meaning))
		}
	}
	add("Pending", "the audit log's event has not arrived; ask again in a moment.",
		func(o v1alpha1.Operation) bool { return o.Attribution == v1alpha1.AttributionPending })
	add("Expired", "it was attributed once, and what was retained of it is gone; the archive may still know.",
		func(o v1alpha1.Operation) bool { return o.Attribution == v1alpha1.AttributionExpired })
	add("Response Unknown", "the password was changed and the answer may have reached nobody; if nobody has it, mint again.",
		func(o v1alpha1.Operation) bool { return o.Response == v1alpha1.ResponseUnknown })
	return notes
}

func findings(say func(indent, format string, args ...any), found []v1alpha1.Finding) {
	if len(found) == 0 {
		say("", "No findings: nowhere do the account's ledger and the audit log disagree.")
		return
	}
	say("", "Findings, where the account's ledger and the audit log disagree:")
	for _, f := range found {
		of := ""
		if f.Revision > 0 {
			of = fmt.Sprintf(", revision %d", f.Revision)
		}
		say("  ", "%s%s: %s", printable.Name(f.Type), of, printable.Escape(f.Message))
		if meaning := meanings[f.Type]; meaning != "" {
			say("    ", "%s", meaning)
		}
	}
}

// meanings say what a finding means and what to do, by its type.
var meanings = map[string]string{
	"Unattributed": "The password was changed and the audit log does not say by whom: the change went around the log, or the log lost it. If you do not know of it, mint again; tell the platform's administrators.",
	"Mismatch":     "The audit log has this operation under the name of somebody else than the one who was let in. Nobody is named; tell the platform's administrators.",
	"Conflict":     "The audit log says two things of this operation. What it contradicts itself in is not shown; tell the platform's administrators.",
	"Skewed":       "Everything agrees but the time: the clocks of the servers are apart, or an old event was played again. Where it is not a single one, tell the platform's administrators.",
	"Uncommitted":  "The audit log reports a success of which the account has no record. Somebody may hold a password that does not work, or the record was put back; if in doubt, mint again.",
	"OutOfBand":    "The password in store is not the one that the newest operation wrote: somebody wrote the Secret itself. Mint again to put an end to it.",
	"Restored":     "The account's Secret was deleted and put back with its old contents, as from a backup: an older password may be valid again. Mint again if in doubt.",
	"BrokenLedger": "The account's record of its operations cannot be read: somebody wrote into it. Minting or revoking repairs it.",
	"Gap":          "Part of the audit log is missing there, which may be why the operation has no name; it excuses nobody. The platform's administrators can fill it from their archive (mintlog replay): ask them, and mint again if you do not know of the operation.",
}
