package sandbox

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Open starts a sandbox for a test, and stops it after the test's later cleanups. If the test has failed, what the
// servers said is kept.
func Open(t testing.TB, options Options) *Sandbox {
	t.Helper()
	// A test's own context ends before its cleanups run, and a sandbox with its context.
	s, err := Start(context.Background(), options)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("the servers' logs are kept in", s.KeepLogs())
		}
		assert.NoError(t, s.Stop())
	})
	return s
}

// KeepLogs copies LogFiles to a temporary folder that Stop leaves, as far as it can, and returns the folder.
func (s *Sandbox) KeepLogs() string {
	folder, err := os.MkdirTemp("", "mintlog-logs-")
	if err != nil {
		return err.Error()
	}
	for _, file := range s.LogFiles() {
		if content, err := os.ReadFile(file); err == nil {
			name := strings.TrimPrefix(strings.TrimPrefix(file, s.Directory()), string(filepath.Separator))
			_ = os.WriteFile(filepath.Join(folder, strings.ReplaceAll(name, string(filepath.Separator), "-")), content, 0o600)
		}
	}
	return folder
}
