package ha

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/stream"
	"github.com/mintlog/mintlog/test/output"
)

const eventsStream = "MINTLOG_EVENTS"

func startNATS(t *testing.T) *NATS {
	t.Helper()
	n, err := StartNATS(t.Context(), filepath.Join(t.TempDir(), "nats"))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, n.Close()) })
	return n
}

// openStream is a stream on the cluster as one of mintlog's processes has it.
func openStream(t *testing.T, n *NATS) (*stream.Stream, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	s, err := stream.Open(t.Context(), stream.Options{
		URL: n.URL(), Replicas: Replicas, MaxBytes: 64 << 20, EvidenceBytes: 64 << 20,
		Log: output.Logger(t), Registerer: registry,
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s, registry
}

// counted is the sum of a counter over its labels.
func counted(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	sum := 0.0
	for _, family := range families {
		if family.GetName() == name {
			for _, m := range family.GetMetric() {
				sum += value(m)
			}
		}
	}
	return sum
}

func value(m *dto.Metric) float64 { return m.GetCounter().GetValue() + m.GetGauge().GetValue() }

// minted is the n-th of some mints of one account.
func minted(n int) event.Event {
	at := time.Now().UTC().Truncate(time.Microsecond)
	return event.Event{
		AuditID: fmt.Sprintf("00000000-0000-4000-8000-%012d", n), Stage: event.ResponseComplete, Verb: "create",
		RequestURI:     "/apis/credentials.cozystack.io/v1alpha1/namespaces/tenant-acme/credentials/postgres-orders.app/mint",
		User:           event.User{Username: "jane"},
		ObjectRef:      &event.ObjectRef{APIGroup: event.Group, Resource: event.Resource, Subresource: "mint", Namespace: "tenant-acme", Name: "postgres-orders.app"},
		ResponseStatus: &event.ResponseStatus{Code: 201}, Annotations: map[string]string{"authorization.k8s.io/decision": "allow"},
		RequestReceivedTimestamp: at, StageTimestamp: at.Add(8 * time.Millisecond),
	}
}

// A run publishes events, as ingest does: each until it is acknowledged. Beside it others consume.
type run struct {
	stop     context.CancelFunc
	done     sync.WaitGroup
	mutex    sync.Mutex
	sent     []string                            // identities that were acknowledged
	consumed map[stream.Consumer]map[string]bool // identities
}

func startRun(t *testing.T, publisher *stream.Stream, consumers ...*stream.Stream) *run {
	ctx, stop := context.WithCancel(context.Background())
	r := &run{stop: stop, consumed: map[stream.Consumer]map[string]bool{}}
	for _, s := range consumers {
		for _, consumer := range []stream.Consumer{stream.ProjectorEvents, stream.ArchiverEvents} {
			r.consumed[consumer] = map[string]bool{}
			r.done.Go(func() {
				assert.NoError(t, s.Consume(ctx, consumer, func(m *stream.Message) {
					r.mutex.Lock()
					r.consumed[consumer][m.Event.Identity()] = true
					r.mutex.Unlock()
					_ = m.Ack() // an acknowledgement that is lost brings the event again
				}))
			})
		}
	}
	r.done.Go(func() {
		for n := 0; ctx.Err() == nil; {
			batch := []event.Event{minted(n), minted(n + 1)}
			for publisher.Publish(ctx, batch) != nil && ctx.Err() == nil {
				time.Sleep(100 * time.Millisecond)
			}
			if ctx.Err() == nil {
				r.acknowledged(batch)
				n += len(batch)
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	t.Cleanup(func() { stop(); r.done.Wait() })
	return r
}

func (r *run) acknowledged(batch []event.Event) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for i := range batch {
		r.sent = append(r.sent, batch[i].Identity())
	}
}

// count is how many were acknowledged until now.
func (r *run) count() int {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return len(r.sent)
}

// missing is what was acknowledged, as the from-th and until the to-th, and a consumer has not had.
func (r *run) missing(from, to int) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if len(r.sent) < to {
		return fmt.Errorf("%d events were published", len(r.sent))
	}
	for consumer, got := range r.consumed {
		if i := slices.IndexFunc(r.sent[from:to], func(id string) bool { return !got[id] }); i >= 0 {
			return fmt.Errorf("%s has %d of %d events; number %d is missing", consumer, len(got), len(r.sent), i)
		}
	}
	return nil
}

// goesOn wants publishing to go on, and what is published from then on to be consumed at once. What was in a hand that
// died comes later, when its acknowledgement is waited for no more.
func (r *run) goesOn(t *testing.T, while string) {
	t.Helper()
	before, began := r.count(), time.Now()
	require.NoError(t, eventually(t.Context(), patience, func(context.Context) error {
		if now := r.count(); now < before+20 {
			return fmt.Errorf("%d events were published before, %d now", before, now)
		}
		return nil
	}), while)
	published := time.Since(began)
	from := r.count()
	require.NoError(t, eventually(t.Context(), patience, func(context.Context) error { return r.missing(from, from+20) }), while)
	t.Logf("%s: publishing went on within %s, consuming within %s", while, published.Round(10*time.Millisecond), time.Since(began).Round(10*time.Millisecond))
}

func TestNothingIsLostWhenAServerOfTheClusterDiesAndAllResumes(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	publisher, published := openStream(t, n)
	one, first := openStream(t, n)
	two, second := openStream(t, n)
	for _, name := range []string{eventsStream, "KV_mintlog_evidence"} {
		require.NoError(t, n.AwaitReplicas(t.Context(), name), "every stream has three replicas")
	}
	r := startRun(t, publisher, one, two)
	r.goesOn(t, "before anything happens")

	leader, err := n.Leader(t.Context(), eventsStream)
	require.NoError(t, err)
	follower := (leader + 1) % Servers
	n.Server(follower).Kill() // one process in three is connected to it: its connection drops
	r.goesOn(t, "a follower was killed")
	require.NoError(t, n.Server(follower).Restart(t.Context()))
	require.NoError(t, n.AwaitReplicas(t.Context(), eventsStream))

	if leader, err = n.Leader(t.Context(), eventsStream); err != nil {
		t.Fatal(err)
	}
	n.Server(leader).Kill()
	r.goesOn(t, "the leader was killed")
	require.NoError(t, n.Server(leader).Restart(t.Context()))
	require.NoError(t, n.AwaitReplicas(t.Context(), eventsStream))

	if leader, err = n.Leader(t.Context(), eventsStream); err != nil {
		t.Fatal(err)
	}
	require.NoError(t, n.Server(leader).Stop())
	r.goesOn(t, "the leader was stopped")

	require.NoError(t, eventually(t.Context(), patience, func(context.Context) error { return r.missing(0, r.count()) }),
		"nothing that was acknowledged is lost")

	require.NoError(t, n.DeleteStream(t.Context(), eventsStream))
	// What is published before the consumers are there again is for the replay. What comes behind is consumed.
	require.NoError(t, eventually(t.Context(), patience, func(ctx context.Context) error {
		from := r.count()
		return eventually(ctx, 20*time.Second, func(context.Context) error { return r.missing(from, from+20) })
	}), "the stream was deleted")
	const alarm = "mintlog_stream_recreated_total"
	require.Eventually(t, func() bool {
		return counted(t, published, alarm)+counted(t, first, alarm)+counted(t, second, alarm) > 0
	}, patience, 100*time.Millisecond, "whoever made it again counts that a moment later")
}
