package postgres

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDebiansOwnServerIsForbiddenOnlyWhileThePackageIsInstalled(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "not", "there", "yet")
	allow, err := forbidServer(folder)
	require.NoError(t, err)
	settings, err := filepath.Glob(filepath.Join(folder, "*.conf"))
	require.NoError(t, err)
	require.Len(t, settings, 1)
	text, err := os.ReadFile(settings[0])
	require.NoError(t, err)
	require.Equal(t, "create_main_cluster = false\n", string(text))
	allow()
	require.NoDirExists(t, folder)
}

func TestOtherSettingsOfDebiansServerStay(t *testing.T) {
	folder := t.TempDir()
	theirs := filepath.Join(folder, "theirs.conf")
	require.NoError(t, os.WriteFile(theirs, nil, 0o600))
	allow, err := forbidServer(folder)
	require.NoError(t, err)
	allow()
	require.FileExists(t, theirs)
}
