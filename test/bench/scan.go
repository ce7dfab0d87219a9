package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/mintlog/mintlog/test/auditlog"
	"github.com/mintlog/mintlog/test/bench/cost"
)

const (
	scanLines  = 400_000
	scanEvery  = 10_000
	scanRounds = 7
)

// lastCore is the core that what is measured alone runs on: interrupts are commonly on the first.
func lastCore() int { return runtime.NumCPU() - 1 }

// A log is a generated file.
type log struct {
	path    string
	written auditlog.Written
}

// makeLog writes a log, and with it, if another path is given, one of its first quarter.
func (b *bencher) makeLog(name string, lines, oursEvery int) (whole, quarter log, err error) {
	generator := auditlog.New(auditlog.Options{Seed: 1, OursEvery: oursEvery})
	write := func(name string, lines int, first auditlog.Written, prefix string) (log, error) {
		l := log{path: b.path(name)}
		file, err := os.Create(l.path)
		if err != nil {
			return l, err
		}
		if prefix != "" {
			begin, err := os.Open(prefix)
			if err != nil {
				return l, err
			}
			defer begin.Close()
			if _, err := io.Copy(file, begin); err != nil {
				return l, err
			}
		}
		buffered := bufio.NewWriterSize(file, 1<<20)
		l.written, err = generator.Write(buffered, lines)
		l.written.Lines += first.Lines
		l.written.Ours += first.Ours
		l.written.Bytes += first.Bytes
		return l, errors.Join(err, buffered.Flush(), file.Close())
	}
	if quarter, err = write("quarter-"+name, lines/4, auditlog.Written{}, ""); err != nil {
		return whole, quarter, err
	}
	whole, err = write(name, lines-lines/4, quarter.written, quarter.path)
	return whole, quarter, err
}

// follow has one process read a log as ingest does.
func (b *bencher) follow(ctx context.Context, tail string, l log) (ran, cost.Tail, error) {
	checkpoint := b.path("checkpoint.json")
	if err := os.RemoveAll(checkpoint); err != nil {
		return ran{}, cost.Tail{}, err
	}
	var environment []string
	if b.profile != "" {
		environment = []string{"CPU_PROFILE=" + filepath.Join(b.profile, filepath.Base(l.path)+".cpu")}
	}
	r, err := onOneCore(ctx, environment, tail, "follow", l.path, checkpoint, fmt.Sprint(l.written.Ours))
	if err != nil {
		return r, cost.Tail{}, err
	}
	t, err := tailCost(r)
	if err == nil && t.Events != l.written.Ours {
		err = fmt.Errorf("%d events were found in a log of %d", t.Events, l.written.Ours)
	}
	return r, t, err
}

func tailCost(r ran) (cost.Tail, error) {
	var t cost.Tail
	err := json.Unmarshal(r.output, &t)
	return t, err
}

// scan reads a file that is in the page cache, each way in a process of its own on the same core, in turn. Speeds are
// bytes per CPU second of the whole process, its start included, so that what others do on the machine counts little.
func (b *bencher) scan(ctx context.Context) ([]figure, error) {
	tail, err := b.build(ctx, "tail")
	if err != nil {
		return nil, err
	}
	whole, quarter, err := b.makeLog("scan.log", scanLines, scanEvery)
	if err != nil {
		return nil, err
	}
	var ours, grep []ran
	var long, short []cost.Tail
	for range scanRounds {
		g, err := onOneCore(ctx, nil, "grep", "-F", "-c", "credentials.cozystack.io", whole.path)
		if err != nil {
			return nil, err
		}
		grep = append(grep, g)
		for _, of := range []struct {
			log   log
			costs *[]cost.Tail
		}{{whole, &long}, {quarter, &short}} {
			r, t, err := b.follow(ctx, tail, of.log)
			if err != nil {
				return nil, err
			}
			*of.costs = append(*of.costs, t)
			if of.log == whole {
				ours = append(ours, r)
			}
		}
	}
	size := float64(whole.written.Bytes)
	speed := func(r ran) float64 { return size / r.cpu.Seconds() }
	mine := median(ours, speed)
	what := fmt.Sprintf("scan of %d events, %.0f MB, %d of them ours, on one core", whole.written.Lines, size/1e6, whole.written.Ours)
	figures := []figure{{
		what:     fmt.Sprintf("%s, median of %d; beside LC_ALL=C grep -F -c", what, scanRounds),
		measured: perCPU(mine), beside: perCPU(median(grep, speed)), ratio: ratio(mine, median(grep, speed)), goal: "≥ 0.50",
	}}
	for _, beside := range []func(context.Context, log) (other, error){b.fluentBit, b.jq} {
		o, err := beside(ctx, whole)
		if err != nil {
			return figures, err
		}
		figures = append(figures, o.against(mine, size))
	}
	dense, err := b.scanDense(ctx, tail)
	if err != nil {
		return figures, err
	}
	heap := func(t cost.Tail) float64 { return float64(t.HeapInUse) }
	allocations := func(t cost.Tail) float64 { return float64(t.Allocations) }
	return append(figures, figure{
		what:     "the most Go heap in use during the scan; beside a quarter of the log",
		measured: mib(median(long, heap)), beside: mib(median(short, heap)), ratio: ratio(median(long, heap), median(short, heap)), goal: "≤ 32 MiB",
	}, figure{
		what:     "objects allocated during the scan; beside a quarter of the log",
		measured: fmt.Sprintf("%.0f", median(long, allocations)), beside: fmt.Sprintf("%.0f", median(short, allocations)),
		ratio: ratio(median(long, allocations), median(short, allocations)), goal: "constant",
	}, figure{
		what:     "objects allocated during the scan; beside a quarter of the log with as many of ours in it, for each of which some are",
		measured: fmt.Sprintf("%.0f", median(long, allocations)), beside: fmt.Sprintf("%.0f", median(dense, allocations)),
		ratio: ratio(median(long, allocations), median(dense, allocations)), goal: "constant",
	}, figure{
		what:     "most resident memory of the scan's process",
		measured: mib(median(ours, func(r ran) float64 { return float64(r.resident) })), beside: "-", ratio: "-", goal: "-",
	}), nil
}

