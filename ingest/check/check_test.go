package check

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/ingest"
	"github.com/mintlog/mintlog/store/event"
)

// canary stands in every line, and never in what is reported.
const canary = "hunter2"

// eventLine is a line as kube-apiserver writes it.
func eventLine(id, stage, verb, object string) string {
	return `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"` + id + `","stage":"` + stage + `",` +
		`"requestURI":"/apis/` + canary + `","verb":"` + verb + `","user":{"username":"` + canary + `","groups":["system:authenticated"]},` +
		`"sourceIPs":["192.0.2.7"],"userAgent":"kubectl","objectRef":` + object + `,"responseStatus":{"metadata":{},"code":201},` +
		`"requestReceivedTimestamp":"2026-08-21T10:00:00.000001Z","stageTimestamp":"2026-08-21T10:00:00.011002Z",` +
		`"annotations":{"authorization.k8s.io/decision":"allow","authorization.k8s.io/reason":"` + canary + `"}}`
}

func credential(subresource string) string {
	return `{"resource":"credentials","namespace":"tenant-acme","name":"postgres-orders.app","apiGroup":"credentials.cozystack.io",` +
		`"apiVersion":"v1alpha1","subresource":"` + subresource + `"}`
}

var (
	other  = eventLine("o", "ResponseComplete", "get", `{"resource":"pods","namespace":"kube-system","name":"x","apiVersion":"v1"}`)
	mint   = eventLine("m", "ResponseComplete", "create", credential("mint"))
	asked  = eventLine("m", "RequestReceived", "create", credential("mint"))
	revoke = eventLine("r", "Panic", "create", credential("revoke"))
	write  = eventLine("w", "ResponseComplete", "update",
		`{"resource":"secrets","namespace":"tenant-acme","name":"postgres-orders.app.account","apiVersion":"v1"}`)
	read = strings.Replace(write, `"verb":"update"`, `"verb":"get"`, 1)

	// As Fluent Bit leaves an event: user lifted, the time of receipt taken for the record's.
	shipped = `{"date":1.5,"kind":"Event","apiVersion":"audit.k8s.io/v1","auditID":"o","stage":"ResponseComplete","verb":"create",` +
		`"requestURI":"/` + canary + `","objectRef":` + credential("mint") + `,"user_username":"` + canary + `","log_source":"audit_log"}`
)

// run checks the log as standard input and returns its counts and problems.
func run(t *testing.T, source io.Reader) (Counts, []Problem) {
	t.Helper()
	keep := &kept{}
	counts, err := Run(t.Context(), Options{
		Paths: []string{StandardInput}, Stdin: source, Report: keep, Shown: -1, Progress: t.Output(), Now: time.Now,
	})
	require.NoError(t, err)
	require.Equal(t, int64(len(keep.problems)), counts.Unreadable)
	return counts, keep.problems
}

// kept is a Report that keeps the problems.
type kept struct{ problems []Problem }

func (k *kept) begin(string) error        { return nil }
func (k *kept) problem(p Problem) error   { k.problems = append(k.problems, p); return nil }
func (k *kept) end(Counts, int64) error   { return nil }
func (k *kept) total(int, Counts) error   { return nil }
func zipped(text string) string           { return string(zip([]byte(text))) }
func bytesOf(lines ...string) (sum int64) { return int64(len(strings.Join(lines, ""))) }

func zip(text []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(text)
	_ = w.Close()
	return b.Bytes()
}

func TestEventsAndMatchesAreCountedByKindAndStage(t *testing.T) {
	log := strings.Join([]string{other, asked, mint, revoke, write, read,
		eventLine("m", "ResponseStarted", "create", credential("mint")),
		eventLine("v", "ResponseComplete", "get", credential("mint")), ""}, "\n")
	want := Counts{Bytes: int64(len(log)), Lines: 8, Events: 8, Writes: 1,
		Mint: Stages{RequestReceived: 1, ResponseComplete: 1, Other: 1}, Revoke: Stages{Panic: 1}}
	for name, source := range map[string]io.Reader{
		"plain": strings.NewReader(log), "zipped": strings.NewReader(zipped(log)),
		"one byte at a time": iotest.OneByteReader(strings.NewReader(log)),
		"data with end":      iotest.DataErrReader(strings.NewReader(log)),
		"two zipped parts":   strings.NewReader(zipped(log[:700]) + zipped(log[700:])),
		"CRLF":               strings.NewReader(strings.ReplaceAll(log, "\n", "\r\n")),
	} {
		counts, problems := run(t, source)
		require.Empty(t, problems, name)
		if name == "CRLF" {
			counts.Bytes -= counts.Lines
		}
		require.Equal(t, want, counts, name)
	}
	require.Equal(t, int64(5), want.Matches())
}

