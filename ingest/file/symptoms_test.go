package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/event"
)

// The tests of this file are named after what users of other readers of rotating logs reported.

func TestOneLongLineDoesNotStopTheRestOfTheFile(t *testing.T) {
	b := newBench(t)
	b.append(mintLine("a"), longLine("b", 100<<10), mintLine("c"), longLine("d", 3<<19), mintLine("e"))
	tooLong := longLine("never", 9<<20)
	b.append(tooLong, mintLine("f"))
	b.start()
	b.arrive("a", "b", "c", "d", "e", "f")
	require.Equal(t, float64(len(tooLong)), b.dropped(oversized))
}

func TestALongLineRightBesideAMintHidesNothing(t *testing.T) {
	b := newBench(t)
	b.start()
	tooLong := longLine("never", 9<<20)
	b.append(mintLine("a")+tooLong[:5<<20], tooLong[5<<20:]+mintLine("b"))
	b.arrive("a", "b")
}

func TestNothingIsLostWhenTheLogRotatesAtFullRate(t *testing.T) {
	b := newBench(t)
	b.append()
	b.start()
	all := ids("e", 0, 3000)
	for i, id := range all {
		b.append(otherLine("x"), mintLine(id))
		if i%20 == 19 {
			b.rotate()
		}
	}
	b.arrive(all...)
	require.Zero(t, b.gaps())
}

func TestWhatIsWrittenBetweenTheEndAndTheRotationIsRead(t *testing.T) {
	b := newBench(t)
	b.append(mintLine("a"))
	f := b.step()
	require.ErrorIs(t, f.current.read(f.found), io.EOF)
	b.append(mintLine("b"))
	b.rotate()
	progressed, err := f.atEnd(context.Background()) // sees the rotation
	require.NoError(t, err)
	require.True(t, progressed)
	b.stepOn(f)
	require.Equal(t, []string{"a", "b"}, b.recorder.ids())
	f.close()
}

func TestReadingNeverStartsInMidLine(t *testing.T) {
	b := newBench(t)
	all := ids("e", 0, 400)
	b.append()
	b.start()
	for i, id := range all {
		line := mintLine(id)
		cut := (i * 37) % len(line)
		b.append(line[:cut])
		if i%40 == 0 {
			b.restart()
		}
		b.append(line[cut:])
	}
	b.arrive(all...)
	require.Zero(t, b.dropped("malformed"))
	require.Zero(t, b.dropped(torn))
}

func TestAKillBetweenPublicationAndCheckpointRepeatsEventsAndLosesNone(t *testing.T) {
	b := newBench(t)
	all := ids("e", 0, 20)
	b.append(lines(all[:10])...)
	b.start()
	b.arrive(all[:10]...)
	b.halt()
	checkpoint, err := os.ReadFile(b.options.Checkpoint)
	require.NoError(t, err)
	b.append(lines(all[10:])...)
	b.start()
	b.arrive(all...)
	b.halt()
	require.NoError(t, os.WriteFile(b.options.Checkpoint, checkpoint, 0o600))
	b.start()
	b.arrive(append(all, all[10:]...)...)
	require.Equal(t, b.recorder.events[10].Identity(), b.recorder.events[20].Identity())
}

func TestRotatedFilesAreNotReadAgain(t *testing.T) {
	b := newBench(t)
	b.append(mintLine("a"))
	b.rotate()
	b.append(mintLine("b"))
	b.rotate()
	b.append(mintLine("c"))
	appendTo(t, filepath.Join(filepath.Dir(b.path), "audit-node.log"), mintLine("another log"))
	appendTo(t, filepath.Join(filepath.Dir(b.path), "audit.log.1"), mintLine("another log"))
	b.start()
	b.arrive("a", "b", "c")
	b.restart()
	b.append(mintLine("d"))
	b.arrive("a", "b", "c", "d")
	b.compress(b.rotate())
	b.append(mintLine("e"))
	b.arrive("a", "b", "c", "d", "e")
}

