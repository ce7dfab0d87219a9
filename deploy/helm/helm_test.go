// Package helm_test holds the template helper and mintlog together: both name the same Secrets.
package helm_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/mintlog/mintlog/mint/definition"
)

// named is an account of a release.
type named struct {
	Release string `json:"release"`
	Name    string `json:"name"`
}

// render renders one chart over the names with the real helm.
func render(t *testing.T, template string, names []named) (string, error) {
	t.Helper()
	helm, err := filepath.Abs("../../bin/helm")
	require.NoError(t, err)
	require.FileExists(t, helm, `run "make tools"`)
	chart := t.TempDir()
	write := func(name string, content []byte) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(chart, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(chart, name), content, 0o600))
	}
	write("Chart.yaml", []byte("apiVersion: v2\nname: kind\nversion: 1.0.0\n"))
	write("templates/names.yaml", []byte(template))
	values, err := json.Marshal(map[string]any{"names": names})
	require.NoError(t, err)
	write("values.yaml", values)
	require.NoError(t, os.CopyFS(filepath.Join(chart, "charts", "mintlog-credentials"), os.DirFS("mintlog-credentials")))
	command := exec.CommandContext(t.Context(), helm, "template", "orders", chart)
	command.Env = append(os.Environ(), "HELM_CACHE_HOME="+chart, "HELM_CONFIG_HOME="+chart, "HELM_DATA_HOME="+chart)
	out, err := command.CombinedOutput()
	return string(out), err
}

// secretName is what mintlog makes of a name.
func (n named) secretName() (string, error) {
	segment, err := definition.Segment(n.Name)
	if err != nil {
		return "", err
	}
	return definition.SecretName(n.Release, segment)
}

// awkward are the names that were thought of.
var awkward = []string{
	"app", "Bob.Smith", "bob-smith", "REPORT_reader", "a", "0", "-", "--", "-a-", "a--b", ".", "..", "...", "a.", "", " ", "\t\n", "a\nb",
	"İstanbul", "ı", "Kelvin", "Ångström", "ſ", "ß", "ẞ", "ﬁ", "Ω", "Ωmega", "ς", "Σ", "ǅ", "Ａpp", "ａpp", "日本語", "é", "é", "naïve",
	"a\u00adb", "a\u200db", "\ufeffapp", "a\u0000b", "👩‍💻", "🏳️‍🌈app", "\u202eapp", "ÄÖÜ", "\U0001d400", "\U00010400",
	"{{ fail }}", "{{ .Values }}", "$a", "${1}", `\1`, `a\b`, `"a"`, "'a'", "a,b", "a=b", "a[0]", "a/b", "a:b", "#a", "*", "&a", "!a", "null", "true", "~", "1e9",
	"0x1F", "007", "a|b", "- a", "a: b", "<a>", "%s", "%!d(string=a)",
	strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("A", 253), strings.Repeat("é", 63), strings.Repeat("é", 64) + "a",
	strings.Repeat("-", 200) + "a", "a" + strings.Repeat(".", 200), "a" + strings.Repeat("-", 62) + "b", strings.Repeat("K", 63), strings.Repeat("K", 64),
	strings.Repeat("a.", 126) + "a", strings.Repeat("a", 43), strings.Repeat("a", 44), // the longest beside the longest release, and one more
}

// invented are count names made by chance, of every kind of character, up to 253 long.
func invented(count int) []string {
	random := rand.New(rand.NewPCG(1, 2))
	alphabets := [][]rune{
		[]rune("abcXYZ019-._"), []rune("aB-"), []rune("KİıſßÅÉéñ日Ως"), []rune("\x00\t\n \"'\\{}[]$,=#&*!|>%@`~"),
	}
	names := make([]string, count)
	for i := range names {
		length := 1 + random.IntN(20)
		if random.IntN(8) == 0 {
			length = 1 + random.IntN(253)
		}
		alphabet := alphabets[random.IntN(len(alphabets))]
		name := make([]rune, length)
		for j := range name {
			name[j] = alphabet[random.IntN(len(alphabet))]
			if random.IntN(16) == 0 { // any character there is; of a surrogate, the one that stands for it
				name[j] = []rune(string(rune(random.IntN(0x110000))))[0]
			}
		}
		names[i] = string(name)
	}
	return names
}

const count = 10_000

func TestTheChartNamesTheSecretOfEveryAccountAsMintlogDoesAndRefusesTheSame(t *testing.T) {
	var names []named
	for _, release := range []string{"orders", "a.b", strings.Repeat("r", 53), strings.Repeat("r", 64), strings.Repeat("r.", 100) + "r", "Orders", "-orders", ""} {
		for _, name := range awkward {
			names = append(names, named{release, name})
		}
	}
	for _, name := range invented(count - len(names)) {
		names = append(names, named{"postgres-orders", name})
	}
	require.Len(t, names, count)

	out, err := render(t, `apiVersion: v1
kind: ConfigMap
metadata: {name: names}
data:
{{- range $i, $n := .Values.names }}
  {{- $arguments := list $n.release $n.name }}
  {{ $i | quote }}: {{ if include "credentials.problem" $arguments }}refused{{ else }}{{ include "credentials.secretName" $arguments | quote }}{{ end }}
{{- end }}
`, names)
	require.NoError(t, err, "%.2000s", out)
	var rendered corev1.ConfigMap
	require.NoError(t, yaml.UnmarshalStrict([]byte(out), &rendered))
	require.Len(t, rendered.Data, count)
	refused := 0
	for i, n := range names {
		want, err := n.secretName()
		if err != nil {
			want = "refused"
			refused++
		}
		assert.Equal(t, want, rendered.Data[fmt.Sprint(i)], "%+q", n)
	}
	assert.Greater(t, refused, 500, "names that are refused")
	assert.Greater(t, count-refused, 5000, "names that are not")
}

func TestANameThatMintlogRefusesFailsTheRendering(t *testing.T) {
	const template = `{{ range .Values.names }}{{ include "credentials.secretName" (list .release .name) }}{{ end }}`
	for _, refused := range []named{{"orders", "..."}, {"orders", strings.Repeat("a", 64)}, {strings.Repeat("r", 64), "app"}} {
		out, err := render(t, template, []named{refused})
		require.Error(t, err, "%+v", refused)
		assert.Contains(t, out, "can have no Secret: its ")
	}
}
