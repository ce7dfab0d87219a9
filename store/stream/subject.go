package stream

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/mintlog/mintlog/store/event"
)

// The root of every subject: a later layout gets another version beside this one.
const subjectRoot = "mintlog.v1."

// maxToken is how long one escaped token may be, in bytes. Three of them and the root stay far below the 4,096 bytes
// that a server takes as one line of its protocol.
const maxToken = 512

// route names the stream that keeps the event.
func route(e *event.Event) kind {
	switch {
	case e.Stage == event.RequestReceived:
		return intents
	case e.Eligible():
		return events
	default:
		return attempts
	}
}

// subject is where the event is published: mintlog.v1.<stream>.<namespace>.<credential>.<operation>.
func subject(e *event.Event) string {
	namespace, credential := e.Account()
	return subjectRoot + string(route(e)) + "." + escape(namespace) + "." + escape(credential) + "." + operation(e)
}

func operation(e *event.Event) string {
	if o, ok := e.Operation(); ok {
		return strings.ToLower(string(o))
	}
	if e.IsWrite() {
		return "write"
	}
	return "other"
}

// escape makes one token of a subject of any string. Two strings never give the same token: bytes other than letters,
// digits, '-' and '_' become %XX, the empty string "%", and what would be longer than maxToken "%%" and its SHA-256.
func escape(s string) string {
	if s == "" {
		return "%"
	}
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; plain(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(upperHex[c>>4])
			b.WriteByte(upperHex[c&15])
		}
		if b.Len() > maxToken {
			digest := sha256.Sum256([]byte(s))
			return "%%" + hex.EncodeToString(digest[:])
		}
	}
	return b.String()
}

const upperHex = "0123456789ABCDEF"

func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}
