// Package abi_test loads the built plugin into a process as Fluent Bit does, and drives it by what it exports.
package abi_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tinylib/msgp/msgp"

	"github.com/mintlog/mintlog/ingest"
	"github.com/mintlog/mintlog/ingest/fluentbit/fluentbittest"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/stream"
	"github.com/mintlog/mintlog/test/natsserver"
	"github.com/mintlog/mintlog/test/sandbox/process"
)

// line is the i-th mint of an account as kube-apiserver records it.
func line(i int) string {
	return fmt.Sprintf(`{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"00000000-0000-4000-8000-%012d",`+
		`"stage":"ResponseComplete","requestURI":"/apis/credentials.cozystack.io/v1alpha1/namespaces/tenant-acme/credentials/postgres-orders.app/mint",`+
		`"verb":"create","user":{"username":"jane","groups":["tenant-acme-admin"],"extra":{"authentication.kubernetes.io/credential-id":["X509SHA256=0c"]}},`+
		`"sourceIPs":["10.0.0.1"],"userAgent":"kubectl","objectRef":{"resource":"credentials","namespace":"tenant-acme",`+
		`"name":"postgres-orders.app","apiGroup":"credentials.cozystack.io","apiVersion":"v1alpha1","subresource":"mint"},`+
		`"responseStatus":{"metadata":{},"code":201},"requestReceivedTimestamp":"2026-08-21T10:00:00.%06dZ",`+
		`"stageTimestamp":"2026-08-21T10:00:01.000000Z","annotations":{"authorization.k8s.io/decision":"allow"}}`, i, i)
}

// records is a chunk of the lines from..to in Cozystack's shape.
func records(t testing.TB, from, to int) []byte {
	t.Helper()
	var chunk []byte
	for i := from; i < to; i++ {
		chunk = append(chunk, shaped(t, i, fluentbittest.Lifted, fluentbittest.V2)...)
	}
	return chunk
}

func shaped(t testing.TB, i int, shape fluentbittest.Shape, format fluentbittest.Format) []byte {
	t.Helper()
	record, err := fluentbittest.Record([]byte(line(i)), shape, format)
	require.NoError(t, err)
	return record
}

// identities are those of the lines from..to, as a follower of the file gives them.
func identities(t testing.TB, from, to int) []string {
	t.Helper()
	var list []string
	for i := from; i < to; i++ {
		e, ours, err := ingest.Decode([]byte(line(i)))
		require.NoError(t, err)
		require.True(t, ours)
		list = append(list, e.Identity())
	}
	return list
}

