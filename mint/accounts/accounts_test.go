package accounts_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mintlog/mintlog/mint/account"
	"github.com/mintlog/mintlog/mint/accounts"
	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/mint/webhook"
	"github.com/mintlog/mintlog/store/ledger"
	"github.com/mintlog/mintlog/test/output"
	"github.com/mintlog/mintlog/test/sandbox"
)

type object = map[string]any

// servers starts the sandbox at its first use, so that the tests of the rule alone need none.
var servers = sync.OnceValue(func() *sandbox.Sandbox {
	s, err := sandbox.Start(interruptible, sandbox.Options{Apiservers: 1, Log: os.Stderr})
	if err != nil {
		fmt.Fprintln(os.Stderr, "the real servers are needed (make tools):", err)
		os.Exit(1)
	}
	started = s
	return s
})

var (
	interruptible context.Context
	started       *sandbox.Sandbox
)

func TestMain(m *testing.M) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	interruptible = ctx
	code := m.Run()
	if started != nil {
		if err := started.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// as is the identity of one of mintlog's service accounts.
func as(t *testing.T, name string) *rest.Config {
	t.Helper()
	file, err := servers().ServiceAccountKubeconfig(t.Context(), name, 0)
	require.NoError(t, err)
	config, err := clientcmd.BuildConfigFromFlags("", file)
	require.NoError(t, err)
	config.QPS = -1
	return config
}

// A role is a running accounts role.
type role struct {
	stop   func()
	gather prometheus.Gatherer
	log    *output.Buffer
}

// run starts the accounts role with its own identity; it ends with the test, or with stop.
func run(t *testing.T) *role {
	t.Helper()
	return runWith(t, as(t, "accounts"))
}

func runWith(t *testing.T, config *rest.Config, changes ...func(*accounts.Options)) *role {
	t.Helper()
	reviewed := make(chan struct{})
	hasReviewed := sync.OnceFunc(func() { close(reviewed) })
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			answer, err := next.RoundTrip(r)
			if strings.HasSuffix(r.URL.Path, "/configmaps/mintlog-kinds") {
				hasReviewed()
			}
			return answer, err
		})
	})
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	r := &role{log: &output.Buffer{}}
	registry := prometheus.NewRegistry()
	r.gather = registry
	log := slog.New(slog.NewTextHandler(r.log, nil))
	caches, err := cluster.New(cluster.Options{Config: config, Log: log})
	require.NoError(t, err)
	options := accounts.Options{
		Cluster: caches, Client: client, Namespace: sandbox.Namespace, Webhooks: webhook.New(webhook.Options{}),
		Random: rand.Reader, Log: log, Registerer: registry,
	}
	for _, change := range changes {
		change(&options)
	}
	a, err := accounts.New(options)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	results := make(chan error, 2)
	running.Go(func() { results <- caches.Run(ctx) })
	running.Go(func() { results <- a.Run(ctx) })
	r.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		assert.NoError(t, errors.Join(<-results, <-results))
	})
	t.Cleanup(r.stop)
	select {
	case <-reviewed: // kinds that are recorded from here on it takes for no old ones whose definition has gone
	case <-time.After(time.Minute):
		require.Fail(t, "the role has not looked at its record of kinds within a minute")
	}
	return r
}

// writes is how many objects the role has written.
func (r *role) writes(t *testing.T) float64 {
	t.Helper()
	return r.counted(t, "mintlog_accounts_writes_total")
}

func (r *role) counted(t *testing.T, name string) float64 {
	t.Helper()
	families, err := r.gather.Gather()
	require.NoError(t, err)
	total := 0.0
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			total += m.GetCounter().GetValue()
		}
	}
	return total
}

func admin() kubernetes.Interface { return servers().Kubernetes(sandbox.ClusterAdmin, 0) }

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(90 * time.Second); !holds(); time.Sleep(50 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "in vain waited for: %s", what)
	}
}

// never is for what would have happened within the time that it watches.
func never(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(1500 * time.Millisecond); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		require.False(t, holds(), what)
	}
}

