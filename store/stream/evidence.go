package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// ErrNotFound is returned by Evidence.Get when the bucket has nothing under the key.
var ErrNotFound = errors.New("no evidence under that key")

// ErrConflict is returned by Evidence.Put when the value is not at the expected revision.
var ErrConflict = errors.New("evidence is at another revision")

const (
	evidenceBucket = "mintlog_evidence"
	evidenceStream = "KV_" + evidenceBucket // under which JetStream keeps it
)

// Evidence is a bucket of values by key, durable like the streams. Keys are hex digests; a value is a list of events,
// up to 512 KiB. What was not written again for Options.EvidenceAge goes.
type Evidence struct{ stream *Stream }

// Evidence is the bucket beside the streams.
func (s *Stream) Evidence() *Evidence { return &Evidence{s} }

// A bucket is the evidence bucket as it was looked up.
type bucket struct{ jetstream.KeyValue }

// Get returns the value under the key and its revision, or ErrNotFound.
func (e *Evidence) Get(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	var entry jetstream.KeyValueEntry
	err = e.use(ctx, func(b *bucket) (err error) {
		entry, err = b.Get(ctx, key)
		return err
	})
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, 0, ErrNotFound
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read evidence: %w", err)
	}
	return entry.Value(), entry.Revision(), nil
}

// Put writes the value if the key is at the expected revision, 0 meaning that nothing is there, and returns the new
// revision; else ErrConflict. A bucket that has no room is ErrFull.
func (e *Evidence) Put(ctx context.Context, key string, value []byte, expectedRevision uint64) (revision uint64, err error) {
	err = e.use(ctx, func(b *bucket) (err error) {
		if expectedRevision == 0 {
			revision, err = b.Create(ctx, key, value)
		} else {
			revision, err = b.Update(ctx, key, value, expectedRevision)
		}
		return err
	})
	if err != nil {
		return 0, typed("write evidence", err)
	}
	return revision, nil
}

// use calls do with the bucket, which is looked up once, and again if it turns out to be gone.
func (e *Evidence) use(ctx context.Context, do func(*bucket) error) error {
	leave, err := e.stream.enter()
	if err != nil {
		return err
	}
	defer leave()
	if known := e.stream.bucket.Load(); known != nil {
		if err := do(known); !isGone(err) {
			return err
		}
	}
	found, err := e.stream.openBucket(ctx)
	if err != nil {
		return err
	}
	return do(found)
}

// isGone reports whether an error says that nothing answers for the bucket.
func isGone(err error) bool {
	return errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrNoStreamResponse)
}

// openBucket looks the bucket up, after creating it if it is missing.
func (s *Stream) openBucket(ctx context.Context) (*bucket, error) {
	found, err := s.js.KeyValue(ctx, evidenceBucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		if err = s.ensure(ctx); err == nil {
			found, err = s.js.KeyValue(ctx, evidenceBucket)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open the evidence bucket: %w", err)
	}
	b := &bucket{found}
	s.bucket.Store(b)
	return b, nil
}

// typed gives an error of a conditional write its type. A replicated bucket says "wrong last sequence" with another
// code than a single one.
func typed(doing string, err error) error {
	var api *jetstream.APIError
	conflict := errors.Is(err, jetstream.ErrKeyExists)
	if errors.As(err, &api) {
		conflict = conflict || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
			api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant
		if isFull(api) {
			return fmt.Errorf("%s: %w: %w", doing, ErrFull, err)
		}
	}
	if conflict {
		return fmt.Errorf("%s: %w", doing, ErrConflict)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// evidenceConfig is that of a key-value bucket but for AllowDirect, which would let any replica answer, also one that
// lags behind: what was just kept would be missing from the next fold.
func (s *Stream) evidenceConfig() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              evidenceStream,
		Description:       "the audit events that histories rest on, by digest of account and entry",
		Subjects:          []string{"$KV." + evidenceBucket + ".>"},
		Storage:           jetstream.FileStorage,
		Replicas:          max(s.options.Replicas, 1),
		MaxMsgsPerSubject: 1,
		MaxBytes:          s.options.EvidenceBytes,
		MaxAge:            s.options.EvidenceAge,
		Discard:           jetstream.DiscardNew,
		Duplicates:        min(2*time.Minute, s.options.EvidenceAge),
		AllowRollup:       true,
		DenyDelete:        true,
		AllowDirect:       false,
	}
}