func TestAnEventIsOneWhateverTheOrderAndSpacingOfItsFields(t *testing.T) {
	for _, line := range []string{
		` { "apiVersion" : "audit.k8s.io/v1", "kind": "Event", "user": {}, "requestReceivedTimestamp": "2026-08-21T10:00:00Z" } `,
		strings.Replace(other, `}}`, `} }`, 1),
		eventLine("e", "ResponseComplete", "create", `{"resource":"events"},"requestObject":{"kind":"Event","apiVersion":"v1"}`),
		strings.ReplaceAll(mint, `"annotations"`, `"annotations" `),
	} {
		counts, problems := run(t, strings.NewReader(line+"\n"))
		require.Empty(t, problems, line)
		require.Equal(t, int64(1), counts.Events, line)
	}
}

func TestEachKindOfDamageIsFoundWhereItIs(t *testing.T) {
	torn := mint[:300]
	long := `{"kind":"Event",` + strings.Repeat(canary, ingest.DefaultMaxLine/len(canary)) + `}`
	hole := strings.Repeat("\x00", 4096)
	f := func(name, log string, events, matches, noLineBreak int64, want ...Problem) {
		t.Helper()
		for _, source := range []io.Reader{strings.NewReader(log), iotest.HalfReader(strings.NewReader(log))} {
			counts, problems := run(t, source)
			require.Equal(t, want, problems, name)
			require.Equal(t, events, counts.Events, name)
			require.Equal(t, matches, counts.Matches(), name)
			require.Equal(t, noLineBreak, counts.NoLineBreak, name)
			var lost int64
			for _, p := range problems {
				lost += p.Bytes
				require.NotContains(t, p.Reason+p.Detail, canary, name)
			}
			require.Equal(t, lost, counts.UnreadableBytes, name)
		}
	}
	at := bytesOf(other, "\n")
	f("empty", "", 0, 0, 0)
	f("empty lines", "\n\r\n \n"+other+"\n", 1, 0, 0)
	f("torn line", other+"\n"+torn+"\n"+mint+"\n", 2, 1, 0,
		Problem{Line: 2, Offset: at, Bytes: 300, Reason: "malformed", Detail: "cut off"})
	f("torn line of another", other[:200]+"\n"+other+"\n", 1, 0, 0,
		Problem{Line: 1, Bytes: 200, Reason: "malformed", Detail: "cut off"})
	f("torn after the annotations", other[:len(other)-1]+"\n", 0, 0, 0,
		Problem{Line: 1, Bytes: int64(len(other)) - 1, Reason: "malformed", Detail: "cut off"})
	f("torn line and an event in one", other+"\n"+torn+mint+"\n", 2, 1, 0,
		Problem{Line: 2, Offset: at, Bytes: 300, Reason: "torn", Detail: "no JSON after 302 bytes"})
	f("torn line and an event of others in one", other[:200]+other+"\n", 1, 0, 0,
		Problem{Line: 1, Bytes: 200, Reason: "torn", Detail: "no JSON after 202 bytes"})
	f("two events in one line", other+mint+"\n"+other+other+"\r\n", 4, 1, 0)
	f("an event and a torn one in one line", other+"\n"+mint+torn+"\n", 2, 1, 0,
		Problem{Line: 2, Offset: at + bytesOf(mint), Bytes: 300, Reason: "torn", Detail: "cut off"})
	f("a hole of NUL bytes before an event", other+"\n"+hole+mint+"\n", 2, 1, 0,
		Problem{Line: 2, Offset: at, Bytes: 4096, Reason: "torn", Detail: "NUL bytes"})
	f("a hole of NUL bytes after an event", other+hole+"\n", 1, 0, 0,
		Problem{Line: 1, Offset: bytesOf(other), Bytes: 4096, Reason: "torn", Detail: "NUL bytes"})
	f("a NUL byte in an event", strings.Replace(other, canary, "hun\x00ter", 1)+"\n", 0, 0, 0,
		Problem{Line: 1, Bytes: int64(len(other)), Reason: "malformed",
			Detail: fmt.Sprintf("NUL bytes after %d bytes", strings.Index(other, canary)+3)})
	f("invalid UTF-8", strings.Replace(other, canary, "hun\xffter", 1)+"\n"+strings.Replace(mint, canary, "hun\xffter", 1)+"\n", 0, 0, 0,
		Problem{Line: 1, Bytes: int64(len(other)), Reason: "invalid_utf8", Detail: fmt.Sprintf("after %d bytes", strings.Index(other, canary)+3)},
		Problem{Line: 2, Offset: at, Bytes: int64(len(mint)), Reason: "invalid_utf8", Detail: fmt.Sprintf("after %d bytes", strings.Index(mint, canary)+3)})
	f("oversized line", other+"\n"+long+"\n"+mint+"\n", 2, 1, 0,
		Problem{Line: 2, Offset: at, Bytes: int64(len(long)), Reason: "oversized", Detail: "longer than 8 MiB"})
	f("much longer line", other+"\n"+long+long+"\n"+mint+"\n", 2, 1, 0,
		Problem{Line: 2, Offset: at, Bytes: 2 * int64(len(long)), Reason: "oversized", Detail: "longer than 8 MiB"})
	f("oversized last line", other+"\n"+long+long, 1, 0, 1,
		Problem{Line: 2, Offset: at, Bytes: 2 * int64(len(long)), Reason: "oversized", Detail: "longer than 8 MiB"})
	f("whole last line without line break", other+"\n"+mint, 2, 1, 1)
	f("partial last line", other+"\n"+torn, 1, 0, 1,
		Problem{Line: 2, Offset: at, Bytes: 300, Reason: "partial", Detail: "the last line has no line break, and is no whole event"})
	f("as Fluent Bit shapes it", shipped+"\n"+other+"\n", 1, 0, 0,
		Problem{Line: 1, Bytes: int64(len(shipped)), Reason: "not_an_audit_event", Detail: "no user"})
	lifted := strings.Replace(other, `"user":{"username":"`+canary+`","groups":["system:authenticated"]}`, `"user_username":"`+canary+`"`, 1)
	f("with the user lifted alone", lifted+"\n", 0, 0, 0,
		Problem{Line: 1, Bytes: int64(len(lifted)), Reason: "not_an_audit_event", Detail: "no user"})
	timeless := strings.Replace(other, `"requestReceivedTimestamp":"2026-08-21T10:00:00.000001Z",`, "", 1)
	f("without its time alone", timeless+"\n", 0, 0, 0,
		Problem{Line: 1, Bytes: int64(len(timeless)), Reason: "not_an_audit_event", Detail: "no requestReceivedTimestamp"})
	f("an event of another kind", `{"kind":"Event","apiVersion":"v1","message":"`+canary+`"}`+"\n", 0, 0, 0,
		Problem{Line: 1, Bytes: bytesOf(`{"kind":"Event","apiVersion":"v1","message":"`, canary, `"}`),
			Reason: "not_an_audit_event", Detail: "apiVersion is not of audit.k8s.io"})
	f("objects of others around an event in one line", `{"a":1}`+mint+` [2] `+other+"\n", 2, 1, 0,
		Problem{Line: 1, Bytes: 7 + 3, Reason: "not_an_audit_event", Detail: "kind is not Event"})
	f("something behind an event", other+"x\n", 1, 0, 0,
		Problem{Line: 1, Offset: bytesOf(other), Bytes: 1, Reason: "torn", Detail: "no JSON"})
	f("no object", "[1]\nnull\n\"x\"\n"+canary+"\n", 0, 0, 0,
		Problem{Line: 1, Bytes: 3, Reason: "malformed", Detail: "no JSON object"},
		Problem{Line: 2, Offset: 4, Bytes: 4, Reason: "malformed", Detail: "no JSON object"},
		Problem{Line: 3, Offset: 9, Bytes: 3, Reason: "malformed", Detail: "no JSON object"},
		Problem{Line: 4, Offset: 13, Bytes: 7, Reason: "malformed", Detail: "no JSON"})
	twice := strings.Replace(mint, `"verb":`, `"verb":"x","verb":`, 1)
	f("a key twice in an event of ours", twice+"\n", 0, 0, 0, Problem{Line: 1, Bytes: int64(len(twice)), Reason: "duplicate_key"})
	typed := strings.Replace(mint, `"stage":"ResponseComplete"`, `"stage":["`+canary+`"]`, 1)
	f("another type in an event of ours", typed+"\n", 0, 0, 0,
		Problem{Line: 1, Bytes: int64(len(typed)), Reason: "malformed", Detail: "stage is no event.Stage"})
	incomplete := strings.Replace(mint, `"auditID":"m",`, ``, 1)
	f("an event of ours without audit id", incomplete+"\n", 0, 0, 0,
		Problem{Line: 1, Bytes: int64(len(incomplete)), Reason: "incomplete", Detail: "no auditID"})
}

