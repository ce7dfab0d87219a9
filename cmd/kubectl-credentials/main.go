// Command kubectl-credentials is the kubectl plugin `kubectl credentials`: it lists a namespace's credentials, mints
// and revokes their passwords, and shows who did what to them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // the ways to log in that kubectl knows
	"k8s.io/klog/v2"
)

// terminal is what the command talks to.
type terminal struct {
	in          io.Reader
	out         io.Writer // what was asked for, nothing else
	err         io.Writer // everything else
	interactive bool      // somebody reads err and can answer on in
	now         func() time.Time
}

func main() {
	// A reader that went away must be an error that mint can report: the password it did not get has been stored.
	signal.Ignore(syscall.SIGPIPE)
	// client-go logs through klog; nothing it might log is for a user, and a body holds a password.
	klog.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], terminal{
		in: os.Stdin, out: os.Stdout, err: os.Stderr,
		interactive: printers.IsTerminal(os.Stdin) && printers.IsTerminal(os.Stderr),
		now:         time.Now,
	})
	stop()
	os.Exit(code)
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
	if !errors.As(err, &f) { // whatever no command of ours returned, cobra found in the command line
		f = usage("%s", err)
	}
	f.print(t.err)
	return f.code
}

const rootHelp = `List the credentials of a namespace, give one a new password, take one away, and read who did so.

A credential is a login of one of your applications, named <release>.<account>. Its password is shown once, when it is
minted: what the platform keeps is what the engine needs to check it. Who minted or revoked it is read from the
cluster's audit log.

To complete names of credentials behind "kubectl credentials", put an executable kubectl_complete-credentials on the PATH:
  #!/bin/sh
  exec kubectl-credentials __complete "$@"`

// exitCodes stands in the help of every command.
const exitCodes = `

Exit codes:
  0  done
  1  any other error
  2  the command line is wrong
  3  refused (403)
  4  no such credential (404)
  5  the account is not in the state that was asked for, or somebody changed it at the same moment (409)
  6  try again later (429, 503, timeouts, no connection)`

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
	root.AddCommand(newList(c), newMint(c), newRevoke(c), newHistory(c), newVersion(t))
	for _, command := range append(root.Commands(), root) {
		command.Long += exitCodes
	}
	return root
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
			version := "unknown"
			if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
				version = info.Main.Version
			}
			_, err := fmt.Fprintf(t.out, "kubectl-credentials %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return written(err)
		},
	}
}
