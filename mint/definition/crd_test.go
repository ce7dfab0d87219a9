package definition_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/mintlog/mintlog/mint/definition"
)

// schema is what the CRD says of the block.
func schema(t *testing.T) map[string]any {
	t.Helper()
	text, err := os.ReadFile("../../deploy/crds/applicationdefinitions.yaml")
	require.NoError(t, err)
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema map[string]any `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	require.NoError(t, yaml.Unmarshal(text, &crd))
	require.Len(t, crd.Spec.Versions, 1)
	return field(t, crd.Spec.Versions[0].Schema.OpenAPIV3Schema, "spec", "credentials")
}

func field(t *testing.T, of map[string]any, path ...string) map[string]any {
	t.Helper()
	for _, name := range path {
		if items, ok := of["items"].(map[string]any); ok {
			of = items
		}
		of, _ = of["properties"].(map[string]any)[name].(map[string]any)
		require.NotNil(t, of, name)
	}
	return of
}

// fields are the names of an object's fields, or of a list's elements.
func fields(of map[string]any) []string {
	if items, ok := of["items"].(map[string]any); ok {
		of = items
	}
	properties, _ := of["properties"].(map[string]any)
	return slices.Sorted(maps.Keys(properties))
}

// understood are the fields that the errors about an unknown one name, in all given objects.
func understood(t *testing.T, path string, blocks ...string) []string {
	t.Helper()
	found := map[string]bool{}
	known := regexp.MustCompile(regexp.QuoteMeta(path) + `\.no-such-field: this field is unknown to this version \(known: ([^)]*)\)`)
	for _, b := range blocks {
		_, err := definition.Parse(decoded(t, b))
		require.Error(t, err)
		match := known.FindStringSubmatch(err.Error())
		require.NotNil(t, match, "%s: %v", b, err)
		for name := range strings.SplitSeq(match[1], ", ") {
			found[name] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func TestTheCRDHasTheFieldsThatAreUnderstoodAndDescribesThem(t *testing.T) {
	crd := schema(t)
	const no, sources = "no-such-field: 1", "\naccounts: [{kind: ValuesMap, path: users}]"
	source := func(kind string) string {
		return fmt.Sprintf("format: {name: sha256}\naccounts: [{kind: %s, %s}]", kind, no)
	}
	hook := func(inner string) string {
		return "format: {name: x, kind: Webhook, webhook: {" + inner + "}}" + sources
	}
	without := func(names []string, name string) []string {
		return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == name })
	}
	f := func(at string, want []string, path ...string) {
		t.Helper()
		assert.Equal(t, want, fields(field(t, crd, path...)), at)
	}
	assert.Equal(t, understood(t, "spec.credentials", no), without(fields(crd), "status"), "status is reserved")
	f("format", understood(t, "spec.credentials.format", "format: {name: x, "+no+"}"+sources, "format: {name: x, kind: Webhook, "+no+"}"+sources), "format")
	f("parameters", understood(t, "spec.credentials.format.parameters",
		"format: {name: bcrypt, parameters: {"+no+"}}"+sources, "format: {name: scram-sha-256, parameters: {"+no+"}}"+sources), "format", "parameters")
	f("accounts", understood(t, "spec.credentials.accounts[0]", source("ValuesMap"), source("ValuesList"), source("Static"), source("Expression"), source("Webhook")), "accounts")
	f("webhook", understood(t, "spec.credentials.format.webhook", hook(no)), "format", "webhook")
	f("clientConfig", understood(t, "spec.credentials.format.webhook.clientConfig", hook("clientConfig: {"+no+"}")), "format", "webhook", "clientConfig")
	f("service", understood(t, "spec.credentials.format.webhook.clientConfig.service", hook("clientConfig: {service: {"+no+"}}")), "format", "webhook", "clientConfig", "service")
	assert.Equal(t, field(t, crd, "format", "webhook"), field(t, crd, "accounts", "webhook"))
	described(t, "spec.credentials", crd)
}

func described(t *testing.T, path string, of map[string]any) {
	t.Helper()
	assert.NotEmpty(t, of["description"], path)
	if items, ok := of["items"].(map[string]any); ok {
		of = items
	}
	for _, name := range fields(of) {
		described(t, path+"."+name, field(t, of, name))
	}
}

func TestTheCRDSaysThatAFormatWebhookIsInsideTheTrustBoundary(t *testing.T) {
	text, _ := field(t, schema(t), "format", "webhook")["description"].(string)
	assert.Contains(t, text, "sent each new password in plaintext")
	assert.Contains(t, text, "inside the trust boundary")
}
