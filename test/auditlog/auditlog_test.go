package auditlog

import (
	"bytes"
	"crypto/sha256"
	"io"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"

	"github.com/mintlog/mintlog/ingest"
	"github.com/mintlog/mintlog/store/event"
)

// each calls f with every line of a log.
func each(t *testing.T, o Options, lines int, f func(line []byte, ours bool)) {
	t.Helper()
	g := New(o)
	for range lines {
		line, ours, err := g.Line()
		require.NoError(t, err)
		f(line, ours)
	}
}

func TestEveryLineIsAnAuditEventThatKubernetesReadsAndWritesAlike(t *testing.T) {
	decoder := audit.Codecs.UniversalDecoder(auditinternal.SchemeGroupVersion)
	encoder := audit.Codecs.LegacyCodec(auditv1.SchemeGroupVersion)
	for _, every := range []int{0, 1, 10} {
		each(t, Options{Seed: 1, OursEvery: every}, 1500, func(line []byte, _ bool) {
			require.Equal(t, byte('\n'), line[len(line)-1])
			require.Equal(t, 1, bytes.Count(line, []byte("\n")))
			require.True(t, bytes.HasPrefix(line, []byte(`{"kind":"Event"`)))
			object, err := k8sruntime.Decode(decoder, line)
			require.NoError(t, err)
			e := object.(*auditinternal.Event)
			require.NotEmpty(t, e.AuditID)
			require.False(t, e.StageTimestamp.Before(&e.RequestReceivedTimestamp))
			written, err := k8sruntime.Encode(encoder, e)
			require.NoError(t, err)
			require.Equal(t, string(line), string(written), "kube-apiserver's own encoder")
		})
	}
}

func TestTheDecoderFindsExactlyOurs(t *testing.T) {
	for _, every := range []int{0, 1, 7, 100} {
		const lines = 8_000
		total := 0
		each(t, Options{Seed: 2, OursEvery: every}, lines, func(line []byte, ours bool) {
			_, found, err := ingest.Decode(bytes.TrimSuffix(line, []byte("\n")))
			require.NoError(t, err)
			require.Equal(t, ours, found, "%s", line)
			if ours {
				total++
			}
		})
		want := 0
		if every > 0 {
			want = lines / every
		}
		assert.InDelta(t, want, total, 1, "one in %d", every)
	}
}

func TestALogHoldsWhatTheScannerTakesForOursAndIsNot(t *testing.T) {
	lines := 0
	var log bytes.Buffer
	_, err := New(Options{Seed: 3}).Write(&log, 10_000)
	require.NoError(t, err)
	scanner := ingest.NewScanner(&log, 0)
	for err == nil {
		err = scanner.Read(func(line []byte, _ int64) { lines++ })
	}
	require.ErrorIs(t, err, io.EOF)
	assert.InDelta(t, 10, lines, 9, "lookalikes")
}

func TestOursAreOperationsFromTheirReceptionToTheProjectorsPatch(t *testing.T) {
	stages, verbs := map[event.Stage]int{}, map[string]int{}
	operations, outcomes := map[string]int{}, map[event.Outcome]int{}
	impersonated, committed := 0, 0
	requested := map[string]bool{}
	identities := map[string]bool{}
	each(t, Options{Seed: 4, OursEvery: 1}, 4_000, func(line []byte, _ bool) {
		e, ours, err := ingest.Decode(bytes.TrimSuffix(line, []byte("\n")))
		require.NoError(t, err)
		require.True(t, ours)
		require.False(t, identities[e.Identity()], "no event comes twice")
		identities[e.Identity()] = true
		stages[e.Stage]++
		if o, request := e.Operation(); request {
			operations[string(o)]++
			outcomes[e.Outcome()]++
			requested[e.AuditID] = true
		} else {
			verbs[e.Verb]++
			if requested[e.AuditID] {
				committed++
			}
		}
		if e.ImpersonatedUser != nil {
			impersonated++
		}
	})
	for _, want := range []event.Outcome{event.Received, event.Succeeded, event.Refused} {
		assert.Positive(t, outcomes[want])
	}
	assert.Greater(t, operations["Mint"], operations["Revoke"])
	assert.Positive(t, operations["Revoke"])
	for _, verb := range []string{"create", "update", "patch"} {
		assert.Positive(t, verbs[verb], verb)
	}
	assert.Equal(t, verbs["update"], committed, "a commit has the audit id of its request")
	assert.Positive(t, impersonated)
	assert.Positive(t, stages[event.RequestReceived])
}

func TestTheMixIsAsDocumented(t *testing.T) {
	sum := 0
	for _, r := range mix {
		sum += r.lines
	}
	require.Equal(t, 1000, sum)

	const lines = 30_000
	verbs := map[string]int{}
	g := New(Options{Seed: 5})
	for range lines {
		e, _ := g.Next()
		verbs[e.Verb]++
	}
	for verb, want := range map[string]float64{"update": 300, "get": 255, "list": 170, "patch": 105, "create": 115, "watch": 45, "delete": 10} {
		assert.InDelta(t, want, float64(verbs[verb])*1000/lines, 4+want/25, verb)
	}
}

func TestSizesAreAsDocumented(t *testing.T) {
	var sizes []int
	total := 0
	each(t, Options{Seed: 6, OursEvery: 10_000}, 30_000, func(line []byte, _ bool) {
		sizes = append(sizes, len(line))
		total += len(line)
	})
	slices.Sort(sizes)
	assert.InDelta(t, 1150, sizes[len(sizes)/2], 60, "median")
	assert.InDelta(t, 1250, float64(total)/float64(len(sizes)), 40, "mean")
	assert.Greater(t, sizes[0], 400)
	assert.Less(t, sizes[len(sizes)*98/100], 1700)
	assert.Greater(t, sizes[len(sizes)-1], 80<<10)
	assert.Less(t, sizes[len(sizes)-1], 100_000)
}

func TestTheSameSeedMakesTheSameLogAndAnotherAnother(t *testing.T) {
	digest := func(seed uint64) [32]byte {
		h := sha256.New()
		_, err := New(Options{Seed: seed, OursEvery: 50}).Write(h, 2000)
		require.NoError(t, err)
		return [32]byte(h.Sum(nil))
	}
	assert.Equal(t, digest(7), digest(7))
	assert.NotEqual(t, digest(7), digest(8))
}

func TestALongLogTakesNoMoreMemoryThanAShortOne(t *testing.T) {
	inUse := func(lines int) float64 {
		g := New(Options{Seed: 9, OursEvery: 100})
		_, err := g.Write(io.Discard, lines)
		require.NoError(t, err)
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		runtime.KeepAlive(g)
		return float64(m.HeapAlloc)
	}
	short := inUse(1000)
	assert.Less(t, math.Abs(inUse(20_000)-short), float64(1<<20))
}

func TestABatchIsWhatTheWebhookPosts(t *testing.T) {
	body, ours, err := New(Options{Seed: 10, OursEvery: 100}).Batch(400)
	require.NoError(t, err)
	assert.Equal(t, 4, ours)
	object, err := k8sruntime.Decode(audit.Codecs.UniversalDecoder(auditv1.SchemeGroupVersion), body)
	require.NoError(t, err)
	list := object.(*auditv1.EventList)
	require.Len(t, list.Items, 400)
	found := 0
	for i := range list.Items {
		assert.Equal(t, metav1.TypeMeta{}, list.Items[i].TypeMeta)
		if ref := list.Items[i].ObjectRef; ref != nil && ref.APIGroup == event.Group && ref.Subresource != "" {
			found++
		}
	}
	assert.Positive(t, found)
}
