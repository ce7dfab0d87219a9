package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mintlog/mintlog/ingest/file"
	"github.com/mintlog/mintlog/store/stream"
)

// ingestFlags say which audit logs are followed.
type ingestFlags struct {
	auditLogs []string
}

func (f *ingestFlags) bind(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.auditLogs, "audit-log", nil, "audit log file of a kube-apiserver, as its --audit-log-path has it, or a pattern like '/var/log/audit/*/audit.log', which also finds logs that come later, and takes no rotated file for a log; repeatable")
}

func (f *ingestFlags) validate() error {
	if len(f.auditLogs) == 0 {
		return errors.New("--audit-log is needed: the names in every history come from it")
	}
	return checkEach("--audit-log", f.auditLogs)
}

func ingestCommand() *cobra.Command {
	var process processFlags
	var where streamFlags
	var ingest ingestFlags
	var state string
	c := &cobra.Command{
		Use:   "ingest",
		Short: "Follow the audit log files of kube-apiservers and publish to the stream",
		Long: `ingest follows audit log files through rotation and restarts, and publishes the
requests for credentials and the writes of account Secrets in them. Its checkpoint
moves only behind an acknowledged publish. It needs --audit-log and --nats.`,
		Example: `  mintlog ingest --audit-log /var/log/audit/kube/audit.log --nats nats://nats:4222`,
		RunE: func(c *cobra.Command, _ []string) error {
			return process.run(c.Context(), func(ctx context.Context, p runtime) ([]part, error) {
				if err := errors.Join(ingest.validate(), checkFolder("--state", state)); err != nil {
					return nil, err
				}
				s, err := where.open(ctx, p)
				if err != nil {
					return nil, err
				}
				return ingest.parts(p, s, state)
			})
		},
	}
	process.bind(c.Flags())
	where.bind(c.Flags())
	ingest.bind(c.Flags())
	c.Flags().StringVar(&state, "state", "/var/lib/mintlog", "directory for the checkpoint")
	c.AddCommand(checkCommand(), webhookCommand(), webhookKubeconfigCommand())
	return noArguments(c)
}

// parts are one follower of all the files. It ends by itself after the batch in hand.
func (f *ingestFlags) parts(p runtime, s *stream.Stream, state string) ([]part, error) {
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, fmt.Errorf("--state: %w", err)
	}
	tailer, err := file.New(file.Options{
		Paths: f.auditLogs, Checkpoint: filepath.Join(state, "ingest.json"), Publisher: s, Gaps: s,
		Log: p.log.With("part", "ingest"), Registerer: p.registry,
	})
	if err != nil {
		return nil, err
	}
	return []part{tailer.Run}, nil
}
