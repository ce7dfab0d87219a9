// Command bench measures mintlog on real servers, each figure side by side with what it is compared to, in one run, and
// prints one table. These are ratios and medians of a noisy machine: it judges nothing.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"

	"github.com/mintlog/mintlog/test/sandbox"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := bench(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// A figure is one line of the table.
type figure struct {
	what, measured, beside, ratio, goal string
}

func bench(ctx context.Context) (err error) {
	b := &bencher{}
	if b.sandbox, err = sandbox.Start(ctx, sandbox.Options{Log: os.Stderr}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.sandbox.Stop()) }()
	if err := b.prepare(ctx); err != nil {
		return err
	}
	for _, scenario := range []func(context.Context) ([]figure, error){b.mint, b.attribution, b.list} {
		figures, err := scenario(ctx)
		if err != nil {
			return err
		}
		b.figures = append(b.figures, figures...)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "FIGURE\tMEASURED\tBESIDE\tRATIO\tGOAL")
	for _, f := range b.figures {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", f.what, f.measured, f.beside, f.ratio, f.goal)
	}
	return w.Flush()
}
