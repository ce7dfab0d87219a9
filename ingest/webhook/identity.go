package webhook

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"
)

// identity is what the receiver shows and whom it believes, as the files have it now.
type identity struct {
	files   [3]string // certificate, key, client CA
	names   []string  // that callers may have; none: all
	now     func() time.Time
	log     *slog.Logger
	metrics *metrics

	mu      sync.Mutex
	looked  time.Time
	content [3][]byte
	loaded  *tls.Config
	stale   bool // the files have changed to something that cannot be used
}

// lookInterval is how far apart two looks at the files are at least.
const lookInterval = time.Second

func loadIdentity(o *Options, m *metrics) (*identity, error) {
	i := &identity{
		files: [3]string{o.CertFile, o.KeyFile, o.ClientCAFile}, names: o.ClientNames, now: o.Now, log: o.Log, metrics: m,
	}
	if err := i.load(); err != nil {
		return nil, err
	}
	return i, nil
}

// config asks the files at every handshake. A session is never resumed: that would pass by a changed client CA.
func (i *identity) config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return i.current(), nil },
		// GetConfigForClient gives all of it; the server refuses to serve without a certificate here.
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &i.current().Certificates[0], nil },
	}
}

// current looks at the files if it is time to. While they cannot be used, as when one of two has been written, what was
// loaded before stands.
func (i *identity) current() *tls.Config {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.now().Sub(i.looked) >= lookInterval {
		err := i.load()
		if err != nil {
			i.metrics.reloadFailures.Inc()
			if !i.stale {
				i.log.Error("Changed certificates cannot be used; the old ones stand", "error", err)
			}
		}
		i.stale = err != nil
	}
	return i.loaded
}

func (i *identity) load() error {
	i.looked = i.now()
	var content [3][]byte
	for n, file := range i.files {
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("reading the webhook's certificates: %w", err)
		}
		content[n] = text
	}
	if slices.EqualFunc(content[:], i.content[:], bytes.Equal) {
		return nil
	}
	certificate, err := tls.X509KeyPair(content[0], content[1])
	if err != nil {
		return fmt.Errorf("using the serving certificate %s: %w", i.files[0], err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(content[2]) {
		return fmt.Errorf("using the client CA %s: no certificate in it", i.files[2])
	}
	if i.loaded != nil {
		i.log.Info("The webhook's certificates have changed")
	}
	i.content = content
	i.loaded = &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"},
		Certificates: []tls.Certificate{certificate},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: authorities,
		SessionTicketsDisabled: true, Time: i.now,
	}
	return nil
}

// check tells what is wrong with the caller of a request. The handshake has verified the certificate once; a connection
// lives on when that has run out, or its CA is no longer believed.
func (i *identity) check(state *tls.ConnectionState) error {
	if state == nil || len(state.PeerCertificates) == 0 {
		return errors.New("no client certificate")
	}
	certificate, intermediates := state.PeerCertificates[0], x509.NewCertPool()
	for _, c := range state.PeerCertificates[1:] {
		intermediates.AddCert(c)
	}
	_, err := certificate.Verify(x509.VerifyOptions{
		Roots: i.current().ClientCAs, Intermediates: intermediates, CurrentTime: i.now(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return fmt.Errorf("verifying the client certificate: %w", err)
	}
	if len(i.names) > 0 && !slices.Contains(i.names, certificate.Subject.CommonName) {
		return errors.New("no client certificate of a name that is let in")
	}
	return nil
}
