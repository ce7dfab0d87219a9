package file

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/gap"
)

// recorder is a Publisher and a GapRecorder that keeps what it acknowledged.
type recorder struct {
	mu     sync.Mutex
	events []event.Event
	gaps   map[string]gap.Gap // by identity
	fail   func() error       // asked before every publication
	noGaps func() error       // asked before every gap
}

func (r *recorder) RecordGap(_ context.Context, g gap.Gap) error {
	if r.noGaps != nil {
		if err := r.noGaps(); err != nil {
			return err
		}
	}
	if _, err := g.Encode(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gaps == nil {
		r.gaps = map[string]gap.Gap{}
	}
	if before, known := r.gaps[g.Identity()]; known {
		g = before.FoundAgain(g)
	}
	r.gaps[g.Identity()] = g
	return nil
}

// recorded are the gaps, in the order of their beginnings.
func (r *recorder) recorded() []gap.Gap {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.SortedFunc(maps.Values(r.gaps), func(a, b gap.Gap) int { return a.From.Compare(b.From) })
}

func (r *recorder) Publish(ctx context.Context, events []event.Event) error {
	if r.fail != nil {
		if err := r.fail(); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, events...)
	return ctx.Err()
}

// ids are the audit ids of what was acknowledged, in order.
func (r *recorder) ids() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := make([]string, len(r.events))
	for i, e := range r.events {
		ids[i] = e.AuditID
	}
	return ids
}

// mintLine is a line of kube-apiserver's for a mint, with its line break.
func mintLine(id string) string { return auditLine(id, "credentials.cozystack.io", "") }

// noon is when the lines are written that say when.
var noon = time.Date(2026, 8, 21, 12, 0, 0, 0, time.UTC)

// minute is noon and some minutes.
func minute(n int) time.Time { return noon.Add(time.Duration(n) * time.Minute) }

// at has a line be written at a time.
func at(t time.Time, line string) string {
	return strings.Replace(line, `"stageTimestamp":"2026-08-21T10:00:00.100001Z"`, `"stageTimestamp":"`+t.Format(time.RFC3339Nano)+`"`, 1)
}

// otherLine is one of no interest here.
func otherLine(id string) string { return auditLine(id, "apps", "") }

// longLine is a mint whose client made its line longer than the given number of bytes.
func longLine(id string, length int) string {
	return auditLine(id, "credentials.cozystack.io", strings.Repeat("a", length))
}

func auditLine(id, group, pad string) string {
	return fmt.Sprintf(`{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"%s",`+
		`"stage":"ResponseComplete","requestURI":"/apis/%s/v1alpha1/namespaces/tenant-acme/credentials/postgres-orders.app/mint?pad=%s",`+
		`"verb":"create","user":{"username":"jane","groups":["tenant-acme-admin","system:authenticated"]},`+
		`"sourceIPs":["10.0.0.1"],"userAgent":"curl","objectRef":{"resource":"credentials","namespace":"tenant-acme",`+
		`"name":"postgres-orders.app","apiGroup":"%s","apiVersion":"v1alpha1","subresource":"mint"},`+
		`"responseStatus":{"metadata":{},"code":201},"requestReceivedTimestamp":"2026-08-21T10:00:00.000001Z",`+
		`"stageTimestamp":"2026-08-21T10:00:00.100001Z","annotations":{"authorization.k8s.io/decision":"allow"}}`+"\n",
		id, group, pad, group)
}

// bench is a directory with a log, and a Tailer that follows it.
type bench struct {
	t        *testing.T
	path     string // of the log
	options  Options
	recorder *recorder
	registry *prometheus.Registry
	log      *bytes.Buffer // what the Tailer logged; read it when it is stopped
	tailer   *Tailer
	stop     context.CancelFunc
	done     chan error
	rotated  int
}

func newBench(t *testing.T) *bench {
	directory := t.TempDir()
	b := &bench{t: t, path: filepath.Join(directory, "audit.log"), recorder: &recorder{}, log: &bytes.Buffer{}}
	b.options = Options{
		Paths: []string{b.path}, Checkpoint: filepath.Join(directory, "checkpoint.json"), Publisher: b.recorder, Gaps: b.recorder,
		Log: slog.New(slog.NewTextHandler(b.log, nil)), RetryFirst: time.Millisecond,
	}
	t.Cleanup(func() {
		if b.stop != nil {
			b.halt()
		}
	})
	return b
}

