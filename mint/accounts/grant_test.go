package accounts_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mintlog/mintlog/mint/account"
	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/test/sandbox"
)

func granted(t *testing.T, namespace, release string) []string {
	t.Helper()
	r, err := admin().RbacV1().Roles(namespace).Get(t.Context(), "credentials-"+release, metav1.GetOptions{})
	require.NoError(t, err)
	var names []string
	for _, rule := range r.Rules {
		assert.Equal(t, []string{"secrets"}, rule.Resources)
		assert.Equal(t, []string{"get", "patch"}, rule.Verbs)
		require.NotEmpty(t, rule.ResourceNames)
		names = append(names, rule.ResourceNames...)
	}
	return names
}

func TestTheProjectorReachesTheAccountSecretsByNameAndNoOther(t *testing.T) {
	run(t)
	ns := tenant(t, "tenant-granted")
	serve(t, "Granted", users)
	install(t, ns, "Granted", "app")
	awaitSecret(t, ns, "granted-orders.app.account")
	_, err := admin().CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "another"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	projector := kubernetes.NewForConfigOrDie(as(t, "projector")).CoreV1().Secrets(ns)
	eventually(t, "the authorizer knows of the grant", func() bool {
		_, err := projector.Get(t.Context(), "granted-orders.app.account", metav1.GetOptions{})
		return err == nil
	})
	_, err = projector.Get(t.Context(), "another", metav1.GetOptions{})
	assert.True(t, apierrors.IsForbidden(err))
	_, err = projector.List(t.Context(), metav1.ListOptions{})
	assert.True(t, apierrors.IsForbidden(err))
	err = projector.Delete(t.Context(), "granted-orders.app.account", metav1.DeleteOptions{})
	assert.True(t, apierrors.IsForbidden(err))
}

func TestARoleThatIsNotMintlogsIsNeverAdopted(t *testing.T) {
	define(t, "Adopted", nil)
	rule := func(resource string, names ...string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{resource}, ResourceNames: names, Verbs: []string{"get", "patch"}}}
	}
	ours := rule("secrets", "adopted-orders.app.account")
	made := map[string]*rbacv1.Role{}
	f := func(name, owner string, rules []rbacv1.PolicyRule) {
		t.Helper()
		ns := tenant(t, "tenant-role-"+name)
		release := install(t, ns, "Adopted", "app")
		something, err := admin().CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "something"}}, metav1.CreateOptions{})
		require.NoError(t, err)
		role := &rbacv1.Role{Rules: rules, ObjectMeta: metav1.ObjectMeta{
			Name: "credentials-adopted-orders", Annotations: map[string]string{"credentials.cozystack.io/found": "[]"},
		}}
		switch owner {
		case "application":
			role.OwnerReferences = []metav1.OwnerReference{account.Owner(&cluster.Release{Name: "adopted-orders", UID: release})}
		case "something":
			role.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: something.Name, UID: something.UID}}
		}
		made[ns], err = admin().RbacV1().Roles(ns).Create(t.Context(), role, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	f("nobodys", "", nil)
	f("nobodys-like-ours", "", ours)
	f("anothers", "something", ours)
	f("without-rules", "application", nil)
	f("with-another-rule", "application", rule("configmaps"))
	f("for-another-secret", "application", rule("secrets", "theirs"))
	run(t)
	define(t, "Adopted", users)
	for ns, before := range made {
		eventually(t, "an Event in "+ns, func() bool { return len(events(t, ns, "ForeignRole")) == 1 })
		assert.Contains(t, events(t, ns, "ForeignRole")[0].Message, "minted but not seeded, and their histories stay Unattributed, until it is removed")
		role, err := admin().RbacV1().Roles(ns).Get(t.Context(), before.Name, metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, before, role, ns)
		_, err = admin().RbacV1().RoleBindings(ns).Get(t.Context(), before.Name, metav1.GetOptions{})
		assert.True(t, apierrors.IsNotFound(err), ns)
	}

	// A minted account is hidden from tenants, and goes with its declaration, all the same.
	const ns = "tenant-role-nobodys"
	application := &cluster.Release{Namespace: ns, Name: "adopted-orders", UID: install(t, ns, "Adopted", "app", "new"), Kind: "Adopted", Application: "orders"}
	fresh := minted(t, application, definition.Block{SecretLabels: map[string]string{"cnpg.io/reload": "false"}})
	eventually(t, "its labels are put right", func() bool { return secret(t, ns, fresh.Name).Labels["cnpg.io/reload"] == "true" })
	install(t, ns, "Adopted", "app")
	awaitNoSecret(t, ns, fresh.Name)

	require.NoError(t, admin().RbacV1().Roles(ns).Delete(t.Context(), "credentials-adopted-orders", metav1.DeleteOptions{}))
	install(t, ns, "Adopted", "app", "more")
	eventually(t, "a grant of our own", func() bool {
		role, err := admin().RbacV1().Roles(ns).Get(t.Context(), "credentials-adopted-orders", metav1.GetOptions{})
		return err == nil && len(role.OwnerReferences) == 1 &&
			assert.ObjectsAreEqual([]string{"adopted-orders.app.account", "adopted-orders.more.account"}, granted(t, ns, "adopted-orders"))
	})
}

func TestNobodyBindsHimselfToARoleBeforeItGainsRules(t *testing.T) {
	run(t)
	ns := tenant(t, "tenant-binder")
	serve(t, "Bound", users)
	install(t, ns, "Bound")
	found(t, ns, "bound-orders")
	rbac := admin().RbacV1()
	for _, role := range []*rbacv1.Role{
		{ObjectMeta: metav1.ObjectMeta{Name: "binder"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{rbacv1.GroupName}, Resources: []string{"rolebindings"}, Verbs: []string{"create"}}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "empty"}},
	} {
		_, err := rbac.Roles(ns).Create(t.Context(), role, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	binding := func(role string) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "own-"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "mallory"}},
		}
	}
	_, err := rbac.RoleBindings(ns).Create(t.Context(), binding("binder"), metav1.CreateOptions{})
	require.NoError(t, err)
	config := servers().RESTConfig(sandbox.ClusterAdmin, 0)
	config.Impersonate = rest.ImpersonationConfig{UserName: "mallory"}
	mallory := kubernetes.NewForConfigOrDie(config).RbacV1().RoleBindings(ns)
	eventually(t, "mallory may bind what grants nothing", func() bool {
		_, err := mallory.Create(t.Context(), binding("empty"), metav1.CreateOptions{})
		return err == nil
	})
	_, err = mallory.Create(t.Context(), binding("credentials-bound-orders"), metav1.CreateOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	assert.ErrorContains(t, err, "not currently held")
}
