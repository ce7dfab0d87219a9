package stream

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/gap"
	"github.com/mintlog/mintlog/test/natsserver"
)

// lost is the i-th gap of a file's log: of a second, and a minute behind the one before.
func lost(i int) gap.Gap {
	from := epoch.Add(time.Duration(i) * time.Minute)
	return gap.Gap{
		Source: "file:audit.log", Reason: "rotated file is gone", From: from, Until: from.Add(time.Second), Bytes: 10, FoundAt: from.Add(time.Hour),
	}
}

func gapsOf(t testing.TB, s *Stream) []gap.Gap {
	t.Helper()
	list, err := s.Gaps(t.Context())
	require.NoError(t, err)
	return list
}

// deaf is a bucket that hears no answer to its first write, puts it again, and is refused: it is there.
type deaf struct{ jetstream.KeyValue }

func (d deaf) Create(ctx context.Context, key string, value []byte, options ...jetstream.KVCreateOpt) (uint64, error) {
	if _, err := d.KeyValue.Create(ctx, key, value, options...); err != nil {
		return 0, err
	}
	return 0, jetstream.ErrKeyExists
}

func TestAGapIsReportedOnceThoughTheAnswerToItsWriteWasLost(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	assert.Empty(t, gapsOf(t, s)) // the bucket is looked up
	s.gaps.known.Store(&keyValue{deaf{s.gaps.known.Load().KeyValue}})
	for range 2 {
		require.NoError(t, s.RecordGap(t.Context(), lost(0)))
		assert.Equal(t, []gap.Gap{lost(0)}, gapsOf(t, s))
		assert.Equal(t, 1.0, testutil.ToFloat64(s.metrics.gapsFound))
	}
}

func TestGapsAreRecordedOnceAndSurviveARestart(t *testing.T) {
	t.Parallel()
	o := testOptions(t)
	s := open(t, o)
	assert.Empty(t, gapsOf(t, s))
	require.NoError(t, s.RecordGap(t.Context(), lost(0)))
	require.NoError(t, s.RecordGap(t.Context(), lost(1)))
	again := lost(0)
	again.FoundAt, again.Reason = again.FoundAt.Add(time.Hour), "found again after a crash"
	require.NoError(t, s.RecordGap(t.Context(), again))
	assert.Equal(t, []gap.Gap{lost(1), lost(0)}, gapsOf(t, s))
	assert.Equal(t, 2.0, testutil.ToFloat64(s.metrics.gapsFound))

	grown := lost(0)
	grown.Until = grown.Until.Add(time.Second)
	require.NoError(t, s.RecordGap(t.Context(), grown))
	assert.Equal(t, []gap.Gap{lost(1), grown}, gapsOf(t, s))
	require.NoError(t, s.Close())

	s = open(t, reopened(o))
	assert.Equal(t, []gap.Gap{lost(1), grown}, gapsOf(t, s))
	require.NoError(t, s.measure(t.Context()))
	assert.Equal(t, 2.0, testutil.ToFloat64(s.metrics.gapsOpen))
}

func TestAGapIsClosedAsItWasSeenAndOpensWhenItGrows(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	at := epoch.Add(2 * time.Hour)
	assert.ErrorIs(t, s.CloseGap(t.Context(), lost(0), at), ErrNoSuchGap)
	grown := lost(0)
	grown.Until = grown.Until.Add(time.Second)
	require.NoError(t, s.RecordGap(t.Context(), grown))
	assert.ErrorIs(t, s.CloseGap(t.Context(), lost(0), at), ErrNoSuchGap, "it has grown since it was looked at")
	require.NoError(t, s.CloseGap(t.Context(), grown, at))
	require.NoError(t, s.CloseGap(t.Context(), grown, at.Add(time.Hour)))
	assert.Equal(t, at, gapsOf(t, s)[0].ClosedAt)
	require.NoError(t, s.RecordGap(t.Context(), grown)) // by a follower that crashed before its checkpoint
	assert.Equal(t, at, gapsOf(t, s)[0].ClosedAt)
	require.NoError(t, s.measure(t.Context()))
	assert.Zero(t, testutil.ToFloat64(s.metrics.gapsOpen))

	grown.Until = grown.Until.Add(time.Second)
	require.NoError(t, s.RecordGap(t.Context(), grown))
	assert.True(t, gapsOf(t, s)[0].Open())
}

func TestWhatIsNoGapIsNotRecorded(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	assert.ErrorIs(t, s.RecordGap(t.Context(), gap.Gap{}), gap.ErrInvalid)
	assert.Empty(t, gapsOf(t, s))
}

func TestGapsRecordedAtTheSameTimeAreAllKept(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() { assert.NoError(t, s.RecordGap(t.Context(), lost(i))) })
	}
	group.Wait()
	list := gapsOf(t, s)
	require.Len(t, list, 20)
	for i := range list {
		assert.Equal(t, lost(19-i), list[i])
	}
}

