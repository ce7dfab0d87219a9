package ha

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mintlog/mintlog/test/sandbox"
	"github.com/mintlog/mintlog/test/sandbox/process"
)

// A House is mintlog as the chart runs it: two processes of each part but ingest, around a JetStream cluster. The mint
// servers stand behind one balancer, and the kube-apiservers behind another, through which everybody talks to them.
type House struct {
	*sandbox.Sandbox
	NATS *NATS

	apiServers, mints *balancer
	parts             []*process.Process // in the order in which they were started
	kubeconfigs       map[string]string
	stream            []string // what says where the stream is
}

// SandboxOptions are for the sandbox of a House: its kube-apiservers end their watches when they are told to stop, and not
// a minute later, when the kubelet would have killed them.
func SandboxOptions(o sandbox.Options) sandbox.Options {
	o.ExtraAPIServerFlags = append(o.ExtraAPIServerFlags, "--shutdown-delay-duration=1s", "--shutdown-watch-termination-grace-period=2s")
	return o
}

// Leases of the accounts role are this short here.
const leaseDuration = 8 * time.Second

// Open starts everything in a sandbox that stands, with the API and the kind Postgres. Close ends it, and leaves the
// sandbox.
func Open(ctx context.Context, s *sandbox.Sandbox) (*House, error) {
	h := &House{Sandbox: s, kubeconfigs: map[string]string{}}
	if err := h.open(ctx); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

func (h *House) open(ctx context.Context) error {
	var err error
	if h.NATS, err = StartNATS(ctx, filepath.Join(h.Directory(), "nats-cluster")); err != nil {
		return err
	}
	var apiServers []*backend
	for number := range h.AuditLogs() {
		url := h.APIServerURL(number)
		ready, err := h.readiness(url)
		if err != nil {
			return err
		}
		apiServers = append(apiServers, &backend{address: strings.TrimPrefix(url, "https://"), ready: ready})
	}
	if h.apiServers, err = newBalancer("", apiServers...); err != nil {
		return err
	}
	for _, part := range []string{"mint", "accounts", "projector"} {
		if h.kubeconfigs[part], err = h.kubeconfig(ctx, part); err != nil {
			return err
		}
	}
	if err := h.startMints(ctx); err != nil {
		return err
	}
	h.stream = []string{"--nats=" + h.NATS.URL(), fmt.Sprintf("--nats-replicas=%d", Replicas),
		"--stream-max-bytes=" + strconv.Itoa(64<<20), "--evidence-max-bytes=" + strconv.Itoa(64<<20)}
	for i := range 2 {
		// The first makes the streams: a dozen processes that make them at once wait for each other.
		if err := h.start(ctx, fmt.Sprintf("project-%d", i), nil, slices.Concat([]string{"project", "--kubeconfig=" + h.kubeconfigs["projector"]}, h.stream)...); err != nil {
			return err
		}
		if _, err := h.NATS.Leader(ctx, "KV_mintlog_gaps"); err != nil {
			return err
		}
		if err := errors.Join(
			h.start(ctx, fmt.Sprintf("accounts-%d", i), nil, "accounts", "--kubeconfig="+h.kubeconfigs["accounts"],
				"--leader-lease-duration="+leaseDuration.String(), "--leader-renew-deadline=6s", "--leader-retry-period=500ms"),
			h.start(ctx, fmt.Sprintf("archive-%d", i), nil, slices.Concat([]string{"archive", "--victorialogs=" + h.VictoriaLogsURL()}, h.stream)...),
		); err != nil {
			return err
		}
	}
	ingest := slices.Concat([]string{"ingest", "--state=" + h.StateDirectory()}, h.stream)
	for _, log := range h.AuditLogs() {
		ingest = append(ingest, "--audit-log="+log)
	}
	if err := h.start(ctx, "ingest", nil, ingest...); err != nil {
		return err
	}
	if err := h.LayDefinition(ctx); err != nil {
		return err
	}
	if err := h.LayAPI(ctx); err != nil {
		return err
	}
	return h.AwaitFirstSight(ctx, "Postgres")
}

// startMints starts two mint servers behind the address to which the APIService points.
func (h *House) startMints(ctx context.Context) error {
	certificate, key := h.MintCertificate()
	var mints []*backend
	for i := range 2 {
		address, err := process.FreeAddress()
		if err != nil {
			return err
		}
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return err
		}
		ready, err := h.readiness("https://" + address)
		if err != nil {
			return err
		}
		mints = append(mints, &backend{address: address, ready: ready})
		if err := h.start(ctx, fmt.Sprintf("mint-%d", i), ready, "mint", "--kubeconfig="+h.kubeconfigs["mint"], "--bind-address="+host,
			"--secure-port="+port, "--tls-cert-file="+certificate, "--tls-private-key-file="+key, "--shutdown-delay=1s"); err != nil {
			return err
		}
	}
	var err error
	h.mints, err = newBalancer(h.MintAddress(), mints...)
	return err
}

// mintServers are the addresses of the mint servers, each of which has caches of its own.
func (h *House) mintServers() []string {
	if h.mints == nil {
		return []string{h.MintAddress()}
	}
	var all []string
	for _, one := range h.mints.backends {
		all = append(all, one.address)
	}
	return all
}

// start starts a part.
func (h *House) start(ctx context.Context, name string, ready func(context.Context) error, arguments ...string) error {
	if _, err := os.Stat(h.Binary()); err != nil {
		return fmt.Errorf("%s is missing: run \"make build\"", h.Binary())
	}
	started, err := process.Start(ctx, process.Options{
		Name: name, Path: h.Binary(), Arguments: append(arguments, "--metrics-address="), Ready: ready,
		LogFile: filepath.Join(h.Directory(), "logs", name+".log"),
	})
	if err == nil {
		h.parts = append(h.parts, started)
	}
	return err
}

// Part is a process by its name: mint-0, accounts-1, ingest.
func (h *House) Part(name string) *process.Process {
	for _, p := range h.parts {
		if p.Name() == name {
			return p
		}
	}
	panic("there is no part called " + name)
}

// Close ends mintlog's parts and the cluster.
func (h *House) Close() error {
	var err error
	var stops sync.WaitGroup
	var mutex sync.Mutex
	for _, p := range h.parts {
		stops.Go(func() {
			stopped := p.Stop()
			mutex.Lock()
			defer mutex.Unlock()
			err = errors.Join(err, stopped)
		})
	}
	stops.Wait()
	for _, b := range []*balancer{h.mints, h.apiServers} {
		if b != nil {
			b.close()
		}
	}
	if h.NATS != nil {
		err = errors.Join(err, h.NATS.Close())
	}
	return err
}

// kubeconfig is a part's, through the balancer of the kube-apiservers.
func (h *House) kubeconfig(ctx context.Context, part string) (string, error) {
	direct, err := h.ServiceAccountKubeconfig(ctx, part, 0)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(direct)
	if err != nil {
		return "", err
	}
	path := strings.TrimSuffix(direct, ".yaml") + "-balanced.yaml"
	return path, os.WriteFile(path, []byte(strings.ReplaceAll(string(text), h.APIServerURL(0), "https://"+h.apiServers.address())), 0o600)
}

// readiness asks a server whether it is ready, on a connection of its own each time, as the kubelet does.
func (h *House) readiness(url string) (func(context.Context) error, error) {
	config := h.RESTConfig(sandbox.ClusterAdmin, 0)
	pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(config.CAData)
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}, DisableKeepAlives: true,
	}}
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	}, nil
}
