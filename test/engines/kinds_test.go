package engines_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/mintlog/mintlog/test/engines"
	"github.com/mintlog/mintlog/test/sandbox"
)

// A house is a sandbox in which mintlog runs and the kinds of deploy/kinds are defined.
type house struct {
	*sandbox.Sandbox
	releases dynamic.ResourceInterface
}

const tenant = sandbox.TenantAcme

// defined are the kinds that have a definition, by their folder, with how the sandbox's accounts of them are declared.
var defined = map[string]struct {
	kind     string
	values   object
	accounts int
}{
	"postgres":   {"Postgres", usersOf("shop.app", "Report.Reader"), 2},
	"mariadb":    {"MariaDB", usersOf("app"), 1},
	"clickhouse": {"ClickHouse", usersOf("app", "report_reader"), 2},
	"redis":      {"Redis", object{"authEnabled": true}, 1},
	"gallery":    {"Gallery", object{"visitors": []any{object{"name": "app"}, object{"name": "Curator"}}}, 2},
}

func open(t *testing.T) *house {
	t.Helper()
	s := sandbox.Open(t, sandbox.Options{Apiservers: 1, Log: os.Stderr})
	_, err := s.RunAll(t.Context())
	require.NoError(t, err)
	client, err := dynamic.NewForConfig(s.RESTConfig(sandbox.ClusterAdmin, 0))
	require.NoError(t, err)
	h := &house{Sandbox: s, releases: client.Resource(sandbox.HelmReleases).Namespace(tenant)}
	for folder := range defined {
		manifest, err := os.ReadFile(kinds + folder + "/definition.yaml")
		require.NoError(t, err)
		require.NoError(t, s.ApplyManifest(t.Context(), "", manifest))
	}
	accounts := 0
	for _, k := range defined {
		require.NoError(t, s.AwaitFirstSight(t.Context(), k.kind))
		_, err := s.InstallRelease(t.Context(), tenant, k.kind, "shop", k.values)
		require.NoError(t, err)
		accounts += k.accounts
	}
	require.NoError(t, s.AwaitAccounts(t.Context(), tenant, accounts))
	made, err := s.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().Secrets(tenant).List(t.Context(), metav1.ListOptions{LabelSelector: "credentials.cozystack.io/account=true"})
	require.NoError(t, err)
	var credentials []string
	for _, secret := range made.Items {
		credentials = append(credentials, strings.TrimSuffix(secret.Name, ".account"))
	}
	require.NoError(t, s.AwaitServed(t.Context(), tenant, credentials))
	return h
}

func (h *house) secret(ctx context.Context, name string) (*corev1.Secret, error) {
	return h.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().Secrets(tenant).Get(ctx, name, metav1.GetOptions{})
}

// ask is what a tenant's admin types: kubectl credentials.
func (h *house) ask(t *testing.T, arguments ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(h.Root(), "bin", "kubectl-credentials"), append(arguments, "--namespace", tenant)...)
	command.Env = append(os.Environ(), "KUBECONFIG="+h.Kubeconfig(sandbox.Jane, 0))
	var output, complaint bytes.Buffer
	command.Stdout, command.Stderr = &output, &complaint
	require.NoError(t, command.Run(), "kubectl credentials %s: %s (run \"make build\" if it is missing)", arguments[0], complaint.String())
	return strings.TrimSpace(output.String())
}