func TestMoreGapsThanAreKeptLoseNothingThatIsMissing(t *testing.T) {
	t.Parallel()
	var list []gap.Gap
	for i := range maxGaps + 100 {
		g := lost(i)
		if i%100 == 0 {
			g.ClosedAt = g.FoundAt
		}
		list = append(list, g)
	}
	value, err := encodeGaps(list)
	require.NoError(t, err)
	assert.LessOrEqual(t, len(value), maxGapsBytes)
	s := open(t, testOptions(t))
	_, err = s.gaps.put(t.Context(), gapsKey, value, 0)
	require.NoError(t, err)
	kept := gapsOf(t, s)
	assert.Len(t, kept, maxGaps)
	for i := range maxGaps + 100 {
		if i%100 == 0 {
			continue
		}
		covered := false
		for _, g := range kept {
			covered = covered || g.Covers(lost(i))
		}
		assert.True(t, covered, "gap %d", i)
	}
	for _, g := range kept {
		assert.True(t, g.Open(), "the closed ones go first")
	}
}

func TestGapsOfAnyLengthAndSourceStayWithinTheirBounds(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	var list []gap.Gap
	for i := range 2 * maxGaps {
		g := lost(i)
		g.Source, g.Reason = fmt.Sprint(i, strings.Repeat("\x00", 2000)), strings.Repeat("\x00", 2000)
		list = append(list, g)
	}
	value, err := encodeGaps(list)
	require.NoError(t, err)
	assert.LessOrEqual(t, len(value), maxGapsBytes)
	revision := uint64(0)
	for range 20 { // each replaces the one before
		revision, err = s.gaps.put(t.Context(), gapsKey, value, revision)
		require.NoError(t, err)
	}
	g := lost(3 * maxGaps)
	require.NoError(t, s.RecordGap(t.Context(), g))
	kept := gapsOf(t, s)
	assert.True(t, kept[0].Covers(g) || kept[0].Source == "several")
	assert.True(t, kept[len(kept)-1].Explains(lost(0).From))
}

func TestTheGapsBucketIsMadeAgainWhenItIsLostAndWhatIsUnreadableIsReplaced(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	require.NoError(t, s.RecordGap(t.Context(), lost(0)))
	require.NoError(t, s.js.DeleteKeyValue(t.Context(), gapsBucket))
	require.NoError(t, s.RecordGap(t.Context(), lost(1)))
	assert.Equal(t, []gap.Gap{lost(1)}, gapsOf(t, s))
	assert.Equal(t, 1.0, testutil.ToFloat64(s.metrics.recreated.WithLabelValues(bucketStream(gapsBucket))))

	for _, value := range []string{"{", `[7]`, `[{"source":""}]`} {
		_, revision, err := s.gaps.get(t.Context(), gapsKey)
		require.NoError(t, err)
		_, err = s.gaps.put(t.Context(), gapsKey, []byte(value), revision)
		require.NoError(t, err)
		require.NoError(t, s.RecordGap(t.Context(), lost(2)))
		assert.Equal(t, []gap.Gap{lost(2)}, gapsOf(t, s))
	}
}

// follow collects what FollowGaps says.
func follow(t testing.TB, s *Stream) <-chan []gap.Gap {
	ctx, cancel := context.WithCancel(context.Background())
	said, done := make(chan []gap.Gap, 100), make(chan error, 1)
	go func() { done <- s.FollowGaps(ctx, func(list []gap.Gap) { said <- list }) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	return said
}

func next(t testing.TB, said <-chan []gap.Gap) []gap.Gap {
	t.Helper()
	select {
	case list := <-said:
		return list
	case <-time.After(time.Minute):
		t.Fatal("no change of the gaps is told")
		return nil
	}
}

func TestWhoeverFollowsTheGapsIsToldOfEachChange(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	said := follow(t, s)
	assert.Empty(t, next(t, said))
	require.NoError(t, s.RecordGap(t.Context(), lost(0)))
	assert.Equal(t, []gap.Gap{lost(0)}, next(t, said))
	require.NoError(t, s.CloseGap(t.Context(), lost(0), epoch))
	assert.False(t, next(t, said)[0].Open())
	assert.Empty(t, said, "nothing is told twice")
}

func TestAFollowerOfAnExternalServerCreatesNothingAndOutlivesIt(t *testing.T) {
	t.Parallel()
	n := natsserver.Start(t)
	n.Kill()
	o := testOptions(t)
	o.URL, o.Existing = n.URL(), true
	reader := open(t, o) // before there is a server
	said := follow(t, reader)
	require.NoError(t, n.Restart(t.Context()))
	_, err := reader.Gaps(t.Context())
	assert.Error(t, err, "there is no bucket, and the reader makes none")

	o = testOptions(t)
	o.URL = n.URL()
	writer := open(t, o)
	require.NoError(t, writer.RecordGap(t.Context(), lost(0)))
	for list := next(t, said); len(list) == 0; list = next(t, said) { // an empty bucket, perhaps, before the gap
	}
	n.Kill()
	require.Error(t, writer.RecordGap(t.Context(), lost(1)))
	require.NoError(t, n.Restart(t.Context()))
	require.Eventually(t, func() bool { return writer.RecordGap(t.Context(), lost(1)) == nil }, time.Minute, 100*time.Millisecond)
	assert.Equal(t, []gap.Gap{lost(1), lost(0)}, next(t, said))
}