func TestACheckpointBeyondTheEndOfAnotherFileIsNotBelieved(t *testing.T) {
	b := newBench(t)
	b.append(lines(ids("a", 0, 50))...)
	b.start()
	b.arrive(ids("a", 0, 50)...)
	b.halt()
	require.NoError(t, os.Remove(b.rotate()))
	require.NoError(t, os.Remove(b.path))
	b.append(mintLine("b"))
	b.start()
	b.arrive(append(ids("a", 0, 50), "b")...)
	require.Equal(t, 1.0, b.gaps())
	b.halt()
	require.Contains(t, b.log.String(), "A part of the audit log is missing")
}

func TestALogThatIsRotatedWhileItIsLookedForIsFound(t *testing.T) {
	b := newBench(t)
	b.append(mintLine("a"))
	b.start()
	b.arrive("a")
	b.halt()
	b.options.Registerer = nil
	for range 300 {
		tailer, err := New(b.options)
		require.NoError(t, err)
		f := tailer.followers[0]
		rotated := make(chan string)
		go func() {
			for range rand.IntN(20) {
				runtime.Gosched()
			}
			rotated <- b.rotate()
		}()
		require.NoError(t, f.resume())
		require.NoError(t, os.Rename(<-rotated, b.path))
		require.Nil(t, f.loss)
		require.NotNil(t, f.current)
		f.close()
	}
}

func TestADamagedCheckpointIsReportedAndEverythingIsReadAgain(t *testing.T) {
	for name, damage := range map[string]func(text string) string{
		"empty":     func(string) string { return "" },
		"truncated": func(text string) string { return text[:len(text)/2] },
		"foreign":   func(string) string { return `{"offset": 1000000}` },
		"newer":     func(text string) string { return strings.Replace(text, `"version":2`, `"version":3`, 1) },
		"zeroes":    func(text string) string { return strings.Repeat("\x00", len(text)) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.append(lines(ids("e", 0, 10))...)
			b.start()
			b.arrive(ids("e", 0, 10)...)
			b.halt()
			text, err := os.ReadFile(b.options.Checkpoint)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(b.options.Checkpoint, []byte(damage(string(text))), 0o600))
			b.append(mintLine("later"))
			b.start()
			b.arrive(append(append(ids("e", 0, 10), ids("e", 0, 10)...), "later")...)
			b.halt()
			require.Contains(t, b.log.String(), "The checkpoint cannot be used")
		})
	}
}

func TestACheckpointWithAWrongOffsetIsNotBelieved(t *testing.T) {
	for _, wrong := range []string{`"offset":17`, `"offset":100000000`, `"offset":-5`} {
		b := newBench(t)
		b.append(mintLine("a"), mintLine("b"))
		b.start()
		b.arrive("a", "b")
		b.halt()
		text, err := os.ReadFile(b.options.Checkpoint)
		require.NoError(t, err)
		right := fmt.Sprintf(`"offset":%d`, 2*len(mintLine("a")))
		require.Contains(t, string(text), right)
		require.NoError(t, os.WriteFile(b.options.Checkpoint, []byte(strings.Replace(string(text), right, wrong, 1)), 0o600))
		b.start()
		b.arrive("a", "b", "a", "b")
		require.Equal(t, 1.0, b.gaps())
	}
}

func TestTruncateAndRewriteInPlaceGivesEachEventOnce(t *testing.T) {
	b := newBench(t)
	b.append(mintLine("a"), mintLine("b"))
	b.start()
	b.arrive("a", "b")
	b.read() // to its end: what is written in place of what is just being read is read from its middle
	require.NoError(t, os.Truncate(b.path, 0))
	b.append(mintLine("c"))
	b.arrive("a", "b", "c")
	b.read()
	// Longer than before, so that the size says nothing.
	require.NoError(t, os.WriteFile(b.path, []byte(strings.Join(lines(ids("d", 0, 10)), "")), 0o600))
	b.arrive(append([]string{"a", "b", "c"}, ids("d", 0, 10)...)...)
	b.halt()
	require.NoError(t, os.WriteFile(b.path, []byte(strings.Join(lines(ids("f", 0, 20)), "")), 0o600))
	b.start()
	b.arrive(append(append([]string{"a", "b", "c"}, ids("d", 0, 10)...), ids("f", 0, 20)...)...)
}

