package docs

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mintlog/mintlog/test/sandbox"
)

// A step is one command of a page's console block and the output that the page shows for it, or a block that is not run.
type step struct {
	line    int // of the page
	command string
	output  []string // empty: not shown
	apart   bool     // of a block that cannot be run here: "sh"
}

var fence = regexp.MustCompile("^(\\s*)```\\s*(\\S*)")

// steps are what a page tells its reader to do, in order. In a console block a command begins with "$ " and goes on for as
// long as its lines end with a backslash or a pipe, or until its here-document ends; what follows is its output.
func steps(text string) []step {
	var all []step
	indent, language, inside := "", "", false
	goesOn, until := false, ""
	for i, line := range strings.Split(text, "\n") {
		if mark := fence.FindStringSubmatch(line); mark != nil && until == "" {
			indent, language, inside, goesOn = mark[1], mark[2], !inside, false
			if inside && language == "sh" {
				all = append(all, step{line: i + 1, apart: true})
			}
			continue
		}
		if !inside {
			continue
		}
		line = strings.TrimPrefix(line, indent)
		switch last := len(all) - 1; {
		case language == "sh":
			all[last].command += line + "\n"
		case language != "console":
		case goesOn:
			all[last].command += "\n" + line
			goesOn = continues(line, &until)
		case strings.HasPrefix(line, "$ "):
			all = append(all, step{line: i + 1, command: line[2:]})
			goesOn = continues(line, &until)
		case last >= 0:
			all[last].output = append(all[last].output, line)
		}
	}
	return all
}

var hereDocument = regexp.MustCompile(`<<-?\s*'?(\w+)'?`)

// continues reports whether a command goes on after a line. until is the end of the here-document that it is in.
func continues(line string, until *string) bool {
	if *until != "" {
		if strings.TrimSpace(line) == *until {
			*until = ""
		}
		return *until != ""
	}
	if mark := hereDocument.FindStringSubmatch(line); mark != nil {
		*until = mark[1]
		return true
	}
	return strings.HasSuffix(line, `\`) || strings.HasSuffix(line, "|")
}

// shows is what the output must match: "…" stands for anything on its line and, alone on a line, for any lines; the width
// of a table's columns is not looked at.
func shows(lines []string) *regexp.Regexp {
	var pattern strings.Builder
	pattern.WriteString(`(?m)\A`)
	for _, line := range lines {
		if strings.TrimSpace(line) == "…" {
			pattern.WriteString(`(?:.*\n)*?`)
			continue
		}
		words := strings.Fields(line)
		for i, word := range words {
			parts := strings.Split(word, "…")
			for j, part := range parts {
				parts[j] = regexp.QuoteMeta(part)
			}
			if words[i] = strings.Join(parts, ".*"); i > 0 {
				pattern.WriteString(`[ \t]+`)
			}
			pattern.WriteString(words[i])
		}
		pattern.WriteString(`[ \t]*\n`)
	}
	return regexp.MustCompile(pattern.String() + `\z`)
}

// comment is what stands behind a command for its reader.
var comment = regexp.MustCompile(`\s+# .*$`)

// A shell is a reader at a terminal: one bash for a whole page, so that variables last.
type shell struct {
	input  io.WriteCloser
	output *bufio.Reader
}

func openShell(t *testing.T, environment ...string) *shell {
	t.Helper()
	c := exec.CommandContext(t.Context(), "bash", "--noprofile", "--norc")
	c.Dir, c.Env = cluster.Root(), environment
	input, err := c.StdinPipe()
	require.NoError(t, err)
	output, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		_ = input.Close()
		_ = c.Wait()
	})
	s := &shell{input: input, output: bufio.NewReader(output)}
	return s
}

// run gives a command and returns what it printed, on both outputs, and its exit status.
func (s *shell) run(command string) (string, int, error) {
	mark := uuid.NewString()
	if _, err := fmt.Fprintf(s.input, "{ %s\n} 2>&1 </dev/null; printf '\\n%s %%d\\n' $?\n", command, mark); err != nil {
		return "", 0, err
	}
	var printed strings.Builder
	for {
		line, err := s.output.ReadString('\n')
		if err != nil {
			return printed.String(), 0, fmt.Errorf("the shell ended: %w", err)
		}
		if status, ok := strings.CutPrefix(strings.TrimSpace(line), mark+" "); ok {
			code, err := strconv.Atoi(status)
			text := strings.TrimSuffix(printed.String(), "\n") // the line break before the mark
			if text != "" && !strings.HasSuffix(text, "\n") {
				text += "\n"
			}
			return text, code, err
		}
		printed.WriteString(line)
	}
}

