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

// namedTests are a folder and the tests of it that a text names behind it.
var namedTests = regexp.MustCompile("`((?:[a-z0-9-]+/)*[a-z0-9-]+)` ((?:(?:, )?Test[A-Z]\\w+)+)")

func TestEachTestThatAPageNamesIsThere(t *testing.T) {
	named := 0
	for page, text := range pages(t) {
		for _, found := range namedTests.FindAllStringSubmatch(text, -1) {
			files, err := filepath.Glob(filepath.Join(cluster.Root(), found[1], "*_test.go"))
			require.NoError(t, err)
			var source strings.Builder
			for _, file := range files {
				content, err := os.ReadFile(file)
				require.NoError(t, err)
				source.Write(content)
			}
			for _, name := range strings.Split(found[2], ", ") {
				named++
				assert.True(t, strings.Contains(source.String(), "func "+name+"(t *testing.T)"), "%s: %s has no test %s", page, found[1], name)
			}
		}
		assert.Empty(t, regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(namedTests.ReplaceAllString(text, ""), -1), "%s names tests without their folder", page)
	}
	require.GreaterOrEqual(t, named, 50)
}

func TestEachPromiseIsHeldByATest(t *testing.T) {
	text := pages(t)[filepath.Join("docs", "reviewers.md")]
	_, table, found := strings.Cut(text, "| promise | tests |\n|---|---|\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")
	require.GreaterOrEqual(t, len(rows), 25)
	for _, row := range rows {
		assert.Regexp(t, namedTests, row)
	}
}
