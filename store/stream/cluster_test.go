package stream

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/test/natsserver"
)

func TestSinceWhenALeaderLeadsIsKnownOfAClusterUnlessItTellsOfNone(t *testing.T) {
	t.Parallel()
	servers := natsserver.Cluster(t, func(o *server.Options) {
		nothing := &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"$JS.API.STREAM.INFO.>"}}}
		o.Users = []*server.User{{Username: "owner", Password: "owner"}, {Username: "stranger", Password: "stranger", Permissions: nothing}}
	})
	url := func(i int, who string) string {
		return strings.Replace(servers[i%len(servers)].ClientURL(), "nats://", "nats://"+who+":"+who+"@", 1)
	}
	o := testOptions(t)
	o.URL, o.Replicas = url(0, "owner"), len(servers)
	owner := open(t, o)
	info, err := owner.lookUpStream(t.Context(), streamNames[events])
	require.NoError(t, err)
	leader := slices.IndexFunc(servers, func(s *server.Server) bool { return s.Name() == info.CachedInfo().Cluster.Leader })
	require.NotEqual(t, -1, leader)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	t.Run("who may not ask is refused once", func(t *testing.T) {
		o.URL = url(0, "stranger")
		stranger := open(t, existing(o))
		require.Zero(t, stranger.leadersHidden.Load())
		assert.Zero(t, stranger.leaderSince(ctx, events))
		require.Eventually(t, func() bool { return stranger.leadersHidden.Load() == 1 }, time.Minute, 10*time.Millisecond)
		assert.Zero(t, stranger.leaderSince(ctx, events))
		require.NoError(t, stranger.Publish(ctx, mints(0, 1)))
	})
	t.Run("a leader that stops takes nothing along, and the next leads only since", func(t *testing.T) {
		o.URL = url(leader+1, "owner") // what is on its way to the leader is then lost, not refused
		publisher := open(t, existing(o))
		before := publisher.leaderSince(ctx, events)
		require.False(t, before.IsZero())
		require.False(t, before.After(time.Now()))

		after := before.Add(time.Since(before) / 2) // what is said comes a little before what is
		stopped := make(chan struct{})
		go func() { defer close(stopped); servers[leader].Shutdown() }()
		published := 1
		for publisher.leaderSince(ctx, events).Before(after) {
			for publisher.Publish(ctx, mints(published, published+10)) != nil {
				require.NoError(t, ctx.Err(), "nothing is published any more")
			}
			published += 10
		}
		<-stopped
		require.NoError(t, publisher.Publish(ctx, mints(published, published+10)))
		got := consumeAll(t, publisher, ProjectorEvents)
		for wanted := identities(mints(0, published+10)); len(wanted) > 0; { // some come twice
			id := identity(receive(t, got).Event)
			wanted = slices.DeleteFunc(wanted, func(w string) bool { return w == id })
		}
	})
}
