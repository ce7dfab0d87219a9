package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/test/output"
)

func testOptions(t testing.TB) Options {
	t.Helper()
	return Options{
		Directory:  t.TempDir(),
		Registerer: prometheus.NewRegistry(),
		Log:        output.Logger(t),
	}
}

func open(t testing.TB, o Options) *Stream {
	t.Helper()
	s, err := Open(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// reopened are the options for another Stream on the same directory, whose metrics start anew.
func reopened(o Options) Options {
	o.Registerer = prometheus.NewRegistry()
	return o
}

var epoch = time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)

// mintEvent is the i-th mint of tenant-acme's account, answered with code.
func mintEvent(i, code int) event.Event {
	at := epoch.Add(time.Duration(i) * time.Millisecond)
	return event.Event{
		AuditID:                  fmt.Sprintf("00000000-0000-4000-8000-%012d", i),
		Stage:                    event.ResponseComplete,
		Verb:                     "create",
		RequestURI:               "/apis/credentials.cozystack.io/v1alpha1/namespaces/tenant-acme/credentials/postgres-orders.app/mint",
		User:                     event.User{Username: "jane"},
		ObjectRef:                &event.ObjectRef{APIGroup: event.Group, Resource: event.Resource, Subresource: "mint", Namespace: "tenant-acme", Name: "postgres-orders.app"},
		ResponseStatus:           &event.ResponseStatus{Code: code},
		Annotations:              map[string]string{"authorization.k8s.io/decision": "allow"},
		RequestReceivedTimestamp: at,
		StageTimestamp:           at.Add(8 * time.Millisecond),
	}
}

func mints(from, to int) []event.Event {
	var list []event.Event
	for i := from; i < to; i++ {
		list = append(list, mintEvent(i, 201))
	}
	return list
}

func intent(i int) event.Event {
	e := mintEvent(i, 0)
	e.Stage, e.ResponseStatus, e.Annotations, e.StageTimestamp = event.RequestReceived, nil, nil, e.RequestReceivedTimestamp
	return e
}

// drain acknowledges and returns what the consumer gets until nothing is left, or comes for a while.
func drain(t testing.TB, s *Stream, consumer Consumer) []event.Event {
	t.Helper()
	var got []event.Event
	for {
		messages, err := s.Fetch(t.Context(), consumer, 100, 300*time.Millisecond)
		require.NoError(t, err)
		for _, m := range messages {
			got = append(got, m.Event)
			require.NoError(t, m.Ack())
		}
		c, err := s.js.Consumer(t.Context(), streamNames[consumerKinds[consumer]], string(consumer))
		require.NoError(t, err)
		is := c.CachedInfo()
		if is.NumPending == 0 && is.NumAckPending == 0 { // what came too late for its request comes again
			return got
		}
	}
}

func identity(e event.Event) string { return e.Identity() }

func identities(list []event.Event) []string {
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = list[i].Identity()
	}
	return ids
}

func stored(t testing.TB, s *Stream, k kind) int {
	t.Helper()
	stream, err := s.js.Stream(t.Context(), streamNames[k])
	require.NoError(t, err)
	return int(stream.CachedInfo().State.Msgs)
}

func TestPublishedEventsReachEveryConsumerInOrderAsTheyWere(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	want := mints(0, 1500) // more than one window
	require.NoError(t, s.Publish(t.Context(), want))
	assert.Equal(t, identities(want), identities(drain(t, s, ProjectorEvents)))
	assert.Equal(t, want, drain(t, s, ArchiverEvents))
}

func TestEachEventGoesToTheStreamOfItsKind(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	dry := mintEvent(4, 201)
	dry.RequestURI += "?dryRun=All"
	write := mintEvent(5, 200)
	write.Verb, write.ObjectRef = "update", &event.ObjectRef{Resource: "secrets", Namespace: "tenant-acme", Name: "postgres-orders.app.account"}
	forbidden := mintEvent(6, 403)
	forbidden.Annotations = map[string]string{"authorization.k8s.io/decision": "forbid"}
	unanswered := mintEvent(7, 503)
	require.NoError(t, s.Publish(t.Context(), []event.Event{mintEvent(1, 201), intent(1), mintEvent(2, 409), dry, write, forbidden, unanswered}))

	assert.Equal(t, identities([]event.Event{mintEvent(1, 201), write, unanswered}), identities(drain(t, s, ProjectorEvents)))
	assert.Equal(t, identities([]event.Event{intent(1)}), identities(drain(t, s, ProjectorIntents)))
	assert.Equal(t, identities([]event.Event{intent(1)}), identities(drain(t, s, ArchiverIntents)))
	assert.Equal(t, identities([]event.Event{mintEvent(2, 409), dry, forbidden}), identities(drain(t, s, ArchiverAttempts)))
}