func TestWhatATruncationTookUnreadIsAGap(t *testing.T) {
	b := newBench(t)
	b.append(mintLine("a"), mintLine("b")[:200])
	b.start()
	b.arrive("a")
	require.True(t, waitFor(func() bool { return testutil.ToFloat64(b.tailer.metrics.lag) == 200 }))
	require.NoError(t, os.Truncate(b.path, 0))
	b.append(mintLine("c"))
	b.arrive("a", "c")
	require.Equal(t, 1.0, b.gaps())
	require.Equal(t, 200.0, b.dropped(truncated))
}

func TestAPartialLineThatWasReplacedIsNotJoinedWithWhatCameInstead(t *testing.T) {
	for _, cut := range []int{150, 200, 250, 400} { // what was read of the line had 200 bytes
		b := newBench(t)
		b.append(mintLine("a"), mintLine("b")[:200])
		f := b.step()
		require.Equal(t, int64(200), f.current.scanner.Pending())
		require.NoError(t, os.WriteFile(b.path, []byte(mintLine("a")+mintLine("c")[:cut]), 0o600))
		b.stepOn(f)
		b.append(mintLine("c")[cut:], mintLine("d"))
		b.stepOn(f)
		require.Equal(t, []string{"a", "a", "c", "d"}, b.recorder.ids(), "cut at %d", cut)
		require.Equal(t, 200.0, testutil.ToFloat64(f.tailer.metrics.droppedBytes.WithLabelValues("audit.log", truncated)))
		f.close()
	}
}

func TestAnotherFileOnTheSameInodeIsReadFromItsBeginning(t *testing.T) {
	b := newBench(t)
	b.append(lines(ids("a", 0, 5))...)
	b.start()
	b.arrive(ids("a", 0, 5)...)
	b.halt()
	inode := func() uint64 {
		info, err := os.Stat(b.path)
		require.NoError(t, err)
		return info.Sys().(*syscall.Stat_t).Ino
	}
	before := inode()
	// The file system may give the inode to another file: write anew what has it for sure.
	require.NoError(t, os.WriteFile(b.path, []byte(strings.Join(lines(ids("b", 0, 9)), "")), 0o600))
	require.Equal(t, before, inode())
	b.start()
	b.arrive(append(ids("a", 0, 5), ids("b", 0, 9)...)...)
}

func TestAFileOfWhichNothingWasReadIsNotKnownByItsInode(t *testing.T) {
	b := newBench(t)
	b.append()
	b.start()
	b.read()
	b.halt()
	b.append(mintLine("a"))
	inode := filepath.Join(filepath.Dir(b.path), "kept")
	backup := b.rotate()
	require.NoError(t, os.Link(backup, inode))
	b.compress(backup)
	require.NoError(t, os.Rename(inode, b.path)) // as if the file system had given the log the old inode again
	require.NoError(t, os.WriteFile(b.path, []byte(mintLine("b")), 0o600))
	b.start()
	b.arrive("a", "b")
}

func TestDeletingAndRecreatingTheLogSkipsNothing(t *testing.T) {
	b := newBench(t)
	b.append(mintLine("a"))
	b.start()
	b.arrive("a")
	require.NoError(t, os.Remove(b.path))
	b.append(mintLine("b"))
	b.arrive("a", "b")
	require.NoError(t, os.Remove(b.path))
	b.append(mintLine("c"), mintLine("d"))
	b.arrive("a", "b", "c", "d")
}

func TestFilesThatBeginAlikeAreToldApart(t *testing.T) {
	b := newBench(t)
	common := strings.Repeat(otherLine("the same"), 40) // longer than a fingerprint's head
	b.append(common, mintLine("a"))
	b.start()
	b.arrive("a")
	b.halt()
	require.NoError(t, os.Remove(b.rotate()))
	require.NoError(t, os.WriteFile(b.path, []byte(common+mintLine("b")+mintLine("c")), 0o600))
	b.start()
	b.arrive("a", "b", "c")
}

func TestTheEventBehindACrashsPartialLineArrives(t *testing.T) {
	b := newBench(t)
	part := mintLine("torn")[:400]
	b.append(mintLine("a"), part, mintLine("b"), mintLine("c"))
	b.start()
	b.arrive("a", "b", "c")
	require.Equal(t, 400.0, b.dropped(torn))
	// A whole event at the end of a file that is rotated, and a part of one.
	b.append(strings.TrimSuffix(mintLine("d"), "\n"))
	b.rotate()
	b.append(mintLine("e")[:300])
	b.rotate()
	b.append(mintLine("f"))
	b.arrive("a", "b", "c", "d", "f")
	require.Equal(t, 300.0, b.dropped("malformed"))
}

