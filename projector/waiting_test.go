package projector

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/history"
	"github.com/mintlog/mintlog/store/ledger"
	"github.com/mintlog/mintlog/store/stream"
)

func TestACommitThatComesAfterTheEventOfALeftClientIsStillAttributed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	left := time.Now()
	b.start(stopped(left))
	a := b.newAccount("postgres-orders.app")
	request := a.requestOf(newAuditID(t), "jane", left, answered(503))
	b.publish(request)
	require.Eventually(t, func() bool { return len(b.loop.events.all()) == 1 }, patience, 10*time.Millisecond)
	time.Sleep(2 * lookInterval) // it is looked at more than once, and kept
	a.update(b.mint, func(secret *corev1.Secret) {
		book, err := ledger.Parse(secret.Annotations[ledger.Annotation])
		require.NoError(t, err)
		book = book.Append(ledger.Entry{ID: newID(t), Operation: ledger.Mint, At: left.Add(5 * time.Second), AuditID: request.AuditID,
			Caller: book.CallerDigest(request.AuditID, "jane"), Stored: book.StoredDigest(request.AuditID, []byte("stored-late"))})
		secret.Annotations[ledger.Annotation] = book.Encode()
		secret.Data["password"] = []byte("stored-late")
	})
	a.eventually("jane?")
	b.drained()
}

func TestAMintThatCreatesTheSecretIsAttributedThoughItsClientLeftBefore(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	left := time.Now()
	b.start(stopped(left.Add(commitLimit + clockSkew - time.Second)))
	a := &applicant{bench: b, credential: "postgres-new.app"}
	a.grant()
	book := ledger.Ledger{Account: newID(t)}
	id := newAuditID(t)
	b.publish(a.requestOf(id, "jane", left, answered(503), func(e *event.Event) { e.StageTimestamp = left }))
	b.drained()
	book = book.Append(ledger.Entry{ID: newID(t), Operation: ledger.Mint, At: left.Add(5 * time.Second), AuditID: id, Caller: book.CallerDigest(id, "jane"), Stored: "s"})
	_, err := b.mint.CoreV1().Secrets(b.namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: a.secretName(), Annotations: map[string]string{ledger.Annotation: book.Encode()},
			Labels: map[string]string{
				event.AccountLabel: "true", "internal.cozystack.io/managed-by-cozystack": "true", "internal.cozystack.io/tenantresource": "false",
			},
		},
		Type: corev1.SecretTypeBasicAuth,
		Data: map[string][]byte{"username": []byte("app"), "password": []byte("x")},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	a.eventually("jane?")
}

func TestARequestOfWhichOnlyTheReceptionIsKnownIsAttributedAfterTheSettlingTime(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.newAccount("postgres-orders.app")
	crashed := a.operate("jane")
	clock := testclock.NewFakePassiveClock(crashed.RequestReceivedTimestamp)
	b.start(func(o *Options) { o.Clock = clock })
	received(&crashed)
	finished := a.operate("olga")
	intent := finished
	received(&intent)
	b.publish(crashed, intent, finished)
	a.eventually("olga")
	b.taken(2 + 3)
	assert.Equal(t, []string{"olga"}, a.names(), "jane's came again, and too early")
	clock.SetTime(finished.RequestReceivedTimestamp.Add(b.loop.settleIntents))
	a.eventually("olga", "jane?")
	b.drained()
	assert.Equal(t, 2.0, b.count("mintlog_projector_patches_total"))
	assert.Equal(t, 2.0, b.count("mintlog_projector_folds_total"), "the reception of what is attributed is not folded")
}

func TestAnEventWaitsForTheRightToReadItsAccount(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	a := &applicant{bench: b, credential: "postgres-orders.app"}
	a.createSecret()
	b.publish(a.operate("jane"))
	b.drained()
	a.grant()
	a.eventually("jane")
	b.drained()
}

// stopped has a loop take a time for now.
func stopped(now time.Time) func(*Options) {
	return func(o *Options) { o.Clock = testclock.NewFakePassiveClock(now) }
}

