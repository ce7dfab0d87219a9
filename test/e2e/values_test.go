package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/test/sandbox"
)

const clickHouse = "deploy/kinds/clickhouse"

var cozystackValues = map[string]any{"kind": "Secret", "name": "cozystack-values"}

// layClickHouse lays the kind as its author wrote it, and what Cozystack's charts take their common values from.
func (h *house) layClickHouse(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(h.Root(), clickHouse, "definition.yaml"))
	require.NoError(t, err)
	require.NoError(t, h.ApplyManifest(ctx(t), "", text))
	_, err = h.Apply(ctx(t), acme, map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "cozystack-values", "namespace": acme},
		"stringData": map[string]any{"values.yaml": "_cluster: {}\n"},
	})
	require.NoError(t, err)
	require.NoError(t, h.AwaitFirstSight(ctx(t), "ClickHouse"))
}

// clickHouse lays an application of the kind and waits until its users are in the engine.
func (h *house) clickHouse(t *testing.T, engine *applier, name string, users ...string) string {
	t.Helper()
	release := "clickhouse-" + name
	_, err := h.InstallRelease(ctx(t), acme, "ClickHouse", name, values(users...))
	require.NoError(t, err)
	slices.Sort(users)
	within(t, 2*time.Minute, func() error {
		if got := engine.users(release); !slices.Equal(got, users) {
			return fmt.Errorf("the engine has the users %q", got)
		}
		return nil
	})
	credentials := make([]string, len(users))
	for i, user := range users {
		credentials[i] = release + "." + strings.ToLower(user)
	}
	require.NoError(t, h.AwaitServed(ctx(t), acme, credentials))
	return release
}

// logsIn waits until the engine takes a password.
func (a *applier) logsIn(t *testing.T, release string, minted v1alpha1.MintStatus) {
	t.Helper()
	within(t, 2*time.Minute, func() error { return a.login(release, minted.Username, minted.Password) })
}

func (h *house) valuesFrom(t *testing.T, release string) []any {
	t.Helper()
	u, err := h.helmReleases().Get(ctx(t), release, metav1.GetOptions{})
	require.NoError(t, err)
	list, _, err := unstructured.NestedSlice(u.Object, "spec", "valuesFrom")
	require.NoError(t, err)
	return list
}

func (h *house) patchRelease(t *testing.T, release, patch string) {
	t.Helper()
	_, err := h.helmReleases().Patch(ctx(t), release, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "an-operator"})
	require.NoError(t, err)
}

func TestAPasswordReachesAnEngineThatReadsNoSecretsThroughTheValues(t *testing.T) {
	shared.layClickHouse(t)
	engine := shared.apply(t)
	release := shared.clickHouse(t, engine, "orders", "app", "Report-Reader")
	assert.Equal(t, []any{
		cozystackValues,
		map[string]any{"kind": "Secret", "name": release + ".app.account", "valuesKey": "password", "targetPath": "passwordHashes.app"},
		map[string]any{"kind": "Secret", "name": release + ".report-reader.account", "valuesKey": "password", "targetPath": "passwordHashes.Report-Reader"},
	}, shared.valuesFrom(t, release))

	reader := shared.mint(t, sandbox.Jane, 0, release+".report-reader")
	engine.logsIn(t, release, reader)
	first := shared.mint(t, sandbox.Jane, 0, release+".app")
	engine.logsIn(t, release, first)
	before := engine.count(release)
	second := shared.mint(t, sandbox.Jane, 1, release+".app")
	engine.logsIn(t, release, second)
	require.Error(t, engine.login(release, first.Username, first.Password), "the replaced password")
	require.NoError(t, engine.login(release, reader.Username, reader.Password), "another account's")
	a, err := shared.do(ctx(t), call{person: sandbox.Jane, path: release + ".app/revoke"})
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, a.code, "%s", a)
	within(t, 2*time.Minute, func() error {
		if engine.login(release, second.Username, second.Password) == nil {
			return errors.New("the revoked password still works")
		}
		return nil
	})
	assert.Equal(t, before+2, engine.count(release), "one upgrade for each operation")
	assert.Empty(t, shared.awaitBy(t, release+".app", "jane", "").Status.Password.Waiting)

	// An account that is no longer declared leaves the values first, and the release is never without a Secret it names.
	shared.patchRelease(t, release, `{"spec":{"values":{"users":{"app":null}}}}`)
	within(t, 2*time.Minute, func() error {
		_, err := shared.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().Secrets(acme).Get(ctx(t), release+".app.account", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("its Secret is still there: %v", err)
		}
		if got := engine.users(release); !slices.Equal(got, []string{"Report-Reader"}) {
			return fmt.Errorf("the engine has the users %q", got)
		}
		return nil
	})
	require.Len(t, shared.valuesFrom(t, release), 2)
	require.NoError(t, engine.login(release, reader.Username, reader.Password))
}

