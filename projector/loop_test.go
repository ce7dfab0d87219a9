package projector

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/stream"
)

func TestAMintIsAttributedOnTheSecret(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	b.publish(a.operate("jane"))
	a.eventually("jane")
	b.publish(a.operate("jane", func(e *event.Event) { e.User.Username = "root"; onBehalfOf("jane")(e) }))
	a.eventually("jane<root", "jane")
	b.publish(a.operate("olga", panicked))
	a.eventually("olga?", "jane<root", "jane")
	b.drained()
	assert.Equal(t, 3.0, b.count("mintlog_projector_patches_total"))
	assert.Equal(t, 3.0, b.count("mintlog_projector_lag_seconds"))
	assert.Zero(t, b.count("mintlog_projector_failures_total"))
	assert.Empty(t, a.history().Findings)
	assert.Equal(t, "app", string(a.secret().Data["username"]))
}

func TestAnEventDeliveredTwiceWritesOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	first := a.operate("jane")
	b.publish(first)
	a.eventually("jane")
	b.drained()
	before := a.secret().ResourceVersion
	again := first
	again.Source = "archive" // the stream itself would recognize the same once more
	again.StageTimestamp = again.StageTimestamp.Add(time.Microsecond)
	b.publish(again)
	b.taken(2)
	b.drained()
	assert.Equal(t, before, a.secret().ResourceVersion)
	assert.Equal(t, 1.0, b.count("mintlog_projector_patches_total"))
}

func TestABurstOnOneAccountIsWrittenInAFewPatches(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.newAccount("postgres-orders.app")
	var events []event.Event
	var want []string
	for n := range 25 {
		user := fmt.Sprint("user-", n)
		events = append(events, a.operate(user))
		want = append([]string{user}, want...)
	}
	b.publish(events...)
	together := make(chan struct{}) // no sooner is the account looked at
	b.start(b.failing(func(*http.Request) (bool, bool) { <-together; return false, false }))
	b.taken(len(events))
	close(together)
	a.eventually(want[:10]...)
	b.drained()
	assert.Less(t, b.count("mintlog_projector_patches_total"), 5.0)
	assert.Empty(t, a.history().Findings)
}

func TestSeveralLoopsOnOneStreamComeToOneHistory(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	registry := prometheus.NewRegistry()
	second, err := New(Options{Stream: b.stream, Client: kubernetes.NewForConfigOrDie(b.projector).CoreV1(), Own: own, Log: b.logger(), Registerer: registry})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- second.Run(ctx) }()
	accounts := []*applicant{b.newAccount("postgres-a.app"), b.newAccount("postgres-b.app"), b.newAccount("postgres-c.app")}
	first := b.registry
	for _, r := range []*prometheus.Registry{first, registry} { // until each takes its part
		b.registry = r
		require.Eventually(t, func() bool {
			b.publish(accounts[0].writeOf("ivan"))
			return b.count("mintlog_projector_events_total") > 0
		}, patience, 10*time.Millisecond)
	}
	for n := range 12 {
		for _, a := range accounts {
			b.publish(a.operate(fmt.Sprint("user-", n)))
		}
	}
	for _, a := range accounts {
		a.eventually("user-11", "user-10", "user-9", "user-8", "user-7", "user-6", "user-5", "user-4", "user-3", "user-2")
	}
	cancel()
	require.NoError(t, <-done)
}

func TestWhatIsDealtWithDoesNotComeAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	b.publish(a.operate("jane"), a.writeOf(projectorUser), a.writeOf("ivan"), a.requestOf(newAuditID(t), "jane", time.Now()))
	a.eventually("jane")
	b.drained()
	b.stopLoop()
	b.acknowledged()
	require.NoError(t, b.stream.Close())
	b.openStream() // which asks again for all that nobody has acknowledged
	b.start()
	b.publish(a.operate("olga"))
	a.eventually("olga", "jane")
	b.drained()
	assert.Equal(t, 1.0, b.count("mintlog_projector_events_total"))
}

func TestTheLoopStopsAndCarriesOnUnderTraffic(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.newAccount("postgres-orders.app")
	var want []string
	for round := range 6 {
		b.start()
		for n := range 3 {
			user := fmt.Sprintf("user-%d-%d", round, n)
			b.publish(a.operate(user))
			want = append([]string{user}, want...)
		}
		b.stopLoop()
	}
	b.start()
	a.eventually(want[:10]...)
	assert.Empty(t, a.history().Findings)
}

func TestALoopWhoseStreamIsClosedSaysSo(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	loop, err := New(Options{Stream: b.stream, Client: b.admin.CoreV1(), Log: b.logger()})
	require.NoError(t, err)
	require.NoError(t, b.stream.Close())
	assert.ErrorIs(t, loop.Run(t.Context()), stream.ErrClosed)
	b.openStream()
}

func TestTheMetricsAreWellFormed(t *testing.T) {
	registry := prometheus.NewRegistry()
	_, err := New(Options{Registerer: registry})
	require.NoError(t, err)
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	assert.Empty(t, problems)
	_, err = New(Options{Registerer: registry})
	assert.Error(t, err, "registered twice")
}

// BenchmarkFromAnEventToTheHistory takes an event from its publication to the history on the Secret, one after the other
// on an account whose history is full.
func BenchmarkFromAnEventToTheHistory(b *testing.B) {
	bench := newBench(b)
	bench.start()
	a := bench.newAccount("postgres-orders.app")
	for b.Loop() {
		b.StopTimer()
		e := a.operate("jane")
		written := bench.count("mintlog_projector_patches_total")
		b.StartTimer()
		bench.publish(e)
		for bench.count("mintlog_projector_patches_total") == written {
			time.Sleep(100 * time.Microsecond)
		}
	}
}