// operatedAt is operate at another time, by jane.
func (a *applicant) operatedAt(at time.Time) event.Event {
	id := newAuditID(a.t)
	a.update(a.mint, func(secret *corev1.Secret) {
		book, err := ledger.Parse(secret.Annotations[ledger.Annotation])
		require.NoError(a.t, err)
		book = book.Append(ledger.Entry{ID: newID(a.t), Operation: ledger.Mint, At: at, AuditID: id, Caller: book.CallerDigest(id, "jane"), Stored: book.StoredDigest(id, []byte(id))})
		secret.Annotations[ledger.Annotation] = book.Encode()
		secret.Data["password"] = []byte(id)
	})
	return a.requestOf(id, "jane", at, func(e *event.Event) { e.StageTimestamp = at })
}

func TestASuccessWaitsForItsGrantForHoursAndOutsideOfTheLoop(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	a := &applicant{bench: b, credential: "postgres-orders.app"}
	a.createSecret()
	b.publish(a.operatedAt(time.Now().Add(-shortGrace - time.Hour)))
	b.drained()
	assert.Zero(t, b.count("mintlog_projector_failures_total"))
	a.grant()
	b.stopLoop()
	require.NoError(t, b.stream.Close())
	b.openStream() // which hands out at once what was put off
	b.start()
	a.eventually("jane")
	require.Eventually(t, func() bool {
		b.loop.mutex.Lock()
		defer b.loop.mutex.Unlock()
		return len(b.loop.ungranted) == 0
	}, patience, 10*time.Millisecond)
}

func TestASuccessIsLookedAtLessAndLessOftenUntilItIsLetGo(t *testing.T) {
	registry := prometheus.NewRegistry()
	now := time.Now()
	loop, err := New(Options{Clock: testclock.NewFakePassiveClock(now), Registerer: registry})
	require.NoError(t, err)
	f := func(age, want time.Duration, wantOK bool, changes ...func(*event.Event)) {
		t.Helper()
		e := request(0, "jane", append(changes, func(e *event.Event) { e.StageTimestamp = now.Add(-age) })...)
		delay, ok := loop.grantDelay(&stream.Message{Event: e, Sequence: uint64(age)})
		assert.Equal(t, wantOK, ok)
		if ok {
			assert.Equal(t, want, delay)
		}
	}
	f(-time.Hour, 2*time.Second, true)
	f(0, 2*time.Second, true)
	f(time.Minute, 6*time.Second, true)
	f(10*time.Minute, time.Minute, true)
	f(5*time.Hour, 10*time.Minute, true)
	f(24*time.Hour-1, 10*time.Minute, true)
	f(24*time.Hour, 0, false)
	f(-time.Hour, time.Minute, true, answered(503))
	f(0, time.Minute, true, answered(503))
	f(59*time.Second, time.Second, true, answered(503))
	f(time.Minute, 0, false, answered(503))
	f(time.Minute, 0, false, func(e *event.Event) { *e = write(0, "ivan") })
}

func TestNoMoreSuccessesWaitForGrantsThanLeaveRoomForOthers(t *testing.T) {
	now := testclock.NewFakePassiveClock(time.Now())
	loop, err := New(Options{Clock: now})
	require.NoError(t, err)
	waits := func(sequence uint64, age time.Duration) bool {
		e := request(0, "jane", func(e *event.Event) { e.StageTimestamp = now.Now().Add(-age) })
		_, ok := loop.grantDelay(&stream.Message{Event: e, Sequence: sequence})
		return ok
	}
	for n := range uint64(maxUngranted) {
		require.True(t, waits(n, time.Hour))
	}
	assert.False(t, waits(maxUngranted, time.Hour))
	assert.True(t, waits(maxUngranted, time.Minute), "a fresh one waits at any rate")
	assert.True(t, waits(7, time.Hour), "it waits already")
	now.SetTime(now.Now().Add(time.Hour)) // they came back elsewhere
	assert.True(t, waits(maxUngranted, time.Hour))
	assert.Len(t, loop.ungranted, 1)
}

