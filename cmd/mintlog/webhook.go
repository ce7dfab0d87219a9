package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/mintlog/mintlog/ingest/webhook"
	"github.com/mintlog/mintlog/store/stream"
)

// webhookFlags say where audit events are received, and from whom.
type webhookFlags struct {
	prefix            string // of the flags' names, where they stand beside those of others
	address           string
	certFile, keyFile string
	clientCAFile      string
	clientNames       []string
	setAside          string
	setAsideBytes     int64
	retryAfter        time.Duration
}

func (f *webhookFlags) bind(flags *pflag.FlagSet) {
	name := func(flag string) string { return f.prefix + flag }
	flags.StringVar(&f.address, name("address"), ":9443", "address to listen on for audit events")
	flags.StringVar(&f.certFile, name("tls-cert-file"), "", "serving certificate, PEM; a changed file is taken over without a restart")
	flags.StringVar(&f.keyFile, name("tls-private-key-file"), "", "key of the serving certificate, PEM")
	flags.StringVar(&f.clientCAFile, name("client-ca-file"), "", "CA of the callers' certificates, PEM; use one that signs for kube-apiservers' webhooks alone")
	flags.StringArrayVar(&f.clientNames, name("client-name"), nil, "common name of a caller's certificate that is let in; repeatable; default: all that the CA has signed")
	flags.StringVar(&f.setAside, name("set-aside"), "/var/lib/mintlog/set-aside", "directory for events that cannot be used; they may hold what your audit policy records")
	flags.Int64Var(&f.setAsideBytes, name("set-aside-max-bytes"), webhook.DefaultSetAsideBytes, "size of that directory, at which the oldest go")
	flags.DurationVar(&f.retryAfter, name("retry-after"), webhook.DefaultRetryAfter, "for how long kube-apiservers are told to wait while the stream is down")
}

// given reports whether any of the flags is: then all are needed that receiving takes.
func (f *webhookFlags) given(flags *pflag.FlagSet) bool {
	given := false
	flags.Visit(func(flag *pflag.Flag) { given = given || strings.HasPrefix(flag.Name, f.prefix) })
	return given
}

func (f *webhookFlags) validate() error {
	flag := "--" + f.prefix
	switch {
	case f.clientCAFile == "":
		return fmt.Errorf("%sclient-ca-file is needed: without it anybody could make up audit events", flag)
	case f.certFile == "" || f.keyFile == "":
		return fmt.Errorf("%stls-cert-file and %stls-private-key-file are needed: kube-apiserver sends events over TLS", flag, flag)
	case f.setAside == "":
		return fmt.Errorf("%sset-aside is needed: it is a directory for events that cannot be used", flag)
	case f.setAsideBytes <= 0:
		return fmt.Errorf("%sset-aside-max-bytes %d: it is more than 0", flag, f.setAsideBytes)
	case f.retryAfter < time.Second:
		return fmt.Errorf("%sretry-after %s: it is at least 1s", flag, f.retryAfter)
	}
	return errors.Join(checkAddress(flag+"address", f.address), checkEach(flag+"client-name", f.clientNames),
		checkFile(flag+"client-ca-file", f.clientCAFile), checkFile(flag+"tls-cert-file", f.certFile), checkFile(flag+"tls-private-key-file", f.keyFile),
		checkFolder(flag+"set-aside", f.setAside))
}

// parts are one receiver. It ends by itself behind the requests in hand.
func (f *webhookFlags) parts(p runtime, s *stream.Stream) ([]part, error) {
	err := errors.Join(p.watchExpiry("webhook", f.certFile, first), p.watchExpiry("webhook-client-ca", f.clientCAFile, last))
	if err != nil {
		return nil, err
	}
	receiver, err := webhook.New(webhook.Options{
		Address: f.address, CertFile: f.certFile, KeyFile: f.keyFile,
		ClientCAFile: f.clientCAFile, ClientNames: f.clientNames, Publisher: s, Gaps: s, Attendant: s,
		SetAside: f.setAside, SetAsideBytes: f.setAsideBytes, RetryAfter: f.retryAfter,
		Log: p.log.With("part", "ingest-webhook"), Registerer: p.registry,
	})
	if err != nil {
		return nil, err
	}
	p.log.Info("receiving audit events", "address", receiver.Address().String())
	return []part{receiver.Run}, nil
}

