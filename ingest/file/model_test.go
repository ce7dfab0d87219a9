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
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// model writes a log as kube-apiserver does, at random, while a Tailer follows it that is stopped, killed and started
// at random. It keeps what must arrive.
type model struct {
	*bench
	random  *rand.Rand
	next    int
	written []string // audit ids, in the order of their lines
	partial string   // of the last line, what has not been written yet
	backups []string // plain ones
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
	switch m.random.IntN(20) {
	case 0:
		m.written = append(m.written, id)
		return longLine(id, m.random.IntN(600<<10))
	case 1, 2, 3, 4, 5:
		m.written = append(m.written, id)
		return mintLine(id)
	}
	return otherLine(id)
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
	m.append(mintLine("first")) // of a log in which nothing was read only its inode is known, which a compressed file has not
	m.written = append(m.written, "first")
	m.start()
	m.arrive("first")
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
		case 9, 10:
			time.Sleep(time.Duration(m.random.IntN(int(5 * time.Millisecond))))
		default:
			m.write()
		}
	}
	m.complete()
}

func newModel(t *testing.T, seed uint64) *model {
	m := &model{bench: newBench(t), random: rand.New(rand.NewPCG(seed, 3))}
	m.options.Poll = 20 * time.Millisecond
	return m
}

func TestEveryEventArrivesOnceInOrderWhateverIsRotatedAndRestarted(t *testing.T) {
	for seed := range uint64(8) {
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
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			m := newModel(t, 100+seed)
			m.run(true)
			missing := func() []string {
				arrived := m.recorder.ids()
				slices.Sort(arrived)
				return slices.DeleteFunc(slices.Clone(m.written), func(id string) bool {
					_, found := slices.BinarySearch(arrived, id)
					return found
				})
			}
			waitFor(func() bool { return len(missing()) == 0 })
			require.Empty(t, missing())
			require.Zero(t, m.gaps())
		})
	}
}
