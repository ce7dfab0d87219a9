package sandbox

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/mintlog/mintlog/test/sandbox/process"
)

const (
	frontProxyName     = "front-proxy-client"
	serviceAddresses   = "10.96.0.0/24"
	serviceAccountName = "https://kubernetes.default.svc.cluster.local"
)

func (s *Sandbox) startEtcd(ctx context.Context) error {
	peer, err := process.FreeAddress()
	if err != nil {
		return err
	}
	s.etcdMember = []string{
		"--name=sandbox",
		"--data-dir=" + s.path("etcd"),
		"--initial-advertise-peer-urls=http://" + peer,
		"--initial-cluster=sandbox=http://" + peer,
	}
	arguments := append(s.EtcdMember(),
		"--listen-client-urls="+s.EtcdURL(),
		"--advertise-client-urls="+s.EtcdURL(),
		"--listen-peer-urls=http://"+peer,
		"--log-level=warn",
	)
	if !s.options.Synced {
		arguments = append(arguments, "--unsafe-no-fsync")
	}
	_, err = s.start(ctx, "etcd", process.Options{
		Arguments: arguments,
		Ready:     process.Answers(http.DefaultClient, s.EtcdURL()+"/health"),
	})
	return err
}

func (s *Sandbox) startVictoriaLogs(ctx context.Context) error {
	_, err := s.start(ctx, "victoria-logs", process.Options{
		Arguments: []string{
			"-httpListenAddr=" + s.victoriaLogsAddress,
			"-storageDataPath=" + s.path("victoria-logs"),
			"-retentionPeriod=1y",
			"-memory.allowedBytes=256MiB",
		},
		Ready: process.Answers(http.DefaultClient, s.VictoriaLogsURL()+"/health"),
	})
	return err
}

func (s *Sandbox) startAPIServer(ctx context.Context, number int) error {
	address := s.apiServerAddresses[number]
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	name := apiServerName(number)
	if err := os.MkdirAll(filepath.Dir(s.AuditLog(number)), 0o700); err != nil {
		return err
	}
	client, err := s.adminClient()
	if err != nil {
		return err
	}
	arguments := []string{
		"--etcd-servers=" + s.EtcdURL(),
		"--bind-address=127.0.0.1",
		"--secure-port=" + port,
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none", // no endpoint may be on loopback, and nothing here asks for them
		"--cert-dir=" + s.path(name),
		"--tls-cert-file=" + s.pki("apiserver.crt"),
		"--tls-private-key-file=" + s.pki("apiserver.key"),
		"--client-ca-file=" + s.pki("client-ca.crt"),
		"--requestheader-client-ca-file=" + s.pki("front-proxy-ca.crt"),
		"--requestheader-allowed-names=" + frontProxyName,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + s.pki("front-proxy.crt"),
		"--proxy-client-key-file=" + s.pki("front-proxy.key"),
		"--service-account-issuer=" + serviceAccountName,
		"--service-account-key-file=" + s.pki("service-accounts.pub"),
		"--service-account-signing-key-file=" + s.pki("service-accounts.key"),
		"--service-cluster-ip-range=" + serviceAddresses,
		"--authorization-mode=RBAC",
		"--profiling=false",
		"--audit-policy-file=" + s.path("audit-policy.yaml"),
		"--audit-log-path=" + s.AuditLog(number),
		"--audit-log-mode=blocking",
	}
	for flag, value := range map[string]int{
		"--audit-log-maxsize":   s.options.AuditLogMaxMegabytes,
		"--audit-log-maxbackup": s.options.AuditLogMaxBackups,
		"--audit-log-maxage":    s.options.AuditLogMaxDays,
		"--v":                   s.options.Verbosity,
	} {
		if value > 0 {
			arguments = append(arguments, fmt.Sprintf("%s=%d", flag, value))
		}
	}
	arguments = append(arguments, s.options.ExtraAPIServerFlags...)
	server, err := s.start(ctx, name, process.Options{
		Path:      s.binary("kube-apiserver"),
		Arguments: arguments,
		Ready:     process.Answers(client, "https://"+address+"/readyz"),
	})
	s.apiServers[number] = server
	return err
}

// startControllerManager starts what the cluster needs to behave like one where Secrets are concerned: garbage
// collection by owner reference, the deletion of namespaces, service accounts, the aggregation of roles.
func (s *Sandbox) startControllerManager(ctx context.Context) error {
	address, err := process.FreeAddress()
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	client, err := s.adminClient()
	if err != nil {
		return err
	}
	client.Transport.(*http.Transport).TLSClientConfig.InsecureSkipVerify = true // it signs for itself
	_, err = s.start(ctx, "kube-controller-manager", process.Options{
		Arguments: []string{
			"--kubeconfig=" + s.Kubeconfig(controllerManager, 0),
			"--bind-address=127.0.0.1",
			"--secure-port=" + port,
			"--cert-dir=" + s.path("kube-controller-manager"),
			"--leader-elect=false",
			"--use-service-account-credentials=true",
			"--service-account-private-key-file=" + s.pki("service-accounts.key"),
			"--root-ca-file=" + s.pki("serving-ca.crt"),
			"--kube-api-qps=500",
			"--kube-api-burst=1000",
			"--controllers=" + strings.Join([]string{
				"clusterrole-aggregation-controller",
				"garbage-collector-controller",
				"namespace-controller",
				"root-ca-certificate-publisher-controller",
				"serviceaccount-controller",
				"serviceaccount-token-controller",
				"validatingadmissionpolicy-status-controller",
			}, ","),
		},
		Ready: process.Answers(client, "https://"+address+"/healthz"),
	})
	return err
}

// StartNATS starts a NATS server with JetStream, for parts of mintlog in processes of their own: file store, every
// write synced. It returns the server's URL.
func (s *Sandbox) StartNATS(ctx context.Context) (string, error) {
	address, err := process.FreeAddress()
	if err != nil {
		return "", err
	}
	configuration := s.path("nats.conf")
	text := fmt.Sprintf("listen: %q\njetstream { store_dir: %q, sync_interval: always }\n", address, s.path("nats"))
	if err := os.WriteFile(configuration, []byte(text), 0o600); err != nil {
		return "", fmt.Errorf("writing the configuration of NATS: %w", err)
	}
	_, err = s.start(ctx, "nats-server", process.Options{
		Arguments: []string{"--config", configuration},
		Ready:     process.Listens(address),
	})
	return "nats://" + address, err
}

// start runs a server of the sandbox and keeps it. Without a path it is the binary of that name.
func (s *Sandbox) start(ctx context.Context, name string, options process.Options) (*process.Process, error) {
	if options.Path == "" {
		options.Path = s.binary(name)
	}
	if _, err := os.Stat(options.Path); err != nil {
		return nil, fmt.Errorf("%s is missing: run \"make tools\"", options.Path)
	}
	options.Name = name
	options.LogFile = s.path("logs", name+".log")
	server, err := process.Start(ctx, options)
	if err != nil {
		return nil, err
	}
	s.mutex.Lock()
	s.servers = append(s.servers, server)
	s.mutex.Unlock()
	s.say("%s is ready", name)
	return server, nil
}

func apiServerName(number int) string { return "kube-apiserver-" + strconv.Itoa(number) }

// adminClient speaks to the API servers as cluster-admin.
func (s *Sandbox) adminClient() (*http.Client, error) {
	person := s.people[ClusterAdmin]
	pair, err := tls.X509KeyPair(person.certificate, person.key)
	if err != nil {
		return nil, fmt.Errorf("reading cluster-admin's certificate: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(s.serving.certificate)
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}},
	}}, nil
}
