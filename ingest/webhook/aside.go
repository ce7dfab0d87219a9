package webhook

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"
)

// aside keeps what could not be used, for people to look at: the newest of it, in a directory, one file each. It may
// hold whatever an audit policy records, so nobody but the process's own user can read it.
type aside struct {
	directory string
	maxBytes  int64
	now       func() time.Time

	mu      sync.Mutex
	kept    []keptFile      // the oldest first
	digests map[string]bool // of those
	bytes   int64
}

type keptFile struct {
	name   string
	digest string
	size   int64
}

// maxAsideFiles bounds how many small items are kept.
const maxAsideFiles = 10_000

// asideName is what the files are named: when, why, from which kube-apiserver, and the beginning of their digest. Other
// files in the directory are left alone.
var asideName = regexp.MustCompile(`^\d{8}T\d{6}\.\d{9}Z_[a-z_0-9]+_[a-z0-9-]+_([0-9a-f]{32})\.json$`)

// openAside makes the directory if it is missing, and finds what an earlier process has kept in it.
func openAside(directory string, maxBytes int64, now func() time.Time) (*aside, error) {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, fmt.Errorf("making the directory for items that are set aside: %w", err)
	}
	entries, err := os.ReadDir(directory)
	if err != nil {
		return nil, fmt.Errorf("listing the items that were set aside: %w", err)
	}
	a := &aside{directory: directory, maxBytes: maxBytes, now: now, digests: map[string]bool{}}
	for _, entry := range entries { // sorted by name, so by time
		match := asideName.FindStringSubmatch(entry.Name())
		if match == nil || !entry.Type().IsRegular() {
			continue
		}
		info, err := entry.Info()
		if err != nil {
			continue // somebody has just removed it
		}
		a.add(keptFile{entry.Name(), match[1], info.Size()})
	}
	return a, a.makeRoom(0)
}

// keep writes an item, unless the same one is there: a batch that is delivered again brings the same bytes. Of an item
// that is longer than everything that may be kept, the beginning is written.
func (a *aside) keep(source, reason string, item []byte) error {
	sum := sha256.Sum256(item)
	digest := hex.EncodeToString(sum[:16])
	if int64(len(item)) > a.maxBytes {
		item = item[:a.maxBytes]
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.digests[digest] {
		return nil
	}
	if err := a.makeRoom(int64(len(item))); err != nil {
		return err
	}
	name := fmt.Sprintf("%s_%s_%s_%s.json", a.now().UTC().Format("20060102T150405.000000000Z"), reason, source, digest)
	if err := write(filepath.Join(a.directory, name), item); err != nil {
		return fmt.Errorf("setting an item aside: %w", err)
	}
	a.add(keptFile{name, digest, int64(len(item))})
	return nil
}

func (a *aside) add(f keptFile) {
	a.kept = append(a.kept, f)
	a.digests[f.digest] = true
	a.bytes += f.size
}

// makeRoom removes the oldest files until there is room for one of the given size.
func (a *aside) makeRoom(size int64) error {
	for len(a.kept) > 0 && (len(a.kept) >= maxAsideFiles || a.bytes+size > a.maxBytes) {
		oldest := a.kept[0]
		if err := os.Remove(filepath.Join(a.directory, oldest.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing the oldest item that was set aside: %w", err)
		}
		a.kept = a.kept[1:]
		delete(a.digests, oldest.digest)
		a.bytes -= oldest.size
	}
	return nil
}

// write leaves no half a file behind.
func write(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err = cmp.Or(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}
