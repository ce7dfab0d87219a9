package main

import (
	"os/signal"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestADiskThatIsFullFailsBeforeAnythingIsAskedAndLeavesNoFile(t *testing.T) {
	file, s := full(t), holding(t, "NotIssued")
	r := s.command(t, "mint", "postgres-orders.app", "--yes", "--to-file", file)
	assert.Equal(t, exitOther, r.code)
	assert.Contains(t, r.err, "making room for the password in "+file)
	assert.Empty(t, s.requests())
	assert.NoFileExists(t, file)
}

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
