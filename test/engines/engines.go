// Package engines runs the real engines whose passwords mintlog makes, as Debian packages them: on loopback, at free
// ports, with their data in temporary folders and as an unprivileged user. Each stores what it is given as a password,
// in the way its operator gives it, so that a stored form is judged by the engine itself.
package engines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/mintlog/mintlog/test/debian"
	"github.com/mintlog/mintlog/test/sandbox/process"
)

const host = "127.0.0.1"

// An Engine is a running server.
type Engine interface {
	// Version is what the server calls itself.
	Version(ctx context.Context) (string, error)
	// Apply stores a password of an account, as the engine's operator does. The account is made at its first use.
	Apply(ctx context.Context, username, stored string) error
	// Login logs in as a client does. It returns nil if the engine let the account in, and ErrRefused where it says
	// that the password is wrong.
	Login(ctx context.Context, username, password string) error
	// Stop ends the server and removes its data. A second call does nothing.
	Stop() error
}

// ErrRefused is returned by Login where the engine refuses the password.
var ErrRefused = errors.New("the engine refuses the password")

// A server is what the engines have in common: a folder, a user and a process.
type server struct {
	directory *process.Directory
	owner     *syscall.Credential // of the data and the process; nil: ours
	process   *process.Process
	stop      sync.Once
}

// newServer finds an engine's programs, the packages' names by the programs', and makes its folder.
func newServer(ctx context.Context, name string, progress io.Writer, programs ...program) (*server, []string, error) {
	paths := make([]string, len(programs))
	for i, p := range programs {
		var err error
		if paths[i], err = debian.NeedProgram(ctx, progress, p.debian, p.name); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	owner, err := debian.Unprivileged()
	if err != nil {
		return nil, nil, err
	}
	directory, err := process.NewDirectory("mintlog-engine-")
	if err != nil {
		return nil, nil, err
	}
	s := &server{directory: directory, owner: owner}
	if err := s.own(directory.Path); err != nil {
		return nil, nil, errors.Join(err, s.Stop())
	}
	return s, paths, nil
}

// A program comes with a package of Debian's.
type program struct{ name, debian string }

func (s *server) path(names ...string) string {
	return filepath.Join(append([]string{s.directory.Path}, names...)...)
}

// own gives a path to the server's user.
func (s *server) own(path string) error {
	if s.owner == nil {
		return nil
	}
	return os.Chown(path, int(s.owner.Uid), int(s.owner.Gid))
}

// write replaces a file of the server's at once: it may be reading it.
func (s *server) write(name, content string) error {
	file := s.path(name)
	if err := s.makeFolder(filepath.Dir(file)); err != nil {
		return err
	}
	next := filepath.Join(filepath.Dir(file), ".next")
	if err := os.WriteFile(next, []byte(content), 0o600); err != nil {
		return err
	}
	if err := s.own(next); err != nil {
		return err
	}
	return os.Rename(next, file)
}

// makeFolder makes a folder of the server's below its own.
func (s *server) makeFolder(folder string) error {
	if folder == s.path() {
		return nil
	}
	if err := s.makeFolder(filepath.Dir(folder)); err != nil {
		return err
	}
	if err := os.Mkdir(folder, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return s.own(folder)
}

// start starts the server's process; it ends with Stop, with the context and with this process.
func (s *server) start(ctx context.Context, options process.Options) error {
	options.LogFile = s.path("log")
	options.Directory = s.path()
	options.Credential = s.owner
	var err error
	if s.process, err = process.Start(ctx, options); err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = s.Stop() })
	return nil
}

// Stop ends the server and removes its data. A second call does nothing.
func (s *server) Stop() error {
	var err error
	s.stop.Do(func() {
		if s.process != nil {
			err = s.process.Stop()
		}
		err = errors.Join(err, s.directory.Remove())
	})
	return err
}