func TestAnEventStaysUntilBothProjectorAndArchiverHaveAcknowledgedIt(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	require.NoError(t, s.Publish(t.Context(), mints(0, 3)))
	drain(t, s, ProjectorEvents)
	assert.Equal(t, 3, stored(t, s, events))
	drain(t, s, ArchiverEvents)
	assert.Eventually(t, func() bool { return stored(t, s, events) == 0 }, time.Minute, 20*time.Millisecond)
}

func TestFetchReturnsNoMoreThanAConsumerShouldHoldAndTheRestComesAgain(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	list := mints(0, 40)
	for i := range list {
		list[i].UserAgent = strings.Repeat("a", 900<<10)
		require.NoError(t, s.Publish(t.Context(), list[i:i+1]))
	}
	seen := map[string]bool{}
	require.Eventually(t, func() bool {
		messages, err := s.Fetch(t.Context(), ArchiverEvents, 100, 2*time.Second)
		require.NoError(t, err)
		assert.LessOrEqual(t, len(messages), 19, "16 MiB of them")
		for _, m := range messages {
			seen[m.Event.Identity()] = true
			require.NoError(t, m.Ack())
		}
		return len(seen) == len(list)
	}, 5*time.Minute, time.Millisecond) // what came too late for its request comes again after a minute
}

func TestMessagesCanBeNeitherDeletedNorPurged(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	require.NoError(t, s.Publish(t.Context(), []event.Event{mintEvent(1, 201), intent(1), mintEvent(2, 403)}))
	for k, name := range streamNames {
		stream, err := s.js.Stream(t.Context(), name)
		require.NoError(t, err)
		assert.Error(t, stream.DeleteMsg(t.Context(), 1), name)
		assert.Error(t, stream.Purge(t.Context()), name)
		assert.Equal(t, 1, stored(t, s, k))
	}
}

func TestASecondOpenOfTheDirectoryCarriesOnWhereTheFirstEnded(t *testing.T) {
	t.Parallel()
	o := testOptions(t)
	first, err := Open(t.Context(), o)
	require.NoError(t, err)
	require.NoError(t, first.Publish(t.Context(), mints(0, 10)))
	messages, err := first.Fetch(t.Context(), ProjectorEvents, 6, time.Minute)
	require.NoError(t, err)
	require.Len(t, messages, 6)
	for _, m := range messages[:4] { // the other two were handed out and not acknowledged
		require.NoError(t, m.Ack())
	}
	require.Eventually(t, func() bool { // nobody answers to an Ack
		c, err := first.js.Consumer(t.Context(), streamNames[events], string(ProjectorEvents))
		return err == nil && c.CachedInfo().NumAckPending == 2
	}, time.Minute, 20*time.Millisecond)
	_, err = first.Evidence().Put(t.Context(), "aa", []byte("kept"), 0)
	require.NoError(t, err)
	require.NoError(t, first.Close())
	require.NoError(t, first.Close(), "closing twice")
	assert.ErrorIs(t, first.Publish(t.Context(), mints(0, 1)), ErrClosed)

	second := open(t, reopened(o))
	require.NoError(t, second.Publish(t.Context(), mints(0, 11)), "what was stored before is known")
	assert.Equal(t, identities(mints(4, 11)), identities(drain(t, second, ProjectorEvents)))
	assert.Len(t, drain(t, second, ArchiverEvents), 11)
	value, _, err := second.Evidence().Get(t.Context(), "aa")
	require.NoError(t, err)
	assert.Equal(t, "kept", string(value))
}

func TestADirectoryTakesOneStreamAtATime(t *testing.T) {
	t.Parallel()
	o := testOptions(t)
	open(t, o)
	_, err := Open(t.Context(), reopened(o))
	assert.ErrorIs(t, err, ErrLocked)
}