func TestCompressedBackupsAreReadWhereThePlainOnesAreGone(t *testing.T) {
	b := newBench(t)
	all := ids("e", 0, 50)
	for i := 0; i < 50; i += 10 {
		b.append(lines(all[i : i+10])...)
		if i < 40 {
			b.compress(b.rotate())
		}
	}
	b.start()
	b.arrive(all...)
	require.Zero(t, b.gaps())
}

func TestTheFileThatWasReadIsFoundAgainCompressed(t *testing.T) {
	b := newBench(t)
	all := ids("e", 0, 60)
	b.append(lines(all[:20])...)
	b.start()
	b.arrive(all[:20]...)
	b.halt()
	b.append(lines(all[20:40])...)
	b.compress(b.rotate())
	b.append(lines(all[40:])...)
	b.start()
	b.arrive(all...)
	require.Zero(t, b.gaps())
	b.restart()
	b.append(mintLine("last"))
	b.arrive(append(all, "last")...)
}

func TestAHalfWrittenCompressedBackupIsAGapAndStopsNothing(t *testing.T) {
	b := newBench(t)
	all := ids("e", 0, 2000)
	b.append(lines(all)...)
	backup := b.rotate()
	b.compress(backup)
	text, err := os.ReadFile(backup + ".gz")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(backup+".gz", text[:len(text)-1000], 0o600))
	b.append(mintLine("last"))
	require.NoError(t, os.Rename(b.path, b.path+".away"))
	appendTo(t, b.path, "")
	empty := b.rotate()
	require.NoError(t, os.Rename(empty, empty+".gz"))
	require.NoError(t, os.Rename(b.path+".away", b.path))
	b.start()
	require.True(t, waitFor(func() bool {
		got := b.recorder.ids()
		return len(got) > 0 && got[len(got)-1] == "last"
	}))
	got := b.recorder.ids()
	require.Greater(t, len(got), 100)
	require.Equal(t, all[:len(got)-1], got[:len(got)-1])
	require.Equal(t, 2.0, b.gaps())
}

func TestWhileACompressedBackupIsWrittenThePlainOneIsRead(t *testing.T) {
	b := newBench(t)
	b.append(mintLine("a"))
	backup := b.rotate()
	require.NoError(t, os.WriteFile(backup+".gz", []byte("half"), 0o600))
	b.append(mintLine("b"))
	b.start()
	b.arrive("a", "b")
	require.NoError(t, os.Remove(backup))
	b.restart()
	b.append(mintLine("c"))
	b.arrive("a", "b", "c")
	require.Zero(t, b.gaps())
}

func TestAFailedPublicationIsRepeatedUntilItIsAcknowledged(t *testing.T) {
	b := newBench(t)
	var mu sync.Mutex
	failures := 0
	b.recorder.fail = func() error {
		mu.Lock()
		defer mu.Unlock()
		if failures++; failures <= 5 {
			return errors.New("the stream is full")
		}
		return nil
	}
	b.append(mintLine("a"), mintLine("b"))
	b.start()
	b.append(mintLine("c"))
	b.arrive("a", "b", "c")
	require.Equal(t, 5.0, testutil.ToFloat64(b.tailer.metrics.publishFailures))
	b.halt()
	require.Equal(t, 1, strings.Count(b.log.String(), "Events cannot be published"))
	require.Equal(t, 1, strings.Count(b.log.String(), "Events are published again"))
}

func TestNoCheckpointMovesBeforeThePublicationIsAcknowledged(t *testing.T) {
	b := newBench(t)
	b.append(mintLine("a"))
	b.start()
	b.arrive("a")
	b.halt()
	b.recorder.fail = func() error { return errors.New("the stream is down") }
	b.append(mintLine("b"))
	b.start()
	require.True(t, waitFor(func() bool { return testutil.ToFloat64(b.tailer.metrics.publishFailures) > 2 }))
	require.Equal(t, int64(len(mintLine("a"))), b.tailer.offset(b.path))
	b.halt()
	b.recorder.fail = nil
	b.start()
	b.arrive("a", "b")
}

