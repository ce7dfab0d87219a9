package chart

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/test/sandbox"
)

// It has a cluster of its own: what is uninstalled is what the other tests stand on.
func TestUninstallingTakesTheAPIAwayBeforeAnythingElse(t *testing.T) {
	s, err := sandbox.Start(t.Context(), sandbox.Options{Apiservers: 1, AuditPolicy: `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}`})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Stop()) }()
	helm := func(arguments ...string) {
		t.Helper()
		c := exec.CommandContext(t.Context(), filepath.Join(s.Root(), "bin", "helm"), append(arguments, "--namespace", sandbox.Namespace)...)
		c.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig(sandbox.ClusterAdmin, 0), "HOME="+t.TempDir())
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	// The sandbox has laid roles and policies already; an installation would find none.
	helm("install", "mintlog", chartFolder(), "--values", shapes(t)["webhook"], "--take-ownership", "--force-conflicts")
	helm("upgrade", "mintlog", chartFolder(), "--values", shapes(t)["webhook"], "--set", "policies.breakGlassGroup=platform", "--force-conflicts")
	helm("uninstall", "mintlog")

	log, err := os.ReadFile(s.AuditLog(0))
	require.NoError(t, err)
	var deleted []string
	for line := range bytes.Lines(log) {
		var e struct {
			Verb, Stage, UserAgent string
			ObjectRef              struct{ Resource, Name string }
		}
		require.NoError(t, json.Unmarshal(line, &e))
		if e.Verb == "delete" && e.Stage == "ResponseComplete" && bytes.Contains([]byte(e.UserAgent), []byte("Helm")) {
			deleted = append(deleted, e.ObjectRef.Resource)
		}
	}
	// Helm's own record, in Secrets, goes on the way.
	deleted = slices.DeleteFunc(deleted, func(resource string) bool { return resource == "secrets" })
	require.NotEmpty(t, deleted)
	require.Equal(t, "apiservices", deleted[0], "%v", deleted)
	for _, resource := range []string{"deployments", "services", "serviceaccounts", "clusterroles", "validatingadmissionpolicies"} {
		require.Contains(t, deleted, resource)
	}
}
