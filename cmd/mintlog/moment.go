package main

import (
	"fmt"
	"time"

	"github.com/prometheus/common/model"
)

// A moment is a flag for a point in time: a time as RFC 3339 has it, a day of UTC, or a duration before now ("90m",
// "30d").
type moment struct {
	text string
	ago  time.Duration
	at   time.Time
}

// Set reads what stands behind the flag.
func (m *moment) Set(text string) error {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if at, err := time.Parse(layout, text); err == nil {
			*m = moment{text: text, at: at}
			return nil
		}
	}
	ago, err := model.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("it is a duration such as 90m or 30d, a day such as 2026-03-01, or a time such as 2026-03-01T12:00:00Z")
	}
	*m = moment{text: text, ago: time.Duration(ago)}
	return nil
}

// String is what was set.
func (m *moment) String() string { return m.text }

// Type is what the flag's help calls it.
func (m *moment) Type() string { return "time" }

// from is the point in time, seen from now; the zero time if nothing was set.
func (m *moment) from(now time.Time) time.Time {
	if m.ago > 0 || m.text != "" && m.at.IsZero() {
		return now.Add(-m.ago)
	}
	return m.at
}
