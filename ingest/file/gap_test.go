package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/gap"
)

// gap waits until there is just this gap.
func (b *bench) gap(reason string, from, until time.Time, bytes int64) {
	b.t.Helper()
	require.True(b.t, waitFor(func() bool { return len(b.recorder.recorded()) > 0 }), "no gap was recorded")
	gaps := b.recorder.recorded()
	require.Len(b.t, gaps, 1)
	require.Contains(b.t, gaps[0].Reason, reason)
	require.Equal(b.t, "file:audit.log", gaps[0].Source)
	require.Equal(b.t, from.String(), gaps[0].From.String())
	require.Equal(b.t, until.String(), gaps[0].Until.String())
	require.Equal(b.t, bytes, gaps[0].Bytes)
	require.False(b.t, gaps[0].FoundAt.IsZero())
}

// before and after are the bounds of a gap between lines of these times.
func before(t time.Time) time.Time { return t.Add(-disorder).Truncate(beginning) }
func after(t time.Time) time.Time  { return t.Add(disorder) }

func TestAFileThatIsGoneIsAGapBetweenTheLinesAroundIt(t *testing.T) {
	b := newBench(t)
	b.append(at(minute(0), mintLine("a")), at(minute(1), otherLine("x")))
	b.start()
	b.arrive("a")
	b.halt()
	b.append(at(minute(2), mintLine("lost")))
	require.NoError(t, os.Remove(b.rotate()))
	b.append(at(minute(3), mintLine("lost as well")))
	require.NoError(t, os.Remove(b.rotate()))
	b.append(at(minute(4), otherLine("y")), at(minute(5), mintLine("b")))
	b.start()
	b.arrive("a", "b")
	b.gap("gone", before(minute(1)), after(minute(4)), 0)
	b.restart()
	b.append(mintLine("c"))
	b.arrive("a", "b", "c")
	b.gap("gone", before(minute(1)), after(minute(4)), 0)
}

func TestAFileThatIsGoneWithNothingBehindItIsAGapUntilNow(t *testing.T) {
	b := newBench(t)
	b.options.Now = func() time.Time { return minute(9) }
	b.append(at(minute(0), mintLine("a")))
	b.start()
	b.arrive("a")
	b.halt()
	require.NoError(t, os.Remove(b.rotate()))
	b.start()
	b.gap("gone", before(minute(0)), after(minute(9)), 0)
	b.restart()
	b.append(at(minute(10), mintLine("b")))
	b.arrive("a", "b")
	b.gap("gone", before(minute(0)), after(minute(9)), 0)
}

func TestRotatedFilesThatWereReadMayGo(t *testing.T) {
	b := newBench(t)
	var all []string
	b.append()
	b.start()
	for i, id := range ids("e", 0, 20) {
		b.append(at(minute(i), mintLine(id)))
		all = append(all, id)
		b.arrive(all...)
		backup := b.rotate()
		b.read()
		if i%3 == 0 {
			b.restart()
		}
		require.NoError(t, os.Remove(backup))
		if i%4 == 0 {
			b.restart()
		}
	}
	require.Zero(t, b.gaps())
	require.Empty(t, b.recorder.recorded())
}

func TestARotatedFileThatVanishedBeforeItsTurnIsAGap(t *testing.T) {
	b := newBench(t)
	b.append(at(minute(0), mintLine("a")))
	b.append(lines(ids("e", 0, 3000))...) // more than a chunk
	b.append(at(minute(1), mintLine("b")))
	b.rotate()
	b.append(at(minute(2), mintLine("lost")))
	lost := b.rotate()
	b.append(at(minute(3), mintLine("c")))
	b.rotate()
	b.append(at(minute(4), mintLine("d")))
	tailer, err := New(b.options)
	require.NoError(t, err)
	f := tailer.followers[0]
	for range 2 { // opens the first file, and reads a chunk of it
		_, err = f.step(t.Context())
		require.NoError(t, err)
	}
	require.NoError(t, os.Remove(lost))
	b.stepOn(f)
	f.close()
	got := b.recorder.ids()
	require.Equal(t, []string{"b", "c", "d"}, got[len(got)-3:])
	b.gap("gone", before(minute(1)), after(minute(3)), 0)
}

