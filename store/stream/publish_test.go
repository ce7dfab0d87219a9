package stream

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/event"
)

func TestAnEventPublishedTwiceIsAcknowledgedAndStoredOnce(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	require.NoError(t, s.Publish(t.Context(), mints(0, 2)))
	require.NoError(t, s.Publish(t.Context(), mints(0, 2)))
	assert.Len(t, drain(t, s, ProjectorEvents), 2)
}

func TestTwoEventsOfOneAuditIDAreBothStored(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	second := mintEvent(1, 201)
	second.User.Username = "ivan"
	require.NoError(t, s.Publish(t.Context(), []event.Event{mintEvent(1, 201), second}))
	assert.Len(t, drain(t, s, ProjectorEvents), 2)
}

func TestAFullStreamRefusesWithErrFullKeepsWhatItHasAndTakesMoreOnceThereIsRoom(t *testing.T) {
	t.Parallel()
	o := testOptions(t)
	o.MaxBytes = 20_000
	s := open(t, o)
	all := mints(0, 200)
	require.ErrorIs(t, s.Publish(t.Context(), all), ErrFull)
	assert.Positive(t, testutil.ToFloat64(s.metrics.full))
	kept := drain(t, s, ProjectorEvents)
	require.NotEmpty(t, kept)
	assert.Equal(t, identities(all[:len(kept)]), identities(kept))

	seen := identities(kept)
	for range 50 {
		drain(t, s, ArchiverEvents)
		require.Eventually(t, func() bool { return stored(t, s, events) == 0 }, time.Minute, time.Millisecond) // no room comes meanwhile
		err := s.Publish(t.Context(), all[len(seen):])
		seen = append(seen, identities(drain(t, s, ProjectorEvents))...)
		if err == nil {
			break
		}
		require.ErrorIs(t, err, ErrFull)
	}
	assert.Equal(t, identities(all), seen)
}

func TestRefusedAttemptsPushOutTheOldestOfTheirKindAndNoEvent(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	c := s.streamConfigs()[2]
	c.MaxBytes = 20_000
	_, err := s.js.UpdateStream(t.Context(), c)
	require.NoError(t, err)
	require.NoError(t, s.Publish(t.Context(), mints(0, 3)))
	for i := range 100 {
		require.NoError(t, s.Publish(t.Context(), []event.Event{mintEvent(i, 403)}))
	}
	left := drain(t, s, ArchiverAttempts)
	assert.Less(t, len(left), 100)
	assert.Equal(t, identity(mintEvent(99, 403)), left[len(left)-1].Identity())
	assert.Len(t, drain(t, s, ProjectorEvents), 3)
}

func TestABurstOfRefusedAttemptsDelaysNoEvent(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	var list []event.Event
	for i := range 2000 {
		list = append(list, mintEvent(i, 403))
	}
	require.NoError(t, s.Publish(t.Context(), append(list, mintEvent(2000, 201), intent(2001))))
	storedAt := func(k kind, sequence uint64) time.Time {
		stream, err := s.js.Stream(t.Context(), streamNames[k])
		require.NoError(t, err)
		m, err := stream.GetMsg(t.Context(), sequence)
		require.NoError(t, err)
		return m.Time
	}
	half := storedAt(attempts, 1000)
	assert.True(t, storedAt(events, 1).Before(half))
	assert.True(t, storedAt(intents, 1).Before(half))
}

func TestAnEventOverTheServersLimitIsNamedAndTheRestCanBePublishedWithoutIt(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	list := mints(0, 3)
	list[1].UserAgent = strings.Repeat("\x01", maxPayload/6) // each byte takes six in JSON
	err := s.Publish(t.Context(), list)
	var tooLarge *TooLargeError
	require.ErrorAs(t, err, &tooLarge)
	assert.ErrorIs(t, err, ErrTooLarge)
	assert.Equal(t, 1, tooLarge.Index)
	assert.Equal(t, list[1].Identity(), tooLarge.Identity)

	require.NoError(t, s.Publish(t.Context(), []event.Event{list[0], list[2]}))
	assert.Equal(t, 2, stored(t, s, events))

	list[1].UserAgent = strings.Repeat("a", maxPayload-4096)
	assert.NoError(t, s.Publish(t.Context(), list))
	assert.Equal(t, 3, stored(t, s, events))
}

func TestAFailedPublishIsRepeatedUnderAnotherMessageIDUntilItSucceeds(t *testing.T) {
	t.Parallel()
	var r repeats
	assert.Equal(t, "id", r.messageID("id"))
	r.failed("id", epoch)
	r.failed("id", epoch)
	assert.Equal(t, "id.2", r.messageID("id"))
	assert.Equal(t, "other", r.messageID("other"))
	r.settled("id")
	assert.Equal(t, "id", r.messageID("id"))
}

func TestFailedPublishesRememberedAreBounded(t *testing.T) {
	t.Parallel()
	var r repeats
	for i := range maxRepeats + 10 {
		r.failed(fmt.Sprint(i), epoch)
	}
	assert.Len(t, r.failures, maxRepeats)
	r.failed("late", epoch.Add(duplicateWindow+time.Second))
	assert.Equal(t, "late.1", r.messageID("late"))
	assert.Len(t, r.failures, 1)
}

func TestPublishAfterTheDeadlineIsAnErrorAndCanBeRepeated(t *testing.T) {
	t.Parallel()
	s := open(t, testOptions(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Publish(ctx, mints(0, 1)), context.Canceled)
	require.NoError(t, s.Publish(t.Context(), mints(0, 1)))
	assert.NotEmpty(t, drain(t, s, ProjectorEvents))
}
