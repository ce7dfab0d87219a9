package chart

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestNoPartIsKilledWhileItIsSlowOrStarts(t *testing.T) {
	patience := func(p *corev1.Probe) int32 { return p.PeriodSeconds * p.FailureThreshold }
	for name, values := range shapes(t) {
		for _, w := range workloads(t, render(t, "--values", values)) {
			what, c := name+" "+w.name, w.pod.Containers[0]
			require.NotNil(t, c.LivenessProbe, what)
			require.NotNil(t, c.StartupProbe, what)
			assert.GreaterOrEqual(t, patience(c.LivenessProbe), int32(120), what)
			assert.GreaterOrEqual(t, patience(c.StartupProbe), int32(600), what)
			for kind, probe := range map[string]*corev1.Probe{"liveness": c.LivenessProbe, "startup": c.StartupProbe} {
				// The path that asks nothing of others: a restart would not mend them.
				require.NotNil(t, probe.HTTPGet, "%s %s", what, kind)
				assert.Equal(t, "/healthz metrics", probe.HTTPGet.Path+" "+probe.HTTPGet.Port.String(), "%s %s", what, kind)
			}
			for kind, probe := range map[string]*corev1.Probe{"liveness": c.LivenessProbe, "startup": c.StartupProbe, "readiness": c.ReadinessProbe} {
				assert.True(t, probe == nil || probe.TimeoutSeconds >= 5, "%s %s: a second is short on a node under load", what, kind)
			}
		}
	}
}

func TestAnEvictionLeavesOneOfThePodsThatKubeAPIServerCalls(t *testing.T) {
	f := func(shape string, parts ...string) {
		t.Helper()
		var budgets []string
		require.NoError(t, documents(render(t, "--values", shapes(t)[shape]), func(kind metav1.TypeMeta, document []byte) error {
			if kind.Kind != "PodDisruptionBudget" {
				return nil
			}
			var b policyv1.PodDisruptionBudget
			require.NoError(t, unmarshal(document, &b))
			part := b.Spec.Selector.MatchLabels["app.kubernetes.io/component"]
			budgets = append(budgets, part)
			assert.Equal(t, "mintlog-"+part, b.Name)
			assert.Len(t, b.Spec.Selector.MatchLabels, 3, "%s: of this installation alone", part)
			assert.Equal(t, new(intstr.FromInt32(1)), b.Spec.MaxUnavailable, "%s: one replica alone may be evicted as well", part)
			assert.Equal(t, new(policyv1.AlwaysAllow), b.Spec.UnhealthyPodEvictionPolicy, "%s: a pod that does not work keeps no node", part)
			return nil
		}))
		slices.Sort(budgets)
		assert.Equal(t, parts, budgets, shape)
	}
	f("large", "mint") // ingest is a DaemonSet, which a drain leaves alone
	f("webhook", "ingest", "mint")
	f("small")
	f("small-webhook")
}
