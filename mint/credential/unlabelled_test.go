package credential

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/kubernetes"
	clientrest "k8s.io/client-go/rest"

	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/test/sandbox"
)

func TestAnAccountSecretWithoutItsLabelIsInvisibleAndTheErrorSaysSo(t *testing.T) {
	const lacks = "lacks the label " + cluster.AccountLabel + "=true"
	const none = "there is no such account"
	f := func(s *subject, says, not string) {
		t.Helper()
		_, err := s.serve(t, nil).read(t, s)
		refused(t, err, http.StatusNotFound, says)
		assert.NotContains(t, err.Error(), not)
	}
	without := func(change func(*corev1.Secret)) *subject {
		s := declared(t, sandbox.TenantAcme)
		s.seed(t, func(secret *corev1.Secret) {
			delete(secret.Labels, cluster.AccountLabel)
			if change != nil {
				change(secret)
			}
		})
		return s
	}
	s := without(nil)
	f(s, s.secret, none)
	f(s, lacks, none)
	f(without(func(secret *corev1.Secret) { secret.Labels[cluster.AccountLabel] = "false" }), lacks, none)
	f(without(func(secret *corev1.Secret) { secret.Type = corev1.SecretTypeOpaque }), none, "label")
	f(declared(t, sandbox.TenantAcme), none, "label")

	seen := seeded(t, sandbox.TenantAcme, nil)
	live := seen.live(t)
	delete(live.Labels, cluster.AccountLabel)
	_, err := seen.admin.CoreV1().Secrets(seen.namespace).Update(t.Context(), live, metav1.UpdateOptions{})
	require.NoError(t, err)
	eventually(t, "the account Secret is out of the cache", func() bool {
		_, err := seen.cluster.AccountSecret(t.Context(), seen.namespace, seen.secret)
		return apierrors.IsNotFound(err)
	})
	f(seen, lacks, none)
}

func TestKubeAPIServerIsAskedOnlyForNamesThatAnAccountCanHave(t *testing.T) {
	w := theWorld(t)
	asked := &asked{}
	config := clientrest.CopyConfig(w.mint)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { asked.next = next; return asked })
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	storage := &Storage{cluster: w.cluster, client: client.CoreV1()}
	f := func(name string, want int64) {
		t.Helper()
		asked.count.Store(0)
		_, err := rest.Getter(storage).Get(genericapirequest.WithNamespace(t.Context(), sandbox.TenantAcme), name, &metav1.GetOptions{})
		refused(t, err, http.StatusNotFound, "there is no such account")
		assert.Equal(t, want, asked.count.Load(), name)
	}
	f("postgres-none.app", 1)
	f("postgres-none", 0)
	f("Postgres.App", 0)
	f("postgres-none..app", 0)
	f("postgres.app/../other", 0)
}

// asked counts requests.
type asked struct {
	next  http.RoundTripper
	count atomic.Int64
}

func (a *asked) RoundTrip(r *http.Request) (*http.Response, error) {
	a.count.Add(1)
	return a.next.RoundTrip(r)
}
