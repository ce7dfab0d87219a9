package main

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// expiry tells at every scrape when the certificate in a file ends, as a changed file is taken over without a restart.
// A file that cannot be used is not told of.
type expiry struct {
	metric *prometheus.Desc
	file   string
	ends   func([]*x509.Certificate) time.Time
}

// watchExpiry registers the metric of the certificate in a file, PEM. Ends picks its moment out of those in the file.
func (p runtime) watchExpiry(name, file string, ends func([]*x509.Certificate) time.Time) error {
	err := p.registry.Register(expiry{file: file, ends: ends, metric: prometheus.NewDesc("mintlog_certificate_expiry_timestamp_seconds",
		"When a certificate ends, by its file.", nil, prometheus.Labels{"certificate": name})})
	if err != nil {
		return fmt.Errorf("register the metric of the certificate %s: %w", name, err)
	}
	return nil
}

// first is the end of what is shown: the leaf stands first.
func first(certificates []*x509.Certificate) time.Time { return certificates[0].NotAfter }

// last is when the last of several authorities ends: those before it stand there until all trust the next.
func last(certificates []*x509.Certificate) time.Time {
	ends := time.Time{}
	for _, c := range certificates {
		if c.NotAfter.After(ends) {
			ends = c.NotAfter
		}
	}
	return ends
}

// Describe sends the one metric.
func (e expiry) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- e.metric }

// Collect reads the file.
func (e expiry) Collect(metrics chan<- prometheus.Metric) {
	text, err := os.ReadFile(e.file)
	if err != nil {
		return
	}
	var certificates []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return
		}
		certificates = append(certificates, c)
	}
	if len(certificates) > 0 {
		metrics <- prometheus.MustNewConstMetric(e.metric, prometheus.GaugeValue, float64(e.ends(certificates).Unix()))
	}
}
