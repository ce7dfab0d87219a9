// Package certificate makes and renews the serving certificates of an installation that has no other issuer, under an
// authority of its own: both at two thirds of their life, and so that whoever trusts the authority trusts the next one
// before it signs.
package certificate

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

// The keys of the Secrets.
const (
	authorityKey = "ca.crt" // every authority that is trusted, newest first
	certKey      = "tls.crt"
	privateKey   = "tls.key"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	servingLife   = 90 * 24 * time.Hour
	// skew is how far clocks may be apart.
	skew = time.Hour
	// spread is how long a new authority is published before it signs in the place of one that is still good.
	spread = 12 * time.Hour
)

var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

// A Serving is a certificate that is wanted.
type Serving struct {
	Secret string   // where it goes; the Secret must be there
	Hosts  []string // the names that it is for
}

// Options say what is kept, and where.
type Options struct {
	// Client may get and update the Secrets by name, Objects get and patch the APIService.
	Client     kubernetes.Interface
	Objects    dynamic.Interface
	Namespace  string
	Authority  string // the Secret of the authority
	Serving    []Serving
	APIService string // whose caBundle is kept
	Now        func() time.Time
}

// Renew makes and renews what is due, and returns what it wrote. Done twice it writes nothing.
func Renew(ctx context.Context, o Options) (wrote []string, err error) {
	authority, renewed, err := o.authority(ctx)
	if err != nil {
		return nil, err
	}
	if renewed {
		wrote = append(wrote, "secret "+o.Authority)
	}
	changed, err := o.publish(ctx, authority.bundle)
	if err != nil {
		return wrote, err
	}
	if changed {
		wrote = append(wrote, "apiservice "+o.APIService)
	}
	for _, s := range o.Serving {
		changed, err := o.serving(ctx, authority, s)
		if err != nil {
			return wrote, err
		}
		if changed {
			wrote = append(wrote, "secret "+s.Secret)
		}
	}
	return wrote, nil
}

// An authority signs.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	bundle      []byte // PEM: itself, and those before it that have not ended
}

func (o Options) authority(ctx context.Context) (authority, bool, error) {
	secret, err := o.secret(ctx, o.Authority)
	if err != nil {
		return authority{}, false, err
	}
	known := parseCertificates(secret.Data[authorityKey])
	if len(known) > 0 && o.fresh(known[0]) {
		if key, err := parseKey(secret.Data[privateKey]); err == nil && key.PublicKey.Equal(known[0].PublicKey) {
			return authority{known[0], key, secret.Data[authorityKey]}, false, nil
		}
	}
	next := authority{}
	template, err := o.template("mintlog", authorityLife)
	if err != nil {
		return authority{}, false, err
	}
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	if next.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return authority{}, false, fmt.Errorf("draw the authority's key: %w", err)
	}
	if next.certificate, err = sign(template, template, next.key, next.key); err != nil {
		return authority{}, false, err
	}
	next.bundle = encode(next.certificate)
	for _, c := range known {
		if o.Now().Before(c.NotAfter) {
			next.bundle = append(next.bundle, encode(c)...)
		}
	}
	key, err := encodeKey(next.key)
	if err != nil {
		return authority{}, false, err
	}
	return next, true, o.store(ctx, secret, map[string][]byte{authorityKey: next.bundle, privateKey: key})
}

// publish has kube-apiserver trust the bundle. It begins again when kube-apiserver has written the status meanwhile, as it
// does every few seconds, and leaves alone what another has had it trust.
func (o Options) publish(ctx context.Context, bundle []byte) (bool, error) {
	client := o.Objects.Resource(apiServices)
	var was *string
	wrote := false
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		is, err := client.Get(ctx, o.APIService, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read the APIService %s: %w", o.APIService, err)
		}
		has, _, _ := unstructured.NestedString(is.Object, "spec", "caBundle")
		switch {
		case has == encoded(bundle):
			return nil
		case was != nil && *was != has:
			return fmt.Errorf("the caBundle of the APIService %s was changed by another", o.APIService)
		}
		was = &has
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"resourceVersion": is.GetResourceVersion()},
			"spec":     map[string]any{"caBundle": bundle},
		})
		if err != nil {
			return err
		}
		_, err = client.Patch(ctx, o.APIService, types.MergePatchType, patch, metav1.PatchOptions{})
		wrote = err == nil
		return err
	})
	if err != nil {
		return false, fmt.Errorf("write the caBundle of the APIService %s: %w", o.APIService, err)
	}
	return wrote, nil
}

