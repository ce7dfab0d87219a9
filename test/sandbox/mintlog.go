package sandbox

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mintlog/mintlog/test/sandbox/process"
)

// Namespace is mintlog's, and ServiceName what the APIService points to.
const (
	Namespace   = "mintlog"
	ServiceName = "mint"
)

// Binary is the path of mintlog's own binary.
func (s *Sandbox) Binary() string { return s.binary("mintlog") }

// MintAddress is where the APIService looks for the mint server: an address of loopback, free until one listens there.
func (s *Sandbox) MintAddress() string { return s.mintAddress }

// MetricsAddress is free for the metrics of mintlog.
func (s *Sandbox) MetricsAddress() string { return s.metricsAddress }

// MintCertificate are the paths of the mint server's serving certificate and key, signed by what the APIService trusts.
func (s *Sandbox) MintCertificate() (certificate, key string) {
	return s.pki("mint.crt"), s.pki("mint.key")
}

// StateDirectory is where mintlog keeps its stream and its checkpoints.
func (s *Sandbox) StateDirectory() string { return s.path("state") }

// AllArguments make "mintlog all" serve this sandbox through its first kube-apiserver.
func (s *Sandbox) AllArguments() []string {
	certificate, key := s.MintCertificate()
	host, port := split(s.mintAddress)
	arguments := []string{"all",
		"--namespace=" + Namespace,
		"--mint-kubeconfig=" + s.serviceAccountKubeconfig("mint", 0),
		"--accounts-kubeconfig=" + s.serviceAccountKubeconfig("accounts", 0),
		"--projector-kubeconfig=" + s.serviceAccountKubeconfig("projector", 0),
		"--bind-address=" + host,
		"--secure-port=" + port,
		"--tls-cert-file=" + certificate,
		"--tls-private-key-file=" + key,
		"--state=" + s.StateDirectory(),
		"--victorialogs=" + s.VictoriaLogsURL(),
		"--metrics-address=" + s.metricsAddress,
	}
	for _, log := range s.AuditLogs() {
		arguments = append(arguments, "--audit-log="+log)
	}
	return arguments
}

// RunAll starts "mintlog all" for this sandbox, with more arguments if there are any, and lays its API when the mint
// server is ready.
func (s *Sandbox) RunAll(ctx context.Context, more ...string) (*process.Process, error) {
	client, err := s.adminClient()
	if err != nil {
		return nil, err
	}
	started, err := s.run(ctx, process.Options{
		Name:      "mintlog",
		Path:      s.Binary(),
		Arguments: append(s.AllArguments(), more...),
		Ready:     process.Answers(client, "https://"+s.mintAddress+"/readyz"),
	})
	if err != nil {
		return nil, err
	}
	s.say("mintlog is ready")
	return started, s.LayAPI(ctx)
}

// RestartAll starts what RunAll started once more, after stopping it if it runs, and waits until every kube-apiserver
// serves its API again: one that looked meanwhile answers 503 until it looks again.
func (s *Sandbox) RestartAll(ctx context.Context, mintlog *process.Process) error {
	if err := mintlog.Restart(ctx); err != nil {
		return err
	}
	return s.LayAPI(ctx)
}

// Run starts a process of ours under the sandbox's discipline: its output in a file of its name among the logs, and it
// ends with the sandbox. Stop sends SIGTERM and waits, Kill sends SIGKILL, Restart starts it again with the same
// arguments. A path that is not absolute is below this module's folder.
func (s *Sandbox) Run(ctx context.Context, name, binary string, arguments ...string) (*process.Process, error) {
	if !filepath.IsAbs(binary) {
		binary = filepath.Join(s.root, binary)
	}
	return s.run(ctx, process.Options{Name: name, Path: binary, Arguments: arguments})
}

func (s *Sandbox) run(ctx context.Context, options process.Options) (*process.Process, error) {
	if _, err := os.Stat(options.Path); err != nil {
		return nil, fmt.Errorf("%s is missing: run \"make build\"", options.Path)
	}
	options.LogFile = s.path("logs", options.Name+".log")
	started, err := process.Start(ctx, options)
	if err != nil {
		return nil, err
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.ours = append(s.ours, started)
	return started, nil
}