func TestRequestsUnderMadeUpNamesAreLookedAtTwice(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var reads atomic.Int64
	b.start(b.failing(func(*http.Request) (bool, bool) { reads.Add(1); return false, false }))
	(&applicant{bench: b, credential: "granted.none"}).grant()
	soon := func(grace time.Duration) func(*event.Event) { // 12 s before it ends
		return func(e *event.Event) { e.StageTimestamp = time.Now().Add(12*time.Second - grace) }
	}
	for n := range 10 {
		a := &applicant{bench: b, credential: fmt.Sprintf("made-up-%d.x", n)}
		b.publish(a.requestOf(newAuditID(t), "mallory", time.Now().Add(-otherGrace), answered(101), soon(otherGrace)))
	}
	absent := &applicant{bench: b, credential: "granted.none"}
	b.publish(absent.requestOf(newAuditID(t), "mallory", time.Now().Add(-otherGrace), answered(101), soon(commitLimit+clockSkew+time.Second)))
	b.drained()
	require.Eventually(t, func() bool {
		return reads.Load() > 20 && b.count("mintlog_projector_failures_total", "not_granted") == 10
	}, patience, 20*time.Millisecond)
	b.drained()
	assert.LessOrEqual(t, reads.Load(), int64(2*11))
}

func TestAnOldEventOfAnAccountThatMayNotBeReadIsLetGo(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	a := &applicant{bench: b, credential: "postgres-orders.app"}
	a.createSecret()
	old := func(age time.Duration) func(*event.Event) {
		return func(e *event.Event) {
			e.RequestReceivedTimestamp, e.StageTimestamp = time.Now().Add(-age), time.Now().Add(-age)
		}
	}
	b.publish(
		a.requestOf(newAuditID(t), "jane", time.Now(), old(successGrace+time.Second)),
		a.requestOf(newAuditID(t), "jane", time.Now(), answered(503), old(otherGrace+time.Second)),
		a.writeOf("ivan", old(otherGrace+time.Second)),
	)
	require.Eventually(t, func() bool { return b.count("mintlog_projector_failures_total", "not_granted") == 3 }, patience, 10*time.Millisecond)
	b.drained()
	assert.Len(t, b.warnings(), 1, "a success is missed, and clients can make any number of the others")
}

func TestEventsOfWhatIsNoAccountAreLetGo(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	unlabelled, opaque, broken, gone := b.newAccount("postgres-a.app"), &applicant{bench: b, credential: "postgres-b.app"}, b.newAccount("postgres-c.app"), &applicant{bench: b, credential: "postgres-d.app"}
	minted := unlabelled.operate("jane")
	sameOfOpaque := opaque.requestOf(minted.AuditID, "jane", minted.RequestReceivedTimestamp)
	unlabelled.update(b.admin, func(s *corev1.Secret) { delete(s.Labels, event.AccountLabel) })
	opaque.grant()
	gone.grant()
	_, err := b.admin.CoreV1().Secrets(b.namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Name: opaque.secretName(), Labels: map[string]string{event.AccountLabel: "true"}, Annotations: unlabelled.secret().Annotations,
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	broken.update(b.admin, func(s *corev1.Secret) { s.Annotations[ledger.Annotation] = `{"account":"hunter2"` })
	now := time.Now()
	b.publish(
		minted, sameOfOpaque,
		broken.requestOf(newAuditID(t), "jane", now), gone.requestOf(newAuditID(t), "jane", now),
		gone.requestOf(newAuditID(t), "jane", now, func(e *event.Event) { e.ObjectRef.Name = "../../configmaps/x" }),
		gone.requestOf(newAuditID(t), "jane", now, func(e *event.Event) { e.ObjectRef.Name = strings.Repeat("x", 300) }),
		gone.requestOf(newAuditID(t), "jane", now, func(e *event.Event) { e.ObjectRef.Namespace = "no such/namespace" }),
	)
	b.taken(7)
	b.drained()
	for _, a := range []*applicant{unlabelled, opaque, broken} {
		assert.NotContains(t, a.secret().Annotations, history.Annotation)
	}
	assert.Zero(t, b.count("mintlog_projector_failures_total"))
	assert.NotContains(t, b.log.String(), "hunter2")
}
