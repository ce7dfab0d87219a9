package sandbox_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/mintlog/mintlog/test/sandbox"
)

func TestNothingClusterWideReachesSecrets(t *testing.T) {
	roles, bindings := shippedRoles(t)
	require.NotEmpty(t, bindings)
	for _, binding := range bindings {
		role, ok := roles[binding.RoleRef.Name]
		require.True(t, ok, "%s binds the role %s, which is not ours to judge", binding.Name, binding.RoleRef.Name)
		require.False(t, reachesSecrets(role), "%s is bound in the whole cluster", role.Name)
	}
	for _, role := range roles {
		if collectedElsewhere(role) {
			require.False(t, reachesSecrets(role), "%s is put into roles that we do not see", role.Name)
		}
	}
}

func TestNoPartHoldsAVerbThatItDoesNotUse(t *testing.T) {
	roles, _ := shippedRoles(t)
	f := func(name string, want ...rbacv1.PolicyRule) {
		t.Helper()
		require.Equal(t, want, roles[name].Rules, name)
	}
	rule := func(group, resources, verbs string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: strings.Fields(resources), Verbs: strings.Fields(verbs)}
	}
	f("mintlog-applications",
		rule("cozystack.io", "applicationdefinitions", "get list watch"),
		rule("helm.toolkit.fluxcd.io", "helmreleases", "get list watch"))
	f("mintlog-mint", rule("", "secrets", "get list watch create update"))
	f("mintlog-mint-authorization", rule("authorization.k8s.io", "subjectaccessreviews", "create"))
	f("mintlog-accounts",
		rule("", "secrets", "get list watch create patch delete"),
		rule("rbac.authorization.k8s.io", "roles rolebindings", "get create update delete"),
		rule("", "events", "create patch"))
}

func TestWhatReachesSecretsIsRecognized(t *testing.T) {
	f := func(want bool, group, resource, verb string) {
		t.Helper()
		role := rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{group}, Resources: []string{resource}, Verbs: []string{verb}},
		}}
		require.Equal(t, want, reachesSecrets(role), "%s %s/%s", verb, group, resource)
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
	f(false, "", "configmaps", "get")
	f(false, "credentials.cozystack.io", "*", "*")
	f(false, "rbac.authorization.k8s.io", "rolebindings", "get")
	require.True(t, reachesSecrets(rbacv1.ClusterRole{AggregationRule: &rbacv1.AggregationRule{}}))
}

// reachesSecrets says whether a role lets its holder read or write a Secret, or give itself a role that does.
func reachesSecrets(role rbacv1.ClusterRole) bool {
	if role.AggregationRule != nil {
		return true // whatever somebody labels becomes part of it
	}
	return slices.ContainsFunc(role.Rules, func(rule rbacv1.PolicyRule) bool {
		covers := func(group string, resources, verbs []string) bool {
			meets := func(have, want []string) bool {
				return slices.ContainsFunc(have, func(one string) bool { return one == "*" || slices.Contains(want, one) })
			}
			return meets(rule.APIGroups, []string{group}) && meets(rule.Resources, resources) &&
				(len(verbs) == 0 || meets(rule.Verbs, verbs))
		}
		const rbac = "rbac.authorization.k8s.io"
		return covers("", []string{"secrets", "secrets/*"}, nil) ||
			covers("", []string{"serviceaccounts/token"}, []string{"create"}) ||
			slices.Contains(rule.Verbs, "impersonate") ||
			covers(rbac, []string{"roles", "clusterroles"}, []string{"bind", "escalate"}) ||
			covers(rbac, []string{"roles", "clusterroles", "rolebindings", "clusterrolebindings"},
				[]string{"create", "update", "patch"})
	})
}

func collectedElsewhere(role rbacv1.ClusterRole) bool { return len(role.Labels) > 0 }

// shippedRoles are the ClusterRoles by name, and the ClusterRoleBindings, of every manifest in deploy/.
func shippedRoles(t *testing.T) (map[string]rbacv1.ClusterRole, []rbacv1.ClusterRoleBinding) {
	t.Helper()
	root, err := sandbox.Root()
	require.NoError(t, err)
	var files []string
	require.NoError(t, filepath.WalkDir(filepath.Join(root, "deploy"), func(path string, entry fs.DirEntry, err error) error {
		if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)) {
			files = append(files, path)
		}
		return err
	}))
	roles := map[string]rbacv1.ClusterRole{}
	var bindings []rbacv1.ClusterRoleBinding
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
		for {
			document, err := reader.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			var kind metav1.TypeMeta
			require.NoError(t, yaml.Unmarshal(document, &kind))
			switch kind.Kind {
			case "ClusterRole":
				var role rbacv1.ClusterRole
				require.NoError(t, yaml.UnmarshalStrict(document, &role))
				roles[role.Name] = role
			case "ClusterRoleBinding":
				var binding rbacv1.ClusterRoleBinding
				require.NoError(t, yaml.UnmarshalStrict(document, &binding))
				bindings = append(bindings, binding)
			}
		}
	}
	return roles, bindings
}
