package archive

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/gap"
)

// gapsShown are the messages of the rows about gaps.
func (v *victoriaLogs) gapsShown(t assert.TestingT) []string {
	var shown []string
	assert.NoError(t, v.archive().show(v.t.Context()))
	err := v.archive().rows(v.t.Context(), `_time:10d _stream:{log_source="mintlog_gap"} | sort by (_time)`, func(r row) error {
		shown = append(shown, r["state"]+": "+r["_msg"])
		return nil
	})
	assert.NoError(t, err)
	return shown
}

func TestGapsAreToldOnceInTheArchiveAndAreNoEvents(t *testing.T) {
	t.Parallel()
	v, s := startVictoriaLogs(t), openStream(t, t.TempDir())
	g := gap.Gap{Source: "file:audit.log", Reason: "rotated file is gone", From: epoch, Until: epoch.Add(time.Minute), Bytes: 7, FoundAt: epoch.Add(2 * time.Minute)}
	old := gap.Gap{Source: "file:audit.log", Reason: "old", FoundAt: epoch.AddDate(-1, 0, 0)}
	require.NoError(t, s.RecordGap(t.Context(), g))
	require.NoError(t, s.RecordGap(t.Context(), old)) // not taken any more
	_, stop := startArchiver(t, ArchiverOptions{Archive: v.archive(), Stream: s})
	bounds := "from " + epoch.Format(time.RFC3339) + " until " + epoch.Add(time.Minute).Format(time.RFC3339)
	found := "open: the audit log of file:audit.log is missing " + bounds + ": rotated file is gone"
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Equal(c, []string{found}, v.gapsShown(c)) }, time.Minute, 100*time.Millisecond)
	stop()

	require.NoError(t, s.CloseGap(t.Context(), g, epoch.Add(3*time.Minute)))
	_, stop = startArchiver(t, ArchiverOptions{Archive: v.archive(), Stream: s}) // another, which knows nothing of the first
	both := []string{found, "closed: what was missing of the audit log of file:audit.log " + bounds + " was replayed"}
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Equal(c, both, v.gapsShown(c)) }, time.Minute, 100*time.Millisecond)
	stop()
	assert.Empty(t, query(t, v.archive(), Query{}))
	assert.Zero(t, v.rows())
}

func TestTheRowOfAGapHoldsWhatItsTextsAre(t *testing.T) {
	for _, r := range gapRows(gap.Gap{Source: strings.Repeat("\x00", 1024), Reason: strings.Repeat("\"", 256), FoundAt: epoch, ClosedAt: epoch}) {
		line, err := encodeRow(r)
		require.NoError(t, err)
		assert.Less(t, len(line), maxLine)
		assert.NotContains(t, r, "from")
		assert.NotContains(t, r, "bytes")
	}
}
