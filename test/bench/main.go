// Command bench measures mintlog on real servers, each figure side by side with what it is compared to, in one run, and
// prints one table. These are ratios and medians of a noisy machine: it judges nothing.
//
//	go run ./test/bench                    everything, in about ten minutes
//	go run ./test/bench -run scan,webhook  these alone
//	go run ./test/bench -list              what there is
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	only := flag.String("run", "", "names of the scenarios to run, with commas between; default: all")
	list := flag.Bool("list", false, "list the scenarios")
	count := flag.Int("applications", 10_000, "how many applications the scenario of that name has; the goals are for 10,000")
	profile := flag.String("profile", "", "directory for CPU profiles of the accounts role and of what reads audit logs")
	flag.Parse()
	if *list {
		for _, s := range scenarios {
			fmt.Printf("%-14s%s\n", s.name, s.what)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *only, *profile, *count); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// A figure is one line of the table.
type figure struct {
	what, measured, beside, ratio, goal string
}

// A scenario measures some figures.
type scenario struct {
	name, what string
	measure    func(*bencher, context.Context) ([]figure, error)
}

// scenarios are in the order in which they run. Those behind the first eight share one sandbox.
var scenarios = []scenario{
	{"scan", "an audit log in which one line in 10,000 is ours, read from a file", (*bencher).scan},
	{"ours", "an audit log in which every line is ours: decoded, and published durably", (*bencher).ours},
	{"webhook", "kube-apiserver's audit webhook at its full rate, for a minute", (*bencher).webhook},
	{"applications", "10,000 applications of three accounts each, in 500 namespaces", (*bencher).applications},
	{"who", "who rotated what, asked of a million events", (*bencher).who},
	{"availability", "rolling restarts of everything under mints, and the loss of the stream's leader", (*bencher).availability},
	{"idle", "mintlog all with 1,000 accounts while nothing happens", (*bencher).idle},
	{"mint", "a mint through kube-apiserver", (*bencher).mint},
	{"attribution", "from a mint to the name in the view", (*bencher).attribution},
	{"list", "the view of a thousand accounts", (*bencher).list},
	{"plugin", "kubectl credentials list of five thousand", (*bencher).plugin},
}

func chosen(only string) ([]scenario, error) {
	if only == "" {
		return scenarios, nil
	}
	var some []scenario
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no scenario %q: -list shows what there is", name)
		}
		some = append(some, scenarios[i])
	}
	return some, nil
}

// run measures what was chosen. A scenario that fails does not take the others' figures with it.
func run(ctx context.Context, only, profile string, count int) (err error) {
	some, err := chosen(only)
	if err != nil {
		return err
	}
	b, err := newBencher(profile, count)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	var figures []figure
	var failures []error
	before := load()
	for _, s := range some {
		began := time.Now()
		fmt.Fprintf(os.Stderr, "%s: %s\n", s.name, s.what)
		measured, err := s.measure(b, ctx)
		figures = append(figures, measured...)
		if err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", s.name, err))
		}
		fmt.Fprintf(os.Stderr, "%s took %s\n", s.name, time.Since(began).Round(time.Second))
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(append(failures, print(figures, before))...)
}

func print(figures []figure, before string) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "FIGURE\tMEASURED\tBESIDE\tRATIO\tGOAL")
	for _, f := range figures {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", f.what, f.measured, f.beside, f.ratio, f.goal)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Printf("\n%d CPUs, %s; load average %s before, %s behind\n", runtime.NumCPU(), runtime.Version(), before, load())
	return err
}

// load is the machine's load average over a minute: above the number of CPUs, others were at work too.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	average, _, _ := strings.Cut(string(text), " ")
	return average
}
