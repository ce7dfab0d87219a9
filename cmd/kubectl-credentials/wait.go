package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mintlog/mintlog/cmd/printable"
	"github.com/mintlog/mintlog/mint/api/v1alpha1"
)

const (
	shortestPause = time.Second     // between two looks; each is half as long again as the one before
	longestPause  = 5 * time.Second // many wrong passwords in a row lock some engines' accounts
	attempt       = 10 * time.Second
	progressAfter = 10 * time.Second // of waiting for the same thing
)

// A waiting is one command `wait`, as its flags say.
type waiting struct {
	until   string
	id      string
	timeout time.Duration
	target
}

func newWait(c *connection) *cobra.Command {
	var w waiting
	cmd := &cobra.Command{
		Use:   "wait NAME --for attributed|login",
		Short: "Wait until the log names who changed a password, or until the engine takes it",
		Long: `Wait for one of two things that happen after a mint or revoke.

  --for attributed  the audit log says who asked for the newest operation, or for the one of --id
  --for login       the engine at --address lets the account in with the password on standard input, which is one line

To log in, the account's user name is read from the credential, and the engine (postgresql or mariadb) is told from its
kind and format where --engine does not say. TLS is asked for, and the engine's certificate checked, unless --tls says
otherwise; an engine that would take the password in clear text, or without looking at it, is not logged in to. A refused
connection, a wrong password and an engine that is starting are tried again until --timeout; what no time mends, as a
certificate that is not trusted, ends the waiting at once. Nothing but a login is done there.`,
		Example: `  kubectl credentials wait postgres-orders.app --for attributed
  pw=$(kubectl credentials mint postgres-orders.app)
  printf %s "$pw" | kubectl credentials wait postgres-orders.app --for login --address HOST:5432 --tls-ca ca.crt`,
		Args:              oneName,
		ValidArgsFunction: c.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := w.check(cmd); err != nil {
				return err
			}
			client, err := c.open()
			if err != nil {
				return err
			}
			if w.until == "login" {
				return w.login(cmd.Context(), client, c.terminal, credentialName(args[0]))
			}
			return w.attributed(cmd.Context(), client, c.terminal, credentialName(args[0]))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&w.until, "for", "", "What to wait for: attributed or login.")
	flags.StringVar(&w.id, "id", "", "The operation to be attributed, by its id; the newest if absent.")
	flags.DurationVar(&w.timeout, "timeout", 3*time.Minute, "How long to wait.")
	w.target.add(cmd)
	_ = cmd.RegisterFlagCompletionFunc("for", cobra.FixedCompletions([]string{"attributed", "login"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (w *waiting) check(cmd *cobra.Command) error {
	switch {
	case w.until != "attributed" && w.until != "login":
		return usage("--for is %q: it is attributed or login", w.until)
	case w.timeout <= 0:
		return usage("--timeout is %s, and must be more than nothing", w.timeout)
	case w.until == "login" && cmd.Flags().Changed("id"):
		return usage("--id means something to --for attributed only")
	case cmd.Flags().Changed("id") && w.id == "":
		return usage("--id is empty")
	}
	return w.target.check(cmd, w.until == "login")
}

// inVain is the failure of a wait whose time is up.
func inVain(hint, format string, args ...any) *failure {
	f := other(hint, format, args...)
	f.code = exitTime
	return f
}

// A reporter tells on standard error what is waited for: when that changes, and now and then.
type reporter struct {
	terminal terminal
	said     string
	at       time.Time
}

func (r *reporter) tell(what string) {
	if what == r.said && time.Since(r.at) < progressAfter {
		return
	}
	fmt.Fprintf(r.terminal.err, "Waiting: %s.\n", what)
	r.said, r.at = what, time.Now()
}

// pauses waits between two looks, a little longer each time; false: the time is up.
func pauses() func(context.Context) bool {
	pause := shortestPause
	return func(ctx context.Context) bool {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return false
		}
		pause = min(pause*3/2, longestPause)
		return true
	}
}

func (w *waiting) attributed(ctx context.Context, c *client, t terminal, name string) error {
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	a := call{namespace: c.namespace, credential: name}
	report, pause := &reporter{terminal: t}, pauses()
	var lacking string
	for {
		text, err := c.get(ctx, name)
		if err == nil {
			present, err := decodeCredential(text)
			if err != nil {
				return err
			}
			o, found := w.operation(present)
			switch {
			case found && (o.Attribution == v1alpha1.AttributionAuditLog || o.Attribution == v1alpha1.AttributionPlatform):
				_, err := fmt.Fprintf(t.out, "%s: %s, revision %d, by %s\n", printable.Name(name), printable.Name(o.Operation), o.Revision, who(o))
				return written(err)
			case found && o.Attribution == v1alpha1.AttributionExpired:
				return other("See "+a.history(), "revision %d is older than what is retained of the audit log: nobody will be named any more", o.Revision)
			}
			lacking = lacks(o, found)
		} else if lacking = "the server does not answer: " + printable.Escape(err.Error()); !isExit(err, exitLater) && ctx.Err() == nil {
			return err
		}
		if ctx.Err() == nil {
			report.tell(lacking)
		}
		if !pause(ctx) {
			if report.said != "" {
				lacking = report.said // the last look may have been cut off
			}
			return w.late(ctx, "See "+a.history(), lacking)
		}
	}
}

// late is the failure of a wait whose context ended: because of the time, or of an interrupt.
func (w *waiting) late(ctx context.Context, hint, lacking string) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return inVain(hint, "waited %s in vain: %s", w.timeout, lacking)
	}
	return other(hint, "interrupted: %s", lacking)
}

func isExit(err error, code int) bool {
	var f *failure
	return errors.As(err, &f) && f.code == code
}

// operation is the one that is waited for, if the history has it.
func (w *waiting) operation(c v1alpha1.Credential) (v1alpha1.Operation, bool) {
	for _, o := range c.Status.History {
		if w.id == "" || o.ID == w.id {
			return o, true
		}
	}
	return v1alpha1.Operation{}, false
}

func lacks(o v1alpha1.Operation, found bool) string {
	switch {
	case !found:
		return "the history does not have the operation"
	case o.Attribution == v1alpha1.AttributionUnattributed:
		return fmt.Sprintf("no event of the audit log came for revision %d in good time; it may be late, or missing", o.Revision)
	default:
		return fmt.Sprintf("the audit log's event for revision %d has not arrived", o.Revision)
	}
}

func who(o v1alpha1.Operation) string {
	switch {
	case o.Attribution == v1alpha1.AttributionPlatform:
		return "the platform"
	case o.ImpersonatedBy != "":
		return printable.Name(o.By) + " through " + printable.Name(o.ImpersonatedBy)
	default:
		return printable.Name(o.By)
	}
}

func (w *waiting) login(ctx context.Context, c *client, t terminal, name string) error {
	a := call{namespace: c.namespace, credential: name}
	password, err := onePassword(t)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, w.timeout) // of which whoever types takes nothing
	defer cancel()
	text, err := c.get(ctx, name)
	if err != nil {
		return err
	}
	present, err := decodeCredential(text)
	if err != nil {
		return err
	}
	account, err := w.target.account(present, password)
	if err != nil {
		return err
	}
	report, pause := &reporter{terminal: t}, pauses()
	for {
		once, cancel := context.WithTimeout(ctx, attempt)
		o := account.login(once)
		cancel()
		switch {
		case o.verdict == letIn:
			_, err := fmt.Fprintf(t.out, "%s: %s lets %s in\n", printable.Name(name), printable.Name(account.address), printable.Name(account.username))
			return written(err)
		case o.verdict == hopeless:
			return other("Waiting does not mend that. Nothing was changed.", "%s", o.why)
		case ctx.Err() == nil:
			report.tell(o.why)
		}
		if !pause(ctx) {
			if report.said != "" {
				o.why = report.said // the last attempt may have been cut off
			}
			return w.late(ctx, c.whyNotYet(context.WithoutCancel(ctx), t, a), o.why)
		}
	}
}

