package accounts_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/mintlog/mintlog/store/ledger"
	"github.com/mintlog/mintlog/test/sandbox"
)

func TestTheLifeOfAnApplication(t *testing.T) {
	run(t)
	ns := tenant(t, "tenant-life")
	serve(t, "Life", users)
	uid := install(t, ns, "Life", "app", "Report.Reader")

	app := awaitSecret(t, ns, "life-orders.app.account")
	reader := awaitSecret(t, ns, "life-orders.report-reader.account")
	assert.Equal(t, "Report.Reader", string(reader.Data["username"]))
	assert.Equal(t, corev1.SecretTypeBasicAuth, app.Type)
	assert.Regexp(t, "^[0-9a-f]{64}$", string(app.Data["password"]))
	assert.NotEqual(t, app.Data["password"], reader.Data["password"])
	no := false
	assert.Equal(t, []metav1.OwnerReference{{APIVersion: "helm.toolkit.fluxcd.io/v2", Kind: "HelmRelease", Name: "life-orders", UID: uid, Controller: &no, BlockOwnerDeletion: &no}}, app.OwnerReferences)
	assert.Equal(t, map[string]string{
		"credentials.cozystack.io/account": "true", "cnpg.io/reload": "true",
		"internal.cozystack.io/managed-by-cozystack": "true", "internal.cozystack.io/tenantresource": "false",
		"apps.cozystack.io/application.kind": "Life", "apps.cozystack.io/application.group": "apps.cozystack.io", "apps.cozystack.io/application.name": "orders",
	}, app.Labels)
	assert.Equal(t, "NotIssued", app.Annotations[ledger.OriginAnnotation])
	book, err := ledger.Parse(app.Annotations[ledger.Annotation])
	require.NoError(t, err)
	require.Len(t, book.Entries, 1)
	assert.Equal(t, ledger.Create, book.Newest().Operation)
	assert.Equal(t, book.StoredDigest("", app.Data["password"]), book.Newest().Stored)
	assert.WithinDuration(t, time.Now(), book.Newest().At, time.Minute)
	assert.Empty(t, found(t, ns, "life-orders"))
	assert.Equal(t, []string{"life-orders.app.account", "life-orders.report-reader.account"}, granted(t, ns, "life-orders"))

	// One account goes, another comes, and the third keeps its password.
	install(t, ns, "Life", "app", "new")
	awaitNoSecret(t, ns, "life-orders.report-reader.account")
	fresh := awaitSecret(t, ns, "life-orders.new.account")
	assert.Equal(t, app, secret(t, ns, "life-orders.app.account"))
	eventually(t, "the grant follows", func() bool {
		return assert.ObjectsAreEqual([]string{"life-orders.app.account", "life-orders.new.account"}, granted(t, ns, "life-orders"))
	})

	// An account that comes back is another account.
	install(t, ns, "Life", "app")
	awaitNoSecret(t, ns, "life-orders.new.account")
	install(t, ns, "Life", "app", "new")
	assert.NotEqual(t, fresh.UID, awaitSecret(t, ns, "life-orders.new.account").UID)

	// Without accounts nothing that can exist is granted, least of all by a rule without names.
	install(t, ns, "Life")
	awaitNoSecret(t, ns, "life-orders.app.account")
	assert.Equal(t, []string{"_"}, granted(t, ns, "life-orders"))
	_, err = admin().RbacV1().RoleBindings(ns).Get(t.Context(), "credentials-life-orders", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err))
}

func TestAnApplicationThatIsDeletedAndRecreatedHasNewAccounts(t *testing.T) {
	run(t)
	ns := tenant(t, "tenant-recreated")
	serve(t, "Recreated", users)
	earlier := install(t, ns, "Recreated", "app")
	old := awaitSecret(t, ns, "recreated-orders.app.account")
	require.NoError(t, servers().DeleteRelease(t.Context(), ns, "recreated-orders"))
	later := install(t, ns, "Recreated", "app")
	require.NotEqual(t, earlier, later)
	eventually(t, "a Secret of the later application", func() bool {
		s := secret(t, ns, "recreated-orders.app.account")
		return s != nil && s.UID != old.UID && s.OwnerReferences[0].UID == later
	})
	fresh := secret(t, ns, "recreated-orders.app.account")
	assert.NotEqual(t, old.Data["password"], fresh.Data["password"])
	eventually(t, "a grant of the later application", func() bool {
		r, err := admin().RbacV1().Roles(ns).Get(t.Context(), "credentials-recreated-orders", metav1.GetOptions{})
		b, errBinding := admin().RbacV1().RoleBindings(ns).Get(t.Context(), "credentials-recreated-orders", metav1.GetOptions{})
		return err == nil && errBinding == nil && r.OwnerReferences[0].UID == later && b.OwnerReferences[0].UID == later
	})
	assert.Empty(t, found(t, ns, "recreated-orders"))
}