// start starts a Tailer on what the last one left.
func (b *bench) start() {
	b.t.Helper()
	b.registry = prometheus.NewRegistry()
	b.options.Registerer = b.registry
	var err error
	b.tailer, err = New(b.options)
	require.NoError(b.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	tailer := b.tailer
	go func() { done <- tailer.Run(ctx) }()
	b.stop, b.done = cancel, done
}

// halt stops the Tailer as SIGTERM does.
func (b *bench) halt() {
	b.t.Helper()
	b.stop()
	require.NoError(b.t, <-b.done)
	b.stop = nil
}

// restart is halt and start.
func (b *bench) restart() {
	b.halt()
	b.start()
}

// step reads the log to its end without a Tailer that runs, so that a test decides what happens in between.
func (b *bench) step() *follower {
	b.t.Helper()
	tailer, err := New(b.options)
	require.NoError(b.t, err)
	b.stepOn(tailer.followers[0])
	return tailer.followers[0]
}

// stepOn does so again, as after a wait.
func (b *bench) stepOn(f *follower) {
	b.t.Helper()
	f.idle = f.current != nil
	for progressed := true; progressed; {
		var err error
		progressed, err = f.step(context.Background())
		require.NoError(b.t, err)
		f.measure()
	}
}

func (b *bench) append(lines ...string) { appendTo(b.t, b.path, lines...) }

func appendTo(t *testing.T, path string, lines ...string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	require.NoError(t, err)
	for _, line := range lines {
		_, err = file.WriteString(line)
		require.NoError(t, err)
	}
	require.NoError(t, file.Close())
}

// rotate renames the log as kube-apiserver does, and returns its new path.
func (b *bench) rotate() string {
	b.t.Helper()
	b.rotated++
	stamp := time.Date(2026, 8, 21, 10, 0, 0, b.rotated*int(time.Millisecond), time.UTC).Format(backupTime)
	backup := filepath.Join(filepath.Dir(b.path), "audit-"+stamp+".log")
	require.NoError(b.t, os.Rename(b.path, backup))
	appendTo(b.t, b.path)
	return backup
}

// compress makes a rotated file a compressed one.
func (b *bench) compress(path string) {
	b.t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(b.t, err)
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, err = w.Write(text)
	require.NoError(b.t, errors.Join(err, w.Close()))
	require.NoError(b.t, os.WriteFile(path+".gz", zipped.Bytes(), 0o600))
	require.NoError(b.t, os.Remove(path))
}

// arrive waits until exactly the events with these ids have been published, in this order.
func (b *bench) arrive(ids ...string) {
	b.t.Helper()
	if !waitFor(func() bool { return len(b.recorder.ids()) >= len(ids) }) {
		require.Equal(b.t, ids, b.recorder.ids(), "what was published within the time")
	}
	require.Equal(b.t, ids, b.recorder.ids())
}

// read waits until the Tailer has nothing left to read.
func (b *bench) read() {
	b.t.Helper()
	require.True(b.t, waitFor(func() bool {
		return b.tailer.atEndOf(b.path) && testutil.ToFloat64(b.tailer.metrics.lag) == 0
	}), "the log was not read to its end in time")
}

func waitFor(done func() bool) bool {
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if done() {
			return true
		}
	}
	return false
}

// offset is how far the log at path has been published.
func (t *Tailer) offset(path string) int64 {
	s, known := t.checkpoints.get(path)
	if !known {
		return -1
	}
	if s.Place == nil || s.Done {
		return 0
	}
	return s.Place.Offset
}

// atEndOf reports whether the checkpoint is at the end of the file that is the log at path now.
func (t *Tailer) atEndOf(path string) bool {
	log, err := theLog(path)
	s, known := t.checkpoints.get(path)
	if err != nil || log == nil || !known {
		return false
	}
	if s.Place != nil && !s.Done {
		return s.Place.ID.sameInode(log.id) && s.Place.Offset == log.size
	}
	return log.size == 0 && slices.ContainsFunc(s.Coming, func(c coming) bool { return c.ID.sameInode(log.id) })
}

func (b *bench) gaps() float64 {
	return testutil.ToFloat64(b.tailer.metrics.gaps.WithLabelValues("audit.log"))
}

func (b *bench) dropped(reason string) float64 {
	return testutil.ToFloat64(b.tailer.metrics.droppedBytes.WithLabelValues("audit.log", reason))
}

func ids(prefix string, from, to int) []string {
	var list []string
	for i := from; i < to; i++ {
		list = append(list, fmt.Sprintf("%s%d", prefix, i))
	}
	return list
}

func lines(ids []string) []string {
	var list []string
	for _, id := range ids {
		list = append(list, otherLine("other-"+id), mintLine(id))
	}
	return list
}

func TestEventsAreReadFromTheBeginningAndAsTheyCome(t *testing.T) {
	b := newBench(t)
	b.append(otherLine("x"), mintLine("a"), mintLine("b"))
	b.start()
	b.arrive("a", "b")
	b.append(otherLine("y"), mintLine("c"))
	b.arrive("a", "b", "c")
	require.Equal(t, "file:audit.log", b.recorder.events[2].Source)
	b.restart()
	b.append(mintLine("d"))
	b.arrive("a", "b", "c", "d")
}

func TestAPartialLineHoldsThePositionAtItsStart(t *testing.T) {
	b := newBench(t)
	whole := mintLine("a")
	b.append(whole, mintLine("b")[:300])
	b.start()
	b.arrive("a")
	b.restart()
	require.True(t, waitFor(func() bool { return b.tailer.offset(b.path) == int64(len(whole)) }))
	b.append(mintLine("b")[300:])
	b.arrive("a", "b")
}

func TestNothingIsLostOverTwoRotationsAndARestart(t *testing.T) {
	b := newBench(t)
	all := ids("e", 0, 150)
	b.append(lines(all[:35])...)
	b.start()
	b.arrive(all[:35]...)
	b.halt()
	b.append(lines(all[35:70])...)
	b.rotate()
	b.append(lines(all[70:110])...)
	b.rotate()
	b.append(lines(all[110:])...)
	b.start()
	b.arrive(all...)
	b.read()
	require.Zero(t, b.gaps())
}
