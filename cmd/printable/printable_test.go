package printable

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hostile is a user name that clears the screen, feigns a row and turns the direction of writing.
const hostile = "mallory\x1b[2J\nroot \u202e\u009b31m"

func TestNamesAreShownAsTheyAreUnlessATerminalWouldActOnThem(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		assert.Equal(t, want, Name(in))
	}
	f("jane", "jane")
	f(`CORP\jane`, `CORP\jane`)
	f("system:serviceaccount:tenant-acme:tenant-acme", "system:serviceaccount:tenant-acme:tenant-acme")
	f("Jörg Groß", "Jörg Groß")
	f("", "<none>")
	f("<none>", `"<none>"`)
	f(`"jane"`, `"\"jane\""`)
	f("jane ", `"jane "`)
	f("a\tb", `"a\tb"`)
	f("\x1b]0;x\a", `"\x1b]0;x\a"`)
	f("a\u200bb", `"a\u200bb"`)
	f("\xff", `"\xff"`)
	f("jane   root", `"jane   root"`)
}

func TestAWordHasNoSpaceOutsideOfQuotes(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		assert.Equal(t, want, Word(in))
	}
	f("jane", "jane")
	f("jane through root", `"jane through root"`)
	f("Jörg Groß", `"Jörg Groß"`)
	f("jane   root", `"jane   root"`)
	f("", "<none>")
}

// assertSafe holds that text has nothing but printable characters and line breaks.
func assertSafe(t *testing.T, text string) {
	t.Helper()
	for _, r := range text {
		if r != '\n' && !unicode.IsPrint(r) {
			assert.Failf(t, "unsafe to print", "%q in %q", r, text)
			return
		}
	}
}

func FuzzNamesAreSafeAndToldApart(f *testing.F) {
	for _, seed := range []string{"jane", "", "<none>", `"`, hostile, "\xff\xfe", "\u2028", " "} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		shown := Name(s)
		assertSafe(t, shown)
		assert.NotContains(t, shown, "\n")
		back := shown
		switch {
		case shown == None:
			back = ""
		case strings.HasPrefix(shown, `"`):
			var err error
			back, err = strconv.Unquote(shown)
			require.NoError(t, err)
		}
		assert.Equal(t, s, back)
		assertSafe(t, Escape(s))
	})
}

func FuzzEscapedJSONIsEqualAndSafe(f *testing.F) {
	for _, seed := range []string{"jane", hostile, "\x7f", "\u2028", "𝒥"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		text, err := json.Marshal(map[string]string{s: s})
		require.NoError(t, err)
		escaped := JSON(text)
		assert.JSONEq(t, string(text), string(escaped))
		for _, r := range string(escaped) {
			assert.True(t, r > 0xffff || unicode.IsPrint(r), "%q", r)
		}
	})
}