func secret(t *testing.T, namespace, name string) *corev1.Secret {
	t.Helper()
	s, err := admin().CoreV1().Secrets(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(t, err)
	return s
}

func awaitSecret(t *testing.T, namespace, name string) *corev1.Secret {
	t.Helper()
	eventually(t, "the Secret "+name, func() bool { return secret(t, namespace, name) != nil })
	return secret(t, namespace, name)
}

func awaitNoSecret(t *testing.T, namespace, name string) {
	t.Helper()
	eventually(t, "the Secret "+name+" goes", func() bool { return secret(t, namespace, name) == nil })
}

func tenant(t *testing.T, name string) string {
	t.Helper()
	require.NoError(t, servers().AddTenant(t.Context(), name))
	t.Cleanup(func() { // later roles would look at its applications too
		releases := dynamic.NewForConfigOrDie(servers().RESTConfig(sandbox.ClusterAdmin, 0)).Resource(sandbox.HelmReleases).Namespace(name)
		require.NoError(t, releases.DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	})
	return name
}

var users = object{"format": object{"name": "sha256"}, "accounts": []any{object{"kind": "ValuesMap", "path": "users"}}, "secretLabels": object{"cnpg.io/reload": "true"}}

func define(t *testing.T, kind string, block object) {
	t.Helper()
	require.NoError(t, servers().InstallDefinition(t.Context(), kind, block))
}

// serve defines a kind whose block was first seen an hour ago, so that what is created now is younger.
func serve(t *testing.T, kind string, block object) {
	t.Helper()
	serveSince(t, kind, block, time.Now().Add(-time.Hour))
}

func serveSince(t *testing.T, kind string, block object, first time.Time) {
	t.Helper()
	kinds := admin().CoreV1().ConfigMaps(sandbox.Namespace)
	seen := map[string]string{kind: first.UTC().Format(time.RFC3339)}
	patch, err := json.Marshal(object{"data": seen})
	require.NoError(t, err)
	eventually(t, "a first sight of "+kind+" is recorded", func() bool {
		_, err := kinds.Patch(t.Context(), "mintlog-kinds", types.MergePatchType, patch, metav1.PatchOptions{})
		if apierrors.IsNotFound(err) {
			_, err = kinds.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "mintlog-kinds"}, Data: seen}, metav1.CreateOptions{})
		}
		return err == nil
	})
	define(t, kind, block)
}

func install(t *testing.T, namespace, kind string, names ...string) types.UID {
	t.Helper()
	declared := object{}
	for _, n := range names {
		declared[n] = object{}
	}
	release, err := servers().InstallRelease(t.Context(), namespace, kind, "orders", object{"users": declared})
	require.NoError(t, err)
	return release.GetUID()
}

// awaitSight waits until a kind's block was seen long enough ago that what is created now is younger.
func awaitSight(t *testing.T, kind string) {
	t.Helper()
	eventually(t, "the first sight of "+kind, func() bool {
		m, err := admin().CoreV1().ConfigMaps(sandbox.Namespace).Get(t.Context(), "mintlog-kinds", metav1.GetOptions{})
		if err != nil {
			return false
		}
		at, err := time.Parse(time.RFC3339, m.Data[kind])
		return err == nil && time.Since(at) >= 2*time.Second
	})
}

