package instance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/mintlog/mintlog/ingest/fluentbit"
	"github.com/mintlog/mintlog/store/stream"
)

// An Instance takes the chunks of one output section. Its methods may be called concurrently.
type Instance struct {
	output  *fluentbit.Output
	stream  *stream.Stream
	metrics *http.Server // nil: none
	timeout time.Duration
}

// Open needs no server to be there: Fluent Bit starts, with all its other outputs, also while the stream is away.
func Open(c Configuration, log *slog.Logger) (*Instance, error) {
	log = log.With("output", "mintlog", "node", c.Name)
	registry := prometheus.NewRegistry()
	s, err := stream.Open(context.Background(), stream.Options{
		URL: c.Address, CredentialsFile: c.CredentialsFile, NKeyFile: c.NKeyFile, Existing: true, Log: log, Registerer: registry,
	})
	if err != nil {
		return nil, fmt.Errorf("open the stream: %w", err)
	}
	output, err := fluentbit.New(fluentbit.Options{
		Name: c.Name, TagPrefix: c.TagPrefix, Publisher: s, Log: log, Registerer: registry,
	})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	i := &Instance{output: output, stream: s, timeout: c.Timeout}
	if c.MetricsAddress != "" {
		registry.MustRegister(collectors.NewGoCollector())
		i.serveMetrics(c.MetricsAddress, registry, log)
	}
	return i, nil
}

// serveMetrics only logs what goes wrong: no lack of metrics is worth the logs of a node.
func (i *Instance) serveMetrics(address string, registry *prometheus.Registry, log *slog.Logger) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Error("Metrics are not served", "error", err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	i.metrics = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		if err := i.metrics.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("Metrics are not served any more", "error", err)
		}
	}()
}

// Flush returns nil when the chunk is done with. After an error it has to come again. The chunk may be freed then.
func (i *Instance) Flush(tag string, chunk []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), i.timeout)
	defer cancel()
	return i.output.Flush(ctx, tag, chunk)
}

// Close waits for flushes under way. Nothing else is held here that would have to be flushed.
func (i *Instance) Close() error {
	var err error
	if i.metrics != nil {
		err = i.metrics.Close()
	}
	return errors.Join(err, i.stream.Close())
}
