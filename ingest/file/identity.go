package file

import (
	"io/fs"
	"syscall"
)

// A fileID is what a file keeps when it is renamed. When it is deleted another file may get all of it but Born.
type fileID struct {
	Device uint64 `json:"device"` // which may be another after a reboot
	Inode  uint64 `json:"inode"`
	Born   int64  `json:"born,omitempty"` // in nanoseconds since 1970; 0 where the file system does not tell
}

// identify is the id of the file at path, of which info was just got.
func identify(path string, info fs.FileInfo) fileID {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}
	}
	return fileID{Device: uint64(stat.Dev), Inode: stat.Ino, Born: born(path, stat.Ino)}
}

// sameInode reports whether it is the same file, where one of them is held open or has kept its name.
func (id fileID) sameInode(other fileID) bool {
	return id.Inode == other.Inode && (id.Device == other.Device || id.Born != 0 && id.Born == other.Born)
}

// maybe reports whether nothing speaks against its being the same file.
func (id fileID) maybe(other fileID) bool {
	return id.sameInode(other) && (id.Born == other.Born || id.Born == 0 || other.Born == 0)
}

// certainly reports whether it is the same file, whatever has been deleted.
func (id fileID) certainly(other fileID) bool {
	return id.Inode == other.Inode && id.Born == other.Born && id.Born != 0
}
