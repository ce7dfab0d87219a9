package ha

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/stream"
	"github.com/mintlog/mintlog/test/natsserver"
	"github.com/mintlog/mintlog/test/sandbox/process"
	"github.com/mintlog/mintlog/test/victorialogs"
)

// startArchiver starts "mintlog archive".
func startArchiver(t *testing.T, name string, broker *natsserver.Server, logs *victorialogs.Server) *process.Process {
	t.Helper()
	binary, err := process.Binary("mintlog")
	require.NoError(t, err)
	p, err := process.Start(t.Context(), process.Options{
		Name: name, Path: binary, LogFile: filepath.Join(t.TempDir(), "log"),
		Arguments: []string{"archive", "--metrics-address=", "--nats=" + broker.URL(), "--victorialogs=" + logs.URL},
	})
	require.NoError(t, err)
	t.Cleanup(p.Kill)
	return p
}

// ask waits until that many archivers ask the stream for events.
func ask(t *testing.T, broker *natsserver.Server, archivers int) {
	t.Helper()
	conn, err := nats.Connect(broker.URL())
	require.NoError(t, err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	require.NoError(t, eventually(t.Context(), patience, func(ctx context.Context) error {
		consumer, err := js.Consumer(ctx, eventsStream, string(stream.ArchiverEvents))
		if err != nil {
			return err
		}
		if waiting := consumer.CachedInfo().NumWaiting; waiting != archivers {
			return fmt.Errorf("%d archivers ask for events", waiting)
		}
		return nil
	}))
}

// archived counts the rows of events in an archive, and the events.
func archived(t *testing.T, logs *victorialogs.Server) (rows, events int) {
	t.Helper()
	answer := victorialogs.Rows(t, logs.URL, `_time:1d eventID:!="" | stats count() rows, count_uniq(eventID) events`)
	require.Len(t, answer, 1)
	rows, err := strconv.Atoi(answer[0]["rows"])
	require.NoError(t, err)
	events, err = strconv.Atoi(answer[0]["events"])
	require.NoError(t, err)
	return rows, events
}

// Each event goes to one of the two. What one that is killed had sent and not acknowledged comes to the other a minute
// later, which asks what is there before it inserts.
func TestTwoArchiversOfWhichOneIsKilledInTheMiddleWriteEachEventOnce(t *testing.T) {
	t.Parallel()
	broker, logs := natsserver.Start(t), victorialogs.Start(t)
	publisher, err := stream.Open(t.Context(), stream.Options{URL: broker.URL(), MaxBytes: 64 << 20, EvidenceBytes: 64 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, publisher.Close()) })
	one, two := startArchiver(t, "one", broker, logs), startArchiver(t, "two", broker, logs)
	ask(t, broker, 2)

	published := 0
	publish := func(count int) {
		t.Helper()
		var list []event.Event
		for range count {
			list = append(list, minted(published))
			published++
		}
		require.NoError(t, publisher.Publish(t.Context(), list))
	}
	publishUntil := func(has int) {
		t.Helper()
		require.NoError(t, eventually(t.Context(), patience, func(context.Context) error {
			publish(20)
			if rows, _ := archived(t, logs); rows < has {
				return fmt.Errorf("the archive has %d rows of %d events", rows, published)
			}
			return nil
		}))
	}
	publishUntil(200)
	one.Kill() // it holds what it has sent for six seconds before it acknowledges
	publishUntil(published)
	require.NoError(t, one.Restart(t.Context()))
	publishUntil(published)
	require.NoError(t, two.Stop())
	publish(200)

	var delivered uint64
	require.NoError(t, eventually(t.Context(), 5*time.Minute, func(ctx context.Context) error {
		_, consumers, err := publisher.Inspect(ctx)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(consumers, func(c stream.ConsumerState) bool { return c.Name == stream.ArchiverEvents })
		delivered = consumers[at].Delivered
		if waits := consumers[at].Pending + uint64(consumers[at].Unsettled); waits > 0 {
			return fmt.Errorf("%d of %d events wait for an archiver", waits, published)
		}
		return nil
	}), "all is acknowledged")
	require.Greater(t, delivered, uint64(published), "the one that was killed held something")
	rows, events := archived(t, logs)
	assert.Equal(t, published, events, "nothing is lost")
	assert.Equal(t, published, rows, "nothing is there twice")
}
