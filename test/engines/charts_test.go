package engines_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
)

type object = map[string]any

// charted are the kinds whose charts stand beside their definitions.
var charted = []string{"postgres", "clickhouse", "gallery"}

// render renders a kind's chart with the real helm. set are arguments of --set: what Flux puts into the values from a
// HelmRelease's valuesFrom, which reads them in the same way.
func render(ctx context.Context, folder, kind, release string, values any, set ...string) ([]object, error) {
	helm, err := filepath.Abs("../../bin/helm")
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(helm); err != nil {
		return nil, fmt.Errorf("%w: run \"make tools\"", err)
	}
	chart := filepath.Join(folder, kind)
	if _, err := os.Stat(chart); errors.Is(err, os.ErrNotExist) {
		if err := os.CopyFS(chart, os.DirFS(kinds+kind+"/chart")); err != nil {
			return nil, err
		}
		library := filepath.Join(chart, "charts", "mintlog-credentials") // as "helm dependency build" lays it
		if err := os.CopyFS(library, os.DirFS("../../deploy/helm/mintlog-credentials")); err != nil {
			return nil, err
		}
	}
	text, err := yaml.Marshal(values)
	if err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, helm, "template", release, chart, "--values=-")
	for _, argument := range set {
		command.Args = append(command.Args, "--set", argument)
	}
	command.Env = append(os.Environ(), "HELM_CACHE_HOME="+folder, "HELM_CONFIG_HOME="+folder, "HELM_DATA_HOME="+folder)
	command.Stdin = bytes.NewReader(text)
	var complaint strings.Builder
	command.Stderr = &complaint
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("helm: %w: %s", err, strings.TrimSpace(complaint.String()))
	}
	return documents(out)
}

// documents are the objects of a manifest.
func documents(manifest []byte) ([]object, error) {
	var all []object
	for decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096); ; {
		var o object
		if err := decoder.Decode(&o); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		if len(o) > 0 {
			all = append(all, o)
		}
	}
}

// one is the only object of a kind.
func one(objects []object, kind string) (object, error) {
	var found object
	for _, o := range objects {
		if o["kind"] != kind {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("there is more than one %s", kind)
		}
		found = o
	}
	if found == nil {
		return nil, fmt.Errorf("there is no %s", kind)
	}
	return found, nil
}

// exampleValues have an account in every chart.
var exampleValues = object{
	"users":    object{"app": object{}, "report-reader": object{"bypassrls": true, "readonly": true}},
	"visitors": []any{object{"name": "app"}, object{"name": "Curator"}},
}

// aHash is of the empty password, which no account has.
const aHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

var exampleHashes = []string{"passwordHashes.app=" + aHash, "passwordHashes.report-reader=" + aHash}

func TestAChartNeitherLooksUpNorMakesAPasswordAndMakesNoSecret(t *testing.T) {
	forbidden := regexp.MustCompile(`(?i)\b(lookup|rand\w*|genPrivateKey|htpasswd|bcrypt|derivePassword|uuidv4|encryptAES)\b`)
	for _, kind := range charted {
		files, err := filepath.Glob(kinds + kind + "/chart/templates/*")
		require.NoError(t, err)
		require.NotEmpty(t, files, kind)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, action := range regexp.MustCompile(`(?s)\{\{.*?\}\}`).FindAllString(string(text), -1) {
				assert.NotRegexp(t, forbidden, action, file)
			}
		}
		objects, err := render(t.Context(), t.TempDir(), kind, kind+"-shop", exampleValues, exampleHashes...)
		require.NoError(t, err, kind)
		again, err := render(t.Context(), t.TempDir(), kind, kind+"-shop", exampleValues, exampleHashes...)
		require.NoError(t, err, kind)
		assert.Equal(t, objects, again, "%s renders something else each time", kind)
		for _, o := range objects {
			assert.NotEqual(t, "Secret", o["kind"], kind)
		}
	}
}

