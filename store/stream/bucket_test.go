package stream

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEvidenceIsWrittenOnlyAtTheExpectedRevision(t *testing.T) {
	t.Parallel()
	evidence := open(t, testOptions(t)).Evidence()
	_, _, err := evidence.Get(t.Context(), "0f")
	require.ErrorIs(t, err, ErrNotFound)
	first, err := evidence.Put(t.Context(), "0f", []byte("one"), 0)
	require.NoError(t, err)
	_, err = evidence.Put(t.Context(), "0f", []byte("other"), 0)
	require.ErrorIs(t, err, ErrConflict)
	second, err := evidence.Put(t.Context(), "0f", []byte("two"), first)
	require.NoError(t, err)
	_, err = evidence.Put(t.Context(), "0f", []byte("three"), first)
	require.ErrorIs(t, err, ErrConflict)
	value, revision, err := evidence.Get(t.Context(), "0f")
	require.NoError(t, err)
	assert.Equal(t, "two", string(value))
	assert.Equal(t, second, revision)
}

func TestEvidenceGoesWhenItWasNotWrittenForItsAge(t *testing.T) {
	t.Parallel()
	o := testOptions(t)
	o.EvidenceAge = time.Second
	evidence := open(t, o).Evidence()
	last, err := evidence.Put(t.Context(), "0f", []byte("one"), 0)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, _, err := evidence.Get(t.Context(), "0f")
		return errors.Is(err, ErrNotFound)
	}, time.Minute, 50*time.Millisecond)
	_, err = evidence.Put(t.Context(), "0f", []byte("two"), last)
	require.ErrorIs(t, err, ErrConflict, "it is gone")
	_, err = evidence.Put(t.Context(), "0f", []byte("two"), 0)
	assert.NoError(t, err)
}

func TestABucketWithoutRoomSaysThatItIsFullAndKeepsWhatItHas(t *testing.T) {
	t.Parallel()
	o := testOptions(t)
	o.EvidenceBytes = 20_000
	evidence := open(t, o).Evidence()
	value := []byte(strings.Repeat("v", 1000))
	revision, err := evidence.Put(t.Context(), "00", value, 0)
	require.NoError(t, err)
	for i := 1; err == nil && i < 100; i++ {
		_, err = evidence.Put(t.Context(), fmt.Sprintf("%02x", i), value, 0)
	}
	require.ErrorIs(t, err, ErrFull)
	_, err = evidence.Put(t.Context(), "00", []byte(strings.Repeat("v", 10_000)), revision)
	require.ErrorIs(t, err, ErrFull)
	kept, _, err := evidence.Get(t.Context(), "00")
	require.NoError(t, err)
	assert.Equal(t, value, kept)
}

func TestABucketOfAnEarlierVersionIsBroughtToThisConfigurationAndKeepsWhatItHas(t *testing.T) {
	t.Parallel()
	o := testOptions(t)
	first, err := Open(t.Context(), o)
	require.NoError(t, err)
	require.NoError(t, first.js.DeleteKeyValue(t.Context(), evidenceBucket))
	earlier, err := first.js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{
		Bucket: evidenceBucket, Storage: jetstream.FileStorage, History: 1, MaxBytes: 1 << 30, Replicas: 1,
	})
	require.NoError(t, err)
	_, err = earlier.Put(t.Context(), "0f", []byte("one"))
	require.NoError(t, err)
	require.NoError(t, first.Close())

	o = reopened(o)
	o.EvidenceAge = time.Hour
	s := open(t, o)
	stream, err := s.js.Stream(t.Context(), evidenceStream)
	require.NoError(t, err)
	is := stream.CachedInfo().Config
	assert.Equal(t, time.Hour, is.MaxAge)
	assert.Equal(t, int64(DefaultEvidenceBytes), is.MaxBytes)
	assert.False(t, is.AllowDirect, "a replica that lags behind would answer")
	value, _, err := s.Evidence().Get(t.Context(), "0f")
	require.NoError(t, err)
	assert.Equal(t, "one", string(value))
}

func TestEvidenceIsReadAndWrittenByOneRequestEachAndOfTheBucketsLeader(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	revision, err := s.Evidence().Put(t.Context(), "0f", []byte("one"), 0)
	require.NoError(t, err)
	requests, err := s.conn.SubscribeSync("$JS.API.>")
	require.NoError(t, err)
	for range 10 {
		_, _, err = s.Evidence().Get(t.Context(), "0f")
		require.NoError(t, err)
		revision, err = s.Evidence().Put(t.Context(), "0f", []byte("two"), revision)
		require.NoError(t, err)
	}
	asked := map[string]int{}
	for {
		m, err := requests.NextMsg(200 * time.Millisecond)
		if errors.Is(err, nats.ErrTimeout) {
			break
		}
		require.NoError(t, err)
		asked[m.Subject]++
	}
	assert.GreaterOrEqual(t, asked["$JS.API.STREAM.MSG.GET."+evidenceStream], 10, "any replica answers what is asked under another name")
	assert.Less(t, asked["$JS.API.STREAM.INFO."+evidenceStream], 5, "the watch may look it up")
}

func TestABucketThatIsLostIsMadeAgainByWhoeverNeedsIt(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	revision, err := s.Evidence().Put(t.Context(), "0f", []byte("one"), 0)
	require.NoError(t, err)
	require.NoError(t, s.js.DeleteKeyValue(t.Context(), evidenceBucket))
	_, _, err = s.Evidence().Get(t.Context(), "0f")
	require.ErrorIs(t, err, ErrNotFound)
	require.NoError(t, s.js.DeleteKeyValue(t.Context(), evidenceBucket))
	_, err = s.Evidence().Put(t.Context(), "0f", []byte("two"), revision)
	require.ErrorIs(t, err, ErrConflict)
	_, err = s.Evidence().Put(t.Context(), "0f", []byte("two"), 0)
	require.NoError(t, err)
	assert.Equal(t, 2.0, testutil.ToFloat64(s.metrics.recreated.WithLabelValues(evidenceStream)))
}

func TestBothWrongLastSequenceCodesMeanConflict(t *testing.T) {
	t.Parallel()
	for _, code := range []jetstream.ErrorCode{10071, 10164} {
		assert.ErrorIs(t, typed(fmt.Errorf("nats: %w", &jetstream.APIError{ErrorCode: code})), ErrConflict)
	}
	other := errors.New("other")
	assert.NotErrorIs(t, typed(other), ErrConflict)
	assert.ErrorIs(t, typed(other), other)
}
