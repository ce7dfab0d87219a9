package file

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// backupTime is how kube-apiserver names the files that it rotated: audit-2006-01-02T15-04-05.000.log, in UTC.
const backupTime = "2006-01-02T15-04-05.000"

const compressed = ".gz"

// A sibling is a rotated file beside a log, or the log itself.
type sibling struct {
	name string // of the plain file, which may be gone; empty: the log itself
	path string // of what is there
	id   fileID // of what is there
	size int64  // of what is there, in bytes

	replaces bool // another file had the name, and was read
}

// same reports whether s and other are one file under one path.
func (s sibling) same(other sibling) bool { return s.path == other.path && s.id == other.id }

func (s sibling) zipped() bool { return strings.HasSuffix(s.path, compressed) }

// theLog is the file at the path of a log; nil if there is none.
func theLog(path string) (*sibling, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &sibling{path: path, id: identify(path, info), size: info.Size()}, nil
}

// files are the rotated files of the log at path, oldest first, and the log.
func files(path string) ([]sibling, error) {
	log, err := theLog(path) // before the others: what is older has its rotated name by then
	if err != nil {
		return nil, err
	}
	list, err := siblings(path)
	if log != nil {
		list = append(list, *log)
	}
	return list, err
}

// siblings are the rotated files of the log at path, oldest first. A compressed one counts only where the plain one is
// gone: while both are there the compressed one may be half written.
func siblings(path string) ([]sibling, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
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
		if !entry.Type().IsRegular() {
			continue
		}
		s, err := seen(name, filepath.Join(filepath.Dir(path), entry.Name()))
		if errors.Is(err, fs.ErrNotExist) && !isCompressed { // compressed just now, or deleted
			s, err = seen(name, filepath.Join(filepath.Dir(path), name+compressed))
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found[name] = s
	}
	list := make([]sibling, 0, len(found))
	for _, s := range found {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b sibling) int { return strings.Compare(a.name, b.name) })
	return list, nil
}

// seen is the file at path, which was rotated to name.
func seen(name, path string) (sibling, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return sibling{}, err
	}
	return sibling{name: name, path: path, id: identify(path, info), size: info.Size()}, nil
}

// isBackup reports whether name is what the log called base was renamed to at a rotation.
func isBackup(base, name string) bool { return !rotationTime(base, name).IsZero() }

// rotationTime is when the log at path was renamed to name; zero if it is not called so.
func rotationTime(path, name string) time.Time {
	base, extension := filepath.Base(path), filepath.Ext(path)
	stamp, ok := strings.CutPrefix(name, strings.TrimSuffix(base, extension)+"-")
	if !ok {
		return time.Time{}
	}
	stamp, ok = strings.CutSuffix(stamp, extension)
	if !ok {
		return time.Time{}
	}
	t, err := time.Parse(backupTime, stamp)
	if err != nil {
		return time.Time{}
	}
	return t
}
