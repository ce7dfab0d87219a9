package api

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheGeneratedCodeIsWhatTheTypesGenerate(t *testing.T) {
	// go test caches a result until a file that the test itself has read changes: read what the script reads.
	for _, pattern := range []string{"generate.sh", "*/*.go", "../../test/tools/codegen/go.*"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, file := range files {
			_, err := os.ReadFile(file)
			require.NoError(t, err)
		}
	}

	output, err := exec.CommandContext(t.Context(), "./generate.sh", "--check").CombinedOutput()
	require.NoError(t, err, string(output))
}
