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
const checkpointVersion = 2

// A place is how far a file has been read: everything before Offset has been published.
type place struct {
	ID     fileID `json:"id"`
	Offset int64  `json:"offset"`
	Head   digest `json:"head"` // of the file's first bytes, none beyond Offset
	Tail   digest `json:"tail"` // of the last bytes before Offset
}

// A state is how far a log has been read.
type state struct {
	Place *place    `json:"place,omitempty"` // in the file that is being read, or of the last one; nil if nothing was read
	Time  time.Time `json:"time,omitzero"`   // when the last line before Place was written; without a Place, up to when nothing was there
	Done  bool      `json:"done,omitempty"`  // the file of Place was read to its end

	Read   map[string]finished `json:"read,omitempty"`   // rotated files that were read to their end, by name
	Coming []coming            `json:"coming,omitempty"` // the files after that of Place, oldest first
}

// finished is a rotated file that was read to its end.
type finished struct {
	Inode  uint64 `json:"inode"`
	Size   int64  `json:"size"`   // what of it was read, for one that is not compressed
	Offset int64  `json:"offset"` // where its last line begins if that has no line break; else Size
}

// coming is a file that has been seen and not been read.
type coming struct {
	Name     string `json:"name,omitempty"` // what it was rotated to; empty while it was the log itself
	ID       fileID `json:"id"`
	Zipped   bool   `json:"zipped,omitempty"`
	Lost     bool   `json:"lost,omitempty"`     // it is gone, or nobody knows whether there was one here
	Replaced bool   `json:"replaced,omitempty"` // its name was another file's, which may be what comes compressed

	sibling sibling // as it was when it was last seen
}

// checkpoints keeps the states of all logs of a Tailer, by path, in one file.
type checkpoints struct {
	path  string
	now   func() time.Time
	dirty chan struct{} // holds one element while there is something to write

	damaged time.Time // when the file was written, if it was no checkpoint; else zero

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
	if errors.Is(err, errForeign) {
		if info, statErr := os.Stat(path); statErr == nil {
			c.damaged = info.ModTime()
		}
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

// get is the state of a log, and whether there is one.
func (c *checkpoints) get(log string) (state, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, known := c.states[log]
	return s, known
}

// set takes over s, which must not be changed afterwards.
func (c *checkpoints) set(log string, s state) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.states[log] = s
	if c.unsaved.IsZero() {
		c.unsaved = c.now()
	}
	mark(c.dirty)
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
