package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mintlog/mintlog/store/stream"
)

// processFlags are what every part takes.
type processFlags struct {
	logLevel       string
	metricsAddress string
	configuration  string // read by takesConfiguration
}

func (f *processFlags) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.configuration, configurationFlag, "", "YAML file with values of these flags, by their names; those on the command line win")
	flags.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error; no level shows a password")
	flags.StringVar(&f.metricsAddress, "metrics-address", ":9404", "where /metrics and /healthz are served over HTTP; empty: nowhere")
}

// A runtime is what the parts of a process share: where they log, count and are stopped.
type runtime struct {
	log      *slog.Logger
	registry *prometheus.Registry
	closers  *[]func() error // run in turn when all parts have drained
}

// A part runs until ctx is done, drains, and returns nil, or the error that ended it.
type part func(ctx context.Context) error

// run runs the parts that compose names until ctx is done or one of them fails; then all of them drain.
func (f *processFlags) run(ctx context.Context, compose func(context.Context, runtime) ([]part, error)) (err error) {
	log, err := logger(f.logLevel)
	if err != nil {
		return err
	}
	if f.metricsAddress != "" {
		if err := checkAddress("--metrics-address", f.metricsAddress); err != nil {
			return err
		}
	}
	slog.SetDefault(log)
	p := runtime{log: log, registry: prometheus.NewRegistry(), closers: &[]func() error{}}
	defer func() {
		for _, closer := range *p.closers {
			err = errors.Join(err, closer())
		}
	}()
	p.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewBuildInfoCollector())
	parts, err := compose(ctx, p)
	if err != nil && ctx.Err() != nil {
		return nil // told to stop before it had begun
	}
	if err != nil {
		return err
	}
	if f.metricsAddress != "" {
		parts = append(parts, p.serveMetrics(f.metricsAddress))
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range parts {
		group.Go(func() error {
			if err := run(ctx); err != nil && !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		})
	}
	err = group.Wait()
	log.Info("stopped")
	return err
}

func (p runtime) serveMetrics(address string) part {
	return func(ctx context.Context) error {
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{}))
		mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return fmt.Errorf("--metrics-address %s: %w", address, err)
		}
		p.log.Info("serving metrics", "address", listener.Addr().String())
		server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute}
		context.AfterFunc(ctx, func() { _ = server.Close() })
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve metrics: %w", err)
		}
		return nil
	}
}

// clusterFlags say which Kubernetes to talk to, and as whom.
type clusterFlags struct {
	kubeconfig string
}

func (f *clusterFlags) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig to talk to kube-apiserver with; default: the pod's ServiceAccount")
}

// config is the connection of a kubeconfig, the pod's own if it is empty. Requests are not throttled here: a mint must
// not wait behind others, and kube-apiserver has priority and fairness of its own.
func config(kubeconfig, userAgent string) (*rest.Config, error) {
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	c.QPS = -1
	c.UserAgent = "mintlog-" + userAgent
	return c, nil
}

// streamFlags say where the stream is.
type streamFlags struct {
	url, credentials, nkey, state string
	existing                      bool // another identity makes it
	making                        bool // what follows is given
	replicas                      int
	maxBytes, evidenceBytes       int64
}

func (f *streamFlags) bind(flags *pflag.FlagSet) {
	f.bindMaking(flags)
	flags.BoolVar(&f.existing, "nats-existing", false, "only use what mintlog streams makes on --nats: an identity that may make nothing is enough")
}

func (f *streamFlags) bindMaking(flags *pflag.FlagSet) {
	f.making = true
	f.bindServer(flags)
	flags.IntVar(&f.replicas, "nats-replicas", 1, "replicas of the streams in an external cluster")
	flags.Int64Var(&f.maxBytes, "stream-max-bytes", stream.DefaultMaxBytes, "size at which the stream of events takes no more until it is read")
	flags.Int64Var(&f.evidenceBytes, "evidence-max-bytes", stream.DefaultEvidenceBytes, "size at which no more evidence is kept: histories are still written, and lose their older names at the next operation")
}

