package accounts_test

import (
	"context"
	"crypto/rand"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/mintlog/mintlog/mint/account"
	"github.com/mintlog/mintlog/mint/accounts"
	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/test/sandbox"
)

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

// known is an application of a kind and the kind's definition, as the caches have them.
func known(t *testing.T, caches *cluster.Cluster, namespace, kind string) (*cluster.Release, *cluster.Definition) {
	t.Helper()
	release, ok := caches.Release(namespace, strings.ToLower(kind)+"-orders")
	require.True(t, ok)
	served, ok := caches.Definition(kind)
	require.True(t, ok)
	return release, served
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
	stale, served := known(t, caches, ns, "Behind")
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
	stale, served := known(t, caches, ns, "Kind")
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
	r = run(t)
	install(t, ns, "Block", "between")
	eventually(t, "the kind is forgotten", func() bool {
		m, err := admin().CoreV1().ConfigMaps(sandbox.Namespace).Get(t.Context(), "mintlog-kinds", metav1.GetOptions{})
		_, there := m.Data["Block"]
		return err == nil && !there
	})
	never(t, "the Secret changes", func() bool { return !assert.ObjectsAreEqual(before, secret(t, ns, "block-orders.app.account")) })

	install(t, ns, "Block", "app", "between")
	r.knows(t, ns, "block-orders")
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
