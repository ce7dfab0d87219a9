package stream

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/test/natsserver"
	"github.com/mintlog/mintlog/test/output"
)

// existing are the options of who creates nothing.
func existing(o Options) Options {
	o = reopened(o)
	o.Existing, o.Directory = true, ""
	return o
}

func TestWhoPublishesToExistingStreamsCreatesAndChangesNothing(t *testing.T) {
	t.Parallel()
	n := natsserver.Start(t)
	o := testOptions(t)
	o.URL, o.MaxBytes = n.URL(), 64<<20
	publisher := open(t, existing(o))
	require.ErrorIs(t, publisher.Publish(t.Context(), mints(0, 1)), jetstream.ErrStreamNotFound)

	owner := open(t, o)
	require.NoError(t, publisher.Publish(t.Context(), mints(0, 10)))
	assert.Equal(t, identities(mints(0, 10)), identities(drain(t, owner, ProjectorEvents)))
	stream, err := owner.js.Stream(t.Context(), streamNames[events])
	require.NoError(t, err)
	assert.Equal(t, o.MaxBytes, stream.CachedInfo().Config.MaxBytes)
}

func TestNothingIsPublishedToAStreamWhoseReadersAreMissing(t *testing.T) {
	t.Parallel()
	n := natsserver.Start(t)
	o := testOptions(t)
	o.URL = n.URL()
	owner := open(t, o)
	publisher := open(t, existing(o))
	require.NoError(t, owner.js.DeleteConsumer(t.Context(), streamNames[events], string(ProjectorEvents)))
	require.ErrorIs(t, publisher.Publish(t.Context(), mints(0, 1)), jetstream.ErrConsumerNotFound)
	require.NoError(t, owner.ensure(t.Context()))
	require.NoError(t, publisher.Publish(t.Context(), mints(0, 1)))

	n.Kill() // and it comes back with nothing
	require.NoError(t, os.RemoveAll(filepath.Join(n.Store, "jetstream")))
	require.NoError(t, n.Restart(t.Context()))
	require.Eventually(t, func() bool { return publisher.conn.IsConnected() && owner.conn.IsConnected() }, time.Minute, 50*time.Millisecond)
	for _, c := range owner.streamConfigs() {
		_, err := owner.js.CreateStream(t.Context(), c)
		require.NoError(t, err)
	}
	require.ErrorIs(t, publisher.Publish(t.Context(), mints(1, 2)), jetstream.ErrConsumerNotFound)
	require.NoError(t, owner.ensure(t.Context()))
	require.NoError(t, publisher.Publish(t.Context(), mints(1, 2)))
	assert.Equal(t, identities(mints(1, 2)), identities(drain(t, owner, ProjectorEvents)))
}

func TestWhoPublishesNeedsNoMoreThanToPublishAndToLookUpConsumers(t *testing.T) {
	t.Parallel()
	n := natsserver.Start(t, `authorization { users: [
  { user: owner, password: owner }
  { user: publisher, password: publisher, permissions: {
      publish: [ "mintlog.v1.>", "$JS.API.CONSUMER.INFO.MINTLOG_EVENTS.*", "$JS.API.CONSUMER.INFO.MINTLOG_INTENTS.*", "$JS.API.CONSUMER.INFO.MINTLOG_ATTEMPTS.*" ]
      subscribe: [ "_INBOX.>" ] } }
] }`)
	o := testOptions(t)
	o.URL = "nats://owner:owner@" + n.Address
	owner := open(t, o)
	o.URL = "nats://publisher:publisher@" + n.Address
	publisher := open(t, existing(o))
	require.NoError(t, publisher.Publish(t.Context(), append(mints(0, 3), intent(4))))
	assert.Equal(t, identities(mints(0, 3)), identities(drain(t, owner, ProjectorEvents)))

	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := publisher.js.Stream(ctx, streamNames[events])
	assert.Error(t, err, "the publisher may more than it needs")
}

func TestWhatTheServerRefusesAgainAndAgainIsLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines output.Buffer
		s := &Stream{log: slog.New(slog.NewTextHandler(&lines, nil))}
		refused := fmt.Errorf("%w: %s", nats.ErrPermissionViolation, `Permissions Violation for Publish to "$JS.API.CONSUMER.INFO.A.b"`)
		for range 150 {
			s.complaint(&nats.Conn{}, refused)
			time.Sleep(time.Second)
		}
		assert.Equal(t, 3, strings.Count(lines.String(), "stream connection"))
		s.complaint(&nats.Conn{}, nats.ErrSlowConsumer)
		assert.Equal(t, 4, strings.Count(lines.String(), "stream connection"))
	})
}

func TestPublishingToAServerThatIsAwayFailsSoonAndClosingDoesNotWait(t *testing.T) {
	t.Parallel()
	o := testOptions(t)
	o.URL = "nats://127.0.0.1:1"
	publisher, err := Open(t.Context(), existing(o))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.Error(t, publisher.Publish(ctx, mints(0, 1)))
	require.NoError(t, publisher.Close())
	assert.NoError(t, ctx.Err(), "it took its time")
}
