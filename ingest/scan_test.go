package ingest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// place is a line that a Scanner found.
type place struct {
	line   string
	offset int64
}

// scanAll reads source to its end.
func scanAll(t *testing.T, s *Scanner) []place {
	t.Helper()
	var found []place
	keep := func(line []byte, offset int64) { found = append(found, place{string(line), offset}) }
	for {
		err := s.Read(keep)
		if errors.Is(err, io.EOF) {
			s.Finish(keep)
			return found
		}
		require.NoError(t, err)
	}
}

const ourLine = `{"objectRef":{"apiGroup":"credentials.cozystack.io"}}`

func TestLinesThatCouldBeOursAreFoundWithTheirOffsets(t *testing.T) {
	f := func(log string, want ...place) {
		t.Helper()
		s := NewScanner(strings.NewReader(log), 0)
		require.Equal(t, want, scanAll(t, s))
		require.Equal(t, int64(len(log)), s.Offset())
	}
	f("")
	f("\n")
	f("nothing\n\nof ours\n")
	f(ourLine+"\n", place{ourLine, 0})
	f(ourLine, place{ourLine, 0}) // the log ended without a line break
	f("one\n"+ourLine+"\nthree\n"+ourLine+"\r\nfive", place{ourLine, 4}, place{ourLine + "\r", 4 + int64(len(ourLine)) + 7})
	f(`{"name":"a.account"}`+"\n"+`{"name":"a.account.b"}`, place{`{"name":"a.account"}`, 0})
	f(`credentials.cozystack.io and "x.account" twice`+"\n", place{`credentials.cozystack.io and "x.account" twice`, 0})
	f(`debentials.cozystack.io` + "\n" + `zystack.io` + "\n")
	f(`"credential\u0073"`+"\n", place{`"credential\u0073"`, 0})
	f(`a\u002Eb`+"\n", place{`a\u002Eb`, 0})
	f(`a\u0026b` + "\n" + `\u00`)
}

// randomLog has lines of many lengths, some of them ours, and returns those with their offsets.
func randomLog(random *rand.Rand) (log []byte, want []place) {
	for range random.IntN(60) {
		line := strings.Repeat("x", random.IntN(1+1<<random.IntN(16)))
		if random.IntN(3) == 0 {
			line += ourLine + strings.Repeat("y", random.IntN(5))
			want = append(want, place{line, int64(len(log))})
		}
		log = append(append(log, line...), '\n')
	}
	return log, want
}

// pieces gives its bytes in reads of random lengths, none at times, and the end together with the last.
type pieces struct {
	rest   []byte
	random *rand.Rand
}

func (p *pieces) Read(b []byte) (int, error) {
	n := min(len(p.rest), len(b), p.random.IntN(1+1<<p.random.IntN(17)))
	copy(b, p.rest[:n])
	p.rest = p.rest[n:]
	if len(p.rest) == 0 {
		return n, io.EOF
	}
	return n, nil
}

func TestAnyChunkingFindsTheSameLines(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		log, want := randomLog(random)
		for name, source := range map[string]io.Reader{
			"whole":         bytes.NewReader(log),
			"random pieces": &pieces{log, random},
			"data with end": iotest.DataErrReader(bytes.NewReader(log)),
			"halves":        iotest.HalfReader(bytes.NewReader(log)),
		} {
			s := NewScanner(source, 0)
			s.chunk = 1 + random.IntN(DefaultChunk)
			require.Equal(t, want, scanAll(t, s), "%s, seed %d", name, seed)
			require.Equal(t, int64(bytes.Count(log, newline)), s.Lines(), "%s, seed %d", name, seed)
		}
	}
	log := []byte("first\n" + ourLine + "\nlast")
	require.Equal(t, []place{{ourLine, 6}}, scanAll(t, NewScanner(iotest.OneByteReader(bytes.NewReader(log)), 0)))
}

// interrupted gives an error instead of the byte at each of the given places, once.
type interrupted struct {
	data []byte
	at   int
	stop map[int]error
}

func (i *interrupted) Read(b []byte) (int, error) {
	if err := i.stop[i.at]; err != nil {
		delete(i.stop, i.at)
		return 0, err
	}
	if i.at == len(i.data) {
		return 0, io.EOF
	}
	b[0] = i.data[i.at]
	i.at++
	return 1, nil
}

