package alerts_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const (
	rulesFile = "mintlog.yaml"
	runbook   = "https://github.com/mintlog/mintlog/blob/main/docs/alerts.md#"
)

type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func rules(t *testing.T) []rule {
	t.Helper()
	text, err := os.ReadFile(rulesFile)
	require.NoError(t, err)
	var file struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []rule `json:"rules"`
		} `json:"groups"`
	}
	require.NoError(t, yaml.UnmarshalStrict(text, &file))
	var all []rule
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	require.NotEmpty(t, all)
	return all
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	require.NoError(t, err)
	return string(text)
}

// promtool runs bin/promtool and returns what it prints.
func promtool(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	path := filepath.Join("..", "..", "bin", "promtool")
	_, err := os.Stat(path)
	require.NoError(t, err, "run make tools")
	out, err := exec.Command(path, arguments...).CombinedOutput()
	return string(out), err
}

func TestPromtoolTakesTheRules(t *testing.T) {
	out, err := promtool(t, "check", "rules", "--lint=all", "--lint-fatal", rulesFile)
	require.NoError(t, err, out)
}

func TestEachAlertRingsWhenItMustAndNotWhenItMustNot(t *testing.T) {
	files, err := filepath.Glob("tests/*.yaml")
	require.NoError(t, err)
	var tested, alerts []string
	for _, file := range files {
		tested = append(tested, strings.TrimSuffix(filepath.Base(file), ".yaml"))
	}
	for _, r := range rules(t) {
		alerts = append(alerts, r.Alert)
		if !slices.Contains(tested, r.Alert) {
			continue
		}
		file := filepath.Join("tests", r.Alert+".yaml")
		text := read(t, file)
		assert.Contains(t, text, "exp_alerts: []", "%s never tests silence", file)
		assert.Contains(t, text, "exp_labels:", "%s never tests that it rings", file)
		out, err := promtool(t, "test", "rules", file)
		assert.NoError(t, err, out)
	}
	assert.ElementsMatch(t, alerts, tested, "one file of tests for each alert")
}

func TestEachAlertSaysHowBadItIsWhatHappenedAndWhatToDo(t *testing.T) {
	page := read(t, "..", "..", "docs", "alerts.md")
	headings := regexp.MustCompile(`(?m)^## (\S+)$`).FindAllStringSubmatch(page, -1)
	var described, alerts []string
	for _, h := range headings {
		described = append(described, h[1])
	}
	for _, r := range rules(t) {
		alerts = append(alerts, r.Alert)
		assert.Contains(t, []string{"critical", "warning", "info"}, r.Labels["severity"], r.Alert)
		assert.NotEmpty(t, r.Annotations["summary"], r.Alert)
		assert.NotEmpty(t, r.Annotations["description"], r.Alert)
		assert.Equal(t, runbook+strings.ToLower(r.Alert), r.Annotations["runbook_url"])
		assert.Contains(t, page, "## "+r.Alert+"\n\n*"+r.Labels["severity"]+".*", "its severity")
	}
	assert.Equal(t, alerts, described, "docs/alerts.md has a section for each alert, in the order of the rules")
}

func TestEachMetricOfAnAlertIsInTheCatalogue(t *testing.T) {
	catalogue := read(t, "..", "..", "docs", "metrics.md")
	name := regexp.MustCompile(`mintlog_[a-z_]+`)
	histogram := regexp.MustCompile(`_(bucket|sum|count)$`)
	for _, r := range rules(t) {
		for _, metric := range name.FindAllString(r.Expr, -1) {
			if !strings.Contains(catalogue, "`"+metric+"`") {
				metric = histogram.ReplaceAllString(metric, "")
			}
			assert.Contains(t, catalogue, "`"+metric+"`", r.Alert)
		}
	}
}
