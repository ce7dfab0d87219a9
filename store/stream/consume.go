package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/mintlog/mintlog/store/event"
)

// A Message is one delivery of an event to a consumer. It comes again unless it is acknowledged in time: for the
// projector within half a minute, for the archiver within a minute. It holds the event and no more: what the server sent,
// which is several times as long as what most readers keep of it, goes.
type Message struct {
	Event     event.Event
	Delivered uint64    // times this message was handed out, this one included
	Sequence  uint64    // of the message in its stream
	Stored    time.Time // when the stream took it
	conn      *nats.Conn
	reply     string // where the server waits for the acknowledgement
	size      int    // of the event as the server sent it, in bytes
}

// Ack says that the event is dealt with.
func (m *Message) Ack() error { return m.answer("+ACK") }

// NakWithDelay asks for the event again, after the delay.
func (m *Message) NakWithDelay(delay time.Duration) error {
	if delay <= 0 {
		return m.answer("-NAK")
	}
	return m.answer(fmt.Sprintf(`-NAK {"delay": %d}`, delay.Nanoseconds()))
}

// InProgress asks for as much time again.
func (m *Message) InProgress() error { return m.answer("+WPI") }

// Term sets the event aside: this consumer does not get it again. The reason goes to the server's advisories.
func (m *Message) Term(reason string) error { return m.answer("+TERM " + reason) }

// answer sends one of JetStream's acknowledgements.
func (m *Message) answer(acknowledgement string) error {
	return m.conn.Publish(m.reply, []byte(acknowledgement))
}

const (
	consumeBatch = 64 // messages that Consume asks for at a time
	// fetchBytes is how much Fetch returns at a time. What a server sent beyond it comes again.
	fetchBytes = 16 << 20
	// pullWait is how long one request for messages lasts. A request that was lost, with its connection or in a server,
	// holds up its consumer so long and a second more.
	pullWait   = 2 * time.Second
	maxBackoff = time.Second
	// returnDelay is when a message comes again that arrived after its reader had gone.
	returnDelay = 300 * time.Millisecond
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

// Fetch returns up to limit messages, or fewer that have fetchBytes together. It returns as soon as it has them, and with
// what it has when wait is over.
func (s *Stream) Fetch(ctx context.Context, consumer Consumer, limit int, wait time.Duration) ([]*Message, error) {
	pulling, enough := context.WithCancel(ctx)
	defer enough()
	var messages []*Message
	bytes := 0
	err := s.pull(pulling, consumer, limit, wait, func(m *Message) {
		messages = append(messages, m)
		if bytes += m.size; bytes >= fetchBytes {
			enough()
		}
	})
	if len(messages) > 0 {
		return messages, nil
	}
	return nil, err
}

// pull makes one request for messages and hands out what comes.
func (s *Stream) pull(ctx context.Context, consumer Consumer, limit int, wait time.Duration, handle func(*Message)) error {
	batch, err := s.request(ctx, consumer, limit, wait)
	if err != nil {
		return err
	}
	arriving := batch.Messages()
	for ctx.Err() == nil {
		select {
		case raw, ok := <-arriving:
			if !ok {
				if err := batch.Error(); err != nil {
					s.doubt(consumer)
					return fmt.Errorf("receive from %s: %w", consumer, err)
				}
				return nil
			}
			if m, ok := s.decode(consumer, raw); ok {
				handle(m)
			}
		case <-ctx.Done():
		}
	}
	s.giveBack(arriving)
	return nil
}

// giveBack returns in the background what a request still brings after its reader has gone; without that it would come
// again much later. Close waits for it, but for an embedded server, which is made to deliver again when it is opened.
func (s *Stream) giveBack(arriving <-chan jetstream.Msg) {
	leave, err := s.enter()
	if err != nil {
		return
	}
	if s.embedded != nil {
		leave()
		leave = func() {}
	}
	go func() {
		defer leave()
		for raw := range arriving {
			_ = raw.NakWithDelay(returnDelay)
		}
	}()
}

func (s *Stream) request(ctx context.Context, consumer Consumer, limit int, wait time.Duration) (jetstream.MessageBatch, error) {
	leave, err := s.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	if _, ok := consumerKinds[consumer]; !ok {
		return nil, fmt.Errorf("no such consumer: %s", consumer)
	}
	h, err := s.handle(ctx, consumer)
	if err != nil {
		return nil, fmt.Errorf("look up consumer %s: %w", consumer, err)
	}
	batch, err := h.Fetch(limit, jetstream.FetchMaxWait(wait))
	if err != nil {
		s.doubt(consumer)
		return nil, fmt.Errorf("ask %s for messages: %w", consumer, err)
	}
	return batch, nil
}

// A handle is a consumer as it was looked up last.
type handle struct {
	jetstream.Consumer
	doubtful atomic.Bool // something went wrong since
}

// doubt has a consumer looked up before it is asked again.
func (s *Stream) doubt(consumer Consumer) {
	if h, ok := s.consumers.Load(consumer); ok {
		h.(*handle).doubtful.Store(true)
	}
}

// handle is the consumer, which is created again if it is gone and that is ours to do. While a cluster elects a leader
// nobody answers for it: it is then taken to be there, for a request to it is refused at once until there is a leader,
// and served as soon as there is.
func (s *Stream) handle(ctx context.Context, consumer Consumer) (*handle, error) {
	var known *handle
	if h, ok := s.consumers.Load(consumer); ok {
		if known = h.(*handle); !known.doubtful.Load() {
			return known, nil
		}
	}
	found, err := s.lookBriefly(ctx, consumer)
	missing := errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound)
	if missing && !s.options.Existing {
		if err = s.ensure(ctx); err == nil {
			found, err = s.lookBriefly(ctx, consumer)
		}
	}
	if known != nil && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return known, nil
	}
	if err != nil {
		return nil, err
	}
	h := &handle{Consumer: found}
	s.consumers.Store(consumer, h)
	return h, nil
}

// lookBriefly looks a consumer up of which it does not matter much whether somebody answers for it.
func (s *Stream) lookBriefly(ctx context.Context, consumer Consumer) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, askInterval)
	defer cancel()
	return s.lookUpConsumer(ctx, consumer)
}

// decode sets aside what is no event. Its contents are not logged: whoever can publish could choose them.
func (s *Stream) decode(consumer Consumer, raw jetstream.Msg) (*Message, bool) {
	m := &Message{Delivered: 1, conn: s.conn, reply: raw.Reply(), size: len(raw.Data())}
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
