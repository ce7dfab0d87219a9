package stream

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestAQuestionIsPutAgainEachSecondUntilItsFirstAnswer(t *testing.T) {
	const lost = -1
	refused := errors.New("refused")
	// f puts a question that is answered so long after it was put for the first, the second … time.
	f := func(answers []time.Duration, answer error, wantAsked int, wantAfter time.Duration, want error) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			var asked atomic.Int64
			began := time.Now()
			value, err := ask(t.Context(), func(ctx context.Context) (int64, error) {
				n := asked.Add(1)
				if int(n) > len(answers) || answers[n-1] == lost {
					<-ctx.Done()
					return 0, ctx.Err()
				}
				select {
				case <-time.After(answers[n-1]):
					return n, answer
				case <-ctx.Done():
					return 0, ctx.Err()
				}
			})
			assert.Equal(t, wantAfter, time.Since(began))
			assert.Equal(t, int64(wantAsked), asked.Load())
			assert.ErrorIs(t, err, want)
			if err == nil {
				assert.Positive(t, value)
			}
			synctest.Wait() // nobody waits for an answer any more
		})
	}
	const ms = time.Millisecond
	f([]time.Duration{3 * ms}, nil, 1, 3*ms, nil)
	f([]time.Duration{3 * ms}, refused, 1, 3*ms, refused)
	f([]time.Duration{lost, 3 * ms}, nil, 2, 1003*ms, nil)
	f([]time.Duration{lost, lost, lost, 3 * ms}, refused, 4, 3003*ms, refused)
	f([]time.Duration{4500 * ms, 4500 * ms, 4500 * ms, 4500 * ms, 4500 * ms}, nil, 5, 4500*ms, nil)
}

func TestAQuestionThatNobodyAnswersEndsAfterTheRequestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, err := ask(t.Context(), func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() })
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, requestTimeout, time.Since(began))
	})
}

func TestAQuestionEndsWithItsAsker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(1500*time.Millisecond, cancel)
		began := time.Now()
		_, err := ask(ctx, func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() })
		assert.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, 1500*time.Millisecond, time.Since(began))
	})
}