func TestADamagedGzipFileIsReadAsFarAsItGoes(t *testing.T) {
	log := other + "\n" + mint + "\n" + other + "\n"
	var random strings.Builder // what does not compress, so that a cut is near its place in the text
	for i := range rand.New(rand.NewPCG(1, 2)).Perm(3000) {
		random.WriteString(eventLine(fmt.Sprint(rand.New(rand.NewPCG(uint64(i), 2)).Uint64()), "ResponseComplete", "get", `{}`) + "\n")
	}
	f := func(name, data string, detail string, check func(Counts, []Problem)) {
		t.Helper()
		counts, problems := run(t, strings.NewReader(data))
		require.NotEmpty(t, problems, name)
		last := problems[len(problems)-1]
		require.Equal(t, DamagedGzip, last.Reason, name)
		require.Equal(t, detail, last.Detail, name)
		require.Equal(t, counts.Bytes, last.Offset, name)
		check(counts, problems)
	}
	f("truncated", zipped(random.String())[:20_000], "the compressed data ends early", func(c Counts, p []Problem) {
		require.Greater(t, c.Events, int64(100))
		require.Less(t, c.Events, int64(3000))
		require.Equal(t, c.Lines, p[len(p)-1].Line)
		require.Equal(t, Partial, p[0].Reason)
	})
	f("without its last bytes", zipped(log)[:len(zipped(log))-4], "the compressed data ends early", func(c Counts, p []Problem) {
		require.Equal(t, int64(3), c.Events)
		require.Equal(t, []Problem{{Line: 4, Offset: int64(len(log)), Reason: DamagedGzip, Detail: "the compressed data ends early"}}, p)
	})
	f("with something behind it", zipped(log)+"not compressed at all", "what begins here is no compressed data", func(c Counts, p []Problem) {
		require.Equal(t, int64(3), c.Events)
		require.Equal(t, int64(1), c.Matches())
		require.Len(t, p, 1)
	})
	spoilt := []byte(zipped(log))
	spoilt[len(spoilt)-6] ^= 1
	f("with another checksum", string(spoilt), "the checksum is another", func(c Counts, _ []Problem) { require.Equal(t, int64(3), c.Events) })
	f("with a header alone", zipped(log)[:5], "the compressed data ends early", func(c Counts, p []Problem) {
		require.Equal(t, Counts{Unreadable: 1}, c)
		require.Zero(t, p[0].Line)
	})
}

