package engines_test

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/xdg-go/scram"

	"github.com/mintlog/mintlog/mint/format"
	"github.com/mintlog/mintlog/test/engines"
	"github.com/mintlog/mintlog/test/postgres"
)

func TestPostgreSQLLetsInWhoHasTheNewestPasswordAlone(t *testing.T) {
	proof{
		engine: running.postgresql.get(t), format: "scram-sha-256", username: "Report.Reader",
		shape:  regexp.MustCompile(`^SCRAM-SHA-256\$4096:[+/0-9A-Za-z]{22}==\$[+/0-9A-Za-z]{43}=:[+/0-9A-Za-z]{43}=\z`),
		salted: true, verifier: true, rounds: 10,
		mutants: map[string]mutant{
			"a trailing newline": aTrailingNewline, "a hashed newline": aHashedNewline, "no prefix": replaced("SCRAM-SHA-256$", ""),
			"a count of rounds that were not done": replaced("$4096:", "$4097:"), "the same salt": sameSalt,
			"the verifier of the verifier": twice, "its two keys exchanged": of(func(stored string) string {
				head, keys := stored[:strings.LastIndex(stored, "$")+1], stored[strings.LastIndex(stored, "$")+1:]
				storedKey, serverKey, _ := strings.Cut(keys, ":")
				return head + serverKey + ":" + storedKey
			}),
		},
	}.run(t)
}

// Mutants of the same shape: what catches them is PostgreSQL alone, and not a pattern.
func TestPostgreSQLItselfCatchesAWrongVerifierOfTheRightShape(t *testing.T) {
	p := proof{
		engine: running.postgresql.get(t), format: "scram-sha-256", username: "app",
		shape: regexp.MustCompile(`(?s).*`), salted: true,
	}
	formatter, ok := format.Built(p.format)
	require.True(t, ok)
	require.NoError(t, p.holds(t.Context(), formatter, 1))
	for name, mutate := range map[string]mutant{
		"another salt": of(func(stored string) string {
			return stored[:len("SCRAM-SHA-256$4096:")] + "AAAA" + stored[len("SCRAM-SHA-256$4096:AAAA"):]
		}),
		"more rounds than were done": replaced("$4096:", "$5000:"),
		"a trailing newline":         aTrailingNewline,
		"no prefix":                  replaced("SCRAM-SHA-256$", ""),
		"a hashed newline":           aHashedNewline,
	} {
		require.ErrorIs(t, p.holds(t.Context(), mutate(formatter), 1), engines.ErrRefused, name)
	}
}

const (
	verifiers  = 10_000
	loginRoles = 1_000
	refusals   = 50 // a process each; of all, PostgreSQL is known to hold the newest verifier, and no other
)

// Some verifiers that other implementations made failed to log in, by chance of their salt or password. Here are ten
// thousand by ours; each role gets ten, one after the other, and is logged in with the last.
func TestNoneOfTenThousandVerifiersFailsToLogIn(t *testing.T) {
	server := running.postgresql.get(t)
	formatter, ok := format.Built("scram-sha-256")
	require.True(t, ok)

	var old, newest []postgres.Role
	for range verifiers / loginRoles {
		old, newest = newest, mintedRoles(t)
		stored := storedRoles(t, formatter, newest)
		setAll(t, server, stored)
		unchanged(t, server, stored)
	}
	allLetIn(t, server, newest)
	allRefused(t, server, old[:refusals])

	// Revoked: what is stored is the verifier of a password that nobody saw.
	setAll(t, server, storedRoles(t, formatter, mintedRoles(t)[:refusals]))
	allRefused(t, server, newest[:refusals])
}

func mintedRoles(t *testing.T) []postgres.Role {
	t.Helper()
	roles := make([]postgres.Role, loginRoles)
	for i := range roles {
		password, err := format.NewPassword(rand.Reader)
		require.NoError(t, err)
		roles[i] = postgres.Role{Name: fmt.Sprintf("role.%d", i), Password: password}
	}
	return roles
}

func storedRoles(t *testing.T, formatter format.Formatter, roles []postgres.Role) []postgres.Role {
	t.Helper()
	stored := slices.Clone(roles)
	inParts(stored, func(part []postgres.Role) {
		for i, role := range part {
			form, err := formatter.Format(rand.Reader, role.Name, role.Password)
			assert.NoError(t, err)
			part[i].Password = string(form)
		}
	})
	return stored
}

// inParts does something with all parts of the roles at a time: most of a login is waiting.
func inParts(roles []postgres.Role, do func(part []postgres.Role)) {
	const parts = 8
	var all sync.WaitGroup
	for part := range slices.Chunk(roles, (len(roles)+parts-1)/parts) {
		all.Go(func() { do(part) })
	}
	all.Wait()
}

func setAll(t *testing.T, server *engines.PostgreSQL, stored []postgres.Role) {
	t.Helper()
	inParts(stored, func(part []postgres.Role) { assert.NoError(t, server.SetPasswords(t.Context(), part)) })
}

