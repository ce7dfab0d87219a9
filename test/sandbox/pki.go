package sandbox

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

const validity = 30 * 24 * time.Hour

// An Authority signs certificates. Its key stays at hand, so that a test can forge what only the owner of the key can.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

// An Identity is what a certificate says.
type Identity struct {
	Name   string
	Groups []string
	Hosts  []string // names and addresses; with any, it is a server's certificate, else a client's
}

// NewAuthority makes one with a key of its own.
func NewAuthority(name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("drawing the key of the authority %s: %w", name, err)
	}
	template, err := newTemplate(Identity{Name: name})
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = nil
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing the authority %s: %w", name, err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading the authority %s: %w", name, err)
	}
	return &Authority{certificate: certificate, key: key, pem: encode("CERTIFICATE", der)}, nil
}

// PEM is its certificate.
func (a *Authority) PEM() []byte { return a.pem }

// Issue signs a certificate with a new key. Both are PEM.
func (a *Authority) Issue(identity Identity) (certificate, key []byte, err error) {
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("drawing the key of %s: %w", identity.Name, err)
	}
	template, err := newTemplate(identity)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, secret.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("signing the certificate of %s: %w", identity.Name, err)
	}
	key, err = encodeKey(secret)
	return encode("CERTIFICATE", der), key, err
}

func newTemplate(identity Identity) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("drawing a serial number: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: identity.Name, Organization: identity.Groups},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, host := range identity.Hosts {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		if address := net.ParseIP(host); address != nil {
			template.IPAddresses = append(template.IPAddresses, address)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return template, nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	return encode("EC PRIVATE KEY", der), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// newSigningKey makes the key pair of the service account tokens.
func newSigningKey() (private, public []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("drawing the key of the service account tokens: %w", err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the key of the service account tokens: %w", err)
	}
	private, err = encodeKey(key)
	return private, encode("PUBLIC KEY", der), err
}

// preparePKI makes three authorities, so that no certificate of one is good for another's purpose, and what the
// servers need of them.
func (s *Sandbox) preparePKI() error {
	var err error
	for _, authority := range []struct {
		name string
		to   **Authority
	}{{"client-ca", &s.clients}, {"front-proxy-ca", &s.frontProxy}, {"serving-ca", &s.serving}} {
		if *authority.to, err = NewAuthority("sandbox-" + authority.name); err != nil {
			return err
		}
		if err := os.WriteFile(s.pki(authority.name+".crt"), (*authority.to).PEM(), 0o600); err != nil {
			return err
		}
	}
	if err := s.issue(s.serving, "apiserver", Identity{Name: "kube-apiserver",
		Hosts: []string{"127.0.0.1", "localhost", "kubernetes.default.svc"}}); err != nil {
		return err
	}
	if err := s.issue(s.serving, "mint", Identity{Name: ServiceName + "." + Namespace + ".svc",
		Hosts: []string{ServiceName + "." + Namespace + ".svc", "localhost", "127.0.0.1"}}); err != nil {
		return err
	}
	if err := s.issue(s.frontProxy, "front-proxy", Identity{Name: frontProxyName}); err != nil {
		return err
	}
	private, public, err := newSigningKey()
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.pki("service-accounts.key"), private, 0o600); err != nil {
		return err
	}
	return os.WriteFile(s.pki("service-accounts.pub"), public, 0o600)
}

func (s *Sandbox) issue(authority *Authority, file string, identity Identity) error {
	certificate, key, err := authority.Issue(identity)
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.pki(file+".crt"), certificate, 0o600); err != nil {
		return err
	}
	return os.WriteFile(s.pki(file+".key"), key, 0o600)
}

// ClientAuthority signs what kube-apiserver takes for a user's certificate.
func (s *Sandbox) ClientAuthority() *Authority { return s.clients }

// FrontProxyAuthority signs what an aggregated API server takes for kube-apiserver's own calls: a certificate of it
// can name any user, and leaves no audit event.
func (s *Sandbox) FrontProxyAuthority() *Authority { return s.frontProxy }

// ServingAuthority signs what the servers show.
func (s *Sandbox) ServingAuthority() *Authority { return s.serving }
