package webhook

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/gap"
	"github.com/mintlog/mintlog/store/stream"
)

// recorder keeps gaps, or fails.
type recorder struct {
	mu   sync.Mutex
	gaps []gap.Gap
	err  error
}

func (r *recorder) RecordGap(_ context.Context, g gap.Gap) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.gaps = append(r.gaps, g)
	}
	return r.err
}

func (r *recorder) recorded() []gap.Gap {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.gaps)
}

func (r *recorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// answers sends an item and wants that status.
func (b *bench) answers(want int, name, item string) {
	b.Helper()
	a, err := b.send(b.client, http.MethodPost, "/audit/"+name, "", []byte(list(item)))
	require.NoError(b, err)
	require.Equal(b, want, a.status)
}

// refuse lets a kube-apiserver try for that long, as it does every minute or more often, and be told to come again.
func (b *bench) refuse(name string, lasting time.Duration) (from, until time.Time) {
	b.Helper()
	b.published.fail(stream.ErrFull)
	defer b.published.fail(nil)
	from = b.options.Now()
	b.answers(503, name, mintItem("1"))
	for ; lasting > 0; lasting -= time.Minute {
		b.ahead.Add(int64(min(lasting, time.Minute)))
		b.answers(503, name, mintItem("1"))
	}
	return from, b.options.Now()
}

func requireGap(t *testing.T, g gap.Gap, source string, from, until time.Time) {
	t.Helper()
	require.Equal(t, source, g.Source)
	require.WithinDuration(t, from.Add(-batchAge), g.From, 10*time.Second)
	require.WithinDuration(t, until, g.Until, 10*time.Second)
	_, err := g.Encode()
	require.NoError(t, err)
}

func TestAnOutageThatLastsLongerThanKubeApiserverHoldsOnIsAGap(t *testing.T) {
	b := newBench(t)
	gaps := &recorder{}
	b.options.Gaps = gaps
	b.start()
	b.refuse("cp-1", holdOn/2)
	b.answers(200, "cp-3", otherItem) // nothing was published by that
	b.answers(200, "cp-1", mintItem("1"))
	require.Empty(t, gaps.recorded())

	gaps.fail(errors.New("not now"))
	b.refuse("cp-2", 0)
	from, until := b.refuse("cp-1", holdOn+time.Minute)
	b.answers(200, "cp-1", mintItem("1"))
	require.Empty(t, gaps.recorded())
	gaps.fail(nil)
	b.answers(200, "cp-2", mintItem("2"))
	require.Len(t, gaps.recorded(), 1)
	requireGap(t, gaps.recorded()[0], "webhook:cp-1", from, until)
	b.answers(200, "cp-2", mintItem("2"))
	require.Len(t, gaps.recorded(), 1, "once")
}

func TestABatchThatAnotherReceiverTakesAfterAShortOutageIsNoGapHoweverLongNothingComes(t *testing.T) {
	b := newBench(t)
	gaps := &recorder{}
	b.options.Gaps = gaps
	b.start()
	b.refuse("cp-1", 20*time.Second)
	b.ahead.Add(int64(10 * time.Hour))
	b.answers(200, "cp-1", mintItem("1"))
	require.Empty(t, gaps.recorded())
	b.refuse("cp-1", 20*time.Second)
	b.ahead.Add(int64(10 * time.Hour))
	b.refuse("cp-1", 20*time.Second)
	b.answers(200, "cp-1", mintItem("1"))
	require.Empty(t, gaps.recorded())
}

func TestAnOutageAfterWhichNothingComesIsAGapUntilTheLastThatCame(t *testing.T) {
	b := newBench(t)
	gaps := &recorder{}
	b.options.Gaps = gaps
	b.start()
	from, until := b.refuse("cp-1", holdOn+time.Minute)
	b.ahead.Add(int64(10 * time.Hour))
	require.NoError(t, b.receiver.attendOnce(t.Context()))
	require.Len(t, gaps.recorded(), 1)
	requireGap(t, gaps.recorded()[0], "webhook:cp-1", from, until)
}

// attendant remembers as a stream does, and fails as it is told.
type attendant struct {
	mu     sync.Mutex
	before stream.Attendance
	err    error
}

func (a *attendant) Attendance(context.Context) (stream.Attendance, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.before, a.err
}

func (a *attendant) Attend(_ context.Context, now time.Time, senders map[string]time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == nil {
		a.before = stream.Attendance{At: now, Senders: senders}
	}
	return a.err
}

func (a *attendant) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

func TestATimeInWhichNoReceiverWasThereIsAGapOfEachThatSends(t *testing.T) {
	f := func(want []string, absent time.Duration, senders ...string) {
		t.Helper()
		b := newBench(t)
		gaps, remembered := &recorder{}, &attendant{}
		b.options.Gaps, b.options.Attendant = gaps, remembered
		from := b.options.Now()
		remembered.before = stream.Attendance{At: from, Senders: map[string]time.Time{}}
		for _, name := range senders {
			remembered.before.Senders[name] = from.Add(-time.Hour)
		}
		if absent < 0 {
			remembered.before = stream.Attendance{}
		}
		b.ahead.Store(int64(absent))
		remembered.err = errors.New("the stream is down")
		b.start()
		b.answers(200, "cp-9", otherItem)
		require.Error(t, b.receiver.attendOnce(t.Context()))
		require.Empty(t, gaps.recorded())
		b.ahead.Add(int64(time.Hour)) // however late it is asked
		gaps.fail(errors.New("not now"))
		remembered.fail(nil)
		if len(want) > 0 { // whoever starts after a crash now has to find it again
			require.Error(t, b.receiver.attendOnce(t.Context()))
			noted, err := remembered.Attendance(t.Context())
			require.NoError(t, err)
			require.Equal(t, from, noted.At)
		}
		gaps.fail(nil)
		require.NoError(t, b.receiver.attendOnce(t.Context()))
		require.NoError(t, b.receiver.attendOnce(t.Context()))
		require.Len(t, gaps.recorded(), len(want))
		for i, source := range want {
			requireGap(t, gaps.recorded()[i], source, from, from.Add(absent))
		}
		require.Contains(t, remembered.before.Senders, "cp-9")
	}
	f([]string{"webhook:cp-1", "webhook:cp-2"}, 10*time.Minute, "cp-2", "cp-1")
	f(nil, time.Minute, "cp-1") // a rolling update
	f(nil, 10*time.Minute)      // nobody has ever sent anything
	f(nil, -time.Minute, "cp-1")
}
