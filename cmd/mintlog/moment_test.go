package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAMomentIsATimeADayOrADurationBeforeNow(t *testing.T) {
	now := time.Date(2026, 3, 31, 12, 0, 0, 0, time.UTC)
	f := func(text string, want time.Time) {
		t.Helper()
		var m moment
		require.NoError(t, m.Set(text))
		assert.True(t, want.Equal(m.from(now)), "%s is %s", text, m.from(now))
		assert.Equal(t, text, m.String())
	}
	f("90m", now.Add(-90*time.Minute))
	f("30d", now.Add(-30*24*time.Hour))
	f("1h30m", now.Add(-90*time.Minute))
	f("0s", now)
	f("2026-03-01", time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
	f("2026-03-01T12:00:00+02:00", time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC))
	f("2026-03-01T12:00:00.000001Z", time.Date(2026, 3, 1, 12, 0, 0, 1000, time.UTC))
	var unset moment
	assert.True(t, unset.from(now).IsZero())
	for _, wrong := range []string{"", "yesterday", "-1h", "30", "1.5h", "2026-13-01", "12:00", "99999999d"} {
		assert.Error(t, (&moment{}).Set(wrong), wrong)
	}
}
