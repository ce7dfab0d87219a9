package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// reservedBytes is the room made for what will stand in a file: names have at most 1,024 bytes, and no format makes more
// than six of one.
const reservedBytes = 16 << 10

// A reservation is a file of its owner's alone, with room for a password that is not made yet: what can fail about a
// file fails before any password is changed. Until it is kept it holds nothing but line breaks.
type reservation struct {
	path string
	file *os.File // nil: kept or dropped
}

// reserve makes the file. It never follows or replaces what is there.
func reserve(path string) (*reservation, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, other("Nothing was done, and the file stays as it is: choose another name.", "%s is there already", path)
	}
	if err != nil {
		return nil, other("Nothing was done.", "making the file for the password: %w", err)
	}
	r := &reservation{path: path, file: file}
	_, err = file.Write(bytes.Repeat([]byte("\n"), reservedBytes))
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		r.drop()
		return nil, other("Nothing was done.", "making room for the password in %s: %w", path, err)
	}
	return r, nil
}

// keep puts a text into the file. When it returns nil the text is on the disk.
func (r *reservation) keep(text string) error {
	if len(text) > reservedBytes {
		r.drop()
		return errors.New("it is longer than the room that was made for it")
	}
	_, err := r.file.WriteAt([]byte(text), 0)
	if err == nil {
		err = r.file.Truncate(int64(len(text)))
	}
	if err == nil {
		err = r.file.Sync()
	}
	if err == nil {
		err = syncFolder(filepath.Dir(r.path))
	}
	if err != nil {
		r.drop()
		return err
	}
	err = r.file.Close()
	r.file = nil
	return err
}

// drop removes the file, unless it was kept or somebody put another in its place.
func (r *reservation) drop() {
	if r == nil || r.file == nil {
		return
	}
	ours, err := r.file.Stat()
	if there, failed := os.Lstat(r.path); err == nil && failed == nil && os.SameFile(ours, there) {
		_ = os.Remove(r.path)
	}
	_ = r.file.Close()
	r.file = nil
}

// syncFolder has a new name outlast a power cut. Not every system can do that to a folder.
func syncFolder(folder string) error {
	directory, err := os.Open(folder)
	if err != nil {
		return nil //nolint:nilerr // a folder that may be written and not read
	}
	defer directory.Close()
	if err := directory.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !os.IsPermission(err) {
		return fmt.Errorf("syncing %s: %w", folder, err)
	}
	return nil
}
