package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// progress is how far a consumer had come.
type progress struct {
	delivered uint64 // last sequence handed out, redeliveries included
	waiting   bool   // messages were there to be handed out, and somebody asked for them
}

// watch looks after streams and consumers until ctx is done: what is lost is created again even if nobody consumes,
// since the stream of events keeps messages for existing consumers only, and a consumer that hands out nothing though
// messages wait and are asked for is reset.
func (s *Stream) watch(ctx context.Context) {
	last := map[Consumer]progress{}
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		for consumer := range consumerKinds {
			if err := s.check(ctx, consumer, last); err != nil && ctx.Err() == nil {
				s.log.Warn("looking after the stream", "consumer", string(consumer), "error", err)
			}
		}
		if err := s.measure(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("measuring the streams", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := s.ensure(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("looking after the stream", "error", err)
		}
	}
}

func (s *Stream) check(ctx context.Context, consumer Consumer, last map[Consumer]progress) error {
	c, err := s.lookUpConsumer(ctx, consumer)
	if err != nil {
		return fmt.Errorf("look up: %w", err)
	}
	info := c.CachedInfo()
	s.metrics.pending.WithLabelValues(string(consumer)).Set(float64(info.NumPending) + float64(info.NumAckPending))
	if lag, err := s.lag(ctx, consumer, info); err != nil {
		s.log.Warn("measuring how far behind a consumer is", "consumer", string(consumer), "error", err)
	} else {
		s.metrics.lag.WithLabelValues(string(consumer)).Set(lag.Seconds())
	}
	now := progress{
		delivered: info.Delivered.Consumer,
		waiting:   info.NumPending > 0 && info.NumWaiting > 0 && info.NumAckPending < maxAckPending,
	}
	before := last[consumer]
	last[consumer] = now
	if !now.waiting || !before.waiting || now.delivered != before.delivered {
		return nil
	}
	s.metrics.stalled.WithLabelValues(string(consumer)).Inc()
	s.log.Error("messages wait and the consumer hands out none; it is reset", "consumer", string(consumer), "pending", info.NumPending)
	return s.reset(ctx, consumer)
}

// lag is how long the oldest message that the consumer has not acknowledged has been in the stream, by this machine's
// clock and the server's.
func (s *Stream) lag(ctx context.Context, consumer Consumer, info *jetstream.ConsumerInfo) (time.Duration, error) {
	if info.NumPending == 0 && info.NumAckPending == 0 {
		return 0, nil
	}
	stream, err := s.lookUpStream(ctx, streamNames[consumerKinds[consumer]])
	if err != nil {
		return 0, fmt.Errorf("look up the stream: %w", err)
	}
	oldest, err := stream.GetMsg(ctx, info.AckFloor.Stream+1, jetstream.WithGetMsgSubject(">"))
	if errors.Is(err, jetstream.ErrMsgNotFound) { // it has been acknowledged since, or was older than the stream keeps
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look up the oldest message: %w", err)
	}
	return max(0, time.Since(oldest.Time)), nil
}

// measure says how full the streams are that discard nothing, and how many gaps are open.
func (s *Stream) measure(ctx context.Context) error {
	for name := range s.metrics.bytes {
		stream, err := s.lookUpStream(ctx, name)
		if err != nil {
			return fmt.Errorf("look up stream %s: %w", name, err)
		}
		info := stream.CachedInfo()
		s.metrics.bytes[name].Set(float64(info.State.Bytes))
		s.metrics.maxBytes[name].Set(float64(info.Config.MaxBytes))
	}
	gaps, err := s.Gaps(ctx)
	if err != nil {
		return err
	}
	open := 0
	for _, g := range gaps {
		if g.Open() {
			open++
		}
	}
	s.metrics.gapsOpen.Set(float64(open))
	return nil
}
