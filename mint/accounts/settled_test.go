package accounts_test

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/mintlog/mintlog/mint/account"
	"github.com/mintlog/mintlog/mint/accounts"
	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/test/sandbox"
)

// A looker is an accounts role that looks when it is told to, by caches that are kept.
type looker struct {
	*accounts.Accounts
	caches *cluster.Cluster
	now    time.Time

	mu    sync.Mutex
	asked []string // of the API server since the last look began: verb and object
}

func newLooker(t *testing.T) *looker {
	t.Helper()
	l := &looker{now: time.Now()}
	config := as(t, "accounts")
	log := slog.New(slog.DiscardHandler)
	var err error
	l.caches, err = cluster.New(cluster.Options{Config: config, Log: log})
	require.NoError(t, err)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			if _, object, ok := strings.Cut(r.URL.Path, "/namespaces/tenant-"); ok {
				_, object, _ = strings.Cut(object, "/")
				l.mu.Lock()
				l.asked = append(l.asked, r.Method+" "+object)
				l.mu.Unlock()
			}
			return next.RoundTrip(r)
		})
	})
	l.Accounts, err = accounts.New(accounts.Options{
		Cluster: l.caches, Client: kubernetes.NewForConfigOrDie(config), Namespace: sandbox.Namespace,
		Now: func() time.Time { return l.now }, Random: rand.Reader, Log: log,
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(t, l.caches.Run(ctx)) })
	t.Cleanup(func() { cancel(); running.Wait() })
	require.NoError(t, l.caches.WaitForSync(ctx))
	return l
}

// look waits until the caches have an application as the API server has it, and returns what looking at it asked for.
func (l *looker) look(t *testing.T, namespace, name string) ([]string, error) {
	t.Helper()
	require.NoError(t, l.LoadSights(t.Context()))
	eventually(t, "the caches are up to date", func() bool {
		release, ok := l.caches.Release(namespace, name)
		return ok && l.caches.Readable(namespace) && release.ResourceVersion == helmRelease(t, namespace, name).GetResourceVersion() &&
			slices.Equal(l.cached(t, namespace), stored(t, namespace))
	})
	l.mu.Lock()
	l.asked = nil
	l.mu.Unlock()
	_, err := l.Look(t.Context(), types.NamespacedName{Namespace: namespace, Name: name})
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(l.asked)
	return l.asked, err
}

func (l *looker) cached(t *testing.T, namespace string) []string {
	t.Helper()
	secrets, err := l.caches.AccountSecrets(t.Context(), namespace)
	require.NoError(t, err)
	var versions []string
	for _, s := range secrets {
		versions = append(versions, s.Name+" "+s.ResourceVersion)
	}
	slices.Sort(versions)
	return versions
}

// stored are the account Secrets that there are, as cached has them.
func stored(t *testing.T, namespace string) []string {
	t.Helper()
	list, err := admin().CoreV1().Secrets(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: cluster.AccountLabel + "=true"})
	require.NoError(t, err)
	var versions []string
	for _, s := range list.Items {
		versions = append(versions, s.Name+" "+s.ResourceVersion)
	}
	slices.Sort(versions)
	return versions
}

