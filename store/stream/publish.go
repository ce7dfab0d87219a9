package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/mintlog/mintlog/store/event"
)

// ErrFull is returned by Publish when a stream that discards nothing has no room: hold the events back and repeat.
var ErrFull = errors.New("stream is full")

// ErrTooLarge is what a TooLargeError is.
var ErrTooLarge = errors.New("event is larger than a message may be")

// A TooLargeError names an event that can never be published. Of the others of the call some are and some are not: repeat
// it without that one.
type TooLargeError struct {
	Index    int    // in the events passed to Publish
	Identity string // the event's
	Size     int64  // bytes of the message
	Limit    int64  // bytes that the server takes
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("event %d (%s): %d bytes exceed the stream's limit of %d", e.Index, e.Identity, e.Size, e.Limit)
}

// Is makes errors.Is(err, ErrTooLarge) hold.
func (e *TooLargeError) Is(target error) bool { return target == ErrTooLarge }

// window is how many messages of one call to Publish are unacknowledged at a time in each stream: more than a server syncs
// in the time of a round trip, and no more than even a slow disk syncs within publishTimeout.
const window = 128

// headerRoom is what a message's headers may take of the server's limit, in bytes.
const headerRoom = 512

// Error codes with which a server says that a message does not fit.
const (
	codeStoreFailed         jetstream.ErrorCode = 10077
	codeInsufficientStorage jetstream.ErrorCode = 10047
	codeResourcesExceeded   jetstream.ErrorCode = 10023
)

// Publish returns nil when every event is durably acknowledged by the stream it belongs to. After an error some may be
// and some may not: repeat the call. An event that the stream already has within ten minutes is acknowledged and not
// stored again. The streams are published to side by side, so that no number of refused attempts, which anybody can cause,
// delays what histories are made of.
func (s *Stream) Publish(ctx context.Context, list []event.Event) error {
	leave, err := s.enter()
	if err != nil {
		return err
	}
	defer leave()
	if err := s.ready(ctx); err != nil {
		return err
	}
	err = s.sendAll(ctx, list)
	if errors.Is(err, jetstream.ErrNoStreamResponse) {
		if s.options.Existing {
			s.readyOn.Store(0)
			return err
		}
		if ensureErr := s.ensure(ctx); ensureErr != nil {
			return errors.Join(err, ensureErr)
		}
		err = s.sendAll(ctx, list)
	}
	return err
}

// sendAll sends every event to its stream.
func (s *Stream) sendAll(ctx context.Context, list []event.Event) error {
	places := map[kind][]int{}
	for i := range list {
		k := route(&list[i])
		places[k] = append(places[k], i)
	}
	failures := make(chan error, len(places))
	for k, of := range places {
		go func() { failures <- s.send(ctx, k, list, of) }()
	}
	var all error
	for range places {
		all = errors.Join(all, <-failures)
	}
	return all
}

// A message is an event that is sent.
type message struct {
	identity    string
	connection  uint64    // before it was sent
	began, sent time.Time // sending; with too many on their way a message has to wait in between
	ack         jetstream.PubAckFuture
}

// send publishes the events of one stream, which stand at these places of the list, with at most window of them
// unacknowledged, and waits for all that were sent. The error says what happened to the first that failed; a full stream
// goes before other failures.
func (s *Stream) send(ctx context.Context, k kind, list []event.Event, places []int) error {
	var first error
	note := func(err error) {
		if first == nil || errors.Is(err, ErrFull) && !errors.Is(first, ErrFull) {
			first = err
		}
	}
	messages := make([]message, 0, len(places))
	for i := range places {
		for len(messages) < min(len(places), i+window) && first == nil {
			m, err := s.start(k, list, places[len(messages)])
			if err != nil {
				note(err)
				break
			}
			messages = append(messages, m)
		}
		if i == len(messages) {
			break
		}
		m := &messages[i]
		ack, err := s.paces[k].await(ctx, m)
		if err := s.settle(k, m.identity, err); err != nil {
			note(err)
			continue
		}
		// What was sent on one connection and is acknowledged on another may have been sent again in between.
		sameConnection := m.connection == s.conn.Stats().Reconnects
		if sameConnection && !ack.Duplicate && s.heights.fell(k, m.connection, ack.Sequence) {
			s.shrunk(streamNames[k])
		}
	}
	return first
}