func TestAFailingDiskIsToldOfWhereItFailed(t *testing.T) {
	broken := errors.New("input/output error")
	for _, wrap := range []func(io.Reader) io.Reader{
		func(r io.Reader) io.Reader { return r },
		iotest.DataErrReader,
	} {
		counts, problems := run(t, wrap(io.MultiReader(strings.NewReader(other+"\n"), iotest.ErrReader(broken))))
		require.Equal(t, int64(1), counts.Events)
		require.Equal(t, []Problem{{Line: 2, Offset: bytesOf(other, "\n"), Reason: ReadError, Detail: "input/output error"}}, problems)
	}
}

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

func TestTheReportsOfSeveralLogs(t *testing.T) {
	t.Chdir(t.TempDir())
	files := map[string]string{
		"audit.log":             asked + "\n" + mint + "\n" + other[:99] + "\n" + shipped + "\n" + write + "\n" + revoke + "\n" + other[:50],
		"audit-2026.log.gz":     zipped(other+"\n"+mint+"\n") + "something else follows",
		"noise.log":             strings.Repeat(canary+"\n", 7),
		"empty.log":             "",
		"plain.log.gz":          other + "\n",
		"a\x1b[31m\nb.log":      other + "\n",
		"compressed-by-its-own": zipped(other + "\n"),
	}
	require.NoError(t, os.Mkdir("directory", 0o755))
	paths := []string{"audit.log", "audit-2026.log.gz", "noise.log", "missing.log", "directory", "-", "empty.log", "plain.log.gz", "a\x1b[31m\nb.log", "compressed-by-its-own"}
	for path, content := range files {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	report := func(of func(io.Writer) Report, shown int64) []byte {
		var out bytes.Buffer
		_, err := Run(t.Context(), Options{Paths: paths, Stdin: strings.NewReader(other + "\n"), Report: of(&out), Shown: shown,
			Progress: t.Output(), Now: time.Now})
		require.NoError(t, err)
		require.NotContains(t, out.String(), canary)
		require.NotContains(t, out.String(), "\x1b")
		return out.Bytes()
	}
	texts, all, document := report(Text, 3), report(Text, -1), report(JSON, 3)
	var decoded struct {
		Files []struct {
			File     string
			Problems []Problem
			Counts   Counts
		}
		Total Counts
	}
	require.NoError(t, json.Unmarshal(document, &decoded))
	require.Len(t, decoded.Files, len(paths))
	require.Equal(t, paths[8], decoded.Files[8].File)
	require.Len(t, decoded.Files[2].Problems, 3)
	require.Equal(t, int64(7), decoded.Files[2].Counts.Unreadable)
	var total Counts
	for _, file := range decoded.Files {
		total.add(file.Counts)
	}
	require.Equal(t, total, decoded.Total)
	t.Chdir(packageDirectory(t))
	golden(t, "report.txt", texts)
	golden(t, "report-all.txt", all)
	golden(t, "report.json", document)
}

func packageDirectory(t *testing.T) string {
	_, file, _, ok := runtime.Caller(0)
	require.True(t, ok)
	return filepath.Dir(file)
}

func TestOneLogNeedsNoTotal(t *testing.T) {
	var out bytes.Buffer
	_, err := Run(t.Context(), Options{Paths: []string{"-"}, Stdin: strings.NewReader(""), Report: Text(&out), Progress: t.Output(), Now: time.Now})
	require.NoError(t, err)
	require.Contains(t, out.String(), "(standard input)\n")
	require.NotContains(t, out.String(), "total")
}

func TestProgressIsToldEveryTwoSeconds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	log := strings.Repeat(other+"\n", 5000)
	require.NoError(t, os.WriteFile(path, []byte(log), 0o600))
	var progress bytes.Buffer
	now := time.Unix(0, 0)
	clock := func() time.Time { now = now.Add(time.Second); return now }
	o := Options{Paths: []string{path}, Report: &kept{}, Progress: &progress, Now: clock}
	_, err := Run(t.Context(), o)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(progress.String()), "\n")
	require.Greater(t, len(lines), 3, progress.String())
	require.Regexp(t, `^\d\.\d MB of 3\.0 MB read, \d+ lines/s$`, lines[0])
	for _, line := range lines[1 : len(lines)-1] { // a whole chunk a second, but at the beginning and the end
		require.Contains(t, line, fmt.Sprintf(" %d", ingest.DefaultChunk/len(other+"\n")/10)) // its last digit may be another
	}

	progress.Reset()
	o.Paths, o.Stdin = []string{StandardInput}, strings.NewReader(log)
	_, err = Run(t.Context(), o)
	require.NoError(t, err)
	require.Regexp(t, `^\d\.\d MB read, \d+ lines/s\n`, progress.String())

	progress.Reset()
	o.Now, o.Stdin = func() time.Time { return now }, strings.NewReader(log)
	_, err = Run(t.Context(), o)
	require.NoError(t, err)
	require.Empty(t, progress.String())
}

