package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/webhook"
	"github.com/mintlog/mintlog/test/sandbox"
)

const definitionsData = "testdata/definitions"

// runDefinitions runs "mintlog definitions check" with that standard input.
func runDefinitions(t *testing.T, stdin string, arguments ...string) (out string, err error) {
	t.Helper()
	c := command()
	var stdout bytes.Buffer
	c.SetIn(strings.NewReader(stdin))
	c.SetOut(&stdout)
	c.SetErr(t.Output())
	c.SetArgs(append([]string{"definitions", "check"}, arguments...))
	err = c.ExecuteContext(t.Context())
	return stdout.String(), err
}

func definitionsFile(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(definitionsData, name))
	require.NoError(t, err)
	return string(content)
}

func TestACheckOfDefinitionsPrintsWhatStandsInTheGoldenFiles(t *testing.T) {
	f := func(golden, problems string, arguments ...string) {
		t.Helper()
		for _, output := range []string{"table", "json"} {
			out, err := runDefinitions(t, definitionsFile(t, "kinds.yaml"), append(arguments, "-o", output)...)
			if problems == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, "problems that were found: "+problems)
			}
			if *update {
				require.NoError(t, os.WriteFile(filepath.Join(definitionsData, golden+"."+output), []byte(out), 0o600))
			}
			assert.Equal(t, definitionsFile(t, golden+"."+output), out, "%s.%s", golden, output)
			assert.NotContains(t, out, "hunter2")
		}
	}
	values := filepath.Join(definitionsData, "values.yaml")
	f("kinds", "", "-")
	f("accounts", "6", "-", "--values", values)
	f("broken", "4", filepath.Join(definitionsData, "broken.yaml"))
}

func TestACheckOfAnApplicationTakesItsNames(t *testing.T) {
	out, err := runDefinitions(t, "users: {app: {}}\n", filepath.Join(definitionsData, "kinds.yaml"), "--values", "-", "--release", "postgres-orders", "--namespace", "tenant-acme")
	require.NoError(t, err)
	assert.Regexp(t, `Postgres\s+tenant-acme\s+postgres-orders\s+app\s+app\s+postgres-orders.app.account\s+<none>\s+served`, out)
	out, err = runDefinitions(t, "", filepath.Join(definitionsData, "kinds.yaml"), "--release", strings.Repeat("x", 64))
	require.Error(t, err, "a name that makes no Secret name")
	assert.Contains(t, out, "a part of its Secret's name has 64 characters")
	assert.Contains(t, out, "the expression asks for a field that is absent from the values, at 1:5")
}

