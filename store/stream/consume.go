package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/mintlog/mintlog/store/event"
)

// A Message is one delivery of an event to a consumer. It comes again unless it is acknowledged within a minute.
type Message struct {
	Event     event.Event
	Delivered uint64    // times this message was handed out, this one included
	Sequence  uint64    // of the message in its stream
	Stored    time.Time // when the stream took it
	message   jetstream.Msg
}

// Ack says that the event is dealt with.
func (m *Message) Ack() error { return m.message.Ack() }

// AckSync is Ack, and waits until the server has it.
func (m *Message) AckSync(ctx context.Context) error { return m.message.DoubleAck(ctx) }

// NakWithDelay asks for the event again, after the delay.
func (m *Message) NakWithDelay(delay time.Duration) error { return m.message.NakWithDelay(delay) }

// InProgress asks for another minute.
func (m *Message) InProgress() error { return m.message.InProgress() }

// Term sets the event aside: this consumer does not get it again. The reason goes to the server's advisories.
func (m *Message) Term(reason string) error { return m.message.TermWithReason(reason) }

const (
	consumeBatch = 64              // messages that Consume asks for at a time
	pullWait     = 5 * time.Second // how long one request for messages lasts
	heartbeat    = time.Second     // two missed ones end a request
	maxBackoff   = 5 * time.Second

	// grace is how long a request is still listened to when its context is done, for messages already on their way.
	grace = 200 * time.Millisecond
)

// Consume calls handle with one message after the other until ctx is done; it then returns nil. Whatever goes wrong on
// the way to the messages is logged and tried again: a lost connection, a stream or consumer that is gone and has to be
// created again. Each request for messages lasts a few seconds at most, so nothing waits for one that was lost.
func (s *Stream) Consume(ctx context.Context, consumer Consumer, handle func(*Message)) error {
	for attempt := 0; ctx.Err() == nil; {
		err := s.pull(ctx, consumer, consumeBatch, pullWait, handle)
		switch {
		case errors.Is(err, ErrClosed):
			return err
		case err != nil && ctx.Err() == nil:
			s.log.Warn("consuming from the stream", "consumer", string(consumer), "error", err)
			attempt++
			pause(ctx, attempt)
		default:
			attempt = 0
		}
	}
	return nil
}

// Fetch returns up to limit messages. It returns as soon as it has them, and with what it has when wait is over.
func (s *Stream) Fetch(ctx context.Context, consumer Consumer, limit int, wait time.Duration) ([]*Message, error) {
	var messages []*Message
	err := s.pull(ctx, consumer, limit, wait, func(m *Message) { messages = append(messages, m) })
	if len(messages) > 0 {
		return messages, nil
	}
	return nil, err
}

// pull makes one request for messages and hands out what comes.
func (s *Stream) pull(ctx context.Context, consumer Consumer, limit int, wait time.Duration, handle func(*Message)) error {
	receiving, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })()
	batch, err := s.request(ctx, receiving, consumer, limit, wait)
	if err != nil {
		return err
	}
	for raw := range batch.Messages() {
		if ctx.Err() != nil {
			_ = raw.NakWithDelay(2 * grace) // what nobody looked at comes again soon; without this, in a minute
			continue
		}
		if m, ok := s.decode(consumer, raw); ok {
			handle(m)
		}
	}
	switch err := batch.Error(); {
	case err == nil, errors.Is(err, context.DeadlineExceeded), ctx.Err() != nil:
		return nil
	default:
		return fmt.Errorf("receive from %s: %w", consumer, err)
	}
}

// request asks for messages. The wait ends with receiving, which has a deadline.
func (s *Stream) request(ctx, receiving context.Context, consumer Consumer, limit int, wait time.Duration) (jetstream.MessageBatch, error) {
	leave, err := s.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	name, ok := consumerKinds[consumer]
	if !ok {
		return nil, fmt.Errorf("no such consumer: %s", consumer)
	}
	c, err := s.js.Consumer(ctx, streamNames[name], string(consumer))
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		if err = s.ensure(ctx); err == nil {
			c, err = s.js.Consumer(ctx, streamNames[name], string(consumer))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("look up consumer %s: %w", consumer, err)
	}
	options := []jetstream.FetchOpt{jetstream.FetchContext(receiving)}
	if wait >= 3*heartbeat {
		options = append(options, jetstream.FetchHeartbeat(heartbeat))
	}
	batch, err := c.Fetch(limit, options...)
	if err != nil {
		return nil, fmt.Errorf("ask %s for messages: %w", consumer, err)
	}
	return batch, nil
}

// decode sets aside what is no event. Its contents are not logged: whoever can publish could choose them.
func (s *Stream) decode(consumer Consumer, raw jetstream.Msg) (*Message, bool) {
	m := &Message{message: raw, Delivered: 1}
	if meta, err := raw.Metadata(); err == nil {
		m.Delivered, m.Sequence, m.Stored = meta.NumDelivered, meta.Sequence.Stream, meta.Timestamp
	}
	if err := json.Unmarshal(raw.Data(), &m.Event); err == nil && m.Event.Stage != "" {
		return m, true
	}
	s.metrics.undecodable.WithLabelValues(string(consumer)).Inc()
	s.log.Error("a message is no event and is set aside", "consumer", string(consumer), "sequence", m.Sequence, "bytes", len(raw.Data()))
	if err := raw.TermWithReason("not an event"); err != nil {
		s.log.Warn("set a message aside", "consumer", string(consumer), "sequence", m.Sequence, "error", err)
	}
	return nil, false
}

// pause waits longer the more attempts failed, each time by another length, or until ctx is done.
func pause(ctx context.Context, attempt int) {
	longest := min(100*time.Millisecond<<min(attempt, 10), maxBackoff)
	select {
	case <-time.After(longest/2 + rand.N(longest/2)):
	case <-ctx.Done():
	}
}
