package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"

	"github.com/mintlog/mintlog/mint/accounts"
	"github.com/mintlog/mintlog/mint/admission"
	"github.com/mintlog/mintlog/mint/cluster"
)

// accountsFlags say whom the accounts role grants account Secrets to.
type accountsFlags struct {
	projector string
	workers   int
	leader    leaderFlags
}

// bind adds the flags. A role in a process of its own has replicas by default.
func (f *accountsFlags) bind(flags *pflag.FlagSet, replicas bool) {
	f.leader.bind(flags, replicas)
	flags.StringVar(&f.projector, "projector-service-account", "projector", "ServiceAccount that is granted each account Secret by name")
	flags.IntVar(&f.workers, "accounts-workers", 64, "applications brought in step at a time; most of that time is waiting for kube-apiserver")
}

func (f *accountsFlags) validate() error {
	switch {
	case f.projector == "":
		return errors.New("--projector-service-account is needed: the projector's grants name it")
	case f.workers < 1:
		return fmt.Errorf("--accounts-workers %d: it is at least 1", f.workers)
	}
	return errors.Join(f.leader.validate(), checkObject("--projector-service-account", f.projector))
}

func accountsCommand() *cobra.Command {
	var process processFlags
	var kubernetes clusterFlags
	var house houseFlags
	var accounts accountsFlags
	c := &cobra.Command{
		Use:   "accounts",
		Short: "Seed and remove account Secrets as applications come, change and go",
		Long: `accounts keeps one account Secret for each declared account of each application in
enrolled namespaces, and grants the projector each of them by name. It seeds nothing
that might lock somebody out: what ran before it waits for its first mint.

Of several replicas one works at a time, the one that holds the Lease mintlog-accounts.
It gives the lease up when it has drained after SIGTERM; if it dies, another follows
after --leader-lease-duration.`,
		Example: `  mintlog accounts --namespace mintlog`,
		RunE: func(c *cobra.Command, _ []string) error {
			return process.run(c.Context(), func(_ context.Context, p runtime) ([]part, error) {
				return accounts.parts(p, house, kubernetes.kubeconfig)
			})
		},
	}
	process.bind(c.Flags())
	kubernetes.bind(c.Flags())
	house.bind(c.Flags())
	accounts.bind(c.Flags(), true)
	return noArguments(c)
}

// parts are the caches of the accounts role and the role.
func (f *accountsFlags) parts(p runtime, house houseFlags, kubeconfig string) ([]part, error) {
	if err := errors.Join(f.validate(), house.validate()); err != nil {
		return nil, err
	}
	log := p.log.With("part", "accounts")
	restConfig, err := config(kubeconfig, "accounts")
	if err != nil {
		return nil, err
	}
	leader, err := f.leader.newLeader(p, house.namespace, accountsLease, restConfig)
	if err != nil {
		return nil, err
	}
	connection := leader.fence(restConfig)
	caches, err := cluster.New(cluster.Options{Config: connection, Log: log}) // HelmReleases are written through it
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(protobuf(connection))
	if err != nil {
		return nil, fmt.Errorf("build the accounts role's client: %w", err)
	}
	role, err := accounts.New(accounts.Options{
		Cluster: caches, Client: client, Webhooks: askWebhooks(p, "accounts", caches), Namespace: house.namespace, Projector: f.projector, Workers: f.workers,
		Random: rand.Reader, Log: log, Registerer: p.registry,
	})
	if err != nil {
		return nil, err
	}
	keep, err := house.guard(p, "accounts", restConfig, leader.lead(role.Run), admission.All()...)
	return []part{caches.Run, keep}, err
}
