package fluentbit

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	chunks, retried, foreign, records, matched, published prometheus.Counter
	unused, unusedBytes                                   *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	const prefix = "mintlog_ingest_fluentbit_"
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + name, Help: help})
	}
	vector := func(name, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, []string{"reason"})
		for _, reason := range reasons { // so that the first increase is seen
			c.WithLabelValues(reason)
		}
		return c
	}
	m := &metrics{
		chunks:      counter("chunks_total", "Chunks done with: every event of ours in them is durably published."),
		retried:     counter("retried_chunks_total", "Chunks handed back to Fluent Bit, which comes with them again."),
		foreign:     counter("foreign_chunks_total", "Chunks let pass unread because their tag is not that of an audit log."),
		records:     counter("records_total", "Records in chunks done with, ours and others."),
		matched:     counter("matched_events_total", "Events in them that are requests for mints and revokes, or writes of account Secrets."),
		published:   counter("published_events_total", "Events whose publication was acknowledged, repetitions among them."),
		unused:      vector("unused_total", "Parts of chunks done with that could have been such an event and cannot be used."),
		unusedBytes: vector("unused_bytes_total", "Bytes of those parts."),
	}
	if registerer == nil {
		return m, nil
	}
	var err error
	for _, c := range []prometheus.Collector{m.chunks, m.retried, m.foreign, m.records, m.matched, m.published, m.unused, m.unusedBytes} {
		err = errors.Join(err, registerer.Register(c))
	}
	return m, err
}
