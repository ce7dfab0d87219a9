package chart

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write generated files in deploy/ anew")

// manifest is a file of deploy/ that holds one document.
func manifest(t *testing.T, names ...string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{cluster.Root(), "deploy"}, names...)...))
	require.NoError(t, err)
	var o map[string]any
	require.NoError(t, yaml.UnmarshalStrict(text, &o))
	return o
}

func nested(t *testing.T, o map[string]any, fields ...string) any {
	t.Helper()
	value, ok, err := unstructured.NestedFieldNoCopy(o, fields...)
	require.NoError(t, err)
	require.True(t, ok, "%v", fields)
	return value
}

func TestTheAuditPolicyIsTheSameForTalos(t *testing.T) {
	policy := manifest(t, "audit", "policy.yaml")
	for _, file := range []string{"talos-file.yaml", "talos-webhook.yaml"} {
		require.Equal(t, policy, nested(t, manifest(t, "audit", file), "cluster", "apiServer", "auditPolicy"), file)
	}
}

func TestKubeAPIServerHasTheFlagsThatWeTellItTo(t *testing.T) {
	help, err := run(t, nil, "kube-apiserver", "--help")
	require.NoError(t, err)
	var flags []string
	for _, file := range []string{"kube-apiserver-file.yaml", "kube-apiserver-webhook.yaml"} {
		for _, argument := range nested(t, manifest(t, "audit", file), "apiServer", "extraArgs").([]any) {
			flags = append(flags, argument.(map[string]any)["name"].(string))
		}
	}
	for name := range nested(t, manifest(t, "audit", "talos-webhook.yaml"), "cluster", "apiServer", "extraArgs").(map[string]any) {
		flags = append(flags, name)
	}
	require.GreaterOrEqual(t, len(flags), 12)
	for _, name := range flags {
		require.True(t, strings.Contains(help, "--"+name+" "), name)
	}
}

// The patch adds spec.credentials to the ApplicationDefinition CRD that Cozystack brings.
func TestThePatchGivesCozystacksDefinitionTheBlock(t *testing.T) {
	crd := manifest(t, "crds", "applicationdefinitions.yaml")
	version := nested(t, crd, "spec", "versions").([]any)[0].(map[string]any)
	properties := nested(t, version, "schema", "openAPIV3Schema", "properties", "spec", "properties").(map[string]any)
	patch, err := json.MarshalIndent([]map[string]any{
		{"op": "test", "path": "/spec/versions/0/name", "value": version["name"]},
		{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/credentials", "value": properties["credentials"]},
	}, "", "  ")
	require.NoError(t, err)
	file := filepath.Join(cluster.Root(), "deploy", "crds", "applicationdefinitions.patch.json")
	if *update {
		require.NoError(t, os.WriteFile(file, append(patch, '\n'), 0o600))
	}
	written, err := os.ReadFile(file)
	require.NoError(t, err)
	require.JSONEq(t, string(patch), string(written), "write it anew: go test ./test/chart -run ThePatch -update")

	// Cozystack's CRD, as far as it matters: without the property.
	const name = "applicationdefinitions.cozystack.io"
	credentials := properties["credentials"]
	delete(properties, "credentials")
	without, err := json.Marshal(crd)
	require.NoError(t, err)
	properties["credentials"] = credentials
	must(t, admin, "put", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+name, withVersion(t, name, without))
	out, err := run(t, nil, "kubectl", "--kubeconfig", cluster.Kubeconfig(admin, 0), "patch", "crd", name, "--type", "json", "--patch-file", file)
	require.NoError(t, err, out)
	var is map[string]any
	require.NoError(t, json.Unmarshal(must(t, admin, "get", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+name, "").body, &is))
	version = nested(t, is, "spec", "versions").([]any)[0].(map[string]any)
	require.Equal(t, credentials, nested(t, version, "schema", "openAPIV3Schema", "properties", "spec", "properties", "credentials"))
}

// withVersion is a CRD with the resourceVersion that it has now.
func withVersion(t *testing.T, name string, object []byte) string {
	t.Helper()
	var is, next map[string]any
	require.NoError(t, json.Unmarshal(must(t, admin, "get", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+name, "").body, &is))
	require.NoError(t, json.Unmarshal(object, &next))
	next["metadata"].(map[string]any)["resourceVersion"] = is["metadata"].(map[string]any)["resourceVersion"]
	text, err := json.Marshal(next)
	require.NoError(t, err)
	return string(text)
}
