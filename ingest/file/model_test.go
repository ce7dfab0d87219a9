package file

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/gap"
)

// model writes a log as kube-apiserver does, at random, while a Tailer follows it that is stopped, killed and started
// at random. It keeps what must arrive.
type model struct {
	*bench
	random  *rand.Rand
	next    int
	deletes bool // rotated files go, oldest first
	times   map[string]time.Time
	now     atomic.Int64 // when the last line was written, in nanoseconds since 1970
	written []string     // audit ids, in the order of their lines
	partial string       // of the last line, what has not been written yet
	backups []string     // plain ones
	mu      sync.Mutex
	failing int // how many publications fail from now on
}

func (m *model) publication() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failing > 0 {
		m.failing--
		return errors.New("the stream is away")
	}
	return nil
}

// write appends some lines, and at times a part of the next.
func (m *model) write() {
	m.complete()
	var text strings.Builder
	for range m.random.IntN(20) {
		text.WriteString(m.line())
	}
	if m.random.IntN(3) == 0 {
		line := m.line()
		cut := m.random.IntN(len(line))
		text.WriteString(line[:cut])
		m.partial = line[cut:]
	}
	m.append(text.String())
}

func (m *model) complete() {
	if m.partial != "" {
		m.append(m.partial)
		m.partial = ""
	}
}

func (m *model) line() string {
	m.next++
	id := fmt.Sprintf("e%d", m.next)
	m.times[id] = noon.Add(time.Duration(m.next) * 30 * time.Second)
	m.now.Store(m.times[id].UnixNano())
	switch m.random.IntN(20) {
	case 0:
		m.written = append(m.written, id)
		return at(m.times[id], longLine(id, m.random.IntN(600<<10)))
	case 1, 2, 3, 4, 5:
		m.written = append(m.written, id)
		return at(m.times[id], mintLine(id))
	}
	return at(m.times[id], otherLine(id))
}

// missing are the events that did not arrive.
func (m *model) missing() []string {
	arrived := m.recorder.ids()
	slices.Sort(arrived)
	return slices.DeleteFunc(slices.Clone(m.written), func(id string) bool {
		_, found := slices.BinarySearch(arrived, id)
		return found
	})
}

// deleteBackups deletes some of the oldest rotated files, as kube-apiserver does where there are too many.
func (m *model) deleteBackups() {
	found, err := siblings(m.path)
	require.NoError(m.t, err)
	for range m.random.IntN(3) {
		if len(found) > 1 { // the last rotated one is always left
			require.NoError(m.t, os.Remove(found[0].path))
			m.backups = slices.DeleteFunc(m.backups, func(path string) bool { return path == found[0].path })
			found = found[1:]
		}
	}
}

func (m *model) rotateLog() {
	m.complete()
	m.backups = append(m.backups, m.rotate())
}

func (m *model) compressBackup() {
	if len(m.backups) > 0 {
		m.compress(m.backups[0])
		m.backups = m.backups[1:]
	}
}

// outage has the next publications fail.
func (m *model) outage() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failing = m.random.IntN(5)
}

// kill stops the Tailer and has it find an older checkpoint, or none, as if it had died.
func (m *model) kill(checkpoint []byte) {
	m.halt()
	err := os.Remove(m.options.Checkpoint)
	if !errors.Is(err, fs.ErrNotExist) {
		require.NoError(m.t, err)
	}
	if checkpoint != nil {
		require.NoError(m.t, os.WriteFile(m.options.Checkpoint, checkpoint, 0o600))
	}
	m.start()
}

func (m *model) checkpoint() []byte {
	text, err := os.ReadFile(m.options.Checkpoint)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	require.NoError(m.t, err)
	return text
}

