package stream

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/gap"
	"github.com/mintlog/mintlog/test/natsserver"
)

// The identities that the accounts file has.
var (
	ingests   = []string{"INGEST", "WEBHOOK", "FLUENTBIT", "REPLAY"}
	everybody = append([]string{"STREAMS", "MINT", "PROJECTOR", "ARCHIVER", "DOCTOR"}, ingests...)
)

// A guarded server has the accounts file, with keys of its own.
type guarded struct {
	*natsserver.Guarded
	t *testing.T
}

func startGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{natsserver.StartGuarded(t), t}
	require.ElementsMatch(t, everybody, slices.Collect(maps.Keys(g.Public)))
	return g
}

// connect is a connection as that identity, for what no part of ours would ask.
func (g *guarded) connect(who string) (*nats.Conn, error) {
	option, err := nats.NkeyOptionFromSeed(g.Seed(who))
	if err != nil {
		return nil, err
	}
	return nats.Connect(g.URL(), option, ownInbox, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
}

// as is a stream as that identity uses it: it creates nothing, except STREAMS.
func (g *guarded) as(who string) *Stream {
	o := testOptions(g.t)
	o.URL, o.Directory, o.NKeyFile, o.Existing = g.URL(), "", g.Seed(who), who != "STREAMS"
	return open(g.t, o)
}

func TestWithItsOwnKeyEachPartDoesItsWorkOnStreamsThatAnotherMade(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	streams := g.as("STREAMS")
	projector, archiver, mint := g.as("PROJECTOR"), g.as("ARCHIVER"), g.as("MINT")
	refused := mintEvent(90, 403)
	for i, who := range ingests {
		publisher := g.as(who)
		require.NoError(t, publisher.Publish(t.Context(), append(mints(10*i, 10*i+5), intent(10*i))), who)
		found := gap.Gap{Source: who, Reason: "rotated away", From: epoch, Until: epoch.Add(time.Minute), FoundAt: epoch.Add(time.Hour)}
		require.NoError(t, publisher.RecordGap(t.Context(), found), who)
		err := publisher.Attend(t.Context(), epoch, map[string]time.Time{who: epoch})
		require.NoError(t, err, who)
	}
	require.NoError(t, g.as("INGEST").Publish(t.Context(), slices.Concat(mints(80, 81), []event.Event{refused})))
	for consumer, s := range map[Consumer]*Stream{
		ProjectorEvents: projector, ProjectorIntents: projector, ArchiverEvents: archiver, ArchiverIntents: archiver, ArchiverAttempts: archiver,
	} {
		want := map[kind]int{events: 21, intents: 4, attempts: 1}[consumerKinds[consumer]]
		assert.Len(t, drain(t, s, consumer), want, consumer)
		assert.Eventually(t, func() bool {
			is, err := streams.lookBriefly(t.Context(), consumer)
			return err == nil && is.CachedInfo().NumAckPending == 0
		}, time.Minute, 20*time.Millisecond, "%s acknowledges", consumer)
	}
	revision, err := projector.Evidence().Put(t.Context(), "ab", []byte("1"), 0)
	require.NoError(t, err)
	_, err = projector.Evidence().Put(t.Context(), "ab", []byte("2"), revision)
	require.NoError(t, err)
	value, _, err := projector.Evidence().Get(t.Context(), "ab")
	require.NoError(t, err)
	assert.Equal(t, "2", string(value))
	for _, s := range []*Stream{mint, archiver, g.as("DOCTOR")} {
		gaps, err := s.Gaps(t.Context())
		require.NoError(t, err)
		assert.Len(t, gaps, len(ingests))
	}
	gaps, err := mint.Gaps(t.Context())
	require.NoError(t, err)
	require.NoError(t, g.as("REPLAY").CloseGap(t.Context(), gaps[0], epoch.Add(2*time.Hour)))
	_, consumers, err := g.as("DOCTOR").Inspect(t.Context())
	require.NoError(t, err)
	for _, c := range consumers {
		assert.False(t, c.Missing, c.Name)
	}
	require.NoError(t, streams.reset(t.Context(), ProjectorIntents))
	require.NoError(t, streams.measure(t.Context()))
	for consumer := range consumerKinds {
		require.NoError(t, streams.check(t.Context(), consumer, map[Consumer]progress{}))
	}
}

func TestWithItsOwnKeyNoPartCanDoAnothersWorkAndNobodyPurgesOrDeletes(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	g.as("STREAMS")
	f := func(subject string, allowed ...string) {
		t.Helper()
		for _, who := range everybody {
			conn, err := g.connect(who)
			require.NoError(t, err)
			require.NoError(t, conn.Publish(subject, nil))
			require.NoError(t, conn.Flush())
			if slices.Contains(allowed, who) {
				assert.NoError(t, conn.LastError(), "%s may not use %s", who, subject)
			} else {
				assert.ErrorIs(t, conn.LastError(), nats.ErrPermissionViolation, "%s may use %s", who, subject)
			}
			conn.Close()
		}
	}
	f("mintlog.v1.events.a.b.mint", ingests...)
	f("mintlog.v1.attempts.a.b.mint", ingests...)
	f("$KV.mintlog_evidence.ab", "PROJECTOR")
	f("$KV.mintlog_gaps.other", ingests...)
	f("$JS.API.STREAM.MSG.GET.KV_mintlog_evidence", "PROJECTOR")
	f("$JS.API.STREAM.MSG.GET.KV_mintlog_gaps", append(slices.Clone(ingests), "STREAMS", "MINT", "ARCHIVER", "DOCTOR")...)
	f("$JS.API.STREAM.MSG.GET.MINTLOG_EVENTS", "STREAMS")
	f("$JS.API.INFO")
	f("$JS.API.STREAM.LIST")
	f("$JS.API.STREAM.CREATE.OTHER")
	for consumer, of := range consumerKinds {
		reader := strings.ToUpper(strings.Split(string(consumer), "-")[0])
		f("$JS.API.CONSUMER.MSG.NEXT."+streamNames[of]+"."+string(consumer), reader)
		f("$JS.ACK."+streamNames[of]+"."+string(consumer)+".1.1.1.1.0", reader)
		f("$JS.API.CONSUMER.CREATE."+streamNames[of]+"."+string(consumer), "STREAMS")
		f("$JS.API.CONSUMER.RESET."+streamNames[of]+"."+string(consumer), "STREAMS")
		f("$JS.API.CONSUMER.DELETE." + streamNames[of] + "." + string(consumer))
		f("$JS.API.CONSUMER.PAUSE." + streamNames[of] + "." + string(consumer))
		f("$JS.API.CONSUMER.CREATE." + streamNames[of])
		f("$JS.API.CONSUMER.DURABLE.CREATE." + streamNames[of] + "." + string(consumer))
	}
	for _, name := range []string{streamNames[events], streamNames[intents], streamNames[attempts], evidenceStream, bucketStream(gapsBucket)} {
		f("$JS.API.STREAM.CREATE."+name, "STREAMS")
		f("$JS.API.STREAM.UPDATE."+name, "STREAMS")
		f("$JS.API.STREAM.PURGE." + name)
		f("$JS.API.STREAM.DELETE." + name)
		f("$JS.API.STREAM.MSG.DELETE." + name)
		f("$JS.API.STREAM.SNAPSHOT." + name)
		f("$JS.API.STREAM.RESTORE." + name)
		f("$JS.API.DIRECT.GET." + name)
	}
}

func TestNobodyListensToAnothersAnswersOrGetsInWithoutAKey(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	for _, who := range everybody {
		for _, subject := range []string{">", "_INBOX.>", "mintlog.v1.>", "$JS.>", "$KV.>", "_INBOX." + g.Public["PROJECTOR"] + ".>"} {
			conn, err := g.connect(who)
			require.NoError(t, err)
			_, err = conn.SubscribeSync(subject)
			require.NoError(t, err)
			require.NoError(t, conn.Flush())
			if who == "PROJECTOR" && strings.HasPrefix(subject, "_INBOX.U") {
				assert.NoError(t, conn.LastError())
			} else {
				assert.ErrorIs(t, conn.LastError(), nats.ErrPermissionViolation, "%s listens to %s", who, subject)
			}
			conn.Close()
		}
	}
	_, err := nats.Connect(g.URL())
	assert.ErrorIs(t, err, nats.ErrAuthorization)
}

func TestAServerPurgesNoBucketForWhoMayWriteIt(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	g.as("STREAMS")
	projector := g.as("PROJECTOR")
	for _, key := range []string{"ab", "cd"} {
		_, err := projector.Evidence().Put(t.Context(), key, []byte("1"), 0)
		require.NoError(t, err)
	}
	for _, reach := range []string{"all", "sub"} {
		message := &nats.Msg{Subject: "$KV.mintlog_evidence.ab", Header: nats.Header{jetstream.MsgRollup: {reach}}}
		_, err := projector.js.PublishMsg(t.Context(), message)
		assert.Error(t, err, reach)
	}
	for _, key := range []string{"ab", "cd"} {
		_, _, err := projector.Evidence().Get(t.Context(), key)
		assert.NoError(t, err)
	}
}
