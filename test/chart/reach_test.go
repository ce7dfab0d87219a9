package chart

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/mintlog/mintlog/test/sandbox/process"
)

func TestNothingClusterWideReachesSecrets(t *testing.T) {
	rights := shipped(t)
	require.NotEmpty(t, rights.Everywhere)
	require.Empty(t, rights.SecretsEverywhere())
}

func TestWhatReachesSecretsIsRecognized(t *testing.T) {
	f := func(want bool, group, resource, verb string) {
		t.Helper()
		role := rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{group}, Resources: []string{resource}, Verbs: []string{verb}},
		}}
		require.Equal(t, want, ReachesSecrets(role), "%s %s/%s", verb, group, resource)
	}
	f(true, "", "secrets", "get")
	f(true, "*", "secrets", "list")
	f(true, "", "*", "watch")
	f(true, "", "secrets/*", "get")
	f(true, "rbac.authorization.k8s.io", "rolebindings", "create")
	f(true, "rbac.authorization.k8s.io", "clusterrolebindings", "patch")
	f(true, "rbac.authorization.k8s.io", "clusterroles", "bind")
	f(true, "rbac.authorization.k8s.io", "roles", "escalate")
	f(true, "", "users", "impersonate")
	f(true, "", "serviceaccounts/token", "create")
	f(true, "", "*/token", "create")
	f(false, "", "configmaps", "get")
	f(false, "credentials.cozystack.io", "*", "*")
	f(false, "rbac.authorization.k8s.io", "rolebindings", "get")
	require.True(t, ReachesSecrets(rbacv1.ClusterRole{AggregationRule: &rbacv1.AggregationRule{}}))
}

// shipped are the rights in every plain manifest of deploy/.
func shipped(t *testing.T) *Rights {
	t.Helper()
	root, err := process.Root()
	require.NoError(t, err)
	rights := &Rights{}
	require.NoError(t, filepath.WalkDir(filepath.Join(root, "deploy"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)) ||
			strings.Contains(path, "/chart/") || strings.HasSuffix(path, ".patch.json") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return rights.Read(text)
	}))
	return rights
}
