package main

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// streamDirectory is where the embedded stream rests in the state directory.
func (f *streamFlags) streamDirectory() string { return filepath.Join(f.state, "stream") }

// allFlags are those of every part.
type allFlags struct {
	process                                                 processFlags
	kubernetes                                              clusterFlags
	where                                                   streamFlags
	house                                                   houseFlags
	mint                                                    mintFlags
	accounts                                                accountsFlags
	ingest                                                  ingestFlags
	receive                                                 webhookFlags
	project                                                 projectFlags
	archive                                                 archiveFlags
	mintKubeconfig, accountsKubeconfig, projectorKubeconfig string
}

func allCommand() *cobra.Command {
	f := allFlags{receive: webhookFlags{prefix: "webhook-"}}
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
			return f.process.run(c.Context(), func(ctx context.Context, p runtime) ([]part, error) {
				if !c.Flags().Changed("webhook-set-aside") {
					f.receive.setAside = filepath.Join(f.where.state, "set-aside")
				}
				return f.parts(ctx, p, f.receive.given(c.Flags()))
			})
		},
	}
	f.bind(c.Flags())
	return noArguments(c)
}

func (f *allFlags) bind(flags *pflag.FlagSet) {
	f.process.bind(flags)
	f.kubernetes.bind(flags)
	f.where.bindEmbedded(flags)
	f.house.bind(flags)
	f.mint.bind(flags)
	f.accounts.bind(flags, false)
	f.ingest.bind(flags)
	f.receive.bind(flags)
	f.project.bind(flags)
	f.archive.bind(flags)
	flags.StringVar(&f.mintKubeconfig, "mint-kubeconfig", "", "kubeconfig of the mint server, if it is not --kubeconfig")
	flags.StringVar(&f.accountsKubeconfig, "accounts-kubeconfig", "", "kubeconfig of the accounts role, if it is not --kubeconfig")
	flags.StringVar(&f.projectorKubeconfig, "projector-kubeconfig", "", "kubeconfig of the projector, if it is not --kubeconfig")
}

// validate looks at all there is before anything is opened. received: audit events are sent to this process.
func (f *allFlags) validate(received bool) error {
	return errors.Join(f.house.validate(), f.mint.validate(), f.accounts.validate(), validateSources(&f.ingest, &f.receive, received), f.project.validate(),
		f.where.validate(), f.archive.validate(),
		checkFile("--mint-kubeconfig", f.mintKubeconfig), checkFile("--accounts-kubeconfig", f.accountsKubeconfig), checkFile("--projector-kubeconfig", f.projectorKubeconfig))
}

func (f *allFlags) parts(ctx context.Context, p runtime, received bool) ([]part, error) {
	if err := f.validate(received); err != nil {
		return nil, err
	}
	s, err := f.where.open(ctx, p)
	if err != nil {
		return nil, err
	}
	gaps := &knownGaps{}
	parts := parts{all: []part{gaps.follow(s)}}
	parts.add(f.mint.parts(p, f.house, gaps, cmp.Or(f.mintKubeconfig, f.kubernetes.kubeconfig)))
	parts.add(f.accounts.parts(p, f.house, cmp.Or(f.accountsKubeconfig, f.kubernetes.kubeconfig)))
	if len(f.ingest.auditLogs) > 0 {
		parts.add(f.ingest.parts(p, s, f.where.state))
	}
	if received {
		parts.add(f.receive.parts(p, s))
	}
	parts.add(f.project.parts(p, s, f.house, cmp.Or(f.projectorKubeconfig, f.kubernetes.kubeconfig)))
	parts.add(f.archive.parts(p, s))
	return parts.all, parts.err
}

// validateSources wants one source of the audit log at least.
func validateSources(files *ingestFlags, receive *webhookFlags, received bool) error {
	switch {
	case received:
		return errors.Join(receive.validate(), checkEach("--audit-log", files.auditLogs))
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
