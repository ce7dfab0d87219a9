package credential

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mintlog/mintlog/mint/account"
	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/store/history"
	"github.com/mintlog/mintlog/store/ledger"
)

var orders = &cluster.Release{Namespace: "tenant-acme", Name: "postgres-orders", UID: "r1", Kind: "Postgres", Application: "orders"}

func aMinter() *minter {
	return &minter{random: rand.Reader, now: func() time.Time { return minted.Add(time.Minute) }}
}

// aDraft is jane's next mint, changed by change.
func aDraft(change func(*draft)) draft {
	d := draft{
		request: request{
			operation: ledger.Mint, namespace: "tenant-acme", credential: "postgres-orders.app", caller: "jane", auditID: "a2",
			received: minted.Add(time.Minute),
		},
		target: target{
			release: orders, definition: &cluster.Definition{Block: definition.Block{SecretLabels: map[string]string{"cnpg.io/reload": "true"}}},
			account: definition.Account{Name: "app", Username: "app", Segment: "app", SecretName: "postgres-orders.app.account"},
		},
		id: strings.Repeat("ef", 16), stored: []byte("new form"), password: "p",
	}
	if change != nil {
		change(&d)
	}
	return d
}

// ownedSecret is mintedSecret as the application orders owns it.
func ownedSecret(change func(*corev1.Secret)) *corev1.Secret {
	return mintedSecret(func(s *corev1.Secret) {
		s.OwnerReferences = []metav1.OwnerReference{account.Owner(orders)}
		if change != nil {
			change(s)
		}
	})
}

func TestTheNextSecretHoldsPasswordLedgerAndOriginTogether(t *testing.T) {
	base := ownedSecret(nil)
	untouched := base.DeepCopy()
	next, entry, err := aMinter().next(aDraft(nil), base)
	require.NoError(t, err)
	assert.Equal(t, untouched, base, "the cached Secret is shared")
	book, err := ledger.Parse(next.Annotations[ledger.Annotation])
	require.NoError(t, err)
	assert.Equal(t, book.Newest(), entry)
	assert.Equal(t, int64(3), entry.Revision)
	assert.Equal(t, book.CallerDigest("a2", "jane"), entry.Caller)
	assert.Equal(t, book.StoredDigest("a2", []byte("new form")), entry.Stored)
	assert.Equal(t, "new form", string(next.Data["password"]))
	assert.Equal(t, "Minted", next.Annotations[ledger.OriginAnnotation])
	assert.Equal(t, base.Annotations[history.Annotation], next.Annotations[history.Annotation], "the history is the projector's")
	assert.Equal(t, base.ResourceVersion, next.ResourceVersion, "the write is conditional")
	assert.NotContains(t, next.Annotations[ledger.Annotation], "jane", "the ledger never says who")
}

func TestTheFirstMintMakesTheSecretWithOneEntry(t *testing.T) {
	next, entry, err := aMinter().next(aDraft(nil), nil)
	require.NoError(t, err)
	assert.Equal(t, int64(1), entry.Revision)
	assert.Equal(t, "postgres-orders.app.account", next.Name)
	assert.Equal(t, corev1.SecretTypeBasicAuth, next.Type)
	assert.Equal(t, "app", string(next.Data["username"]))
	assert.Equal(t, "true", next.Labels["cnpg.io/reload"])
	assert.True(t, account.Owned(next, orders))
}

func TestABrokenLedgerBeginsAnew(t *testing.T) {
	base := ownedSecret(func(s *corev1.Secret) { s.Annotations[ledger.Annotation] = "{" })
	next, entry, err := aMinter().next(aDraft(nil), base)
	require.NoError(t, err)
	assert.Equal(t, int64(1), entry.Revision)
	_, err = ledger.Parse(next.Annotations[ledger.Annotation])
	require.NoError(t, err)
}

func TestASecretThatIsNotThisAccountsIsRefused(t *testing.T) {
	f := func(says string, change func(*corev1.Secret)) {
		t.Helper()
		_, _, err := aMinter().next(aDraft(nil), ownedSecret(change))
		require.True(t, apierrors.IsConflict(err), "%v", err)
		assert.Contains(t, err.Error(), says)
	}
	now := metav1.NewTime(minted)
	f("label", func(s *corev1.Secret) { s.Labels = nil })
	f("type", func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque })
	f("username", func(s *corev1.Secret) { s.Data["username"] = []byte("other") })
	f("not owned by this application", func(s *corev1.Secret) { s.OwnerReferences = nil })
	f("not owned by this application", func(s *corev1.Secret) { s.OwnerReferences[0].UID = "r0" })
	f("about to go", func(s *corev1.Secret) { s.DeletionTimestamp = &now })
}

