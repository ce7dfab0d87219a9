package webhook

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/stream"
)

// BenchmarkBatches sends batches of 400 events, as kube-apiserver does, into a stream that syncs every write.
func BenchmarkBatches(b *testing.B) {
	for _, one := range []int{100, 1} {
		b.Run(fmt.Sprintf("1 in %d ours", one), func(b *testing.B) {
			w := newBench(b)
			s, err := stream.Open(b.Context(), stream.Options{Directory: b.TempDir(), MaxBytes: 4 << 30, EvidenceBytes: 64 << 20})
			require.NoError(b, err)
			b.Cleanup(func() { require.NoError(b, s.Close()) })
			w.options.Publisher = s
			w.start()
			other := strings.Replace(otherItem, `"verb"`, `"userAgent":"`+strings.Repeat("kube-controller-manager ", 30)+`","verb"`, 1)
			items := make([]string, 400)
			serial := 0
			b.ReportAllocs()
			for b.Loop() {
				for i := range items {
					items[i] = other
					if i%one == 0 {
						serial++
						items[i] = mintItem(fmt.Sprint(serial))
					}
				}
				a, err := w.send(w.client, http.MethodPost, "/audit/cp-1", "", []byte(list(items...)))
				require.NoError(b, err)
				require.Equal(b, 200, a.status)
			}
			b.ReportMetric(float64(b.N*len(items))/b.Elapsed().Seconds(), "events/s")
		})
	}
}