// encoded is how JSON has bytes.
func encoded(b []byte) string {
	text, err := json.Marshal(b)
	if err != nil {
		panic(err) // bytes can be encoded
	}
	return string(bytes.Trim(text, `"`))
}

func (o Options) serving(ctx context.Context, a authority, s Serving) (bool, error) {
	secret, err := o.secret(ctx, s.Secret)
	if err != nil {
		return false, err
	}
	if o.good(secret, a, s.Hosts) {
		if bytes.Equal(secret.Data[authorityKey], a.bundle) {
			return false, nil
		}
		data := map[string][]byte{certKey: secret.Data[certKey], privateKey: secret.Data[privateKey], authorityKey: a.bundle}
		return true, o.store(ctx, secret, data)
	}
	template, err := o.template(s.Hosts[0], servingLife)
	if err != nil {
		return false, err
	}
	template.DNSNames = s.Hosts
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return false, fmt.Errorf("draw the key of %s: %w", s.Secret, err)
	}
	certificate, err := sign(template, a.certificate, key, a.key)
	if err != nil {
		return false, err
	}
	text, err := encodeKey(key)
	if err != nil {
		return false, err
	}
	return true, o.store(ctx, secret, map[string][]byte{certKey: encode(certificate), privateKey: text, authorityKey: a.bundle})
}

// good reports whether a serving certificate is as wanted, and signed by the authority, or by an earlier one that is
// trusted still while the newest is being made known.
func (o Options) good(secret *corev1.Secret, a authority, hosts []string) bool {
	certificates := parseCertificates(secret.Data[certKey])
	key, err := parseKey(secret.Data[privateKey])
	if err != nil || len(certificates) == 0 || !key.PublicKey.Equal(certificates[0].PublicKey) || !o.fresh(certificates[0]) {
		return false
	}
	trusted := x509.NewCertPool()
	if o.Now().Sub(a.certificate.NotBefore.Add(skew)) < spread {
		trusted.AppendCertsFromPEM(a.bundle)
	} else {
		trusted.AddCert(a.certificate)
	}
	for _, host := range hosts {
		if _, err := certificates[0].Verify(x509.VerifyOptions{Roots: trusted, DNSName: host, CurrentTime: o.Now()}); err != nil {
			return false
		}
	}
	return true
}

// fresh reports whether a certificate is within the first two thirds of its life.
func (o Options) fresh(c *x509.Certificate) bool {
	return o.Now().Before(c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3))
}

func (o Options) secret(ctx context.Context, name string) (*corev1.Secret, error) {
	secret, err := o.Client.CoreV1().Secrets(o.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no Secret %s in the namespace %s to keep a certificate in", name, o.Namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("read the Secret %s: the API server answered %s", name, apierrors.ReasonForError(err))
	}
	return secret, nil
}

// store writes on what was read: of two that renew at once one is refused.
func (o Options) store(ctx context.Context, secret *corev1.Secret, data map[string][]byte) error {
	next := secret.DeepCopy()
	next.Data = data
	_, err := o.Client.CoreV1().Secrets(o.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	if err != nil { // whose words may quote a key
		return fmt.Errorf("write the Secret %s: the API server answered %s", secret.Name, apierrors.ReasonForError(err))
	}
	return nil
}

func (o Options) template(name string, life time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("draw a serial number: %w", err)
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: o.Now().Add(-skew), NotAfter: o.Now().Add(life),
	}, nil
}

func sign(template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %s: %w", template.Subject.CommonName, err)
	}
	return x509.ParseCertificate(der)
}

func encode(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// parseCertificates reads the certificates of a PEM text, none if one of them cannot be read.
func parseCertificates(text []byte) []*x509.Certificate {
	var all []*x509.Certificate
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return all
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil
		}
		all = append(all, c)
	}
}

func parseKey(text []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("no key in it")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("its key cannot be read")
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("its key is of another kind")
	}
	return key, nil
}
