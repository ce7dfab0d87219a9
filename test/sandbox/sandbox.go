// Package sandbox runs a small Kubernetes cluster of real servers on this machine: etcd, kube-apiservers with an audit
// log each, kube-controller-manager, VictoriaLogs, and on request NATS and mintlog itself. The demo, "make sandbox" and
// the end-to-end tests use it alike.
//
// Everything listens on 127.0.0.1 only, at free ports, and ends with the sandbox: when it is stopped, when the context
// it was started with is cancelled (give it one that an interrupt cancels), or when its process dies.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/mintlog/mintlog/test/sandbox/process"
)

// Options of Start; all have a default.
type Options struct {
	Directory    string    // for data, keys and logs; empty: a temporary one, which Stop removes
	BinDirectory string    // with the servers' binaries; empty: bin/ of this module
	Apiservers   int       // default 2
	Log          io.Writer // gets a line of progress for each step; nil: none
	AuditPolicy  string    // in YAML, instead of deploy/audit/policy.yaml

	// Rotation of the audit logs and verbosity of the kube-apiservers; 0 is kube-apiserver's default.
	AuditLogMaxMegabytes int
	AuditLogMaxBackups   int
	AuditLogMaxDays      int
	Verbosity            int

	// Synced has etcd sync every write to the disk, as it does in production: for measurements. Without, what etcd has
	// acknowledged outlives its processes but not the machine, and tests do not wait for a disk that others keep busy.
	Synced bool

	ExtraAPIServerFlags []string // of every kube-apiserver, behind the sandbox's own: "--audit-webhook-config-file=…"
}

// A Sandbox is a running cluster. Its methods may be called from several goroutines.
type Sandbox struct {
	options   Options
	directory string
	temporary *process.Directory // nil: the directory was given
	root      string
	began     time.Time

	clients, frontProxy, serving *Authority
	people                       map[string]person

	etcdAddress         string
	etcdMember          []string
	victoriaLogsAddress string
	apiServerAddresses  []string
	mintAddress         string
	metricsAddress      string
	apiServers          []*process.Process

	objects dynamic.Interface
	kinds   *restmapper.DeferredDiscoveryRESTMapper

	mutex   sync.Mutex         // guards what follows, and the log
	servers []*process.Process // in the order of their start
	ours    []*process.Process // mintlog's

	release func() bool  // of the context
	stop    func() error // once
}

// Start starts the servers and lays the custom resources, mintlog's roles and the tenants. If it fails, or the context
// is cancelled, nothing is left running. The sandbox stops when the context is cancelled, even after Start returned: with
// a test's own context before the test's cleanups run, of which none may still use its directory then.
func Start(ctx context.Context, options Options) (*Sandbox, error) {
	s, err := prepare(options)
	if err != nil {
		return nil, fmt.Errorf("preparing the sandbox: %w", err)
	}
	if err := s.startAll(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("starting the sandbox: %w", err), s.Stop())
	}
	s.release = context.AfterFunc(ctx, func() { _ = s.Stop() })
	s.say("the sandbox stands")
	return s, nil
}

func prepare(options Options) (*Sandbox, error) {
	if options.Apiservers == 0 {
		options.Apiservers = 2
	}
	root, err := process.Root()
	if err != nil {
		return nil, err
	}
	if options.BinDirectory == "" {
		options.BinDirectory = filepath.Join(root, "bin")
	}
	s := &Sandbox{options: options, root: root, began: time.Now(), directory: options.Directory}
	s.stop = sync.OnceValue(s.end)
	if s.directory == "" {
		if s.temporary, err = process.NewDirectory("mintlog-sandbox-"); err != nil {
			return nil, err
		}
		s.directory = s.temporary.Path
	}
	if err := s.prepareDirectory(); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Sandbox) prepareDirectory() error {
	var err error
	if s.directory, err = filepath.Abs(s.directory); err != nil {
		return err
	}
	for _, name := range []string{"pki", "kubeconfig", "logs", "etcd"} {
		if err := os.MkdirAll(s.path(name), 0o700); err != nil {
			return err
		}
	}
	s.apiServerAddresses = make([]string, s.options.Apiservers)
	s.apiServers = make([]*process.Process, s.options.Apiservers)
	addresses := []*string{&s.etcdAddress, &s.victoriaLogsAddress, &s.mintAddress, &s.metricsAddress}
	for number := range s.apiServerAddresses {
		addresses = append(addresses, &s.apiServerAddresses[number])
	}
	for _, address := range addresses {
		if *address, err = process.FreeAddress(); err != nil {
			return err
		}
	}
	if err := s.preparePKI(); err != nil {
		return fmt.Errorf("making certificates: %w", err)
	}
	if err := s.preparePeople(); err != nil {
		return err
	}
	policy := []byte(s.options.AuditPolicy)
	if len(policy) == 0 {
		if policy, err = os.ReadFile(filepath.Join(s.root, "deploy", "audit", "policy.yaml")); err != nil {
			return fmt.Errorf("reading the audit policy: %w", err)
		}
	}
	return os.WriteFile(s.path("audit-policy.yaml"), policy, 0o600)
}

