package accounts_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mintlog/mintlog/mint/cluster"
)

func TestOfAnApplicationThatRanBeforeItsKindHadABlockNothingIsSeededAndNothingChanges(t *testing.T) {
	ns := tenant(t, "tenant-before")
	define(t, "Before", nil)
	install(t, ns, "Before", "app", "reporter")
	charts, err := admin().CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "before-orders-credentials"}, StringData: map[string]string{"app": "x", "reporter": "y", "late": "z"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	r := run(t)
	define(t, "Before", users)
	awaitSight(t, "Before")
	assert.ElementsMatch(t, []string{"app", "reporter"}, found(t, ns, "before-orders"))
	never(t, "a Secret for an account that ran before", func() bool {
		return secret(t, ns, "before-orders.app.account") != nil || secret(t, ns, "before-orders.reporter.account") != nil
	})
	assert.Equal(t, []string{"before-orders.app.account", "before-orders.reporter.account"}, granted(t, ns, "before-orders"), "for a mint by name")
	assert.Equal(t, charts, secret(t, ns, "before-orders-credentials"))

	// Nor after a restart.
	r.stop()
	run(t)
	install(t, ns, "Before", "app", "reporter", "new", "late")
	awaitSecret(t, ns, "before-orders.new.account")
	never(t, "a Secret for an account whose password is elsewhere", func() bool {
		return secret(t, ns, "before-orders.late.account") != nil || secret(t, ns, "before-orders.app.account") != nil
	})
	assert.ElementsMatch(t, []string{"app", "late", "reporter"}, found(t, ns, "before-orders"))

	// And what was taken for the charts' is not seeded when their Secret goes.
	require.NoError(t, admin().CoreV1().Secrets(ns).Delete(t.Context(), "before-orders-credentials", metav1.DeleteOptions{}))
	install(t, ns, "Before", "app", "reporter", "new", "late", "newer")
	awaitSecret(t, ns, "before-orders.newer.account")
	assert.Nil(t, secret(t, ns, "before-orders.late.account"))
}

func TestASharedPasswordOfAChartKeepsEveryAccountFromBeingSeeded(t *testing.T) {
	run(t)
	ns := tenant(t, "tenant-shared")
	serve(t, "Shared", users)
	_, err := admin().CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "shared-orders-auth"}, StringData: map[string]string{"password": "x"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	install(t, ns, "Shared", "default")
	assert.Equal(t, []string{"default"}, found(t, ns, "shared-orders"))
	never(t, "a Secret", func() bool { return secret(t, ns, "shared-orders.default.account") != nil })
}

func TestASecretThatIsNotOursIsNeverTouched(t *testing.T) {
	ns := tenant(t, "tenant-foreign")
	create := func(name string, labels map[string]string, username string) *corev1.Secret {
		s, err := admin().CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Type: corev1.SecretTypeBasicAuth,
			StringData: map[string]string{"username": username, "password": "theirs"},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		return s
	}
	unlabelled := create("foreign-orders.app.account", nil, "app")
	labelled := create("foreign-orders.other.account", map[string]string{cluster.AccountLabel: "true"}, "somebody")
	time.Sleep(time.Second) // so that the application is younger
	r := run(t)
	serve(t, "Foreign", users)
	install(t, ns, "Foreign", "app", "other", "fine")
	awaitSecret(t, ns, "foreign-orders.fine.account")
	eventually(t, "an Event", func() bool {
		return len(events(t, ns, "ForeignSecret")) == 1 && len(events(t, ns, "AccountRefused")) == 1
	})
	assert.Contains(t, events(t, ns, "ForeignSecret")[0].Message, "foreign-orders.app.account")
	install(t, ns, "Foreign", "app", "other", "fine", "more")
	awaitSecret(t, ns, "foreign-orders.more.account")
	install(t, ns, "Foreign", "fine")
	awaitNoSecret(t, ns, "foreign-orders.more.account")
	assert.Equal(t, unlabelled, secret(t, ns, "foreign-orders.app.account"))
	assert.Equal(t, labelled, secret(t, ns, "foreign-orders.other.account"))
	assert.Len(t, events(t, ns, "ForeignSecret"), 1)
	assert.Equal(t, 2.0, r.counted(t, "mintlog_accounts_problems_total"))
}

func TestWhatIsInTheWayOfSeedingIsNotInTheWayOfTheGrant(t *testing.T) {
	var unreachable atomic.Bool
	unreachable.Store(true)
	config := as(t, "accounts")
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			if unreachable.Load() && strings.HasSuffix(r.URL.Path, "/secrets/unseeded-orders-auth") {
				return nil, errors.New("the connection is lost")
			}
			return next.RoundTrip(r)
		})
	})
	runWith(t, config)
	ns := tenant(t, "tenant-unseeded")
	serve(t, "Unseeded", users)
	install(t, ns, "Unseeded", "app")
	assert.Empty(t, found(t, ns, "unseeded-orders"))
	assert.Equal(t, []string{"unseeded-orders.app.account"}, granted(t, ns, "unseeded-orders"), "for a mint")
	never(t, "an account is seeded that may have a password", func() bool { return secret(t, ns, "unseeded-orders.app.account") != nil })
	unreachable.Store(false)
	awaitSecret(t, ns, "unseeded-orders.app.account")
}

func TestAnApplicationWithMoreLoginsThanItsRecordHoldsIsReportedAndNobodyIsLockedOut(t *testing.T) {
	r := run(t)
	ns := tenant(t, "tenant-huge")
	logins := func(count int) object {
		declared := object{}
		for i := range count {
			declared[fmt.Sprintf("user%05d-%s", i, strings.Repeat("x", 53))] = object{}
		}
		return object{"users": declared}
	}
	lay := func(count int) {
		_, err := servers().InstallRelease(t.Context(), ns, "Huge", "orders", logins(count))
		require.NoError(t, err)
	}
	lay(4090) // of 63 bytes, with quotes and comma 66
	serveSince(t, "Huge", users, time.Now().Add(time.Hour))
	eventually(t, "an Event", func() bool { return len(events(t, ns, "GrantRefused")) == 1 })
	assert.Contains(t, events(t, ns, "GrantRefused")[0].Message,
		"the Role credentials-huge-orders is not written: 4090 logins that ran before its kind had a block, or have a password elsewhere, do not fit into its annotations")
	eventually(t, "it is tried again", func() bool { return r.reconciled(t, "reported") >= 3 })
	assert.Len(t, events(t, ns, "GrantRefused"), 1)
	assert.Empty(t, stored(t, ns))
	assert.NotContains(t, r.log.String(), "WARN")

	lay(3)
	assert.Len(t, found(t, ns, "huge-orders"), 3)
	assert.Empty(t, stored(t, ns))
}
