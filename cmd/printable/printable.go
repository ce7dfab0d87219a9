// Package printable shows what others chose, user names above all, so that no terminal acts on it and no two look the
// same.
package printable

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// None stands where the server named nothing. A name never looks like it: one that begins with "<" is quoted.
const None = "<none>"

// Name shows a name as it is, or quoted as Go would if it holds anything that a terminal would act on or hide, or
// could be taken for a quoted one. So no two names look the same for an escape sequence or a line break in them.
func Name(s string) string {
	if s == "" {
		return None
	}
	if strings.HasPrefix(s, `"`) || strings.HasPrefix(s, "<") || Escape(s) != s || strings.TrimSpace(s) != s {
		return strconv.Quote(s)
	}
	return s
}

// Escape makes a message from elsewhere safe to print on one line: what is not printable stands escaped.
func Escape(s string) string {
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

// JSON writes a JSON text as an equal one that is safe to print: encoding/json leaves DEL, the C1 controls and
// the marks that turn the direction of writing as they are, and outside of strings JSON has none of them. Unprintable
// characters beyond U+FFFF stay: no terminal acts on one.
func JSON(text []byte) []byte {
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

// Safe reports whether JSON would leave a text alone.
func Safe(text []byte) bool { return string(JSON(text)) == string(text) }

// Indented is v as JSON that is safe to print, and a line break.
func Indented(v any) ([]byte, error) {
	text, err := json.MarshalIndent(v, "", "    ")
	if err != nil {
		return nil, err
	}
	return append(JSON(text), '\n'), nil
}
