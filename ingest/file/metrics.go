package file

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mintlog/mintlog/ingest"
)

// Why bytes that could have held an event of ours gave none, beside the reasons of ingest.DecodeError.
const (
	oversized = "oversized" // a line longer than ingest.DefaultMaxLine
	torn      = "torn"      // what a crash left of a line, with the next event behind it
	truncated = "truncated" // the beginning of a line whose rest went when its file was truncated
	tooLarge  = "too_large" // an event that the stream's server does not take, counted as it would have been sent
)

// metrics are those of all logs of a Tailer.
type metrics struct {
	readBytes, lines, matched, published, decodeErrors *prometheus.CounterVec
	droppedBytes                                       *prometheus.CounterVec
	publishFailures, readFailures, gaps                *prometheus.CounterVec
	lag, position                                      *prometheus.GaugeVec
	checkpointFailures                                 prometheus.Counter
}

func newMetrics(registerer prometheus.Registerer, checkpointAge func() time.Duration) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mintlog_ingest_" + name, Help: help},
			append([]string{"source"}, labels...))
		registerer.MustRegister(c)
		return c
	}
	m := &metrics{
		readBytes:       counter("read_bytes_total", "Bytes of whole lines read from audit logs, decompressed."),
		lines:           counter("lines_total", "Lines read from audit logs."),
		matched:         counter("matched_events_total", "Events that are requests for mints and revokes, or writes of account Secrets."),
		published:       counter("published_events_total", "Events whose publication was acknowledged."),
		decodeErrors:    counter("decode_errors_total", "Lines that could have held such an event and could not be decoded.", "reason"),
		droppedBytes:    counter("dropped_bytes_total", "Bytes that could have held such an event and were given up.", "reason"),
		publishFailures: counter("publish_failures_total", "Publications that failed and are tried again."),
		readFailures:    counter("read_failures_total", "Failures to open, list or read an audit log, which are tried again."),
		gaps:            counter("gaps_total", "Times that a part of an audit log was found to be gone before it was read, or to be unusable where it could have held such an event."),
		lag: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "mintlog_ingest_lag_bytes",
			Help: "Bytes of an audit log and its rotated files that have not been read."}, []string{"source"}),
		position: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "mintlog_ingest_position_timestamp_seconds",
			Help: "Until when an audit log has been read, by the time of its last line; what is ours of it is published. While nothing is unread the log is read to its end, however old that is."}, []string{"source"}),
		checkpointFailures: prometheus.NewCounter(prometheus.CounterOpts{Name: "mintlog_ingest_checkpoint_failures_total",
			Help: "Failures to write the checkpoint, which are tried again."}),
	}
	registerer.MustRegister(m.lag, m.position, m.checkpointFailures, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "mintlog_ingest_checkpoint_age_seconds",
		Help: "For how long something has been published that the checkpoint does not know; 0 when it is up to date.",
	}, func() float64 { return checkpointAge().Seconds() }))
	return m
}

// counters are those of one log that are asked for all the time.
type counters struct {
	readBytes, lines, matched, published prometheus.Counter
}

// begin lets a source's counters stand at zero before anything has happened, so that the first increase is seen.
func (m *metrics) begin(source string) *counters {
	for _, c := range []*prometheus.CounterVec{m.publishFailures, m.readFailures, m.gaps} {
		c.WithLabelValues(source)
	}
	reasons := []string{ingest.Malformed, ingest.DuplicateKey, ingest.InvalidUTF8, ingest.Incomplete}
	for _, reason := range reasons {
		m.decodeErrors.WithLabelValues(source, reason)
	}
	for _, reason := range append(reasons, oversized, torn, truncated, tooLarge) {
		m.droppedBytes.WithLabelValues(source, reason)
	}
	m.lag.WithLabelValues(source)
	return &counters{
		readBytes: m.readBytes.WithLabelValues(source), lines: m.lines.WithLabelValues(source),
		matched: m.matched.WithLabelValues(source), published: m.published.WithLabelValues(source),
	}
}
