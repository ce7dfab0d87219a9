package credential

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/test/sandbox"
)

// gathered are the values of a metric by its labels' values, joined by spaces in the order of the labels' names.
func gathered(t *testing.T, registry *prometheus.Registry, metric string) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, family := range families {
		if family.GetName() != metric {
			continue
		}
		for _, m := range family.GetMetric() {
			var labels []string
			for _, label := range m.GetLabel() {
				labels = append(labels, label.GetValue())
			}
			values[strings.Join(labels, " ")] = m.GetGauge().GetValue()
		}
	}
	return values
}

func TestAMetricTellsWhenEachPasswordLastChangedAndByWhichOperation(t *testing.T) {
	s := seeded(t, sandbox.TenantAcme, nil)
	registry := prometheus.NewRegistry()
	// What other tests minted does not grow too old to be pending meanwhile.
	now := time.Now()
	standing := viewer{now: func() time.Time { return now }, retention: time.Hour}
	registry.MustRegister(accountsCollector{storage: &Storage{cluster: s.cluster, viewer: standing}, lastChange: true})
	const metric = "mintlog_credential_last_change_timestamp_seconds"
	assert.Contains(t, gathered(t, registry, metric), s.credential+" "+s.namespace+" create")
	before := gathered(t, registry, "mintlog_attributions")["Pending"]

	answer, err := s.serve(t, nil).mint(t, s)
	require.NoError(t, err)
	eventually(t, "the cache has the mint", func() bool {
		return gathered(t, registry, metric)[s.credential+" "+s.namespace+" mint"] == float64(answer.Status.At.UnixMicro())/1e6
	})
	assert.NotContains(t, gathered(t, registry, metric), s.credential+" "+s.namespace+" create")
	assert.GreaterOrEqual(t, gathered(t, registry, "mintlog_attributions")["Pending"], before+1)
	assert.NotZero(t, gathered(t, registry, "mintlog_accounts")["Minted"])
	assert.Len(t, gathered(t, registry, "mintlog_findings"), 9, "every type from the beginning, for alerts to see it rise")

	off := prometheus.NewRegistry()
	off.MustRegister(accountsCollector{storage: &Storage{cluster: s.cluster, viewer: viewer{now: time.Now, retention: time.Hour}}})
	assert.Empty(t, gathered(t, off, metric))
	assert.NotEmpty(t, gathered(t, off, "mintlog_accounts"))
}

func TestASecretOfAnotherNameIsNoCredentialWhateverLabelItHas(t *testing.T) {
	s := seeded(t, sandbox.TenantAcme, nil)
	planted := s.live(t)
	planted.ObjectMeta = metav1.ObjectMeta{Namespace: s.namespace, Name: s.credential, Labels: planted.Labels, Annotations: planted.Annotations}
	_, err := s.admin.CoreV1().Secrets(s.namespace).Create(t.Context(), planted, metav1.CreateOptions{})
	require.NoError(t, err)
	after := seeded(t, sandbox.TenantAcme, nil) // the cache has what came before

	registry := prometheus.NewRegistry()
	storage := &Storage{cluster: s.cluster, viewer: viewer{now: time.Now, retention: time.Hour}}
	registry.MustRegister(accountsCollector{storage: storage, lastChange: true})
	assert.Contains(t, gathered(t, registry, "mintlog_credential_last_change_timestamp_seconds"), s.credential+" "+s.namespace+" create")
	list, err := storage.List(genericapirequest.WithNamespace(t.Context(), s.namespace), nil)
	require.NoError(t, err)
	var names []string
	for _, c := range list.(*v1alpha1.CredentialList).Items {
		names = append(names, c.Name)
	}
	assert.Contains(t, names, after.credential)
	assert.Equal(t, names, slices.Compact(slices.Clone(names)), "no name stands twice")
}
