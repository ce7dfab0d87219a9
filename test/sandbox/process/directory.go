package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// A Directory is a temporary one that its process holds a lock on, so that it is known as abandoned when that process
// was killed.
type Directory struct {
	Path string
	held *os.File
}

// NewDirectory makes a temporary directory, after removing those of the same prefix that were abandoned.
func NewDirectory(prefix string) (*Directory, error) {
	removeAbandoned(prefix)
	path, err := os.MkdirTemp("", prefix)
	if err != nil {
		return nil, err
	}
	held, err := hold(path)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	return &Directory{Path: path, held: held}, nil
}

// Remove removes it with all that is in it. What a server that was just killed had begun to write may still appear
// while its folder is emptied: it is emptied again then, for a few seconds.
func (d *Directory) Remove() error {
	err := os.RemoveAll(d.Path)
	for range 50 {
		if !errors.Is(err, syscall.ENOTEMPTY) {
			break
		}
		time.Sleep(100 * time.Millisecond)
		err = os.RemoveAll(d.Path)
	}
	return errors.Join(err, d.held.Close())
}

// removeAbandoned leaves alone what it cannot remove, and what was changed within the last minute: it may not be locked
// yet.
func removeAbandoned(prefix string) {
	found, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*")) // the pattern is well formed: no error
	for _, path := range found {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		held, err := hold(path)
		if err != nil {
			continue
		}
		_ = os.RemoveAll(path)
		_ = held.Close()
	}
}

func hold(path string) (*os.File, error) {
	directory, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(directory.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), directory.Close())
	}
	return directory, nil
}
