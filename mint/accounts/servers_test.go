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
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mintlog/mintlog/mint/accounts"
	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/webhook"
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
	caches *cluster.Cluster
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
	r.caches = caches
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

// knows waits until the role has an application as the API server has it: applications and definitions come by watches of
// their own, in any order.
func (r *role) knows(t *testing.T, namespace, release string) {
	t.Helper()
	version := helmRelease(t, namespace, release).GetResourceVersion()
	eventually(t, "the role knows of "+release, func() bool {
		known, ok := r.caches.Release(namespace, release)
		return ok && known.ResourceVersion == version
	})
}

// knowsKind waits, as knows does, for the definition of a kind.
func (r *role) knowsKind(t *testing.T, kind string) {
	t.Helper()
	definitions := dynamic.NewForConfigOrDie(servers().RESTConfig(sandbox.ClusterAdmin, 0)).Resource(sandbox.ApplicationDefinitions)
	live, err := definitions.Get(t.Context(), strings.ToLower(kind), metav1.GetOptions{})
	require.NoError(t, err)
	eventually(t, "the role knows of "+kind, func() bool {
		known, ok := r.caches.Definition(kind)
		return ok && known.ResourceVersion == live.GetResourceVersion()
	})
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

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
