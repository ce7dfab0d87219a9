// Package debian gets what the tests and the demo need of a machine from Debian's packages.
package debian

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Installs says whether Need installs packages here: as root, where there is apt-get.
func Installs() bool { return apt() != "" && os.Getuid() == 0 }

// Need makes sure that what a package brings is there. Where it is missing, the package is installed if this is Debian
// and we are root, with a line of progress before and after (nil: nowhere); otherwise the error names the package. No
// service of the package is started by its installation. Processes that need something at the same time wait for one
// another.
func Need(ctx context.Context, progress io.Writer, name string, there func() bool) error {
	if there() {
		return nil
	}
	if !Installs() {
		return missing(name)
	}
	return machine{apt: apt(), policy: "/usr/sbin/policy-rc.d"}.install(ctx, progress, name, there)
}

// NeedProgram is Need for a program, which it looks for in PATH and where Debian keeps servers. It returns its path.
func NeedProgram(ctx context.Context, progress io.Writer, name, program string) (string, error) {
	err := Need(ctx, progress, name, func() bool { return find(program) != "" })
	if err != nil {
		return "", fmt.Errorf("%s (looked for in PATH and in %s): %w", program, servers, err)
	}
	return find(program), nil
}

const servers = "/usr/sbin" // is in no ordinary user's PATH

func find(program string) string {
	for _, candidate := range []string{program, filepath.Join(servers, program)} {
		if path, err := exec.LookPath(candidate); err == nil {
			return path
		}
	}
	return ""
}

// ErrMissing is returned by Need where a package is missing and is not ours to install.
var ErrMissing = errors.New("missing, and not ours to install here")

func missing(name string) error {
	return fmt.Errorf("the Debian package %[1]s, or what it brings, is %[2]w: apt-get install %[1]s", name, ErrMissing)
}

func apt() string {
	path, err := exec.LookPath("apt-get")
	if err != nil {
		return ""
	}
	return path
}

// A machine is where packages are installed: the path of its apt-get, and the file that says which services start.
type machine struct{ apt, policy string }

func (m machine) install(ctx context.Context, progress io.Writer, name string, there func() bool) error {
	if progress == nil {
		progress = io.Discard
	}
	held, err := hold(ctx, m.apt)
	if err != nil {
		return fmt.Errorf("waiting to install Debian's package %s: %w", name, err)
	}
	defer held.Close()
	if there() { // whoever held it before has installed it
		return nil
	}
	fmt.Fprintf(progress, "installing Debian's package %s, which may take a minute or two\n", name)
	began := time.Now()
	allow, err := forbidServices(m.policy)
	if err != nil {
		return fmt.Errorf("keeping the Debian package %s from starting services: %w", name, err)
	}
	defer allow()
	// A list that cannot be fetched need not be one that the package is in.
	updated := run(ctx, m.apt, "update", "-q")
	if err := run(ctx, m.apt, "install", "-y", "-q", "--no-install-recommends", name); err != nil {
		return errors.Join(fmt.Errorf("install the Debian package %s: %w", name, err), updated)
	}
	if !there() {
		return fmt.Errorf("the Debian package %s is installed, and what is needed of it is not there", name)
	}
	fmt.Fprintf(progress, "%s is installed, in %s\n", name, time.Since(began).Round(time.Second))
	return nil
}

// noServices is a policy by which the scripts of packages start nothing (101: forbidden).
const noServices = "#!/bin/sh\n# written by mintlog's tests while a package is installed; remove it if none is\nexit 101\n"

// forbidServices keeps packages from starting services until allow is called. A policy that is there already stands: it
// is the word of whoever set up the machine. One that we left when we were killed is taken away in the end.
func forbidServices(policy string) (allow func(), err error) {
	there, err := os.ReadFile(policy)
	switch {
	case err == nil && string(there) != noServices:
		return func() {}, nil
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	if err := os.WriteFile(policy, []byte(noServices), 0o755); err != nil {
		return nil, err
	}
	return func() { _ = os.Remove(policy) }, nil
}

// run runs apt-get with nobody to answer questions; it waits for another one, such as the unattended upgrade.
func run(ctx context.Context, apt string, arguments ...string) error {
	command := exec.CommandContext(ctx, apt, append([]string{"-o", "DPkg::Lock::Timeout=300"}, arguments...)...)
	command.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_SUSPEND=1", "LC_ALL=C")
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) } // dpkg gets to end what it is at
	command.WaitDelay = 30 * time.Second
	output, err := command.CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(output)), "\n")
		return fmt.Errorf("apt-get %s: %w: %s", arguments[0], err, strings.Join(lines[max(0, len(lines)-5):], "\n"))
	}
	return nil
}

// hold keeps a file locked until it is closed, or this process ends: apt-get itself waits for some of its locks only.
func hold(ctx context.Context, path string) (*os.File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(err, file.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), file.Close())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Unprivileged is a user for servers that refuse to run as root: the first of the names that there is, else nobody. It
// is nil, our own user, where we are not root.
func Unprivileged(names ...string) (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	for _, name := range append(names, "nobody") {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(found.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(found.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("servers refuse to run as root, and there is no user called nobody")
}
