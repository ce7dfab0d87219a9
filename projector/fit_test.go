package projector

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/history"
)

func TestAHistoryIsCutToTheRoomThatItsSecretHas(t *testing.T) {
	whole := history.History{
		Entries:  []history.Entry{{ID: hexID(2), Revision: 2, By: "jane"}, {ID: hexID(1), Revision: 1, By: "olga"}},
		Findings: []history.Finding{{Type: history.FindingConflict, Revision: 2, Message: strings.Repeat("m", 100)}},
		Writers:  []string{"ivan"},
	}
	without := func(entries int, messages bool) history.History {
		h := whole
		h.Entries = h.Entries[:entries:entries]
		if len(h.Entries) == 0 {
			h.Entries = nil
		}
		if !messages {
			h.Findings = []history.Finding{{Type: history.FindingConflict, Revision: 2}}
		}
		return h
	}
	f := func(room int, want history.History, wantDropped int) {
		t.Helper()
		others := map[string]string{"k": strings.Repeat("v", history.MaxAnnotationBytes-len(history.Annotation)-1-room), history.Annotation: "what stands there does not count"}
		annotation, dropped := fit(whole, others)
		require.LessOrEqual(t, len(annotation), room)
		got, err := history.Parse(annotation)
		require.NoError(t, err)
		assert.Equal(t, want, got)
		assert.Equal(t, wantDropped, dropped)
	}
	size := func(entries int, messages bool) int { return len(without(entries, messages).Encode()) }
	f(size(2, true), whole, 0)
	f(size(2, true)-1, without(1, true), 1)
	f(size(1, true), without(1, true), 1)
	f(size(1, true)-1, without(0, true), 2)
	f(size(0, true)-1, without(0, false), 3)
	f(size(0, false), without(0, false), 3)
	f(size(0, false)-1, history.History{}, 4)
	f(0, history.History{}, 4)
	assert.NotEmpty(t, whole.Findings[0].Message, "the history given stays as it was")

	annotation, dropped := fit(history.History{}, nil)
	assert.Empty(t, annotation)
	assert.Zero(t, dropped)
}
