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
	receive := webhookFlags{prefix: "webhook-"}
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
band. It needs --victorialogs, --tls-cert-file, --tls-private-key-file, and the audit
log: its files (--audit-log), or what kube-apiservers' webhooks send, or both. Events
are received if --webhook-client-ca-file, --webhook-tls-cert-file and
--webhook-tls-private-key-file are given (see mintlog ingest webhook --help).`,
		Example: `  mintlog all --audit-log /var/log/audit/kube/audit.log --victorialogs http://victoria-logs:9428 \
    --tls-cert-file tls.crt --tls-private-key-file tls.key`,
		RunE: func(c *cobra.Command, _ []string) error {
			return process.run(c.Context(), func(ctx context.Context, p runtime) ([]part, error) {
				received := receive.given(c.Flags())
				if !c.Flags().Changed("webhook-set-aside") {
					receive.setAside = filepath.Join(where.state, "set-aside")
				}
				if err := errors.Join(house.validate(), mint.validate(), accounts.validate(), validateSources(&ingest, &receive, received), project.validate(),
					checkFile("--mint-kubeconfig", mintKubeconfig), checkFile("--accounts-kubeconfig", accountsKubeconfig), checkFile("--projector-kubeconfig", projectorKubeconfig)); err != nil {
					return nil, err
				}
				s, err := where.open(ctx, p)
				if err != nil {
					return nil, err
				}
				gaps := &knownGaps{}
				parts := parts{all: []part{gaps.follow(s)}}
				parts.add(mint.parts(p, house, gaps, cmp.Or(mintKubeconfig, kubernetes.kubeconfig)))
				parts.add(accounts.parts(p, house, cmp.Or(accountsKubeconfig, kubernetes.kubeconfig)))
				if len(ingest.auditLogs) > 0 {
					parts.add(ingest.parts(p, s, where.state))
				}
				if received {
					parts.add(receive.parts(p, s))
				}
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
	accounts.bind(flags, false)
	ingest.bind(flags)
	receive.bind(flags)
	project.bind(flags)
	archive.bind(flags)
	flags.StringVar(&mintKubeconfig, "mint-kubeconfig", "", "kubeconfig of the mint server, if it is not --kubeconfig")
	flags.StringVar(&accountsKubeconfig, "accounts-kubeconfig", "", "kubeconfig of the accounts role, if it is not --kubeconfig")
	flags.StringVar(&projectorKubeconfig, "projector-kubeconfig", "", "kubeconfig of the projector, if it is not --kubeconfig")
	return noArguments(c)
}

// validateSources wants one source of the audit log at least.
func validateSources(files *ingestFlags, receive *webhookFlags, received bool) error {
	switch {
	case received:
		return receive.validate()
	case len(files.auditLogs) == 0:
		return errors.New("--audit-log or --webhook-client-ca-file is needed: the names in every history come from the audit log")
	}
	return files.validate()
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
