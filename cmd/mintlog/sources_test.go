package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/ingest"
	"github.com/mintlog/mintlog/ingest/file"
	"github.com/mintlog/mintlog/ingest/webhook"
	"github.com/mintlog/mintlog/store/archive"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/stream"
	"github.com/mintlog/mintlog/test/sandbox"
	"github.com/mintlog/mintlog/test/victorialogs"
)

// mintLine is the i-th mint as kube-apiserver writes it.
func mintLine(i int) string {
	received := noon.Add(time.Duration(i)*time.Second + 123457*time.Microsecond)
	const layout = "2006-01-02T15:04:05.000000Z"
	return fmt.Sprintf(`{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"00000000-0000-4000-8000-%012d",`+
		`"stage":"ResponseComplete","requestURI":"/apis/credentials.cozystack.io/v1alpha1/namespaces/tenant-acme/credentials/postgres-orders.app/mint?n=%d",`+
		`"verb":"create","user":{"username":"jane","groups":["tenant-acme-admin","system:authenticated"],"extra":{"authentication.kubernetes.io/credential-id":["X509SHA256=0f"]}},`+
		`"sourceIPs":["192.0.2.7"],"userAgent":"kubectl","objectRef":{"resource":"credentials","namespace":"tenant-acme","name":"postgres-orders.app",`+
		`"apiGroup":"credentials.cozystack.io","apiVersion":"v1alpha1","subresource":"mint"},"responseStatus":{"metadata":{},"code":201},`+
		`"requestReceivedTimestamp":"%s","stageTimestamp":"%s","annotations":{"authorization.k8s.io/decision":"allow","authorization.k8s.io/reason":""}}`,
		i, i, received.Format(layout), received.Add(9*time.Millisecond).Format(layout))
}

// asTheirs is a line in the shape of Cozystack's pipeline.
func asTheirs(t *testing.T, line string) map[string]any {
	t.Helper()
	var record map[string]any
	require.NoError(t, json.Unmarshal([]byte(line), &record))
	received, err := time.Parse(time.RFC3339Nano, record["requestReceivedTimestamp"].(string))
	require.NoError(t, err)
	for key, value := range record["user"].(map[string]any) {
		record["user_"+key] = value
	}
	delete(record, "user")
	delete(record, "requestReceivedTimestamp")
	record["date"], record["log_source"] = float64(received.UnixMicro())/1e6, "audit_log"
	return record
}

// startPart runs a part until the test ends.
func startPart(t *testing.T, run part) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		stop()
		assert.NoError(t, <-done)
	})
}

// receiverOf starts a webhook in front of the publisher, and returns what posts a batch to it.
func receiverOf(t *testing.T, publisher ingest.Publisher) (post func(items []string)) {
	t.Helper()
	clients, err := sandbox.NewAuthority("clients")
	require.NoError(t, err)
	serving, err := sandbox.NewAuthority("serving")
	require.NoError(t, err)
	directory := t.TempDir()
	write := func(name string, text []byte) string {
		path := filepath.Join(directory, name)
		require.NoError(t, os.WriteFile(path, text, 0o600))
		return path
	}
	certificate, key, err := serving.Issue(sandbox.Identity{Name: "mintlog", Hosts: []string{"127.0.0.1"}})
	require.NoError(t, err)
	receiver, err := webhook.New(webhook.Options{
		Address: "127.0.0.1:0", CertFile: write("tls.crt", certificate), KeyFile: write("tls.key", key),
		ClientCAFile: write("ca.crt", clients.PEM()), Publisher: publisher, SetAside: filepath.Join(directory, "aside"),
	})
	require.NoError(t, err)
	startPart(t, receiver.Run)
	certificate, key, err = clients.Issue(sandbox.Identity{Name: "kube-apiserver"})
	require.NoError(t, err)
	own, err := tls.X509KeyPair(certificate, key)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(serving.PEM())
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{own}, RootCAs: roots}}}
	t.Cleanup(client.CloseIdleConnections)
	return func(items []string) {
		body := `{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":[` + strings.Join(items, ",") + `]}`
		answer, err := client.Post("https://"+receiver.Address().String()+webhook.Path("cp-1"), "application/json", strings.NewReader(body))
		if assert.NoError(t, err) {
			assert.NoError(t, answer.Body.Close())
			assert.Equal(t, http.StatusOK, answer.StatusCode)
		}
	}
}

