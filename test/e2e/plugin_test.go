package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/test/sandbox"
)

// exitCode is what a command said by its exit code.
func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

func TestAScriptThatRunsTwiceMintsOnceAndOneThatWouldLockClientsOutIsRefused(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "script", "app") + ".app"
	mint := func(person string, arguments ...string) (out, stderr string, code int) {
		t.Helper()
		out, stderr, err := kubectl(t, person, append([]string{"credentials", "mint", credential, "-n", acme}, arguments...)...)
		return out, stderr, exitCode(err)
	}
	out, stderr, code := mint(sandbox.Jane, "--if-origin=NotIssued")
	require.Zero(t, code, stderr)
	assert.Regexp(t, `^[A-Za-z0-9]{32,}\n$`, out)

	out, stderr, code = mint(sandbox.Jane, "--if-origin=NotIssued")
	assert.Equal(t, 5, code, stderr)
	assert.Empty(t, out)
	require.NoError(t, shared.AwaitShown(ctx(t), acme, []string{credential}))
	out, stderr, code = mint(sandbox.Jane)
	assert.Equal(t, 2, code, stderr)
	assert.Empty(t, out)
	assert.Contains(t, stderr, "locked out")
	_, stderr, code = mint(sandbox.Ivan)
	assert.Equal(t, 3, code, stderr)
	_, stderr, code = mint(sandbox.Olga, "--yes")
	assert.Equal(t, 3, code, stderr)
	assert.Len(t, shared.ledger(t, credential).Entries, 2, "Create and one Mint")

	file := filepath.Join(t.TempDir(), "password")
	out, stderr, code = mint(sandbox.Jane, "--yes", "-o", "pgpass", "--to-file", file, "-v=10")
	require.Zero(t, code, stderr)
	assert.Empty(t, out)
	line, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Regexp(t, `^\*:\*:\*:app:[A-Za-z0-9]{32,}\n$`, string(line))
	assert.NotContains(t, stderr, strings.TrimSpace(strings.TrimPrefix(string(line), "*:*:*:app:")))
	_, stderr, code = mint(sandbox.Jane, "--yes", "--to-file", file)
	assert.Equal(t, 1, code, stderr)
	assert.Len(t, shared.ledger(t, credential).Entries, 3, "a file that is there fails before the mint")

	require.NoError(t, shared.AwaitShown(ctx(t), acme, []string{credential}))
	out, stderr, err = kubectl(t, sandbox.Ivan, "credentials", "wait", credential, "-n", acme, "--for=attributed")
	require.NoError(t, err, stderr)
	assert.Equal(t, credential+": Mint, revision 3, by jane\n", out)
}

func TestEachPersonListsWhatItMayRead(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "everywhere", "app") + ".app"
	var out, stderr string
	within(t, 2*time.Minute, func() (err error) { // namespaces come and go beside this test, and are not read at once
		if out, stderr, err = kubectl(t, sandbox.ClusterAdmin, "credentials", "list", "-A", "-l", "apps.cozystack.io/application.name=everywhere"); err != nil {
			return fmt.Errorf("%w: %s", err, stderr)
		}
		return nil
	})
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 2, out)
	assert.Equal(t, []string{acme, credential}, strings.Fields(lines[1])[:2])
	assert.Contains(t, stderr, "Passed over, not enrolled: ")

	_, stderr, err := kubectl(t, sandbox.Jane, "credentials", "list", "-A")
	assert.Equal(t, 3, exitCode(err))
	assert.Contains(t, stderr, "kubectl credentials list -n NAMESPACE")
	_, stderr, err = kubectl(t, sandbox.Olga, "credentials", "list", "-n", acme)
	assert.Equal(t, 3, exitCode(err), stderr)
	out, stderr, err = kubectl(t, sandbox.Ivan, "credentials", "list")
	require.NoError(t, err, stderr)
	assert.Contains(t, out, credential)
}

func TestThePluginAndKubectlPrintTheSameTable(t *testing.T) {
	t.Parallel()
	shared.application(t, "same", "app", "report-reader")
	theirs := read(t, sandbox.Ivan, "get", "credentials", "-n", acme, "-l", "apps.cozystack.io/application.name=same")
	ours, stderr, err := kubectl(t, sandbox.Ivan, "credentials", "list", "-n", acme, "-l", "apps.cozystack.io/application.name=same")
	require.NoError(t, err, stderr)
	columns := func(table string) (all [][]string) {
		for _, line := range strings.Split(strings.TrimSpace(table), "\n") {
			all = append(all, strings.Fields(line)[:3]) // ages differ
		}
		return all
	}
	require.Len(t, columns(theirs), 3, "the head and two accounts")
	assert.Equal(t, columns(theirs), columns(ours))
}
