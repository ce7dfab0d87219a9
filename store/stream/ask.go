package stream

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// requestTimeout is how long to wait for an answer.
	requestTimeout = 10 * time.Second
	// askInterval is after how long without an answer a question is put once more.
	askInterval = time.Second
)

// ask puts a question that may be answered twice, once more each askInterval, and returns the first answer. What reaches a
// server while it stops, or a cluster while it elects a leader, is lost and never answered; a server that is slow answers
// what it was asked first.
func ask[T any](ctx context.Context, question func(context.Context) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answers := make(chan answer)
	ticker := time.NewTicker(askInterval)
	defer ticker.Stop()
	for {
		go func() {
			value, err := question(ctx)
			select {
			case answers <- answer{value, err}:
			case <-ctx.Done():
			}
		}()
		select {
		case first := <-answers:
			return first.value, first.err
		case <-ctx.Done():
			var none T
			return none, ctx.Err()
		case <-ticker.C:
		}
	}
}

func (s *Stream) lookUpStream(ctx context.Context, name string) (jetstream.Stream, error) {
	return ask(ctx, func(ctx context.Context) (jetstream.Stream, error) { return s.js.Stream(ctx, name) })
}

func (s *Stream) lookUpConsumer(ctx context.Context, consumer Consumer) (jetstream.Consumer, error) {
	return ask(ctx, func(ctx context.Context) (jetstream.Consumer, error) {
		return s.js.Consumer(ctx, streamNames[consumerKinds[consumer]], string(consumer))
	})
}
