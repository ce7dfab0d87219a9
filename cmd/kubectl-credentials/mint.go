package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/mintlog/mintlog/cmd/printable"
	"github.com/mintlog/mintlog/mint/api/v1alpha1"
)

// firstMints is how often a mint that replaces no password in use is asked for when somebody else was faster: an account
// may be seeded between the read and the mint. A 409 says that nothing was written.
const firstMints = 3

// betweenFirstMints is the time between two of them, in which the mint server learns of the other's write.
const betweenFirstMints = 300 * time.Millisecond

var origins = []string{v1alpha1.OriginNotIssued, v1alpha1.OriginMigrated, v1alpha1.OriginMinted, v1alpha1.OriginRevoked}

// A minting is one command `mint`, as its flags say.
type minting struct {
	changeFlags
	form
	origin string // of the password to replace; empty: any
	toFile string // empty: standard output
	yes    bool
}

func newMint(c *connection) *cobra.Command {
	var m minting
	cmd := &cobra.Command{
		Use:   "mint NAME",
		Short: "Make a new password and show it, once",
		Long: `Make a new password for a credential. The password and a line break are all that goes to standard output; everything
else goes to standard error. It is shown this once and kept nowhere: whoever loses it mints again. On a terminal it is
shown after a key was pressed, and cleared after another.

The new password is stored when the command returns. The application's engine applies it in its own time, and until then
the one before is valid: "wait --for login" tells when. The request is sent once: where it is not known whether it took
effect, the error says so and the credential's history will tell.

A mint locks out whoever still uses the password before. Where nobody can be using it (NotIssued, Revoked) nothing is
asked. Otherwise the command asks first; --yes, --if-id, --if-revision and --if-origin answer beforehand, and where there
is no terminal to ask on one of them is needed. A script that must not rotate twice gives --if-origin NotIssued or --if-id.
What was read or confirmed is what is replaced: if somebody comes in between, the mint fails and changes nothing.

Before a question, and with -o env, netrc and pgpass, the mint is tried by a dry run: whoever may not mint is not asked,
and there are user names that these formats cannot hold. With --to-file the file is made before the mint, with mode 0600 and never over another.`,
		Example: `  kubectl credentials mint postgres-orders.app
  PGPASSWORD=$(kubectl credentials mint postgres-orders.app --if-origin NotIssued) psql -h HOST -U app
  kubectl credentials mint postgres-orders.app --if-id 5f2b6c0e9d7a41b8a3c4d5e6f7081920 --to-file password
  kubectl credentials mint postgres-orders.app --yes -o pgpass --host HOST --to-file ~/.pgpass-orders
  kubectl credentials mint postgres-orders.app --dry-run=server`,
		Args:              oneName,
		ValidArgsFunction: c.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := m.check(cmd, c.terminal); err != nil {
				return err
			}
			client, a, preconditions, err := m.open(cmd, c, v1alpha1.MintSubresource, args[0])
			if err != nil {
				return err
			}
			return m.run(cmd.Context(), client, c.terminal, a, preconditions)
		},
	}
	m.changeFlags.add(cmd)
	m.form.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&m.origin, "if-origin", "", "Only if the password to be replaced is of this origin: "+strings.Join(origins, ", ")+". NotIssued: only if nobody ever saw one.")
	flags.StringVar(&m.toFile, "to-file", "", "Write to a new file of mode 0600, and nothing on standard output. It is made before the mint.")
	flags.BoolVarP(&m.yes, "yes", "y", false, "Do not ask whether clients that use the password before may be locked out.")
	_ = cmd.RegisterFlagCompletionFunc("if-origin", cobra.FixedCompletions(origins, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (m *minting) check(cmd *cobra.Command, t terminal) error {
	flags := cmd.Flags()
	switch {
	case flags.Changed("if-origin") && !slices.Contains(origins, m.origin):
		return usage("--if-origin is %q: it is one of %s", m.origin, strings.Join(origins, ", "))
	case flags.Changed("to-file") && m.toFile == "":
		return usage("--to-file is empty")
	case m.toFile == "-":
		return usage("--to-file - is not standard output, to which the password goes without the flag; a file of that name is ./-")
	case t.nowhere && m.toFile == "" && m.dryRun != "server":
		return usage("standard output is closed or %s, and the password would be lost: give --to-file, or revoke if nobody is to know it", os.DevNull)
	case m.onScreen(t) && !t.interactive:
		return usage("standard output is a terminal, and nobody is there to press a key: give --to-file, or read it through a pipe")
	}
	return m.form.check(cmd)
}

// onScreen reports whether the password goes to a terminal.
func (m *minting) onScreen(t terminal) bool {
	return t.screen != nil && m.toFile == "" && m.dryRun != "server"
}

// run makes ready what the password goes to, and then asks for it.
func (m *minting) run(ctx context.Context, c *client, t terminal, a call, preconditions *v1alpha1.Preconditions) error {
	var file *reservation
	if m.toFile != "" {
		var err error
		if file, err = reserve(m.toFile); err != nil {
			return err
		}
		defer file.drop() // unless it was kept
	}
	answer, r, err := m.mint(ctx, c, t, a, preconditions)
	if err != nil {
		return err
	}
	if a.dryRun {
		sayDryRun(t, a, "a new password would be made and shown", answer)
		return nil
	}
	if answer.Password == "" {
		return other(a.unknown(), "the server answered without a password")
	}
	if err := m.deliver(ctx, t, a, answer, file); err != nil {
		return err
	}
	fmt.Fprintf(t.err, "A new password for user %s of %s in %s, shown this once.\n", printable.Name(answer.Username), printable.Name(a.credential), printable.Name(a.namespace))
	sayOperation(t, a, answer)
	before := "and until then the one before, if one was issued, is valid. Clients that use it are locked out then."
	if r.first {
		before = "and none was issued here before it. Clients that have one from elsewhere are locked out then."
	}
	fmt.Fprintf(t.err, "%s, %s\n", ownTime, before)
	return nil
}

// deliver writes the answer to where it was asked for. Nothing here quotes the password.
func (m *minting) deliver(ctx context.Context, t terminal, a call, answer v1alpha1.MintStatus, file *reservation) error {
	const lost = "It is stored and shown to nobody: mint again."
	text, err := m.form.write(a, answer)
	if err != nil {
		return other(lost, "writing it as %s: %w", m.form.name, err)
	}
	switch {
	case file != nil:
		if err := file.keep(text); err != nil {
			return other(lost, "writing the password to %s: %w", m.toFile, err)
		}
		return nil
	case t.screen != nil:
		err = t.screen.show(ctx, text)
	default:
		_, err = io.WriteString(t.out, text)
	}
	if err != nil {
		return other(lost, "writing the password on standard output: %w", err)
	}
	return nil
}

// mint finds out what is replaced, asks whoever has to be asked, and mints.
func (m *minting) mint(ctx context.Context, c *client, t terminal, a call, given *v1alpha1.Preconditions) (v1alpha1.MintStatus, replacement, error) {
	for tries := 1; ; tries++ {
		r, err := m.replace(ctx, c, t, a, given)
		if err != nil {
			return v1alpha1.MintStatus{}, r, err
		}
		answer, err := m.ask(ctx, c, t, a, r)
		if !r.unused || !apierrors.IsConflict(err) || tries == firstMints {
			return answer, r, err
		}
		select {
		case <-time.After(betweenFirstMints):
		case <-ctx.Done():
			return v1alpha1.MintStatus{}, r, err
		}
	}
}

// ask sends the request, after a dry run where the answer could turn out to be one that cannot be written down.
func (m *minting) ask(ctx context.Context, c *client, t terminal, a call, r replacement) (v1alpha1.MintStatus, error) {
	a.conditional = a.conditional || r.preconditions != nil
	if m.form.picky() && !r.tried && !a.dryRun {
		if err := m.try(ctx, c, a, r.preconditions); err != nil {
			return v1alpha1.MintStatus{}, err
		}
	}
	if m.onScreen(t) {
		if err := t.screen.ready(ctx); err != nil {
			return v1alpha1.MintStatus{}, other("", "no key was pressed, nothing was changed: %w", err)
		}
	}
	return c.change(ctx, a, v1alpha1.CredentialMintKind, r.preconditions)
}

// try is the mint as a dry run: whether it would be let in, and whether its answer can be written down.
func (m *minting) try(ctx context.Context, c *client, a call, preconditions *v1alpha1.Preconditions) error {
	a.dryRun = true
	answer, err := c.change(ctx, a, v1alpha1.CredentialMintKind, preconditions)
	if err != nil {
		return err
	}
	if _, err := m.form.write(a, answer); err != nil {
		return other("Nothing was changed. Try another output format.", "%w", err)
	}
	return nil
}

// A replacement is what a mint may replace.
type replacement struct {
	preconditions *v1alpha1.Preconditions // nil: whatever it is
	unused        bool                    // nobody can be using the password, so nobody was asked
	tried         bool                    // a dry run went well
	first         bool                    // no password was issued before
}

// replace finds out what the mint replaces, unless the flags leave it open, and asks if somebody may be using it. Whoever
// may not mint is told so, not asked.
func (m *minting) replace(ctx context.Context, c *client, t terminal, a call, given *v1alpha1.Preconditions) (replacement, error) {
	if m.origin == "" && (m.yes || given != nil || a.dryRun) {
		return replacement{preconditions: given}, nil
	}
	present, err := c.credential(ctx, a.credential)
	if m.origin != "" {
		return m.ofOrigin(a, present, given, err)
	}
	about := "You may not see whether its present password is in use."
	var still *v1alpha1.Preconditions
	switch {
	case apierrors.IsForbidden(err):
	case err != nil && !apierrors.IsNotFound(err):
		return replacement{}, err
	case err != nil || !mayBeInUse(present):
		return replacement{preconditions: stillIs(present), unused: true, first: neverIssued(present)}, nil
	default:
		about, still = inUse(present, t.now()), stillIs(present)
	}
	if err := m.try(ctx, c, a, still); err != nil {
		return replacement{}, err
	}
	return replacement{preconditions: still, tried: true}, confirmMint(ctx, t, a, about)
}

func inUse(c v1alpha1.Credential, now time.Time) string {
	since := ""
	if c.Status.Password.At != nil {
		since = fmt.Sprintf(", %s ago", age(now, c.Status.Password.At.Time))
	}
	return fmt.Sprintf("Its present password (%s%s) may be in use.", printable.Name(c.Status.Password.Origin), since)
}

// ofOrigin holds --if-origin: the account must be as it was read when the mint comes to it.
func (m *minting) ofOrigin(a call, present v1alpha1.Credential, given *v1alpha1.Preconditions, err error) (replacement, error) {
	missing := apierrors.IsNotFound(err)
	if err != nil && !(missing && m.origin == v1alpha1.OriginNotIssued) {
		return replacement{}, err
	}
	if !missing && present.Status.Password.Origin != m.origin {
		f := other(a.conflict(), "the password of %s is %s, not %s", printable.Name(a.credential), printable.Name(present.Status.Password.Origin), m.origin)
		f.code = exitConflict
		return replacement{}, f
	}
	preconditions := stillIs(present)
	if given != nil && given.ID != nil {
		preconditions.ID = given.ID
	}
	if given != nil && given.Revision != nil {
		preconditions.Revision = given.Revision
	}
	return replacement{preconditions: preconditions, unused: given == nil && m.origin == v1alpha1.OriginNotIssued, first: neverIssued(present)}, nil
}

// stillIs are the preconditions that nobody changed the password since the credential was read; the zero credential is
// one that has no Secret yet.
func stillIs(c v1alpha1.Credential) *v1alpha1.Preconditions {
	switch {
	case c.UID == "":
		none := int64(0)
		return &v1alpha1.Preconditions{Revision: &none}
	case len(c.Status.History) > 0:
		return &v1alpha1.Preconditions{ID: &c.Status.History[0].ID, UID: &c.UID}
	default: // its ledger cannot be read
		return &v1alpha1.Preconditions{ResourceVersion: &c.ResourceVersion, UID: &c.UID}
	}
}

// neverIssued reports whether nobody was ever given a password here; the zero credential has no Secret yet.
func neverIssued(c v1alpha1.Credential) bool {
	return c.UID == "" || c.Status.Password.Origin == v1alpha1.OriginNotIssued && !mayBeInUse(c)
}

// mayBeInUse reports whether somebody may know the password: where the account's record and what is stored are known to
// be apart, the record's word that nobody does is not taken.
func mayBeInUse(c v1alpha1.Credential) bool {
	for _, f := range c.Status.Findings {
		if slices.Contains([]string{"OutOfBand", "Restored", "BrokenLedger"}, f.Type) {
			return true
		}
	}
	origin := c.Status.Password.Origin
	return origin != v1alpha1.OriginNotIssued && origin != v1alpha1.OriginRevoked
}

func confirmMint(ctx context.Context, t terminal, a call, about string) error {
	const locked = "Clients that use it are locked out once the engine has applied a new one."
	if !t.interactive {
		f := usage("%s %s There is no terminal to ask on: give --yes, or better --if-id or --if-origin", about, locked)
		f.hint = "Nothing was changed. Look at " + a.history()
		return f
	}
	return confirm(ctx, t, fmt.Sprintf("%s %s\nMint a new password for %s in %s?", about, locked, printable.Name(a.credential), printable.Name(a.namespace)))
}