// start sends the event at an index of the list without waiting for the answer.
func (s *Stream) start(k kind, list []event.Event, index int) (message, error) {
	e := &list[index]
	payload, err := json.Marshal(e)
	if err != nil {
		return message{}, fmt.Errorf("encode event %d: %w", index, err)
	}
	m, subject := message{identity: e.Identity(), connection: s.conn.Stats().Reconnects, began: time.Now()}, subject(e)
	if size, limit := int64(len(payload)+len(subject)), s.conn.MaxPayload()-headerRoom; size > limit {
		s.metrics.tooLarge.Inc()
		return message{}, &TooLargeError{Index: index, Identity: m.identity, Size: size, Limit: limit}
	}
	m.ack, err = s.js.PublishMsgAsync(&nats.Msg{Subject: subject, Data: payload},
		jetstream.WithMsgID(s.repeats.messageID(m.identity)), jetstream.WithExpectStream(streamNames[k]),
		jetstream.WithStallWait(requestTimeout))
	if err != nil {
		return message{}, s.settle(k, m.identity, err)
	}
	m.sent = time.Now()
	return m, nil
}

// settle counts what became of an event and gives its failure a type.
func (s *Stream) settle(k kind, identity string, err error) error {
	if err == nil {
		s.repeats.settled(identity)
		s.metrics.published.WithLabelValues(streamNames[k]).Inc()
		return nil
	}
	s.repeats.failed(identity, time.Now())
	var api *jetstream.APIError
	if errors.As(err, &api) && isFull(api) {
		s.metrics.full.Inc()
		return fmt.Errorf("publish to %s: %w: %w", streamNames[k], ErrFull, err)
	}
	s.metrics.failed.Inc()
	return fmt.Errorf("publish to %s: %w", streamNames[k], err)
}

func isFull(err *jetstream.APIError) bool {
	return err.ErrorCode == codeStoreFailed || err.ErrorCode == codeInsufficientStorage || err.ErrorCode == codeResourcesExceeded
}

// repeats remembers the events whose publish failed, and repeats each under another message id: a server may hold on to
// the id of a message that it never stored, and would acknowledge the repetition as a duplicate. An event that was
// stored after all is then stored twice, which readers have to bear anyway.
type repeats struct {
	mu       sync.Mutex
	failures map[string]failure // by identity
}

type failure struct {
	count int
	last  time.Time
}

// maxRepeats is how many failed events are remembered. Beyond it, and after duplicateWindow, an event is repeated under
// its first id.
const maxRepeats = 1 << 16

func (r *repeats) messageID(identity string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f, ok := r.failures[identity]; ok {
		return fmt.Sprintf("%s.%d", identity, f.count)
	}
	return identity
}

func (r *repeats) failed(identity string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failures == nil {
		r.failures = map[string]failure{}
	}
	if len(r.failures) >= maxRepeats {
		maps.DeleteFunc(r.failures, func(_ string, f failure) bool { return now.Sub(f.last) > duplicateWindow })
	}
	if f, ok := r.failures[identity]; ok || len(r.failures) < maxRepeats {
		r.failures[identity] = failure{count: f.count + 1, last: now}
	}
}

func (r *repeats) settled(identity string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.failures, identity)
}

// heights remember how far the streams had come before the connection was made anew. What is stored afterwards under a
// sequence that was given already tells that a server lost what it had acknowledged: one that does not sync every write
// does so in a power cut.
type heights struct {
	mu sync.Mutex
	of map[kind]height
}

type height struct {
	connection   uint64
	before, last uint64 // sequences acknowledged on former connections, and until now
}

// fell notes the sequence that was given to an event, and reports whether the stream had come further before. It does so
// once a connection.
func (h *heights) fell(k kind, connection, sequence uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of == nil {
		h.of = map[kind]height{}
	}
	is := h.of[k]
	if connection < is.connection {
		return false // an answer that was on its way
	}
	if connection > is.connection {
		is.connection, is.before = connection, is.last
	}
	fell := sequence <= is.before
	if fell {
		is.before, is.last = 0, sequence
	}
	is.last = max(is.last, sequence)
	h.of[k] = is
	return fell
}

// forget is for streams that begin anew.
func (h *heights) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.of)
}