func TestAnErrorInMidLineLosesNothing(t *testing.T) {
	broken := errors.New("a broken disk")
	source := &interrupted{data: []byte(ourLine + "\n" + ourLine + "\n"), stop: map[int]error{10: broken, 11: io.EOF, 60: broken}}
	s := NewScanner(source, 0)
	var found []int64
	var errs []error
	for len(found) < 2 {
		if err := s.Read(func(_ []byte, offset int64) { found = append(found, offset) }); err != nil {
			errs = append(errs, err)
			require.LessOrEqual(t, s.Offset(), int64(source.at))
		}
	}
	require.Equal(t, []int64{0, int64(len(ourLine)) + 1}, found)
	require.Equal(t, []error{broken, io.EOF, broken}, errs)
}

func TestAPartialLineWaitsAtItsStart(t *testing.T) {
	var log bytes.Buffer
	s := NewScanner(&log, 1000)
	var found []place
	keep := func(line []byte, offset int64) { found = append(found, place{string(line), offset}) }
	log.WriteString("whole\n" + ourLine[:20])
	require.NoError(t, s.Read(keep))
	require.ErrorIs(t, s.Read(keep), io.EOF)
	require.Equal(t, int64(1006), s.Offset())
	require.Empty(t, found)
	log.WriteString(ourLine[20:])
	require.NoError(t, s.Read(keep))
	require.Equal(t, int64(1006), s.Offset())
	log.WriteString("\n")
	require.NoError(t, s.Read(keep))
	require.Equal(t, []place{{ourLine, 1006}}, found)
	require.Equal(t, int64(1006+len(ourLine)+1), s.Offset())
}

func TestALineThatIsTooLongIsSkippedToItsEndAndToldOf(t *testing.T) {
	for _, chunk := range []int{50, 1000, 100_000} {
		for _, length := range []int{5000, 5001, 9000, 60_000} {
			long := strings.Repeat("z", length-len(ourLine)) + ourLine
			log := "first\n" + long + "\n" + ourLine + "\n"
			s := NewScanner(iotest.HalfReader(strings.NewReader(log)), 0)
			s.MaxLine, s.chunk = 5000, chunk
			var told []string
			s.Oversized = func(offset, length int64, ours bool) { told = append(told, fmt.Sprint(offset, " ", length, " ", ours)) }
			want := []place{{ourLine, int64(6 + length + 1)}}
			var wantTold []string
			if length > 5000 {
				wantTold = []string{fmt.Sprint(6, " ", length+1, " true")}
			} else {
				want = append([]place{{long, 6}}, want...)
			}
			require.Equal(t, want, scanAll(t, s), "chunk %d, length %d", chunk, length)
			require.Equal(t, wantTold, told, "chunk %d, length %d", chunk, length)
			require.Equal(t, int64(len(log)), s.Offset())
			require.Equal(t, int64(3), s.Lines())
		}
	}
}

func TestALineThatIsTooLongSaysWhetherItCouldBeOursWhereverThatStands(t *testing.T) {
	f := func(want bool, line string) {
		t.Helper()
		for _, chunk := range []int{1, 7, 100, 900} {
			s := NewScanner(iotest.HalfReader(strings.NewReader(line+"\n"+ourLine+"\n")), 0)
			s.MaxLine, s.chunk = 500, chunk
			var told []bool
			s.Oversized = func(_, _ int64, ours bool) { told = append(told, ours) }
			require.Equal(t, []place{{ourLine, int64(len(line)) + 1}}, scanAll(t, s), "chunk %d", chunk)
			require.Equal(t, []bool{want}, told, "chunk %d", chunk)
		}
	}
	for _, at := range []int{0, 1, 450, 490, 499, 512, 900, 1999} {
		f(true, strings.Repeat("x", at)+"credentials.cozystack.io"+strings.Repeat("y", 2000-at))
		f(true, strings.Repeat("x", at)+`.account"`+strings.Repeat("y", 2000-at))
		f(true, strings.Repeat("x", at)+`\u0063`+strings.Repeat("y", 2000-at))
	}
	f(false, strings.Repeat("x", 3000))
	f(false, strings.Repeat("credentials.cozy stack.io", 100))
}

