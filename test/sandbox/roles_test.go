package sandbox_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/mintlog/mintlog/test/chart"
	"github.com/mintlog/mintlog/test/sandbox"
)

func TestNoPartHoldsAVerbThatItDoesNotUse(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(cluster.Root(), "deploy", "rbac", "mintlog.yaml"))
	require.NoError(t, err)
	rights := &chart.Rights{}
	require.NoError(t, rights.Read(text))
	f := func(name string, want ...rbacv1.PolicyRule) {
		t.Helper()
		require.Equal(t, want, rights.ClusterRoles[name].Rules, name)
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
		rule("rbac.authorization.k8s.io", "roles", "get list create update delete"),
		rule("rbac.authorization.k8s.io", "rolebindings", "get create update delete"),
		rule("helm.toolkit.fluxcd.io", "helmreleases", "patch"),
		rule("", "events", "create patch"))

	inOwn := map[string][]rbacv1.PolicyRule{}
	for _, role := range rights.Roles {
		require.Equal(t, sandbox.Namespace, role.Namespace, role.Name)
		inOwn[role.Name] = role.Rules
	}
	lease := rule("coordination.k8s.io", "leases", "get update")
	lease.ResourceNames = []string{"mintlog-accounts"}
	kinds := rule("", "configmaps", "get update")
	kinds.ResourceNames = []string{"mintlog-kinds"}
	require.Equal(t, map[string][]rbacv1.PolicyRule{
		"mintlog-accounts-records": {rule("", "configmaps", "create"), kinds},
		"mintlog-accounts-lease":   {lease},
	}, inOwn)
}