func TestAFileThatVanishedAfterASightOfItIsAGapThoughTheTailerWasKilled(t *testing.T) {
	b := newBench(t)
	b.append(at(minute(1), mintLine("a")))
	b.append(lines(ids("e", 0, 3000))...)
	b.append(at(minute(1), mintLine("b")))
	b.rotate()
	b.append(at(minute(2), mintLine("lost")))
	lost := b.rotate()
	b.append(at(minute(3), mintLine("c")))
	tailer, err := New(b.options)
	require.NoError(t, err)
	f := tailer.followers[0]
	for range 2 {
		_, err = f.step(t.Context())
		require.NoError(t, err)
	}
	require.NoError(t, tailer.checkpoints.save())
	f.close()
	require.NoError(t, os.Remove(lost))
	b.stepOn(b.step())
	b.gap("gone", before(minute(1)), after(minute(3)), 0)
}

func TestTwoRotationsInOneMillisecondThatOverwroteABackupAreAGap(t *testing.T) {
	b := newBench(t)
	b.append(at(minute(0), mintLine("a")))
	b.append(lines(ids("e", 0, 3000))...)
	b.append(at(minute(1), mintLine("b")))
	b.rotate()
	b.append(at(minute(2), mintLine("lost")))
	tailer, err := New(b.options)
	require.NoError(t, err)
	f := tailer.followers[0]
	for range 2 {
		_, err = f.step(t.Context())
		require.NoError(t, err)
	}
	overwritten := b.rotate()
	b.append(at(minute(3), mintLine("c")))
	require.NoError(t, os.Rename(b.path, overwritten))
	b.append(at(minute(4), mintLine("d")))
	b.stepOn(f)
	f.close()
	got := b.recorder.ids()
	require.Equal(t, []string{"b", "c", "d"}, got[len(got)-3:])
	b.gap("gone", before(minute(1)), after(minute(3)), 0)
}

func TestTwoRotationsInOneMillisecondLoseNothingThatIsBeingRead(t *testing.T) {
	b := newBench(t)
	b.append(at(minute(0), mintLine("a")))
	f := b.step()
	b.append(at(minute(1), mintLine("b")))
	overwritten := b.rotate()
	b.append(at(minute(2), mintLine("c")))
	b.stepOn(f)
	require.NoError(t, os.Rename(b.path, overwritten))
	b.append(at(minute(3), mintLine("d")))
	b.stepOn(f)
	f.close()
	require.Equal(t, []string{"a", "b", "c", "d"}, b.recorder.ids())
	require.Empty(t, b.recorder.recorded())
}

