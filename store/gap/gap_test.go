package gap_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/gap"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// vanished is a gap of an hour, changed by change.
func vanished(change func(*gap.Gap)) gap.Gap {
	g := gap.Gap{
		Source: "file:audit.log", Reason: "rotated file is gone", From: noon, Until: noon.Add(time.Hour), Bytes: 100, FoundAt: noon.Add(2 * time.Hour),
	}
	if change != nil {
		change(&g)
	}
	return g
}

func TestAGapFoundAgainIsTheSameRecord(t *testing.T) {
	f := func(same bool, change func(*gap.Gap)) {
		t.Helper()
		assert.Equal(t, same, vanished(nil).Identity() == vanished(change).Identity())
	}
	f(true, nil)
	f(true, func(g *gap.Gap) { g.FoundAt, g.Until = g.FoundAt.Add(time.Hour), g.Until.Add(time.Minute) })
	f(true, func(g *gap.Gap) { g.Reason, g.Bytes, g.ClosedAt = "checkpoint does not meet its file", 0, noon })
	f(true, func(g *gap.Gap) { g.From = g.From.In(time.FixedZone("", 3600)).Add(999) }) // what the log's microseconds do not hold
	f(false, func(g *gap.Gap) { g.From = g.From.Add(time.Microsecond) })
	f(false, func(g *gap.Gap) { g.From = time.Time{} })
	f(false, func(g *gap.Gap) { g.Source += "x" })
}

func TestAGapExplainsTheEntriesWhoseEventsCanHaveBeenInIt(t *testing.T) {
	f := func(want bool, at time.Time, change func(*gap.Gap)) {
		t.Helper()
		assert.Equal(t, want, vanished(change).Explains(at), at)
	}
	f(true, noon, nil)
	f(true, noon.Add(time.Hour), nil)
	f(true, noon.Add(-65*time.Second), nil) // a request that ended, and was written, a minute after its commit
	f(false, noon.Add(-66*time.Second), nil)
	f(true, noon.Add(time.Hour+15*time.Second), nil) // a commit after the end of its event
	f(false, noon.Add(time.Hour+16*time.Second), nil)
	f(true, noon, func(g *gap.Gap) { g.ClosedAt = noon })

	unknown := func(g *gap.Gap) { g.From, g.Until = time.Time{}, time.Time{} }
	f(true, noon.AddDate(-1, 0, 0), unknown)
	f(true, noon.Add(2*time.Hour), unknown)
	f(false, noon.Add(3*time.Hour), unknown)
}

func TestTheWindowHoldsTheReceptionOfWhatIsMissing(t *testing.T) {
	from, until := vanished(nil).Window()
	assert.Equal(t, noon.Add(-65*time.Second), from)
	assert.Equal(t, noon.Add(time.Hour), until)
	from, until = vanished(func(g *gap.Gap) { g.From, g.Until = time.Time{}, time.Time{} }).Window()
	assert.Zero(t, from)
	assert.Equal(t, noon.Add(2*time.Hour), until)
}

func TestJoinedGapsCoverBothAndAreOpenIfOneIs(t *testing.T) {
	other := vanished(func(g *gap.Gap) {
		g.From, g.Until, g.FoundAt = noon.Add(2*time.Hour), noon.Add(3*time.Hour), noon.Add(4*time.Hour)
	})
	closed := vanished(func(g *gap.Gap) { g.ClosedAt = noon.Add(5 * time.Hour) })
	want := vanished(func(g *gap.Gap) { g.Until, g.Bytes = noon.Add(3*time.Hour), 200 })
	assert.Equal(t, want, vanished(nil).Join(other))
	assert.Equal(t, want, other.Join(vanished(nil)))
	assert.True(t, closed.Join(other).Open())
	assert.Equal(t, noon.Add(5*time.Hour), closed.Join(closed).ClosedAt)

	several := vanished(nil).Join(vanished(func(g *gap.Gap) { g.Source, g.From = "webhook:a", time.Time{} }))
	assert.Equal(t, "several", several.Source)
	assert.Zero(t, several.From)
}

func TestAClosedGapOpensAgainOnlyWhenItGrows(t *testing.T) {
	closed := vanished(func(g *gap.Gap) { g.ClosedAt = noon.Add(5 * time.Hour) })
	assert.Equal(t, closed, closed.FoundAgain(vanished(func(g *gap.Gap) { g.FoundAt = noon.Add(6 * time.Hour) })))
	grown := closed.FoundAgain(vanished(func(g *gap.Gap) { g.Until, g.Bytes = noon.Add(2*time.Hour), 300 }))
	assert.True(t, grown.Open())
	assert.Equal(t, noon.Add(2*time.Hour), grown.Until)
	assert.Equal(t, int64(300), grown.Bytes)
	assert.Equal(t, closed.FoundAt, grown.FoundAt)
}

func TestAGapSurvivesBeingKept(t *testing.T) {
	for _, g := range []gap.Gap{
		vanished(nil),
		vanished(func(g *gap.Gap) { g.ClosedAt = noon }),
		{Source: "webhook:cp-1", FoundAt: noon},
	} {
		encoded, err := g.Encode()
		require.NoError(t, err)
		parsed, err := gap.Parse(encoded)
		require.NoError(t, err)
		assert.Equal(t, g, parsed)
		assert.Equal(t, g.Identity(), parsed.Identity())
	}
}

func TestNoGapIsKeptThatSaysNothingOrTooMuch(t *testing.T) {
	f := func(want string, change func(*gap.Gap)) {
		t.Helper()
		_, err := vanished(change).Encode()
		assert.ErrorIs(t, err, gap.ErrInvalid)
		assert.ErrorContains(t, err, want)
	}
	f("no source", func(g *gap.Gap) { g.Source = "" })
	f("found", func(g *gap.Gap) { g.FoundAt = time.Time{} })
	f("ends before", func(g *gap.Gap) { g.Until = g.From.Add(-time.Second) })
	f("-1 bytes", func(g *gap.Gap) { g.Bytes = -1 })
	f("year", func(g *gap.Gap) { g.Until = time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC) })

	encoded, err := vanished(func(g *gap.Gap) {
		g.Source, g.Reason = strings.Repeat("é", 1<<20), "\xff"+strings.Repeat("x", 1<<20)
	}).Encode()
	require.NoError(t, err)
	assert.Less(t, len(encoded), 2048)

	for _, text := range []string{"", "null", "{", `{"source":"x"}`, `{"source":"x","foundAt":7}`} {
		_, err := gap.Parse([]byte(text))
		assert.ErrorIs(t, err, gap.ErrInvalid, text)
	}
}

// FuzzParse holds that what is read can be kept again and reads the same.
func FuzzParse(f *testing.F) {
	encoded, err := vanished(nil).Encode()
	require.NoError(f, err)
	f.Add(encoded)
	f.Add([]byte(`{"source":"x","foundAt":"2026-03-01T12:00:00Z"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		g, err := gap.Parse(text)
		if err != nil {
			return
		}
		encoded, err := g.Encode()
		require.NoError(t, err)
		again, err := gap.Parse(encoded)
		require.NoError(t, err)
		twice, err := again.Encode()
		require.NoError(t, err)
		require.Equal(t, string(encoded), string(twice))
	})
}
