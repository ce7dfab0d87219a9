package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/ledger"
)

// A StreamState is how one of the streams or buckets stands.
type StreamState struct {
	Name            string
	Missing         bool
	Messages, Bytes uint64
	MaxBytes        int64 // 0 or less: no bound
	// Discards tells that the oldest go when it is full; else nothing more is taken.
	Discards         bool
	Replicas         int // that are configured
	Current, Offline int // of its replicas; both 0 outside of a cluster
}

// A ConsumerState is how far a reader of a stream has come.
type ConsumerState struct {
	Name      Consumer
	Missing   bool
	Pending   uint64 // not handed out yet
	Unsettled int    // handed out and not acknowledged
	Handled   uint64 // how far everything is acknowledged, as a sequence of the stream
	Delivered uint64 // deliveries until now, repeated ones included
	Readers   int    // requests that wait for messages
}

// Inspect looks at streams, buckets and consumers, and changes nothing.
func (s *Stream) Inspect(ctx context.Context) ([]StreamState, []ConsumerState, error) {
	leave, err := s.enter()
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	var streams []StreamState
	for _, name := range []string{streamNames[events], streamNames[intents], streamNames[attempts], s.evidenceConfig().Name, s.gapsConfig().Name} {
		state, err := s.inspectStream(ctx, name)
		if err != nil {
			return nil, nil, fmt.Errorf("look at the stream %s: %w", name, err)
		}
		streams = append(streams, state)
	}
	var consumers []ConsumerState
	for _, name := range slices.Sorted(maps.Keys(consumerKinds)) {
		state := ConsumerState{Name: name}
		c, err := s.lookUpConsumer(ctx, name)
		switch {
		case errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound):
			state.Missing = true
		case err != nil:
			return nil, nil, fmt.Errorf("look at the consumer %s: %w", name, err)
		default:
			is := c.CachedInfo()
			state.Pending, state.Unsettled, state.Readers = is.NumPending, is.NumAckPending, is.NumWaiting
			state.Handled, state.Delivered = is.AckFloor.Stream, is.Delivered.Consumer
		}
		consumers = append(consumers, state)
	}
	return streams, consumers, nil
}

func (s *Stream) inspectStream(ctx context.Context, name string) (StreamState, error) {
	state := StreamState{Name: name}
	is, err := s.lookUpStream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		state.Missing = true
		return state, nil
	}
	if err != nil {
		return state, err
	}
	info := is.CachedInfo()
	state.Messages, state.Bytes, state.MaxBytes = info.State.Msgs, info.State.Bytes, info.Config.MaxBytes
	state.Discards, state.Replicas = info.Config.Discard == jetstream.DiscardOld, info.Config.Replicas
	if info.Cluster == nil {
		return state, nil
	}
	if info.Cluster.Leader != "" {
		state.Current++
	}
	for _, replica := range info.Cluster.Replicas {
		if replica.Offline {
			state.Offline++
		} else if replica.Current {
			state.Current++
		}
	}
	return state, nil
}

// LastRefused are the newest events about an operation on a credential that changed nothing, at their reception and at
// their end: as long as nobody else asked for the same, those of the newest dry run. Nothing is consumed.
func (s *Stream) LastRefused(ctx context.Context, namespace, credential string, operation ledger.Operation) ([]event.Event, error) {
	leave, err := s.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	var found []event.Event
	for _, k := range []kind{intents, attempts} {
		is, err := s.lookUpStream(ctx, streamNames[k])
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look at the stream %s: %w", streamNames[k], err)
		}
		subject := subjectRoot + string(k) + "." + escape(namespace) + "." + escape(credential) + "." + strings.ToLower(string(operation))
		message, err := is.GetLastMsgForSubject(ctx, subject)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the stream %s: %w", streamNames[k], err)
		}
		var e event.Event
		if err := json.Unmarshal(message.Data, &e); err != nil {
			return nil, fmt.Errorf("read the stream %s: %w", streamNames[k], err)
		}
		found = append(found, e)
	}
	return found, nil
}
