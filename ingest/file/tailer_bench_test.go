package file

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/event"
)

// discard is a Publisher that acknowledges everything at once.
type discard struct{ events int }

func (d *discard) Publish(_ context.Context, events []event.Event) error {
	d.events += len(events)
	return nil
}

// benchmarkBacklog reads a log of about 64 MB from its beginning to its end.
func benchmarkBacklog(b *testing.B, block string, blocks, events int) {
	path := filepath.Join(b.TempDir(), "audit.log")
	require.NoError(b, os.WriteFile(path, []byte(strings.Repeat(block, blocks)), 0o600))
	b.SetBytes(int64(len(block) * blocks))
	b.ReportAllocs()
	for b.Loop() {
		var publisher discard
		tailer, err := New(Options{Paths: []string{path}, Checkpoint: filepath.Join(b.TempDir(), "none"), Publisher: &publisher})
		require.NoError(b, err)
		f := tailer.followers[0]
		for progressed := true; progressed; {
			progressed, err = f.step(context.Background())
			require.NoError(b, err)
			f.measure()
		}
		f.close()
		require.Equal(b, events, publisher.events)
	}
}

func BenchmarkBacklogOneLineInTenThousandOurs(b *testing.B) {
	benchmarkBacklog(b, strings.Repeat(otherLine("other"), 9_999)+mintLine("ours"), 8, 8)
}

func BenchmarkBacklogEveryLineOurs(b *testing.B) {
	benchmarkBacklog(b, strings.Repeat(mintLine("ours"), 1000), 80, 80_000)
}
