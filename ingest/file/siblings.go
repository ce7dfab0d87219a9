package file

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// backupTime is how kube-apiserver names the files that it rotated: audit-2006-01-02T15-04-05.000.log, in UTC.
const backupTime = "2006-01-02T15-04-05.000"

const compressed = ".gz"

// A fileID is what a file keeps when it is renamed. When it is deleted another file may get it.
type fileID struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

func identify(info fs.FileInfo) fileID {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}
	}
	return fileID{Device: uint64(stat.Dev), Inode: stat.Ino}
}

// A sibling is a rotated file beside a log.
type sibling struct {
	name string // of the plain file, which may be gone
	path string // of what is there
	id   fileID // of what is there
	size int64  // of what is there, in bytes
}

func (s sibling) zipped() bool { return strings.HasSuffix(s.path, compressed) }

// siblings are the rotated files of the log at path, oldest first. A compressed one counts only where the plain one is
// gone: while both are there the compressed one may be half written.
func siblings(path string) ([]sibling, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	found := map[string]sibling{}
	for _, entry := range entries {
		name, isCompressed := strings.CutSuffix(entry.Name(), compressed)
		if !isBackup(filepath.Base(path), name) {
			continue
		}
		if _, ok := found[name]; ok && isCompressed {
			continue
		}
		s := sibling{name: name, path: filepath.Join(filepath.Dir(path), entry.Name())}
		if info, err := entry.Info(); err == nil {
			s.id, s.size = identify(info), info.Size()
		} else if !errors.Is(err, fs.ErrNotExist) { // compressed just now: it still has its name
			return nil, err
		}
		if entry.Type().IsRegular() {
			found[name] = s
		}
	}
	list := make([]sibling, 0, len(found))
	for _, s := range found {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b sibling) int { return strings.Compare(a.name, b.name) })
	return list, nil
}

// isBackup reports whether name is what the log called base was renamed to at a rotation.
func isBackup(base, name string) bool {
	extension := filepath.Ext(base)
	stamp, ok := strings.CutPrefix(name, strings.TrimSuffix(base, extension)+"-")
	if !ok {
		return false
	}
	stamp, ok = strings.CutSuffix(stamp, extension)
	if !ok {
		return false
	}
	_, err := time.Parse(backupTime, stamp)
	return err == nil
}