func TestWhatIsSeenOfTheFilesSaysWhatIsLost(t *testing.T) {
	b := newBench(t)
	tailer, err := New(b.options)
	require.NoError(t, err)
	f := tailer.followers[0]
	name := func(n int) string { return fmt.Sprintf("audit-2026-08-21T10-00-00.%03d.log", n) }
	plain := func(n int, inode uint64) sibling {
		return sibling{name: name(n), path: name(n), id: fileID{Inode: inode, Born: int64(inode)}}
	}
	zipped := func(n int, inode uint64) sibling {
		return sibling{name: name(n), path: name(n) + ".gz", id: fileID{Inode: inode, Born: int64(inode)}}
	}
	log := func(inode uint64) sibling { return sibling{path: b.path, id: fileID{Inode: inode, Born: int64(inode)}} }
	seen := func(s sibling) coming { return coming{Name: s.name, ID: s.id, Zipped: s.zipped()} }
	replaced := func(c coming) coming { c.Replaced = true; return c }
	expect := func(anchored bool, before []coming, there []sibling, want string) {
		t.Helper()
		f.coming = before
		f.expect(there, anchored)
		got := ""
		for _, c := range f.coming {
			switch {
			case c.Lost:
				got += " lost"
			case c.Name == "":
				got += " log"
			default:
				got += " " + strings.TrimLeft(c.Name[len("audit-2026-08-21T10-00-00."):len(c.Name)-len(".log")], "0")
			}
		}
		require.Equal(t, want, strings.TrimSpace(got))
	}
	expect(true, nil, []sibling{plain(1, 10), log(11)}, "1 log")
	expect(false, nil, []sibling{plain(1, 10), log(11)}, "lost 1 log") // one before it may have been deleted
	expect(false, nil, []sibling{log(11)}, "log")
	expect(true, []coming{{Lost: true}}, []sibling{log(11)}, "log") // what was uncertain is certain
	expect(false, []coming{{Lost: true}}, []sibling{log(11)}, "lost log")
	expect(false, []coming{seen(plain(1, 10)), seen(log(11))}, []sibling{zipped(1, 12), plain(2, 11), log(13)}, "1 2 log")
	expect(false, []coming{seen(plain(1, 10)), seen(log(11))}, []sibling{plain(2, 11), log(13)}, "lost 2 log")
	expect(false, []coming{seen(log(11))}, []sibling{plain(2, 14), log(13)}, "lost 2 log")
	expect(true, []coming{seen(log(11))}, []sibling{zipped(2, 14), log(13)}, "2 log")       // it was compressed meanwhile
	expect(false, []coming{seen(log(11))}, []sibling{zipped(2, 14), log(13)}, "lost 2 log") // or deleted
	expect(true, []coming{seen(log(11))}, []sibling{plain(2, 14), log(13)}, "lost 2 log")   // or overwritten
	expect(true, []coming{seen(plain(1, 10))}, []sibling{plain(1, 11), log(13)}, "lost 1 log")
	// The one whose name it took was being compressed: what is there now may be either.
	expect(true, []coming{replaced(seen(plain(1, 11)))}, []sibling{zipped(1, 15), log(13)}, "lost 1 log")
	expect(true, []coming{replaced(seen(plain(1, 11)))}, []sibling{plain(1, 11), log(13)}, "1 log")
	// It has the inode of another, which was deleted.
	stranger := log(11)
	stranger.id.Born = 99
	expect(false, []coming{seen(log(11))}, []sibling{stranger}, "lost log")

	// A list of many files may miss one that is there.
	appendTo(t, filepath.Join(filepath.Dir(b.path), name(1)), mintLine("a"))
	expect(true, []coming{seen(plain(1, 10))}, []sibling{log(13)}, "1 log")
	require.NoError(t, os.Rename(filepath.Join(filepath.Dir(b.path), name(1)), filepath.Join(filepath.Dir(b.path), name(1)+".gz")))
	expect(true, []coming{seen(plain(1, 10))}, []sibling{log(13)}, "1 log")
	require.NoError(t, os.Remove(filepath.Join(filepath.Dir(b.path), name(1)+".gz")))
	expect(true, []coming{seen(plain(1, 10))}, []sibling{log(13)}, "lost log")
}

func TestADamagedCompressedFileIsAGapFromItsLastLineToTheNextFile(t *testing.T) {
	b := newBench(t)
	b.append(at(minute(0), mintLine("a")))
	b.rotate()
	for i := range 2000 {
		b.append(at(minute(i), mintLine(fmt.Sprint("e", i))))
	}
	backup := b.rotate()
	b.compress(backup)
	text, err := os.ReadFile(backup + ".gz")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(backup+".gz", text[:len(text)/2], 0o600))
	b.append(at(minute(3000), mintLine("last")))
	b.start()
	require.True(t, waitFor(func() bool { return len(b.recorder.recorded()) > 0 }))
	got := b.recorder.ids()
	read := len(got) - 2 // without the first and the last
	require.Greater(t, read, 100)
	b.gap("damaged", before(minute(read-1)), after(minute(3000)), b.recorder.recorded()[0].Bytes)
}

