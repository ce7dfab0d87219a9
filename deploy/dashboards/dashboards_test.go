package dashboards_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

type panel struct {
	Type        string `json:"type"`
	Title       string `json:"title"`
	Description string `json:"description"`
	Datasource  struct {
		Type string `json:"type"`
		UID  string `json:"uid"`
	} `json:"datasource"`
	GridPos     struct{ X, Y, W, H int } `json:"gridPos"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
	Targets []struct {
		Expr  string `json:"expr"`
		RefID string `json:"refId"`
	} `json:"targets"`
}

type board struct {
	UID         string `json:"uid"`
	Title       string `json:"title"`
	Description string `json:"description"`
	Panels      []panel
	Templating  struct {
		List []struct{ Name, Type string } `json:"list"`
	} `json:"templating"`
}

func boards(t *testing.T) map[string]board {
	t.Helper()
	files, err := filepath.Glob("mintlog/*.json")
	require.NoError(t, err)
	require.Len(t, files, 2)
	all := map[string]board{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var b board
		require.NoError(t, json.Unmarshal(text, &b))
		all[file] = b
	}
	return all
}

func TestTheDashboardsAreWhatTheGeneratorWrites(t *testing.T) {
	sources, err := filepath.Glob("generator/*")
	require.NoError(t, err)
	for _, source := range sources { // has go test see them, so that a result is not taken from its cache
		_, err := os.ReadFile(source)
		require.NoError(t, err)
	}
	fresh := t.TempDir()
	out, err := exec.Command("go", "-C", "generator", "run", ".", fresh).CombinedOutput()
	require.NoError(t, err, string(out))
	for file := range boards(t) {
		want, err := os.ReadFile(filepath.Join(fresh, filepath.Base(file)))
		require.NoError(t, err)
		is, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.Equal(t, string(want), string(is), "%s: run make generate", file)
	}
}

func TestEachPanelSaysWhatItShowsAndInWhichUnit(t *testing.T) {
	for file, b := range boards(t) {
		assert.NotEmpty(t, b.Description, file)
		variables := map[string]bool{}
		for _, v := range b.Templating.List {
			variables["${"+v.Name+"}"] = v.Type == "datasource"
		}
		taken := map[[2]int]string{}
		for _, p := range b.Panels {
			for x := range p.GridPos.W {
				for y := range p.GridPos.H {
					at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
					assert.Empty(t, taken[at], "%s: %s lies over another panel", file, p.Title)
					assert.Less(t, at[0], 24, "%s: %s", file, p.Title)
					taken[at] = p.Title
				}
			}
			assert.NotEmpty(t, p.Title, file)
			if p.Type == "row" {
				continue
			}
			assert.NotEmpty(t, p.Description, "%s: %s", file, p.Title)
			if p.Type == "text" {
				continue
			}
			assert.NotEmpty(t, p.Targets, "%s: %s", file, p.Title)
			assert.True(t, variables[p.Datasource.UID], "%s: %s asks %q, which is no variable of a data source", file, p.Title, p.Datasource.UID)
			if p.Type == "stat" || p.Type == "timeseries" || p.Type == "heatmap" {
				assert.NotEmpty(t, p.FieldConfig.Defaults.Unit, "%s: %s", file, p.Title)
			}
		}
	}
}

func TestEachQueryIsPromQLOverMetricsOfTheCatalogueAndShowsNoName(t *testing.T) {
	catalogue, err := os.ReadFile(filepath.Join("..", "..", "docs", "metrics.md"))
	require.NoError(t, err)
	promtool, err := filepath.Abs(filepath.Join("..", "..", "bin", "promtool"))
	require.NoError(t, err)
	_, err = os.Stat(promtool)
	require.NoError(t, err, "run make tools")
	metric, histogram := regexp.MustCompile(`mintlog_[a-z_]+`), regexp.MustCompile(`_(bucket|sum|count)$`)
	type recording struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var rules []recording
	for file, b := range boards(t) {
		for _, p := range b.Panels {
			for _, target := range p.Targets {
				if p.Datasource.Type != "prometheus" {
					assert.Equal(t, "logs", p.Type)
					continue
				}
				expr := strings.NewReplacer("$__rate_interval", "5m", "$namespace", "x").Replace(target.Expr)
				assert.NotContains(t, expr, "$", "%s: %s", file, p.Title)
				rules = append(rules, recording{"panel", expr})
				names := metric.FindAllString(expr, -1)
				assert.NotEmpty(t, names, "%s: %s", file, p.Title)
				for _, name := range names {
					if !strings.Contains(string(catalogue), "`"+name+"`") {
						name = histogram.ReplaceAllString(name, "")
					}
					assert.Contains(t, string(catalogue), "`"+name+"`", "%s: %s", file, p.Title)
				}
			}
		}
	}
	require.Greater(t, len(rules), 40)
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "panels", "rules": rules}}})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "panels.yaml")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	out, err := exec.Command(promtool, "check", "rules", "--lint=none", path).CombinedOutput()
	require.NoError(t, err, string(out))
}
