package stream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/mintlog/mintlog/store/gap"
)

const (
	gapsBucket = "mintlog_gaps"
	gapsKey    = "gaps"  // all of them stand under one key, so that each change of the list is one conditional write
	gapsBytes  = 2 << 20 // of the bucket, which holds the list twice while it is replaced

	// Bounds of the list. Beyond them the closed gaps go that were found first, then open ones that lie next to each
	// other become one: what is missing is still covered.
	maxGaps      = 512
	maxGapsBytes = 256 << 10

	// gapsInterval is how often FollowGaps looks.
	gapsInterval = 2 * time.Second
	// gapsTries bounds how often a change of the list is tried again that others overtook.
	gapsTries = 100
)

// ErrNoSuchGap is returned by CloseGap for a gap that is not there as it was seen.
var ErrNoSuchGap = errors.New("no such gap, or it has grown")

func (s *Stream) gapsConfig() jetstream.StreamConfig {
	c := s.bucketConfig(gapsBucket)
	c.Description = "the stretches of audit logs that are known to be missing"
	c.MaxBytes = gapsBytes
	return c
}

// Gaps returns the gaps that are known, open and closed, those found last first.
func (s *Stream) Gaps(ctx context.Context) ([]gap.Gap, error) {
	list, _, err := s.readGaps(ctx)
	if err != nil {
		return nil, err
	}
	slices.Reverse(list)
	return list, nil
}

// RecordGap returns nil when the gap is durably recorded. A gap that was recorded before is recorded once.
func (s *Stream) RecordGap(ctx context.Context, g gap.Gap) error {
	encoded, err := g.Encode()
	if err != nil {
		return fmt.Errorf("record a gap: %w", err)
	}
	if g, err = gap.Parse(encoded); err != nil {
		return fmt.Errorf("record a gap: %w", err)
	}
	isNew := false // once it was not there, what is there later may be our own write, whose answer was lost
	err = s.changeGaps(ctx, func(list []gap.Gap) ([]gap.Gap, error) {
		for i := range list {
			if list[i].Identity() == g.Identity() {
				list[i] = list[i].FoundAgain(g)
				return list, nil
			}
			if list[i].Covers(g) {
				return list, nil
			}
		}
		isNew = true
		return append(list, g), nil
	})
	if err != nil {
		return fmt.Errorf("record a gap of %s: %w", g.Source, err)
	}
	if isNew {
		s.metrics.gapsFound.Inc()
		bounds := []any{"source", g.Source, "reason", g.Reason, "until", g.End()}
		if !g.From.IsZero() {
			bounds = append(bounds, "from", g.From)
		}
		s.log.Error("part of an audit log is missing; a replay of the archive may bring what was in it", bounds...)
	}
	return nil
}

// CloseGap marks a gap as closed, provided that it is there and as it was seen; else ErrNoSuchGap. A gap that is closed
// already stays as it is.
func (s *Stream) CloseGap(ctx context.Context, g gap.Gap, at time.Time) error {
	err := s.changeGaps(ctx, func(list []gap.Gap) ([]gap.Gap, error) {
		i := slices.IndexFunc(list, func(known gap.Gap) bool { return known.Identity() == g.Identity() })
		switch {
		case i < 0 || !list[i].End().Equal(g.End()):
			return nil, ErrNoSuchGap
		case list[i].Open():
			list[i].ClosedAt = at.UTC().Truncate(time.Microsecond)
		}
		return list, nil
	})
	if err != nil {
		return fmt.Errorf("close a gap of %s: %w", g.Source, err)
	}
	return nil
}

// FollowGaps calls changed with the gaps that are known, as Gaps has them, first as they are and then within seconds of
// each change, until ctx is done; it then returns nil. While the stream does not answer what was known last holds.
func (s *Stream) FollowGaps(ctx context.Context, changed func([]gap.Gap)) error {
	seen, reported := uint64(0), false
	for first := true; ctx.Err() == nil; {
		list, revision, err := s.readGaps(ctx)
		switch {
		case errors.Is(err, ErrClosed):
			return nil
		case err != nil:
			if ctx.Err() == nil && !reported {
				s.log.Warn("reading the gaps; what was known last holds", "error", err)
				reported = true
			}
		case first || revision != seen:
			slices.Reverse(list)
			changed(list)
			first, seen, reported = false, revision, false
		default:
			reported = false
		}
		select {
		case <-time.After(gapsInterval):
		case <-ctx.Done():
		}
	}
	return nil
}

