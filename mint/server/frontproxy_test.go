package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
)

// An authority is a certificate with its key.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// newAuthority makes one that parent signs, or it itself if there is none.
func newAuthority(t *testing.T, name string, key *ecdsa.PrivateKey, parent *authority) *authority {
	t.Helper()
	var err error
	if key == nil {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a := &authority{certificate: template, key: key}
	if parent == nil {
		parent = a
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent.certificate, key.Public(), parent.key)
	require.NoError(t, err)
	a.certificate, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	return a
}

func bundle(authorities ...*authority) string {
	text := ""
	for _, a := range authorities {
		text += string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw}))
	}
	return text
}

func TestAFrontProxyThatCannotKeepOthersOutIsRefusedWithWhatToSet(t *testing.T) {
	proxy, clients, other := newAuthority(t, "proxy", nil, nil), newAuthority(t, "clients", nil, nil), newAuthority(t, "other", nil, nil)
	const names = `["front-proxy-client"]`
	f := func(name string, published map[string]string, says ...string) {
		t.Run(name, func(t *testing.T) {
			_, err := readTrust(published)
			require.Error(t, err)
			for _, text := range says {
				require.ErrorContains(t, err, text)
			}
			p := &frontProxy{log: slog.New(slog.DiscardHandler)}
			p.apply(published)
			require.Error(t, p.Err())
			_, ok := p.VerifyOptions()
			require.False(t, ok)
			require.Empty(t, p.CurrentCABundleContent())
		})
	}
	f("nothing published", nil, "--requestheader-client-ca-file", "--requestheader-allowed-names", "--proxy-client-cert-file")
	f("no authority", map[string]string{clientCAKey: bundle(clients), allowedNamesKey: names}, "--requestheader-client-ca-file")
	f("an authority that is no certificate", map[string]string{frontProxyCAKey: "x", allowedNamesKey: names}, "--requestheader-client-ca-file")
	f("no names", map[string]string{frontProxyCAKey: bundle(proxy)}, "--requestheader-allowed-names")
	f("an empty list of names", map[string]string{frontProxyCAKey: bundle(proxy), allowedNamesKey: `[]`}, "--requestheader-allowed-names")
	f("names that are no list", map[string]string{frontProxyCAKey: bundle(proxy), allowedNamesKey: `{`}, allowedNamesKey)
	f("clients' authorities that are no certificates",
		map[string]string{frontProxyCAKey: bundle(proxy), clientCAKey: "x", allowedNamesKey: names}, "--client-ca-file")

	const apart = "apart from --client-ca-file"
	f("one authority for both",
		map[string]string{frontProxyCAKey: bundle(proxy), clientCAKey: bundle(proxy), allowedNamesKey: names}, apart, `"proxy"`)
	f("one authority in common",
		map[string]string{frontProxyCAKey: bundle(other, proxy), clientCAKey: bundle(clients, proxy), allowedNamesKey: names}, apart)
	f("two certificates of one key",
		map[string]string{frontProxyCAKey: bundle(proxy), clientCAKey: bundle(newAuthority(t, "again", proxy.key, nil)), allowedNamesKey: names}, apart)
	f("clients' authority below the front proxy's",
		map[string]string{frontProxyCAKey: bundle(proxy), clientCAKey: bundle(newAuthority(t, "below", nil, proxy)), allowedNamesKey: names}, apart)
}

type enqueued int

func (e *enqueued) Enqueue() { *e++ }

func TestAFrontProxyFollowsWhatIsPublished(t *testing.T) {
	old, fresh, clients := newAuthority(t, "old", nil, nil), newAuthority(t, "fresh", nil, nil), newAuthority(t, "clients", nil, nil)
	published := map[string]string{frontProxyCAKey: bundle(old), clientCAKey: bundle(clients), allowedNamesKey: `["one"]`}
	p := &frontProxy{log: slog.New(slog.DiscardHandler)}
	var told enqueued
	p.AddListener(&told)

	trusts := func(a *authority) bool {
		options, ok := p.VerifyOptions()
		options.KeyUsages = []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
		if !ok {
			return false
		}
		_, err := a.certificate.Verify(options)
		return err == nil
	}
	p.apply(published)
	require.NoError(t, p.Err())
	require.True(t, trusts(old))
	require.False(t, trusts(fresh))
	require.False(t, trusts(clients))
	require.Equal(t, []string{"one"}, p.allowedNames())

	p.apply(map[string]string{frontProxyCAKey: bundle(fresh), clientCAKey: bundle(clients), allowedNamesKey: `["two"]`})
	require.NoError(t, p.Err())
	require.False(t, trusts(old))
	require.True(t, trusts(fresh))
	require.Equal(t, []string{"two"}, p.allowedNames())

	p.apply(nil)
	require.Error(t, p.Err())
	require.False(t, trusts(fresh))

	p.apply(published)
	require.NoError(t, p.Err())
	require.True(t, trusts(old))
	require.EqualValues(t, 4, told)
}

func TestNobodyGetsInWhileTheFrontProxyIsBeingLost(t *testing.T) {
	proxy := newAuthority(t, "proxy", nil, nil)
	p := &frontProxy{log: slog.New(slog.DiscardHandler)}
	f := func(name string, lost bool) bool {
		t.Helper()
		p.apply(map[string]string{frontProxyCAKey: bundle(proxy), allowedNamesKey: `["front-proxy-client"]`})
		verify := func() (x509.VerifyOptions, bool) {
			options, ok := p.VerifyOptions()
			options.KeyUsages = []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
			if lost {
				p.apply(nil) // after the one and before the other is read
			}
			return options, ok
		}
		a := headerrequest.NewDynamicVerifyOptionsSecure(verify, headerrequest.StringSliceProviderFunc(p.allowedNames),
			headerrequest.StaticStringSlice{remoteUserHeader}, headerrequest.StaticStringSlice{}, headerrequest.StaticStringSlice{}, headerrequest.StaticStringSlice{})
		r := httptest.NewRequest("GET", mintPath, nil)
		r.Header.Set(remoteUserHeader, "root")
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{newAuthority(t, name, nil, proxy).certificate}}
		_, in, _ := a.AuthenticateRequest(r)
		return in
	}
	require.True(t, f("front-proxy-client", false))
	require.False(t, f("somebody-else", false))
	for _, name := range []string{"front-proxy-client", "somebody-else", ""} {
		require.False(t, f(name, true), name)
	}
}
