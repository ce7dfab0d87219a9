package format_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/mint/format"
	"github.com/mintlog/mintlog/test/postgres"
)

func startPostgreSQL(t *testing.T) *postgres.Postgres {
	t.Helper()
	server, err := postgres.Start(t.Context(), "", os.Stderr)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	version, err := server.Version(t.Context())
	require.NoError(t, err)
	t.Log("PostgreSQL", version)
	return server
}

// TestPostgreSQLTakesEverySCRAMFormUnchangedAndLetsItsPasswordIn walks through a thousand passwords in one session of
// psql: logged in with one, the role is given the next one's stored form, as an operator gives it, and logs in anew.
func TestPostgreSQLTakesEverySCRAMFormUnchangedAndLetsItsPasswordIn(t *testing.T) {
	server := startPostgreSQL(t)
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

// migrated are passwords that somebody chose: each is one where preparing it, preparing it otherwise and not preparing
// it come to different things.
var migrated = []string{
	"pass\u00aaword",           // FEMININE ORDINAL INDICATOR, which normalizes to a
	"pass\u00adword", "\u00ad", // SOFT HYPHEN, which goes, and leaves nothing
	"pass\u00a0word", "\u00a0", // NO-BREAK SPACE, which becomes one
	"pass\u2168word",          // ROMAN NUMERAL NINE, which becomes IX
	"u\u0308nal", "\u00fcnal", // NFD and NFC
	"\u1100\u1161", "\ufb01n", // Hangul to be composed, a ligature
	"a\u200bb", "a\u200cb", // ZERO WIDTH SPACE is a space and nothing at once, NON-JOINER is nothing
	"a\u0340\u00aa", "e\u0301\u0341", // prohibited, though normalization would do away with it
	"\U0001f600\u00aa", "\ua69c\u00aa", "\U0001f100\u00aa", "\u1d2c\u00aa", // not assigned in Unicode 3.2
	"\u0627\u00aa\u0628", "\u0627\u0628\u00a0\u0627", "\u06271", // right to left, and mixed
	"a\u0007\u00aa", "a\u2028\u00aa", "\ue000\u00aa", "\U000e0001\u00aa", "\ufffd\u00aa", // prohibited
	"plain ASCII", "tr\u00e4iling ", "'\"\\$:,=",
}

func TestAMigratedPasswordWithNonASCIICharactersLogsInThroughLibpq(t *testing.T) {
	server := startPostgreSQL(t)
	var roles, wrong []postgres.Role
	for i, form := range stored(t, "scram-sha-256", migrated) {
		name := fmt.Sprintf("role%d", i)
		require.NoError(t, server.SetPassword(t.Context(), name, form))
		roles = append(roles, postgres.Role{Name: name, Password: migrated[i]})
		wrong = append(wrong, postgres.Role{Name: name, Password: migrated[(i+1)%len(migrated)] + "x"})
	}
	for i, in := range logins(t, server, roles) {
		require.True(t, in, "%+q", migrated[i])
	}
	for i, in := range logins(t, server, wrong) {
		require.False(t, in, "%+q", migrated[i])
	}
}

func logins(t *testing.T, server *postgres.Postgres, roles []postgres.Role) []bool {
	t.Helper()
	in, err := server.Logins(t.Context(), roles)
	require.NoError(t, err)
	return in
}

// TestWhatPostgreSQLMakesOfAPasswordItselfIsOurForm gives PostgreSQL passwords in plaintext and compares what it stores
// with our form under the same salt.
func TestWhatPostgreSQLMakesOfAPasswordItselfIsOurForm(t *testing.T) {
	server := startPostgreSQL(t)
	passwords := append(slices.Clone(migrated), newPasswords(t)[:10]...)
	random := mathrand.New(mathrand.NewPCG(1, 2))
	for range 150 { // one character of any kind before one that normalization changes
		character := []rune{0xd800}
		for !utf8.ValidRune(character[0]) {
			character[0] = []rune{random.Int32N(0x3000), random.Int32N(0x10000), random.Int32N(0x20000)}[random.IntN(3)] + 1
		}
		passwords = append(passwords, "x"+string(character)+"\u00aa")
	}
	var script strings.Builder
	script.WriteString("SET client_encoding = 'UTF8'; SET standard_conforming_strings = on; CREATE ROLE app LOGIN;\n")
	for _, password := range passwords {
		fmt.Fprintf(&script, "ALTER ROLE app PASSWORD '%s'; SELECT rolpassword FROM pg_authid WHERE rolname = 'app';\n", strings.ReplaceAll(password, "'", "''"))
	}
	out, err := server.Query(t.Context(), script.String())
	require.NoError(t, err)
	theirs := strings.Split(out, "\n")
	require.Len(t, theirs, len(passwords))
	ours, _ := format.Built("scram-sha-256")
	for i, password := range passwords {
		salt, err := base64.StdEncoding.DecodeString(strings.Split(strings.Split(theirs[i], "$")[1], ":")[1])
		require.NoError(t, err)
		form, err := ours.Format(bytes.NewReader(salt), "app", password)
		require.NoError(t, err)
		if string(form) != theirs[i] {
			t.Errorf("PostgreSQL prepares %+q otherwise", password)
		}
	}
}