func TestATruncationIsAGapBetweenTheLinesAroundIt(t *testing.T) {
	b := newBench(t)
	b.append(at(minute(0), mintLine("a")), mintLine("b")[:200])
	f := b.step() // one that runs may look while there is nothing behind the gap yet, which ends it then
	require.NoError(t, os.WriteFile(b.path, []byte(at(minute(2), mintLine("c"))), 0o600))
	b.stepOn(f)
	f.close()
	require.Equal(t, []string{"a", "c"}, b.recorder.ids())
	b.gap("truncated", before(minute(0)), after(minute(2)), 200)
}

func TestAnEmptyCheckpointIsNoGapWhereEverythingIsStillThere(t *testing.T) {
	f := func(want bool, written, deleted time.Time) {
		t.Helper()
		b := newBench(t)
		b.append(at(minute(0), mintLine("a")))
		backup := b.rotate()
		b.append(at(minute(2), mintLine("b")))
		b.start()
		b.arrive("a", "b")
		b.halt()
		require.NoError(t, os.WriteFile(b.options.Checkpoint, nil, 0o600))
		require.NoError(t, os.Chtimes(b.options.Checkpoint, written, written))
		if !deleted.IsZero() {
			require.NoError(t, os.Remove(backup))
		}
		b.start()
		b.append(at(minute(3), mintLine("c")))
		require.True(t, waitFor(func() bool { ids := b.recorder.ids(); return ids[len(ids)-1] == "c" }))
		if want {
			b.gap("checkpoint", before(written), after(minute(2)), 0)
		} else {
			require.Empty(t, b.recorder.recorded())
			require.Zero(t, b.gaps())
		}
	}
	f(false, minute(1), time.Time{}) // a line of before is there
	f(false, minute(3), minute(3))   // all that came since is there
	f(true, minute(1), minute(3))
}

func TestTheCheckpointMovesBehindAGapOnlyWhenItIsRecorded(t *testing.T) {
	b := newBench(t)
	b.append(at(minute(0), mintLine("a")))
	b.start()
	b.arrive("a")
	b.halt()
	require.NoError(t, os.Remove(b.rotate()))
	b.append(at(minute(2), mintLine("b")))
	b.recorder.noGaps = func() error { return errors.New("the stream is down") }
	saved, err := os.ReadFile(b.options.Checkpoint)
	require.NoError(t, err)
	b.start()
	b.arrive("a", "b")
	require.True(t, waitFor(func() bool { return testutil.ToFloat64(b.tailer.metrics.publishFailures) > 3 }))
	b.halt()
	now, err := os.ReadFile(b.options.Checkpoint)
	require.NoError(t, err)
	require.Equal(t, string(saved), string(now))
	require.Contains(t, b.log.String(), "A gap cannot be recorded")

	// The same gap again, with more behind it.
	b.recorder.noGaps = nil
	b.append(at(minute(4), mintLine("c")))
	b.start()
	b.arrive("a", "b", "b", "c")
	b.gap("gone", before(minute(0)), after(minute(2)), 0)
	b.halt()
	require.NoError(t, os.WriteFile(b.options.Checkpoint, saved, 0o600)) // killed between the record and the checkpoint
	b.start()
	b.arrive("a", "b", "b", "c", "b", "c")
	b.gap("gone", before(minute(0)), after(minute(2)), 0)
}