func TestAChartGrantsNobodyAnything(t *testing.T) {
	for _, kind := range charted {
		objects, err := render(t.Context(), t.TempDir(), kind, kind+"-shop", exampleValues, exampleHashes...)
		require.NoError(t, err)
		for _, o := range objects {
			assert.NotContains(t, []string{"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "ServiceAccount"}, o["kind"], kind)
			assert.NotContains(t, fmt.Sprint(o["apiVersion"]), "rbac", kind)
		}
	}
}

func TestNoObjectOfAChartHoldsAPassword(t *testing.T) {
	known := map[string]string{
		"clickhouse": "password_sha256_hex", // the verifier, which its operator takes nowhere else
	}
	for _, kind := range charted {
		objects, err := render(t.Context(), t.TempDir(), kind, kind+"-shop", exampleValues, exampleHashes...)
		require.NoError(t, err)
		for path, value := range leaves(objects, "") {
			last := path[strings.LastIndexAny(path, "./")+1:]
			if strings.Contains(strings.ToLower(last), "password") {
				assert.Equal(t, known[kind], last, "%s: %s", kind, path)
			}
			if kind != "clickhouse" {
				assert.NotContains(t, value, aHash, "%s: %s", kind, path)
			}
		}
	}
}

// leaves are the values that are neither lists nor objects, by their paths.
func leaves(value any, path string) map[string]string {
	all := map[string]string{}
	switch v := value.(type) {
	case []object:
		for i, o := range v {
			for p, leaf := range leaves(o, fmt.Sprintf("%d", i)) {
				all[p] = leaf
			}
		}
	case object:
		for key, inner := range v {
			for p, leaf := range leaves(inner, path+"."+key) {
				all[p] = leaf
			}
		}
	case []any:
		for i, inner := range v {
			for p, leaf := range leaves(inner, fmt.Sprintf("%s.%d", path, i)) {
				all[p] = leaf
			}
		}
	default:
		all[path] = fmt.Sprint(v)
	}
	return all
}

// Kubernetes reads "$$" in a container's environment as "$", and "$(NAME)" as another variable.
func TestWhatAChartPutsIntoAnEnvironmentIsLeftAsItIs(t *testing.T) {
	objects, err := render(t.Context(), t.TempDir(), "postgres", "postgres-shop", exampleValues)
	require.NoError(t, err)
	found := 0
	for path, value := range leaves(objects, "") {
		if strings.Contains(path, ".env.") && strings.HasSuffix(path, ".value") {
			assert.NotContains(t, value, "$$", path)
			assert.NotContains(t, value, "$(", path)
			found++
		}
	}
	require.NotZero(t, found)
}

func TestAUserOfClickHouseWithoutAHashFailsTheRenderingAndNothingChanges(t *testing.T) {
	for name, set := range map[string][]string{
		"none":              exampleHashes[:1],
		"a hash too short":  {exampleHashes[0], "passwordHashes.report-reader=" + aHash[1:]},
		"upper case":        {exampleHashes[0], "passwordHashes.report-reader=" + strings.ToUpper(aHash)},
		"a number":          {exampleHashes[0], "passwordHashes.report-reader=7"},
		"no hash of a user": {},
	} {
		_, err := render(t.Context(), t.TempDir(), "clickhouse", "clickhouse-shop", exampleValues, set...)
		require.ErrorContains(t, err, "has no password hash", name)
	}
}

func TestAUserWhoseNameAnEngineReadsOtherwiseFailsTheRendering(t *testing.T) {
	for _, name := range []string{"a b", "a$$b", "a'b", "$(PGPASSWORD)", "a\nb"} {
		_, err := render(t.Context(), t.TempDir(), "postgres", "postgres-shop", object{"users": object{name: object{}}})
		require.ErrorContains(t, err, "has characters other than", "%q", name)
	}
	for _, name := range []string{"Report.Reader", "a/b", "1a", "a b"} {
		_, err := render(t.Context(), t.TempDir(), "clickhouse", "clickhouse-shop", object{"users": object{name: object{}}})
		require.ErrorContains(t, err, "cannot be a user's name in ClickHouse's files", "%q", name)
	}
}
