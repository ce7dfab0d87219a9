// Command up starts the sandbox with mintlog in it and leaves it running; with --down it stops what it started. "make
// sandbox" and "make sandbox-down" call it.
//
// A supervisor holds the servers and ends them when it ends. It is known by its lock on .sandbox/lock, which holds its
// process id.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mintlog/mintlog/test/sandbox"
	"github.com/mintlog/mintlog/test/sandbox/process"
)

func main() {
	down := flag.Bool("down", false, "stop the sandbox that runs")
	supervise := flag.Bool("supervise", false, "be the supervisor (up starts it)")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, *down, *supervise); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, down, supervise bool) error {
	root, err := process.Root()
	if err != nil {
		return err
	}
	place := home(filepath.Join(root, ".sandbox"))
	switch {
	case down:
		return place.stop(ctx)
	case supervise:
		return place.supervise(ctx)
	default:
		return place.start(ctx)
	}
}

// A home is the folder of the sandbox that is left running.
type home string

func (h home) file(name string) string { return filepath.Join(string(h), name) }

// start starts a supervisor and waits until it has written env.
func (h home) start(ctx context.Context) error {
	lock, err := h.lock()
	if err != nil {
		return err
	}
	if err := h.clear(); err != nil {
		return err
	}
	if err := lock.Close(); err != nil { // the supervisor takes it
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log := h.file("supervisor.log")
	shown, stop := context.WithCancel(ctx)
	done := follow(shown, log)
	_, err = process.Start(ctx, process.Options{
		Name: "the sandbox", Path: self, Arguments: []string{"--supervise"}, LogFile: log, Detached: true,
		ReadyWithin: 15 * time.Minute,
		Ready: func(context.Context) error {
			_, err := os.Stat(h.file("env"))
			return err
		},
	})
	stop()
	<-done
	if err != nil {
		return err
	}
	fmt.Print(`
The sandbox runs. To be jane, admin of its tenant acme (or ivan, olga, root), in a shell:

  export PATH=$PWD/bin:$PATH; . .sandbox/env; export KUBECONFIG=$KUBECONFIG_JANE
  kubectl credentials list

To stop it: make sandbox-down
`)
	return nil
}

// supervise runs the sandbox until it is told to end.
func (h home) supervise(ctx context.Context) error {
	lock, err := h.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	if _, err := lock.WriteString(strconv.Itoa(os.Getpid())); err != nil {
		return err
	}
	s, err := sandbox.Start(ctx, sandbox.Options{Directory: string(h), Log: os.Stderr})
	if err != nil {
		return err
	}
	err = h.lay(ctx, s)
	if err == nil {
		<-ctx.Done()
	}
	return errors.Join(err, s.Stop())
}

// lay starts mintlog and lays the application, and says by the file env that all is there.
func (h home) lay(ctx context.Context, s *sandbox.Sandbox) error {
	if err := s.LayDefinition(ctx); err != nil {
		return err
	}
	if _, err := s.RunAll(ctx); err != nil {
		return err
	}
	if err := s.AwaitFirstSight(ctx, "Postgres"); err != nil {
		return err
	}
	if _, err := s.LayRelease(ctx); err != nil {
		return err
	}
	if err := s.AwaitServed(ctx, sandbox.TenantAcme, []string{"postgres-orders.app", "postgres-orders.report-reader"}); err != nil {
		return err
	}
	variables := [][2]string{
		{"KUBECONFIG", s.Kubeconfig(sandbox.ClusterAdmin, 0)},
		{"MINTLOG_VICTORIALOGS", s.VictoriaLogsURL()},
		{"MINTLOG_METRICS", "http://" + s.MetricsAddress() + "/metrics"},
	}
	for _, person := range []string{sandbox.Jane, sandbox.Ivan, sandbox.Olga, sandbox.TenantRoot} {
		variables = append(variables, [2]string{"KUBECONFIG_" + strings.ToUpper(person), s.Kubeconfig(person, 0)})
	}
	partial := h.file("env.partial")
	if err := os.WriteFile(partial, []byte(environment(variables)), 0o600); err != nil {
		return err
	}
	return os.Rename(partial, h.file("env"))
}

// environment is a file that a shell can source, and that a reader of NAME=value lines understands too.
func environment(variables [][2]string) string {
	plain := regexp.MustCompile(`^[-\w./:]*$`)
	var text strings.Builder
	export := "export"
	for _, variable := range variables {
		name, value := variable[0], variable[1]
		if !plain.MatchString(value) {
			value = "'" + strings.ReplaceAll(value, "'", `'\''`) + "'"
		}
		fmt.Fprintf(&text, "%s=%s\n", name, value)
		export += " " + name
	}
	return text.String() + export + "\n"
}

// stop ends the supervisor, if there is one, and removes the folder.
func (h home) stop(ctx context.Context) error {
	if _, err := os.Stat(string(h)); errors.Is(err, os.ErrNotExist) {
		fmt.Println("no sandbox runs")
		return nil
	}
	lock, err := h.lock()
	var running *runningError
	if errors.As(err, &running) {
		if err := syscall.Kill(running.pid, syscall.SIGTERM); err != nil {
			return fmt.Errorf("ending the sandbox's supervisor, process %d: %w", running.pid, err)
		}
	}
	for began := time.Now(); errors.As(err, &running); lock, err = h.lock() {
		if time.Since(began) > 3*time.Minute {
			return fmt.Errorf("the sandbox's supervisor, process %d, does not end", running.pid)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := os.RemoveAll(string(h)); err != nil {
		return err
	}
	fmt.Println("the sandbox is stopped and removed")
	return nil
}

// A runningError says who holds the lock.
type runningError struct{ pid int }

func (e *runningError) Error() string {
	return fmt.Sprintf("a sandbox runs already (process %d): make sandbox-down stops it", e.pid)
}

// lock takes the lock, which ends with the file or the process. The file then is empty.
func (h home) lock() (*os.File, error) {
	if err := os.MkdirAll(string(h), 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(h.file("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer file.Close()
		text, readError := io.ReadAll(file)
		pid, parseError := strconv.Atoi(string(text))
		if err := errors.Join(readError, parseError); err != nil {
			return nil, fmt.Errorf("a sandbox starts or runs already, and its process is not known: %w", err)
		}
		return nil, &runningError{pid: pid}
	}
	return file, file.Truncate(0)
}

// clear removes what an earlier sandbox left.
func (h home) clear() error {
	entries, err := os.ReadDir(string(h))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Name() == "lock" {
			continue
		}
		if err := os.RemoveAll(h.file(entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// follow copies a growing file to standard error until the context ends, and then the rest.
func follow(ctx context.Context, path string) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		var file *os.File
		for last := false; ; {
			if file == nil {
				file, _ = os.Open(path) // not there yet
			}
			if file != nil {
				_, _ = io.Copy(os.Stderr, file)
			}
			if last {
				return
			}
			select {
			case <-ctx.Done():
				last = true
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return done
}