// openStream creates the streams, as the parts of an operator do.
func openStream(t testing.TB, url string) *stream.Stream {
	t.Helper()
	s, err := stream.Open(t.Context(), stream.Options{URL: url, MaxBytes: 64 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// drain takes all events that the projector has not been handed: so many at least, for what was just published is not
// counted as waiting at once.
func drain(t testing.TB, s *stream.Stream, least int) []event.Event {
	t.Helper()
	var got []event.Event
	for {
		_, consumers, err := s.Inspect(t.Context())
		require.NoError(t, err)
		projector := slices.IndexFunc(consumers, func(c stream.ConsumerState) bool { return c.Name == stream.ProjectorEvents })
		if consumers[projector].Pending == 0 && len(got) >= least {
			return got
		}
		messages, err := s.Fetch(t.Context(), stream.ProjectorEvents, max(1, int(consumers[projector].Pending)), time.Minute)
		require.NoError(t, err)
		require.NotEmpty(t, messages, "%d events of %d at least came within a minute", len(got), least)
		for _, m := range messages {
			got = append(got, m.Event)
			require.NoError(t, m.Ack())
		}
	}
}

func identitiesOf(events []event.Event) []string {
	list := make([]string, len(events))
	for i := range events {
		list[i] = events[i].Identity()
	}
	return list
}

func TestAnEventReachesTheStreamWithTheIdentityThatItsFileGives(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	s := openStream(t, server.URL())
	h := startHost(t)
	require.Equal(t, done, h.init(0, "address="+server.URL(), "node=node-1"))
	var chunk []byte
	n := 0
	for _, shape := range fluentbittest.Shapes {
		for _, format := range []fluentbittest.Format{fluentbittest.V2, fluentbittest.Legacy} {
			chunk = append(chunk, shaped(t, n, shape, format)...)
			n++
		}
	}
	require.Equal(t, done, h.flush(0, chunk))
	events := drain(t, s, n)
	assert.Equal(t, identities(t, 0, n), identitiesOf(events))
	for _, e := range events {
		assert.Equal(t, "fluentbit:node-1", e.Source)
	}
	assert.Equal(t, []int{done}, h.flushes(0, "kubernetes.var.log.containers.x", records(t, n, n+1), 1))
	assert.Empty(t, drain(t, s, 0), "anybody can print an audit event in a container")
	h.exit(0)
	assert.Equal(t, "mintlog 2 11", h.ask("unregister"))
}

func TestThePluginChangesNoStream(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	h := startHost(t)
	require.Equal(t, done, h.init(0, "address="+server.URL()))
	require.Equal(t, again, h.flush(0, records(t, 0, 1)), "there is no stream")
	connection, err := nats.Connect(server.URL())
	require.NoError(t, err)
	defer connection.Close()
	js, err := jetstream.New(connection)
	require.NoError(t, err)
	for name := range js.StreamNames(t.Context()).Name() {
		t.Errorf("the plugin has made the stream %s", name)
	}
	s := openStream(t, server.URL())
	require.Equal(t, done, h.flush(0, records(t, 0, 1)))
	assert.Len(t, drain(t, s, 1), 1)
	events, err := js.Stream(t.Context(), "MINTLOG_EVENTS")
	require.NoError(t, err)
	assert.Equal(t, int64(64<<20), events.CachedInfo().Config.MaxBytes)
	h.exit(0)
}

func TestNoHostileChunkStopsThePluginOrIsAnError(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	s := openStream(t, server.URL())
	h := startHost(t)
	require.Equal(t, done, h.init(0, "address="+server.URL()))
	const secret = "hunter2"
	mark := event.Group
	marked := func(value any) []byte {
		b, err := msgp.AppendIntf(nil, value)
		require.NoError(t, err)
		return b
	}
	good := records(t, 0, 1)
	chunks := map[string][]byte{
		"nothing":                        {},
		"truncated":                      good[:len(good)-7],
		"a byte that begins nothing":     {0xc1},
		"a map":                          marked(map[string]any{mark: secret}),
		"a string":                       marked(mark + secret),
		"a number":                       marked(7),
		"nil":                            marked(nil),
		"a pair of the wrong types":      marked([]any{secret, mark}),
		"fields of the wrong types":      marked([]any{1, map[string]any{"user": secret, "objectRef": []any{mark}}}),
		"nested 300,000 deep":            append(bytes.Repeat([]byte{0x91}, 300_000), marked(mark)...),
		"lists of 4 billion in a list":   bytes.Repeat([]byte{0xdd, 0xff, 0xff, 0xff, 0xff}, 100_000),
		"a map of 4 billion":             {0x92, 0x00, 0xdf, 0xff, 0xff, 0xff, 0xff},
		"a string of 4 GiB":              {0x92, 0x00, 0xdb, 0xff, 0xff, 0xff, 0xff, 'x'},
		"an unknown extension":           marked([]any{&msgp.RawExtension{Type: 42, Data: []byte(mark)}, map[string]any{}}),
		"12 MB in one field":             marked([]any{1, map[string]any{"requestObject": strings.Repeat(mark, 12<<20/len(mark))}}),
		"200,000 small records":          bytes.Repeat(marked([]any{1, map[string]any{"x": "y"}}), 200_000),
		"a line that is no JSON":         marked([]any{1, map[string]any{"log": mark + secret}}),
		"a line of 64 beginnings":        marked([]any{1, map[string]any{"log": strings.Repeat(`{"kind":"Event",`, 64) + mark}}),
		"what anything else would write": []byte("GET / HTTP/1.1\r\n" + mark),
	}
	i := 1
	for name, chunk := range chunks {
		assert.Equal(t, done, h.flush(0, append(records(t, i, i+1), chunk...)), name)
		i++
	}
	require.Equal(t, done, h.flush(0, records(t, i, i+1)), "it lives on")
	assert.Equal(t, identities(t, 1, i+1), identitiesOf(drain(t, s, i)))
	h.exit(0)
	assert.NotContains(t, h.log.String(), secret)
	assert.Contains(t, h.log.String(), "reason=unreadable")
}

func TestAChunkComesAgainUntilTheStreamIsBackAndItsEventsAreTheSame(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	s := openStream(t, server.URL())
	h := startHost(t)
	require.Equal(t, done, h.init(0, "address="+server.URL(), "timeout=15s"))
	require.Equal(t, done, h.flush(0, records(t, 0, 10)))
	server.Kill()
	began := time.Now()
	for range 3 {
		require.Equal(t, again, h.flush(0, records(t, 5, 20)))
	}
	assert.Less(t, time.Since(began), 3*time.Minute, "a flush has to end soon, for others wait behind it")
	assert.Equal(t, done, h.flush(0, marshal(t, []any{1, map[string]any{"x": "y"}})), "what is not ours does not wait")
	require.NoError(t, server.Restart(t.Context()))
	require.Eventually(t, func() bool { return h.flush(0, records(t, 5, 20)) == done }, 3*time.Minute, 100*time.Millisecond)
	require.Equal(t, done, h.flush(0, records(t, 5, 20)), "a chunk that was answered and comes again all the same")
	distinct := map[string]bool{}
	require.Eventually(t, func() bool { // the reader's own connection may come back later than the plugin's
		_, err := s.Gaps(t.Context())
		return err == nil
	}, 3*time.Minute, 100*time.Millisecond)
	require.Eventually(t, func() bool {
		for _, e := range drain(t, s, 0) {
			distinct[e.Identity()] = true
		}
		return len(distinct) == 20
	}, 3*time.Minute, 100*time.Millisecond)
	for _, id := range identities(t, 0, 20) {
		assert.Contains(t, distinct, id)
	}
	assert.Contains(t, h.log.String(), "published again")
	h.exit(0)
}

func marshal(t testing.TB, value any) []byte {
	t.Helper()
	b, err := msgp.AppendIntf(nil, value)
	require.NoError(t, err)
	return b
}

func TestFluentBitStartsWhileTheStreamIsAway(t *testing.T) {
	t.Parallel()
	address, err := process.FreeAddress()
	require.NoError(t, err)
	h := startHost(t)
	require.Equal(t, done, h.init(0, "address=nats://"+address, "timeout=1s"))
	assert.Equal(t, again, h.flush(0, records(t, 0, 1)))
	h.exit(0)
}

// A hot reload lets an output exit, and makes another in the same process.
func TestAReloadUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	s := openStream(t, server.URL())
	h := startHost(t)
	const rounds, chunk = 8, 400
	for round := range rounds {
		from := round * chunk
		require.Equal(t, done, h.init(round, "address="+server.URL()))
		kept := false
		for _, answer := range h.leave(round, records(t, from, from+chunk), 4) {
			require.Contains(t, []int{done, again}, answer)
			kept = kept || answer == done
		}
		t.Logf("round %d: one of four flushes at the exit is done: %t", round, kept)
		require.Equal(t, again, h.flush(round, records(t, from, from+1)), "what comes after the exit comes again")
		if !kept {
			next := rounds + round
			require.Equal(t, done, h.init(next, "address="+server.URL()))
			require.Equal(t, done, h.flush(next, records(t, from, from+chunk)))
			h.exit(next)
		}
	}
	got := map[string]bool{}
	for _, e := range drain(t, s, rounds*chunk) {
		got[e.Identity()] = true
	}
	assert.Len(t, got, rounds*chunk)
	for _, id := range identities(t, 0, rounds*chunk) {
		assert.Contains(t, got, id)
	}
}

func TestSeveralOutputsOfOneProcessAreApart(t *testing.T) {
	t.Parallel()
	one, two := natsserver.Start(t), natsserver.Start(t)
	first, second := openStream(t, one.URL()), openStream(t, two.URL())
	metrics, err := process.FreeAddress()
	require.NoError(t, err)
	h := startHost(t)
	require.Equal(t, done, h.init(0, "address="+one.URL(), "node=one", "metrics_address="+metrics))
	require.Equal(t, done, h.init(1, "address="+two.URL(), "node=two"))
	require.Equal(t, done, h.flush(0, records(t, 0, 3)))
	require.Equal(t, done, h.flush(1, records(t, 3, 5)))
	assert.Equal(t, identities(t, 0, 3), identitiesOf(drain(t, first, 3)))
	assert.Equal(t, identities(t, 3, 5), identitiesOf(drain(t, second, 2)))
	assert.Contains(t, get(t, "http://"+metrics+"/metrics"), "mintlog_ingest_fluentbit_published_events_total 3\n")
	h.exit(0)
	require.Equal(t, done, h.flush(1, records(t, 5, 6)), "the other goes on")
	_, err = http.Get("http://" + metrics + "/metrics")
	require.Error(t, err)
	h.exit(1)
}

func get(t testing.TB, url string) string {
	t.Helper()
	response, err := http.Get(url)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(body)
}

func TestAWrongConfigurationKeepsFluentBitFromStartingAndIsNotQuoted(t *testing.T) {
	t.Parallel()
	h := startHost(t)
	for id, properties := range [][]string{
		{"node=x"},
		{"address=nats://user:hunter2@:x:y"},
		{"address=http://user:hunter2@nats:4222"},
		{"address=nats://127.0.0.1:1", "timeout=soon"},
		{"address=nats://127.0.0.1:1", "credentials_file=/nonexistent"},
		{"address=nats://127.0.0.1:1", "nkey_file=/nonexistent"},
	} {
		assert.Equal(t, failed, h.init(id, properties...), properties)
		assert.Equal(t, again, h.flush(id, records(t, 0, 1)), "a chunk for what was never made is not dropped")
	}
	assert.NotContains(t, h.log.String(), "hunter2")
}

func TestMemoryDoesNotGrowWhileTheStreamIsAway(t *testing.T) {
	t.Parallel()
	address, err := process.FreeAddress()
	require.NoError(t, err)
	h := startHost(t)
	require.Equal(t, done, h.init(0, "address=nats://"+address, "timeout=1s"))
	chunk := records(t, 0, 1000)
	warm := func(rounds int) int64 {
		for range rounds {
			for _, answer := range h.flushes(0, "audit.kube", chunk, 4) {
				require.Equal(t, again, answer)
			}
		}
		return h.memory()
	}
	before := warm(10)
	after := warm(40)
	t.Logf("%d MiB after 40 chunks of %d KiB, %d MiB after 200", before>>20, len(chunk)>>10, after>>20)
	assert.Less(t, after, before+32<<20)
	h.exit(0)
}
