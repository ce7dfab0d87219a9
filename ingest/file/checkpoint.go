package file

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// checkpointVersion is that of the checkpoint's form. A file of another version is not understood.
const checkpointVersion = 1

// A place is how far a file has been read: everything before Offset has been published.
type place struct {
	ID     fileID `json:"id"`
	Offset int64  `json:"offset"`
	Head   digest `json:"head"` // of the file's first bytes, none beyond Offset
	Tail   digest `json:"tail"` // of the last bytes before Offset
}

// A state is how far a log has been read: through the file that is being read, and the rotated ones before it.
type state struct {
	Place *place            `json:"place,omitempty"` // nil between two files
	Read  map[string]uint64 `json:"read,omitempty"`  // rotated files read to their end: name and inode
}

// checkpoints keeps the states of all logs of a Tailer, by path, in one file.
type checkpoints struct {
	path  string
	now   func() time.Time
	dirty chan struct{} // holds one element while there is something to write

	mu      sync.Mutex
	states  map[string]state
	unsaved time.Time // since when the file is older than states; zero if it is not
}

type checkpointFile struct {
	Version int              `json:"version"`
	Logs    map[string]state `json:"logs"`
}

// errForeign says that a file is no checkpoint: damaged, or somebody else's.
var errForeign = fmt.Errorf("not a checkpoint of version %d", checkpointVersion)

// loadCheckpoints reads the file at path. With errForeign the checkpoints are empty and can be used: every log is read
// anew.
func loadCheckpoints(path string, now func() time.Time) (*checkpoints, error) {
	c := &checkpoints{path: path, now: now, dirty: make(chan struct{}, 1), states: map[string]state{}}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		c.states, err = parseCheckpoint(text)
	}
	if err != nil {
		return c, fmt.Errorf("reading the checkpoint %s: %w", path, err)
	}
	return c, nil
}

func parseCheckpoint(text []byte) (map[string]state, error) {
	var file checkpointFile
	if err := json.Unmarshal(text, &file); err != nil {
		return map[string]state{}, fmt.Errorf("%w: %w", errForeign, err)
	}
	if file.Version != checkpointVersion || file.Logs == nil {
		return map[string]state{}, errForeign
	}
	return file.Logs, nil
}

func (c *checkpoints) get(log string) state {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.states[log]
}

// set takes over s, which must not be changed afterwards.
func (c *checkpoints) set(log string, s state) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.states[log] = s
	if c.unsaved.IsZero() {
		c.unsaved = c.now()
	}
	c.mark()
}

// mark says that there is something to write.
func (c *checkpoints) mark() {
	select {
	case c.dirty <- struct{}{}:
	default:
	}
}

// age is for how long something has been published that the file does not know yet.
func (c *checkpoints) age() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unsaved.IsZero() {
		return 0
	}
	return c.now().Sub(c.unsaved)
}

// save writes the file if it is not up to date. After a crash there is the old file or the new one, whole.
func (c *checkpoints) save() error {
	c.mu.Lock()
	since := c.unsaved
	c.unsaved = time.Time{}
	text, err := json.Marshal(checkpointFile{checkpointVersion, c.states})
	c.mu.Unlock()
	if since.IsZero() {
		return nil
	}
	if err == nil {
		err = writeAtomically(c.path, text)
	}
	if err != nil {
		c.mu.Lock()
		c.unsaved = since
		c.mu.Unlock()
		return fmt.Errorf("writing the checkpoint: %w", err)
	}
	return nil
}

func writeAtomically(path string, text []byte) error {
	temporary := path + ".tmp"
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	return syncDirectory(filepath.Dir(path))
}

func syncDirectory(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}
