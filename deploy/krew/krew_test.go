// Package krew holds the manifest of the kubectl plugin for Krew to Krew's rules.
package krew

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strings"
	"testing"
	"text/template"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const tag = "v1.2.3"

// A plugin is what Krew reads of a manifest. It refuses fields that it does not know.
type plugin struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string     `json:"version"`
		Homepage         string     `json:"homepage"`
		ShortDescription string     `json:"shortDescription"`
		Description      string     `json:"description"`
		Caveats          string     `json:"caveats"`
		Platforms        []platform `json:"platforms"`
	} `json:"spec"`
}

type platform struct {
	URI      string                `json:"uri"`
	Sha256   string                `json:"sha256"`
	Selector *metav1.LabelSelector `json:"selector"`
	Bin      string                `json:"bin"`
	Files    []struct {
		From string `json:"from"`
		To   string `json:"to"`
	} `json:"files"`
}

// released is the manifest as krew-release-bot fills it in.
func released(t *testing.T) plugin {
	text, err := os.ReadFile("credentials.yaml.tmpl")
	require.NoError(t, err)
	type release struct{ TagName string }
	manifest, err := template.New("").Funcs(template.FuncMap{"addURIAndSha": func(address, tag string) (string, error) {
		inner, err := template.New("").Parse(address)
		if err != nil {
			return "", err
		}
		var filled strings.Builder
		err = inner.Execute(&filled, release{tag})
		return fmt.Sprintf("uri: %s\n      sha256: %s", &filled, strings.Repeat("0a", 32)), err
	}}).Parse(string(text))
	require.NoError(t, err)
	var filled bytes.Buffer
	require.NoError(t, manifest.Execute(&filled, release{tag}))
	var p plugin
	require.NoError(t, yaml.UnmarshalStrict(filled.Bytes(), &p), filled.String())
	return p
}

func TestTheManifestIsOneThatKrewTakes(t *testing.T) {
	p := released(t)
	assert.Equal(t, "krew.googlecontainertools.github.com/v1alpha2", p.APIVersion)
	assert.Equal(t, "Plugin", p.Kind)
	assert.Regexp(t, `^[a-z]+(-[a-z]+)*$`, p.Metadata.Name)
	assert.NotContains(t, p.Metadata.Name, "kube", "Krew's naming guide")
	assert.Equal(t, tag, p.Spec.Version)
	assert.Regexp(t, `^v\d+\.\d+\.\d+$`, p.Spec.Version)
	assert.NotEmpty(t, p.Spec.Description)
	assert.NotEmpty(t, p.Spec.ShortDescription)
	assert.LessOrEqual(t, len(p.Spec.ShortDescription), 50)
	assert.NotContains(t, p.Spec.ShortDescription, "\n")
	assert.NotRegexp(t, `\.$|[Kk]ubectl`, p.Spec.ShortDescription, "Krew's review")
	_, err := url.ParseRequestURI(p.Spec.Homepage)
	require.NoError(t, err)
	require.NotEmpty(t, p.Spec.Platforms)
}

func TestEachPlatformOfTheManifestIsDistinctAndHasItsProgramAndLicense(t *testing.T) {
	seen := map[string]bool{}
	for _, platform := range released(t).Spec.Platforms {
		operatingSystem, architecture := platform.Selector.MatchLabels["os"], platform.Selector.MatchLabels["arch"]
		here := operatingSystem + "_" + architecture
		assert.False(t, seen[here], here)
		seen[here] = true
		assert.Contains(t, known(t), operatingSystem+"/"+architecture)
		assert.Len(t, platform.Selector.MatchLabels, 2)
		assert.Empty(t, platform.Selector.MatchExpressions)
		assert.Regexp(t, regexp.MustCompile(`^https://github\.com/mintlog/mintlog/releases/download/`+tag+`/kubectl-credentials_`+here+`\.tar\.gz$`), platform.URI)
		assert.Regexp(t, `^[0-9a-f]{64}$`, platform.Sha256)
		assert.Equal(t, "kubectl-credentials", path.Clean(platform.Bin))
		var files []string
		for _, file := range platform.Files {
			files = append(files, file.From)
			assert.Equal(t, ".", file.To)
		}
		assert.Equal(t, []string{"kubectl-credentials", "LICENSE"}, files)
	}
}

// known are the platforms that Go builds for.
func known(t *testing.T) []string {
	out, err := exec.Command("go", "tool", "dist", "list").Output()
	require.NoError(t, err)
	return strings.Fields(string(out))
}
