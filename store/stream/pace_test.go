package stream

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// answer is what a server has to say to a message, later.
type answer struct {
	ok     chan *jetstream.PubAck
	failed chan error
}

func (a *answer) Ok() <-chan *jetstream.PubAck { return a.ok }
func (a *answer) Err() <-chan error            { return a.failed }
func (a *answer) Msg() *nats.Msg               { return nil }

func sentNow() (*message, *answer) {
	a := &answer{make(chan *jetstream.PubAck, 1), make(chan error, 1)}
	return &message{began: time.Now(), sent: time.Now(), ack: a}, a
}

// neverLed is the pace of a stream of whose leader nobody says anything.
func neverLed() *pace {
	return &pace{leaderSince: func(context.Context) time.Time { return time.Time{} }}
}

func TestAMessageWaitsAsLongAsItsStreamAcknowledgesThoseBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := neverLed()
		var before []*message
		for i := range 5 {
			m, other := sentNow()
			time.AfterFunc(time.Duration(i+1)*(requestTimeout-time.Second), func() { other.ok <- &jetstream.PubAck{} })
			before = append(before, m)
		}
		last, answered := sentNow()
		go func() {
			for _, m := range before {
				_, err := p.await(context.Background(), m)
				require.NoError(t, err)
			}
			answered.ok <- &jetstream.PubAck{Sequence: 6}
		}()
		ack, err := p.await(t.Context(), last)
		require.NoError(t, err)
		require.Equal(t, uint64(6), ack.Sequence)
	})
}

func TestAMessageIsGivenUpWhenItsStreamAcknowledgesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := neverLed()
		began := time.Now()
		first, _ := sentNow()
		second, _ := sentNow()
		for _, m := range []*message{first, second} {
			_, err := p.await(t.Context(), m)
			require.ErrorIs(t, err, jetstream.ErrAsyncPublishTimeout)
		}
		require.Equal(t, requestTimeout, time.Since(began), "not as long again for each")
	})
}

func TestAMessageIsGivenUpWhenOneIsStoredThatWasSentWellAfter(t *testing.T) {
	// f sends a second message so long after the first, which is not answered, and returns how long the first waited.
	f := func(after time.Duration, ack jetstream.PubAck) (waited time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			p := neverLed()
			began := time.Now()
			first, _ := sentNow()
			time.AfterFunc(after, func() {
				second, answered := sentNow()
				answered.ok <- &ack
				_, err := p.await(context.Background(), second)
				require.NoError(t, err)
			})
			_, err := p.await(t.Context(), first)
			require.ErrorIs(t, err, jetstream.ErrAsyncPublishTimeout)
			waited = time.Since(began)
		})
		return waited
	}
	assert.Equal(t, 2700*time.Millisecond, f(2650*time.Millisecond, jetstream.PubAck{}))
	assert.Equal(t, 10900*time.Millisecond, f(900*time.Millisecond, jetstream.PubAck{}), "they may have been sent in the other order")
	assert.Equal(t, 12700*time.Millisecond, f(2650*time.Millisecond, jetstream.PubAck{Duplicate: true}), "that is answered out of turn")
}

func TestAMessageThatHadToWaitToBeSentOvertakesNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := neverLed()
		first, answered := sentNow()
		waited, itsAnswer := sentNow()
		waited.sent = waited.began.Add(5 * time.Second)
		time.Sleep(5 * time.Second)
		itsAnswer.ok <- &jetstream.PubAck{}
		_, err := p.await(t.Context(), waited)
		require.NoError(t, err)
		time.AfterFunc(time.Second, func() { answered.ok <- &jetstream.PubAck{} })
		_, err = p.await(t.Context(), first)
		require.NoError(t, err)
	})
}

func TestAMessageIsGivenUpWhenItsStreamsLeaderLeadsOnlySince(t *testing.T) {
	// f elects a leader so long after the message was sent, and returns how long it waited, and how often the leader was
	// asked for by two who wait.
	f := func(after time.Duration) (waited time.Duration, asked int) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			p := &pace{leaderSince: func(context.Context) time.Time {
				asked++
				if time.Since(began) < after {
					return began.Add(-time.Hour)
				}
				return began.Add(after)
			}}
			var both sync.WaitGroup
			for range 2 {
				m, _ := sentNow()
				both.Go(func() {
					_, err := p.await(context.Background(), m)
					require.ErrorIs(t, err, jetstream.ErrAsyncPublishTimeout)
				})
			}
			both.Wait()
			waited = time.Since(began)
		})
		return waited, asked
	}
	waited, asked := f(200 * time.Millisecond)
	assert.Equal(t, 1100*time.Millisecond, waited)
	assert.Equal(t, 1, asked)
	waited, asked = f(4500 * time.Millisecond)
	assert.Equal(t, 5100*time.Millisecond, waited)
	assert.Equal(t, 5, asked)
	waited, _ = f(-time.Minute)
	assert.Equal(t, requestTimeout, waited)
}

func TestNoMessageWaitsForWhatNobodySaysOfTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pace{leaderSince: func(ctx context.Context) time.Time { <-ctx.Done(); return time.Time{} }}
		ctx, cancel := context.WithCancel(t.Context())
		first, answered := sentNow()
		second, _ := sentNow()
		time.AfterFunc(1110*time.Millisecond, func() { answered.ok <- &jetstream.PubAck{} })
		time.AfterFunc(1220*time.Millisecond, cancel)
		_, err := p.await(ctx, first)
		require.NoError(t, err)
		assert.Equal(t, 1110*time.Millisecond, time.Since(first.sent))
		_, err = p.await(ctx, second)
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, 1220*time.Millisecond, time.Since(second.sent))
	})
}

func TestAnAnswerThatIsThereGoesBeforeWhatSpeaksAgainstIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pace{leaderSince: func(context.Context) time.Time { return time.Now() }}
		for range 100 { // which of two that are ready is taken is left to chance
			m, answered := sentNow()
			time.Sleep(time.Minute)
			answered.ok <- &jetstream.PubAck{}
			_, err := p.await(t.Context(), m)
			require.NoError(t, err)
		}
	})
}

func TestWhatAServerSaysOfItsLeaderIsTakenByTheClockOfWhoAsks(t *testing.T) {
	asked := time.Now()
	theirs := asked.Add(-time.Hour) // by a clock that is late
	since := theirs.Add(-3 * time.Second)
	f := func(info jetstream.StreamInfo, want time.Time) {
		t.Helper()
		assert.True(t, want.Equal(ledSince(&info, asked)))
	}
	f(jetstream.StreamInfo{TimeStamp: theirs, Cluster: &jetstream.ClusterInfo{LeaderSince: &since}}, asked.Add(-3*time.Second))
	f(jetstream.StreamInfo{TimeStamp: theirs, Cluster: &jetstream.ClusterInfo{}}, time.Time{})
	f(jetstream.StreamInfo{Cluster: &jetstream.ClusterInfo{LeaderSince: &since}}, time.Time{})
	f(jetstream.StreamInfo{TimeStamp: theirs}, time.Time{})
}