// consumeAll consumes in the background and acknowledges into the returned channel until the test ends.
func consumeAll(t testing.TB, s *Stream, consumer Consumer) <-chan *Message {
	t.Helper()
	got := make(chan *Message, 1000)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Consume(ctx, consumer, func(m *Message) {
			if err := m.Ack(); err == nil {
				got <- m
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	return got
}

func receive(t testing.TB, got <-chan *Message) *Message {
	t.Helper()
	select {
	case m := <-got:
		return m
	case <-time.After(3 * time.Minute): // what was lost on its way comes again after half a minute, or one
		t.Fatal("nothing was consumed")
		return nil
	}
}

func TestConsumptionResumesAfterItsConsumerWasDeleted(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	got := consumeAll(t, s, ProjectorEvents)
	require.NoError(t, s.Publish(t.Context(), mints(0, 1)))
	receive(t, got)
	require.NoError(t, s.js.DeleteConsumer(t.Context(), streamNames[events], string(ProjectorEvents)))
	assert.Eventually(t, func() bool {
		return testutil.ToFloat64(s.metrics.recreated.WithLabelValues(string(ProjectorEvents))) == 1
	}, time.Minute, 20*time.Millisecond)
	require.NoError(t, s.Publish(t.Context(), mints(1, 2)))
	for receive(t, got).Event.Identity() != identity(mintEvent(1, 201)) {
	}
}

func TestPublishingAndConsumptionResumeAfterTheirStreamWasDeleted(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	got := consumeAll(t, s, ProjectorEvents)
	require.NoError(t, s.Publish(t.Context(), mints(0, 1)))
	receive(t, got)
	require.NoError(t, s.js.DeleteStream(t.Context(), streamNames[events]))
	require.NoError(t, s.Publish(t.Context(), mints(1, 2)))
	assert.Equal(t, identity(mintEvent(1, 201)), receive(t, got).Event.Identity())
	assert.Equal(t, 1.0, testutil.ToFloat64(s.metrics.recreated.WithLabelValues(streamNames[events])))
	assert.Len(t, drain(t, s, ArchiverEvents), 1)
}

// A lost answer leaves open whether the stream was created; a refusal does not.
func TestALostStreamIsCountedOnceThoughTheAnswerToItsCreationWasLost(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	f := func(want float64, err error) {
		t.Helper()
		name := streamNames[attempts]
		s.lookup.Lock()
		s.missing[name] = true
		s.refused(name, err)
		s.lookup.Unlock()
		for range 2 {
			require.NoError(t, s.ensure(t.Context()))
			assert.Equal(t, want, testutil.ToFloat64(s.metrics.recreated.WithLabelValues(name)))
		}
	}
	f(0, &jetstream.APIError{ErrorCode: codeUnavailable})
	f(1, context.DeadlineExceeded)
}

// Others publish while one process makes a lost stream anew: what the server acknowledges to them, consumers must get.
func TestNothingIsAcknowledgedBeforeTheConsumersOfALostStreamAreThere(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	require.NoError(t, s.js.DeleteStream(t.Context(), streamNames[events]))
	acknowledged, stop := make(chan int), make(chan struct{})
	some, enough := context.WithCancel(t.Context())
	go func() {
		count := 0
		for i := 0; ; i++ {
			select {
			case <-stop:
				acknowledged <- count
				return
			default:
			}
			e := mintEvent(i, 201)
			payload, err := json.Marshal(e)
			if err != nil {
				panic(err)
			}
			answer, err := s.conn.Request(subject(&e), payload, time.Minute) // as it is sent, without waiting for a stream
			if err == nil && strings.Contains(string(answer.Data), `"seq"`) {
				if count++; count == 20 {
					enough()
				}
			}
		}
	}()
	time.Sleep(20 * time.Millisecond) // for some to find no stream
	require.NoError(t, s.ensure(t.Context()))
	<-some.Done()
	close(stop)
	count := <-acknowledged
	assert.Equal(t, count, len(drain(t, s, ProjectorEvents)))
	assert.Equal(t, count, len(drain(t, s, ArchiverEvents)))
}

func TestAStreamThatNobodyCameToOpeningIsOpenedWithItsConsumers(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	require.NoError(t, s.js.DeleteStream(t.Context(), streamNames[events]))
	_, err := s.js.CreateStream(t.Context(), shut(s.streamConfigs()[0]))
	require.NoError(t, err)
	require.NoError(t, s.Publish(t.Context(), mints(0, 2)))
	assert.Len(t, drain(t, s, ProjectorEvents), 2)
	assert.Len(t, drain(t, s, ArchiverEvents), 2)
}

func TestAMessageThatIsNoEventIsSetAsideAndTheRestProceeds(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	for _, payload := range []string{"no JSON", "{}", `{"stage":7}`, ""} {
		_, err := s.js.Publish(t.Context(), "mintlog.v1.events.a.b.mint", []byte(payload))
		require.NoError(t, err)
	}
	require.NoError(t, s.Publish(t.Context(), mints(0, 1)))
	assert.Len(t, drain(t, s, ProjectorEvents), 1)
	assert.Len(t, drain(t, s, ArchiverEvents), 1)
	assert.Equal(t, 4.0, testutil.ToFloat64(s.metrics.undecodable.WithLabelValues(string(ProjectorEvents))))
	assert.Eventually(t, func() bool { return stored(t, s, events) == 0 }, time.Minute, 20*time.Millisecond)
}

func TestAMessageNotAcknowledgedComesAgainAndSaysHowOften(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	require.NoError(t, s.Publish(t.Context(), mints(0, 1)))
	for delivered := uint64(1); delivered <= 3; delivered++ {
		messages, err := s.Fetch(t.Context(), ProjectorEvents, 1, time.Minute)
		require.NoError(t, err)
		require.Len(t, messages, 1)
		assert.Equal(t, delivered, messages[0].Delivered)
		require.NoError(t, messages[0].InProgress())
		require.NoError(t, messages[0].NakWithDelay(time.Millisecond))
	}
	messages, err := s.Fetch(t.Context(), ProjectorEvents, 1, time.Minute)
	require.NoError(t, err)
	require.Len(t, messages, 1)
	require.NoError(t, messages[0].Term("seen often enough"))
	assert.Empty(t, drain(t, s, ProjectorEvents))
	assert.Len(t, drain(t, s, ArchiverEvents), 1, "another consumer is not concerned")
}

func TestWhatWasHandedOutWhenConsumptionEndedComesAgainAtOnce(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	require.NoError(t, s.Publish(t.Context(), mints(0, 20)))
	ctx, cancel := context.WithCancel(t.Context())
	handled := 0
	require.NoError(t, s.Consume(ctx, ProjectorEvents, func(m *Message) {
		handled++
		assert.NoError(t, m.Ack())
		cancel()
	}))
	assert.Equal(t, 1, handled)
	left := 0
	assert.Eventually(t, func() bool {
		left += len(drain(t, s, ProjectorEvents))
		return left == 19
	}, time.Minute, 10*time.Millisecond)
}

func TestAResetConsumerHandsOutAgainWhatWasNotAcknowledged(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	require.NoError(t, s.Publish(t.Context(), mints(0, 3)))
	messages, err := s.Fetch(t.Context(), ProjectorEvents, 3, time.Minute)
	require.NoError(t, err)
	require.Len(t, messages, 3)
	require.NoError(t, s.reset(t.Context(), ProjectorEvents))
	assert.Len(t, drain(t, s, ProjectorEvents), 3)
	assert.Equal(t, 3, stored(t, s, events), "the archiver's are still there")
}

func TestAConsumerThatHandsOutNothingThoughMessagesWaitIsReportedAndReset(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	last := map[Consumer]progress{}
	stalled := func() float64 { return testutil.ToFloat64(s.metrics.stalled.WithLabelValues(string(ProjectorEvents))) }
	_, err := s.js.PauseConsumer(t.Context(), streamNames[events], string(ProjectorEvents), time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.NoError(t, s.Publish(t.Context(), mints(0, 1)))
	require.NoError(t, s.check(t.Context(), ProjectorEvents, last))
	require.NoError(t, s.check(t.Context(), ProjectorEvents, last))
	assert.Zero(t, stalled(), "nobody asks for messages")
	assert.Equal(t, 1.0, testutil.ToFloat64(s.metrics.pending.WithLabelValues(string(ProjectorEvents))))

	got := consumeAll(t, s, ProjectorEvents)
	require.Eventually(t, func() bool {
		assert.NoError(t, s.check(t.Context(), ProjectorEvents, last))
		return stalled() > 0
	}, time.Minute, 100*time.Millisecond)
	_, err = s.js.ResumeConsumer(t.Context(), streamNames[events], string(ProjectorEvents))
	require.NoError(t, err)
	receive(t, got)
}

func TestHowFullTheStreamsAreThatDiscardNothingIsMeasured(t *testing.T) {
	t.Parallel()
	o := testOptions(t)
	o.MaxBytes, o.EvidenceBytes = 1<<20, 2<<20
	s := open(t, o)
	require.NoError(t, s.Publish(t.Context(), mints(0, 10)))
	_, err := s.Evidence().Put(t.Context(), "0f", []byte(strings.Repeat("v", 9000)), 0)
	require.NoError(t, err)
	require.NoError(t, s.measure(t.Context()))
	gauge := func(name string) float64 {
		families, err := o.Registerer.(*prometheus.Registry).Gather()
		require.NoError(t, err)
		for _, f := range families {
			if f.GetName() == name {
				return f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return -1
	}
	assert.Greater(t, gauge("mintlog_stream_events_bytes"), 5000.0)
	assert.Greater(t, gauge("mintlog_stream_evidence_bytes"), 9000.0)
	assert.Equal(t, float64(1<<20), gauge("mintlog_stream_events_max_bytes"))
	assert.Equal(t, float64(2<<20), gauge("mintlog_stream_evidence_max_bytes"))
}

func TestTheLagOfAConsumerIsTheAgeOfTheOldestMessageItHasNotAcknowledged(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	lag := func() float64 {
		require.NoError(t, s.check(t.Context(), ProjectorEvents, map[Consumer]progress{}))
		return testutil.ToFloat64(s.metrics.lag.WithLabelValues(string(ProjectorEvents)))
	}
	assert.Zero(t, lag(), "nothing was published")
	require.NoError(t, s.Publish(t.Context(), mints(0, 1)))
	time.Sleep(50 * time.Millisecond)
	require.NoError(t, s.Publish(t.Context(), mints(1, 2)))
	messages, err := s.Fetch(t.Context(), ProjectorEvents, 2, time.Minute)
	require.NoError(t, err)
	require.Len(t, messages, 2)
	both := lag()
	assert.Greater(t, both, 0.05)
	require.NoError(t, messages[1].Ack())
	assert.GreaterOrEqual(t, lag(), both, "the older of the two is still to be done")
	require.NoError(t, messages[0].Ack())
	assert.Eventually(t, func() bool { return lag() == 0 }, time.Minute, 10*time.Millisecond)

	messages, err = s.Fetch(t.Context(), ArchiverEvents, 2, time.Minute)
	require.NoError(t, err)
	require.Len(t, messages, 2)
	require.NoError(t, messages[0].Ack())
	require.Eventually(t, func() bool { return stored(t, s, events) == 1 }, time.Minute, 10*time.Millisecond)
	require.NoError(t, s.check(t.Context(), ArchiverEvents, map[Consumer]progress{}))
	assert.Less(t, testutil.ToFloat64(s.metrics.lag.WithLabelValues(string(ArchiverEvents))), time.Since(messages[1].Stored).Seconds(),
		"what has gone from the stream is not counted")
}

func TestAConnectionThatDropsIsMadeAgainAndConsumptionResumes(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	got := consumeAll(t, s, ProjectorEvents)
	require.NoError(t, s.Publish(t.Context(), mints(0, 1)))
	receive(t, got)
	require.NoError(t, s.conn.ForceReconnect())
	require.Eventually(t, func() bool { return s.Publish(t.Context(), mints(1, 2)) == nil }, time.Minute, 50*time.Millisecond)
	assert.Equal(t, identity(mintEvent(1, 201)), receive(t, got).Event.Identity())
	assert.Equal(t, nats.CONNECTED, s.conn.Status())
}

func TestAShortWaitLosesNoMessage(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	want := mints(0, 100)
	go func() {
		for i := range want {
			assert.NoError(t, s.Publish(context.Background(), want[i:i+1]))
		}
	}()
	const limit = 10
	got := map[string]bool{}
	again, late := 0, 0
	assert.Eventually(t, func() bool { // one that is lost comes again, after half a minute
		began := time.Now()
		messages, err := s.Fetch(t.Context(), ProjectorEvents, limit, time.Millisecond)
		assert.NoError(t, err)
		if time.Since(began) > time.Second { // no request waits longer for what a machine has not brought
			late += limit
		}
		for _, m := range messages {
			if m.Delivered > 1 {
				again++
			}
			assert.NoError(t, m.Ack())
			got[m.Event.Identity()] = true
		}
		return len(got) == len(want)
	}, 5*time.Minute, time.Millisecond)
	assert.LessOrEqual(t, again, late, "messages that were lost")
}
