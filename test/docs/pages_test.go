package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/test/sandbox"
)

// installed is set when mintlog runs as the quickstart has it, with its definitions and its tenant.
var (
	install   sync.Once
	installed bool
)

// quickstart follows the quickstart once, for everything else stands on what it installs, and enrols the sandbox's tenants.
func quickstart(t *testing.T) {
	t.Helper()
	install.Do(func() {
		follow(t, "quickstart.md", openShell(t, environment(t, sandbox.ClusterAdmin)...), map[string]func(){
			"make build":             nil, // the Makefile's target, behind which the tests run
			"kind ":                  nil, // the sandbox is the cluster, with kind.yaml's flags
			"docker build":           nil,
			"docker exec":            func() { require.FileExists(t, cluster.AuditLog(0)) },
			"kubectl rollout status": func() { startPod(t) }, // there is no kubelet
			"kubectl port-forward":   nil,                    // the sandbox's VictoriaLogs
		})
		out, err := tool(t, sandbox.ClusterAdmin, "mintlog", "enroll", sandbox.TenantAcme, sandbox.TenantBeta,
			"--mint-service-account=mintlog", "--accounts-service-account=mintlog", "--projector-service-account=mintlog")
		require.NoError(t, err, out)
		for _, application := range []struct{ namespace, name string }{{sandbox.TenantAcme, "orders"}, {sandbox.TenantBeta, "orders"}, {sandbox.TenantBeta, "ci"}, {sandbox.TenantBeta, "gitlab"}, {sandbox.TenantBeta, "terraform"}} {
			_, err = cluster.InstallRelease(t.Context(), application.namespace, "Postgres", application.name, map[string]any{
				"users": map[string]any{"app": map[string]any{}, "Report.Reader": map[string]any{}, "blue": map[string]any{}, "green": map[string]any{}},
			})
			require.NoError(t, err)
		}
		require.NoError(t, cluster.AwaitAccounts(t.Context(), sandbox.TenantAcme, 4))
		require.NoError(t, cluster.AwaitAccounts(t.Context(), sandbox.TenantBeta, 16))
		installed = true
	})
	require.True(t, installed, "the quickstart failed, and everything else stands on it")
}

// tool runs one of the binaries as a person, and returns what it printed.
func tool(t *testing.T, person, name string, arguments ...string) (string, error) {
	t.Helper()
	c := exec.CommandContext(t.Context(), filepath.Join(cluster.Root(), "bin", name), arguments...)
	c.Env, c.Dir = environment(t, person), cluster.Root()
	out, err := c.CombinedOutput()
	return redacted(string(out)), err
}

func TestTheQuickstartDoesWhatItShows(t *testing.T) { quickstart(t) }

func TestThePagesDoWhatTheyShow(t *testing.T) {
	quickstart(t)
	for _, page := range []struct{ name, person string }{
		{"tenants.md", sandbox.Jane},
		{"operators.md", sandbox.ClusterAdmin},
		{"examples.md", sandbox.ClusterAdmin},
	} {
		t.Run(page.name, func(t *testing.T) { follow(t, page.name, openShell(t, environment(t, page.person)...), nil) })
	}
}

func TestThePagesLinkToWhatIsThere(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(cluster.Root(), "docs", "*.md"))
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	for _, page := range append(pages, filepath.Join(cluster.Root(), "README.md")) {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, target := range links(string(text)) {
			_, err := os.Stat(filepath.Join(filepath.Dir(page), target))
			require.NoError(t, err, "%s links to %s", filepath.Base(page), target)
		}
	}
}
