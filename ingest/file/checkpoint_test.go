package file

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// clockAt is a clock that a test moves.
type clockAt struct{ now time.Time }

func (c *clockAt) Now() time.Time { return c.now }

func TestACheckpointComesBackAsItWasSaved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "checkpoint.json")
	clock := &clockAt{time.Date(2026, 8, 21, 10, 0, 0, 0, time.UTC)}
	c, err := loadCheckpoints(path, clock.Now)
	require.NoError(t, err)
	_, known := c.get("/log")
	require.False(t, known)
	want := state{Place: &place{ID: fileID{1, 2, 3}, Offset: 3, Head: digestOf([]byte("ab")), Tail: digestOf([]byte("c"))},
		Time: clock.now, Read: map[string]finished{"audit-x.log": {Inode: 7, Size: 9, Offset: 8}},
		Coming: []coming{{Name: "audit-y.log", ID: fileID{Inode: 8}, Zipped: true}, {Lost: true}, {ID: fileID{Inode: 9}, Replaced: true}}}
	c.set("/log", want)
	c.set("/other", state{})
	clock.now = clock.now.Add(time.Second)
	require.Equal(t, time.Second, c.age())
	require.NoError(t, c.save())
	require.Zero(t, c.age())
	again, err := loadCheckpoints(path, clock.Now)
	require.NoError(t, err)
	got, known := again.get("/log")
	require.True(t, known)
	require.Equal(t, want, got)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestACheckpointIsWrittenOnlyWhenSomethingIsNew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "checkpoint.json")
	c, err := loadCheckpoints(path, time.Now)
	require.NoError(t, err)
	require.NoError(t, c.save())
	require.NoFileExists(t, path)
	c.set("/log", state{})
	require.NoError(t, c.save())
	require.NoError(t, os.Remove(path))
	require.NoError(t, c.save())
	require.NoFileExists(t, path)
}

func TestAWriteThatFailsLeavesTheOldCheckpoint(t *testing.T) {
	directory := t.TempDir()
	path := filepath.Join(directory, "checkpoint.json")
	c, err := loadCheckpoints(path, time.Now)
	require.NoError(t, err)
	c.set("/log", state{Read: map[string]finished{"old": {}}})
	require.NoError(t, c.save())
	require.NoError(t, os.Mkdir(path+".tmp", 0o700)) // in the way of the next write
	c.set("/log", state{Read: map[string]finished{"new": {}}})
	require.Error(t, c.save())
	require.Positive(t, c.age())
	old, err := loadCheckpoints(path, time.Now)
	require.NoError(t, err)
	s, _ := old.get("/log")
	require.Contains(t, s.Read, "old")
	require.NoError(t, os.Remove(path+".tmp"))
	require.NoError(t, c.save())
	written, err := loadCheckpoints(path, time.Now)
	require.NoError(t, err)
	s, _ = written.get("/log")
	require.Contains(t, s.Read, "new")
}

func TestACheckpointThatCannotBeReadStopsTheStart(t *testing.T) {
	_, err := New(Options{Paths: []string{"audit.log"}, Checkpoint: t.TempDir(), Publisher: &recorder{}})
	require.Error(t, err)
	require.False(t, errors.Is(err, errForeign))
}

func TestATrailLeadsBackToItsPlace(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 5))
	text := make([]byte, 30_000)
	for i := range text {
		text[i] = byte(random.IntN(256))
	}
	for range 300 {
		var tr trail
		at := 0
		for end := random.IntN(len(text)); at < end; {
			n := min(random.IntN(9000), end-at)
			at += n
			tr.follow(text[at-n:at], int64(at))
		}
		p := *tr.place(fileID{})
		again, met, err := meet(p, bytes.NewReader(text))
		require.NoError(t, err)
		require.True(t, met)
		require.Equal(t, min(at, fingerprintLength), len(again.head))
		require.Equal(t, min(at, fingerprintLength), len(again.tail))
		require.Equal(t, p, *again.place(fileID{}))

		if at == 0 {
			continue
		}
		changed := bytes.Clone(text)
		changed[at-1-random.IntN(min(at, fingerprintLength))] ^= 1
		_, met, err = meet(p, bytes.NewReader(changed))
		require.NoError(t, err)
		require.False(t, met, "a byte before the place was changed")
		_, met, err = meet(p, bytes.NewReader(text[:at-1]))
		require.NoError(t, err)
		require.False(t, met, "the file is shorter")
	}
}

