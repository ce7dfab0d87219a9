package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// endingAt is a certificate of that end, PEM.
func endingAt(t *testing.T, end time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: end.Add(-time.Hour), NotAfter: end}
	text, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: text})
}

func TestTheEndOfACertificateIsThatOfItsFileAsItIsNow(t *testing.T) {
	june, july := time.Date(2027, 6, 1, 0, 0, 0, 0, time.UTC), time.Date(2027, 7, 1, 0, 0, 0, 0, time.UTC)
	file := filepath.Join(t.TempDir(), "tls.crt")
	p := runtime{registry: prometheus.NewRegistry()}
	require.NoError(t, p.watchExpiry("serving", file, first))
	require.NoError(t, p.watchExpiry("authorities", file, last))
	f := func(content []byte, serving, authorities float64) {
		t.Helper()
		require.NoError(t, os.WriteFile(file, content, 0o600))
		families, err := p.registry.Gather()
		require.NoError(t, err)
		got := map[string]float64{}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				got[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
		want := map[string]float64{"serving": serving, "authorities": authorities}
		if serving == 0 {
			want = map[string]float64{}
		}
		assert.Equal(t, want, got)
	}
	f(endingAt(t, june), float64(june.Unix()), float64(june.Unix()))
	f(append(endingAt(t, june), endingAt(t, july)...), float64(june.Unix()), float64(july.Unix()))
	f(append([]byte("# a comment\n"), endingAt(t, july)...), float64(july.Unix()), float64(july.Unix()))
	f([]byte("no certificate"), 0, 0)
	f(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("spoilt")}), 0, 0)
	require.NoError(t, os.Remove(file))
	families, err := p.registry.Gather()
	require.NoError(t, err)
	assert.Empty(t, families)
	assert.Error(t, p.watchExpiry("serving", file, first), "two of one name")
}