// rendered is what Flux makes of a release now.
func (h *house) rendered(ctx context.Context, folder, kind string) ([]object, error) {
	release, err := h.releases.Get(ctx, kind+"-shop", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	values, set, err := flux(ctx, release, h.secret)
	if err != nil {
		return nil, err
	}
	return render(ctx, folder, kind, release.GetName(), values, set...)
}

// An application is one of the sandbox's, with its engine and what stands in for the engine's operator.
type application struct {
	engine     engines.Engine
	credential string
	username   string
	apply      func(ctx context.Context) error
}

func (h *house) applications(t *testing.T) map[string]application {
	t.Helper()
	folder := t.TempDir()
	postgresql, mariadb, clickhouse := running.postgresql.get(t), running.mariadb.get(t), running.clickhouse.get(t)
	redis, nginx := running.redis.get(t), running.nginx.get(t)
	cluster := &cloudNativePG{server: postgresql, secrets: h.secret, applied: map[string]string{}}
	chart := func(kind string, operate func(context.Context, []object) error) func(context.Context) error {
		return func(ctx context.Context) error {
			objects, err := h.rendered(ctx, folder, kind)
			if err != nil {
				return err
			}
			return operate(ctx, objects)
		}
	}
	file := func(path string, operate func(context.Context, []object) error) func(context.Context) error {
		return func(ctx context.Context) error {
			manifest, err := os.ReadFile(kinds + path)
			if err != nil {
				return err
			}
			objects, err := documents(manifest)
			if err != nil {
				return err
			}
			return operate(ctx, objects)
		}
	}
	return map[string]application{
		"postgres": {postgresql, "postgres-shop.shop-app", "shop.app", chart("postgres", cluster.reconcile)},
		"clickhouse": {clickhouse, "clickhouse-shop.report-reader", "report_reader", chart("clickhouse", func(ctx context.Context, objects []object) error {
			return clickhouseOperator(ctx, clickhouse, objects)
		})},
		"gallery": {nginx, "gallery-shop.curator", "Curator", chart("gallery", func(ctx context.Context, objects []object) error {
			return kubelet(ctx, nginx, h.secret, objects)
		})},
		"mariadb": {mariadb, "mariadb-shop.app", "app", file("mariadb/user.yaml", func(ctx context.Context, objects []object) error {
			return mariadbOperator(ctx, mariadb, h.secret, objects)
		})},
		"redis": {redis, "redis-shop.default", "default", file("redis/failover.yaml", func(ctx context.Context, objects []object) error {
			return redisOperator(ctx, redis, h.secret, objects)
		})},
	}
}

func TestAMintedPasswordWorksInItsEngineUntilItIsReplacedOrRevoked(t *testing.T) {
	h := open(t)
	applications := h.applications(t)
	for name, a := range applications {
		t.Run(name, func(t *testing.T) { h.walk(t, a) })
	}
	t.Run("what a real account Secret holds is on the page", func(t *testing.T) { h.pageShows(t) })
	t.Run("nothing that reconciles changes a verifier", func(t *testing.T) { h.verifiersStay(t, applications) })
	t.Run("Cozystack's controller resets valuesFrom", func(t *testing.T) { h.resetValuesFrom(t, applications["clickhouse"]) })
}

func (h *house) walk(t *testing.T, a application) {
	within(t, func() error { return a.apply(t.Context()) })
	require.ErrorIs(t, a.engine.Login(t.Context(), a.username, "guessed"), engines.ErrRefused, "nobody has a password yet")

	first := h.ask(t, "mint", a.credential)
	require.Len(t, first, 32)
	within(t, func() error { return a.apply(t.Context()) })
	require.NoError(t, a.engine.Login(t.Context(), a.username, first))

	second := h.ask(t, "mint", a.credential, "--yes")
	require.NoError(t, a.engine.Login(t.Context(), a.username, first), "the operator has not come by yet")
	within(t, func() error { return a.apply(t.Context()) })
	require.NoError(t, a.engine.Login(t.Context(), a.username, second))
	require.ErrorIs(t, a.engine.Login(t.Context(), a.username, first), engines.ErrRefused, "the replaced password")

	h.ask(t, "revoke", a.credential, "--yes")
	within(t, func() error { return a.apply(t.Context()) })
	require.ErrorIs(t, a.engine.Login(t.Context(), a.username, second), engines.ErrRefused, "the revoked password")
}

// Poolers compare what the server stores with what they have: a verifier that is hashed anew with another salt breaks
// them, though the password is the same.
func (h *house) verifiersStay(t *testing.T, applications map[string]application) {
	postgresql := applications["postgres"]
	password := h.ask(t, "mint", postgresql.credential, "--yes")
	before := map[string]string{}
	for _, a := range applications {
		secret, err := h.secret(t.Context(), a.credential+".account")
		require.NoError(t, err)
		before[a.credential] = string(secret.Data["password"])
	}
	// A user is added, mintlog starts anew, and the definition is laid again.
	_, err := h.InstallRelease(t.Context(), tenant, "Postgres", "shop", usersOf("shop.app", "Report.Reader", "shop.new"))
	require.NoError(t, err)
	for _, p := range h.Processes() {
		if p.Name() == "mintlog" {
			require.NoError(t, h.RestartAll(t.Context(), p))
		}
	}
	within(t, func() error {
		_, err := h.secret(t.Context(), "postgres-shop.shop-new.account")
		return err
	})
	for _, a := range applications {
		secret, err := h.secret(t.Context(), a.credential+".account")
		require.NoError(t, err)
		require.True(t, before[a.credential] == string(secret.Data["password"]), "%s has another stored form", a.credential)
	}
	server := running.postgresql.get(t)
	for range 3 {
		require.NoError(t, postgresql.apply(t.Context()))
		stored, err := server.Query(t.Context(), "SELECT rolpassword FROM pg_authid WHERE rolname = 'shop.app'")
		require.NoError(t, err)
		require.True(t, before[postgresql.credential] == stored, "PostgreSQL has another verifier than the account Secret")
	}
	require.NoError(t, server.Login(t.Context(), postgresql.username, password))
}

// Cozystack's controller writes spec.valuesFrom of every HelmRelease anew, with cozystack-values alone.
func (h *house) resetValuesFrom(t *testing.T, clickhouse application) {
	password := h.ask(t, "mint", clickhouse.credential, "--yes")
	within(t, func() error { return clickhouse.apply(t.Context()) })
	require.NoError(t, clickhouse.engine.Login(t.Context(), clickhouse.username, password))

	entries := func() []any {
		release, err := h.releases.Get(t.Context(), "clickhouse-shop", metav1.GetOptions{})
		require.NoError(t, err)
		list, _, err := unstructured.NestedSlice(release.Object, "spec", "valuesFrom")
		require.NoError(t, err)
		return list
	}
	full := entries()
	text, err := os.ReadFile(kinds + "clickhouse/valuesfrom.yaml")
	require.NoError(t, err)
	want, err := documents(text)
	require.NoError(t, err)
	require.Equal(t, want[0]["valuesFrom"], full)
	release, err := h.releases.Patch(t.Context(), "clickhouse-shop", types.MergePatchType,
		[]byte(`{"spec": {"valuesFrom": [{"kind": "Secret", "name": "cozystack-values"}]}}`), metav1.PatchOptions{FieldManager: "cozystack-controller"})
	require.NoError(t, err)

	// Flux may come by in between: the rendering fails, and ClickHouse goes on with what it has.
	values, set, err := flux(t.Context(), release, h.secret)
	require.NoError(t, err)
	_, err = render(t.Context(), t.TempDir(), "clickhouse", release.GetName(), values, set...)
	require.ErrorContains(t, err, "has no password hash")
	require.NoError(t, clickhouse.engine.Login(t.Context(), clickhouse.username, password))

	began := time.Now()
	within(t, func() error {
		if is := entries(); !slices.EqualFunc(is, full, func(a, b any) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
			return fmt.Errorf("spec.valuesFrom has %d entries", len(is))
		}
		return nil
	})
	t.Logf("put back within %s", time.Since(began).Round(10*time.Millisecond))
	require.NoError(t, clickhouse.apply(t.Context()))
	require.NoError(t, clickhouse.engine.Login(t.Context(), clickhouse.username, password))
}

// within repeats a step until it succeeds, for two minutes at most.
func within(t *testing.T, step func() error) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		err := step()
		if err == nil {
			return
		}
		if time.Now().After(deadline) || errors.Is(err, context.Canceled) {
			require.NoError(t, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}
