package file

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// rotatedName is how files are called that were logs: by kube-apiserver (audit-2006-01-02T15-04-05.000.log), by
// logrotate (audit.log.1, audit.log-20060102), compressed or put aside.
var rotatedName = regexp.MustCompile(
	`(-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{3}(\.[^.]*)?|-\d{8}(-\d+)?(\.[^.\d][^.]*)?|\.\d+|\.(old|bak|tmp|swp)|~)?(\.(gz|bz2|xz|zst|lz4))?$`)

// isPattern reports whether a path stands for all files that it matches.
func isPattern(path string) bool { return strings.ContainsAny(path, `*?[`) }

// matches are the logs that a pattern matches now: regular files that are not called like what a log was rotated to.
func matches(pattern string) ([]string, error) {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	var logs []string
	for _, path := range paths {
		if rotatedName.FindString(filepath.Base(path)) != "" {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			logs = append(logs, path)
		}
	}
	return logs, nil
}

// above is the directory below which a pattern's files are, as far as its path is without a pattern.
func above(pattern string) string {
	directory := filepath.Dir(pattern)
	for isPattern(directory) {
		directory = filepath.Dir(directory)
	}
	return directory
}
