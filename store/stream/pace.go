package stream

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// A pace is how one stream acknowledges. It stores messages one after the other, in the order in which they came, by
// whomever: that a message has waited for long says nothing while those before it are acknowledged.
type pace struct {
	// leaderSince is a time no later than when the stream's leader began to lead; zero if nobody says.
	leaderSince func(context.Context) time.Time

	mu           sync.Mutex
	acknowledged time.Time // when the stream last acknowledged something
	reached      time.Time // when the newest message that it has stored was sent, or a little before
	asking       bool      // for the leader
	asked        time.Time // when that ended last
	led          time.Time // what leaderSince said
}

// lookInterval is how often it is looked whether a message is lost.
const lookInterval = askInterval / 10

// await waits for the answer to a message until it is lost: with a server that stopped, on its way, or because nobody
// answers at all.
func (p *pace) await(ctx context.Context, m *message) (*jetstream.PubAck, error) {
	timer := time.NewTimer(askInterval - time.Since(m.sent))
	defer timer.Stop()
	for {
		select {
		case ack := <-m.ack.Ok():
			return p.note(m, ack), nil
		case err := <-m.ack.Err():
			return nil, err
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-timer.C:
			timer.Reset(lookInterval)
		}
		p.lookForLeader(ctx)
		if !p.isLost(m) {
			continue
		}
		select { // what others were answered meanwhile says nothing of a message that was answered, too
		case ack := <-m.ack.Ok():
			return p.note(m, ack), nil
		case err := <-m.ack.Err():
			return nil, err
		default:
			return nil, jetstream.ErrAsyncPublishTimeout
		}
	}
}

// note notes that a message is acknowledged. That it has one already a server says out of turn.
func (p *pace) note(m *message, ack *jetstream.PubAck) *jetstream.PubAck {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.acknowledged = time.Now()
	if !ack.Duplicate {
		p.reached = later(p.reached, m.began)
	}
	return ack
}

// isLost reports whether a message will not be acknowledged any more: because one that was sent well after it has been,
// because nothing has been for long, or because the stream's leader leads only since.
func (p *pace) isLost(m *message) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	overtaken := p.reached.Sub(m.sent) > askInterval
	silent := time.Since(later(m.sent, p.acknowledged)) >= requestTimeout
	return overtaken || silent || p.led.After(m.sent)
}

// lookForLeader asks for leaderSince, in the background so that no message that is answered waits for it, and no more
// often than each askInterval for all who wait.
func (p *pace) lookForLeader(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asking || time.Since(p.asked) < askInterval {
		return
	}
	p.asking = true
	go func() {
		led := p.leaderSince(ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.led, p.asked, p.asking = later(p.led, led), time.Now(), false
	}()
}

// paces are those of all streams.
func (s *Stream) newPaces() map[kind]*pace {
	all := map[kind]*pace{}
	for k := range streamNames {
		all[k] = &pace{leaderSince: func(ctx context.Context) time.Time { return s.leaderSince(ctx, k) }}
	}
	return all
}

// leaderSince asks for the leader of a stream. A server that is alone has none, and one with an older accounts.conf tells
// of none: it is asked once on a connection.
func (s *Stream) leaderSince(ctx context.Context, k kind) time.Time {
	if s.conn.ConnectedClusterName() == "" || s.leadersHidden.Load() == s.conn.Stats().Reconnects+1 {
		return time.Time{}
	}
	ctx, cancel := context.WithTimeout(ctx, askInterval)
	defer cancel()
	asked := time.Now()
	stream, err := s.js.Stream(ctx, streamNames[k])
	if err != nil {
		return time.Time{}
	}
	return ledSince(stream.CachedInfo(), asked)
}

// ledSince is a time no later than when the leader began to lead, by the clock of who asked: what the server says is
// compared with the server's own clock. Servers before 2.12 say nothing.
func ledSince(info *jetstream.StreamInfo, asked time.Time) time.Time {
	if info.Cluster == nil || info.Cluster.LeaderSince == nil || info.TimeStamp.IsZero() {
		return time.Time{}
	}
	return asked.Add(info.Cluster.LeaderSince.Sub(info.TimeStamp))
}