// scanDense scans a log of a quarter of the lines in which as many are ours.
func (b *bencher) scanDense(ctx context.Context, tail string) ([]cost.Tail, error) {
	dense, _, err := b.makeLog("dense.log", scanLines/4, scanEvery/4)
	if err != nil {
		return nil, err
	}
	var costs []cost.Tail
	for range scanRounds {
		_, t, err := b.follow(ctx, tail, dense)
		if err != nil {
			return nil, err
		}
		costs = append(costs, t)
	}
	return costs, nil
}

func perCPU(bytesPerSecond float64) string {
	return fmt.Sprintf("%.0f MB per CPU s", bytesPerSecond/1e6)
}

// An other is another program that finds events in a file.
type other struct {
	what, goal string
	missing    bool
	ran        ran
}

// against is the figure of another program beside ours.
func (o other) against(mine, size float64) figure {
	f := figure{what: o.what, measured: perCPU(mine), beside: "not installed", ratio: "-", goal: o.goal}
	if !o.missing {
		theirs := size / o.ran.cpu.Seconds()
		f.beside = fmt.Sprintf("%s, %s resident", perCPU(theirs), mib(float64(o.ran.resident)))
		f.ratio = ratio(mine, theirs)
	}
	return f
}

// jq selects what is ours.
func (b *bencher) jq(ctx context.Context, l log) (other, error) {
	o := other{what: "the same scan; beside jq -c 'select(…)', once", goal: "-"}
	if _, err := exec.LookPath("jq"); err != nil {
		o.missing = true
		return o, nil
	}
	var err error
	o.ran, err = onOneCore(ctx, nil, "jq", "-c", `select(.objectRef.apiGroup == "credentials.cozystack.io")`, l.path)
	return o, errors.Join(err, foundSome(o.ran))
}

// fluentBitPaths are where its packages put it.
var fluentBitPaths = []string{"fluent-bit", "/opt/fluent-bit/bin/fluent-bit"}

// fluentBit tails the file with its JSON parser, and keeps by a grep filter what is ours.
func (b *bencher) fluentBit(ctx context.Context, l log) (other, error) {
	o := other{what: "the same scan; beside Fluent Bit's tail, JSON parser and grep filter, once (seen elsewhere with 5.1: 170 MB per CPU s, 12.5 MB)", goal: "≥ 8"}
	path := ""
	for _, candidate := range fluentBitPaths {
		if found, err := exec.LookPath(candidate); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		o.missing = true
		return o, nil
	}
	parsers := b.path("parsers.conf")
	if err := os.WriteFile(parsers, []byte("[PARSER]\n    Name json\n    Format json\n"), 0o600); err != nil {
		return o, err
	}
	var err error
	o.ran, err = onOneCore(ctx, nil, path, "-q", "-R", parsers,
		"-i", "tail", "-p", "path="+l.path, "-p", "parser=json", "-p", "read_from_head=on", "-p", "exit_on_eof=on",
		"-p", "buffer_chunk_size=1M", "-p", "buffer_max_size=8M",
		"-F", "grep", "-m", "*", "-p", "regex=$objectRef['apiGroup'] ^credentials\\.cozystack\\.io$",
		"-o", "stdout", "-p", "format=json_lines", "-m", "*")
	return o, errors.Join(err, foundSome(o.ran))
}

// foundSome holds that the other program did what it was started for.
func foundSome(r ran) error {
	if bytes.Count(r.output, []byte("\n")) == 0 {
		return errors.New("nothing was found that is ours")
	}
	return nil
}
