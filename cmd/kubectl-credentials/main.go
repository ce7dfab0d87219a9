// Command kubectl-credentials is the kubectl plugin `kubectl credentials`: it lists a namespace's credentials, mints
// and revokes their passwords, and shows who did what to them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // the ways to log in that kubectl knows
	"k8s.io/klog/v2"

	"github.com/mintlog/mintlog/cmd/printable"
)

// terminal is what the command talks to.
type terminal struct {
	in          io.Reader
	out         io.Writer              // what was asked for, nothing else
	err         io.Writer              // everything else
	interactive bool                   // somebody reads err and can answer on in
	screen      *screen                // what out is; nil: no terminal
	nowhere     bool                   // out keeps nothing of what is written to it
	width       int                    // how many columns out has; 0: any
	hidden      func() (string, error) // reads a line from in without showing it; nil: in is no terminal
	now         func() time.Time
}

// newTerminal is what this process was given.
func newTerminal(in, out, err *os.File, getenv func(string) string) terminal {
	t := terminal{in: in, out: out, err: err, nowhere: discards(out), now: time.Now}
	t.interactive = printers.IsTerminal(in) && printers.IsTerminal(err)
	if printers.IsTerminal(in) {
		t.hidden = func() (string, error) {
			line, err := term.ReadPassword(int(in.Fd()))
			return string(line), err
		}
	}
	if printers.IsTerminal(out) {
		t.screen = &screen{out: out, err: err, key: keys(in), clearable: clearable(getenv)}
		if width, _, err := term.GetSize(int(out.Fd())); err == nil {
			t.width = width
		}
	}
	return t
}

// discards reports whether a file is the null device, as which Go opens a standard output that is closed.
func discards(file *os.File) bool {
	null, err := os.Stat(os.DevNull)
	if err != nil {
		return false
	}
	given, err := file.Stat()
	return err == nil && os.SameFile(null, given)
}

// clearable reports whether a terminal knows the alternate screen. On Windows none names itself but the new one.
func clearable(getenv func(string) string) bool {
	name := getenv("TERM")
	return name != "" && name != "dumb" || getenv("WT_SESSION") != ""
}

func main() {
	// A reader that went away must be an error that mint can report: the password it did not get has been stored.
	signal.Ignore(syscall.SIGPIPE)
	// client-go logs through klog; nothing it might log is for a user, and a body holds a password.
	klog.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	printable.SetLocale(os.Getenv)
	code := run(ctx, arguments(os.Args), newTerminal(os.Stdin, os.Stdout, os.Stderr, os.Getenv))
	stop()
	os.Exit(code)
}

// completer is the name under which kubectl asks a plugin for completions: a link to this program will do.
const completer = "kubectl_complete-credentials"

// arguments are those of a command line. Under the name of the completer they are words to be completed.
func arguments(line []string) []string {
	if strings.TrimSuffix(filepath.Base(line[0]), ".exe") == completer {
		return append([]string{cobra.ShellCompRequestCmd}, line[1:]...)
	}
	return line[1:]
}

// run executes one command line and returns the exit code that exitCodes documents.
func run(ctx context.Context, args []string, t terminal) int {
	root := newRoot(t)
	root.SetArgs(args)
	root.SetIn(t.in)
	root.SetOut(t.out)
	root.SetErr(t.err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	var f *failure
	if !errors.As(err, &f) {
		f = ofCobra(err)
	}
	f.print(t.err)
	return f.code
}

// ofCobra is the failure of what no command of ours returned: the command line is wrong, or the help or a shell's script
// could not be written.
func ofCobra(err error) *failure {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return other("", "writing on standard output: %w", err)
	}
	return usage("%s", err)
}

const rootHelp = `List the credentials of a namespace, give one a new password, take one away, and read who did so.

A credential is a login of one of your applications, named <release>.<account>. Its password is shown once, when it is
minted: what the platform keeps is what the engine needs to check it. Who minted or revoked it is read from the
cluster's audit log.

To complete names of credentials behind "kubectl credentials", put a link to this program on the PATH:
  ln -s "$(command -v kubectl-credentials)" ~/.local/bin/kubectl_complete-credentials`

// exitCodes stands in the help of every command.
const exitCodes = `

Exit codes:
  0  done
  1  any other error
  2  the command line is wrong, or a question would have to be asked and there is no terminal
  3  refused (403)
  4  no such credential (404), or the cluster does not serve them
  5  the account is not in the state that was asked for, or somebody changed it at the same moment (409): nothing was done
  6  try again later (429, 503, timeouts, no connection)
  7  wait: the time is up`

func newRoot(t terminal) *cobra.Command {
	flags := genericclioptions.NewConfigFlags(true)
	flags.CacheDir = nil // nothing here is cached
	root := &cobra.Command{
		Use:           "kubectl-credentials",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl credentials"},
		Short:         "Passwords of your applications: list, mint, revoke, and who did it",
		Long:          rootHelp,
		Args:          cobra.ArbitraryArgs,
		SilenceErrors: true, SilenceUsage: true,
		SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, args[0])
		},
		Example: `  kubectl credentials list
  kubectl credentials mint postgres-orders.app
  kubectl credentials history postgres-orders.app`,
	}
	flags.AddFlags(root.PersistentFlags())
	c := &connection{flags: flags, terminal: t}
	root.PersistentFlags().IntVarP(&c.level, "v", "v", 0, "At 6 and above, tell of each request on standard error; no level tells what is in one.")
	root.AddCommand(newList(c), newMint(c), newRevoke(c), newHistory(c), newWait(c), newVersion(t))
	addCompletion(root, t)
	addHelp(root)
	for _, command := range append(root.Commands(), root) {
		command.Long += exitCodes
	}
	return root
}

// addCompletion adds cobra's command, which prints help for a shell that it does not know, and reports success.
func addCompletion(root *cobra.Command, t terminal) {
	root.SetOut(t.out) // it keeps what it writes to
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.HasSubCommands() {
			c.Example = "  kubectl-credentials completion bash > ~/.local/share/bash-completion/completions/kubectl-credentials"
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	}
}

// addHelp adds cobra's command, which reports success for what is no command.
func addHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if show := c.Run; c.Name() == "help" {
			c.Example = "  kubectl credentials help mint"
			c.Run, c.RunE = nil, func(c *cobra.Command, args []string) error {
				if _, rest, err := root.Find(args); err != nil || len(rest) > 0 {
					return unknownCommand(root, strings.Join(args, " "))
				}
				show(c, args)
				return nil
			}
		}
	}
}

func unknownCommand(root *cobra.Command, given string) error {
	f := usage("there is no command %q", given)
	if near := root.SuggestionsFor(given); len(near) > 0 {
		f.hint = fmt.Sprintf("Did you mean %s? All of them: kubectl credentials --help", near[0])
	}
	return f
}

func newVersion(t terminal) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this plugin",
		Long:    "Print the version of this plugin, and what it was built with.",
		Example: "  kubectl credentials version",
		Args:    noArguments,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(t.out, "kubectl-credentials %s (%s, %s/%s)\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return written(err)
		},
	}
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
