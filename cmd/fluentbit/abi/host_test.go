package abi_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/test/debian"
)

// What FLBPluginFlushCtx and the others answer.
const (
	failed = 0
	done   = 1
	again  = 2
)

// build makes the library with the command of deploy/fluentbit, and the host that loads it, once for all tests.
var build = sync.OnceValues(func() (built, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	if err := compiler(ctx); err != nil {
		return built{}, err
	}
	directory, err := os.MkdirTemp("", "mintlog-fluentbit-")
	if err != nil {
		return built{}, err
	}
	workplace = directory
	b := built{library: filepath.Join(directory, "out_mintlog.so"), host: filepath.Join(directory, "host")}
	command, err := documented(b.library)
	if err != nil {
		return b, err
	}
	if _, err := run(ctx, command[0], command[1:]...); err != nil {
		return b, err
	}
	headers, err := run(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/fluent/fluent-bit-go")
	if err != nil {
		return b, err
	}
	_, err = run(ctx, "gcc", "-Wall", "-Wextra", "-Werror", "-I", filepath.Join(headers, "output"), "-o", b.host,
		filepath.Join("testdata", "host.c"), "-ldl", "-lpthread")
	return b, err
})

type built struct{ library, host string }

// documented is the command with which deploy/fluentbit says to build the library, but for where it goes.
func documented(library string) ([]string, error) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "fluentbit", "README.md"))
	if err != nil {
		return nil, err
	}
	for text := range strings.Lines(string(readme)) {
		rest, found := strings.CutPrefix(strings.TrimSpace(text), "CGO_ENABLED=1 go -C cmd/fluentbit build ")
		if !found {
			continue
		}
		words := strings.Fields(rest)
		for i := range words {
			if words[i] == "../../bin/out_mintlog.so" {
				words[i] = library
				return append([]string{"go", "-C", "..", "build"}, words...), nil
			}
		}
	}
	return nil, errors.New("deploy/fluentbit/README.md does not say how to build ../../bin/out_mintlog.so")
}

// compiler has Debian's C compiler and C library installed where they are missing.
func compiler(ctx context.Context) error {
	header := func() bool {
		_, err := os.Stat("/usr/include/stdio.h")
		return !errors.Is(err, fs.ErrNotExist)
	}
	gcc := func() bool {
		_, err := exec.LookPath("gcc")
		return err == nil
	}
	return errors.Join(debian.Need(ctx, os.Stderr, "gcc", gcc), debian.Need(ctx, os.Stderr, "libc6-dev", header))
}

func run(ctx context.Context, name string, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, name, arguments...)
	command.Env = append(os.Environ(), "CGO_ENABLED=1")
	output, err := command.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(arguments, " "), err)
	}
	return strings.TrimSpace(string(output)), nil
}

// workplace is where build has put what it made; empty: it was not asked.
var workplace string

// TestMain takes what was built away again.
func TestMain(m *testing.M) {
	status := m.Run()
	if workplace != "" {
		_ = os.RemoveAll(workplace)
	}
	os.Exit(status)
}

// A host is a process that has loaded the library as Fluent Bit does.
type host struct {
	t       testing.TB
	command *exec.Cmd
	input   interface{ Write([]byte) (int, error) }
	answers *bufio.Scanner
	log     lockedBuffer
	chunks  int
}

func startHost(t testing.TB) *host {
	t.Helper()
	b, err := build()
	require.NoError(t, err)
	h := &host{t: t, command: exec.Command(b.host)}
	input, err := h.command.StdinPipe()
	require.NoError(t, err)
	output, err := h.command.StdoutPipe()
	require.NoError(t, err)
	h.input, h.answers, h.command.Stderr = input, bufio.NewScanner(output), &h.log
	require.NoError(t, h.command.Start())
	t.Cleanup(func() {
		_ = input.Close()
		if err := h.command.Wait(); err != nil {
			t.Errorf("the host ended with %v; it says\n%s", err, h.log.String())
		}
	})
	require.Equal(t, "0", h.ask("register "+b.library))
	return h
}

func (h *host) ask(command string) string {
	h.t.Helper()
	_, err := fmt.Fprintln(h.input, command)
	require.NoError(h.t, err, h.log.String())
	require.True(h.t, h.answers.Scan(), "the host is gone; it says\n%s", h.log.String())
	return h.answers.Text()
}

func (h *host) init(id int, properties ...string) int {
	h.t.Helper()
	return number(h.t, h.ask(fmt.Sprintf("init %d %s", id, strings.Join(properties, " "))))
}

func (h *host) flush(id int, chunk []byte) int {
	h.t.Helper()
	return h.flushes(id, "audit.kube", chunk, 1)[0]
}

// flushes flushes a chunk n times at once.
func (h *host) flushes(id int, tag string, chunk []byte, n int) []int {
	h.t.Helper()
	return h.order("flush", id, tag, chunk, n)
}

// leave does the same, and lets the output exit meanwhile.
func (h *host) leave(id int, chunk []byte, n int) []int {
	h.t.Helper()
	return h.order("leave", id, "audit.kube", chunk, n)
}

func (h *host) order(command string, id int, tag string, chunk []byte, n int) []int {
	h.t.Helper()
	h.chunks++
	path := filepath.Join(h.t.TempDir(), strconv.Itoa(h.chunks))
	require.NoError(h.t, os.WriteFile(path, chunk, 0o600))
	var answers []int
	for _, word := range strings.Fields(h.ask(fmt.Sprintf("%s %d %s %s %d", command, id, tag, path, n))) {
		answers = append(answers, number(h.t, word))
	}
	require.Len(h.t, answers, n)
	return answers
}

func (h *host) exit(id int) { require.Equal(h.t, done, number(h.t, h.ask(fmt.Sprintf("exit %d", id)))) }

// memory is the resident size in bytes.
func (h *host) memory() int64 { return int64(number(h.t, h.ask("memory"))) << 10 }

func number(t testing.TB, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}
