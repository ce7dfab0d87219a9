package chart

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/mintlog/mintlog/mint/enrolment"
	"github.com/mintlog/mintlog/test/sandbox"
)

func enroller(user string) *enrolment.Enroller {
	return &enrolment.Enroller{
		Client:     kubernetes.NewForConfigOrDie(as(user)),
		Identities: enrolment.Identities{Namespace: sandbox.Namespace, Mint: "mint", Accounts: "accounts", Projector: "projector"},
	}
}

// fresh is a namespace that is not enrolled.
func fresh(t *testing.T, name string) string {
	t.Helper()
	require.NoError(t, cluster.AddNamespace(t.Context(), name))
	return name
}

func done(changes []enrolment.Change) []string {
	var all []string
	for _, c := range changes {
		all = append(all, c.Object+" "+c.Done)
	}
	return all
}

// may asks kube-apiserver what a user may do with a Secret, or with all.
func may(t *testing.T, user, verb, namespace, secret string) bool {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Resource: "secrets", Name: secret},
	}}
	if rest, ok := strings.CutPrefix(user, "system:serviceaccount:"); ok {
		namespace, _, _ := strings.Cut(rest, ":")
		review.Spec.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}
	}
	got, err := cluster.Kubernetes(sandbox.ClusterAdmin, 0).AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
	require.NoError(t, err)
	return got.Status.Allowed
}

func TestANamespaceIsEnrolledOnce(t *testing.T) {
	namespace := fresh(t, "tenant-enrolled-once")
	e := enroller(admin)
	require.NoError(t, e.Check(t.Context()))

	e.DryRun = true
	changes, err := e.Enroll(t.Context(), namespace)
	require.NoError(t, err)
	require.Equal(t, []string{"rolebinding mintlog-mint created", "rolebinding mintlog-accounts created"}, done(changes))
	require.Empty(t, named(t, namespace, "mintlog-"))

	e.DryRun = false
	changes, err = e.Enroll(t.Context(), namespace)
	require.NoError(t, err)
	require.Equal(t, []string{"rolebinding mintlog-mint created", "rolebinding mintlog-accounts created"}, done(changes))
	within(t, 3*time.Minute, func() error {
		if !may(t, mint, "list", namespace, "") || !may(t, accounts, "delete", namespace, "") {
			return fmt.Errorf("the roles are not let in yet")
		}
		return nil
	})
	changes, err = e.Enroll(t.Context(), namespace)
	require.NoError(t, err)
	require.Equal(t, []string{"rolebinding mintlog-mint unchanged", "rolebinding mintlog-accounts unchanged"}, done(changes))
}

func TestABindingThatWasChangedIsPutRight(t *testing.T) {
	namespace := fresh(t, "tenant-changed")
	bindings := cluster.Kubernetes(sandbox.ClusterAdmin, 0).RbacV1().RoleBindings(namespace)
	for name, role := range map[string]string{enrolment.MintRole: enrolment.MintRole, enrolment.AccountsRole: "view"} {
		_, err := bindings.Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "elsewhere", Name: "mint"}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	changes, err := enroller(admin).Enroll(t.Context(), namespace)
	require.NoError(t, err)
	require.Equal(t, []string{"rolebinding mintlog-mint updated", "rolebinding mintlog-accounts replaced"}, done(changes))
	for _, name := range []string{"mint", "accounts"} {
		b, err := bindings.Get(t.Context(), "mintlog-"+name, metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, "mintlog-"+name, b.RoleRef.Name)
		require.Equal(t, []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "mintlog", Name: name}}, b.Subjects)
	}
}

func TestWhatIsInTheWayOfEnrolmentIsNamed(t *testing.T) {
	_, err := enroller(admin).Enroll(t.Context(), "no-such-namespace")
	require.ErrorContains(t, err, "there is no namespace no-such-namespace")
	_, err = enroller(admin).Unenroll(t.Context(), "no-such-namespace")
	require.ErrorContains(t, err, "there is no namespace no-such-namespace")

	e := enroller(admin)
	e.Identities.Namespace = "elsewhere"
	require.ErrorContains(t, e.Check(t.Context()), "there is no ServiceAccount mint in the namespace elsewhere")

	// Who may write RoleBindings, and neither bind the role nor holds what it grants.
	namespace := fresh(t, "tenant-in-the-way")
	for _, o := range []map[string]any{
		{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": map[string]any{"name": "binder"}, "rules": []any{
			map[string]any{"apiGroups": []any{"rbac.authorization.k8s.io"}, "resources": []any{"rolebindings"}, "verbs": []any{"*"}},
			map[string]any{"apiGroups": []any{""}, "resources": []any{"namespaces"}, "verbs": []any{"get"}},
		}},
		{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": map[string]any{"name": "binder"},
			"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "binder"},
			"subjects": []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "mallory"}}},
	} {
		_, err := cluster.Apply(t.Context(), "", o)
		require.NoError(t, err)
	}
	within(t, 3*time.Minute, func() error {
		_, err = enroller("mallory").Enroll(t.Context(), namespace)
		if err == nil || !strings.Contains(err.Error(), "hold what it grants") || !strings.Contains(err.Error(), "attempting to grant") {
			return fmt.Errorf("the error is %w", err)
		}
		return nil
	})
	require.Empty(t, named(t, namespace, "mintlog-"))
}