// run does some hundred steps.
func (m *model) run(kills bool) {
	m.recorder.fail = m.publication
	m.append(at(noon, mintLine("first"))) // of a log in which nothing was read only its inode is known, which a compressed file has not
	m.written = append(m.written, "first")
	m.start()
	m.arrive("first")
	m.restart() // saves the checkpoint
	old := m.checkpoint()
	for range 100 {
		switch m.random.IntN(20) {
		case 0, 1:
			m.rotateLog()
		case 2:
			m.rotateLog()
			m.write()
			m.rotateLog()
		case 3:
			m.compressBackup()
		case 4:
			m.restart()
		case 5:
			m.halt()
			m.write()
			m.rotateLog()
			m.write()
			m.compressBackup()
			m.start()
		case 6:
			m.outage()
		case 7:
			old = m.checkpoint()
		case 8:
			if kills {
				m.kill(old)
			}
		case 9:
			if m.deletes {
				m.deleteBackups()
			}
		case 10:
			if m.deletes {
				m.halt()
				for range m.random.IntN(6) {
					m.write()
					m.rotateLog()
					m.compressBackup()
					m.deleteBackups()
				}
				m.start()
			}
		case 11:
			time.Sleep(time.Duration(m.random.IntN(int(5 * time.Millisecond))))
		default:
			m.write()
		}
	}
	m.complete()
}

func newModel(t *testing.T, seed uint64) *model {
	m := &model{bench: newBench(t), random: rand.New(rand.NewPCG(seed, 3)), times: map[string]time.Time{"first": noon}}
	m.options.Poll = 20 * time.Millisecond
	m.now.Store(noon.UnixNano())
	m.options.Now = func() time.Time { return time.Unix(0, m.now.Load()) }
	return m
}

func TestEveryEventArrivesOnceInOrderWhateverIsRotatedAndRestarted(t *testing.T) {
	for seed := range uint64(5) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			m := newModel(t, seed)
			m.run(false)
			m.arrive(m.written...)
			m.read()
			require.Equal(t, m.written, m.recorder.ids())
			require.Zero(t, m.gaps())
		})
	}
}

func TestEveryEventArrivesThoughTheTailerIsKilled(t *testing.T) {
	for seed := range uint64(5) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			m := newModel(t, 100+seed)
			m.run(true)
			waitFor(func() bool { return len(m.missing()) == 0 })
			require.Empty(t, m.missing())
			require.Zero(t, m.gaps())
			require.Empty(t, m.recorder.recorded())
		})
	}
}

func TestWhatIsMissingLiesInRecordedGapsWhateverIsDeletedAndKilled(t *testing.T) {
	lost, gaps := 0, 0
	for seed := range uint64(10) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			m := newModel(t, 200+seed)
			m.deletes = true
			m.run(seed%2 == 0)
			m.times["last"] = minute(10_000)
			m.append(at(m.times["last"], mintLine("last")))
			require.True(t, waitFor(func() bool {
				arrived := m.recorder.ids()
				return arrived[len(arrived)-1] == "last"
			}))
			m.read() // and every gap before it is recorded
			for _, id := range m.missing() {
				require.True(t, slices.ContainsFunc(m.recorder.recorded(), func(g gap.Gap) bool {
					return !m.times[id].Before(g.From) && !m.times[id].After(g.End())
				}), "%s of %s is in none of %v", id, m.times[id], m.recorder.recorded())
			}
			if seed%2 == 1 { // what was read twice can have been gone the second time
				for _, id := range m.recorder.ids() {
					require.False(t, slices.ContainsFunc(m.recorder.recorded(), func(g gap.Gap) bool {
						return m.times[id].After(g.From.Add(disorder+beginning)) && m.times[id].Before(g.End().Add(-disorder))
					}), "%s of %s was read and is within one of %v", id, m.times[id], m.recorder.recorded())
				}
			}
			lost += len(m.missing())
			gaps += len(m.recorder.recorded())
		})
	}
	t.Log(lost, "events are lost,", gaps, "gaps are recorded")
	require.Positive(t, lost)
}
