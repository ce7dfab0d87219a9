package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/test/sandbox"
)

// who asks as an SRE does, and returns "who operation effect" of each line, newest first.
func (h *house) who(t *testing.T, arguments ...string) []string {
	t.Helper()
	out := h.command(t, append([]string{"who", "--victorialogs", h.VictoriaLogsURL(), "-o", "json"}, arguments...)...)
	var rows []string
	for line := range strings.Lines(out) {
		rows = append(rows, told(t, line))
	}
	return rows
}

func told(t *testing.T, line string) string {
	t.Helper()
	var row struct{ Who, Through, Operation, Effect, CredentialID, AccountUID string }
	require.NoError(t, json.Unmarshal([]byte(line), &row), line)
	assert.NotEmpty(t, row.CredentialID, line)
	assert.Equal(t, row.Effect == "Done", row.AccountUID != "", line)
	return strings.Join(strings.Fields(row.Who+" "+row.Through+" "+row.Operation+" "+row.Effect), " ")
}

func TestAnSREAsksWhoRotatedWhatAndThroughWhom(t *testing.T) {
	t.Parallel()
	release := shared.application(t, "who", "app", "other")
	credential := release + ".app"
	shared.mint(t, sandbox.Jane, 0, credential)
	shared.minted(t, call{person: sandbox.TenantRoot, path: credential + "/mint", as: "jane", asGroups: []string{"tenant-acme-admin"}})
	shared.refused(t, http.StatusForbidden, call{person: sandbox.Ivan, path: credential + "/mint"})
	_, err := shared.do(ctx(t), call{person: sandbox.Jane, path: credential + "/revoke"})
	require.NoError(t, err)
	shared.minted(t, call{person: sandbox.Jane, path: credential + "/mint", query: "?dryRun=All"})
	shared.mint(t, sandbox.Jane, 1, release+".other")

	mine := []string{"--since", "1h", "--namespace", acme, "--credential", credential}
	within(t, 2*time.Minute, func() error {
		want := []string{"jane Revoke Done", "jane root Mint Done", "jane Mint Done"}
		if got := shared.who(t, mine...); !slices.Equal(want, got) {
			return fmt.Errorf("it answers %q", got)
		}
		return nil
	})
	within(t, 2*time.Minute, func() error {
		if got := shared.who(t, append(mine, "--denied")...); !slices.Equal([]string{"ivan Mint Refused"}, got) {
			return fmt.Errorf("it answers %q", got)
		}
		return nil
	})
	assert.Equal(t, []string{"jane Revoke Done"}, shared.who(t, append(mine, "--operation", "revoke")...))
	assert.Equal(t, []string{"jane root Mint Done"}, shared.who(t, append(mine, "--by", "root")...))
	assert.Equal(t, []string{"jane Revoke Done"}, shared.who(t, append(mine, "--limit", "1")...))
	assert.Empty(t, shared.who(t, append(mine, "--until", "2020-01-01", "--since", "2019-01-01")...))

	table := shared.command(t, append([]string{"who", "--victorialogs", shared.VictoriaLogsURL()}, mine...)...)
	assert.Regexp(t, `^TIME +NAMESPACE +CREDENTIAL +OPERATION +WHO +THROUGH +WITH +ANSWER +EFFECT\n`, table)
	assert.Regexp(t, `Mint +jane +root +X509SHA256=[0-9a-f]+ +201 +Done\n`, table)
}

func TestAnSREFollowsWhoRotatesWhat(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "follow", "app") + ".app"
	shared.mint(t, sandbox.Jane, 0, credential)
	within(t, 2*time.Minute, func() error { // of a commit that comes late it does not wait
		if got := shared.who(t, "--since", "1h", "--credential", credential); !slices.Equal([]string{"jane Mint Done"}, got) {
			return fmt.Errorf("the archive has %q", got)
		}
		return nil
	})
	follow := exec.CommandContext(ctx(t), shared.Binary(), "who", "--victorialogs", shared.VictoriaLogsURL(), "-o", "json",
		"--credential", credential, "--since", "1h", "--follow")
	out, err := follow.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, follow.Start())
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan(), "what was there before comes first")
	assert.Equal(t, "jane Mint Done", told(t, lines.Text()))
	_, err = shared.do(ctx(t), call{person: sandbox.Jane, path: credential + "/revoke"})
	require.NoError(t, err)
	require.True(t, lines.Scan())
	assert.Contains(t, []string{"jane Revoke Done", "jane Revoke Reported"}, told(t, lines.Text()), "as far as the archive shows it by then")
	require.NoError(t, follow.Process.Signal(syscall.SIGINT))
	assert.False(t, lines.Scan(), "each is told once")
	require.NoError(t, follow.Wait(), "an interrupt ends it well")
}
