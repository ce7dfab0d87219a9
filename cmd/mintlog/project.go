package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/mintlog/mintlog/mint/admission"
	"github.com/mintlog/mintlog/projector"
	"github.com/mintlog/mintlog/store/stream"
)

// projectFlags say whose writes of account Secrets are the platform's own.
type projectFlags struct {
	own     []string
	workers int
}

func (f *projectFlags) bind(flags *pflag.FlagSet) {
	flags.StringSliceVar(&f.own, "own-user", []string{
		"system:serviceaccount:mintlog:mint", "system:serviceaccount:mintlog:accounts", "system:serviceaccount:mintlog:projector",
	}, "usernames of mint server, accounts role and projector: anybody else's write of an account Secret is out of band")
	flags.IntVar(&f.workers, "projector-workers", 8, "accounts whose histories are written at a time")
}

func (f *projectFlags) validate() error {
	switch {
	case len(f.own) == 0:
		return fmt.Errorf("--own-user is needed: without it every mint would be out of band")
	case f.workers < 1:
		return fmt.Errorf("--projector-workers %d: it is at least 1", f.workers)
	}
	return checkEach("--own-user", f.own)
}

func projectCommand() *cobra.Command {
	var process processFlags
	var kubernetes clusterFlags
	var where streamFlags
	var house houseFlags
	var project projectFlags
	c := &cobra.Command{
		Use:   "project",
		Short: "Join ledger and audit events, and write the history on each account Secret",
		Long: `project reads events from the stream, joins them with the ledger of the account they
are about, and writes the history on its Secret. It needs --nats. Name in --own-user
every identity that the mint server, the accounts role and the projector use.`,
		Example: `  mintlog project --nats nats://nats:4222`,
		RunE: func(c *cobra.Command, _ []string) error {
			return process.run(c.Context(), func(ctx context.Context, p runtime) ([]part, error) {
				if err := errors.Join(project.validate(), house.validate(), where.wanted(), where.validate(), checkFile("--kubeconfig", kubernetes.kubeconfig)); err != nil {
					return nil, err
				}
				s, err := where.open(ctx, p)
				if err != nil {
					return nil, err
				}
				return project.parts(p, s, house, kubernetes.kubeconfig)
			})
		},
	}
	process.bind(c.Flags())
	kubernetes.bind(c.Flags())
	where.bind(c.Flags())
	house.bind(c.Flags())
	project.bind(c.Flags())
	return noArguments(c)
}

func (f *projectFlags) parts(p runtime, s *stream.Stream, house houseFlags, kubeconfig string) ([]part, error) {
	if err := errors.Join(f.validate(), house.validate()); err != nil {
		return nil, err
	}
	restConfig, err := config(kubeconfig, "projector")
	if err != nil {
		return nil, err
	}
	client, err := corev1client.NewForConfig(protobuf(restConfig))
	if err != nil {
		return nil, fmt.Errorf("build the projector's client: %w", err)
	}
	loop, err := projector.New(projector.Options{
		Stream: s, Client: client, Own: f.own, Workers: f.workers,
		Log: p.log.With("part", "projector"), Registerer: p.registry,
	})
	if err != nil {
		return nil, err
	}
	fold, err := house.guard(p, "projector", restConfig, loop.Run, admission.AccountSecrets)
	return []part{fold}, err
}
