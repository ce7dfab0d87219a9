package main

import (
	"os/signal"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// full is the name of a file to be for which there is not enough room: until the test ends, this process writes no file
// of more than a page. To whoever writes, that is a disk that fills up.
func full(t *testing.T) string {
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &before))
	signal.Ignore(unix.SIGXFSZ)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 4096, Max: before.Max}))
	t.Cleanup(func() {
		_ = unix.Setrlimit(unix.RLIMIT_FSIZE, &before)
		signal.Reset(unix.SIGXFSZ)
	})
	return filepath.Join(t.TempDir(), "password")
}