func TestAGapThatCannotBeARecordHoldsNothingBack(t *testing.T) {
	b := newBench(t)
	b.recorder.noGaps = func() error { return fmt.Errorf("%w: odd", gap.ErrInvalid) }
	b.append(at(minute(0), mintLine("a"))[:300]+"\n", at(minute(1), mintLine("b")))
	b.start()
	b.arrive("b")
	b.read()
	b.halt()
	require.Contains(t, b.log.String(), "A gap cannot be recorded")
}

func TestALineOfOursThatCannotBeReadIsAGap(t *testing.T) {
	broken := strings.Replace(at(minute(1), mintLine("x")), `"auditID":"x"`, `"auditID":""`, 1)
	twice := strings.Replace(at(minute(1), mintLine("x")), `"verb"`, `"verb":"get","verb"`, 1)
	for reason, bad := range map[string]string{
		"incomplete": broken, "malformed": mintLine("x")[:len(mintLine("x"))-9] + "\n",
		"duplicate_key": twice, "invalid_utf8": strings.Replace(at(minute(1), mintLine("x")), "jane", "j\xffne", 1),
		"oversized": at(minute(1), longLine("x", 9<<20)), "torn": mintLine("x")[:400],
	} {
		t.Run(reason, func(t *testing.T) {
			b := newBench(t)
			b.append(at(minute(0), mintLine("a")), bad, at(minute(2), mintLine("b")), at(minute(3), mintLine("c")))
			b.start()
			b.arrive("a", "b", "c")
			lost := len(bad)
			if reason != "oversized" && reason != "torn" {
				lost-- // the line break
			}
			next := minute(2)
			if reason == "torn" {
				next = minute(3) // what stands in the same line says nothing of the order
			}
			b.gap(reason, before(minute(0)), after(next), int64(lost))
			require.Equal(t, 1.0, b.gaps())
		})
	}
}

func TestALineOfOthersThatCannotBeReadIsNoGap(t *testing.T) {
	b := newBench(t)
	b.append(at(minute(0), mintLine("a")), strings.Replace(at(minute(1), longLine("x", 9<<20)), "credentials.cozystack.io", "apps", 2),
		otherLine("y")[:300]+"\n", at(minute(2), mintLine("b")))
	b.start()
	b.arrive("a", "b")
	require.Empty(t, b.recorder.recorded())
}

func TestAClientThatSendsATimeMovesNoEndOfAGap(t *testing.T) {
	f := func(sent string) {
		t.Helper()
		b := newBench(t)
		withBody := func(when time.Time, id string) string {
			return strings.Replace(at(when, mintLine(id)), `"requestReceivedTimestamp"`,
				`"requestObject":{"stageTimestamp":"`+sent+`"},"requestReceivedTimestamp"`, 1)
		}
		b.append(withBody(minute(1), "a"))
		b.start()
		b.arrive("a")
		b.halt()
		b.append(at(minute(2), mintLine("lost")))
		require.NoError(t, os.Remove(b.rotate()))
		b.append(withBody(minute(3), "b"))
		b.start()
		b.arrive("a", "b")
		b.gap("gone", before(minute(1)), after(minute(3)), 0)
	}
	f("9000-01-01T00:00:00Z")
	f("1980-01-01T00:00:00Z")
}

func TestADeviceThatHasAnotherNumberAfterARebootIsNoGap(t *testing.T) {
	b := newBench(t)
	b.append(at(minute(1), mintLine("a")))
	b.append(lines(ids("e", 0, 3000))...) // more than a chunk
	b.rotate()
	b.append(at(minute(2), mintLine("b")))
	b.rotate()
	b.append(at(minute(3), mintLine("c")))
	tailer, err := New(b.options)
	require.NoError(t, err)
	f := tailer.followers[0]
	for range 2 { // opens the first file, and reads a chunk of it
		_, err = f.step(t.Context())
		require.NoError(t, err)
	}
	require.True(t, f.settle(t.Context()))
	require.NoError(t, tailer.checkpoints.save())
	f.close()
	saved, err := os.ReadFile(b.options.Checkpoint)
	require.NoError(t, err)
	if f.coming[0].ID.Born == 0 {
		t.Fatal("the temporary directory is on a file system that does not tell when a file was made: set TMPDIR to another")
	}
	device := fmt.Sprintf(`"device":%d,`, f.coming[0].ID.Device)
	require.Equal(t, 3, strings.Count(string(saved), device))
	require.NoError(t, os.WriteFile(b.options.Checkpoint, []byte(strings.ReplaceAll(string(saved), device, `"device":4711,`)), 0o600))
	b.stepOn(b.step())
	got := b.recorder.ids()
	require.Equal(t, []string{"b", "c"}, got[len(got)-2:])
	require.Len(t, got, 3003)
	require.Empty(t, b.recorder.recorded())
}