// slow is a Publisher that takes its time and acknowledges nothing whose context ended.
type slow struct {
	*recorder
	begun chan struct{}
}

func (s *slow) Publish(ctx context.Context, events []event.Event) error {
	close(s.begun)
	time.Sleep(50 * time.Millisecond)
	return s.recorder.Publish(ctx, events)
}

func TestAPublicationUnderWayIsWaitedForAtTheStop(t *testing.T) {
	b := newBench(t)
	s := &slow{b.recorder, make(chan struct{})}
	b.options.Publisher = s
	b.append(mintLine("a"))
	b.start()
	<-s.begun
	b.halt()
	b.options.Publisher = b.recorder
	b.start()
	b.append(mintLine("b"))
	b.arrive("a", "b")
}

func TestTwoLogsAtOnceAreTwoSources(t *testing.T) {
	b := newBench(t)
	other := filepath.Join(t.TempDir(), "audit.log")
	b.options.Paths = []string{b.path, other}
	b.options.Names = map[string]string{other: "second"}
	b.start()
	b.append(mintLine("a"))
	b.arrive("a")
	appendTo(t, other, mintLine("b"))
	b.arrive("a", "b")
	b.restart()
	b.append(mintLine("c"))
	b.arrive("a", "b", "c")
	require.Equal(t, []string{"file:audit.log", "file:second", "file:audit.log"},
		[]string{b.recorder.events[0].Source, b.recorder.events[1].Source, b.recorder.events[2].Source})
}

func TestSourcesAreNamedApart(t *testing.T) {
	f := func(paths []string, configured map[string]string, want ...string) {
		t.Helper()
		names, err := sourceNames(paths, configured)
		require.NoError(t, err)
		require.Equal(t, want, names)
	}
	f([]string{"/a/audit.log"}, nil, "audit.log")
	f([]string{"/a/audit.log", "/b/other.log"}, nil, "audit.log", "other.log")
	f([]string{"/a/audit.log", "/b/audit.log"}, nil, "/a/audit.log", "/b/audit.log")
	f([]string{"/a/audit.log", "/b/audit.log"}, map[string]string{"/a/audit.log": "one"}, "one", "audit.log")
	_, err := sourceNames([]string{"/a/audit.log", "/a/audit.log"}, nil)
	require.Error(t, err)
}

func TestALogInADirectoryThatComesLaterIsFollowed(t *testing.T) {
	b := newBench(t)
	b.path = filepath.Join(filepath.Dir(b.path), "later", "audit.log")
	b.options.Paths = []string{b.path}
	b.options.Poll = 5 * time.Millisecond
	b.start()
	require.NoError(t, os.Mkdir(filepath.Dir(b.path), 0o700))
	b.append(mintLine("a"))
	b.arrive("a")
}

func TestANewLineIsReadOnNotificationWithoutAPoll(t *testing.T) {
	b := newBench(t)
	b.options.Poll = time.Hour
	b.append()
	b.start()
	b.read()
	for i, id := range ids("e", 0, 50) {
		b.append(mintLine(id))
		b.arrive(ids("e", 0, i+1)...)
	}
	b.rotate()
	b.append(mintLine("last"))
	b.arrive(append(ids("e", 0, 50), "last")...)
}

func TestALogOfAnotherTypeIsAnErrorThatIsToldOnce(t *testing.T) {
	b := newBench(t)
	b.options.Poll = time.Millisecond
	require.NoError(t, os.Mkdir(b.path, 0o700))
	b.start()
	require.True(t, waitFor(func() bool { return testutil.ToFloat64(b.tailer.metrics.readFailures) > 3 }))
	require.NoError(t, os.Remove(b.path))
	b.append(mintLine("a"))
	b.arrive("a")
	b.halt()
	require.Equal(t, 1, strings.Count(b.log.String(), "cannot be read"))
	require.Equal(t, 1, strings.Count(b.log.String(), "is read again"))
}