func TestACheckFailsExactlyWhenSomethingIsWrongWithADefinition(t *testing.T) {
	const definition = "apiVersion: cozystack.io/v1alpha1\nkind: ApplicationDefinition\nmetadata: {name: a}\nspec: {application: {kind: A}, credentials: {format: {name: sha256}, accounts: [{kind: ValuesMap, path: users}]}}\n"
	file := func(name, content string) string {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	f := func(want, stdin string, arguments ...string) {
		t.Helper()
		_, err := runDefinitions(t, stdin, arguments...)
		if want == "" {
			require.NoError(t, err, "%v", arguments)
			return
		}
		require.ErrorContains(t, err, want, "%v", arguments)
	}
	good := file("good.yaml", definition)
	f("", definition, "-")
	f("", "", good, file("other.yaml", strings.Replace(definition, "kind: A}", "kind: B}", 1)))
	f("problems that were found: 2", definition, good, "-") // one kind, two definitions
	f("", `{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "cozystack.io/v1alpha1", "kind": "ApplicationDefinition", "metadata": {"name": "a"},`+
		`"spec": {"application": {"kind": "A"}, "credentials": {"format": {"name": "scram-sha-256", "parameters": {"iterations": 8192}}, "accounts": [{"kind": "ValuesMap", "path": "users"}]}}}]}`, "-")
	f("no ApplicationDefinition with a block", "", "-")
	f("no ApplicationDefinition with a block", "kind: ConfigMap\n", "-")
	f("no ApplicationDefinition with a block", strings.Replace(definition, "credentials", "credential", 1), "-")
	f("problems that were found: 1", strings.Replace(definition, "sha256", "rot13", 1), "-")
	f("problems that were found: 1", definition+"---\n{", "-")
	f("problems that were found: 1", definition+"---\n- a\n", "-")
	f("problems that were found: 1", strings.Replace(definition, "metadata:", "kind: Twice\nmetadata:", 1), "-")
	f("problems that were found: 1", definition, "-", filepath.Join(t.TempDir(), "missing.yaml"))
	f("problems that were found: 1", "", good, "--values", file("values.yaml", "users: [app]\n"))
	f("problems that were found: 1", strings.Replace(definition, "accounts:", "valuesPath: 'users.{username}.hash', accounts:", 1), "-", "--values", file("values.yaml", "users: {app: {hash: x}}\n"))
	f("", "", good, "--values", file("values.yaml", ""))
	f("--values", "", good, "--values", filepath.Join(t.TempDir(), "missing.yaml"))
	f("it is no YAML of one object, or has a key twice", "", good, "--values", file("values.yaml", "- hunter2\n"))
	f("it is no YAML of one object, or has a key twice", "", good, "--values", file("values.yaml", "hunter2: 1\nhunter2: 2\n"))
	f("name the files", "")
	f("--cluster", "", "--cluster", good)
	f("--values: with --cluster", "", "--cluster", "--values", good)
	f("--context is for --cluster", "", good, "--context", "x")
	f("standard input can be read once", "", "-", "--values", "-")
	f("-o \"yaml\"", "", good, "-o", "yaml")
	f("--kubeconfig", "", "--cluster", "--kubeconfig", filepath.Join(t.TempDir(), "missing"))
}

func TestWhatATerminalWouldActOnIsNotPrinted(t *testing.T) {
	values := filepath.Join(t.TempDir(), "values.yaml")
	require.NoError(t, os.WriteFile(values, []byte("users: {\"a\\e[31m\": {}, \"b\\u202e\": {}}\n"), 0o600))
	for _, output := range []string{"table", "json"} {
		out, err := runDefinitions(t, definitionsFile(t, "kinds.yaml"), "-", "--values", values, "-o", output)
		require.Error(t, err)
		assert.NotContains(t, out, "\x1b")
		assert.NotContains(t, out, "\u202e")
	}
}

func TestWebhooksAreAskedOnlyOnRequest(t *testing.T) {
	var asked atomic.Int32
	var status atomic.Int32
	status.Store(http.StatusOK)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		var request webhook.FormatRequest
		body, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(body, &request)
		answer := map[string]any{"apiVersion": webhook.APIVersion, "uid": request.UID}
		if request.Kind == webhook.KindFormatRequest {
			answer["kind"], answer["stored"] = webhook.KindFormatAnswer, "stored"
		} else {
			answer["kind"], answer["accounts"] = webhook.KindAccountsAnswer, []webhook.Account{{Name: "eve", Username: "Eve"}}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(status.Load()))
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(server.Close)
	bundle := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	hook := fmt.Sprintf("webhook: {clientConfig: {url: %q, caBundle: %s}}", server.URL, bundle)
	definition := "apiVersion: cozystack.io/v1alpha1\nkind: ApplicationDefinition\nmetadata: {name: a}\nspec: {application: {kind: A}, release: {prefix: a-}, credentials: {format: {name: argon2id, kind: Webhook, " +
		hook + "}, accounts: [{kind: ValuesMap, path: users}, {kind: Webhook, " + hook + "}]}}\n"

	out, err := runDefinitions(t, definition, "-", "--release", "a-b")
	require.NoError(t, err)
	assert.Zero(t, asked.Load())
	assert.Contains(t, out, "note: tenant-example/a-b: the accounts that webhooks add are missing")
	assert.Contains(t, out, "no accounts")

	out, err = runDefinitions(t, definition, "-", "--release", "a-b", "--ask-webhooks")
	require.NoError(t, err)
	assert.Equal(t, int32(2), asked.Load(), "the source for the application, and the format")
	assert.NotContains(t, out, "note:")
	assert.Regexp(t, `A\s+tenant-example\s+a-b\s+eve\s+Eve\s+a-b.eve.account\s+<none>\s+served`, out)

	status.Store(http.StatusInternalServerError)
	out, err = runDefinitions(t, definition, "-", "--release", "a-b", "--ask-webhooks")
	require.EqualError(t, err, "problems that were found: 2")
	assert.Contains(t, out, "not served: the format argon2id: the webhook answered with status 500, not 200")
	assert.Contains(t, out, "the accounts are not known: spec.credentials.accounts[1]: the webhook answered with status 500, not 200")
}

func TestACheckOfAClusterLooksAtAllItsDefinitionsAndApplications(t *testing.T) {
	servers, err := sandbox.Start(t.Context(), sandbox.Options{Apiservers: 1})
	require.NoError(t, err, "the real servers are needed: make tools")
	t.Cleanup(func() { require.NoError(t, servers.Stop()) })
	require.NoError(t, servers.LayDefinition(t.Context()))
	require.NoError(t, servers.InstallDefinition(t.Context(), "Redis", nil))
	require.NoError(t, servers.InstallDefinition(t.Context(), "Wiki", map[string]any{"format": map[string]any{"name": "rot13"}}))
	const elsewhere = "tenant-elsewhere" // a namespace that is not enrolled
	require.NoError(t, servers.AddNamespace(t.Context(), elsewhere))
	for namespace, users := range map[string]map[string]any{
		sandbox.TenantAcme: {"Bob.Smith": nil, "app": nil},
		elsewhere:          {"app": nil},
	} {
		_, err := servers.InstallRelease(t.Context(), namespace, "Postgres", "orders", map[string]any{"users": users})
		require.NoError(t, err)
	}
	_, err = servers.InstallRelease(t.Context(), sandbox.TenantAcme, "Postgres", "broken", map[string]any{"users": []any{"app"}})
	require.NoError(t, err)
	taken := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "postgres-orders.bob-smith.account", Labels: map[string]string{cluster.AccountLabel: "true"}},
		Type:       corev1.SecretTypeBasicAuth, StringData: map[string]string{"username": "bob-smith", "password": "x"},
	}
	_, err = servers.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().Secrets(sandbox.TenantAcme).Create(t.Context(), taken, metav1.CreateOptions{})
	require.NoError(t, err)

	out, err := runDefinitions(t, "", "--cluster", "--kubeconfig", servers.Kubeconfig(sandbox.ClusterAdmin, 0))
	require.EqualError(t, err, "problems that were found: 3")
	assert.Regexp(t, `Redis\s+redis\s+<none>\s+no spec.credentials`, out)
	assert.Regexp(t, `Wiki\s+wiki\s+<none>\s+not served: spec.credentials.format.name: "rot13" is unknown`, out)
	assert.Regexp(t, `Postgres\s+tenant-acme\s+postgres-broken\s+<none>\s+<none>\s+<none>\s+<none>\s+the accounts are not known: spec.credentials.accounts\[0\]: the value at users is no map`, out)
	assert.Regexp(t, `Postgres\s+tenant-acme\s+postgres-orders\s+app\s+app\s+postgres-orders.app.account\s+<none>\s+served`, out)
	assert.Regexp(t, `Postgres\s+tenant-acme\s+postgres-orders\s+Bob.Smith\s+Bob.Smith\s+<none>\s+<none>\s+refused: .*the Secret of its name holds another username`, out)
	assert.Regexp(t, `Postgres\s+tenant-elsewhere\s+postgres-orders\s+app\s+app\s+postgres-orders.app.account\s+<none>\s+served`, out)
	assert.NotContains(t, out, "note:")

	file, err := servers.ServiceAccountKubeconfig(t.Context(), "mint", 0)
	require.NoError(t, err)
	out, err = runDefinitions(t, "", "--cluster", "--kubeconfig", file)
	require.EqualError(t, err, "problems that were found: 3")
	assert.Contains(t, out, "note: tenant-elsewhere/postgres-orders: the account Secrets of the namespace cannot be listed, so a name that is another's there is not noticed: kube-apiserver answered Forbidden")

	_, err = runDefinitions(t, "", "--cluster", "--kubeconfig", servers.Kubeconfig("jane", 0))
	require.ErrorContains(t, err, "list applicationdefinitions")
}
