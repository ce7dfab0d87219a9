package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// reference is the page about the plugin.
func reference(t *testing.T) string {
	text, err := os.ReadFile("../../docs/plugin.md")
	require.NoError(t, err)
	return string(text)
}

func TestThePageHasEveryCommandAndTheExitCodesOfTheHelp(t *testing.T) {
	page := strings.NewReplacer("| `wait`:", "| wait:").Replace(reference(t))
	for _, command := range newRoot(terminal{}).Commands() {
		assert.Contains(t, page, "`"+command.Name(), "the command %s", command.Name())
	}
	for _, line := range strings.Split(exitCodes, "\n") {
		if code := regexp.MustCompile(`^  (\d)  (.+)$`).FindStringSubmatch(line); code != nil {
			assert.Contains(t, page, "\n| "+code[1]+" | "+code[2]+" |\n")
		}
	}
}

func TestThePageNamesNoFlagThatIsNotThere(t *testing.T) {
	known := map[string]bool{"help": true}
	root := newRoot(terminal{})
	add := func(f *pflag.Flag) { known[f.Name] = true }
	root.PersistentFlags().VisitAll(add)
	for _, command := range root.Commands() {
		command.Flags().VisitAll(add)
	}
	for _, flag := range regexp.MustCompile("--([a-z][a-z-]*)").FindAllStringSubmatch(reference(t), -1) {
		assert.True(t, known[flag[1]], "--%s", flag[1])
	}
}

func TestUnderTheNameOfTheCompleterTheProgramCompletes(t *testing.T) {
	f := func(want []string, line ...string) {
		t.Helper()
		assert.Equal(t, want, arguments(line))
	}
	f([]string{"mint", "x"}, "/usr/bin/kubectl-credentials", "mint", "x")
	f([]string{"__complete", "mint", ""}, "/usr/bin/kubectl_complete-credentials", "mint", "")
	f([]string{}, "kubectl-credentials")

	s := newServer(t)
	s.answers["GET "+collection] = sends(200, credentials())
	assert.Equal(t, "postgres-orders.app\npostgres-orders.report-reader\n:4\n", s.command(t, "__complete", "wait", "").out)
	assert.Equal(t, "env\njson\nnetrc\npgpass\nuri\n:4\n", s.command(t, "__complete", "mint", "x", "-o", "").out)
	assert.Contains(t, s.command(t, "completion", "bash").out, "complete")
}
