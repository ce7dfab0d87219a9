package chart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/mintlog/mintlog/test/sandbox"
)

// foreignKinds are of operators that the sandbox does not run; kube-apiserver is told that they exist.
var foreignKinds = []struct{ group, version, kind, plural string }{
	{"cert-manager.io", "v1", "Certificate", "certificates"},
	{"cert-manager.io", "v1", "Issuer", "issuers"},
	{"monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors"},
}

// An installation is a cluster of its own: what is uninstalled is what the other tests stand on.
type installation struct {
	*sandbox.Sandbox
	t *testing.T
}

func newInstallation(t *testing.T) *installation {
	s, err := sandbox.Start(t.Context(), sandbox.Options{Apiservers: 1, AuditPolicy: `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [
		{"level": "Metadata", "omitStages": ["RequestReceived"], "verbs": ["delete"]}, {"level": "None"}]}`})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop()) })
	for _, k := range foreignKinds {
		free := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
		_, err := s.Apply(t.Context(), "", map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": k.plural + "." + k.group},
			"spec": map[string]any{
				"group": k.group, "scope": "Namespaced",
				"names": map[string]any{"kind": k.kind, "plural": k.plural},
				"versions": []any{map[string]any{"name": k.version, "served": true, "storage": true,
					"schema": map[string]any{"openAPIV3Schema": free}}},
			},
		})
		require.NoError(t, err)
	}
	require.NoError(t, s.AddNamespace(t.Context(), "nats"))
	return &installation{s, t}
}

func (i *installation) helm(arguments ...string) (string, error) {
	i.t.Helper()
	c := exec.CommandContext(i.t.Context(), filepath.Join(i.Root(), "bin", "helm"), append(arguments, "--namespace", sandbox.Namespace)...)
	c.Env = append(os.Environ(), "KUBECONFIG="+i.Kubeconfig(sandbox.ClusterAdmin, 0), "HOME="+i.t.TempDir())
	out, err := c.CombinedOutput()
	return string(out), err
}

// deleted are the resources of what Helm has deleted since then, in turn, but for its own records.
func (i *installation) deleted(since time.Time) []string {
	i.t.Helper()
	log, err := os.ReadFile(i.AuditLog(0))
	require.NoError(i.t, err)
	received := map[time.Time]string{}
	for line := range bytes.Lines(log) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // it is being written
		}
		var e struct {
			UserAgent                string
			ObjectRef                struct{ Resource, Name string }
			RequestReceivedTimestamp time.Time
		}
		require.NoError(i.t, json.Unmarshal(line, &e))
		if strings.Contains(e.UserAgent, "Helm") && !strings.HasPrefix(e.ObjectRef.Name, "sh.helm.release.") && e.RequestReceivedTimestamp.After(since) {
			received[e.RequestReceivedTimestamp] = e.ObjectRef.Resource
		}
	}
	var all []string
	for _, at := range slices.SortedFunc(maps.Keys(received), time.Time.Compare) {
		all = append(all, received[at])
	}
	return all
}

func TestEveryShapeIsInstalledAndUninstallingTakesTheAPIAwayFirstAndNoApplication(t *testing.T) {
	i, began := newInstallation(t), time.Now()
	release, err := i.InstallRelease(t.Context(), sandbox.TenantAcme, "Redis", "stays", map[string]any{})
	require.NoError(t, err)
	all := shapes(t)
	for _, name := range []string{"small", "small-webhook", "webhook", "large"} {
		require.Contains(t, all, name)
		within(t, 5*time.Minute, func() error { // until the foreign kinds are served
			// The sandbox has laid roles and policies already; an installation would find none.
			out, err := i.helm("upgrade", "--install", "mintlog", chartFolder(), "--values", all[name], "--take-ownership", "--force-conflicts")
			if err != nil {
				err = fmt.Errorf("%s: %w: %s", name, err, out)
			}
			return err
		})
		require.ElementsMatch(t, names(workloads(t, render(t, "--values", all[name]))), i.workloads(), name)
		delete(all, name)
	}
	require.Empty(t, all, "a shape is not installed here")
	last := time.Now()
	out, err := i.helm("uninstall", "mintlog")
	require.NoError(t, err, out)

	within(t, 2*time.Minute, func() error { // the log tells of a request a moment after its answer
		deleted := i.deleted(began)
		for _, resource := range []string{"deployments", "statefulsets", "daemonsets", "services", "serviceaccounts", "clusterroles", "validatingadmissionpolicies"} {
			if !slices.Contains(deleted, resource) {
				return fmt.Errorf("the log does not tell of %s: %v", resource, deleted)
			}
		}
		if deleted = i.deleted(last); len(deleted) == 0 || deleted[0] != "apiservices" {
			return fmt.Errorf("the first is not the APIService: %v", deleted)
		}
		return nil
	})
	deleted := i.deleted(began)
	// With their definition the applications would go, and with them their account Secrets: not when a shape no longer has
	// it, and not at the end.
	assert.NotContains(t, deleted, "customresourcedefinitions")
	is, err := dynamic.NewForConfigOrDie(i.RESTConfig(admin, 0)).Resource(sandbox.HelmReleases).Namespace(sandbox.TenantAcme).Get(t.Context(), release.GetName(), metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, release.GetUID(), is.GetUID())
}

func names(all []workload) []string {
	var names []string
	for _, w := range all {
		names = append(names, w.name)
	}
	return names
}

// workloads are those of mintlog's namespace.
func (i *installation) workloads() []string {
	i.t.Helper()
	apps := i.Kubernetes(admin, 0).AppsV1()
	var all []string
	deployments, err := apps.Deployments(sandbox.Namespace).List(i.t.Context(), metav1.ListOptions{})
	require.NoError(i.t, err)
	for _, o := range deployments.Items {
		all = append(all, o.Name)
	}
	daemons, err := apps.DaemonSets(sandbox.Namespace).List(i.t.Context(), metav1.ListOptions{})
	require.NoError(i.t, err)
	for _, o := range daemons.Items {
		all = append(all, o.Name)
	}
	stateful, err := apps.StatefulSets(sandbox.Namespace).List(i.t.Context(), metav1.ListOptions{})
	require.NoError(i.t, err)
	for _, o := range stateful.Items {
		all = append(all, o.Name)
	}
	return all
}
