// Command tail reads an audit log from its beginning to its end and says what that cost: a process with nothing else in
// it, so that its CPU seconds and its memory are those of the reading.
//
//	tail follow LOG CHECKPOINT EVENTS   as mintlog's ingest does, to the end behind so many events of ours; what is
//	                                    found is identified and acknowledged at once
//	tail json LOG                       each line with encoding/json into the struct that ingest decodes into
//
// With CPU_PROFILE it writes a profile to that path.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mintlog/mintlog/ingest/file"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/test/bench/cost"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "tail:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	var read func() (int, error)
	var heap uint64
	switch {
	case len(arguments) == 4 && arguments[0] == "follow":
		events, err := strconv.ParseInt(arguments[3], 10, 64)
		if err != nil {
			return err
		}
		read = func() (int, error) { return follow(arguments[1], arguments[2], events, &heap) }
	case len(arguments) == 2 && arguments[0] == "json":
		read = func() (int, error) { return decode(arguments[1]) }
	default:
		return errors.New("usage: tail follow LOG CHECKPOINT EVENTS | tail json LOG")
	}
	if path := os.Getenv("CPU_PROFILE"); path != "" {
		profile, err := os.Create(path)
		if err != nil {
			return err
		}
		defer profile.Close()
		if err := pprof.StartCPUProfile(profile); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	events, err := read()
	if err != nil {
		return err
	}
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	return json.NewEncoder(os.Stdout).Encode(cost.Tail{
		Events: events, Wall: took, HeapInUse: max(heap, after.HeapInuse),
		Allocations: after.Mallocs - before.Mallocs, Allocated: after.TotalAlloc - before.TotalAlloc,
	})
}

// look is how often the end is looked for, and the heap is measured.
const look = 5 * time.Millisecond

// A counter acknowledges everything, as a stream would that costs nothing.
type counter struct{ events atomic.Int64 }

func (c *counter) Publish(_ context.Context, events []event.Event) error {
	for i := range events {
		if events[i].Identity() == "" {
			return errors.New("an event has no identity")
		}
	}
	c.events.Add(int64(len(events)))
	return nil
}

func follow(log, checkpoint string, events int64, heap *uint64) (int, error) {
	info, err := os.Stat(log)
	if err != nil {
		return 0, err
	}
	var published counter
	registry := prometheus.NewRegistry()
	tailer, err := file.New(file.Options{Paths: []string{log}, Checkpoint: checkpoint, Publisher: &published, Registerer: registry})
	if err != nil {
		return 0, err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- tailer.Run(ctx) }()
	for read := int64(0); read < info.Size(); {
		time.Sleep(look)
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		*heap = max(*heap, m.HeapInuse)
		if published.events.Load() < events {
			continue // asking for the metrics costs allocations
		}
		if read, err = readBytes(registry); err != nil {
			return 0, err
		}
	}
	stop()
	return int(published.events.Load()), <-done
}

// readBytes is how far the log has been read, behind which everything is published.
func readBytes(registry *prometheus.Registry) (int64, error) {
	families, err := registry.Gather()
	if err != nil {
		return 0, err
	}
	for _, family := range families {
		if family.GetName() == "mintlog_ingest_read_bytes_total" {
			return int64(family.GetMetric()[0].GetCounter().GetValue()), nil
		}
	}
	return 0, errors.New("no metric says how far the log has been read")
}

func decode(log string) (int, error) {
	file, err := os.Open(log)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(make([]byte, 256<<10), 8<<20)
	events := 0
	for lines.Scan() {
		var e event.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return 0, err
		}
		events++
	}
	return events, lines.Err()
}