// TestTheSameEventThroughFilesWebhookAndReplayAtOnceIsOneAndSaysWhichSourceCameFirst has each event come by all three at
// the same time, each source in an order of its own.
func TestTheSameEventThroughFilesWebhookAndReplayAtOnceIsOneAndSaysWhichSourceCameFirst(t *testing.T) {
	const count = 1200
	url := victorialogs.Start(t).URL
	archived := archive.New(url, nil)
	s := openTestStream(t, stream.Options{Directory: t.TempDir()})
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	var lines []string
	want := map[string]bool{}
	var records []map[string]any
	for i := range count {
		lines = append(lines, mintLine(i))
		records = append(records, asTheirs(t, lines[i]))
		e, ours, err := ingest.Decode([]byte(lines[i]))
		require.NoError(t, err)
		require.True(t, ours)
		want[e.Identity()] = true
	}
	victorialogs.InsertAsCozystack(t, url, records...)
	archiver, err := archive.NewArchiver(archive.ArchiverOptions{Archive: archived, Stream: s, Registerer: prometheus.NewRegistry()})
	require.NoError(t, err)
	startPart(t, archiver.Run)
	post := receiverOf(t, s)

	log := filepath.Join(t.TempDir(), "audit.log")
	require.NoError(t, os.WriteFile(log, nil, 0o600))
	tailer, err := file.New(file.Options{Paths: []string{log}, Checkpoint: log + ".json", Publisher: s, Gaps: s})
	require.NoError(t, err)
	startPart(t, tailer.Run)
	write := func(lines []string) {
		out, err := os.OpenFile(log, os.O_APPEND|os.O_WRONLY, 0)
		if !assert.NoError(t, err) {
			return
		}
		for i, line := range lines {
			_, err = fmt.Fprintln(out, line)
			assert.NoError(t, err)
			if i%100 == 99 {
				time.Sleep(5 * time.Millisecond)
			}
		}
		assert.NoError(t, out.Close())
	}
	replay := func(q archive.Query) {
		_, err := archived.ReplayInto(t.Context(), q, func(ctx context.Context, batch []event.Event) error {
			for part := range slices.Chunk(batch, 20) {
				if err := s.Publish(ctx, part); err != nil {
					return err
				}
			}
			return nil
		}, func(archive.Replayed) {})
		assert.NoError(t, err)
	}
	// Each has a head start with events of its own.
	post(lines[10:20])
	replay(archive.Query{Limit: 10})
	write(lines[:10])
	require.Eventually(t, func() bool {
		handed, err := s.Fetch(t.Context(), stream.ProjectorEvents, 100, 100*time.Millisecond)
		require.NoError(t, err)
		for _, m := range handed {
			require.NoError(t, m.NakWithDelay(0))
		}
		return len(handed) == 30
	}, 3*time.Minute, 10*time.Millisecond)

	var sources sync.WaitGroup
	sources.Go(func() { write(lines) })
	sources.Go(func() {
		shuffled := slices.Clone(lines)
		rand.Shuffle(count, func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		for batch := range slices.Chunk(shuffled, 100) {
			post(batch)
			post(batch) // delivered again
		}
	})
	sources.Go(func() { replay(archive.Query{}) }) // the newest first
	sources.Wait()

	first := map[string]string{} // the source of each event that the projector is handed
	require.Eventually(t, func() bool {
		messages, err := s.Fetch(t.Context(), stream.ProjectorEvents, 1000, 100*time.Millisecond)
		require.NoError(t, err)
		for _, m := range messages {
			id := m.Event.Identity()
			require.Empty(t, first[id], "an event comes twice")
			first[id] = m.Event.Source
			require.NoError(t, m.Ack())
		}
		return len(first) == count
	}, 3*time.Minute, 10*time.Millisecond)
	require.Equal(t, want, keys(first))
	came := map[string]int{}
	for _, source := range first {
		came[source]++
	}
	t.Log("who came first:", came)
	require.ElementsMatch(t, []string{"archive", "file:audit.log", "webhook:cp-1"}, slices.Collect(maps.Keys(came)))

	// The archive has each once in our shape, with the source that came first, but for those that came first out of it.
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		for source, events := range came {
			shown := victorialogs.Rows(t, url, fmt.Sprintf(`_time:1d source:=%q eventID:!="" | stats count_uniq(eventID) ids, count() rows`, source))
			if source == "archive" {
				events = 0
			}
			assert.Equal(t, []map[string]string{{"ids": fmt.Sprint(events), "rows": fmt.Sprint(events)}}, shown, source)
		}
	}, 3*time.Minute, 200*time.Millisecond)
	shown := map[string]bool{}
	require.NoError(t, archived.Query(t.Context(), archive.Query{}, func(e event.Event) error {
		require.False(t, shown[e.Identity()])
		shown[e.Identity()] = true
		return nil
	}))
	require.Equal(t, want, shown)
}

func keys[V any](m map[string]V) map[string]bool {
	set := map[string]bool{}
	for key := range m {
		set[key] = true
	}
	return set
}