// whyNotYet is what the platform knows of why an engine does not take a password.
func (c *client) whyNotYet(ctx context.Context, t terminal, a call) string {
	hint := "If somebody has minted or revoked since, that password will never be taken. See " + a.history()
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	if present, err := c.credential(ctx, a.credential); err == nil && present.Status.Password.Waiting != "" {
		hint = "The password waits: " + printable.Escape(present.Status.Password.Waiting) + ".\n" + hint
	}
	return hint
}

// longestPassword is more than any engine takes.
const longestPassword = 64 << 10

// onePassword reads the password that stands on standard input.
func onePassword(t terminal) (string, error) {
	if t.hidden != nil {
		fmt.Fprint(t.err, "Password: ")
		line, err := t.hidden()
		fmt.Fprintln(t.err)
		if err != nil {
			return "", other("", "reading the password: %w", err)
		}
		return nonEmpty(line)
	}
	in := bufio.NewReader(io.LimitReader(t.in, longestPassword+1))
	line, err := in.ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", other("", "reading the password on standard input: %w", err)
	}
	rest, _ := io.ReadAll(in)
	if len(line)+len(rest) > longestPassword || len(rest) > 0 {
		return "", usage("standard input has more than the one line of a password")
	}
	return nonEmpty(strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r"))
}

func nonEmpty(password string) (string, error) {
	if password == "" {
		return "", usage("the password is read from standard input, which is empty")
	}
	return password, nil
}
