package accounts_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/mintlog/mintlog/test/sandbox"
)

// orphan deletes an application alone: what it owns stays, without an owner.
func orphan(t *testing.T, namespace, name string) {
	t.Helper()
	releases := dynamic.NewForConfigOrDie(servers().RESTConfig(sandbox.ClusterAdmin, 0)).Resource(sandbox.HelmReleases).Namespace(namespace)
	alone := metav1.DeletePropagationOrphan
	require.NoError(t, releases.Delete(t.Context(), name, metav1.DeleteOptions{PropagationPolicy: &alone}))
	eventually(t, name+" is gone", func() bool {
		_, err := releases.Get(t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// grantThere reports whether the Role and the RoleBinding of a grant are there.
func grantThere(t *testing.T, namespace, release string) (role, binding bool) {
	t.Helper()
	_, err := admin().RbacV1().Roles(namespace).Get(t.Context(), "credentials-"+release, metav1.GetOptions{})
	role = !apierrors.IsNotFound(err)
	_, err = admin().RbacV1().RoleBindings(namespace).Get(t.Context(), "credentials-"+release, metav1.GetOptions{})
	return role, !apierrors.IsNotFound(err)
}

func awaitNoGrant(t *testing.T, namespace, release string) {
	t.Helper()
	eventually(t, "the grant of "+release+" goes", func() bool {
		role, binding := grantThere(t, namespace, release)
		return !role && !binding
	})
}

func TestTheGrantOfAnApplicationThatIsDeletedAloneIsTakenBackWhetherOrNotSomebodyLooks(t *testing.T) {
	r := run(t)
	ns := tenant(t, "tenant-orphaned")
	serve(t, "Orphaned", users)
	install(t, ns, "Orphaned", "app")
	awaitSecret(t, ns, "orphaned-orders.app.account")
	orphan(t, ns, "orphaned-orders")
	awaitNoGrant(t, ns, "orphaned-orders")

	serve(t, "Unseen", users)
	install(t, ns, "Unseen", "app")
	awaitSecret(t, ns, "unseen-orders.app.account")
	r.stop()
	orphan(t, ns, "unseen-orders")
	// What is not mintlog's stays.
	_, err := servers().Apply(t.Context(), ns, object{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
		"metadata": object{"name": "credentials-of-mine", "labels": object{"credentials.cozystack.io/grant": "true"}}})
	require.NoError(t, err)
	role, binding := grantThere(t, ns, "unseen-orders")
	require.True(t, role && binding)
	run(t)
	serve(t, "Later", users)
	install(t, ns, "Later", "app")
	awaitSecret(t, ns, "later-orders.app.account")
	awaitNoGrant(t, ns, "unseen-orders")
	role, _ = grantThere(t, ns, "of-mine")
	assert.True(t, role)
	role, binding = grantThere(t, ns, "later-orders")
	assert.True(t, role && binding)
}

func TestAHelmReleaseThatLostTheLabelOfItsKindKeepsItsGrant(t *testing.T) {
	run(t)
	ns := tenant(t, "tenant-unlabelled")
	serve(t, "Unlabelled", users)
	install(t, ns, "Unlabelled", "app")
	awaitSecret(t, ns, "unlabelled-orders.app.account")
	patchRelease(t, ns, "unlabelled-orders", `[{"op": "remove", "path": "/metadata/labels/apps.cozystack.io~1application.kind"}]`)
	never(t, "the grant goes", func() bool {
		role, binding := grantThere(t, ns, "unlabelled-orders")
		return !role || !binding
	})
}

func TestGrantsThatWentWithTheEnrolmentAreMadeAnewWithoutAChangeOfTheirApplications(t *testing.T) {
	ns := tenant(t, "tenant-again")
	serve(t, "Again", users)
	r := run(t)
	install(t, ns, "Again", "app")
	awaitSecret(t, ns, "again-orders.app.account")
	r.stop()

	l := newLooker(t)
	const application = "again-orders"
	look := func() []string {
		t.Helper()
		asked, err := l.look(t, ns, application)
		require.NoError(t, err)
		return asked
	}
	look()
	require.Empty(t, look(), "it is in step")
	review := func() []types.NamespacedName {
		t.Helper()
		next, again, err := l.Review(t.Context(), ns)
		require.NoError(t, err)
		if again == nil {
			require.Positive(t, next, "it is looked at again")
		}
		return again
	}
	require.Empty(t, review())

	rbac := admin().RbacV1()
	for _, name := range []string{"mintlog-mint", "mintlog-accounts", "credentials-" + application} {
		require.NoError(t, rbac.RoleBindings(ns).Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	require.NoError(t, rbac.Roles(ns).Delete(t.Context(), "credentials-"+application, metav1.DeleteOptions{}))
	eventually(t, "the accounts role is out", func() bool {
		_, err := l.Client.RbacV1().Roles(ns).Get(t.Context(), "credentials-"+application, metav1.GetOptions{})
		return apierrors.IsForbidden(err)
	})
	require.Empty(t, review(), "it may be let in again")
	require.NoError(t, servers().Enrol(t.Context(), ns))
	eventually(t, "the accounts role is in again", func() bool {
		_, err := l.Client.RbacV1().Roles(ns).Get(t.Context(), "credentials-"+application, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	require.Equal(t, []types.NamespacedName{{Namespace: ns, Name: application}}, review())
	asked := look()
	require.Contains(t, strings.Join(asked, "\n"), "POST roles")
	role, binding := grantThere(t, ns, application)
	require.True(t, role && binding)
	require.Empty(t, look())
	require.Empty(t, review())
}
