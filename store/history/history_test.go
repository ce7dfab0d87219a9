package history_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/history"
)

func TestParseReadsWhatEncodeWrote(t *testing.T) {
	want := history.History{
		Entries: []history.Entry{
			{ID: "b", Revision: 2, By: "a\n\"*> \u202e", ImpersonatedBy: "root", Response: history.Success},
			{ID: "a", Revision: 1, By: "jane", Response: history.Unknown},
		},
		Findings: []history.Finding{{Type: history.FindingMismatch, Revision: 1, Message: "x"}},
		Writers:  []string{"ivan"},
	}
	got, err := history.Parse(want.Encode())
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

func TestAnAbsentHistoryIsEmpty(t *testing.T) {
	got, err := history.Parse("")
	require.NoError(t, err)
	assert.Equal(t, history.History{}, got)
}

func TestABrokenHistoryIsAnErrorThatQuotesNothingOfIt(t *testing.T) {
	for _, annotation := range []string{"hunter2", `["hunter2"]`, `{"entries":"hunter2"}`} {
		_, err := history.Parse(annotation)
		require.Error(t, err)
		assert.NotContains(t, err.Error(), "hunter2")
	}
}