// patchRelease applies a JSON patch to a HelmRelease.
func patchRelease(t *testing.T, namespace, name, patch string) {
	t.Helper()
	releases := dynamic.NewForConfigOrDie(servers().RESTConfig(sandbox.ClusterAdmin, 0)).Resource(sandbox.HelmReleases).Namespace(namespace)
	_, err := releases.Patch(t.Context(), name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(t, err)
}

func found(t *testing.T, namespace, release string) []string {
	t.Helper()
	var names []string
	eventually(t, "the record of "+release, func() bool {
		r, err := admin().RbacV1().Roles(namespace).Get(t.Context(), "credentials-"+release, metav1.GetOptions{})
		return err == nil && json.Unmarshal([]byte(r.Annotations["credentials.cozystack.io/found"]), &names) == nil
	})
	return names
}

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

func events(t *testing.T, namespace, reason string) []corev1.Event {
	t.Helper()
	list, err := admin().CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var matching []corev1.Event
	for _, e := range list.Items {
		if e.Reason == reason && e.InvolvedObject.Kind == "HelmRelease" {
			matching = append(matching, e)
		}
	}
	return matching
}

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

func TestTheProjectorReachesTheAccountSecretsByNameAndNoOther(t *testing.T) {
	run(t)
	ns := tenant(t, "tenant-granted")
	serve(t, "Granted", users)
	install(t, ns, "Granted", "app")
	awaitSecret(t, ns, "granted-orders.app.account")
	_, err := admin().CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "another"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	projector := kubernetes.NewForConfigOrDie(as(t, "projector")).CoreV1().Secrets(ns)
	_, err = projector.Get(t.Context(), "granted-orders.app.account", metav1.GetOptions{})
	require.NoError(t, err)
	_, err = projector.Get(t.Context(), "another", metav1.GetOptions{})
	assert.True(t, apierrors.IsForbidden(err))
	_, err = projector.List(t.Context(), metav1.ListOptions{})
	assert.True(t, apierrors.IsForbidden(err))
	err = projector.Delete(t.Context(), "granted-orders.app.account", metav1.DeleteOptions{})
	assert.True(t, apierrors.IsForbidden(err))
}

func TestOfAnApplicationThatRanBeforeItsKindHadABlockNothingIsSeededAndNothingChanges(t *testing.T) {
	ns := tenant(t, "tenant-before")
	define(t, "Before", nil)
	install(t, ns, "Before", "app", "reporter")
	charts, err := admin().CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "before-orders-credentials"}, StringData: map[string]string{"app": "x", "reporter": "y", "late": "z"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	r := run(t)
	define(t, "Before", users)
	awaitSight(t, "Before")
	assert.ElementsMatch(t, []string{"app", "reporter"}, found(t, ns, "before-orders"))
	never(t, "a Secret for an account that ran before", func() bool {
		return secret(t, ns, "before-orders.app.account") != nil || secret(t, ns, "before-orders.reporter.account") != nil
	})
	assert.Equal(t, []string{"before-orders.app.account", "before-orders.reporter.account"}, granted(t, ns, "before-orders"), "for a mint by name")
	assert.Equal(t, charts, secret(t, ns, "before-orders-credentials"))

	// Nor after a restart.
	r.stop()
	run(t)
	install(t, ns, "Before", "app", "reporter", "new", "late")
	awaitSecret(t, ns, "before-orders.new.account")
	never(t, "a Secret for an account whose password is elsewhere", func() bool {
		return secret(t, ns, "before-orders.late.account") != nil || secret(t, ns, "before-orders.app.account") != nil
	})
	assert.ElementsMatch(t, []string{"app", "late", "reporter"}, found(t, ns, "before-orders"))

	// And what was taken for the charts' is not seeded when their Secret goes.
	require.NoError(t, admin().CoreV1().Secrets(ns).Delete(t.Context(), "before-orders-credentials", metav1.DeleteOptions{}))
	install(t, ns, "Before", "app", "reporter", "new", "late", "newer")
	awaitSecret(t, ns, "before-orders.newer.account")
	assert.Nil(t, secret(t, ns, "before-orders.late.account"))
}

func TestASharedPasswordOfAChartKeepsEveryAccountFromBeingSeeded(t *testing.T) {
	run(t)
	ns := tenant(t, "tenant-shared")
	serve(t, "Shared", users)
	_, err := admin().CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "shared-orders-auth"}, StringData: map[string]string{"password": "x"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	install(t, ns, "Shared", "default")
	assert.Equal(t, []string{"default"}, found(t, ns, "shared-orders"))
	never(t, "a Secret", func() bool { return secret(t, ns, "shared-orders.default.account") != nil })
}

// stopped is an accounts role whose cache is as it is now: from here on it is behind.
func stopped(t *testing.T) (*accounts.Accounts, *cluster.Cluster) {
	t.Helper()
	config := as(t, "accounts")
	log := slog.New(slog.DiscardHandler)
	caches, err := cluster.New(cluster.Options{Config: config, Log: log})
	require.NoError(t, err)
	a, err := accounts.New(accounts.Options{Cluster: caches, Client: kubernetes.NewForConfigOrDie(config), Namespace: sandbox.Namespace, Random: rand.Reader, Log: log})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(t, caches.Run(ctx)) })
	require.NoError(t, caches.WaitForSync(ctx))
	cancel()
	running.Wait()
	return a, caches
}

