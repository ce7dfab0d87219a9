package main

import (
	"context"

	"github.com/spf13/cobra"
)

func streamsCommand() *cobra.Command {
	var process processFlags
	var where streamFlags
	c := &cobra.Command{
		Use:   "streams",
		Short: "Make the streams on an external NATS and look after them, for parts that may not",
		Long: `streams makes the streams, their consumers and the buckets on an external NATS, makes
again what was lost, resets a consumer that hands out nothing, and measures how far behind
they are. With it the other parts need no right to make or change anything: give them
--nats-existing. It reads no audit log and needs no Kubernetes. It needs --nats.`,
		Example: `  mintlog streams --nats nats://nats:4222 --nats-nkey-file streams.nk --nats-replicas 3`,
		RunE: func(c *cobra.Command, _ []string) error {
			return process.run(c.Context(), func(ctx context.Context, p runtime) ([]part, error) {
				if _, err := where.open(ctx, p); err != nil {
					return nil, err
				}
				p.log.Info("the streams are there")
				return []part{func(ctx context.Context) error { <-ctx.Done(); return nil }}, nil
			})
		},
	}
	process.bind(c.Flags())
	where.bindMaking(c.Flags())
	return noArguments(c)
}
