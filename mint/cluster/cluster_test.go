package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/test/sandbox"
)

type object = map[string]any

var servers *sandbox.Sandbox

var customResourceDefinitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

func TestMain(m *testing.M) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	var err error
	if servers, err = sandbox.Start(ctx, sandbox.Options{Apiservers: 1, Log: os.Stderr}); err != nil {
		fmt.Fprintln(os.Stderr, "the real servers are needed (make tools):", err)
		os.Exit(1)
	}
	code := m.Run()
	if err := servers.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// A watcher is a running cluster, and what it told of.
type watcher struct {
	*cluster.Cluster
	mu       sync.Mutex
	releases []types.NamespacedName
	kinds    []string
	log      bytes.Buffer
}

func (w *watcher) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(p)
}

func (w *watcher) logged() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

// told returns how often something was told of an application.
func (w *watcher) told(namespace, name string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, r := range w.releases {
		if r == (types.NamespacedName{Namespace: namespace, Name: name}) {
			n++
		}
	}
	return n
}

func (w *watcher) toldOfKind(kind string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.kinds, kind)
}

// watch runs a cluster with the mint server's identity.
func watch(t *testing.T) *watcher {
	t.Helper()
	return watchWith(t, mint(t), 0)
}

func mint(t *testing.T) *rest.Config {
	t.Helper()
	file, err := servers.ServiceAccountKubeconfig(t.Context(), "mint", 0)
	require.NoError(t, err)
	config, err := clientcmd.BuildConfigFromFlags("", file)
	require.NoError(t, err)
	return config
}

func watchWith(t *testing.T, config *rest.Config, idle time.Duration) *watcher {
	t.Helper()
	w := &watcher{}
	var err error
	w.Cluster, err = cluster.New(cluster.Options{Config: config, Log: slog.New(slog.NewTextHandler(w, nil)), Idle: idle})
	require.NoError(t, err)
	w.Notify(cluster.Notify{
		Release: func(r types.NamespacedName) { w.mu.Lock(); defer w.mu.Unlock(); w.releases = append(w.releases, r) },
		Kind:    func(k string) { w.mu.Lock(); defer w.mu.Unlock(); w.kinds = append(w.kinds, k) },
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(t, w.Run(ctx)) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return w
}

func synced(t *testing.T) *watcher {
	t.Helper()
	w := watch(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, w.WaitForSync(ctx))
	return w
}

// eventually waits longer than the longest pause after which a namespace that may not be read is tried again.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(200 * time.Second); !holds(); time.Sleep(20 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "in vain waited for: %s", what)
	}
}

// patient reads again for as long as a namespace is not read yet, which a slow machine may take its time for.
func patient(read func() error) (err error) {
	for range 20 {
		if err = read(); !apierrors.IsServiceUnavailable(err) {
			break
		}
	}
	return err
}

func admin() kubernetes.Interface { return servers.Kubernetes(sandbox.ClusterAdmin, 0) }

var users = object{"format": object{"name": "sha256"}, "accounts": []any{object{"kind": "ValuesMap", "path": "users"}}}

func accountSecret(name string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{cluster.AccountLabel: "true"}},
		Type:       corev1.SecretTypeBasicAuth,
		StringData: map[string]string{"username": "app", "password": "stored"},
	}
}