// silent gives its text once, and then says that it is waited for, and nothing more.
type silent struct {
	text   string
	waited func()
	t      *testing.T
}

func (s *silent) Read(b []byte) (int, error) {
	if n := copy(b, s.text); n > 0 {
		s.text = s.text[n:]
		return n, nil
	}
	s.waited()
	<-s.t.Context().Done() // which is when the test is over
	return 0, io.EOF
}

func TestWaitingForStandardInputEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	_, err := Run(ctx, Options{Paths: []string{"-"}, Stdin: &silent{other + "\n", cancel, t}, Report: &kept{}, Progress: t.Output(), Now: time.Now})
	require.ErrorIs(t, err, context.Canceled)
}

// full is a writer that takes nothing.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestAReportThatCannotBeWrittenIsAnError(t *testing.T) {
	for _, report := range []Report{Text(full{}), JSON(full{})} {
		_, err := Run(t.Context(), Options{Paths: []string{"-"}, Stdin: strings.NewReader(strings.Repeat(canary+"\n", 1000)), Report: report,
			Shown: -1, Progress: t.Output(), Now: time.Now})
		require.ErrorContains(t, err, "no space left on device")
	}
}

func TestMemoryIsConstantInTheLengthOfTheLog(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	line := other + "\n" + mint + "\n" + canary + "\n"
	r := &reader{tell: func(Problem) {}}
	r.begin(io.MultiReader(repeat(line, 1000), repeat(line, 20_000)))
	step := func(lines int64) {
		for r.counts.Lines < lines {
			require.NoError(t, r.read())
		}
	}
	step(2000)
	before := heap()
	step(60_000)
	require.Less(t, heap(), before+1<<20)
}

