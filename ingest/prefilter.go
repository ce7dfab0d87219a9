package ingest

import (
	"bytes"
	"strings"

	"github.com/mintlog/mintlog/store/event"
)

// A line is looked at closer if it holds one of these. kube-apiserver writes the group and the ending of a Secret's
// name as they are; another writer may escape letters and dots, so a line with such an escape is looked at as well.
// The search is for the group's part that begins with its rarest letter, which is several times faster.
var (
	groupHead   = []byte(event.Group[:strings.IndexByte(event.Group, 'z')])
	groupTail   = []byte(event.Group[strings.IndexByte(event.Group, 'z'):])
	secretEnd   = []byte(event.AccountSecretSuffix + `"`)
	escapeStart = []byte(`\u00`)
)

// couldBeOurs reports whether the event in line can be ours. It never says no to one that is.
func couldBeOurs(line []byte) bool {
	return indexGroup(line) < len(line) || indexSecret(line) < len(line) || indexEscape(line) < len(line)
}

// eachCandidate calls found with every line of block, which ends in a line break, that could be ours, and with where in
// block it begins. It searches the block as a whole: going line by line would cost as much as the search itself.
func eachCandidate(block []byte, found func(line []byte, at int)) {
	group, secret, escape := indexGroup(block), indexSecret(block), indexEscape(block)
	for {
		hit := min(group, secret, escape)
		if hit >= len(block) {
			return
		}
		start := bytes.LastIndexByte(block[:hit], '\n') + 1
		end := hit + bytes.IndexByte(block[hit:], '\n')
		found(block[start:end], start)
		if group < end {
			group = end + indexGroup(block[end:])
		}
		if secret < end {
			secret = end + indexSecret(block[end:])
		}
		if escape < end {
			escape = end + indexEscape(block[end:])
		}
	}
}

// The index functions return len(b) where there is none.

func indexGroup(b []byte) int {
	for at := 0; ; {
		i := bytes.Index(b[at:], groupTail)
		if i < 0 {
			return len(b)
		}
		at += i
		if bytes.HasSuffix(b[:at], groupHead) {
			return at
		}
		at += len(groupTail)
	}
}

func indexSecret(b []byte) int {
	if i := bytes.Index(b, secretEnd); i >= 0 {
		return i
	}
	return len(b)
}

// indexEscape finds an escaped lower-case letter or dot.
func indexEscape(b []byte) int {
	for at := 0; ; {
		i := bytes.Index(b[at:], escapeStart)
		if i < 0 {
			return len(b)
		}
		at += i
		rest := b[at+len(escapeStart):]
		letter := len(rest) > 0 && (rest[0] == '6' || rest[0] == '7')
		dot := len(rest) > 1 && rest[0] == '2' && (rest[1] == 'e' || rest[1] == 'E')
		if letter || dot {
			return at
		}
		at += len(escapeStart)
	}
}
