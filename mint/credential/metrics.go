package credential

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/mintlog/mintlog/store/history"
)

// findingsCollector counts, at every scrape and from the cache, the accounts that have a finding of each type: an
// operation that bypassed the log wakes nobody, so it is looked for.
type findingsCollector struct{ storage *Storage }

var findingsMetric = prometheus.NewDesc("mintlog_findings",
	"Findings on the accounts of the enrolled namespaces, by type.", []string{"type"}, nil)

// Describe sends the one metric that Collect sends.
func (c findingsCollector) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- findingsMetric
}

// Collect reads every account Secret in the cache.
func (c findingsCollector) Collect(metrics chan<- prometheus.Metric) {
	counts := map[string]float64{}
	for _, t := range []history.FindingType{
		history.FindingUnattributed, history.FindingMismatch, history.FindingConflict, history.FindingSkewed,
		history.FindingUncommitted, history.FindingOutOfBand, history.FindingRestored, history.FindingBrokenLedger,
		history.FindingGap,
	} {
		counts[string(t)] = 0
	}
	for _, secret := range c.storage.cluster.AllAccountSecrets() {
		for _, f := range c.storage.viewer.view(secret, "").Status.Findings {
			counts[f.Type]++
		}
	}
	for t, count := range counts {
		metrics <- prometheus.MustNewConstMetric(findingsMetric, prometheus.GaugeValue, count, t)
	}
}