func TestMemoryIsSmallAgainAfterALongLine(t *testing.T) {
	log := "a\n" + strings.Repeat("b", 7<<20) + "\n" + strings.Repeat(ourLine+"\n", 20_000)
	s := NewScanner(strings.NewReader(log), 0)
	found := scanAll(t, s)
	require.Len(t, found, 20_000)
	require.Equal(t, DefaultChunk, len(s.buffer))
}

func TestWhatWasConsumedEndsWhereTheOffsetIs(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	log, _ := randomLog(random)
	log = append(log, "no line break"...)
	s := NewScanner(&pieces{log, random}, 0)
	s.chunk, s.MaxLine = 4096, 10_000
	none := func([]byte, int64) {}
	for err := error(nil); err == nil; {
		err = s.Read(none)
		require.True(t, bytes.HasSuffix(log[:s.Offset()], s.Consumed()))
	}
	s.Finish(none)
	require.True(t, bytes.HasSuffix(log, s.Consumed()))
}

// FuzzScanner holds that lines and offsets are those of a plain split, whatever the reads.
func FuzzScanner(f *testing.F) {
	f.Add([]byte("a\n"+ourLine+"\n\n"), uint64(1))
	f.Add([]byte(ourLine), uint64(2))
	f.Add([]byte("\\u002e\n.account\"\n"), uint64(3))
	f.Fuzz(func(t *testing.T, log []byte, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 0))
		s := NewScanner(&pieces{log, random}, 0)
		s.chunk = 1 + random.IntN(64)
		var want []place
		for at := 0; at < len(log); {
			end := len(log)
			if i := bytes.IndexByte(log[at:], '\n'); i >= 0 {
				end = at + i
			}
			if couldBeOurs(log[at:end]) {
				want = append(want, place{string(log[at:end]), int64(at)})
			}
			at = end + 1
		}
		require.Equal(t, want, scanAll(t, s))
	})
}

// BenchmarkScan reads a log in which one line in 10,000 is ours, of lines like those that kube-apiserver writes most.
func BenchmarkScan(b *testing.B) {
	const others = 9_999
	var log bytes.Buffer
	for i := range others {
		if i == others/2 {
			log.WriteString(mint + "\n")
		}
		fmt.Fprintf(&log, `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"%016x-4c4b-8b43-7cf2a5f0a1de",`+
			`"stage":"ResponseComplete","requestURI":"/apis/apps/v1/namespaces/tenant-%d/deployments/web-%d?timeout=10s\u0026limit=500",`+
			`"verb":"get","user":{"username":"system:serviceaccount:kube-system:deployment-controller","uid":"%d",`+
			`"groups":["system:serviceaccounts","system:serviceaccounts:kube-system","system:authenticated"],`+
			`"extra":{"authentication.kubernetes.io/credential-id":["JTI=%016x"]}},"sourceIPs":["10.0.%d.1"],`+
			`"userAgent":"kube-controller-manager/v1.37.2 (linux/amd64) kubernetes/0c1d5f0/system:serviceaccount:kube-system:deployment-controller",`+
			`"objectRef":{"resource":"deployments","namespace":"tenant-%d","name":"web-%d","apiGroup":"apps","apiVersion":"v1"},`+
			`"responseStatus":{"metadata":{},"code":200},"requestReceivedTimestamp":"2026-08-21T10:00:00.%06dZ",`+
			`"stageTimestamp":"2026-08-21T10:00:01.%06dZ","annotations":{"authorization.k8s.io/decision":"allow",`+
			`"authorization.k8s.io/reason":"RBAC: allowed by ClusterRoleBinding \"system:controller:deployment-controller\" of ClusterRole `+
			`\"system:controller:deployment-controller\" to ServiceAccount \"deployment-controller/kube-system\""}}`+"\n",
			i, i%50, i, i, i, i%200, i%50, i, i, i)
	}
	b.SetBytes(int64(log.Len()))
	b.ReportAllocs()
	for b.Loop() {
		s := NewScanner(bytes.NewReader(log.Bytes()), 0)
		matched := 0
		for err := error(nil); err == nil; {
			err = s.Read(func(line []byte, _ int64) {
				if _, ours, err := Decode(line); ours && err == nil {
					matched++
				}
			})
		}
		if matched != 1 {
			b.Fatal(matched)
		}
	}
}
