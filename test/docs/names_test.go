package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/mint/format"
)

// pages are the texts of all documents by their paths from the top folder.
func pages(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(cluster.Root(), "docs", "*.md"))
	require.NoError(t, err)
	require.NotEmpty(t, names)
	all := map[string]string{}
	for _, name := range append(names, filepath.Join(cluster.Root(), "README.md")) {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		path, err := filepath.Rel(cluster.Root(), name)
		require.NoError(t, err)
		all[path] = string(text)
	}
	return all
}

var (
	// commandLine is a command of ours with its arguments, at the beginning of a line or of a span of code, or in a pipe.
	commandLine = regexp.MustCompile("(?:^|[`(]|\\| )(mintlog|kubectl credentials)((?: [^`|>\\n]*)?)")
	// flagName is a flag as it is given on a command line.
	flagName = regexp.MustCompile("(?:^|[ `(])--([a-z][a-z0-9-]*)")
	// theirs are flags of others' commands that the pages show.
	theirs = regexp.MustCompile(`^(audit-(log|policy|webhook)-.*|requestheader-.*|` + // kube-apiserver's
		`namespace|filename|create-namespace|values|for|timeout|type|patch-file|raw|minify|flatten|output|subresource|as|as-group|list|selector|field-selector|all-namespaces|` + // kubectl's and helm's
		`bound-object-(kind|name)|duration|set|from-file|` +
		`config|retain|name|tag|image|` + // kind's and docker's
		`data-urlencode|bump-revision|mark-compacted|data-dir|initial-cluster|initial-advertise-peer-urls)$`)
)

// helps are what each command of ours says of itself, by its words.
func helps(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	var ask func(binary, words string, arguments []string)
	ask = func(binary, words string, arguments []string) {
		out, err := exec.CommandContext(t.Context(), filepath.Join(cluster.Root(), "bin", binary), append(arguments, "--help")...).CombinedOutput()
		require.NoError(t, err, "%s: %s", words, out)
		all[words] = string(out)
		_, commands, _ := strings.Cut(string(out), "Available Commands:\n")
		commands, _, _ = strings.Cut(commands, "\n\n")
		for line := range strings.Lines(commands) {
			if fields := strings.Fields(line); len(fields) > 0 && fields[0] != "help" && fields[0] != "completion" {
				ask(binary, words+" "+fields[0], append(slices.Clone(arguments), fields[0]))
			}
		}
	}
	ask("mintlog", "mintlog", nil)
	ask("kubectl-credentials", "kubectl credentials", nil)
	return all
}

func TestEachCommandAndFlagThatAPageNamesIsThere(t *testing.T) {
	known := helps(t)
	ours := strings.Join(slices.Collect(maps.Values(known)), "\n")
	has := func(help, flag string) bool {
		return regexp.MustCompile(`--` + regexp.QuoteMeta(flag) + `\b[^-]`).MatchString(help)
	}
	commands := 0
	for page, text := range pages(t) {
		text = strings.ReplaceAll(text, "\\\n", " ")
		for _, found := range flagName.FindAllStringSubmatch(text, -1) {
			assert.True(t, has(ours, found[1]) || theirs.MatchString(found[1]), "%s: nothing has --%s", page, found[1])
		}
		for line := range strings.Lines(text) {
			for _, found := range commandLine.FindAllStringSubmatch(strings.TrimPrefix(strings.TrimSpace(line), "$ "), -1) {
				command, rest := found[1], strings.Fields(found[2])
				for len(rest) > 0 && known[command+" "+rest[0]] != "" {
					command, rest = command+" "+rest[0], rest[1:]
				}
				for _, flag := range flagName.FindAllStringSubmatch(strings.Join(rest, " "), -1) {
					commands++
					assert.True(t, has(known[command], flag[1]), "%s: %s has no --%s", page, command, flag[1])
				}
			}
		}
	}
	require.Greater(t, commands, 20)
}

func TestEachValueOfTheChartThatAPageNamesIsThere(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(cluster.Root(), "deploy", "chart", "mintlog", "values.yaml"))
	require.NoError(t, err)
	var values map[string]any
	require.NoError(t, yaml.Unmarshal(text, &values))
	named := 0
	for page, text := range pages(t) {
		for _, found := range regexp.MustCompile("`([a-z][a-zA-Z]*(?:\\.[a-zA-Z]+)+)(?:: [^`]*)?`").FindAllStringSubmatch(text, -1) {
			path := strings.Split(found[1], ".")
			if values[path[0]] == nil || path[len(path)-1] == "json" {
				continue // something else with dots
			}
			named++
			var at any = values
			for _, key := range path {
				in, ok := at.(map[string]any)
				require.True(t, ok, "%s: %s", page, found[1])
				at, ok = in[key]
				assert.True(t, ok, "%s: the chart has no value %s", page, found[1])
			}
		}
	}
	require.Greater(t, named, 8)
}

func TestEachMetricThatAPageNamesIsInTheCatalogue(t *testing.T) {
	all := pages(t)
	catalogue := all[filepath.Join("docs", "metrics.md")]
	for page, text := range all {
		for _, name := range regexp.MustCompile(`\bmintlog_[a-z]+_[a-z_]+[a-z]\b`).FindAllString(text, -1) {
			name = strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count")
			assert.True(t, strings.Contains(catalogue, "`"+name+"`"), "%s names %s", page, name)
		}
	}
}

// constants are the texts of a package's constants whose names begin with one of the prefixes.
func constants(t *testing.T, folder string, prefixes ...string) []string {
	t.Helper()
	var texts []string
	files, err := filepath.Glob(filepath.Join(cluster.Root(), folder, "*.go"))
	require.NoError(t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 || !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(spec.Names[0].Name, p) }) {
				return true
			}
			if literal, ok := spec.Values[0].(*ast.BasicLit); ok && literal.Kind == token.STRING {
				text, err := strconv.Unquote(literal.Value)
				require.NoError(t, err)
				texts = append(texts, text)
			}
			return true
		})
	}
	return texts
}

// What a reader may meet stands, with its name, at the beginning of a table's row or of a list's item on the page that is
// for him.
func TestWhateverAReaderMayMeetHasItsPlaceOnHisPage(t *testing.T) {
	all := pages(t)
	f := func(page string, atLeast int, names ...string) {
		t.Helper()
		require.GreaterOrEqual(t, len(names), atLeast, "%v", names)
		for _, name := range names {
			place := regexp.MustCompile(`(?m)^(\||- )[^|:]*\b` + regexp.QuoteMeta(name) + `\b`)
			assert.True(t, place.MatchString(all[filepath.Join("docs", page)]), "%s does not say what %s is", page, name)
		}
	}
	f("tenants.md", 9, constants(t, "store/history", "Finding")...)
	f("alerts.md", 9, constants(t, "store/history", "Finding")...)
	f("tenants.md", 11, constants(t, "mint/api/v1alpha1", "Attribution", "Origin", "Response")...)
	f("operators.md", 8, constants(t, "mint/accounts", "reason")...)
	f("kinds.md", 5, definition.ValuesMap, definition.ValuesList, definition.Static, definition.Expression, definition.Webhook)
	f("kinds.md", 6, format.Names()...)
}