func (s *Sandbox) startAll(ctx context.Context) error {
	if err := together(
		func() error { return s.startEtcd(ctx) },
		func() error { return s.startVictoriaLogs(ctx) },
	); err != nil {
		return err
	}
	starts := make([]func() error, len(s.apiServers))
	for number := range starts {
		starts[number] = func() error { return s.startAPIServer(ctx, number) }
	}
	if err := together(starts...); err != nil {
		return err
	}
	if err := s.connect(); err != nil {
		return err
	}
	if err := together(
		func() error {
			// The garbage collector looks for new resources every 30 s only: they are there before it starts.
			if err := s.layCustomResources(ctx); err != nil {
				return fmt.Errorf("laying the custom resources: %w", err)
			}
			return s.startControllerManager(ctx)
		},
		func() error { return s.layAccess(ctx) },
	); err != nil {
		return err
	}
	return s.awaitTenantRoles(ctx)
}

// Stop ends everything, waits until it is gone, and removes the directory if the sandbox made it. mintlog's processes
// are asked to end, and killed after three minutes; the servers are killed. A second call waits for the first, and returns
// what it does.
func (s *Sandbox) Stop() error { return s.stop() }

func (s *Sandbox) end() error {
	s.mutex.Lock()
	ours, servers := s.ours, s.servers
	s.mutex.Unlock()
	if s.release != nil {
		s.release()
	}
	var stops []func() error
	for _, mintlog := range ours {
		stops = append(stops, mintlog.Stop)
	}
	err := together(stops...)
	stops = nil
	for _, server := range servers {
		stops = append(stops, func() error { server.Kill(); return nil })
	}
	err = errors.Join(err, together(stops...))
	if s.temporary != nil {
		err = errors.Join(err, s.temporary.Remove())
	}
	return err
}

// Directory holds everything the sandbox writes.
func (s *Sandbox) Directory() string { return s.directory }

// Root is the folder of this module.
func (s *Sandbox) Root() string { return s.root }

// LogFiles are the output of every process that has run in the sandbox, and the audit logs.
func (s *Sandbox) LogFiles() []string {
	files, _ := filepath.Glob(s.path("logs", "*")) // the pattern is well formed: no error
	return append(files, s.AuditLogs()...)
}

// AuditLog is the path of a kube-apiserver's audit log, which is in a folder of its own together with its backups.
func (s *Sandbox) AuditLog(apiserver int) string {
	return s.path("audit", apiServerName(apiserver), "audit.log")
}

// AuditLogs are those of all kube-apiservers.
func (s *Sandbox) AuditLogs() []string {
	logs := make([]string, len(s.apiServers))
	for number := range logs {
		logs[number] = s.AuditLog(number)
	}
	return logs
}

// VictoriaLogsURL is the address of VictoriaLogs, without a trailing slash.
func (s *Sandbox) VictoriaLogsURL() string { return "http://" + s.victoriaLogsAddress }

// EtcdURL is where etcd serves its clients.
func (s *Sandbox) EtcdURL() string { return "http://" + s.etcdAddress }

// EtcdMember are the flags that make etcd the member that it is, the folder of its data among them: what a restore of a
// snapshot takes too.
func (s *Sandbox) EtcdMember() []string { return slices.Clone(s.etcdMember) }

// APIServer is a kube-apiserver's process: to be killed, stopped and restarted.
func (s *Sandbox) APIServer(number int) *process.Process { return s.apiServers[number] }

// APIServerURL is its address.
func (s *Sandbox) APIServerURL(number int) string { return "https://" + s.apiServerAddresses[number] }

// Processes are all that were started, the servers before mintlog's.
func (s *Sandbox) Processes() []*process.Process {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return append(append([]*process.Process{}, s.servers...), s.ours...)
}

func (s *Sandbox) path(names ...string) string {
	return filepath.Join(append([]string{s.directory}, names...)...)
}

func (s *Sandbox) pki(file string) string { return s.path("pki", file) }

func (s *Sandbox) binary(name string) string { return filepath.Join(s.options.BinDirectory, name) }

func (s *Sandbox) say(format string, arguments ...any) {
	if s.options.Log == nil {
		return
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	fmt.Fprintf(s.options.Log, "%5.1fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, arguments...))
}

// together runs all at once and returns all their errors.
func together(functions ...func() error) error {
	results := make([]error, len(functions))
	var group sync.WaitGroup
	for i, function := range functions {
		group.Go(func() { results[i] = function() })
	}
	group.Wait()
	return errors.Join(results...)
}
