package webhook

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// asideFiles are the contents of a directory, by name.
func asideFiles(t *testing.T, directory string) (contents []string) {
	t.Helper()
	entries, err := os.ReadDir(directory)
	require.NoError(t, err)
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(directory, entry.Name()))
		require.NoError(t, err)
		contents = append(contents, string(content))
	}
	return contents
}

// ticking is a clock that moves by a second whenever it is read.
func ticking() func() time.Time {
	now := time.Date(2026, 8, 21, 10, 0, 0, 0, time.UTC)
	return func() time.Time { now = now.Add(time.Second); return now }
}

func TestTheNewestItemsAreKeptWithinTheLimitAcrossRestarts(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "made", "aside")
	now := ticking()
	a, err := openAside(directory, 30, now)
	require.NoError(t, err)
	for i := range 5 {
		require.NoError(t, a.keep("cp-1", "malformed", []byte(fmt.Sprintf("item %d...", i))))
	}
	require.Equal(t, []string{"item 2...", "item 3...", "item 4..."}, asideFiles(t, directory))
	require.NoError(t, a.keep("cp-1", "malformed", []byte("item 3..."))) // is there
	require.Equal(t, []string{"item 2...", "item 3...", "item 4..."}, asideFiles(t, directory))

	require.NoError(t, os.WriteFile(filepath.Join(directory, "0-notes"), []byte(strings.Repeat("theirs", 10)), 0o600))
	a, err = openAside(directory, 20, now)
	require.NoError(t, err)
	require.Equal(t, []string{strings.Repeat("theirs", 10), "item 3...", "item 4..."}, asideFiles(t, directory))
	require.NoError(t, a.keep("cp-1", "malformed", []byte("item 4..."))) // still known
	require.NoError(t, a.keep("cp-1", "malformed", []byte(strings.Repeat("x", 100))))
	require.Equal(t, []string{strings.Repeat("theirs", 10), strings.Repeat("x", 20)}, asideFiles(t, directory))

	info, err := os.Stat(directory)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}

func TestAFileThatSomebodyRemovedIsNoError(t *testing.T) {
	directory := t.TempDir()
	a, err := openAside(directory, 10, ticking())
	require.NoError(t, err)
	require.NoError(t, a.keep("cp-1", "malformed", []byte("0123456789")))
	entries, err := os.ReadDir(directory)
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(directory, entries[0].Name())))
	require.NoError(t, a.keep("cp-1", "malformed", []byte("another")))
	require.Equal(t, []string{"another"}, asideFiles(t, directory))
}

func TestAFullDiskIsAnErrorOfKeepingAlone(t *testing.T) {
	b := newBench(t)
	b.start()
	require.NoError(t, os.RemoveAll(b.options.SetAside))
	require.Equal(t, 200, b.post(list(`"x.account"`, mintItem("1"))).status)
	require.Equal(t, []string{"1"}, b.published.ids())
	require.Contains(t, b.log.String(), "cannot be kept either")
}
