package main

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"

	"github.com/spf13/cobra"
)

// streamDirectory is where the embedded stream rests in the state directory.
func (f *streamFlags) streamDirectory() string { return filepath.Join(f.state, "stream") }

func allCommand() *cobra.Command {
	var process processFlags
	var kubernetes clusterFlags
	var where streamFlags
	var house houseFlags
	var mint mintFlags
	var accounts accountsFlags
	var ingest ingestFlags
	var project projectFlags
	var archive archiveFlags
	var mintKubeconfig, accountsKubeconfig, projectorKubeconfig string
	c := &cobra.Command{
		Use:   "all",
		Short: "Run every part in one process, with the stream embedded",
		Long: `all runs the mint server, the accounts role, ingest, the projector and the archiver
in one process, around an embedded stream that listens nowhere. SIGTERM drains; a
second start with the same --state carries on where the first was.

Each part has an identity of its own if it is given its own kubeconfig. Name in
--own-user every identity that the mint server, the accounts role and the projector
use, as the audit log names them: anybody else's write of an account Secret is out of
band. It needs --audit-log, --victorialogs, --tls-cert-file and --tls-private-key-file.`,
		Example: `  mintlog all --audit-log /var/log/audit/kube/audit.log --victorialogs http://victoria-logs:9428 \
    --tls-cert-file tls.crt --tls-private-key-file tls.key`,
		RunE: func(c *cobra.Command, _ []string) error {
			return process.run(c.Context(), func(ctx context.Context, p runtime) ([]part, error) {
				if err := errors.Join(house.validate(), mint.validate(), accounts.validate(), ingest.validate(), project.validate()); err != nil {
					return nil, err
				}
				s, err := where.open(ctx, p)
				if err != nil {
					return nil, err
				}
				var parts parts
				parts.add(mint.parts(p, house, cmp.Or(mintKubeconfig, kubernetes.kubeconfig)))
				parts.add(accounts.parts(p, house, cmp.Or(accountsKubeconfig, kubernetes.kubeconfig)))
				parts.add(ingest.parts(p, s, where.state))
				parts.add(project.parts(p, s, house, cmp.Or(projectorKubeconfig, kubernetes.kubeconfig)))
				parts.add(archive.parts(p, s))
				return parts.all, parts.err
			})
		},
	}
	flags := c.Flags()
	process.bind(flags)
	kubernetes.bind(flags)
	where.bindEmbedded(flags)
	house.bind(flags)
	mint.bind(flags)
	accounts.bind(flags)
	ingest.bind(flags)
	project.bind(flags)
	archive.bind(flags)
	flags.StringVar(&mintKubeconfig, "mint-kubeconfig", "", "kubeconfig of the mint server, if it is not --kubeconfig")
	flags.StringVar(&accountsKubeconfig, "accounts-kubeconfig", "", "kubeconfig of the accounts role, if it is not --kubeconfig")
	flags.StringVar(&projectorKubeconfig, "projector-kubeconfig", "", "kubeconfig of the projector, if it is not --kubeconfig")
	return noArguments(c)
}

// parts gathers parts and why some could not be made.
type parts struct {
	all []part
	err error
}

func (p *parts) add(more []part, err error) {
	p.all = append(p.all, more...)
	p.err = errors.Join(p.err, err)
}