func TestEveryByteAndLineIsCounted(t *testing.T) {
	b := newBench(t)
	broken := strings.Replace(mintLine("broken"), `"auditID":"broken"`, `"auditID":""`, 1)
	b.append(otherLine("x"), mintLine("a"), broken, "\n", otherLine("y"))
	b.start()
	b.arrive("a")
	b.read()
	m := b.tailer.metrics
	info, err := os.Stat(b.path)
	require.NoError(t, err)
	require.Equal(t, float64(info.Size()), testutil.ToFloat64(m.readBytes))
	require.Equal(t, 5.0, testutil.ToFloat64(m.lines))
	require.Equal(t, 1.0, testutil.ToFloat64(m.matched))
	require.Equal(t, 1.0, testutil.ToFloat64(m.published))
	require.Equal(t, 1.0, testutil.ToFloat64(m.decodeErrors.WithLabelValues("audit.log", "incomplete")))
	require.Equal(t, float64(len(broken)-1), b.dropped("incomplete"))
	problems, err := testutil.GatherAndLint(b.registry)
	require.NoError(t, err)
	require.Empty(t, problems)
	b.halt()
	require.Contains(t, b.log.String(), "reason=incomplete")
	require.Zero(t, b.tailer.checkpoints.age())
}

func TestACheckpointThatCannotBeWrittenIsToldOnceAndStopsNothing(t *testing.T) {
	b := newBench(t)
	directory := filepath.Join(filepath.Dir(b.path), "state")
	b.options.Checkpoint = filepath.Join(directory, "checkpoint.json")
	b.append(mintLine("a"))
	b.start()
	b.arrive("a")
	require.True(t, waitFor(func() bool { return testutil.ToFloat64(b.tailer.metrics.checkpointFailures) > 0 }))
	require.Positive(t, b.tailer.checkpoints.age())
	require.NoError(t, os.Mkdir(directory, 0o700))
	require.True(t, waitFor(func() bool { return b.tailer.checkpoints.age() == 0 }))
	b.restart()
	b.append(mintLine("b"))
	b.arrive("a", "b")
}

func TestALongBacklogTellsHowFarItIs(t *testing.T) {
	var text bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&text, nil))
	start := time.Date(2026, 8, 21, 10, 0, 0, 0, time.UTC)
	var b backlog
	f := func(after time.Duration, want int) {
		t.Helper()
		b.bytes, b.events = b.bytes+100, b.events+1
		b.tell(logger, start.Add(after), 1000)
		require.Equal(t, want, strings.Count(text.String(), "Reading a backlog"))
	}
	f(0, 0)
	f(1900*time.Millisecond, 0)
	f(2*time.Second, 1)
	require.Contains(t, text.String(), "bytes=300 of=1300 events=3")
	f(6*time.Second, 1)
	f(7*time.Second, 2)
}

func TestTheLagIsWhatIsLeftInAllFiles(t *testing.T) {
	b := newBench(t)
	b.append(lines(ids("e", 0, 1000))...)
	b.rotate()
	b.append(mintLine("second"))
	b.rotate()
	b.append(mintLine("last")[:100])
	tailer, err := New(b.options)
	require.NoError(t, err)
	f := tailer.followers[0]
	lag := func() float64 { f.measure(); return testutil.ToFloat64(tailer.metrics.lag) }
	_, err = f.step(context.Background())
	require.NoError(t, err)
	size := len(strings.Join(lines(ids("e", 0, 1000)), ""))
	require.Equal(t, float64(size+len(mintLine("second"))+100), lag())
	b.stepOn(f)
	require.Equal(t, 100.0, lag())
	f.close()
}

func TestThePositionIsTheTimeOfTheLastLineThatWasReadToItsEnd(t *testing.T) {
	b := newBench(t)
	b.append(at(minute(1), mintLine("a")), at(minute(2), mintLine("b")), at(minute(3), mintLine("c"))[:200])
	f := b.step()
	f.measure()
	require.Equal(t, float64(minute(2).Unix()), testutil.ToFloat64(f.tailer.metrics.position))
	b.append(at(minute(3), mintLine("c"))[200:])
	b.stepOn(f)
	f.measure()
	require.Equal(t, float64(minute(3).Unix()), testutil.ToFloat64(f.tailer.metrics.position))
	f.close()
}