func TestPreconditionsAreHeldAgainstTheSecret(t *testing.T) {
	f := func(unmet string, p v1alpha1.Preconditions, base *corev1.Secret) {
		t.Helper()
		_, _, err := aMinter().next(aDraft(func(d *draft) { d.preconditions = p }), base)
		if unmet == "" {
			require.NoError(t, err)
			return
		}
		require.True(t, apierrors.IsConflict(err), "%v", err)
		assert.Contains(t, err.Error(), "precondition "+unmet)
	}
	text := func(s string) *string { return &s }
	number := func(n int64) *int64 { return &n }
	uid := func(s types.UID) *types.UID { return &s }
	f("", v1alpha1.Preconditions{ID: text(entryID), Revision: number(2), ResourceVersion: text("7"), UID: uid("u1")}, ownedSecret(nil))
	f("id", v1alpha1.Preconditions{ID: text("x")}, ownedSecret(nil))
	f("id", v1alpha1.Preconditions{ID: text("")}, ownedSecret(nil))
	f("id", v1alpha1.Preconditions{ID: text(entryID)}, nil)
	f("revision", v1alpha1.Preconditions{Revision: number(1)}, ownedSecret(nil))
	f("revision", v1alpha1.Preconditions{Revision: number(0)}, ownedSecret(nil))
	f("revision", v1alpha1.Preconditions{Revision: number(1)}, nil)
	f("", v1alpha1.Preconditions{Revision: number(0)}, nil)
	f("resourceVersion", v1alpha1.Preconditions{ResourceVersion: text("6")}, ownedSecret(nil))
	f("resourceVersion", v1alpha1.Preconditions{ResourceVersion: text("7")}, nil)
	f("uid", v1alpha1.Preconditions{UID: uid("u2")}, ownedSecret(nil))
	f("uid", v1alpha1.Preconditions{UID: uid("u1")}, nil)
	broken := ownedSecret(func(s *corev1.Secret) { s.Annotations[ledger.Annotation] = "{" })
	f("revision", v1alpha1.Preconditions{Revision: number(0)}, broken)
	f("id", v1alpha1.Preconditions{ID: text(entryID)}, broken)
	f("", v1alpha1.Preconditions{UID: uid("u1")}, broken)
}

func TestASpentAuditIDIsRefused(t *testing.T) {
	_, _, err := aMinter().next(aDraft(func(d *draft) { d.auditID = "a1" }), ownedSecret(nil))
	require.True(t, apierrors.IsConflict(err))
	assert.Contains(t, err.Error(), "Audit-ID")
}

func TestAnOperationThatCameMeanwhileOvertakesAndAnOlderOneDoesNot(t *testing.T) {
	d := aDraft(nil)
	base := ownedSecret(nil)
	winner := func(at time.Time) *corev1.Secret {
		m := aMinter()
		m.now = func() time.Time { return at }
		next, _, err := m.next(aDraft(func(d *draft) { d.id, d.auditID = strings.Repeat("99", 16), "a3" }), base)
		require.NoError(t, err)
		return next
	}
	assert.True(t, apierrors.IsConflict(aMinter().overtaken(d, base, winner(d.received.Add(time.Millisecond)))))
	assert.True(t, apierrors.IsConflict(aMinter().overtaken(d, base, winner(d.received))))
	assert.NoError(t, aMinter().overtaken(d, base, winner(d.received.Add(-time.Millisecond))), "the cache was behind")
	assert.NoError(t, aMinter().overtaken(d, base, base), "an annotation changed")
	seeded := ownedSecret(func(s *corev1.Secret) {
		book := ledger.Ledger{Account: strings.Repeat("0f", 16)}
		s.Annotations[ledger.Annotation] = book.Append(ledger.Entry{
			ID: strings.Repeat("cd", 16), Operation: ledger.Create, At: d.received.Add(time.Second), Stored: "x",
		}).Encode()
	})
	assert.NoError(t, aMinter().overtaken(d, nil, seeded), "the platform seeded the account meanwhile")
	assert.NoError(t, aMinter().overtaken(d, base, nil), "it is gone")
}

func TestAnnotationsAreCountedAsKubeAPIServerCountsThem(t *testing.T) {
	base := ownedSecret(nil)
	next, _, err := aMinter().next(aDraft(nil), base)
	require.NoError(t, err)
	room := history.MaxAnnotationBytes - history.AnnotationBytes(next.Annotations) - len("k")
	base.Annotations["k"] = strings.Repeat("x", room)
	_, _, err = aMinter().next(aDraft(nil), base)
	require.NoError(t, err)
	base.Annotations["k"] += "x"
	_, _, err = aMinter().next(aDraft(nil), base)
	require.True(t, apierrors.IsRequestEntityTooLargeError(err))
}
