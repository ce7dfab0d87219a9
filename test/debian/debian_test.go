package debian

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWhatIsThereIsNotInstalled(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // without an apt-get
	require.NoError(t, Need(t.Context(), nil, "openssl", func() bool { return true }))
}

func TestWhereNothingCanBeInstalledTheErrorNamesThePackage(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := Need(t.Context(), nil, "openssl", func() bool { return false })
	require.ErrorContains(t, err, "apt-get install openssl")
}

func TestTwoThatNeedTheSameInstallItOnceAndAskNothing(t *testing.T) {
	a := newAPT(t, `
if read -r answer; then echo "it was answered"; exit 1; fi
[ "$DEBIAN_FRONTEND" = noninteractive ] || exit 1
if [ "$3" = install ]; then sleep 0.2; touch brought; fi`)
	var both sync.WaitGroup
	var progress [2]strings.Builder
	for i := range progress {
		both.Go(func() { assert.NoError(t, a.machine().install(t.Context(), &progress[i], "some", a.brought)) })
	}
	both.Wait()
	assert.Equal(t, []string{
		"-o DPkg::Lock::Timeout=300 update -q",
		"-o DPkg::Lock::Timeout=300 install -y -q --no-install-recommends some",
	}, a.calls(t))
	said := progress[0].String() + progress[1].String()
	assert.Equal(t, 1, strings.Count(said, "installing Debian's package some"))
	assert.Equal(t, 1, strings.Count(said, "some is installed"))
}

func TestAListThatCannotBeFetchedDoesNotKeepAPackageFromBeingInstalled(t *testing.T) {
	a := newAPT(t, `[ "$3" = install ] || exit 100; touch brought`)
	require.NoError(t, a.machine().install(t.Context(), nil, "some", a.brought))
}

func TestAnInstallationThatFailsSaysWhatAptGetSaidLast(t *testing.T) {
	a := newAPT(t, `for i in $(seq 100); do echo "line $i."; done; echo "$3: no network" >&2; exit 100`)
	err := a.machine().install(t.Context(), nil, "some", a.brought)
	require.ErrorContains(t, err, "install the Debian package some")
	require.ErrorContains(t, err, "update: no network")
	require.ErrorContains(t, err, "install: no network")
	require.NotContains(t, err.Error(), "line 1.")
}

func TestAPackageThatDoesNotBringWhatIsNeededIsAnError(t *testing.T) {
	a := newAPT(t, "")
	require.ErrorContains(t, a.machine().install(t.Context(), nil, "some", a.brought), "not there")
}

func TestWhoeverWaitsForAnotherInstallationCanBeInterrupted(t *testing.T) {
	a := newAPT(t, "touch brought")
	held, err := hold(t.Context(), a.path)
	require.NoError(t, err)
	defer held.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, a.machine().install(ctx, nil, "some", a.brought), context.Canceled)
	require.Empty(t, a.calls(t))
}

func TestAPackageStartsNoServiceWhileItIsInstalledAndMayLaterOn(t *testing.T) {
	a := newAPT(t, `[ "$3" = update ] && exit 0; ./policy-rc.d nginx start; echo $? >policy; touch brought`)
	require.NoError(t, a.machine().install(t.Context(), nil, "some", a.brought))
	said, err := os.ReadFile(filepath.Join(a.folder, "policy"))
	require.NoError(t, err)
	assert.Equal(t, "101\n", string(said))
	assert.NoFileExists(t, a.machine().policy)
}

func TestAPolicyOfTheMachinesOwnStandsAndOneOfAKilledTestGoes(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy-rc.d")
	require.NoError(t, os.WriteFile(policy, []byte("#!/bin/sh\nexit 0\n"), 0o755))
	allow, err := forbidServices(policy)
	require.NoError(t, err)
	allow()
	require.FileExists(t, policy)

	require.NoError(t, os.WriteFile(policy, []byte(noServices), 0o755))
	allow, err = forbidServices(policy)
	require.NoError(t, err)
	allow()
	require.NoFileExists(t, policy)
}

func TestAProgramThatIsMissingIsNamedWithItsPackage(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := NeedProgram(t.Context(), nil, "some-server", "no-such-server")
	require.ErrorContains(t, err, "no-such-server")
	require.ErrorContains(t, err, "apt-get install some-server")
}

// An aptGet stands in for the machine's, which would change the machine.
type aptGet struct{ folder, path string }

// newAPT writes down what it is called with and runs a script, in a folder of its own.
func newAPT(t *testing.T, script string) aptGet {
	t.Helper()
	folder := t.TempDir()
	a := aptGet{folder: folder, path: filepath.Join(folder, "apt-get")}
	text := "#!/bin/sh\ncd '" + folder + "'\necho \"$*\" >>calls\n" + script + "\n"
	require.NoError(t, os.WriteFile(a.path, []byte(text), 0o700))
	return a
}

func (a aptGet) machine() machine {
	return machine{apt: a.path, policy: filepath.Join(a.folder, "policy-rc.d")}
}

func (a aptGet) calls(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(a.folder, "calls"))
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(t, err)
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func (a aptGet) brought() bool {
	_, err := os.Stat(filepath.Join(a.folder, "brought"))
	return err == nil
}
