package stream

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
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
	return &message{sent: time.Now(), ack: a}, a
}

func TestAMessageWaitsAsLongAsItsStreamAcknowledgesOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p paces
		last, answered := sentNow()
		go func() {
			for range 5 {
				m, other := sentNow()
				other.ok <- &jetstream.PubAck{}
				time.Sleep(requestTimeout - time.Second)
				_, err := p.await(context.Background(), events, m)
				require.NoError(t, err)
			}
			answered.ok <- &jetstream.PubAck{Sequence: 6}
		}()
		ack, err := p.await(t.Context(), events, last)
		require.NoError(t, err)
		require.Equal(t, uint64(6), ack.Sequence)
	})
}

func TestAMessageIsGivenUpWhenItsStreamAcknowledgesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p paces
		began := time.Now()
		first, _ := sentNow()
		second, _ := sentNow()
		p.acknowledged(attempts)
		for _, m := range []*message{first, second} {
			_, err := p.await(t.Context(), events, m)
			require.ErrorIs(t, err, jetstream.ErrAsyncPublishTimeout)
		}
		require.Equal(t, requestTimeout, time.Since(began), "not as long again for each")
	})
}
