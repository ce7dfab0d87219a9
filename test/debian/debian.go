// Package debian gets what the tests and the demo need of a machine from Debian's packages.
package debian

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Installs says whether Need installs packages here: as root, where there is apt-get.
func Installs() bool { return apt() != "" && os.Getuid() == 0 }

// Need makes sure that what a package brings is there. Where it is missing, the package is installed if this is Debian
// and we are root, with a line of progress before and after (nil: nowhere); otherwise the error names the package.
// Processes that need something at the same time wait for one another.
func Need(ctx context.Context, progress io.Writer, name string, there func() bool) error {
	if there() {
		return nil
	}
	if !Installs() {
		return missing(name)
	}
	return install(ctx, apt(), progress, name, there)
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

func install(ctx context.Context, apt string, progress io.Writer, name string, there func() bool) error {
	if progress == nil {
		progress = io.Discard
	}
	held, err := hold(ctx, apt)
	if err != nil {
		return fmt.Errorf("waiting to install Debian's package %s: %w", name, err)
	}
	defer held.Close()
	if there() { // whoever held it before has installed it
		return nil
	}
	fmt.Fprintf(progress, "installing Debian's package %s, which may take a minute or two\n", name)
	began := time.Now()
	// A list that cannot be fetched need not be one that the package is in.
	updated := run(ctx, apt, "update", "-q")
	if err := run(ctx, apt, "install", "-y", "-q", "--no-install-recommends", name); err != nil {
		return errors.Join(fmt.Errorf("install the Debian package %s: %w", name, err), updated)
	}
	if !there() {
		return fmt.Errorf("the Debian package %s is installed, and what is needed of it is not there", name)
	}
	fmt.Fprintf(progress, "%s is installed, in %s\n", name, time.Since(began).Round(time.Second))
	return nil
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
