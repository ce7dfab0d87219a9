// Command mintlog runs the parts of the credential service, each by itself or all in one process.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/mintlog/mintlog/cmd/printable"
)

func main() {
	printable.SetLocale(os.Getenv)
	// The first signal drains; a second one ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mintlog:", shown(err))
		os.Exit(1)
	}
}

// shown is an error as a terminal may have it: servers chose parts of it. Several of one have a line each.
func shown(err error) string {
	lines := strings.Split(err.Error(), "\n")
	for i, line := range lines {
		lines[i] = printable.Escape(line)
	}
	return strings.Join(lines, "\n")
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "mintlog",
		Short: "Event-sourced credentials for Kubernetes platforms",
		Long: `mintlog makes passwords for the accounts of a platform's applications.

A password is shown once, to the tenant's admin who asked for it. Who asked is read
from kube-apiserver's audit log. Each part runs by itself with an identity of its
own; "mintlog all" runs them in one process with an embedded stream.`,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(mintCommand(), accountsCommand(), ingestCommand(), projectCommand(), archiveCommand(), allCommand(), streamsCommand(), replayCommand(), gapsCommand(), whoCommand(),
		enrollCommand(), unenrollCommand(), enrolledCommand(), definitionsCommand(), certificatesCommand(), doctorCommand())
	takesConfiguration(root)
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if show := c.Run; c.Name() == "help" {
			c.Run, c.RunE = nil, func(c *cobra.Command, args []string) error {
				if _, rest, err := root.Find(args); err != nil || len(rest) > 0 {
					return fmt.Errorf("there is no help about %q", strings.Join(args, " ")) // cobra would report success
				}
				show(c, args)
				return nil
			}
		}
		if c.HasSubCommands() && !c.Runnable() {
			// Cobra would print help for a word that is no command of it, and report success.
			noArguments(c).RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	}
	return root
}

func version() string {
	build, ok := debug.ReadBuildInfo()
	if !ok || build.Main.Version == "" {
		return "(unknown)"
	}
	return build.Main.Version
}

// logger writes what happens to standard error, one line an event.
func logger(level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: use debug, info, warn or error", level)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l})), nil
}