func TestAPasswordThatWaitsForASuspendedReleaseIsSaidToWaitAndComesWhenItIsResumed(t *testing.T) {
	shared.layClickHouse(t)
	engine := shared.apply(t)
	release := shared.clickHouse(t, engine, "suspended", "app")
	credential := release + ".app"
	first := shared.mint(t, sandbox.Jane, 0, credential)
	engine.logsIn(t, release, first)
	time.Sleep(time.Second) // times of releases are whole seconds
	shared.patchRelease(t, release, `{"metadata":{"annotations":{"any":"thing"}},"spec":{"suspend":true}}`)
	within(t, 2*time.Minute, func() error { // what was under way is deployed
		u, err := shared.helmReleases().Get(ctx(t), release, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if observed, _, _ := unstructured.NestedInt64(u.Object, "status", "observedGeneration"); observed != u.GetGeneration() {
			return fmt.Errorf("generation %d is observed, of %d", observed, u.GetGeneration())
		}
		return nil
	})
	second := shared.mint(t, sandbox.Jane, 1, credential)
	c := shared.awaitCredential(t, credential, func(c *v1alpha1.Credential) error {
		if c.Status.Password.Revision != second.Revision || c.Status.Password.Waiting == "" {
			return fmt.Errorf("revision %d waits for %q", c.Status.Password.Revision, c.Status.Password.Waiting)
		}
		return nil
	})
	assert.Equal(t, "the HelmRelease clickhouse-suspended is suspended: the application takes the password over when it is resumed", c.Status.Password.Waiting)
	time.Sleep(2 * time.Second) // for it to come through, if it could
	require.NoError(t, engine.login(release, first.Username, first.Password), "the engine is as it was")
	require.Error(t, engine.login(release, second.Username, second.Password))

	shared.patchRelease(t, release, `{"spec":{"suspend":false}}`)
	engine.logsIn(t, release, second)
	require.Error(t, engine.login(release, first.Username, first.Password))
	shared.awaitCredential(t, credential, func(c *v1alpha1.Credential) error {
		if c.Status.Password.Waiting != "" {
			return errors.New(c.Status.Password.Waiting)
		}
		return nil
	})
}

func TestAnOperationOfWhichTheAccountsRoleDiedReachesTheEngineAfterItsRestart(t *testing.T) {
	shared.layClickHouse(t)
	engine := shared.apply(t)
	release := shared.clickHouse(t, engine, "restarted", "app")
	var minted v1alpha1.MintStatus
	for range 3 {
		minted = shared.mint(t, sandbox.Jane, 0, release+".app")
		shared.mintlog.Kill() // mint server and accounts role are one process here: it may or may not have asked Flux
		require.NoError(t, shared.RestartAll(t.Context(), shared.mintlog))
		engine.logsIn(t, release, minted)
	}
	var asked string
	within(t, 2*time.Minute, func() error {
		u, err := shared.helmReleases().Get(ctx(t), release, metav1.GetOptions{})
		if err != nil {
			return err
		}
		asked = u.GetAnnotations()[requestedAt]
		if at, err := time.Parse(time.RFC3339Nano, asked); err != nil || !at.After(minted.At.Time) {
			return fmt.Errorf("Flux was asked at %q, and not since the mint at %s", asked, minted.At.Time)
		}
		return nil
	})
	require.NoError(t, shared.RestartAll(t.Context(), shared.mintlog))
	shared.clickHouse(t, engine, "restarted-later", "app") // it has had its turn
	u, err := shared.helmReleases().Get(ctx(t), release, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, asked, u.GetAnnotations()[requestedAt], "nothing is asked twice")
}

// Cozystack's API writes the HelmRelease anew at every change of an application.
func TestAChangeOfTheApplicationInCozystackCostsNobodyAPassword(t *testing.T) {
	shared.layClickHouse(t)
	engine := shared.apply(t)
	release := shared.clickHouse(t, engine, "rebuilt", "app")
	minted := shared.mint(t, sandbox.Jane, 0, release+".app")
	engine.logsIn(t, release, minted)
	shared.clickHouse(t, engine, "rebuilt", "app", "more")
	require.NoError(t, engine.login(release, minted.Username, minted.Password), "the chart fails rather than leave a hash out")
	require.Len(t, shared.valuesFrom(t, release), 3)
}

// cozystack-controller resets the list to exactly one entry.
func TestACozystackControllerThatTakesTheEntriesAwayIsNotFoughtAndIsNamed(t *testing.T) {
	shared.layClickHouse(t)
	engine := shared.apply(t)
	release := shared.clickHouse(t, engine, "reset", "app")
	minted := shared.mint(t, sandbox.Jane, 0, release+".app")
	engine.logsIn(t, release, minted)

	resets := 0
	stop := shared.meanwhile(t, func(ctx context.Context, u *unstructured.Unstructured) {
		list, _, _ := unstructured.NestedSlice(u.Object, "spec", "valuesFrom")
		if u.GetName() != release || len(list) == 1 {
			return
		}
		_ = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			live, err := shared.helmReleases().Get(ctx, release, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if err := unstructured.SetNestedSlice(live.Object, []any{cozystackValues}, "spec", "valuesFrom"); err != nil {
				return err
			}
			_, err = shared.helmReleases().Update(ctx, live, metav1.UpdateOptions{FieldManager: "cozystack-controller"})
			if err == nil {
				resets++
			}
			return err
		})
	})
	within(t, 2*time.Minute, func() error {
		list, err := shared.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().Events(acme).List(ctx(t), metav1.ListOptions{FieldSelector: "reason=ValuesTakenAway,involvedObject.name=" + release})
		if err != nil || len(list.Items) == 0 {
			return fmt.Errorf("no Event: %v", err)
		}
		if want := `the field is managed by ["cozystack-controller"]`; !strings.Contains(list.Items[0].Message, want) {
			return fmt.Errorf("%s", list.Items[0].Message)
		}
		return nil
	})
	time.Sleep(2 * time.Second) // for a fight to go on, if there is one
	stop()
	assert.Equal(t, 13, resets, "the first, and of what was put back twelve times in this hour")
	require.Len(t, shared.valuesFrom(t, release), 1)
	require.NoError(t, engine.login(release, minted.Username, minted.Password), "the engine goes on with what it has")
	shared.awaitCredential(t, release+".app", func(c *v1alpha1.Credential) error {
		if !strings.Contains(c.Status.Password.Waiting, "has no entry in spec.valuesFrom") {
			return fmt.Errorf("it waits for %q", c.Status.Password.Waiting)
		}
		return nil
	})
}