func TestATrailOverSkippedBytesIsShortAndStillLeadsBack(t *testing.T) {
	text := bytes.Repeat([]byte("0123456789"), 2000)
	var tr trail
	tr.follow(text[:100], 100)
	tr.follow(text[9990:10_000], 10_000) // what was between was skipped
	tr.follow(text[10_000:10_020], 10_020)
	p := *tr.place(fileID{})
	require.Equal(t, 100, p.Head.Length)
	require.Equal(t, 30, p.Tail.Length)
	_, met, err := meet(p, bytes.NewReader(text))
	require.NoError(t, err)
	require.True(t, met)
}

// FuzzCheckpoint holds that no checkpoint, however damaged, does more than not to be understood, and that one that is
// leads into a file only where the file has what it says.
func FuzzCheckpoint(f *testing.F) {
	text := []byte("line one\nline two\nline three\n")
	var tr trail
	tr.follow(text[:18], 18)
	f.Add(saved(f, state{Place: tr.place(fileID{1, 2, 3})}), text)
	f.Fuzz(func(t *testing.T, checkpoint, log []byte) {
		states, err := parseCheckpoint(checkpoint)
		if err != nil {
			require.ErrorIs(t, err, errForeign)
			require.Empty(t, states)
			return
		}
		for _, s := range states {
			if s.Place == nil {
				continue
			}
			tr, met, err := meet(*s.Place, bytes.NewReader(log))
			require.NoError(t, err)
			if met {
				require.True(t, s.Place.Tail.meets(tr.tail))
				require.Equal(t, s.Place.Offset, tr.offset)
			}
		}
	})
}

// saved is the checkpoint of one log.
func saved(t testing.TB, s state) []byte {
	path := filepath.Join(t.TempDir(), "checkpoint.json")
	c, err := loadCheckpoints(path, time.Now)
	require.NoError(t, err)
	c.set("/log", s)
	require.NoError(t, c.save())
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return text
}

// FuzzResume holds that from every checkpoint the reading comes to the end of the log.
func FuzzResume(f *testing.F) {
	var tr trail
	tr.follow([]byte(mintLine("a")), int64(len(mintLine("a"))))
	f.Add(saved(f, state{Place: tr.place(fileID{1, 2, 3}), Time: noon}))
	f.Add(saved(f, state{Place: tr.place(fileID{1, 2, 3}), Done: true, Time: noon, Read: map[string]finished{"audit-2026-08-21T10-00-00.001.log": {Inode: 7}},
		Coming: []coming{{Name: "audit-2026-08-21T10-00-00.002.log"}, {Name: "."}, {Lost: true}, {Name: "audit.log"}, {Replaced: true}}}))
	f.Fuzz(func(t *testing.T, checkpoint []byte) {
		states, err := parseCheckpoint(checkpoint)
		if err != nil {
			return
		}
		b := newBench(t)
		b.append(mintLine("a"), mintLine("b"))
		b.rotate()
		b.append(mintLine("c"))
		b.compress(b.rotate())
		b.append(mintLine("d"))
		require.NoError(t, os.Mkdir(filepath.Join(filepath.Dir(b.path), "audit-2026-08-21T10-00-00.003.log"), 0o700))
		tailer, err := New(b.options)
		require.NoError(t, err)
		for _, s := range states {
			tailer.checkpoints.set(b.path, s)
			break
		}
		follower := tailer.followers[0]
		defer follower.close()
		for steps := 0; ; steps++ {
			progressed, err := follower.step(t.Context())
			require.NoError(t, err)
			if !progressed {
				break
			}
			require.Less(t, steps, 200)
		}
		require.Equal(t, []string{"d"}, b.recorder.ids()[len(b.recorder.ids())-1:])
	})
}