// unchanged wants PostgreSQL to hold the verifiers byte for byte, which is what a pooler compares with.
func unchanged(t *testing.T, server *engines.PostgreSQL, stored []postgres.Role) {
	t.Helper()
	rows, err := server.Query(t.Context(), "SELECT rolname, rolpassword FROM pg_authid WHERE rolpassword IS NOT NULL;")
	require.NoError(t, err)
	is := map[string]bool{}
	for line := range strings.Lines(rows) {
		is[strings.TrimSpace(line)] = true
	}
	for _, role := range stored {
		require.True(t, is[role.Name+"|"+role.Password], "%s holds another verifier than it was given", role.Name)
	}
}

func allLetIn(t *testing.T, server *engines.PostgreSQL, roles []postgres.Role) {
	t.Helper()
	inParts(roles, func(part []postgres.Role) {
		let, err := server.Logins(t.Context(), part)
		assert.NoError(t, err)
		for i := range let {
			assert.True(t, let[i], "%s is not let in", part[i].Name)
		}
	})
}

func allRefused(t *testing.T, server *engines.PostgreSQL, roles []postgres.Role) {
	t.Helper()
	inParts(roles, func(part []postgres.Role) {
		for _, role := range part {
			assert.ErrorIs(t, server.Login(t.Context(), role.Name, role.Password), engines.ErrRefused, role.Name)
		}
	})
}

// Clients prepare a password with SASLprep before they hash it, PostgreSQL does when it is given plaintext, and an
// implementation that hashes the raw bytes locks out whoever has one of these.
func TestAMigratedPasswordThatSASLprepChangesLogsInThroughLibpq(t *testing.T) {
	server := running.postgresql.get(t)
	formatter, ok := format.Built("scram-sha-256")
	require.True(t, ok)
	for name, password := range map[string]string{
		"feminine ordinal, U+00AA":           "pass\u00aaword",
		"soft hyphen, U+00AD":                "pass\u00adword",
		"no-break space, U+00A0":             "pass\u00a0word",
		"Roman numeral nine, U+2168":         "pass\u2168word",
		"decomposed, NFD":                    "passe\u0301word",
		"composed, NFC":                      "pass\u00e9word",
		"a soft hyphen alone":                "\u00ad",
		"what SASLprep forbids":              "pass\u0007word",
		"an unassigned code point":           "pass\u0378word",
		"two directions, which it forbids":   "\u0627pass\u0628 word",
		"right to left, which it allows":     "\u0627\u0628",
		"ideographs":                         "\u5bc6\u7801",
		"outside the basic plane":            "pass\U0001f511word",
		"spaces, quotes and signs of shells": ` pa ss'"\$(word)%;:, `,
	} {
		role := strings.Map(func(r rune) rune {
			if r == ' ' || r == ',' || r == '+' {
				return '-'
			}
			return r
		}, name)
		// As today's charts do: PostgreSQL hashes the plaintext itself.
		require.NoError(t, server.SetPassword(t.Context(), role, password))
		require.NoError(t, server.Login(t.Context(), role, password), "before: %s", name)

		stored, err := formatter.Format(rand.Reader, role, password)
		require.NoError(t, err, name)
		require.NoError(t, server.Apply(t.Context(), role, string(stored)))
		assert.NoError(t, server.Login(t.Context(), role, password), "migrated: %s", name)
		assert.ErrorIs(t, server.Login(t.Context(), role, password+"x"), engines.ErrRefused, name)
		let, err := server.Logins(t.Context(), []postgres.Role{{Name: role, Password: password}})
		require.NoError(t, err)
		assert.Equal(t, []bool{true}, let, name)
	}
}

// The mutant of the test above: a verifier of the raw bytes locks its owner out where SASLprep changes something.
func TestAVerifierOfTheRawBytesLocksOutWhoeverHasSuchAPassword(t *testing.T) {
	server := running.postgresql.get(t)
	for _, password := range []string{"pass\u00aaword", "pass\u00adword", "pass\u00a0word", "pass\u2168word", "passe\u0301word"} {
		client, err := scram.SHA256.NewClientUnprepped("", password, "")
		require.NoError(t, err)
		keys, err := client.GetStoredCredentialsWithError(scram.KeyFactors{Salt: "sixteen bytes of", Iters: 4096})
		require.NoError(t, err)
		encode := base64.StdEncoding.EncodeToString
		verifier := fmt.Sprintf("SCRAM-SHA-256$4096:%s$%s:%s", encode([]byte(keys.Salt)), encode(keys.StoredKey), encode(keys.ServerKey))
		require.NoError(t, server.Apply(t.Context(), "app", verifier))
		require.ErrorIs(t, server.Login(t.Context(), "app", password), engines.ErrRefused, "%+q", password)
	}
}
