package stream

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/nats-io/nats.go/jetstream"
)

// ErrNotFound is returned where a bucket has nothing under the key.
var ErrNotFound = errors.New("nothing under that key")

// ErrConflict is returned for a conditional write when the value is not at the expected revision.
var ErrConflict = errors.New("value is at another revision")

// A bucket is one of the key-value buckets beside the streams.
type bucket struct {
	stream *Stream
	name   string
	known  atomic.Pointer[keyValue] // as it was looked up last
}

type keyValue struct{ jetstream.KeyValue }

// bucketStream is the name under which JetStream keeps a bucket.
func bucketStream(name string) string { return "KV_" + name }

// get returns the value under the key and its revision, or ErrNotFound.
func (b *bucket) get(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	var entry jetstream.KeyValueEntry
	err = b.use(ctx, func(kv *keyValue) (err error) {
		entry, err = ask(ctx, func(ctx context.Context) (jetstream.KeyValueEntry, error) { return kv.Get(ctx, key) })
		return err
	})
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, 0, ErrNotFound
	}
	if err != nil {
		return nil, 0, err
	}
	return entry.Value(), entry.Revision(), nil
}

// put writes the value if the key is at the expected revision, 0 meaning that nothing is there, and returns the new
// revision; else ErrConflict, which may also say that the value is written and the answer to that was lost: read again.
// A bucket that has no room is ErrFull.
func (b *bucket) put(ctx context.Context, key string, value []byte, expectedRevision uint64) (revision uint64, err error) {
	err = typed(b.use(ctx, func(kv *keyValue) (err error) {
		revision, err = ask(ctx, func(ctx context.Context) (uint64, error) {
			if expectedRevision == 0 {
				return kv.Create(ctx, key, value)
			}
			return kv.Update(ctx, key, value, expectedRevision)
		})
		return err
	}))
	if errors.Is(err, ErrConflict) {
		pause(ctx, 0) // while a cluster replicates a write it refuses the next, and who reads finds neither
	}
	return revision, err
}

// use calls do with the bucket, which is looked up once, and again if it turns out to be gone.
func (b *bucket) use(ctx context.Context, do func(*keyValue) error) error {
	leave, err := b.stream.enter()
	if err != nil {
		return err
	}
	defer leave()
	if known := b.known.Load(); known != nil {
		if err := do(known); !isGone(err) {
			return err
		}
	}
	found, err := b.open(ctx)
	if err != nil {
		return err
	}
	return do(found)
}

// isGone reports whether an error says that nothing answers for the bucket.
func isGone(err error) bool {
	return errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrNoStreamResponse)
}

// open looks the bucket up, after creating it if it is missing and that is ours to do.
func (b *bucket) open(ctx context.Context) (*keyValue, error) {
	found, err := b.lookUp(ctx)
	if errors.Is(err, jetstream.ErrBucketNotFound) && !b.stream.options.Existing {
		if err = b.stream.ensure(ctx); err == nil {
			found, err = b.lookUp(ctx)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open the bucket %s: %w", b.name, err)
	}
	kv := &keyValue{found}
	b.known.Store(kv)
	return kv, nil
}

func (b *bucket) lookUp(ctx context.Context) (jetstream.KeyValue, error) {
	return ask(ctx, func(ctx context.Context) (jetstream.KeyValue, error) { return b.stream.js.KeyValue(ctx, b.name) })
}

// typed gives an error of a conditional write its type. A replicated bucket says "wrong last sequence" with another
// code than a single one.
func typed(err error) error {
	var api *jetstream.APIError
	switch {
	case errors.Is(err, jetstream.ErrKeyExists): // a wrong last sequence of a single server, by its code
		return ErrConflict
	case !errors.As(err, &api):
		return err
	case api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant:
		return ErrConflict
	case isFull(api):
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}
