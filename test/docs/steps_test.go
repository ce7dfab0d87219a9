package docs

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestAPagesCommandsAreReadAsAReaderDoes(t *testing.T) {
	page := strings.ReplaceAll(`
text
'''console
$ one   # why
out
…
$ two |
    three \
    four
$ cat <<'END'
'''
$ not a command
END
shown
'''
- a list

  '''console
  $ five
  indented
  '''

'''yaml
$ no: command
'''
'''sh
apart --from all
'''
`, "'''", "```")
	assert.Equal(t, []step{
		{line: 4, command: "one   # why", output: []string{"out", "…"}},
		{line: 7, command: "two |\n    three \\\n    four"},
		{line: 10, command: "cat <<'END'\n```\n$ not a command\nEND", output: []string{"shown"}},
		{line: 19, command: "five", output: []string{"indented"}},
		{line: 26, command: "apart --from all\n", apart: true},
	}, steps(page))
}

func TestAnOutputIsWhatIsShownButForWhatIsLeftOpen(t *testing.T) {
	f := func(shown, printed string, want bool) {
		t.Helper()
		assert.Equal(t, want, shows(strings.Split(shown, "\n")).MatchString(printed), "%q shows %q", shown, printed)
	}
	f("NAME  AGE\na.b   …", "NAME        AGE\na.b         3s\n", true)
	f("NAME  AGE\na.b   …", "NAME        AGE\naxb         3s\n", false)
	f("NAME", "NAME\nmore\n", false)
	f("NAME\n…", "NAME\nmore\nand more\n", true)
	f("NAME\n…", "NAME\n", true)
	f("…\nlast", "first\nsecond\nlast\n", true)
	f("…\nlast", "first\nlast\nsecond\n", false)
	f("…last…", "not the last one\n", true)
	f("a…b", "a\nb\n", false)
}

func TestNoPasswordStandsInWhatATestSays(t *testing.T) {
	assert.Equal(t, "pw … end\n", redacted("pw "+strings.Repeat("aB3", 11)+" end\n"))
}
