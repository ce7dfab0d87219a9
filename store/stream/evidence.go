package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const evidenceBucket = "mintlog_evidence"

var evidenceStream = bucketStream(evidenceBucket)

// Evidence is a bucket of values by key, durable like the streams. Keys are hex digests; a value is a list of events,
// up to 512 KiB. What was not written again for Options.EvidenceAge goes.
type Evidence struct{ bucket *bucket }

// Evidence is the bucket beside the streams.
func (s *Stream) Evidence() *Evidence { return &Evidence{&s.evidence} }

// Get returns the value under the key and its revision, or ErrNotFound.
func (e *Evidence) Get(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	value, revision, err = e.bucket.get(ctx, key)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, 0, fmt.Errorf("read evidence: %w", err)
	}
	return value, revision, err
}

// Put writes the value if the key is at the expected revision, 0 meaning that nothing is there, and returns the new
// revision; else ErrConflict, which may also say that the value is written and the answer to that was lost: read again.
// A bucket that has no room is ErrFull.
func (e *Evidence) Put(ctx context.Context, key string, value []byte, expectedRevision uint64) (revision uint64, err error) {
	if revision, err = e.bucket.put(ctx, key, value, expectedRevision); err != nil {
		return 0, fmt.Errorf("write evidence: %w", err)
	}
	return revision, nil
}

func (s *Stream) evidenceConfig() jetstream.StreamConfig {
	c := s.bucketConfig(evidenceBucket)
	c.Description = "the audit events that histories rest on, by digest of account and entry"
	c.MaxBytes = s.options.EvidenceBytes
	return c
}

// bucketConfig is that of a key-value bucket but for AllowDirect, which would let any replica answer, also one that
// lags behind: what was just kept would be missing from what is read next.
func (s *Stream) bucketConfig(name string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              bucketStream(name),
		Subjects:          []string{"$KV." + name + ".>"},
		Storage:           jetstream.FileStorage,
		Replicas:          max(s.options.Replicas, 1),
		MaxMsgsPerSubject: 1,
		MaxAge:            s.options.EvidenceAge,
		Discard:           jetstream.DiscardNew,
		Duplicates:        min(2*time.Minute, s.options.EvidenceAge),
		DenyDelete:        true,
		DenyPurge:         true, // which a message that rolls the others up would be, too
		AllowDirect:       false,
	}
}
