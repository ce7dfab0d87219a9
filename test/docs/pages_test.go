package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
		follow(t, "docs/quickstart.md", "tenant-demo", openShell(t, environment(t, sandbox.ClusterAdmin)...), map[string]func(){
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
		layApplication(t, sandbox.TenantAcme, "orders")
		for _, name := range []string{"orders", "ci", "gitlab", "terraform"} {
			layApplication(t, sandbox.TenantBeta, name)
		}
		require.NoError(t, cluster.AwaitAccounts(t.Context(), sandbox.TenantAcme, len(logins)))
		require.NoError(t, cluster.AwaitAccounts(t.Context(), sandbox.TenantBeta, 4*len(logins)))
		caughtUp(t, sandbox.TenantAcme)
		caughtUp(t, sandbox.TenantBeta)
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
	for _, page := range []struct { // inPlace is of the blocks that are not run: what stands for them
		name, person string
		inPlace      map[string]func()
	}{
		{"README.md", sandbox.Jane, map[string]func(){"make demo": nil}}, // and its tests are these
		{"docs/tenants.md", sandbox.Jane, nil},
		{"docs/plugin.md", sandbox.Jane, map[string]func(){
			"printf %s \"$pw\"": nil, // test/engines and the plugin's own tests log in to real engines
			"ln -s \"$(command": nil,
		}},
		{"docs/kinds.md", sandbox.ClusterAdmin, map[string]func(){"#!/bin/sh": nil}}, // a file, which test/engines compares
		{"docs/operators.md", sandbox.ClusterAdmin, map[string]func(){
			"helm install mintlog":               nil, // the quickstart's
			"kubectl patch crd":                  nil, // test/chart applies the patch to Cozystack's definition
			"kubectl debug node":                 nil, // there is no kubelet; test/ha loses the stream and reads the files again
			"etcdutl snapshot restore":           nil, // test/ha takes etcd back
			"mintlog unenroll":                   nil, // test/chart takes namespaces out, and uninstalls
			"kubectl create secret generic nats": nil, // test/chart runs each part with its key
		}},
		{"docs/reviewers.md", sandbox.ClusterAdmin, nil},
		{"docs/examples.md", sandbox.ClusterAdmin, nil},
	} {
		t.Run(page.name, func(t *testing.T) {
			if page.person == sandbox.Jane {
				layOrders(t)
			}
			follow(t, page.name, sandbox.TenantAcme, openShell(t, environment(t, page.person)...), page.inPlace)
		})
	}
}

// layOrders lays jane's application orders, anew if it is there: nobody has a password of its accounts.
func layOrders(t *testing.T) {
	t.Helper()
	require.NoError(t, cluster.DeleteRelease(t.Context(), sandbox.TenantAcme, "postgres-orders"))
	secrets := cluster.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().Secrets(sandbox.TenantAcme)
	require.Eventually(t, func() bool { // the garbage collector takes them
		left, err := secrets.List(t.Context(), metav1.ListOptions{LabelSelector: "credentials.cozystack.io/account=true"})
		return err == nil && len(left.Items) == 0
	}, 5*time.Minute, 100*time.Millisecond)
	layApplication(t, sandbox.TenantAcme, "orders")
	require.NoError(t, cluster.AwaitAccounts(t.Context(), sandbox.TenantAcme, len(logins)))
}

// logins are the accounts of each application.
var logins = map[string]any{"app": map[string]any{}, "Report.Reader": map[string]any{}, "blue": map[string]any{}, "green": map[string]any{}}

func layApplication(t *testing.T, namespace, name string) {
	t.Helper()
	_, err := cluster.InstallRelease(t.Context(), namespace, "Postgres", name, map[string]any{"users": logins})
	require.NoError(t, err)
}

// ours are files and folders that a page names by their path from the top folder.
var ours = regexp.MustCompile(`\bdeploy/[A-Za-z0-9_./-]*[A-Za-z0-9]`)

func TestThePagesLinkToWhatIsThere(t *testing.T) {
	all := pages(t)
	for page, text := range all {
		for _, target := range links(text) {
			path := page
			if target.file != "" {
				path = filepath.Join(filepath.Dir(page), target.file)
			}
			_, err := os.Stat(filepath.Join(cluster.Root(), path))
			require.NoError(t, err, "%s links to %s", page, path)
			if target.section != "" {
				assert.Contains(t, sections(all[path]), target.section, "%s links to a section of %s", page, path)
			}
		}
		for _, path := range ours.FindAllString(text, -1) {
			if strings.HasPrefix(path, "deploy/mintlog") { // kubectl's word for a Deployment
				continue
			}
			_, err := os.Stat(filepath.Join(cluster.Root(), path))
			require.NoError(t, err, "%s names %s", page, path)
		}
	}
}
