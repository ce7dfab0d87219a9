package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/mintlog/mintlog/mint/admission"
	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/credential"
	"github.com/mintlog/mintlog/mint/server"
	"github.com/mintlog/mintlog/mint/webhook"
)

// mintFlags say where the credentials API is served.
type mintFlags struct {
	bindAddress       string
	port              int
	certFile, keyFile string
	retention         time.Duration
	shutdownDelay     time.Duration
	lastChange        bool
	verbosity         int
}

func (f *mintFlags) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.bindAddress, "bind-address", "0.0.0.0", "address the credentials API listens on")
	flags.IntVar(&f.port, "secure-port", 6443, "port of the credentials API")
	flags.StringVar(&f.certFile, "tls-cert-file", "", "serving certificate, PEM; a changed file is taken over without a restart")
	flags.StringVar(&f.keyFile, "tls-private-key-file", "", "key of the serving certificate, PEM")
	flags.DurationVar(&f.retention, "retention", 30*24*time.Hour, "how long the audit log is kept: an older operation without evidence is Expired, not Unattributed")
	flags.BoolVar(&f.lastChange, "last-change-metric", true, "tell of each account when its password last changed: a series an account")
	flags.DurationVar(&f.shutdownDelay, "shutdown-delay", 0, "how long to go on serving after SIGTERM, not ready any more")
	flags.IntVar(&f.verbosity, "kubernetes-verbosity", 0, fmt.Sprintf("verbosity of the Kubernetes libraries, at most %d: above it they would log bodies", server.MaxVerbosity))
}

func (f *mintFlags) validate() error {
	switch {
	case f.certFile == "" || f.keyFile == "":
		return errors.New("--tls-cert-file and --tls-private-key-file are needed: kube-apiserver calls the credentials API over TLS")
	case f.port < 0 || f.port > 65535:
		return fmt.Errorf("--secure-port %d: a port is 0 to 65535", f.port)
	case f.retention < credential.Settling:
		return fmt.Errorf("--retention %s: it is at least %s", f.retention, credential.Settling)
	case f.shutdownDelay < 0:
		return fmt.Errorf("--shutdown-delay %s: it is not less than 0", f.shutdownDelay)
	case f.verbosity < 0 || f.verbosity > server.MaxVerbosity:
		return fmt.Errorf("--kubernetes-verbosity %d: it is 0 to %d, for above it the Kubernetes libraries log bodies, and passwords stand in them", f.verbosity, server.MaxVerbosity)
	}
	return errors.Join(checkHost("--bind-address", f.bindAddress), checkFile("--tls-cert-file", f.certFile), checkFile("--tls-private-key-file", f.keyFile))
}

func mintCommand() *cobra.Command {
	var process processFlags
	var kubernetes clusterFlags
	var house houseFlags
	var where streamFlags
	var mint mintFlags
	c := &cobra.Command{
		Use:   "mint",
		Short: "Serve the credentials API behind kube-apiserver",
		Long: `mint serves credentials.cozystack.io: the view of accounts, mint and revoke. It takes
requests from kube-apiserver's front proxy alone and needs a serving certificate that
the APIService trusts. With --nats, which is optional, it also says where an operation
without an audit event lies in a part of the log that is known to be missing.`,
		Example: `  mintlog mint --tls-cert-file tls.crt --tls-private-key-file tls.key`,
		RunE: func(c *cobra.Command, _ []string) error {
			return process.run(c.Context(), func(ctx context.Context, p runtime) ([]part, error) {
				if err := where.validate(); err != nil {
					return nil, err
				}
				gaps := &knownGaps{}
				parts, err := mint.parts(p, house, gaps, kubernetes.kubeconfig)
				if err != nil || where.url == "" {
					return parts, err
				}
				s, err := where.openExisting(ctx, p)
				return append(parts, gaps.follow(s)), err
			})
		},
	}
	process.bind(c.Flags())
	kubernetes.bind(c.Flags())
	house.bind(c.Flags())
	where.bindServer(c.Flags())
	mint.bind(c.Flags())
	return noArguments(c)
}

// parts are the caches of the mint server and the server.
func (f *mintFlags) parts(p runtime, house houseFlags, gaps credential.Gaps, kubeconfig string) ([]part, error) {
	if err := errors.Join(f.validate(), house.validate()); err != nil {
		return nil, err
	}
	log := p.log.With("part", "mint")
	if err := p.watchExpiry("mint", f.certFile, first); err != nil {
		return nil, err
	}
	if err := server.LogKubernetes(p.log, f.verbosity); err != nil {
		return nil, err
	}
	restConfig, err := config(kubeconfig, "mint")
	if err != nil {
		return nil, err
	}
	caches, err := cluster.New(cluster.Options{Config: restConfig, Log: log})
	if err != nil {
		return nil, err
	}
	client, err := corev1client.NewForConfig(protobuf(restConfig))
	if err != nil {
		return nil, fmt.Errorf("build the client for account Secrets: %w", err)
	}
	storage := credential.New(credential.Options{
		Cluster: caches, Client: client, Webhooks: askWebhooks(p, "mint", caches), Random: rand.Reader, Now: time.Now, Retention: f.retention, LastChange: f.lastChange, Gaps: gaps, Log: log, Registerer: p.registry,
	})
	s, err := server.New(server.Options{
		Address:  net.JoinHostPort(f.bindAddress, strconv.Itoa(f.port)),
		CertFile: f.certFile, KeyFile: f.keyFile, Config: restConfig, Storage: storage,
		Ready:         map[string]func() error{"caches": synced(caches)},
		ShutdownDelay: f.shutdownDelay, Now: time.Now, Log: log, Registerer: p.registry,
	})
	if err != nil {
		return nil, err
	}
	log.Info("serving the credentials API", "address", s.Address().String())
	serve, err := house.guard(p, "mint", restConfig, serveFrom(caches, s), admission.AccountSecrets)
	return []part{serve}, err
}

// serveFrom serves until ctx is done and the requests in flight are answered, with caches that live as long as that.
func serveFrom(caches *cluster.Cluster, s *server.Server) part {
	return func(ctx context.Context) error {
		live, stop := context.WithCancel(context.WithoutCancel(ctx))
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return caches.Run(live) })
		group.Go(func() error {
			defer stop()
			return s.Run(ctx)
		})
		return group.Wait()
	}
}

// synced is ready when applications and definitions are known.
func synced(caches *cluster.Cluster) func() error {
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		return caches.WaitForSync(ctx)
	}
}

// askWebhooks asks the webhooks of definitions for a part, and lets go of their connections when a definition changes.
func askWebhooks(p runtime, part string, caches *cluster.Cluster) *webhook.Clients {
	clients := webhook.New(webhook.Options{Registerer: prometheus.WrapRegistererWith(prometheus.Labels{"part": part}, p.registry)})
	caches.Notify(cluster.Notify{Kind: clients.Forget})
	return clients
}
