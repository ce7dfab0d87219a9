package credential

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/store/history"
)

// accountsCollector tells, at every scrape and from the cache, what the views of all accounts say: an operation that
// bypassed the log wakes nobody, so it is looked for. It names accounts, and never anybody who asked.
type accountsCollector struct {
	storage    *Storage
	lastChange bool // with a metric of each account
}

var (
	findingsMetric = prometheus.NewDesc("mintlog_findings",
		"Findings on the accounts of the enrolled namespaces, by type.", []string{"type"}, nil)
	attributionsMetric = prometheus.NewDesc("mintlog_attributions",
		"Operations in the histories of the enrolled namespaces, by attribution.", []string{"attribution"}, nil)
	accountsMetric = prometheus.NewDesc("mintlog_accounts",
		"Accounts of the enrolled namespaces, by where their password came from.", []string{"origin"}, nil)
	lastChangeMetric = prometheus.NewDesc("mintlog_credential_last_change_timestamp_seconds",
		"When the password of an account last changed, and by which operation.", []string{"namespace", "credential", "operation"}, nil)
)

// Describe sends the metrics that Collect sends.
func (c accountsCollector) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- findingsMetric
	descriptions <- attributionsMetric
	descriptions <- accountsMetric
	if c.lastChange {
		descriptions <- lastChangeMetric
	}
}

// Collect reads every account Secret in the cache.
func (c accountsCollector) Collect(metrics chan<- prometheus.Metric) {
	findings := counts(history.FindingUnattributed, history.FindingMismatch, history.FindingConflict, history.FindingSkewed,
		history.FindingUncommitted, history.FindingOutOfBand, history.FindingRestored, history.FindingBrokenLedger, history.FindingGap)
	attributions := counts(history.AuditLog, history.Platform, history.Pending, history.Unattributed, history.Expired)
	origins := counts(v1alpha1.OriginNotIssued, v1alpha1.OriginMigrated, v1alpha1.OriginMinted, v1alpha1.OriginRevoked)
	for _, secret := range c.storage.cluster.AllAccountSecrets() {
		view := c.storage.viewer.view(secret, "")
		origins[view.Status.Password.Origin]++
		for _, f := range view.Status.Findings {
			findings[f.Type]++
		}
		for _, o := range view.Status.History {
			attributions[o.Attribution]++
		}
		if c.lastChange && len(view.Status.History) > 0 {
			newest := view.Status.History[0]
			metrics <- prometheus.MustNewConstMetric(lastChangeMetric, prometheus.GaugeValue, float64(newest.At.UnixMicro())/1e6,
				view.Namespace, view.Name, strings.ToLower(newest.Operation))
		}
	}
	send(metrics, findingsMetric, findings)
	send(metrics, attributionsMetric, attributions)
	send(metrics, accountsMetric, origins)
}

// counts begins at 0 for each word, so that an alert sees it rise.
func counts[Word ~string](words ...Word) map[string]float64 {
	counts := map[string]float64{}
	for _, w := range words {
		counts[string(w)] = 0
	}
	return counts
}

func send(metrics chan<- prometheus.Metric, metric *prometheus.Desc, counts map[string]float64) {
	for label, count := range counts {
		metrics <- prometheus.MustNewConstMetric(metric, prometheus.GaugeValue, count, label)
	}
}
