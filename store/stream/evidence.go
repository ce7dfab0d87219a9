package stream

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// ErrNotFound is returned by Evidence.Get when the bucket has nothing under the key.
var ErrNotFound = errors.New("no evidence under that key")

// ErrConflict is returned by Evidence.Put and Delete when the value is not at the expected revision.
var ErrConflict = errors.New("evidence is at another revision")

const evidenceBucket = "mintlog_evidence"

// Evidence is a bucket of values by key, durable like the streams. Keys are hex digests; a value is at most an event.
type Evidence struct{ stream *Stream }

// Evidence is the bucket beside the streams.
func (s *Stream) Evidence() *Evidence { return &Evidence{s} }

// Get returns the value under the key and its revision, or ErrNotFound.
func (e *Evidence) Get(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	bucket, leave, err := e.open(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer leave()
	entry, err := bucket.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, 0, ErrNotFound
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read evidence: %w", err)
	}
	return entry.Value(), entry.Revision(), nil
}

// Put writes the value if the key is at the expected revision, 0 meaning that nothing is there, and returns the new
// revision; else ErrConflict.
func (e *Evidence) Put(ctx context.Context, key string, value []byte, expectedRevision uint64) (revision uint64, err error) {
	bucket, leave, err := e.open(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	if expectedRevision == 0 {
		revision, err = bucket.Create(ctx, key, value)
	} else {
		revision, err = bucket.Update(ctx, key, value, expectedRevision)
	}
	if err != nil {
		return 0, typed("write evidence", err)
	}
	return revision, nil
}

// Delete takes the value away if the key is at the expected revision; else ErrConflict.
func (e *Evidence) Delete(ctx context.Context, key string, expectedRevision uint64) error {
	bucket, leave, err := e.open(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if err := bucket.Purge(ctx, key, jetstream.LastRevision(expectedRevision)); err != nil {
		return typed("delete evidence", err)
	}
	return nil
}

func (e *Evidence) open(ctx context.Context) (bucket jetstream.KeyValue, leave func(), err error) {
	leave, err = e.stream.enter()
	if err != nil {
		return nil, nil, err
	}
	bucket, err = e.stream.js.KeyValue(ctx, evidenceBucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		if err = e.stream.ensure(ctx); err == nil {
			bucket, err = e.stream.js.KeyValue(ctx, evidenceBucket)
		}
	}
	if err != nil {
		leave()
		return nil, nil, fmt.Errorf("open the evidence bucket: %w", err)
	}
	return bucket, leave, nil
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

func (s *Stream) ensureEvidence(ctx context.Context) error {
	_, err := s.js.KeyValue(ctx, evidenceBucket)
	if err == nil {
		return nil
	}
	if !errors.Is(err, jetstream.ErrBucketNotFound) {
		return fmt.Errorf("look up the evidence bucket: %w", err)
	}
	if s.created {
		s.lost(evidenceBucket)
	}
	_, err = s.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket:      evidenceBucket,
		Description: "the audit events that matched ledger entries, by digest of the entry",
		Storage:     jetstream.FileStorage,
		History:     1,
		MaxBytes:    evidenceBytes,
		Replicas:    max(s.options.Replicas, 1),
	})
	if err != nil && !errors.Is(err, jetstream.ErrBucketExists) {
		return fmt.Errorf("create the evidence bucket: %w", err)
	}
	return nil
}