func TestAnApplicationIsKnownAsItsHelmReleaseHasIt(t *testing.T) {
	w := synced(t)
	require.NoError(t, servers.AddTenant(t.Context(), "tenant-release"))
	made, err := servers.InstallRelease(t.Context(), "tenant-release", "Release", "orders", object{"users": object{"app": nil}, "size": int64(3)})
	require.NoError(t, err)
	eventually(t, "the application", func() bool { _, ok := w.Release("tenant-release", "release-orders"); return ok })
	r, _ := w.Release("tenant-release", "release-orders")
	assert.Equal(t, made.GetUID(), r.UID)
	assert.Equal(t, "Release", r.Kind)
	assert.Equal(t, "orders", r.Application)
	assert.Equal(t, made.GetCreationTimestamp().UTC(), r.CreationTimestamp.UTC())
	assert.Equal(t, int64(3), r.Values["size"])
	assert.Contains(t, r.Values["users"], "app")
	assert.False(t, r.Deleting)
	assert.Equal(t, []*cluster.Release{r}, w.Releases("tenant-release"))
	assert.Equal(t, []*cluster.Release{r}, w.ReleasesOfKind("Release"))

	releases := dynamic.NewForConfigOrDie(servers.RESTConfig(sandbox.ClusterAdmin, 0)).Resource(sandbox.HelmReleases).Namespace("tenant-release")
	eventually(t, "it is told of", func() bool { return w.told("tenant-release", "release-orders") == 1 })
	const told = 1
	_, err = releases.Patch(t.Context(), "release-orders", types.MergePatchType, []byte(`{"spec":{"values":{"size":4}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	eventually(t, "its values change", func() bool {
		r, _ := w.Release("tenant-release", "release-orders")
		return r.Values["size"] == int64(4)
	})
	eventually(t, "that is told", func() bool { return w.told("tenant-release", "release-orders") == told+1 })
	_, err = releases.Patch(t.Context(), "release-orders", types.MergePatchType, []byte(`{"spec":{"suspend":true},"metadata":{"annotations":{"a":"b"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.NoError(t, servers.DeleteRelease(t.Context(), "tenant-release", "release-orders"))
	eventually(t, "it goes", func() bool { _, ok := w.Release("tenant-release", "release-orders"); return !ok })
	eventually(t, "that is told, and not what changes no account", func() bool { return w.told("tenant-release", "release-orders") == told+2 })
}

func TestOfAnApplicationWhoseValuesAreNoObjectTheAccountsAreNotKnown(t *testing.T) {
	w := synced(t)
	require.NoError(t, servers.AddTenant(t.Context(), "tenant-values"))
	require.NoError(t, servers.InstallDefinition(t.Context(), "Values", users))
	_, err := servers.InstallRelease(t.Context(), "tenant-values", "Values", "orders", object{"users": object{"app": nil}})
	require.NoError(t, err)
	eventually(t, "both", func() bool {
		_, known := w.Release("tenant-values", "values-orders")
		_, defined := w.Definition("Values")
		return known && defined
	})
	d, _ := w.Definition("Values")
	releases := dynamic.NewForConfigOrDie(servers.RESTConfig(sandbox.ClusterAdmin, 0)).Resource(sandbox.HelmReleases).Namespace("tenant-values")
	f := func(patch, want string) {
		t.Helper()
		told := w.told("tenant-values", "values-orders")
		patched, err := releases.Patch(t.Context(), "values-orders", types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
		require.NoError(t, err)
		var cached *cluster.Release
		eventually(t, "the cache has it", func() bool {
			cached, _ = w.Release("tenant-values", "values-orders")
			return cached.ResourceVersion == patched.GetResourceVersion()
		})
		eventually(t, "it is told of", func() bool { return w.told("tenant-values", "values-orders") > told })
		live, _, err := w.Live(t.Context(), cached)
		require.NoError(t, err)
		for _, r := range []*cluster.Release{cached, live} {
			_, _, err = r.Accounts(t.Context(), d.Block, nil, func(string) (string, bool) { return "", false })
			if want == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, want)
			}
		}
	}
	const noObject = "spec.values of its HelmRelease is no object"
	for _, wrong := range []string{`"app"`, `["app"]`, "false"} {
		f(`[{"op":"replace","path":"/spec/values","value":`+wrong+`}]`, noObject)
		f(`[{"op":"replace","path":"/spec/values","value":{}}]`, "")
	}
	f(`[{"op":"remove","path":"/spec/values"}]`, "")
}

func TestAHelmReleaseOfNoApplicationIsNotKnown(t *testing.T) {
	_, err := servers.Apply(t.Context(), sandbox.TenantAcme, object{
		"apiVersion": "helm.toolkit.fluxcd.io/v2", "kind": "HelmRelease", "metadata": object{"name": "plain"},
		"spec": object{"interval": "5m", "chartRef": object{"kind": "ExternalArtifact", "name": "x", "namespace": "cozy-system"}},
	})
	require.NoError(t, err)
	_, ok := synced(t).Release(sandbox.TenantAcme, "plain")
	assert.False(t, ok)
}

func TestADefinitionIsServedOrSaysWhyNot(t *testing.T) {
	w := synced(t)
	f := func(kind string, block object) *cluster.Definition {
		require.NoError(t, servers.InstallDefinition(t.Context(), kind, block))
		eventually(t, "the definition of "+kind, func() bool { _, ok := w.Definition(kind); return ok && w.toldOfKind(kind) })
		d, _ := w.Definition(kind)
		return d
	}
	d := f("Served", users)
	require.NoError(t, d.Err)
	assert.True(t, d.HasBlock)
	assert.Equal(t, "sha256", d.Block.Format.Name)
	assert.Equal(t, "served", d.Name)

	d = f("Plain", nil)
	assert.False(t, d.HasBlock)
	assert.NoError(t, d.Err)

	d = f("Misspelt", object{"format": object{"name": "sha256"}, "acounts": users["accounts"]})
	assert.True(t, d.HasBlock)
	assert.ErrorContains(t, d.Err, "spec.credentials.acounts: this field is unknown")

	require.NoError(t, servers.InstallDefinition(t.Context(), "Misspelt", users))
	eventually(t, "the better block", func() bool { d, _ := w.Definition("Misspelt"); return d.Err == nil })

	_, ok := w.Definition("Unheard")
	assert.False(t, ok)
	assert.Subset(t, w.Kinds(), []string{"Misspelt", "Plain", "Served"})
}

func TestAKindThatTwoDefinitionsClaimIsNotServed(t *testing.T) {
	w := synced(t)
	require.NoError(t, servers.InstallDefinition(t.Context(), "Twice", users))
	second := object{
		"apiVersion": "cozystack.io/v1alpha1", "kind": "ApplicationDefinition", "metadata": object{"name": "another"},
		"spec": object{
			"application": object{"kind": "Twice", "singular": "twice", "plural": "twices", "openAPISchema": "{}"},
			"release":     object{"prefix": "twice-", "chartRef": object{"kind": "ExternalArtifact", "name": "x", "namespace": "cozy-system"}},
		},
	}
	_, err := servers.Apply(t.Context(), "", second)
	require.NoError(t, err)
	eventually(t, "both", func() bool { d, ok := w.Definition("Twice"); return ok && d.Err != nil })
	d, _ := w.Definition("Twice")
	assert.True(t, d.HasBlock)
	assert.ErrorContains(t, d.Err, "another, twice")
	_, _, err = w.Live(t.Context(), &cluster.Release{Namespace: sandbox.TenantAcme, Name: "twice-orders", Kind: "Twice"})
	assert.ErrorContains(t, err, "another, twice", "neither of the two decides")
}

func TestTheAccountSecretsOfAnEnrolledNamespaceAreKnownAndOthersAreNot(t *testing.T) {
	w := synced(t)
	const ns = "tenant-secrets"
	require.NoError(t, servers.AddTenant(t.Context(), ns))
	secrets := admin().CoreV1().Secrets(ns)
	made, err := secrets.Create(t.Context(), accountSecret("pg-orders.app.account"), metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "pg-orders.other.account"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	// The label is anybody's to put on a Secret, and these names no policy guards.
	misnamed := []string{"pg-orders.app", "pg-orders.account", "account", "pg-orders.app.account.more"}
	for _, name := range misnamed {
		_, err = secrets.Create(t.Context(), accountSecret(name), metav1.CreateOptions{})
		require.NoError(t, err)
	}

	var got *corev1.Secret
	require.NoError(t, patient(func() (err error) { got, err = w.AccountSecret(t.Context(), ns, "pg-orders.app.account"); return err }))
	made.ManagedFields = nil
	assert.Equal(t, made, got)
	_, err = w.AccountSecret(t.Context(), ns, "pg-orders.other.account")
	assert.True(t, apierrors.IsNotFound(err))
	for _, name := range misnamed {
		_, err = w.AccountSecret(t.Context(), ns, name)
		assert.True(t, apierrors.IsNotFound(err), name)
	}
	all, err := w.AccountSecrets(t.Context(), ns)
	require.NoError(t, err)
	assert.Equal(t, []*corev1.Secret{got}, all)
	assert.Contains(t, w.AllAccountSecrets(), got)
	assert.True(t, w.Readable(ns))
	eventually(t, "it is told of", func() bool { return w.told(ns, "pg-orders") == 1 })

	// What changes no account is in the cache, and not told of.
	_, err = secrets.Patch(t.Context(), made.Name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"credentials.cozystack.io/history":"{}"}},"stringData":{"password":"next"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	eventually(t, "the next password", func() bool {
		s, err := w.AccountSecret(t.Context(), ns, made.Name)
		return err == nil && string(s.Data["password"]) == "next"
	})
	assert.Equal(t, "stored", string(got.Data["password"]), "what was handed out does not change")
	_, err = secrets.Patch(t.Context(), made.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	eventually(t, "its labels are told of", func() bool { return w.told(ns, "pg-orders") == 2 })
	require.NoError(t, secrets.Delete(t.Context(), made.Name, metav1.DeleteOptions{}))
	eventually(t, "its end is told of", func() bool { return w.told(ns, "pg-orders") == 3 })
	_, err = w.AccountSecret(t.Context(), ns, made.Name)
	assert.True(t, apierrors.IsNotFound(err))
}

func TestANamespaceIsNotReadBeforeItIsEnrolledAndThenAtOnce(t *testing.T) {
	w := synced(t)
	const ns = "tenant-enrolled-late"
	require.NoError(t, servers.AddNamespace(t.Context(), ns))
	_, err := admin().CoreV1().Secrets(ns).Create(t.Context(), accountSecret("pg-orders.app.account"), metav1.CreateOptions{})
	require.NoError(t, err)
	for range 5 {
		err = patient(func() error { _, err := w.AccountSecret(t.Context(), ns, "pg-orders.app.account"); return err })
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		assert.ErrorContains(t, err, "namespace "+ns+" is not enrolled")
		err = patient(func() error { _, err := w.AccountSecrets(t.Context(), ns); return err })
		require.True(t, apierrors.IsForbidden(err), "%v", err)
	}
	assert.Equal(t, 1, strings.Count(w.logged(), "not enrolled"), "it is said once")
	assert.False(t, w.Readable(ns))

	require.NoError(t, servers.Enrol(t.Context(), ns))
	eventually(t, "it is read", func() bool { _, err := w.AccountSecret(t.Context(), ns, "pg-orders.app.account"); return err == nil })
}

func TestTheAccountSecretsOfAServedApplicationAreReadBeforeAnybodyAsks(t *testing.T) {
	require.NoError(t, servers.AddTenant(t.Context(), "tenant-eager"))
	require.NoError(t, servers.InstallDefinition(t.Context(), "Eager", users))
	_, err := servers.InstallRelease(t.Context(), "tenant-eager", "Eager", "orders", object{})
	require.NoError(t, err)
	_, err = admin().CoreV1().Secrets("tenant-eager").Create(t.Context(), accountSecret("eager-orders.app.account"), metav1.CreateOptions{})
	require.NoError(t, err)
	w := synced(t)
	eventually(t, "the Secret", func() bool {
		return slices.ContainsFunc(w.AllAccountSecrets(), func(s *corev1.Secret) bool { return s.Namespace == "tenant-eager" })
	})
	eventually(t, "it is told of", func() bool { return w.told("tenant-eager", "eager-orders") > 0 })
}

// A requests counts what is asked of the Secrets of each namespace.
type requests struct {
	mu sync.Mutex
	of map[string]int
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (r *requests) counting(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(request *http.Request) (*http.Response, error) {
		if namespace, ok := strings.CutSuffix(request.URL.Path, "/secrets"); ok {
			r.mu.Lock()
			r.of[path.Base(namespace)]++
			r.mu.Unlock()
		}
		return next.RoundTrip(request)
	})
}

func (r *requests) count(namespace string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of[namespace]
}

func TestANamespaceThatNobodyNeedsIsGivenUpAndReadAnewWhenSomebodyAsks(t *testing.T) {
	asked := &requests{of: map[string]int{}}
	config := mint(t)
	config.Wrap(asked.counting)
	const idle = 1500 * time.Millisecond
	w := watchWith(t, config, idle)
	require.NoError(t, w.WaitForSync(t.Context()))
	const empty, madeUp, needed = "tenant-empty", "tenant-made-up", "tenant-needed"
	require.NoError(t, servers.AddTenant(t.Context(), empty))
	secret, err := admin().CoreV1().Secrets(empty).Create(t.Context(), accountSecret("pg-orders.app.account"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, servers.AddNamespace(t.Context(), needed))
	require.NoError(t, servers.InstallDefinition(t.Context(), "Needed", users))
	_, err = servers.InstallRelease(t.Context(), needed, "Needed", "orders", object{})
	require.NoError(t, err)
	eventually(t, "the application", func() bool { _, ok := w.Release(needed, "needed-orders"); return ok })
	cached := func(secret *corev1.Secret) bool {
		return slices.ContainsFunc(w.AllAccountSecrets(), func(s *corev1.Secret) bool { return s.UID == secret.UID })
	}
	for range 2 {
		require.NoError(t, patient(func() error { _, err := w.AccountSecret(t.Context(), empty, secret.Name); return err }))
		eventually(t, "it is given up", func() bool { return !cached(secret) })
		before := asked.count(madeUp)
		err = patient(func() error { _, err := w.AccountSecret(t.Context(), madeUp, "x"); return err })
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		require.Greater(t, asked.count(madeUp), before)
	}
	// What is asked for after the last of them is given up no earlier than it.
	require.NoError(t, patient(func() error { _, err := w.AccountSecret(t.Context(), empty, secret.Name); return err }))
	eventually(t, "both are given up", func() bool { return !cached(secret) })
	others, waited := asked.count(madeUp), asked.count(needed)
	eventually(t, "what is needed is tried again", func() bool { return asked.count(needed) > waited })
	assert.Equal(t, others, asked.count(madeUp), "what nobody needs is not")
	told := w.told(needed, "needed-orders")
	require.NoError(t, servers.Enrol(t.Context(), needed))
	eventually(t, "that it is enrolled is told", func() bool { return w.told(needed, "needed-orders") > told })

	// When the application goes, so does the watch; one that is asked for all the time stays.
	left, err := admin().CoreV1().Secrets(needed).Create(t.Context(), accountSecret("pg-orders.app.account"), metav1.CreateOptions{})
	require.NoError(t, err)
	eventually(t, "its Secret", func() bool { return cached(left) })
	require.NoError(t, servers.DeleteRelease(t.Context(), needed, "needed-orders"))
	eventually(t, "it is given up", func() bool {
		began := time.Now()
		require.NoError(t, patient(func() error { _, err := w.AccountSecret(t.Context(), empty, secret.Name); return err }))
		there := cached(secret)
		require.True(t, there || time.Since(began) > idle, "one that was asked for a moment ago is there")
		return !cached(left)
	})
}

func TestAReadWaitsNoLongerThanItsContext(t *testing.T) {
	c, err := cluster.New(cluster.Options{Config: mint(t), Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = c.AccountSecret(ctx, sandbox.TenantAcme, "x") // it does not run
	assert.True(t, apierrors.IsServiceUnavailable(err), "%v", err)
	assert.Error(t, c.WaitForSync(ctx))
}

func TestWithoutItsResourcesItWaitsSaysSoOnceAndFindsThemWhenTheyCome(t *testing.T) {
	ctx := t.Context()
	crds := dynamic.NewForConfigOrDie(servers.RESTConfig(sandbox.ClusterAdmin, 0)).Resource(customResourceDefinitions)
	const name = "applicationdefinitions.cozystack.io"
	crd, err := crds.Get(ctx, name, metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, crds.Delete(ctx, name, metav1.DeleteOptions{}))
	definitions := dynamic.NewForConfigOrDie(servers.RESTConfig(sandbox.ClusterAdmin, 0)).Resource(sandbox.ApplicationDefinitions)
	eventually(t, "the CRD goes", func() bool {
		_, err := crds.Get(ctx, name, metav1.GetOptions{})
		_, errServed := definitions.List(ctx, metav1.ListOptions{}) // kube-apiserver serves it until its own watch has told it
		return apierrors.IsNotFound(err) && apierrors.IsNotFound(errServed)
	})

	w := watch(t)
	eventually(t, "it says so", func() bool { return strings.Contains(w.logged(), "its CRD is not there yet") })
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	require.Error(t, w.WaitForSync(short))
	assert.Equal(t, 1, strings.Count(w.logged(), "its CRD is not there yet"))

	for _, field := range []string{"resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"} {
		delete(crd.Object["metadata"].(object), field)
	}
	delete(crd.Object, "status")
	_, err = crds.Create(ctx, crd, metav1.CreateOptions{})
	require.NoError(t, err)
	long, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	require.NoError(t, w.WaitForSync(long))
}