var (
	// looking commands change nothing, and what they show comes a moment after what it comes of.
	looking = regexp.MustCompile(`^\s*(kubectl credentials (list|history|wait)|kubectl get|kubectl auth can-i|mintlog (who|gaps|enrolled|doctor))\b`)
	// asking commands ask the mint server.
	asking = regexp.MustCompile(`kubectl (credentials|get cred)|credentials\.cozystack\.io`)
	long   = regexp.MustCompile(`[A-Za-z0-9]{32,}`)
)

// redacted has no password in it: nothing of 32 letters and digits.
func redacted(text string) string { return long.ReplaceAllString(text, "…") }

// caughtUp waits until the mint server, which reads from caches, knows all that a reader has done to the accounts of a
// namespace before the next command, for he does not type that fast.
func caughtUp(t *testing.T, namespace string) {
	t.Helper()
	secrets, err := cluster.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().Secrets(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "credentials.cozystack.io/account=true"})
	require.NoError(t, err)
	var credentials []string
	for _, secret := range secrets.Items {
		credentials = append(credentials, strings.TrimSuffix(secret.Name, ".account"))
	}
	require.NoError(t, cluster.AwaitServed(t.Context(), namespace, credentials))
}

// follow does what a page, by its path from the top folder, says, as a reader would whose accounts are in a namespace.
// For each block that cannot be run here inPlace has, by what the block begins with, what is done instead, or nil.
func follow(t *testing.T, page, namespace string, s *shell, inPlace map[string]func()) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(cluster.Root(), page))
	require.NoError(t, err)
	ran, met := 0, map[string]bool{}
	for _, step := range steps(string(text)) {
		where := fmt.Sprintf("%s:%d: %s", page, step.line, step.command)
		if step.apart {
			done := false
			for beginning, do := range inPlace {
				if strings.HasPrefix(step.command, beginning) {
					done, met[beginning] = true, true
					if do != nil {
						do()
					}
				}
			}
			require.True(t, done, "%s\nnothing is known to stand for this block: run it (console), or say here what does", where)
			continue
		}
		ran++
		command := comment.ReplaceAllString(step.command, "")
		if asking.MatchString(command) {
			caughtUp(t, namespace)
		}
		var complaint string
		for began := time.Now(); ; time.Sleep(200 * time.Millisecond) {
			printed, code, err := s.run(command)
			require.NoError(t, err, where)
			complaint = ""
			if code != 0 {
				complaint = fmt.Sprintf("it ends with %d", code)
			} else if len(step.output) > 0 && !shows(step.output).MatchString(printed) {
				complaint = "it does not print what is shown"
			}
			if complaint == "" {
				break
			}
			complaint += ":\n" + redacted(printed)
			if !looking.MatchString(command) || time.Since(began) > 2*time.Minute {
				break
			}
		}
		require.Empty(t, complaint, where)
	}
	require.Len(t, met, len(inPlace), "%s has no block any more for some of what stands for its blocks", page)
	require.NotZero(t, ran, "%s has no console block: nothing of it was run", page)
}

// A link leads to a file, or to the page itself, and there perhaps to a section.
type link struct{ file, section string }

var linkText = regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`)

// links are those of a page that do not lead away.
func links(text string) []link {
	var all []link
	for _, found := range linkText.FindAllStringSubmatch(text, -1) {
		all = append(all, link{found[1], found[2]})
	}
	return all
}

var heading = regexp.MustCompile("(?m)^#+ (.*)$")

// sections are the names by which links lead to a page's headings.
func sections(text string) []string {
	var all []string
	for _, found := range heading.FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(found[1]), "")
		all = append(all, strings.ReplaceAll(name, " ", "-"))
	}
	return all
}
