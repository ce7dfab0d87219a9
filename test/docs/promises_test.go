package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEachTestThatAPromiseIsHeldByIsThere(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(cluster.Root(), "docs", "reviewers.md"))
	require.NoError(t, err)
	promises := 0
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, " Test") || !strings.HasPrefix(line, "|") {
			continue
		}
		promises++
		cells := strings.Split(line, "|")
		for _, part := range strings.Split(cells[len(cells)-2], ";") {
			folder := regexp.MustCompile("^\\s*`([^`]+)`").FindStringSubmatch(part)
			require.NotNil(t, folder, "no folder: %s", part)
			files, err := filepath.Glob(filepath.Join(cluster.Root(), folder[1], "*_test.go"))
			require.NoError(t, err)
			var source strings.Builder
			for _, file := range files {
				content, err := os.ReadFile(file)
				require.NoError(t, err)
				source.Write(content)
			}
			names := regexp.MustCompile(`\bTest\w+`).FindAllString(part, -1)
			require.NotEmpty(t, names, part)
			for _, name := range names {
				assert.Contains(t, source.String(), "func "+name+"(t *testing.T)", "%s has no test of this name", folder[1])
			}
		}
	}
	require.GreaterOrEqual(t, promises, 25)
}