func TestASpoiltLogIsFewGaps(t *testing.T) {
	b := newBench(t)
	var text strings.Builder
	for i := range 20_000 {
		now := noon.Add(time.Duration(i) * time.Millisecond)
		text.WriteString(at(now, mintLine("x"))[:500] + "\n" + at(now, otherLine("y")))
	}
	b.append(text.String(), at(minute(9), mintLine("b")))
	b.start()
	b.arrive("b")
	b.read()
	require.LessOrEqual(t, len(b.recorder.recorded()), 5) // of 20 s
	require.Equal(t, 20_000.0, b.gaps())
}

func TestTheCutOffEndOfARotatedFileIsAGap(t *testing.T) {
	b := newBench(t)
	b.append(at(minute(0), mintLine("a")), mintLine("lost")[:120]) // nothing in it says whose it is
	f := b.step()                                                  // one that runs may look while the new file is empty
	b.rotate()
	b.append(at(minute(2), mintLine("b")))
	b.stepOn(f)
	f.close()
	require.Equal(t, []string{"a", "b"}, b.recorder.ids())
	b.gap("cut off", before(minute(0)), after(minute(2)), 120)
}

func TestAnEventThatTheStreamNeverTakesIsAGapAtItsTime(t *testing.T) {
	b := newBench(t)
	b.options.Publisher = startStream(t, 4<<10)
	b.append(at(minute(0), mintLine("a")), at(minute(5), longLine("never", 6<<10)), at(minute(9), mintLine("b")))
	b.start()
	b.read()
	b.gap("does not take", before(minute(5)), after(minute(5)), b.recorder.recorded()[0].Bytes)
}

func TestWhatALateWriterAddsToARotatedFileIsRead(t *testing.T) {
	b := newBench(t)
	b.options.Poll = 5 * time.Millisecond
	b.append(mintLine("a"))
	b.start()
	b.arrive("a")
	backup := b.rotate()
	b.append(mintLine("b"))
	b.arrive("a", "b")
	appendTo(t, backup, mintLine("late"), mintLine("later")[:300])
	b.arrive("a", "b", "late")
	appendTo(t, backup, mintLine("later")[300:])
	b.arrive("a", "b", "late", "later")
	b.append(mintLine("c"))
	b.arrive("a", "b", "late", "later", "c")
	b.halt()
	appendTo(t, backup, mintLine("while it was down"))
	b.start()
	b.arrive("a", "b", "late", "later", "c", "while it was down")
	require.Empty(t, b.recorder.recorded())
	require.True(t, waitFor(func() bool { return b.tailer.offset(b.path) == int64(2*len(mintLine("b"))) }))
}

func TestALineThatALateWriterCompletesArrives(t *testing.T) {
	b := newBench(t)
	b.options.Poll = 5 * time.Millisecond
	b.append(mintLine("a"), mintLine("late")[:300])
	b.start()
	b.arrive("a")
	backup := b.rotate()
	b.append(mintLine("b"))
	b.arrive("a", "b")
	appendTo(t, backup, mintLine("late")[300:])
	b.arrive("a", "b", "late")
}