// bindServer is for those who use what stands on a server and need not know how it was made.
func (f *streamFlags) bindServer(flags *pflag.FlagSet) {
	flags.StringVar(&f.url, "nats", "", "URL of an external NATS with JetStream and sync_interval: always")
	flags.StringVar(&f.credentials, "nats-credentials", "", "credentials file for --nats")
	flags.StringVar(&f.nkey, "nats-nkey-file", "", "file with the seed of an nkey for --nats, instead of --nats-credentials")
}

// bindEmbedded adds what an embedded stream needs.
func (f *streamFlags) bindEmbedded(flags *pflag.FlagSet) {
	f.bind(flags)
	f.bindState(flags)
}

func (f *streamFlags) bindState(flags *pflag.FlagSet) {
	flags.StringVar(&f.state, "state", "/var/lib/mintlog", "directory for the embedded stream and ingest's checkpoint")
}

func (f *streamFlags) validate() error {
	if f.url != "" {
		if err := checkNATS("--nats", f.url); err != nil {
			return err
		}
	}
	switch {
	case !f.making:
	case f.replicas < 1 || f.replicas > 5:
		return fmt.Errorf("--nats-replicas %d: it is 1 to 5", f.replicas)
	case f.maxBytes <= 0:
		return fmt.Errorf("--stream-max-bytes %d: it is more than 0", f.maxBytes)
	case f.evidenceBytes <= 0:
		return fmt.Errorf("--evidence-max-bytes %d: it is more than 0", f.evidenceBytes)
	}
	switch {
	case f.existing && f.url == "":
		return errors.New("--nats-existing: it needs --nats")
	case f.nkey != "" && f.credentials != "":
		return errors.New("--nats-nkey-file: --nats-credentials says already who this is")
	}
	err := errors.Join(checkFile("--nats-credentials", f.credentials), checkFile("--nats-nkey-file", f.nkey))
	if f.state != "" {
		err = errors.Join(err, checkFolder("--state", f.state))
	}
	return err
}

// wanted is an error if there is no stream.
func (f *streamFlags) wanted() error {
	if f.url == "" && f.state == "" {
		return errors.New("--nats is needed: this part has no stream of its own (mintlog all embeds one)")
	}
	return nil
}

// openExisting is the external stream, for reading what others have created. It succeeds while the server is down.
func (f *streamFlags) openExisting(ctx context.Context, p runtime) (*stream.Stream, error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	s, err := stream.Open(ctx, stream.Options{URL: f.url, CredentialsFile: f.credentials, NKeyFile: f.nkey, Existing: true, Log: p.log})
	if err != nil {
		return nil, fmt.Errorf("--nats: %w", err)
	}
	*p.closers = append(*p.closers, s.Close)
	return s, nil
}

func (f *streamFlags) open(ctx context.Context, p runtime) (*stream.Stream, error) {
	if err := errors.Join(f.wanted(), f.validate()); err != nil {
		return nil, err
	}
	o := stream.Options{
		URL: f.url, CredentialsFile: f.credentials, NKeyFile: f.nkey, Existing: f.existing,
		Replicas: f.replicas, MaxBytes: f.maxBytes, EvidenceBytes: f.evidenceBytes, Log: p.log, Registerer: p.registry,
	}
	if f.url == "" {
		o.Directory = f.streamDirectory()
	}
	s, err := stream.Open(ctx, o)
	if errors.Is(err, stream.ErrLocked) {
		return nil, fmt.Errorf("--state %s: %w; is mintlog all running?", f.state, err)
	}
	if err != nil {
		return nil, err
	}
	*p.closers = append(*p.closers, s.Close)
	return s, nil
}

// embeddedThere is an error if the state directory has no stream.
func (f *streamFlags) embeddedThere() error {
	if _, err := os.Stat(f.streamDirectory()); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--state %s: no stream is embedded there; give --nats if it is elsewhere", f.state)
	}
	return nil
}

// noArguments is a command that takes flags alone.
func noArguments(c *cobra.Command) *cobra.Command {
	c.Args = cobra.NoArgs
	return c
}

// protobuf is the same connection, for built-in types in their binary form.
func protobuf(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	c.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	c.ContentType = "application/vnd.kubernetes.protobuf"
	return c
}
