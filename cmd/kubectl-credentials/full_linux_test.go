package main

import (
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// writesLittle names the variable that makes the test's process the one whose disk is full.
const writesLittle = "MINTLOG_TEST_WRITES_LITTLE"

func TestADiskThatIsFullFailsBeforeAnythingIsAskedAndLeavesNoFile(t *testing.T) {
	if os.Getenv(writesLittle) == "" {
		inAProcessOfItsOwn(t)
		return
	}
	writeLittle(t)
	file, s := filepath.Join(t.TempDir(), "password"), holding(t, "NotIssued")
	r := s.command(t, "mint", "postgres-orders.app", "--yes", "--to-file", file)
	assert.Equal(t, exitOther, r.code)
	assert.Contains(t, r.err, "making room for the password in "+file)
	assert.Empty(t, s.requests())
	assert.NoFileExists(t, file)
}

// inAProcessOfItsOwn runs the test that calls it again: what the go command has a test process write by the way, its
// log of opened files among it, must have room.
func inAProcessOfItsOwn(t *testing.T) {
	again := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.v")
	again.Env = append(os.Environ(), writesLittle+"=true")
	output, err := again.CombinedOutput()
	require.NoError(t, err, "%s", output)
	require.Contains(t, string(output), "--- PASS: "+t.Name())
}

// writeLittle lets this process write no file of more than a page. To whoever writes, that is a disk that fills up.
func writeLittle(t *testing.T) {
	signal.Ignore(unix.SIGXFSZ)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 4096, Max: 4096}))
}
