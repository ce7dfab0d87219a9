package file

import "golang.org/x/sys/unix"

// born is when the file at path was made if it has that inode; 0 if nothing tells.
func born(path string, inode uint64) int64 {
	var stat unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_SYNC_AS_STAT, unix.STATX_INO|unix.STATX_BTIME, &stat)
	if err != nil || stat.Mask&unix.STATX_BTIME == 0 || stat.Ino != inode {
		return 0
	}
	return stat.Btime.Sec*1e9 + int64(stat.Btime.Nsec)
}