// repeat reads text n times.
func repeat(text string, n int) io.Reader {
	readers := make([]io.Reader, n)
	for i := range readers {
		readers[i] = strings.NewReader(text)
	}
	return io.MultiReader(readers...)
}

// matchesOfIngest is how many events ingest would publish out of the log.
func matchesOfIngest(log []byte) (matches int64) {
	s := ingest.NewScanner(bytes.NewReader(log), 0)
	found := func(line []byte, _ int64) { _, _ = ingest.Salvage(line, func(event.Event) { matches++ }) }
	for s.Read(found) == nil {
	}
	s.Finish(found)
	return matches
}

// FuzzCheck holds that a check finds the matches that ingest publishes, that each byte is unreadable once at most, and
// that the reads of the source make no difference.
func FuzzCheck(f *testing.F) {
	f.Add([]byte(mint + "\n" + other[:40] + mint + "\n"))
	f.Add([]byte(mint + mint[:200] + "{\"a\":1}" + write + "\n\x00\x00" + revoke))
	f.Add([]byte(shipped + "\r\n" + asked + " {} " + asked + "\n[1]" + mint))
	f.Add([]byte("{\"kind\":\"Event\"" + strings.Replace(mint, canary, "\xff", 1) + mint))
	f.Add([]byte("[1]" + strings.Replace(mint, "Event", "Ewent", 1)))
	f.Fuzz(func(t *testing.T, log []byte) {
		if bytes.HasPrefix(log, []byte("\x1f\x8b")) {
			return
		}
		whole, problems := run(t, bytes.NewReader(log))
		require.Equal(t, matchesOfIngest(log), whole.Matches())
		require.Equal(t, int64(len(log)), whole.Bytes)
		require.LessOrEqual(t, whole.UnreadableBytes, whole.Bytes)
		var line int64
		for _, p := range problems {
			require.Greater(t, p.Line, line)
			require.LessOrEqual(t, p.Offset+p.Bytes, whole.Bytes)
			require.Equal(t, p.Line, int64(bytes.Count(log[:p.Offset], []byte{'\n'}))+1)
			line = p.Line
		}
		pieces, again := run(t, iotest.HalfReader(bytes.NewReader(log)))
		require.Equal(t, whole, pieces)
		require.Equal(t, problems, again)
	})
}

func TestRandomDamageHidesNoMatchThatIngestFinds(t *testing.T) {
	lines := []string{other, mint, asked, revoke, write, read, shipped, "{\"a\":1}", "", "\x00\x00"}
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 5))
		var log bytes.Buffer
		for range random.IntN(12) {
			line := lines[random.IntN(len(lines))]
			log.WriteString(line[:len(line)-random.IntN(1+min(len(line), random.IntN(3)*200))])
			if random.IntN(3) > 0 {
				log.WriteByte('\n')
			}
		}
		counts, _ := run(t, bytes.NewReader(log.Bytes()))
		require.Equal(t, matchesOfIngest(log.Bytes()), counts.Matches(), "seed %d", seed)
	}
}

// BenchmarkCheck reads a log in which one line in 1,000 is ours.
func BenchmarkCheck(b *testing.B) {
	log := []byte(strings.Repeat(strings.Repeat(other+"\n", 999)+mint+"\n", 20))
	b.SetBytes(int64(len(log)))
	b.ReportAllocs()
	for b.Loop() {
		counts, err := Run(b.Context(), Options{Paths: []string{"-"}, Stdin: bytes.NewReader(log), Report: &kept{}, Progress: io.Discard, Now: time.Now})
		if err != nil || counts.Events != 20_000 || counts.Matches() != 20 {
			b.Fatal(counts, err)
		}
	}
}
