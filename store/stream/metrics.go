package stream

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	published   *prometheus.CounterVec
	full        prometheus.Counter
	tooLarge    prometheus.Counter
	failed      prometheus.Counter
	recreated   *prometheus.CounterVec
	undecodable *prometheus.CounterVec
	stalled     *prometheus.CounterVec
	pending     *prometheus.GaugeVec
	lag         *prometheus.GaugeVec
	gapsFound   prometheus.Counter
	gapsOpen    prometheus.Gauge
	bytes       map[string]prometheus.Gauge // by stream that discards nothing
	maxBytes    map[string]prometheus.Gauge
}

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "mintlog_stream_" + name, Help: help})
	}
	vector := func(name, label, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mintlog_stream_" + name, Help: help}, []string{label})
	}
	m := &metrics{
		published:   vector("published_total", "stream", "Events that a stream acknowledged, duplicates included."),
		full:        counter("full_total", "Events that a full stream refused; the publisher holds them back and repeats."),
		tooLarge:    counter("too_large_total", "Events refused before sending because they are larger than a message may be."),
		failed:      counter("publish_failed_total", "Events that were not acknowledged, for reasons other than a full stream."),
		recreated:   vector("recreated_total", "object", "Streams, consumers and buckets found missing and created again, and streams without what they had acknowledged: what they held may be lost."),
		undecodable: vector("undecodable_total", "consumer", "Messages set aside because they are no event."),
		stalled:     vector("stalled_total", "consumer", "Times that messages waited and a consumer delivered none, and was reset."),
		pending: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "mintlog_stream_pending", Help: "Messages that a consumer has not acknowledged yet.",
		}, []string{"consumer"}),
		lag: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "mintlog_stream_lag_seconds", Help: "How long the oldest message that a consumer has not acknowledged has been in the stream; 0 when there is none. Measured every 15 s.",
		}, []string{"consumer"}),
	}
	m.gapsFound = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "mintlog_gaps_found_total", Help: "Stretches of audit logs found missing by this process.",
	})
	m.gapsOpen = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "mintlog_gaps_open", Help: "Stretches of audit logs known to be missing that no replay has closed.",
	})
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "mintlog_stream_" + name, Help: help})
	}
	m.bytes = map[string]prometheus.Gauge{
		streamNames[events]: gauge("events_bytes", "What the stream of events holds; at its bound ingest has to wait."),
		evidenceStream:      gauge("evidence_bytes", "What the evidence bucket holds; at its bound new evidence is lost."),
	}
	m.maxBytes = map[string]prometheus.Gauge{
		streamNames[events]: gauge("events_max_bytes", "The bound of the stream of events."),
		evidenceStream:      gauge("evidence_max_bytes", "The bound of the evidence bucket."),
	}
	if registerer == nil {
		return m, nil
	}
	var err error
	for name := range m.bytes {
		err = errors.Join(err, registerer.Register(m.bytes[name]), registerer.Register(m.maxBytes[name]))
	}
	for _, c := range []prometheus.Collector{m.published, m.full, m.tooLarge, m.failed, m.recreated, m.undecodable, m.stalled, m.pending, m.lag, m.gapsFound, m.gapsOpen} {
		err = errors.Join(err, registerer.Register(c))
	}
	return m, err
}
