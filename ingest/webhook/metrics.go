package webhook

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mintlog/mintlog/ingest"
)

// Why an item was set aside, beside the reasons of ingest.DecodeError.
const (
	oversized = "oversized" // longer than ingest.DefaultMaxLine
	tooLarge  = "too_large" // an event that the stream's server does not take, kept as it would have been sent
	noList    = "no_list"   // no item: a body from the place on where it stopped being a list
)

// Why a batch was not taken.
const (
	stranger    = "stranger"      // 401: a certificate that is not let in, or not any more
	wrongPath   = "wrong_path"    // 404
	wrongMethod = "wrong_method"  // 405
	encoding    = "encoding"      // 415: compressed, but not by gzip
	bodyTooBig  = "body_too_big"  // 413
	malformed   = "malformed"     // 400: no list of items
	unreadable  = "unreadable"    // 400: the connection or the compression broke
	overloaded  = "overloaded"    // 429: all slots are taken
	unpublished = "not_published" // 503
)

type metrics struct {
	bodyBytes, items, matched, published   prometheus.Counter
	setAside, rejected                     *prometheus.CounterVec
	setAsideFailures, reloadFailures, done prometheus.Counter
	inFlight                               prometheus.Gauge
	lastBatch                              *prometheus.GaugeVec

	mu       sync.Mutex
	names    map[string]bool // that lastBatch has
	duration prometheus.Histogram
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	const prefix = "mintlog_ingest_webhook_"
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + name, Help: help})
		registerer.MustRegister(c)
		return c
	}
	vector := func(name, help string, reasons ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, []string{"reason"})
		registerer.MustRegister(c)
		for _, reason := range reasons { // so that the first increase is seen
			c.WithLabelValues(reason)
		}
		return c
	}
	m := &metrics{
		names:     map[string]bool{},
		done:      counter("batches_total", "Batches answered with 200: every event of ours in them is durably published."),
		bodyBytes: counter("body_bytes_total", "Bytes of bodies, decompressed."),
		items:     counter("items_total", "Audit events received, ours and others."),
		matched:   counter("matched_events_total", "Events that are requests for mints and revokes, or writes of account Secrets."),
		published: counter("published_events_total", "Events whose publication was acknowledged, repetitions among them."),
		setAside: vector("set_aside_total", "Items that could have been such an event and were set aside.",
			ingest.Malformed, ingest.DuplicateKey, ingest.InvalidUTF8, ingest.Incomplete, oversized, tooLarge, noList),
		rejected: vector("rejected_total", "Requests that were not answered with 200. kube-apiserver repeats them, and in the end drops the batch.",
			stranger, wrongPath, wrongMethod, encoding, bodyTooBig, malformed, unreadable, overloaded, unpublished),
		setAsideFailures: counter("set_aside_failures_total", "Items that could not be kept for inspection."),
		reloadFailures:   counter("reload_failures_total", "Looks at certificate files that could not be used."),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + "in_flight",
			Help: "Bodies that are being read and published."}),
		lastBatch: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "last_batch_timestamp_seconds",
			Help: "When a kube-apiserver last sent a batch that was answered with 200."}, []string{"source"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + "request_seconds",
			Help: "How long requests took that were let in.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)}),
	}
	registerer.MustRegister(m.inFlight, m.lastBatch, m.duration)
	return m
}

// arrived notes a batch of the kube-apiserver of that name.
func (m *metrics) arrived(name string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.names[name] && len(m.names) >= maxNames {
		return
	}
	m.names[name] = true
	m.lastBatch.WithLabelValues(name).Set(float64(now.UnixMilli()) / 1e3)
}
