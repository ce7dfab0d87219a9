package process_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/test/sandbox/process"
)

// parentOf makes the test binary a parent that starts a child, prints its id and waits to be killed.
const parentOf = "SANDBOX_TEST_PARENT_OF"

func TestMain(m *testing.M) {
	if script := os.Getenv(parentOf); script != "" {
		child, err := process.Start(context.Background(), process.Options{
			Name: "child", Path: "/bin/sh", Arguments: []string{"-c", script}, LogFile: os.DevNull,
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(child.PID())
		time.Sleep(time.Minute)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func TestAChildDiesWithItsKilledParent(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), parentOf+"=exec sleep 1000")
	output, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	line := make([]byte, 32)
	n, err := output.Read(line)
	require.NoError(t, err)
	child, err := strconv.Atoi(strings.TrimSpace(string(line[:n])))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(child, 0))
	t.Cleanup(func() {
		if !ended(child) {
			_ = syscall.Kill(child, syscall.SIGKILL)
		}
	})
	require.NoError(t, parent.Process.Kill())
	require.Error(t, parent.Wait())
	require.Eventually(t, func() bool { return ended(child) }, time.Minute, 10*time.Millisecond)
}

func TestAServerThatEndsBeforeItIsReadyShowsTheEndOfItsLog(t *testing.T) {
	_, err := start(t, "for i in $(seq 1000); do echo line $i; done; echo no such flag >&2; exit 3", process.Options{Ready: never})
	require.ErrorContains(t, err, "the server ended before it was ready: exit status 3")
	require.ErrorContains(t, err, "no such flag")
	require.NotContains(t, err.Error(), "line 1\n")
}

func TestAServerThatDoesNotGetReadyIsKilledAndSaysWhy(t *testing.T) {
	_, err := start(t, "echo pid $$; exec sleep 1000", process.Options{Ready: never, ReadyWithin: 5 * time.Second})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "not yet")
	_, after, _ := strings.Cut(err.Error(), "pid ")
	pid, err := strconv.Atoi(strings.TrimSpace(after))
	require.NoError(t, err)
	require.True(t, ended(pid))
}

func TestAStoppedServerTakesItsChildrenAlong(t *testing.T) {
	p, err := start(t, "(trap '' TERM; exec sleep 1000) & echo child $!; trap 'exit 0' TERM; echo trapped; wait", process.Options{})
	require.NoError(t, err)
	awaitLine(t, p, "trapped")
	child := number(t, p.LogFile(), "child ")
	require.False(t, ended(child))
	require.NoError(t, p.Stop())
	require.False(t, p.Running())
	require.Eventually(t, func() bool { return ended(child) }, time.Minute, 10*time.Millisecond)
	require.NoError(t, p.Stop(), "a second time")
}

func TestAServerThatDoesNotHearIsKilledAfterTheGrace(t *testing.T) {
	p, err := start(t, "trap '' TERM; echo trapped; while :; do sleep 0.1; done", process.Options{Grace: 500 * time.Millisecond})
	require.NoError(t, err)
	awaitLine(t, p, "trapped")
	require.ErrorContains(t, p.Stop(), "the server did not stop within 500ms and was killed")
	require.False(t, p.Running())
}

func TestAKilledServerRunsAgainWithTheSameArgumentsAndItsLogGoesOn(t *testing.T) {
	p, err := start(t, "echo here; exec sleep 1000", process.Options{})
	require.NoError(t, err)
	lines := func() int {
		log, err := os.ReadFile(p.LogFile())
		require.NoError(t, err)
		return strings.Count(string(log), "here\n")
	}
	require.Eventually(t, func() bool { return lines() == 1 }, time.Minute, 10*time.Millisecond)
	first := p.PID()
	p.Kill()
	require.Error(t, p.Result())
	require.NoError(t, p.Restart(t.Context()))
	require.NotEqual(t, first, p.PID())
	require.True(t, p.Running())
	require.Eventually(t, func() bool { return lines() == 2 }, time.Minute, 10*time.Millisecond)
	p.Kill()
}

func TestFreeAddressesDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 50 {
		address, err := process.FreeAddress()
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(address, "127.0.0.1:"))
		require.False(t, seen[address])
		seen[address] = true
	}
}

func TestAnAddressThatWasGivenIsHeldAgainstOtherProcesses(t *testing.T) {
	address, err := process.FreeAddress()
	require.NoError(t, err)
	_, err = net.ListenPacket("udp", address) // what another process would do before it gave the address
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	server, err := net.Listen("tcp", address)
	require.NoError(t, err)
	require.NoError(t, server.Close())
}

func TestADirectoryThatWasAbandonedIsRemovedAndOneInUseStays(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	const prefix = "directory-"
	old := time.Now().Add(-time.Hour)
	inUse, err := process.NewDirectory(prefix)
	require.NoError(t, err)
	abandoned := filepath.Join(os.TempDir(), prefix+"abandoned")
	fresh := filepath.Join(os.TempDir(), prefix+"fresh")
	require.NoError(t, os.MkdirAll(filepath.Join(abandoned, "data"), 0o700))
	require.NoError(t, os.Mkdir(fresh, 0o700))
	require.NoError(t, os.Chtimes(inUse.Path, old, old))
	require.NoError(t, os.Chtimes(abandoned, old, old))

	next, err := process.NewDirectory(prefix)
	require.NoError(t, err)
	require.NoDirExists(t, abandoned)
	require.DirExists(t, inUse.Path)
	require.DirExists(t, fresh)
	require.NoError(t, next.Remove())
	require.NoDirExists(t, next.Path)
	require.NoError(t, inUse.Remove())
}

// start runs a script as a server.
func start(t *testing.T, script string, options process.Options) (*process.Process, error) {
	t.Helper()
	options.Name, options.Path, options.Arguments = "the server", "/bin/sh", []string{"-c", script}
	options.LogFile = filepath.Join(t.TempDir(), "log")
	return process.Start(t.Context(), options)
}

// awaitLine waits until a script has printed a line.
func awaitLine(t *testing.T, p *process.Process, line string) {
	t.Helper()
	require.Eventually(t, func() bool {
		log, err := os.ReadFile(p.LogFile())
		return err == nil && strings.Contains(string(log), line+"\n")
	}, time.Minute, 10*time.Millisecond)
}

// number is that behind a word in a log.
func number(t *testing.T, file, word string) int {
	t.Helper()
	log, err := os.ReadFile(file)
	require.NoError(t, err)
	_, after, _ := strings.Cut(string(log), word)
	line, _, _ := strings.Cut(after, "\n")
	found, err := strconv.Atoi(line)
	require.NoError(t, err)
	return found
}

func never(context.Context) error { return errors.New("not yet") }

// ended says whether a process is gone, or dead and only not yet waited for by whoever inherited it.
func ended(pid int) bool {
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, after, _ := strings.Cut(string(state), ") ")
	return strings.HasPrefix(after, "Z")
}