func webhookCommand() *cobra.Command {
	var process processFlags
	var where streamFlags
	var receive webhookFlags
	c := &cobra.Command{
		Use:   "webhook",
		Short: "Receive audit events from kube-apiservers over HTTPS",
		Long: `webhook is the receiving end of kube-apiserver's --audit-webhook-config-file, for which
"mintlog ingest webhook-kubeconfig" prints the file. Each kube-apiserver has a path of
its own, /audit/<name>, and shows a certificate of --client-ca-file.

It answers when the events of ours in a batch are durably published. While the stream
is down kube-apiserver holds on for about four minutes and then drops batches: follow
the audit log's files as well where an outage may be longer.`,
		Example: `  mintlog ingest webhook --tls-cert-file tls.crt --tls-private-key-file tls.key --client-ca-file ca.crt \
    --nats nats://nats:4222`,
		RunE: func(c *cobra.Command, _ []string) error {
			return process.run(c.Context(), func(ctx context.Context, p runtime) ([]part, error) {
				if err := errors.Join(receive.validate(), where.wanted()); err != nil {
					return nil, err
				}
				s, err := where.open(ctx, p)
				if err != nil {
					return nil, err
				}
				return receive.parts(p, s)
			})
		},
	}
	process.bind(c.Flags())
	where.bind(c.Flags())
	receive.bind(c.Flags())
	return noArguments(c)
}

// webhookKubeconfig is what a kube-apiserver needs to know of the receiver.
type webhookKubeconfig struct {
	server, name         string
	ca, certificate, key string
	embed                bool
}

func webhookKubeconfigCommand() *cobra.Command {
	var k webhookKubeconfig
	c := &cobra.Command{
		Use:   "webhook-kubeconfig",
		Short: "Print the file for a kube-apiserver's --audit-webhook-config-file",
		Long: `webhook-kubeconfig prints the file that tells a kube-apiserver where to send its audit
events. The certificates are named by their paths on the kube-apiserver's machine, or,
with --embed, read here and put into the file, which is a secret then.

Every kube-apiserver has a --name of its own: it is told apart by it in the source of
the events.`,
		Example: `  mintlog ingest webhook-kubeconfig --server https://mintlog-ingest:9443 --name control-plane-1 \
    --certificate-authority ca.crt --client-certificate tls.crt --client-key tls.key --embed > webhook.yaml`,
		RunE: func(c *cobra.Command, _ []string) error {
			text, err := k.render()
			if err != nil {
				return err
			}
			_, err = c.OutOrStdout().Write(text)
			return err
		},
	}
	flags := c.Flags()
	flags.StringVar(&k.server, "server", "", "URL of \"mintlog ingest webhook\", as the kube-apiserver reaches it")
	flags.StringVar(&k.name, "name", "", "name of the kube-apiserver")
	flags.StringVar(&k.ca, "certificate-authority", "", "CA of the receiver's certificate, PEM")
	flags.StringVar(&k.certificate, "client-certificate", "", "certificate of the kube-apiserver for this purpose, PEM")
	flags.StringVar(&k.key, "client-key", "", "key of that certificate, PEM")
	flags.BoolVar(&k.embed, "embed", false, "put the contents of the three files into the kubeconfig instead of their paths")
	return noArguments(c)
}

func (k *webhookKubeconfig) render() ([]byte, error) {
	url, err := k.url()
	if err != nil {
		return nil, err
	}
	if k.ca == "" || k.certificate == "" || k.key == "" {
		return nil, errors.New("--certificate-authority, --client-certificate and --client-key are needed: kube-apiserver and the receiver know each other by certificates")
	}
	cluster := &clientcmdapi.Cluster{Server: url, CertificateAuthority: k.ca}
	user := &clientcmdapi.AuthInfo{ClientCertificate: k.certificate, ClientKey: k.key}
	if k.embed {
		if err := embedFiles(cluster, user); err != nil {
			return nil, err
		}
	}
	const name = "mintlog"
	return clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: cluster},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: user},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	})
}

// url is where the kube-apiserver posts to.
func (k *webhookKubeconfig) url() (string, error) {
	u, err := url.Parse(k.server)
	if err != nil || u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		return "", errors.New("--server: it is a URL like https://mintlog-ingest:9443, with nothing behind the port")
	}
	if err := webhook.CheckName(k.name); err != nil {
		return "", fmt.Errorf("--name: %w", err)
	}
	u.Path = webhook.Path(k.name)
	return u.String(), nil
}

// embedFiles replaces paths by contents, after a look that these are what they should be.
func embedFiles(cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) error {
	for _, f := range []struct {
		flag    string
		path    *string
		content *[]byte
	}{
		{"--certificate-authority", &cluster.CertificateAuthority, &cluster.CertificateAuthorityData},
		{"--client-certificate", &user.ClientCertificate, &user.ClientCertificateData},
		{"--client-key", &user.ClientKey, &user.ClientKeyData},
	} {
		text, err := os.ReadFile(*f.path)
		if err != nil {
			return fmt.Errorf("%s: %w", f.flag, err)
		}
		*f.content, *f.path = text, ""
	}
	if !x509.NewCertPool().AppendCertsFromPEM(cluster.CertificateAuthorityData) {
		return errors.New("--certificate-authority: no certificate in it")
	}
	if _, err := tls.X509KeyPair(user.ClientCertificateData, user.ClientKeyData); err != nil {
		return fmt.Errorf("--client-certificate and --client-key: %w", err)
	}
	return nil
}