// named are the names of the Roles and RoleBindings of a namespace that begin in a way.
func named(t *testing.T, namespace, prefix string) []string {
	t.Helper()
	client := cluster.Kubernetes(sandbox.ClusterAdmin, 0).RbacV1()
	var all []string
	bindings, err := client.RoleBindings(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, b := range bindings.Items {
		all = append(all, "rolebinding "+b.Name)
	}
	roles, err := client.Roles(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, r := range roles.Items {
		all = append(all, "role "+r.Name)
	}
	return slices.DeleteFunc(all, func(name string) bool {
		_, name, _ = strings.Cut(name, " ")
		return !strings.HasPrefix(name, prefix)
	})
}

// mintlog runs the command as the cluster's admin.
func mintlog(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	return run(t, nil, "mintlog", append(arguments, "--kubeconfig", cluster.Kubeconfig(sandbox.ClusterAdmin, 0))...)
}

func TestANamespaceThatIsTakenOutKeepsNoRoleAndNoBinding(t *testing.T) {
	namespace := fresh(t, "tenant-out")
	other := fresh(t, "tenant-stays")
	out, err := mintlog(t, "enroll", namespace, other)
	require.NoError(t, err, out)

	// The accounts role at work: grants of two applications, and one more of a name that is not declared any more.
	working, err := cluster.Run(t.Context(), "accounts-for-enrolment", "bin/mintlog", "accounts", "--metrics-address=",
		"--kubeconfig="+accountsKubeconfig(t))
	require.NoError(t, err)
	require.NoError(t, cluster.InstallDefinition(t.Context(), "Postgres", map[string]any{
		"format": map[string]any{"name": "scram-sha-256"}, "accounts": []any{map[string]any{"kind": "ValuesMap", "path": "users"}},
	}))
	require.NoError(t, cluster.AwaitFirstSight(t.Context(), "Postgres"))
	for _, n := range []string{namespace, other} {
		for _, application := range []string{"one", "two"} {
			_, err := cluster.InstallRelease(t.Context(), n, "Postgres", application, map[string]any{"users": map[string]any{"app": map[string]any{}}})
			require.NoError(t, err)
		}
		require.NoError(t, cluster.AwaitAccounts(t.Context(), n, 2))
	}
	want := []string{"rolebinding credentials-postgres-one", "rolebinding credentials-postgres-two", "role credentials-postgres-one", "role credentials-postgres-two"}
	require.Equal(t, want, named(t, namespace, "credentials-"))
	labelled, err := run(t, nil, "kubectl", "--kubeconfig", cluster.Kubeconfig(admin, 0), "get", "roles,rolebindings", "--namespace", namespace,
		"--selector", "credentials.cozystack.io/grant=true", "--output", "name")
	require.NoError(t, err, labelled)
	require.Equal(t, len(want), strings.Count(labelled, "\n"), labelled)

	within(t, 3*time.Minute, func() error { // until kube-apiserver's authorizer knows of the grants
		for _, n := range []string{namespace, other} {
			for _, secret := range []string{"postgres-one.app.account", "postgres-two.app.account"} {
				if !may(t, projector, "patch", n, secret) || !may(t, mint, "list", n, "") || !may(t, accounts, "list", n, "") {
					return fmt.Errorf("what was granted in %s is not known yet", n)
				}
			}
		}
		return nil
	})
	t.Run("each identity reaches what it must and nothing else", func(t *testing.T) { matrix(t, namespace, other) })

	// What a tenant made stays, though it is named alike.
	must(t, admin, "post", "/apis/rbac.authorization.k8s.io/v1/namespaces/"+namespace+"/roles",
		`{"metadata": {"name": "credentials-of-mine", "annotations": {"credentials.cozystack.io/mine": "yes"}}, "rules": []}`)

	out, err = mintlog(t, "unenroll", namespace, "--dry-run")
	require.NoError(t, err, out)
	require.Contains(t, out, "rolebinding credentials-postgres-one deleted (dry run)")
	require.Len(t, named(t, namespace, ""), len(named(t, other, ""))+1)

	out, err = mintlog(t, "enrolled")
	require.NoError(t, err, out)
	require.Regexp(t, namespace+` +yes +yes +2 +-\n`, out)

	out, err = mintlog(t, "unenroll", namespace)
	require.NoError(t, err, out)
	require.Contains(t, out, namespace+": 2 account Secrets stay\n")
	require.Less(t, strings.Index(out, "rolebinding mintlog-accounts deleted"), strings.Index(out, "rolebinding credentials-postgres-one deleted"), out)
	require.Less(t, strings.Index(out, "rolebinding credentials-postgres-two deleted"), strings.Index(out, "role credentials-postgres-one deleted"), out)
	require.Equal(t, []string{"role credentials-of-mine"}, slices.Concat(named(t, namespace, "credentials-"), named(t, namespace, "mintlog-")))
	within(t, 3*time.Minute, func() error {
		for _, user := range []string{mint, accounts, projector} {
			for _, verb := range []string{"get", "list", "patch"} {
				if may(t, user, verb, namespace, "postgres-one.app.account") {
					return fmt.Errorf("%s may still %s", user, verb)
				}
			}
		}
		return nil
	})
	require.Equal(t, want, named(t, other, "credentials-"), "the other namespace keeps its grants")

	out, err = mintlog(t, "enrolled")
	require.NoError(t, err, out)
	require.NotContains(t, out, namespace)
	out, err = mintlog(t, "unenroll", namespace)
	require.NoError(t, err, "a second time: %s", out)

	// An application that goes takes its grant along.
	require.NoError(t, cluster.DeleteRelease(t.Context(), other, "postgres-two"))
	within(t, 3*time.Minute, func() error {
		if got := named(t, other, "credentials-"); !slices.Equal([]string{want[0], want[2]}, got) {
			return fmt.Errorf("there are %v", got)
		}
		return nil
	})

	// And in again: the accounts role makes the same grants anew. It would look within a
	// minute or so; a restart looks at once.
	out, err = mintlog(t, "enroll", namespace)
	require.NoError(t, err, out)
	require.NoError(t, working.Restart(t.Context()))
	t.Cleanup(func() { require.NoError(t, working.Stop()) })
	within(t, 3*time.Minute, func() error {
		if got := named(t, namespace, "credentials-postgres-"); !slices.Equal(want, got) {
			return fmt.Errorf("there are %v", got)
		}
		return nil
	})
}

func accountsKubeconfig(t *testing.T) string {
	t.Helper()
	file, err := cluster.ServiceAccountKubeconfig(t.Context(), "accounts", 0)
	require.NoError(t, err)
	return file
}

// matrix asks what each identity may do with an account Secret, one of a sibling application, one in another namespace,
// one in a namespace that is not enrolled, and a Secret that is no account's. RBAC knows no labels: one without its label
// is like any other.
func matrix(t *testing.T, namespace, other string) {
	aloof := fresh(t, "tenant-aloof")
	type secret struct{ namespace, name string }
	secrets := map[string]secret{
		"its account":          {namespace, "postgres-one.app.account"},
		"a sibling's account":  {namespace, "postgres-two.app.account"},
		"another namespace's":  {other, "postgres-one.app.account"},
		"one that is no grant": {namespace, "postgres-one.gone.account"},
		"an ordinary one":      {namespace, "cozystack-values"},
		"not enrolled":         {aloof, "postgres-one.app.account"},
		"kube-system's":        {"kube-system", "postgres-one.app.account"},
		"its own namespace's":  {sandbox.Namespace, "mint-tls"},
		"the policies' probe":  {sandbox.Namespace, "mintlog-policy-probe"},
	}
	enrolled := []string{"its account", "a sibling's account", "another namespace's", "one that is no grant", "an ordinary one"}
	granted := []string{"its account", "a sibling's account", "another namespace's"}
	probe := []string{"the policies' probe"}
	rights := map[string]map[string][]string{
		mint:                                     {"get": enrolled, "list": enrolled, "watch": enrolled, "create": enrolled, "update": enrolled, "patch": probe},
		accounts:                                 {"get": enrolled, "list": enrolled, "watch": enrolled, "create": enrolled, "patch": append(slices.Clone(enrolled), probe...), "delete": enrolled},
		projector:                                {"get": granted, "patch": append(slices.Clone(granted), probe...)},
		"system:serviceaccount:mintlog:ingest":   {},
		"system:serviceaccount:mintlog:archiver": {},
		"system:serviceaccount:mintlog:streams":  {},
		"system:serviceaccount:mintlog:default":  {},
	}
	for user, rights := range rights {
		for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"} {
			for _, which := range slices.Sorted(maps.Keys(secrets)) {
				s := secrets[which]
				require.Equal(t, slices.Contains(rights[verb], which), may(t, user, verb, s.namespace, s.name), "%s: %s %s (%s/%s)", user, verb, which, s.namespace, s.name)
			}
			require.False(t, may(t, user, verb, "", ""), "%s: %s in all namespaces", user, verb)
		}
		for _, verb := range []string{"get", "list", "watch", "patch"} {
			if user == projector {
				require.False(t, may(t, user, verb, namespace, ""), "%s: %s without a name", user, verb)
			}
		}
	}
}
