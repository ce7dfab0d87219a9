package robustness

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/test/sandbox/process"
)

func TestEveryEventComesOnceWhateverIsRotatedAndKilledAndWhatIsMissingLiesInAGap(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	h := open(t)

	// Twenty rotations, during which nothing is away for long.
	names := rotated{}
	before := names.look(h.AuditLog(0))
	stop := h.killAtRandom(random)
	for deadline := time.Now().Add(5 * time.Minute); names.look(h.AuditLog(0)) < before+20; {
		require.True(t, time.Now().Before(deadline), "the log rotated %d times in five minutes", len(names)-before)
		h.load(1 << 20)
		time.Sleep(200 * time.Millisecond) // a rotation in some 300 ms: what is killed comes again before its file is deleted
	}
	kills := stop()
	rotations := len(names) - before
	// Whatever was killed above, each source is the first once.
	for _, away := range []*process.Process{h.files, h.webhook} {
		away.Kill()
		h.mint()
		h.await(h.both)
		require.NoError(t, away.Restart(t.Context()))
	}
	h.mint()
	h.await(h.both)
	h.await(h.alone)
	t.Logf("%d mints, %d rotations, %d kills; first came by %v", len(h.mints), rotations, kills, h.both.sources())
	h.complete(h.both)
	h.complete(h.alone)
	assert.Len(t, h.both.sources(), 2, "both sources were the first at times")

	// More rotations than files are kept, while nobody reads them alone: what is missing lies in a gap.
	h.again.Kill()
	kept := len(h.mints)
	names = rotated{}
	for before := names.look(h.AuditLog(0)); names.look(h.AuditLog(0)) < before+2*backups; {
		h.load(1 << 20)
	}
	h.awaitDeleted()
	require.NoError(t, h.again.Restart(t.Context()))
	h.mint()
	h.await(h.both)
	h.await(h.alone)
	h.complete(h.both)
	h.complete(h.alone)
	gaps, err := h.alone.Gaps(t.Context())
	require.NoError(t, err)
	t.Logf("%d of %d mints are missing in the files, in %d gaps", len(h.alone.missing(h.mints)), len(h.mints)-kept, len(gaps))
	assert.NotEmpty(t, h.alone.missing(h.mints), "nothing was deleted unread: this shows nothing")
	assert.NotEmpty(t, gaps)
}

// awaitDeleted waits until kube-apiserver has deleted the files that are more than it keeps, which it does beside its work.
func (h *house) awaitDeleted() {
	h.t.Helper()
	require.Eventually(h.t, func() bool {
		kept := rotated{}
		return kept.look(h.AuditLog(0)) <= backups
	}, 2*time.Minute, 100*time.Millisecond)
}

// load has kube-apiserver write some bytes, and mints on the way.
func (h *house) load(bytes int) {
	h.t.Helper()
	for n := range bytes / padding {
		h.pad()
		if n%4 == 0 {
			h.mint()
		}
	}
}

// killAtRandom kills what ingests, one process after another, and starts it again, until the returned function is
// called, which returns how many were killed.
func (h *house) killAtRandom(random *rand.Rand) (stop func() int) {
	ctx, cancel := context.WithCancel(h.t.Context())
	done := make(chan int, 1)
	victims := []*process.Process{h.files, h.again, h.webhook}
	go func() {
		kills := 0
		for wait(ctx, random, 400*time.Millisecond) {
			victim := victims[random.IntN(len(victims))]
			victim.Kill()
			kills++
			wait(ctx, random, 500*time.Millisecond)
			if !assert.NoError(h.t, victim.Restart(h.t.Context())) {
				break
			}
		}
		done <- kills
	}()
	return func() int { cancel(); return <-done }
}

// wait waits for some time up to most, and reports whether ctx is still on.
func wait(ctx context.Context, random *rand.Rand, most time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Duration(random.Int64N(int64(most)))):
		return true
	}
}

// await waits until everything has come that comes: the newest mint, by a reader that had the others to read before.
// Webhook batches come in any order, and again after a while.
func (h *house) await(r *reader) {
	h.t.Helper()
	require.EventuallyWithT(h.t, func(t *assert.CollectT) {
		require.NoError(t, r.read(h.t.Context()))
		assert.Empty(t, r.missing(h.mints[len(h.mints)-1:]))
	}, 3*time.Minute, 100*time.Millisecond)
	for range 720 {
		gaps, err := r.Gaps(h.t.Context())
		require.NoError(h.t, err)
		if !slices.ContainsFunc(r.missing(h.mints), func(m mint) bool { return !explained(m, gaps) }) {
			return
		}
		time.Sleep(250 * time.Millisecond)
		require.NoError(h.t, r.read(h.t.Context()))
	}
}

// complete holds that a stream has each event of each mint once, or a gap in which it lies.
func (h *house) complete(r *reader) {
	h.t.Helper()
	gaps, err := r.Gaps(h.t.Context())
	require.NoError(h.t, err)
	assert.Empty(h.t, r.twice())
	for _, m := range r.missing(h.mints) {
		assert.True(h.t, explained(m, gaps), "the mint %s at %s is missing and in none of %v", m.id, m.began, gaps)
	}
}
