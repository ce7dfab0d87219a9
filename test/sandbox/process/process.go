// Package process runs a server as a child in a process group of its own, with its output in a file, and does not let
// it outlive its parent.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Options say what to run.
type Options struct {
	Name        string   // in messages
	Path        string   // of the binary
	Arguments   []string // without the binary
	Environment []string // "NAME=value", added to this process's own
	Directory   string   // to run in; empty: this process's own
	LogFile     string   // gets standard output and error, appended

	// Ready says by nil that the server serves. It is asked until then, ReadyWithin at most (five minutes if zero). If Ready is
	// nil, a started process is a ready one.
	Ready       func(ctx context.Context) error
	ReadyWithin time.Duration

	StopSignal  syscall.Signal      // what Stop sends; SIGTERM if zero
	DeathSignal syscall.Signal      // what it gets when this process dies; SIGKILL if zero
	Grace       time.Duration       // how long Stop waits before it kills; three minutes if zero
	Credential  *syscall.Credential // the user to run as; nil: our own
	Detached    bool                // it may outlive this process, and a closed terminal
}

// A Process is a running server, or one that has run.
type Process struct {
	options Options

	mutex  sync.Mutex // guards what follows; each start replaces it
	pid    int
	exited chan struct{}
	result error // of the wait; to be read when exited is closed
}

// Start starts it and waits until it is ready. The error of one that ends early or does not get ready holds the end
// of its log; nothing is left running then.
func Start(ctx context.Context, options Options) (*Process, error) {
	if options.ReadyWithin == 0 {
		options.ReadyWithin = 5 * time.Minute
	}
	if options.StopSignal == 0 {
		options.StopSignal = syscall.SIGTERM
	}
	if options.DeathSignal == 0 {
		options.DeathSignal = syscall.SIGKILL
	}
	if options.Grace == 0 {
		options.Grace = 3 * time.Minute
	}
	p := &Process{options: options}
	if err := p.start(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// Name is what it was called.
func (p *Process) Name() string { return p.options.Name }

// LogFile is the path of its output.
func (p *Process) LogFile() string { return p.options.LogFile }

// PID is the id of the process, which is its group's too.
func (p *Process) PID() int {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.pid
}

// Exited is closed when the process that runs now has ended.
func (p *Process) Exited() <-chan struct{} {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.exited
}

// Running says whether it runs.
func (p *Process) Running() bool {
	select {
	case <-p.Exited():
		return false
	default:
		return true
	}
}

// Result is how it ended: nil for an exit with status 0, an *exec.ExitError for anything else. It waits for the end.
func (p *Process) Result() error {
	<-p.Exited()
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.result
}

// Kill ends it and its children with SIGKILL, and waits until it is gone.
func (p *Process) Kill() {
	p.signal(syscall.SIGKILL)
	<-p.Exited()
}

// Stop asks it to end and waits. What does not end within the grace is killed, and that is an error, as is an end with
// another status than 0.
func (p *Process) Stop() error {
	if !p.Running() {
		return nil
	}
	p.signal(p.options.StopSignal)
	select {
	case <-p.Exited():
	case <-time.After(p.options.Grace):
		p.Kill()
		return fmt.Errorf("%s did not stop within %s and was killed%s", p.Name(), p.options.Grace, p.logTail())
	}
	p.signal(syscall.SIGKILL) // children that it left
	if err := p.Result(); err != nil {
		return fmt.Errorf("%s stopped: %w%s", p.Name(), err, p.logTail())
	}
	return nil
}

// Restart starts it again with the same arguments and waits until it is ready. One that still runs is stopped first.
func (p *Process) Restart(ctx context.Context) error {
	if err := p.Stop(); err != nil {
		return err
	}
	return p.start(ctx)
}

func (p *Process) signal(signal syscall.Signal) {
	// A group whose leader has ended may still have members. An id that is gone altogether is not an error.
	_ = syscall.Kill(-p.PID(), signal)
}

func (p *Process) start(ctx context.Context) error {
	if err := p.launch(); err != nil {
		return err
	}
	if err := p.awaitReady(ctx); err != nil {
		p.Kill()
		return err
	}
	return nil
}

func (p *Process) launch() error {
	log, err := os.OpenFile(p.options.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("opening the log of %s: %w", p.Name(), err)
	}
	defer log.Close() // the child has its own
	command := exec.Command(p.options.Path, p.options.Arguments...)
	command.Env = append(os.Environ(), p.options.Environment...)
	command.Dir = p.options.Directory
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = attributes(p.options)

	started := make(chan error)
	exited := make(chan struct{})
	go func() {
		// The signal at a parent's death comes at the death of the thread that forked: this one lives until the child ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := command.Start()
		started <- err
		if err != nil {
			return
		}
		err = command.Wait()
		p.mutex.Lock()
		p.result = err
		p.mutex.Unlock()
		close(exited)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("starting %s: %w", p.Name(), err)
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.pid, p.exited = command.Process.Pid, exited
	return nil
}

func (p *Process) awaitReady(ctx context.Context) error {
	if p.options.Ready == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.options.ReadyWithin)
	defer cancel()
	last := errors.New("it was never asked")
	for {
		attempt, cancel := context.WithTimeout(ctx, 10*time.Second)
		err := p.options.Ready(attempt)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-p.Exited():
			return fmt.Errorf("%s ended before it was ready: %v%s", p.Name(), p.Result(), p.logTail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready (%w): %v%s", p.Name(), ctx.Err(), last, p.logTail())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// logTail is the end of the log as the end of an error.
func (p *Process) logTail() string {
	const most = 2000 // bytes
	file, err := os.Open(p.options.LogFile)
	if err != nil {
		return ""
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > most {
		_, _ = file.Seek(-most, io.SeekEnd)
	}
	tail, _ := io.ReadAll(io.LimitReader(file, most))
	name := filepath.Base(p.options.LogFile)
	return fmt.Sprintf("; %s ends with:\n%s", name, strings.TrimSpace(string(tail)))
}