func TestLogsThatMatchAPatternAreFollowedWhenTheyComeAndTheirRotatedFilesAreNot(t *testing.T) {
	directory := t.TempDir()
	b := newBench(t)
	b.options.Poll = 5 * time.Millisecond
	b.options.Paths = []string{filepath.Join(directory, "*", "audit*")}
	log := func(node string) string { return filepath.Join(directory, node, "audit.log") }
	require.NoError(t, os.Mkdir(filepath.Join(directory, "one"), 0o700))
	for _, name := range []string{"audit-2026-08-21T10-00-00.000.log.bak", "audit.log.1", "audit.log.2.gz", "audit.log-20260821", "audit-20260821.log", "audit.log~"} {
		appendTo(t, filepath.Join(directory, "one", name), mintLine("never"))
	}
	appendTo(t, filepath.Join(directory, "one", "audit-2026-08-21T09-00-00.000.log"), mintLine("a"))
	appendTo(t, log("one"), mintLine("b"))
	b.start()
	b.arrive("a", "b")
	require.NoError(t, os.Mkdir(filepath.Join(directory, "two"), 0o700))
	appendTo(t, log("two"), mintLine("c"))
	b.arrive("a", "b", "c")
	require.Equal(t, "file:"+log("two"), b.recorder.events[2].Source)
	b.restart()
	require.NoError(t, os.Rename(log("two"), filepath.Join(directory, "two", "audit-2026-08-21T11-00-00.000.log")))
	appendTo(t, log("two"), mintLine("d"))
	b.arrive("a", "b", "c", "d")
	appendTo(t, log("one"), mintLine("e"))
	b.arrive("a", "b", "c", "d", "e")
	require.Len(t, b.tailer.all(), 2)
	require.Empty(t, b.recorder.recorded())

	b.options.Paths = []string{filepath.Join(directory, "[")}
	_, err := New(b.options)
	require.ErrorContains(t, err, "pattern")
}

func TestWhatALogWasRotatedToIsKnownByItsName(t *testing.T) {
	f := func(want bool, names ...string) {
		t.Helper()
		for _, name := range names {
			require.Equal(t, want, rotatedName.FindString(name) != "", name)
		}
	}
	f(true, "audit-2026-01-02T15-04-05.000.log", "audit-2026-01-02T15-04-05.000.log.gz", "audit-2026-01-02T15-04-05.000", "audit.log.1", "audit.log.12.gz",
		"audit.log-20260102", "audit.log-20260102.gz", "audit-20260102.log", "audit.log-20260102-1700000000", "audit.log.old", "audit.log.gz", "audit.log~", "audit.log.tmp")
	f(false, "audit.log", "audit-1.log", "audit", "kube-apiserver-2.log", "audit-2026.log", "audit.json", "node1.example.log")
}

func TestTheTimeOfALineIsKubeApiserversAndNotAClients(t *testing.T) {
	f := func(want time.Time, text string) {
		t.Helper()
		require.Equal(t, want, lastTime([]byte(text)))
		require.Equal(t, want, firstTime([]byte(text)))
	}
	f(minute(1), at(minute(1), mintLine("a")))
	f(minute(1), at(minute(1), mintLine(`\"stageTimestamp\":\"2000-01-01T00:00:00Z\"`)))
	f(time.Time{}, `"stageTimestamp":"`)
	f(time.Time{}, `"stageTimestamp":"0001-01-01T00:00:00Z"`)
	f(minute(1), `"stageTimestamp":"never"`+at(minute(1), mintLine("a"))+`"stageTimestamp":"9999-12-31T23:59:59Z"`)
	require.Equal(t, minute(1), firstTime([]byte(at(minute(1), mintLine("a"))+at(minute(2), mintLine("b")))))
	require.Equal(t, minute(2), lastTime([]byte(at(minute(1), mintLine("a"))+at(minute(2), mintLine("b")))))
}
