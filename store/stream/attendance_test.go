package stream

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWhoAttendsLearnsWhenSomebodyWasLastThereAndForWhom(t *testing.T) {
	o := testOptions(t)
	s := open(t, o)
	attend := func(now time.Time, senders map[string]time.Time) Attendance {
		t.Helper()
		before, err := s.Attendance(t.Context())
		require.NoError(t, err)
		require.NoError(t, s.Attend(t.Context(), now, senders))
		return before
	}
	first := time.Date(2026, 8, 21, 10, 0, 0, 0, time.UTC)
	assert.Equal(t, Attendance{}, attend(first, map[string]time.Time{"cp-1": first}))
	require.NoError(t, s.Close())
	o.Registerer = nil
	s = open(t, o)
	second := first.Add(time.Hour)
	before := attend(second, map[string]time.Time{"cp-2": second})
	assert.True(t, before.At.Equal(first))
	assert.Len(t, before.Senders, 1)
	before = attend(first, map[string]time.Time{"cp-2": first}) // by a process whose clock is late
	assert.True(t, before.At.Equal(second))
	before = attend(first.Add(senderAge+time.Minute), nil)
	assert.True(t, before.At.Equal(second))
	assert.True(t, before.Senders["cp-2"].Equal(second))
	before = attend(first.Add(senderAge+time.Minute), nil)
	assert.Len(t, before.Senders, 1, "one was silent for too long")

	many := map[string]time.Time{}
	for n := range 2 * maxSenders {
		many[fmt.Sprint("cp-", n)] = second.Add(time.Duration(n) * time.Second)
	}
	attend(second, many)
	before = attend(second, nil)
	assert.Len(t, before.Senders, maxSenders)
	assert.Contains(t, before.Senders, fmt.Sprint("cp-", 2*maxSenders-1))

	_, revision, err := s.gaps.get(t.Context(), attendanceKey)
	require.NoError(t, err)
	_, err = s.gaps.put(t.Context(), attendanceKey, []byte("{"), revision)
	require.NoError(t, err)
	assert.Equal(t, Attendance{}, attend(second, nil))
	assert.True(t, attend(second, nil).At.Equal(second))
	list, err := s.Gaps(t.Context())
	require.NoError(t, err)
	assert.Empty(t, list, "which stands beside it")
}
