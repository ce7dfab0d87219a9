package projector

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	events    *prometheus.CounterVec
	folds     prometheus.Counter
	patches   prometheus.Counter
	conflicts prometheus.Counter
	failures  *prometheus.CounterVec
	lag       prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mintlog_projector_events_total",
			Help: "Events taken from the stream, those that came again included.",
		}, []string{"consumer"}),
		folds: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mintlog_projector_folds_total",
			Help: "Histories made of ledger and evidence.",
		}),
		patches: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mintlog_projector_patches_total",
			Help: "Histories written on account Secrets.",
		}),
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mintlog_projector_conflicts_total",
			Help: "Histories made anew because the Secret had changed in between.",
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mintlog_projector_failures_total",
			Help: "What went wrong: read, write, changed, refused and evidence are tried again; events that were not_granted are let go; broken_evidence is replaced; with evidence_full a history is written that the next one may not have all of.",
		}, []string{"reason"}),
		lag: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "mintlog_projector_lag_seconds",
			Help:    "From the end of a request, by kube-apiserver's clock, to the history that has it.",
			Buckets: []float64{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600},
		}),
	}
	for _, reason := range []string{"read", "write", "changed", "refused", "evidence", "not_granted", "broken_evidence", "evidence_full"} {
		m.failures.WithLabelValues(reason)
	}
	if r == nil {
		return m, nil
	}
	return m, errors.Join(r.Register(m.events), r.Register(m.folds), r.Register(m.patches), r.Register(m.conflicts),
		r.Register(m.failures), r.Register(m.lag))
}