func TestAnApplicationThatIsInStepCostsNoRequestBeforeItChangesOrIsInspected(t *testing.T) {
	ns := tenant(t, "tenant-settled")
	serve(t, "Settled", users)
	install(t, ns, "Settled", "app", "reader")
	l := newLooker(t)
	f := func(what string, want ...string) {
		t.Helper()
		asked, err := l.look(t, ns, "settled-orders")
		require.NoError(t, err)
		assert.Equal(t, want, asked, what)
	}
	f("it is new", "GET secrets/settled-orders-auth", "GET secrets/settled-orders-credentials",
		"POST rolebindings", "POST roles", "POST secrets", "POST secrets")
	f("its Secrets have come")
	inspection := []string{"GET rolebindings/credentials-settled-orders", "GET roles/credentials-settled-orders"}
	l.now = l.now.Add(time.Hour)
	f("an hour has passed", inspection...)
	f("it was just inspected")

	// Whatever changes is looked at, be it to no effect; and what is not watched is put right with it.
	_, err := admin().RbacV1().Roles(ns).Patch(t.Context(), "credentials-settled-orders", types.MergePatchType,
		[]byte(`{"rules":[{"apiGroups":[""],"resources":["secrets"],"resourceNames":["settled-orders.app.account"],"verbs":["get","patch"]}]}`), metav1.PatchOptions{})
	require.NoError(t, err)
	f("nobody tells of its grant")
	_, err = admin().CoreV1().Secrets(ns).Patch(t.Context(), "settled-orders.app.account", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"a":"b"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	f("a Secret has changed", append(slices.Clone(inspection), "PUT roles/credentials-settled-orders")...)
	f("all is in step again")
	patchRelease(t, ns, "settled-orders", `[{"op":"add","path":"/spec/suspend","value":true}]`)
	f("the HelmRelease has changed", inspection...)
	serve(t, "Settled", object{"format": users["format"], "accounts": users["accounts"], "secretLabels": users["secretLabels"], "valuesPath": "x.{username}"})
	eventually(t, "its definition has changed", func() bool { asked, _ := l.look(t, ns, "settled-orders"); return len(asked) > 0 })

	// What comes after it under its name is new.
	require.NoError(t, servers().DeleteRelease(t.Context(), ns, "settled-orders"))
	awaitNoSecret(t, ns, "settled-orders.app.account")
	awaitNoSecret(t, ns, "settled-orders.reader.account")
	awaitNoGrant(t, ns, "settled-orders")
	eventually(t, "that is known", func() bool { _, ok := l.caches.Release(ns, "settled-orders"); return !ok })
	_, err = l.Look(t.Context(), types.NamespacedName{Namespace: ns, Name: "settled-orders"})
	require.NoError(t, err)
	install(t, ns, "Settled", "app")
	_, err = l.look(t, ns, "settled-orders")
	require.NoError(t, err)
	assert.NotNil(t, secret(t, ns, "settled-orders.app.account"))
}

// recorded makes an application's Role as another replica of the accounts role does, with these logins found.
func recorded(t *testing.T, namespace, kind string, release types.UID, found string) {
	t.Helper()
	name := strings.ToLower(kind) + "-orders"
	_, err := admin().RbacV1().Roles(namespace).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{
			Name: "credentials-" + name, OwnerReferences: []metav1.OwnerReference{account.Owner(&cluster.Release{Name: name, UID: release})},
			Annotations: map[string]string{"credentials.cozystack.io/found": found, "credentials.cozystack.io/first-sight": sightOf(t, kind)},
		},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{name + ".app.account"}, Verbs: []string{"get", "patch"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

func sightOf(t *testing.T, kind string) string {
	t.Helper()
	kinds, err := admin().CoreV1().ConfigMaps(sandbox.Namespace).Get(t.Context(), "mintlog-kinds", metav1.GetOptions{})
	require.NoError(t, err)
	return kinds.Data[kind]
}

func TestAnApplicationThatLooksNewAndHasARecordIsSeededByItsRecord(t *testing.T) {
	ns := tenant(t, "tenant-known")
	serve(t, "Known", users)
	recorded(t, ns, "Known", install(t, ns, "Known", "app", "new"), `["app"]`)
	l := newLooker(t)
	asked, err := l.look(t, ns, "known-orders")
	require.ErrorContains(t, err, "another has just written it")
	assert.Equal(t, []string{"GET secrets/known-orders-auth", "GET secrets/known-orders-credentials", "POST roles"}, asked, "there is a Role: nothing else is done")
	_, err = l.look(t, ns, "known-orders")
	require.NoError(t, err)
	assert.Nil(t, secret(t, ns, "known-orders.app.account"), "it has a password already")
	assert.NotNil(t, secret(t, ns, "known-orders.new.account"))
	assert.Equal(t, []string{"app"}, found(t, ns, "known-orders"))
}

func TestARoleOfSomebodyElseIsInTheWayOfANewApplicationToo(t *testing.T) {
	ns := tenant(t, "tenant-taken")
	serve(t, "Taken", users)
	_, err := admin().RbacV1().Roles(ns).Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "credentials-taken-orders"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	install(t, ns, "Taken", "app")
	l := newLooker(t)
	_, err = l.look(t, ns, "taken-orders")
	require.ErrorContains(t, err, "another has just written it")
	asked, err := l.look(t, ns, "taken-orders")
	require.NoError(t, err)
	assert.NotContains(t, asked, "POST rolebindings")
	assert.Nil(t, secret(t, ns, "taken-orders.app.account"))
}

func TestAReplicaThatComesBackActsOnNothingThatItRemembers(t *testing.T) {
	ns := tenant(t, "tenant-returned")
	serve(t, "Returned", users)
	install(t, ns, "Returned", "app")
	one, other := newLooker(t), newLooker(t)
	look := func(l *looker) {
		t.Helper()
		_, err := l.look(t, ns, "returned-orders")
		require.NoError(t, err)
	}
	look(one)
	look(one)

	// While the other is at work an account comes whose password a chart keeps, and goes.
	chart := "returned-orders-credentials"
	_, err := admin().CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: chart}, StringData: map[string]string{"late": "x"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	install(t, ns, "Returned", "app", "late")
	look(other)
	require.Equal(t, []string{"late"}, found(t, ns, "returned-orders"))
	require.NoError(t, admin().CoreV1().Secrets(ns).Delete(t.Context(), chart, metav1.DeleteOptions{}))

	look(one)
	assert.Nil(t, secret(t, ns, "returned-orders.late.account"), "what the other recorded holds")
	install(t, ns, "Returned", "app")
	look(other)
	install(t, ns, "Returned", "app", "late", "more")
	look(one)
	assert.Nil(t, secret(t, ns, "returned-orders.late.account"))
	assert.NotNil(t, secret(t, ns, "returned-orders.more.account"))
}
