// Package ingest makes events out of the bytes of an audit log: it finds the lines that could be ours, decodes them,
// and matches them on the decoded object. Where the bytes come from, and what becomes of the events, is for its
// subpackages, one for each kind of source.
//
// Three rules hold for every source. Nothing that is ours is lost before a Publisher has acknowledged it: a source
// moves no checkpoint and answers no request before that. What a log holds is hostile until it is decoded: most of an
// event is the client's to choose. And a line that cannot be used is counted with a reason, and never stops the rest.
package ingest

import (
	"context"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/gap"
)

// A Publisher stores events durably.
type Publisher interface {
	// Publish returns nil only when every event is durably stored. After an error some of them may be: whoever calls
	// it publishes them again, and the events' identities tell the repetition.
	Publish(ctx context.Context, events []event.Event) error
}

// A GapRecorder keeps what is known to be missing of a log.
type GapRecorder interface {
	// RecordGap returns nil only when the gap is durably kept. After an error it may be: whoever calls it records it
	// again, and the gap's identity tells the repetition. What is gap.ErrInvalid never will be kept.
	RecordGap(ctx context.Context, g gap.Gap) error
}

// Source is what an event's Source says: the kind of source ("file", "webhook") and which of them.
func Source(kind, name string) string { return kind + ":" + name }
