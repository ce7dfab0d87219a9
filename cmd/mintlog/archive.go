package main

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mintlog/mintlog/store/archive"
	"github.com/mintlog/mintlog/store/stream"
)

// archiveFlags say where VictoriaLogs is.
type archiveFlags struct {
	url string
}

func (f *archiveFlags) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.url, "victorialogs", os.Getenv("MINTLOG_VICTORIALOGS"), "URL of VictoriaLogs; default: $MINTLOG_VICTORIALOGS")
	flags.Lookup("victorialogs").DefValue = "" // help would show it, with the password that may stand in it
}

func (f *archiveFlags) validate() error {
	if f.url == "" {
		return errors.New("--victorialogs is needed: the archive holds what the stream does not keep")
	}
	if u, err := url.Parse(f.url); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("--victorialogs: it is a URL like http://victoria-logs:9428") // a password may stand in what was given
	}
	return nil
}

func (f *archiveFlags) open() (*archive.Archive, error) {
	if err := f.validate(); err != nil {
		return nil, err
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
				if err := errors.Join(where.wanted(), where.validate(), archive.validate()); err != nil {
					return nil, err
				}
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
