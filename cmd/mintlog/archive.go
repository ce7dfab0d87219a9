package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mintlog/mintlog/store/archive"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/stream"
)

// archiveFlags say where VictoriaLogs is.
type archiveFlags struct {
	url string
}

func (f *archiveFlags) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.url, "victorialogs", os.Getenv("MINTLOG_VICTORIALOGS"), "URL of VictoriaLogs; default: $MINTLOG_VICTORIALOGS")
}

func (f *archiveFlags) open() (*archive.Archive, error) {
	if f.url == "" {
		return nil, errors.New("--victorialogs is needed: the archive holds what the stream does not keep")
	}
	if u, err := url.Parse(f.url); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("--victorialogs %q: it is a URL like http://victoria-logs:9428", f.url)
	}
	return archive.New(f.url, &http.Client{}), nil
}

func archiveCommand() *cobra.Command {
	var process processFlags
	var where streamFlags
	var archive archiveFlags
	c := &cobra.Command{
		Use:   "archive",
		Short: "Fill VictoriaLogs from the stream",
		Long: `archive writes every event to VictoriaLogs and acknowledges it when it has read it
back. While VictoriaLogs is down, events wait in the stream. It needs --nats and
--victorialogs.`,
		Example: `  mintlog archive --nats nats://nats:4222 --victorialogs http://victoria-logs:9428`,
		RunE: func(c *cobra.Command, _ []string) error {
			return process.run(c.Context(), func(ctx context.Context, p runtime) ([]part, error) {
				s, err := where.open(ctx, p)
				if err != nil {
					return nil, err
				}
				return archive.parts(p, s)
			})
		},
	}
	process.bind(c.Flags())
	where.bind(c.Flags())
	archive.bind(c.Flags())
	return noArguments(c)
}

func (f *archiveFlags) parts(p runtime, s *stream.Stream) ([]part, error) {
	archived, err := f.open()
	if err != nil {
		return nil, err
	}
	archiver, err := archive.NewArchiver(archive.ArchiverOptions{
		Archive: archived, Stream: s, Log: p.log.With("part", "archiver"), Registerer: p.registry,
	})
	if err != nil {
		return nil, err
	}
	return []part{archiver.Run}, nil
}

func replayCommand() *cobra.Command {
	var logLevel string
	var where streamFlags
	var from archiveFlags
	var since time.Duration
	var namespace string
	c := &cobra.Command{
		Use:   "replay",
		Short: "Fill the stream again from the archive",
		Long: `replay reads events back out of VictoriaLogs and publishes them to the stream, so
that the projector rebuilds its evidence and every history. What the stream already
holds is recognised and stored once.

With an embedded stream (--state), mintlog all must be stopped meanwhile.`,
		Example: `  mintlog replay --victorialogs http://victoria-logs:9428 --state /var/lib/mintlog --since 720h
  mintlog replay --nats nats://nats:4222 --of-namespace tenant-acme`,
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := logger(logLevel)
			if err != nil {
				return err
			}
			if since <= 0 {
				return fmt.Errorf("--since %s: it is how far back to begin, such as 720h", since)
			}
			archived, err := from.open()
			if err != nil {
				return err
			}
			closers := []func() error{}
			s, err := where.open(c.Context(), runtime{log: log, registry: prometheus.NewRegistry(), closers: &closers})
			if err != nil {
				return err
			}
			end := time.Now()
			progress := newProgress(func(count int) { fmt.Fprintf(c.ErrOrStderr(), "%d events so far\n", count) })
			count, err := archived.ReplayInto(c.Context(),
				archive.Query{Start: end.Add(-since), End: end, Namespace: namespace},
				func(ctx context.Context, events []event.Event) error {
					if err := s.Publish(ctx, events); err != nil {
						return err
					}
					progress.add(len(events))
					return nil
				})
			if err := errors.Join(err, s.Close()); err != nil {
				return fmt.Errorf("replay, after %d events: %w", count, err)
			}
			fmt.Fprintf(c.OutOrStdout(), "replayed %d events of the last %s\n", count, since)
			return nil
		},
	}
	c.Flags().StringVar(&logLevel, "log-level", "warn", "debug, info, warn or error")
	where.bindEmbedded(c.Flags())
	from.bind(c.Flags())
	c.Flags().DurationVar(&since, "since", 30*24*time.Hour, "how far back to begin")
	c.Flags().StringVar(&namespace, "of-namespace", "", "only events of this namespace")
	return noArguments(c)
}

// A progress tells how many there were, every two seconds.
type progress struct {
	tell  func(count int)
	count int
	told  time.Time
}

func newProgress(tell func(int)) *progress { return &progress{tell: tell, told: time.Now()} }

func (p *progress) add(count int) {
	p.count += count
	if time.Since(p.told) >= 2*time.Second {
		p.tell(p.count)
		p.told = time.Now()
	}
}