// readGaps returns the gaps as they are kept, those found first first, and the list's revision. A list that cannot be
// read counts as none: the next gap replaces it.
func (s *Stream) readGaps(ctx context.Context) ([]gap.Gap, uint64, error) {
	value, revision, err := s.gaps.get(ctx, gapsKey)
	if errors.Is(err, ErrNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read the gaps: %w", err)
	}
	var encoded []json.RawMessage
	if err := json.Unmarshal(value, &encoded); err != nil {
		s.log.Error("the list of gaps is not readable and will be replaced", "bytes", len(value))
		return nil, revision, nil
	}
	list := make([]gap.Gap, 0, len(encoded))
	for _, e := range encoded {
		g, err := gap.Parse(e)
		if err != nil {
			s.log.Error("a gap is not readable and will be forgotten", "error", err)
			continue
		}
		list = append(list, g)
	}
	return list, revision, nil
}

// changeGaps replaces the list by what change makes of it, again and again until nobody else came between.
func (s *Stream) changeGaps(ctx context.Context, change func([]gap.Gap) ([]gap.Gap, error)) error {
	for attempt := 0; ; attempt++ {
		list, revision, err := s.readGaps(ctx)
		if err != nil {
			return err
		}
		before := slices.Clone(list)
		if list, err = change(list); err != nil {
			return err
		}
		if slices.Equal(before, list) {
			return nil
		}
		value, err := encodeGaps(list)
		if err != nil {
			return err
		}
		_, err = s.gaps.put(ctx, gapsKey, value, revision)
		if !errors.Is(err, ErrConflict) || attempt >= gapsTries {
			return err
		}
	}
}

// An encodedGap is a gap as it is kept.
type encodedGap struct {
	gap.Gap
	text json.RawMessage
}

func encode(g gap.Gap) (encodedGap, error) {
	text, err := g.Encode()
	return encodedGap{g, text}, err
}

// encodeGaps is the value of a list of gaps, within its bounds.
func encodeGaps(list []gap.Gap) ([]byte, error) {
	kept, bytes := make([]encodedGap, len(list)), 0
	var err error
	for i, g := range list {
		if kept[i], err = encode(g); err != nil {
			return nil, err
		}
		bytes += len(kept[i].text) + 1
	}
	for len(kept) > maxGaps || bytes > maxGapsBytes {
		if kept, err = fewer(kept); err != nil {
			return nil, err
		}
		bytes = 0
		for _, g := range kept {
			bytes += len(g.text) + 1
		}
	}
	slices.SortStableFunc(kept, func(a, b encodedGap) int { return a.FoundAt.Compare(b.FoundAt) })
	texts := make([]json.RawMessage, len(kept))
	for i, g := range kept {
		texts[i] = g.text
	}
	return json.Marshal(texts)
}

// fewer is a list without one gap: without the closed one that was found first, or else with two open ones as one, those
// of the same source, if there are such, that lie closest.
func fewer(list []encodedGap) ([]encodedGap, error) {
	oldest := -1
	for i, g := range list {
		if !g.Open() && (oldest < 0 || g.FoundAt.Before(list[oldest].FoundAt)) {
			oldest = i
		}
	}
	if oldest >= 0 {
		return slices.Delete(list, oldest, oldest+1), nil
	}
	slices.SortStableFunc(list, func(a, b encodedGap) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), a.From.Compare(b.From), a.FoundAt.Compare(b.FoundAt))
	})
	closest, distance := 0, time.Duration(-1)
	for i := range len(list) - 1 {
		if d := list[i+1].From.Sub(list[i].End()); list[i].Source == list[i+1].Source && (distance < 0 || d < distance) {
			closest, distance = i, max(d, 0)
		}
	}
	var err error
	if list[closest], err = encode(list[closest].Join(list[closest+1].Gap)); err != nil {
		return nil, err
	}
	return slices.Delete(list, closest+1, closest+2), nil
}
