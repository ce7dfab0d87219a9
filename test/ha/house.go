package ha

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
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
const leaseDuration = 4 * time.Second

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
				"--leader-lease-duration="+leaseDuration.String(), "--leader-renew-deadline=2s", "--leader-retry-period=500ms"),
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

// Config is a person's connection through the balancer of the kube-apiservers.
func (h *House) Config(person string) *rest.Config {
	config := h.RESTConfig(person, 0)
	config.Host = "https://" + h.apiServers.address()
	return config
}

// Mint mints as a person whose client repeats what is answered 503 or 429, when it is told to, ten times at most. It
// returns the entry's id, and how often it had to repeat.
func (h *House) Mint(ctx context.Context, client *http.Client, credential string) (id string, repeats int, err error) {
	for ; ; repeats++ {
		answer, body, err := h.mintOnce(ctx, client, credential)
		if err != nil {
			return "", repeats, fmt.Errorf("a mint of %s: %w", credential, err)
		}
		switch answer.StatusCode {
		case http.StatusCreated:
			var minted v1alpha1.CredentialMint
			if err := json.Unmarshal(body, &minted); err != nil {
				return "", repeats, errors.New("the answer of a mint cannot be read")
			}
			return minted.Status.ID, repeats, nil
		case http.StatusServiceUnavailable, http.StatusTooManyRequests:
			if repeats < 10 {
				seconds, _ := strconv.Atoi(answer.Header.Get("Retry-After"))
				time.Sleep(max(time.Duration(seconds)*time.Second, 100*time.Millisecond))
				continue
			}
		}
		return "", repeats, fmt.Errorf("a mint of %s was answered %s: %s", credential, answer.Status, body) // no 201: it holds no password
	}
}

func (h *House) mintOnce(ctx context.Context, client *http.Client, credential string) (*http.Response, []byte, error) {
	url := "https://" + h.apiServers.address() + "/apis/credentials.cozystack.io/v1alpha1/namespaces/" + sandbox.TenantAcme + "/credentials/" + credential + "/mint"
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		return nil, nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response, body, err
}

// Credential reads a view as jane.
func (h *House) Credential(ctx context.Context, client *http.Client, credential string) (*v1alpha1.Credential, error) {
	url := "https://" + h.apiServers.address() + "/apis/credentials.cozystack.io/v1alpha1/namespaces/" + sandbox.TenantAcme + "/credentials/" + credential
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	if err != nil {
		return nil, err
	}
	var c v1alpha1.Credential
	return &c, json.Unmarshal(body, &c)
}

// Application lays an application of the kind Postgres in tenant-acme and waits for its accounts.
func (h *House) Application(ctx context.Context, name string, accounts int) ([]string, error) {
	users, credentials := map[string]any{}, make([]string, accounts)
	for i := range accounts {
		users[fmt.Sprintf("u%d", i)] = map[string]any{}
		credentials[i] = fmt.Sprintf("postgres-%s.u%d", name, i)
	}
	if _, err := h.InstallRelease(ctx, sandbox.TenantAcme, "Postgres", name, map[string]any{"users": users}); err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(h.Config(sandbox.Jane))
	if err != nil {
		return nil, err
	}
	for _, credential := range credentials {
		if err := eventually(ctx, time.Minute, func(ctx context.Context) error {
			_, err := h.Credential(ctx, client, credential)
			return err
		}); err != nil {
			return nil, fmt.Errorf("waiting for the account %s: %w", credential, err)
		}
	}
	return credentials, nil
}

// AwaitAttributed waits until the view says who asked for an entry.
func (h *House) AwaitAttributed(ctx context.Context, client *http.Client, limit time.Duration, credential, id, by string) error {
	return eventually(ctx, limit, func(ctx context.Context) error {
		c, err := h.Credential(ctx, client, credential)
		if err != nil {
			return err
		}
		for _, o := range c.Status.History {
			if o.ID == id && o.By == by {
				return nil
			}
		}
		return fmt.Errorf("the mint of %s is not attributed", credential)
	})
}

// A Rolling is what mints came to while every component was restarted.
type Rolling struct {
	Mints, Failed, Repeats int
	Failures               []error // the first few
	Restarts               []string
	Took                   time.Duration
}

// RollingRestart restarts each process of each component, one at a time: mint servers, accounts, projectors, archivers,
// ingest and the kube-apiservers. Clients mint all the while, count mints at least.
func (h *House) RollingRestart(ctx context.Context, count int, credentials []string) (Rolling, error) {
	began := time.Now()
	var r Rolling
	var mutex sync.Mutex
	var issued atomic.Int64
	var restarted atomic.Bool
	var clients sync.WaitGroup
	last := map[string]string{} // the newest entry's id, by credential
	const workers = 4
	for worker := range workers {
		client, err := rest.HTTPClientFor(h.Config(sandbox.Jane))
		if err != nil {
			return r, err
		}
		clients.Go(func() {
			for n := worker; ctx.Err() == nil && (issued.Add(1) <= int64(count) || !restarted.Load()); n += workers {
				credential := credentials[n%len(credentials)] // no other client mints it
				id, repeats, err := h.Mint(ctx, client, credential)
				mutex.Lock()
				r.Mints++
				r.Repeats += repeats
				if err != nil {
					r.Failed++
					if len(r.Failures) < 5 {
						r.Failures = append(r.Failures, err)
					}
				} else {
					last[credential] = id
				}
				mutex.Unlock()
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	err := h.restartAll(ctx, &r)
	restarted.Store(true)
	clients.Wait()
	r.Took = time.Since(began)
	if err != nil {
		return r, err
	}
	client, err := rest.HTTPClientFor(h.Config(sandbox.Jane))
	if err != nil {
		return r, err
	}
	for credential, id := range last {
		if err := h.AwaitAttributed(ctx, client, 90*time.Second, credential, id, "jane"); err != nil {
			return r, err
		}
	}
	return r, nil
}

func (h *House) restartAll(ctx context.Context, r *Rolling) error {
	restart := func(p *process.Process) error {
		if err := p.Stop(); err != nil {
			return err
		}
		if err := p.Restart(ctx); err != nil {
			return err
		}
		r.Restarts = append(r.Restarts, p.Name())
		return nil
	}
	for _, p := range h.parts {
		if err := restart(p); err != nil {
			return err
		}
		time.Sleep(2 * readyInterval)
	}
	for number := range h.AuditLogs() {
		if err := restart(h.APIServer(number)); err != nil {
			return err
		}
		time.Sleep(2 * readyInterval)
	}
	return nil
}
