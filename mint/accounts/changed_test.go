package accounts_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/mintlog/mintlog/store/ledger"
)

func TestEachChangeOfAPasswordIsToldOfOnceByAnEventThatDoesNotSayWho(t *testing.T) {
	r := run(t)
	ns := tenant(t, "tenant-changed")
	serve(t, "Changed", users)
	uid := install(t, ns, "Changed", "app", "Report.Reader")
	const app, reader = "changed-orders.app.account", "changed-orders.report-reader.account"
	awaitSecret(t, ns, app)
	awaitSecret(t, ns, reader)
	told := func() []corev1.Event { return events(t, ns, "PasswordChanged") }
	await := func(count int) {
		t.Helper()
		eventually(t, "an Event of each change", func() bool { return len(told()) == count })
		never(t, "an Event too many", func() bool { return len(told()) != count })
	}
	await(0) // what the platform did itself changes nobody's password

	operate(t, ns, app)
	operateAt(t, ns, reader, ledger.Revoke, time.Now())
	await(2)
	messages := map[string]corev1.Event{}
	for _, e := range told() {
		assert.Equal(t, corev1.EventTypeNormal, e.Type)
		assert.Equal(t, uid, e.InvolvedObject.UID)
		assert.Equal(t, "changed-orders", e.InvolvedObject.Name)
		assert.NotContains(t, e.String(), "jane", "who asked is for the history alone")
		for _, secret := range []string{app, reader} {
			s := secretOf(t, ns, secret)
			assert.NotContains(t, e.String(), string(s.Data["password"]))
			assert.NotContains(t, e.String(), newest(t, s).Caller)
		}
		messages[e.Message] = e
	}
	contain := func(words ...string) bool {
		for message := range messages {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(message, w) }) {
				return true
			}
		}
		return false
	}
	assert.True(t, contain("changed-orders.app changed", "clients that hold the old one"), messages)
	assert.True(t, contain("changed-orders.report-reader changed", "revoked"), messages)

	// After a restart what was told of is not told of again, and what happened meanwhile is: both of it.
	r.stop()
	operate(t, ns, app)
	operate(t, ns, app)
	r = run(t)
	await(4)
	r.stop()
	run(t)
	await(4)

	// An old operation, as a restore brings back, is no news.
	operateAt(t, ns, app, ledger.Mint, time.Now().Add(-time.Hour))
	await(4)
}

func secretOf(t *testing.T, namespace, name string) *corev1.Secret {
	t.Helper()
	s := secret(t, namespace, name)
	require.NotNil(t, s)
	return s
}

func newest(t *testing.T, s *corev1.Secret) ledger.Entry {
	t.Helper()
	book, err := ledger.Parse(s.Annotations[ledger.Annotation])
	require.NoError(t, err)
	return book.Newest()
}
