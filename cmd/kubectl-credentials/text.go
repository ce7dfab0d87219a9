package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/duration"
)

// none stands where the server named nothing. A name never looks like it: one that begins with "<" is quoted.
const none = "<none>"

// name shows a name as it is, or quoted as Go would if it holds anything that a terminal would act on or hide, or
// could be taken for a quoted one. So no two names look the same for an escape sequence or a line break in them.
func name(s string) string {
	if s == "" {
		return none
	}
	if strings.HasPrefix(s, `"`) || strings.HasPrefix(s, "<") || escape(s) != s || strings.TrimSpace(s) != s {
		return strconv.Quote(s)
	}
	return s
}

// escape makes a message of the server safe to print on one line: what is not printable stands escaped.
func escape(s string) string {
	var b strings.Builder
	for i, width := 0, 0; i < len(s); i += width {
		var r rune
		r, width = utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && width == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// escapeJSON writes a JSON text as an equal one that is safe to print: encoding/json leaves DEL, the C1 controls and
// the marks that turn the direction of writing as they are, and outside of strings JSON has none of them. Unprintable
// characters beyond U+FFFF stay: no terminal acts on one.
func escapeJSON(text []byte) []byte {
	var b []byte
	for _, r := range string(text) {
		if r == '\n' || r > 0xffff || unicode.IsPrint(r) {
			b = utf8.AppendRune(b, r)
		} else {
			b = fmt.Appendf(b, `\u%04x`, r)
		}
	}
	return b
}

// printable reports whether escapeJSON would leave a text alone.
func printable(text []byte) bool { return string(escapeJSON(text)) == string(text) }

// age is how long ago a time was, as kubectl says it. A time ahead of this machine's clock was just now.
func age(now, at time.Time) string {
	if at.IsZero() {
		return none
	}
	return duration.HumanDuration(max(0, now.Sub(at)))
}

// exact is a time in UTC to the millisecond; -o json has the microseconds.
func exact(at time.Time) string {
	if at.IsZero() {
		return none
	}
	return at.UTC().Format("2006-01-02T15:04:05.000Z")
}

// indented is v as JSON that is safe to print.
func indented(v any) ([]byte, error) {
	text, err := json.MarshalIndent(v, "", "    ")
	if err != nil {
		return nil, err
	}
	return append(escapeJSON(text), '\n'), nil
}