func TestInTheSteadyStateNothingIsWritten(t *testing.T) {
	r := run(t)
	ns := tenant(t, "tenant-steady")
	serve(t, "Steady", users)
	install(t, ns, "Steady", "app", "Report.Reader")
	awaitSecret(t, ns, "steady-orders.app.account")
	awaitSecret(t, ns, "steady-orders.report-reader.account")
	// The first sights of other tests' kinds do not count.
	writes := func() int { return int(r.writes(t)) - r.wrote(t, "configmap", "write") }
	const all = 4 // two Secrets, the role and its binding
	eventually(t, "all is written", func() bool { return writes() >= all })
	r.stop()

	// Neither a restart, nor a change of what accounts do not depend on, nor somebody's operation or history makes it write.
	r = run(t)
	releases := dynamic.NewForConfigOrDie(servers().RESTConfig(sandbox.ClusterAdmin, 0)).Resource(sandbox.HelmReleases).Namespace(ns)
	_, err := releases.Patch(t.Context(), "steady-orders", types.MergePatchType, []byte(`{"spec":{"suspend":true},"metadata":{"annotations":{"a":"b"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	_, err = admin().CoreV1().Secrets(ns).Patch(t.Context(), "steady-orders.app.account", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"credentials.cozystack.io/history":"{}"}},"stringData":{"password":"minted"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	install(t, ns, "Steady", "app", "Report.Reader")
	never(t, "a write", func() bool { return writes() > 0 })
	minted := secret(t, ns, "steady-orders.app.account")
	assert.Equal(t, "minted", string(minted.Data["password"]))
	assert.Equal(t, "{}", minted.Annotations["credentials.cozystack.io/history"])
	assert.NotContains(t, r.log.String(), "WARN")
}

func TestDriftOfLabelsOwnerAndGrantIsPutBackWithoutTouchingThePassword(t *testing.T) {
	run(t)
	ns := tenant(t, "tenant-drift")
	serve(t, "Drift", users)
	uid := install(t, ns, "Drift", "app")
	before := awaitSecret(t, ns, "drift-orders.app.account")
	_, err := admin().CoreV1().Secrets(ns).Patch(t.Context(), before.Name, types.MergePatchType,
		[]byte(`{"metadata":{"ownerReferences":null,"labels":{"internal.cozystack.io/tenantresource":"true","cnpg.io/reload":null,"theirs":"kept"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	eventually(t, "all is back", func() bool {
		s := secret(t, ns, before.Name)
		return len(s.OwnerReferences) == 1 && s.OwnerReferences[0].UID == uid &&
			s.Labels["internal.cozystack.io/tenantresource"] == "false" && s.Labels["cnpg.io/reload"] == "true" && s.Labels["theirs"] == "kept"
	})
	after := secret(t, ns, before.Name)
	assert.Equal(t, before.UID, after.UID)
	assert.Equal(t, before.Data, after.Data)
	assert.Equal(t, before.Annotations, after.Annotations)

	_, err = admin().RbacV1().Roles(ns).Patch(t.Context(), "credentials-drift-orders", types.MergePatchType,
		[]byte(`{"rules":[{"apiGroups":[""],"resources":["secrets"],"verbs":["get","patch","delete"]}]}`), metav1.PatchOptions{})
	require.NoError(t, err)
	_, err = admin().RbacV1().RoleBindings(ns).Patch(t.Context(), "credentials-drift-orders", types.MergePatchType,
		[]byte(`{"subjects":[{"kind":"ServiceAccount","name":"default","namespace":"default"}]}`), metav1.PatchOptions{})
	require.NoError(t, err)
	install(t, ns, "Drift", "app", "more")
	awaitSecret(t, ns, "drift-orders.more.account")
	assert.Equal(t, []string{"drift-orders.app.account", "drift-orders.more.account"}, granted(t, ns, "drift-orders"))
	binding, err := admin().RbacV1().RoleBindings(ns).Get(t.Context(), "credentials-drift-orders", metav1.GetOptions{})
	require.NoError(t, err)
	require.Len(t, binding.Subjects, 1)
	assert.Equal(t, "projector", binding.Subjects[0].Name)
	assert.Equal(t, sandbox.Namespace, binding.Subjects[0].Namespace)
}

func TestANamespaceGetsItsAccountsWhenItIsEnrolled(t *testing.T) {
	r := run(t)
	const ns = "tenant-late"
	require.NoError(t, servers().AddNamespace(t.Context(), ns))
	serve(t, "Late", users)
	install(t, ns, "Late", "app")
	eventually(t, "the log says so", func() bool { return strings.Contains(r.log.String(), "not enrolled") })
	assert.Equal(t, 1, strings.Count(r.log.String(), "not enrolled"))
	require.NoError(t, servers().Enrol(t.Context(), ns))
	awaitSecret(t, ns, "late-orders.app.account")
}

func TestNoPasswordIsInTheLogOrInAnEvent(t *testing.T) {
	r := run(t)
	ns := tenant(t, "tenant-quiet")
	serve(t, "Quiet", object{"format": object{"name": "plaintext"}, "accounts": users["accounts"]})
	install(t, ns, "Quiet", "app", "...")
	stored := string(awaitSecret(t, ns, "quiet-orders.app.account").Data["password"])
	eventually(t, "an Event", func() bool { return len(events(t, ns, "AccountRefused")) == 1 })
	require.Len(t, stored, 32)
	r.stop()
	assert.False(t, strings.Contains(r.log.String(), stored))
	written, err := admin().CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, e := range written.Items {
		assert.False(t, strings.Contains(e.String(), stored))
	}
}
