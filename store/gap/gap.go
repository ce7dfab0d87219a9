// Package gap is a stretch of an audit log that is known to be missing: what ingest records when it finds one, what the
// view explains an operation without an event with, and what a replay closes.
package gap

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// A Gap is a stretch of the log of one source that nobody has read. Its bounds are times of the log itself, as events
// have them when they are written (stageTimestamp), and never those of a reader's clock where the log says better.
type Gap struct {
	// Source is where the events are missing, as events name it ("file:/var/log/audit/kube/audit.log").
	Source string `json:"source"`
	// Reason is why nobody has read them, in a few words for people ("rotated file is gone").
	Reason string `json:"reason"`

	// From and Until bound it: nothing of the log is missing outside. A zero From means that nothing is known of before;
	// a zero Until stands for FoundAt.
	From  time.Time `json:"from,omitzero"`
	Until time.Time `json:"until,omitzero"`

	Bytes   int64     `json:"bytes,omitempty"` // of the log that are lost; 0 if unknown
	FoundAt time.Time `json:"foundAt"`

	ClosedAt time.Time `json:"closedAt,omitzero"` // zero while it is open
}

// What of an entry's event lies how far from the entry, by the clocks of kube-apiserver and mint server: a mint server
// writes until 10 s after the end of the event at the latest, a request ends within kube-apiserver's deadline of 60 s,
// and clocks may lie 5 s apart.
const (
	eventBefore = 15 * time.Second
	eventAfter  = 65 * time.Second
)

// Bounds of the texts of a gap, in bytes.
const (
	maxSource = 1024
	maxReason = 256
)

// ErrInvalid is what no gap may be recorded as.
var ErrInvalid = errors.New("invalid gap")

// Open reports whether nothing has closed it.
func (g Gap) Open() bool { return g.ClosedAt.IsZero() }

// End is Until, or FoundAt where that is not known.
func (g Gap) End() time.Time {
	if g.Until.IsZero() {
		return g.FoundAt
	}
	return g.Until
}

// Identity is the same for a gap that is found again, after a crash, with the same beginning: it is one record then,
// whose end is the later one.
func (g Gap) Identity() string {
	beginning := "-"
	if !g.From.IsZero() {
		beginning = micro(g.From).Format(time.RFC3339Nano)
	}
	digest := sha256.Sum256(fmt.Appendf(nil, "%d:%s%s", len(g.Source), g.Source, beginning))
	return hex.EncodeToString(digest[:16])
}

// Explains reports whether the event of a ledger entry of that time can have been in the gap, open or closed.
func (g Gap) Explains(at time.Time) bool {
	return (g.From.IsZero() || !at.Before(g.From.Add(-eventAfter))) && !at.After(g.End().Add(eventBefore))
}

// Covers reports whether nothing of the other gap, of the same source, lies outside this one, and it is open if the
// other is.
func (g Gap) Covers(other Gap) bool {
	begins := g.From.IsZero() || !other.From.IsZero() && !other.From.Before(g.From)
	return g.Source == other.Source && begins && !other.End().After(g.End()) && (g.Open() || !other.Open())
}

// Window is which times of reception events that are missing can have; the beginning is zero where the gap's is. The
// times of reception of requests lie up to kube-apiserver's deadline before they are written.
func (g Gap) Window() (from, until time.Time) {
	if !g.From.IsZero() {
		from = g.From.Add(-eventAfter)
	}
	return from, g.End()
}

// Join is the gap that covers both, of the same source or not: open unless both are closed.
func (g Gap) Join(other Gap) Gap {
	joined := g
	if other.Source != g.Source {
		joined.Source = "several"
	}
	if g.From.IsZero() || other.From.IsZero() {
		joined.From = time.Time{}
	} else {
		joined.From = earlier(g.From, other.From)
	}
	joined.Until = later(g.End(), other.End())
	joined.Bytes = g.Bytes + other.Bytes
	joined.FoundAt = earlier(g.FoundAt, other.FoundAt)
	joined.ClosedAt = time.Time{}
	if !g.Open() && !other.Open() {
		joined.ClosedAt = later(g.ClosedAt, other.ClosedAt)
	}
	return joined
}

// FoundAgain is the record of a gap when it is found once more: as it was, if its end is no later; else with the later
// end, and open, for a replay that closed it knew nothing of that.
func (g Gap) FoundAgain(again Gap) Gap {
	if !again.End().After(g.End()) {
		return g
	}
	g.Until, g.ClosedAt = again.End(), time.Time{}
	g.Bytes = max(g.Bytes, again.Bytes)
	return g
}

// Encode is the gap as it is kept: its texts cut where they are long, its times to the microseconds of the log. A gap
// without a source or a time at which it was found, or that ends before it begins, is ErrInvalid.
func (g Gap) Encode() ([]byte, error) {
	switch {
	case g.Source == "":
		return nil, fmt.Errorf("%w: no source", ErrInvalid)
	case g.FoundAt.IsZero():
		return nil, fmt.Errorf("%w: no time at which it was found", ErrInvalid)
	case g.End().Before(g.From):
		return nil, fmt.Errorf("%w: it ends before it begins", ErrInvalid)
	case g.Bytes < 0:
		return nil, fmt.Errorf("%w: %d bytes", ErrInvalid, g.Bytes)
	}
	g.Source, g.Reason = cut(g.Source, maxSource), cut(g.Reason, maxReason)
	for _, t := range []*time.Time{&g.From, &g.Until, &g.FoundAt, &g.ClosedAt} {
		*t = micro(*t)
	}
	encoded, err := json.Marshal(g)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return encoded, nil
}

// Parse reads what Encode made.
func Parse(encoded []byte) (Gap, error) {
	var g Gap
	if err := json.Unmarshal(encoded, &g); err != nil {
		return Gap{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if _, err := g.Encode(); err != nil {
		return Gap{}, err
	}
	return g, nil
}

func micro(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC().Truncate(time.Microsecond)
}

func cut(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= limit {
		return s
	}
	for !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