// minted is an account Secret of an application as a mint creates it, of an account that is declared nowhere yet.
func minted(t *testing.T, release *cluster.Release, block definition.Block) *corev1.Secret {
	t.Helper()
	s, err := admin().CoreV1().Secrets(release.Namespace).Create(t.Context(), account.NewSecret(release,
		definition.Account{Username: "new", SecretName: release.Name + ".new.account"}, block), metav1.CreateOptions{})
	require.NoError(t, err)
	return s
}

func TestACacheThatIsBehindDeletesNoAccountThatWasJustAddedAndMinted(t *testing.T) {
	ns := tenant(t, "tenant-behind")
	define(t, "Behind", users)
	install(t, ns, "Behind", "app")
	a, caches := stopped(t)
	stale, ok := caches.Release(ns, "behind-orders")
	require.True(t, ok)
	served, ok := caches.Definition("Behind")
	require.True(t, ok)
	install(t, ns, "Behind", "app", "new")
	fresh := minted(t, stale, served.Block)
	require.NoError(t, a.RemoveUndeclared(t.Context(), stale, served.Block, fresh))
	assert.NotNil(t, secret(t, ns, fresh.Name))

	// Values that are no object are no word that it is gone.
	patchRelease(t, ns, "behind-orders", `[{"op":"replace","path":"/spec/values","value":"app"}]`)
	require.NoError(t, a.RemoveUndeclared(t.Context(), stale, served.Block, fresh))
	assert.NotNil(t, secret(t, ns, fresh.Name))

	install(t, ns, "Behind", "app")
	_, err := admin().CoreV1().Secrets(ns).Patch(t.Context(), fresh.Name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"x":"y"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.ErrorContains(t, a.RemoveUndeclared(t.Context(), stale, served.Block, fresh), "has just changed", "it may have been minted")
	require.NotNil(t, secret(t, ns, fresh.Name))
	require.NoError(t, a.RemoveUndeclared(t.Context(), stale, served.Block, secret(t, ns, fresh.Name)))
	assert.Nil(t, secret(t, ns, fresh.Name))
}

func TestAnApplicationOrDefinitionThatHasChangedItsKindDeletesNothing(t *testing.T) {
	ns := tenant(t, "tenant-kind")
	define(t, "Kind", users)
	install(t, ns, "Kind", "app")
	a, caches := stopped(t)
	stale, ok := caches.Release(ns, "kind-orders")
	require.True(t, ok)
	served, ok := caches.Definition("Kind")
	require.True(t, ok)
	undeclared := minted(t, stale, served.Block)
	relabel := func(kind string) {
		patchRelease(t, ns, "kind-orders", `[{"op":"replace","path":"/metadata/labels/apps.cozystack.io~1application.kind","value":"`+kind+`"}]`)
	}
	redefine := func(kind, path string) {
		definitions := dynamic.NewForConfigOrDie(servers().RESTConfig(sandbox.ClusterAdmin, 0)).Resource(sandbox.ApplicationDefinitions)
		_, err := definitions.Patch(t.Context(), "kind", types.MergePatchType,
			[]byte(`{"spec":{"application":{"kind":"`+kind+`"},"credentials":{"accounts":[{"kind":"ValuesMap","path":"`+path+`"}]}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	relabel("Another")
	require.NoError(t, a.RemoveUndeclared(t.Context(), stale, served.Block, undeclared))
	assert.NotNil(t, secret(t, ns, undeclared.Name))
	relabel("Kind")
	redefine("Another", "others")
	require.NoError(t, a.RemoveUndeclared(t.Context(), stale, served.Block, undeclared))
	assert.NotNil(t, secret(t, ns, undeclared.Name))
	redefine("Kind", "users")
	require.NoError(t, a.RemoveUndeclared(t.Context(), stale, served.Block, undeclared))
	assert.Nil(t, secret(t, ns, undeclared.Name))
}

func TestABlockThatIsTakenAwayDeletesNothingAndBeginsAnewWhenItComesBack(t *testing.T) {
	r := run(t)
	ns := tenant(t, "tenant-block")
	define(t, "Block", users)
	awaitSight(t, "Block")
	install(t, ns, "Block", "app")
	before := awaitSecret(t, ns, "block-orders.app.account")

	r.stop() // it goes while nobody looks
	define(t, "Block", nil)
	run(t)
	install(t, ns, "Block", "between")
	eventually(t, "the kind is forgotten", func() bool {
		m, err := admin().CoreV1().ConfigMaps(sandbox.Namespace).Get(t.Context(), "mintlog-kinds", metav1.GetOptions{})
		_, there := m.Data["Block"]
		return err == nil && !there
	})
	never(t, "the Secret changes", func() bool { return !assert.ObjectsAreEqual(before, secret(t, ns, "block-orders.app.account")) })

	install(t, ns, "Block", "app", "between")
	define(t, "Block", users)
	awaitSight(t, "Block")
	eventually(t, "what came between is found", func() bool { return len(found(t, ns, "block-orders")) == 2 })
	never(t, "what came between is seeded", func() bool { return secret(t, ns, "block-orders.between.account") != nil })
	assert.Equal(t, before, secret(t, ns, "block-orders.app.account"))
}

func TestABlockThatIsNotUnderstoodDeletesNothing(t *testing.T) {
	r := run(t)
	ns := tenant(t, "tenant-unserved")
	serve(t, "Unserved", users)
	install(t, ns, "Unserved", "app", "old")
	awaitSecret(t, ns, "unserved-orders.app.account")
	old := awaitSecret(t, ns, "unserved-orders.old.account")
	define(t, "Unserved", object{"format": object{"name": "rot13"}, "accounts": users["accounts"]})
	eventually(t, "the log says why", func() bool { return strings.Contains(r.log.String(), "rot13") })
	install(t, ns, "Unserved", "app")
	never(t, "a Secret is deleted", func() bool { return secret(t, ns, "unserved-orders.old.account") == nil })
	define(t, "Unserved", users)
	awaitNoSecret(t, ns, "unserved-orders.old.account")
	assert.NotNil(t, old)
}

func TestASourceThatFailsDeletesNothingAndIsReportedOnce(t *testing.T) {
	r := run(t)
	ns := tenant(t, "tenant-source")
	serve(t, "Source", users)
	install(t, ns, "Source", "app")
	before := awaitSecret(t, ns, "source-orders.app.account")
	for _, wrong := range []any{"app", "app again"} {
		_, err := servers().InstallRelease(t.Context(), ns, "Source", "orders", object{"users": wrong})
		require.NoError(t, err)
	}
	eventually(t, "an Event", func() bool { return len(events(t, ns, "AccountsUnknown")) == 1 })
	never(t, "anything else", func() bool {
		e := events(t, ns, "AccountsUnknown")
		return !assert.ObjectsAreEqual(before, secret(t, ns, "source-orders.app.account")) || len(e) != 1 || e[0].Count > 1
	})
	assert.Contains(t, events(t, ns, "AccountsUnknown")[0].Message, "the value at users is no map")
	assert.Equal(t, 1.0, r.counted(t, "mintlog_accounts_problems_total"))
}

func TestValuesThatAreNoObjectAreASourceThatFails(t *testing.T) {
	run(t)
	ns := tenant(t, "tenant-values")
	serve(t, "Values", users)
	install(t, ns, "Values", "app")
	before := awaitSecret(t, ns, "values-orders.app.account")
	patchRelease(t, ns, "values-orders", `[{"op":"replace","path":"/spec/values","value":"app"}]`)
	eventually(t, "an Event", func() bool { return len(events(t, ns, "AccountsUnknown")) == 1 })
	assert.Contains(t, events(t, ns, "AccountsUnknown")[0].Message, "spec.values of its HelmRelease is no object")
	never(t, "the Secret goes or changes", func() bool { return !assert.ObjectsAreEqual(before, secret(t, ns, before.Name)) })
}

func TestASecretThatIsNotOursIsNeverTouched(t *testing.T) {
	ns := tenant(t, "tenant-foreign")
	create := func(name string, labels map[string]string, username string) *corev1.Secret {
		s, err := admin().CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Type: corev1.SecretTypeBasicAuth,
			StringData: map[string]string{"username": username, "password": "theirs"},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		return s
	}
	unlabelled := create("foreign-orders.app.account", nil, "app")
	labelled := create("foreign-orders.other.account", map[string]string{cluster.AccountLabel: "true"}, "somebody")
	time.Sleep(time.Second) // so that the application is younger
	r := run(t)
	serve(t, "Foreign", users)
	install(t, ns, "Foreign", "app", "other", "fine")
	awaitSecret(t, ns, "foreign-orders.fine.account")
	eventually(t, "an Event", func() bool {
		return len(events(t, ns, "ForeignSecret")) == 1 && len(events(t, ns, "AccountRefused")) == 1
	})
	assert.Contains(t, events(t, ns, "ForeignSecret")[0].Message, "foreign-orders.app.account")
	install(t, ns, "Foreign", "app", "other", "fine", "more")
	awaitSecret(t, ns, "foreign-orders.more.account")
	install(t, ns, "Foreign", "fine")
	awaitNoSecret(t, ns, "foreign-orders.more.account")
	assert.Equal(t, unlabelled, secret(t, ns, "foreign-orders.app.account"))
	assert.Equal(t, labelled, secret(t, ns, "foreign-orders.other.account"))
	assert.Len(t, events(t, ns, "ForeignSecret"), 1)
	assert.Equal(t, 2.0, r.counted(t, "mintlog_accounts_problems_total"))
}

func TestInTheSteadyStateNothingIsWritten(t *testing.T) {
	r := run(t)
	ns := tenant(t, "tenant-steady")
	serve(t, "Steady", users)
	install(t, ns, "Steady", "app", "Report.Reader")
	awaitSecret(t, ns, "steady-orders.app.account")
	awaitSecret(t, ns, "steady-orders.report-reader.account")
	const all = 4 // two Secrets, the role and its binding
	eventually(t, "all is written", func() bool { return r.writes(t) >= all })
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
	never(t, "a write", func() bool { return r.writes(t) > 0 })
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

func TestWhatIsInTheWayOfSeedingIsNotInTheWayOfTheGrant(t *testing.T) {
	var unreachable atomic.Bool
	unreachable.Store(true)
	config := as(t, "accounts")
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			if unreachable.Load() && strings.HasSuffix(r.URL.Path, "/secrets/unseeded-orders-auth") {
				return nil, errors.New("the connection is lost")
			}
			return next.RoundTrip(r)
		})
	})
	runWith(t, config)
	ns := tenant(t, "tenant-unseeded")
	serve(t, "Unseeded", users)
	install(t, ns, "Unseeded", "app")
	assert.Empty(t, found(t, ns, "unseeded-orders"))
	assert.Equal(t, []string{"unseeded-orders.app.account"}, granted(t, ns, "unseeded-orders"), "for a mint")
	never(t, "an account is seeded that may have a password", func() bool { return secret(t, ns, "unseeded-orders.app.account") != nil })
	unreachable.Store(false)
	awaitSecret(t, ns, "unseeded-orders.app.account")
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

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
		return err == nil && len(role.OwnerReferences) == 1
	})
	assert.Equal(t, []string{"adopted-orders.app.account", "adopted-orders.more.account"}, granted(t, ns, "adopted-orders"))
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

func TestAnApplicationWithMoreLoginsThanItsRecordHoldsIsReportedAndNobodyIsLockedOut(t *testing.T) {
	r := run(t)
	ns := tenant(t, "tenant-huge")
	logins := func(count int) object {
		declared := object{}
		for i := range count {
			declared[fmt.Sprintf("user%05d-%s", i, strings.Repeat("x", 53))] = object{}
		}
		return object{"users": declared}
	}
	lay := func(count int) {
		_, err := servers().InstallRelease(t.Context(), ns, "Huge", "orders", logins(count))
		require.NoError(t, err)
	}
	lay(4090) // of 63 bytes, with quotes and comma 66
	serveSince(t, "Huge", users, time.Now().Add(time.Hour))
	eventually(t, "an Event", func() bool { return len(events(t, ns, "GrantRefused")) == 1 })
	assert.Contains(t, events(t, ns, "GrantRefused")[0].Message,
		"the Role credentials-huge-orders is not written: 4090 logins that ran before its kind had a block, or have a password elsewhere, do not fit into its annotations")
	eventually(t, "it is tried again", func() bool { return r.reconciled(t, "reported") >= 3 })
	assert.Len(t, events(t, ns, "GrantRefused"), 1)
	assert.Empty(t, stored(t, ns))
	assert.NotContains(t, r.log.String(), "WARN")

	lay(3)
	assert.Len(t, found(t, ns, "huge-orders"), 3)
	assert.Empty(t, stored(t, ns))
}
