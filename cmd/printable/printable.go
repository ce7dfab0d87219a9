// Package printable shows what others chose, user names above all, so that no terminal acts on it and no two look the
// same.
package printable

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// asciiOnly holds what SetLocale found: one for the process, as a locale is.
var asciiOnly atomic.Bool

// SetLocale has everything that is not ASCII shown escaped from now on if the environment's locale names a character set
// that is not UTF-8, as C and POSIX do. An environment that names no locale is taken for one that shows UTF-8.
func SetLocale(getenv func(string) string) {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale := getenv(name); locale != "" {
			locale = strings.ToLower(locale)
			asciiOnly.Store(!strings.Contains(locale, "utf-8") && !strings.Contains(locale, "utf8"))
			return
		}
	}
	asciiOnly.Store(false)
}

// shown reports whether a character stands for itself.
func shown(r rune) bool { return unicode.IsPrint(r) && (r < utf8.RuneSelf || !asciiOnly.Load()) }

// None stands where the server named nothing. A name never looks like it: one that begins with "<" is quoted.
const None = "<none>"

// Name shows a name as it is, or quoted as Go would if it holds anything that a terminal would act on, hide or not show,
// or could be taken for a quoted one, or, by spaces like those between the columns of a table, for two. So no two names
// look the same for an escape sequence or a line break in them.
func Name(s string) string {
	switch {
	case s == "":
		return None
	case !strings.HasPrefix(s, `"`) && !strings.HasPrefix(s, "<") && Escape(s) == s && strings.TrimSpace(s) == s && !strings.Contains(s, "  "):
		return s
	default:
		return quoted(s)
	}
}

// Word is Name for where one space ends a name: one with a space in it is quoted as well.
func Word(s string) string {
	if name := Name(s); name != s || !strings.Contains(s, " ") {
		return name
	}
	return quoted(s)
}

func quoted(s string) string {
	if asciiOnly.Load() {
		return strconv.QuoteToASCII(s)
	}
	return strconv.Quote(s)
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
		case shown(r):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
	}
	return b.String()
}

// JSON writes a JSON text as an equal one that is safe to print: encoding/json leaves DEL, the C1 controls and
// the marks that turn the direction of writing as they are, and outside of strings JSON has none of them. Unprintable
// characters beyond U+FFFF stay where the locale shows them: no terminal acts on one.
func JSON(text []byte) []byte {
	var b []byte
	for _, r := range string(text) {
		switch {
		case r == '\n' || shown(r) || r > 0xffff && !asciiOnly.Load():
			b = utf8.AppendRune(b, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			b = fmt.Appendf(b, `\u%04x\u%04x`, high, low)
		default:
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
