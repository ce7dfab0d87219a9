package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/mintlog/mintlog/test/bench/cost"
	"github.com/mintlog/mintlog/test/sandbox"
	"github.com/mintlog/mintlog/test/sandbox/process"
)

// A bencher holds what the scenarios share.
type bencher struct {
	root      string             // of the module
	directory *process.Directory // of logs, keys and data, gone at the end
	profile   string             // directory for profiles; empty: none
	count     int                // applications of the scenario of that name

	sandbox  *sandbox.Sandbox // of the scenarios about credentials; nil until the first of them
	prepared bool
	client   *http.Client // jane's
	host     string
	admin    kubernetes.Interface
}

func newBencher(profile string, count int) (*bencher, error) {
	root, err := process.Root()
	if err != nil {
		return nil, err
	}
	directory, err := process.NewDirectory("mintlog-bench-")
	if err != nil {
		return nil, err
	}
	if profile != "" {
		if profile, err = filepath.Abs(profile); err == nil {
			err = os.MkdirAll(profile, 0o700)
		}
	}
	return &bencher{root: root, directory: directory, profile: profile, count: count}, err
}

func (b *bencher) close() error {
	var err error
	if b.sandbox != nil {
		err = b.sandbox.Stop()
	}
	return errors.Join(err, b.directory.Remove())
}

func (b *bencher) path(name string) string { return filepath.Join(b.directory.Path, name) }

func (b *bencher) bin(name string) string { return filepath.Join(b.root, "bin", name) }

// build builds one of the benchmark's own programs.
func (b *bencher) build(ctx context.Context, name string) (string, error) {
	path := b.path(name)
	command := exec.CommandContext(ctx, "go", "build", "-o", path, "./test/bench/"+name)
	command.Dir = b.root
	if output, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w: %s", name, err, output)
	}
	return path, nil
}

// A ran is what a process came to.
type ran struct {
	output   []byte
	cpu      time.Duration // user and system
	resident int64         // bytes, the most it ever was
}

// onOneCore runs a program to its end on one core, the last of the machine. The Go runtime is told to use one as well.
func onOneCore(ctx context.Context, environment []string, path string, arguments ...string) (ran, error) {
	if _, err := exec.LookPath("taskset"); err != nil {
		return ran{}, errors.New("taskset is missing: apt-get install util-linux")
	}
	command := exec.CommandContext(ctx, "taskset", append([]string{"-c", fmt.Sprint(lastCore()), path}, arguments...)...)
	command.Env = append(os.Environ(), append(environment, "GOMAXPROCS=1", "LC_ALL=C")...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Start(); err != nil {
		return ran{}, fmt.Errorf("starting %s: %w", filepath.Base(path), err)
	}
	ended := make(chan struct{})
	resident := make(chan int64, 1)
	go func() { resident <- mostResident(command.Process.Pid, ended) }()
	err := command.Wait()
	close(ended)
	r := ran{output: stdout.Bytes(), resident: <-resident}
	if err != nil {
		return r, fmt.Errorf("running %s: %w: %s", filepath.Base(path), err, strings.TrimSpace(stderr.String()))
	}
	r.cpu = command.ProcessState.UserTime() + command.ProcessState.SystemTime()
	return r, nil
}

// mostResident is the most that a process holds, in bytes, as far as it is seen before the process has ended. What the
// kernel says afterwards counts what its parent held when it forked.
func mostResident(pid int, ended <-chan struct{}) int64 {
	var most int64
	for {
		if now, err := cost.Status(pid, "VmHWM"); err == nil {
			most = max(most, now)
		}
		select {
		case <-ended:
			return most
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// startNATS starts a NATS server that syncs every write, as the embedded one does, and returns its URL.
func (b *bencher) startNATS(ctx context.Context, name string) (*process.Process, string, error) {
	if _, err := os.Stat(b.bin("nats-server")); err != nil {
		return nil, "", errors.New("bin/nats-server is missing: run \"make tools\"")
	}
	address, err := process.FreeAddress()
	if err != nil {
		return nil, "", err
	}
	configuration := b.path(name + ".conf")
	text := fmt.Sprintf("listen: %q\njetstream { store_dir: %q, sync_interval: always }\n", address, b.path(name))
	if err := os.WriteFile(configuration, []byte(text), 0o600); err != nil {
		return nil, "", err
	}
	started, err := process.Start(ctx, process.Options{
		Name: name, Path: b.bin("nats-server"), Arguments: []string{"--config", configuration}, LogFile: b.path(name + ".log"),
		Ready: process.Listens(address),
	})
	return started, "nats://" + address, err
}

func median[T any](values []T, of func(T) float64) float64 {
	var numbers []float64
	for _, v := range values {
		numbers = append(numbers, of(v))
	}
	slices.Sort(numbers)
	return numbers[len(numbers)/2]
}

func percentile(durations []time.Duration, percent int) time.Duration {
	sorted := slices.Sorted(slices.Values(durations))
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)]
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

func ratio(a, b float64) string { return fmt.Sprintf("%.2f", a/b) }

func mib(bytes float64) string { return fmt.Sprintf("%.1f MiB", bytes/(1<<20)) }
