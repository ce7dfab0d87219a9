package format_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/test/postgres"
)

// TestPostgreSQLTakesEverySCRAMFormUnchangedAndLetsItsPasswordIn walks through a thousand passwords in one session of
// psql: logged in with one, the role is given the next one's stored form, as an operator gives it, and logs in anew.
func TestPostgreSQLTakesEverySCRAMFormUnchangedAndLetsItsPasswordIn(t *testing.T) {
	server, err := postgres.Start(t.Context(), "", os.Stderr)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	version, err := server.Version(t.Context())
	require.NoError(t, err)
	t.Log("PostgreSQL", version)

	passwords := newPasswords(t)
	forms := stored(t, "scram-sha-256", passwords)
	require.NoError(t, server.SetPassword(t.Context(), "app", forms[0]))
	host, port, err := net.SplitHostPort(server.Address())
	require.NoError(t, err)
	var script strings.Builder
	for i := range passwords {
		fmt.Fprintf(&script, "\\connect -reuse-previous=off \"host=%s port=%s dbname=postgres user=app sslmode=disable gssencmode=disable password=%s\"\n", host, port, passwords[i])
		fmt.Fprintln(&script, "SELECT current_user;")
		if i+1 < len(passwords) {
			fmt.Fprintf(&script, "ALTER ROLE app PASSWORD '%s';\n", forms[i+1])
		}
	}
	psql := exec.CommandContext(t.Context(), filepath.Join(server.Programs(), "psql"), "--no-psqlrc", "--no-password", "--tuples-only", "--no-align", "--quiet", "--set=ON_ERROR_STOP=1")
	psql.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "PGHOST=" + host, "PGPORT=" + port, "PGDATABASE=postgres", "PGUSER=app", "PGPASSWORD=" + passwords[0], "PGSSLMODE=disable"}
	psql.Stdin = strings.NewReader(script.String())
	var complaint bytes.Buffer
	psql.Stderr = &complaint
	out, err := psql.Output()
	require.NoError(t, err, complaint.String())
	require.Equal(t, len(passwords), strings.Count(string(out), "app\n"), "logins")

	last := len(passwords) - 1
	require.NoError(t, server.Login(t.Context(), "app", passwords[last]))
	for _, refused := range []string{passwords[last-1], passwords[0], forms[last], ""} {
		require.Error(t, server.Login(t.Context(), "app", refused))
	}
}
