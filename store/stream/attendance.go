package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

const (
	attendanceKey = "attendance" // in the bucket of gaps

	// Bounds of the senders that are remembered: callers choose their names.
	maxSenders = 64
	senderAge  = 30 * 24 * time.Hour
)

// An Attendance is when somebody was last there to receive audit events, and from whom they came.
type Attendance struct {
	At      time.Time            `json:"at"`
	Senders map[string]time.Time `json:"senders,omitempty"` // when each last sent something
}

// Attendance is what was noted last, by whichever process; zero if nothing was.
func (s *Stream) Attendance(ctx context.Context) (Attendance, error) {
	noted, _, err := s.readAttendance(ctx)
	return noted, err
}

// Attend notes that somebody is there to receive audit events now, and when senders sent something. A sender of which
// nothing came for 30 days is forgotten.
func (s *Stream) Attend(ctx context.Context, now time.Time, senders map[string]time.Time) error {
	for attempt := 0; ; attempt++ {
		before, revision, err := s.readAttendance(ctx)
		if err != nil {
			return err
		}
		value, err := json.Marshal(before.with(now, senders))
		if err != nil {
			return fmt.Errorf("encode the attendance: %w", err)
		}
		if _, err = s.gaps.put(ctx, attendanceKey, value, revision); err == nil {
			return nil
		}
		if !errors.Is(err, ErrConflict) || attempt >= gapsTries {
			return fmt.Errorf("note the attendance: %w", err)
		}
	}
}

func (s *Stream) readAttendance(ctx context.Context) (noted Attendance, revision uint64, err error) {
	value, revision, err := s.gaps.get(ctx, attendanceKey)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return Attendance{}, 0, fmt.Errorf("read the attendance: %w", err)
	}
	if len(value) > 0 && json.Unmarshal(value, &noted) != nil {
		s.log.Error("the attendance is not readable and will be replaced", "bytes", len(value))
		noted = Attendance{}
	}
	return noted, revision, nil
}

func (a Attendance) with(now time.Time, senders map[string]time.Time) Attendance {
	next := Attendance{At: later(a.At, now), Senders: maps.Clone(a.Senders)}
	if next.Senders == nil {
		next.Senders = map[string]time.Time{}
	}
	for name, at := range senders {
		next.Senders[name] = later(next.Senders[name], at)
	}
	maps.DeleteFunc(next.Senders, func(_ string, at time.Time) bool { return next.At.Sub(at) > senderAge })
	for len(next.Senders) > maxSenders {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(next.Senders)), func(x, y string) int {
			return next.Senders[x].Compare(next.Senders[y])
		})
		delete(next.Senders, oldest)
	}
	return next
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
