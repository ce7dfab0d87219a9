package chart

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

func TestTheAlertRulesAreThoseOfTheFolderButForTheAgeOfPasswords(t *testing.T) {
	values := shapes(t)["large"]
	assert.NotContains(t, string(render(t, "--values", values)), "PrometheusRule", "nobody asked for it")
	rendered := render(t, "--values", values, "--set", "alerts.enabled=true,alerts.passwordAgeDays=30,alerts.labels.team=platform", "--show-only", "templates/alerts.yaml")
	var resource struct {
		Kind     string
		Metadata struct{ Labels map[string]string }
		Spec     any
	}
	require.NoError(t, yaml.Unmarshal(rendered, &resource))
	assert.Equal(t, "PrometheusRule", resource.Kind)
	assert.Equal(t, "platform", resource.Metadata.Labels["team"])
	text, err := os.ReadFile(filepath.Join(cluster.Root(), "deploy", "alerts", "mintlog.yaml"))
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), "> 31536000"), "what the chart puts another age in the place of")
	var want any
	require.NoError(t, yaml.Unmarshal([]byte(strings.Replace(string(text), "> 31536000", "> 2592000", 1)), &want))
	assert.Equal(t, want, resource.Spec)
}
