package postgres_test

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/test/postgres"
)

var server *postgres.Postgres

func TestMain(m *testing.M) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	var err error
	if server, err = postgres.Start(ctx, "", os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := server.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func TestAVerifierLetsItsPasswordInAndNoOther(t *testing.T) {
	for _, role := range []string{"app", "Report.Reader", `quo"te'd \ 役`} {
		verifier := scram(t, "right")
		require.NoError(t, server.SetPassword(t.Context(), role, verifier))
		require.NoError(t, server.Login(t.Context(), role, "right"), role)
		require.ErrorIs(t, server.Login(t.Context(), role, "wrong"), postgres.ErrRefused)
		require.ErrorIs(t, server.Login(t.Context(), role, verifier), postgres.ErrRefused)

		require.NoError(t, server.SetPassword(t.Context(), role, scram(t, "next")))
		require.NoError(t, server.Login(t.Context(), role, "next"))
		require.ErrorIs(t, server.Login(t.Context(), role, "right"), postgres.ErrRefused)
	}
}

func TestARoleThatWasNeverGivenAPasswordIsNotLetIn(t *testing.T) {
	require.ErrorIs(t, server.Login(t.Context(), "nobody-yet", "any"), postgres.ErrRefused)
}

func TestManyLoginsAreToldApart(t *testing.T) {
	roles := []postgres.Role{{Name: "many-a", Password: "right"}, {Name: `many "b' \`, Password: `a'"\ $(b) :c`}, {Name: "many-c", Password: "ªﬁ"}}
	var stored []postgres.Role
	for _, role := range roles {
		stored = append(stored, postgres.Role{Name: role.Name, Password: scram(t, role.Password)})
	}
	stored[2].Password = "ªﬁ" // which PostgreSQL prepares by itself
	require.NoError(t, server.SetPasswords(t.Context(), stored))
	let, err := server.Logins(t.Context(), append(roles, postgres.Role{Name: "many-a", Password: "wrong"}, roles[0]))
	require.NoError(t, err)
	require.Equal(t, []bool{true, true, true, false, true}, let)
}

func TestALoginThatFailsByAnythingButThePasswordIsAnError(t *testing.T) {
	_, err := server.Query(t.Context(), "CREATE ROLE no_login PASSWORD 'x' NOLOGIN;")
	require.NoError(t, err)
	_, err = server.Logins(t.Context(), []postgres.Role{{Name: "no_login", Password: "x"}})
	require.ErrorContains(t, err, "not permitted to log in")
}

func TestTheErrorOfARefusedStatementHoldsNoPassword(t *testing.T) {
	err := server.SetPassword(t.Context(), "pg_reserved", "very secret")
	require.Error(t, err)
	require.NotContains(t, err.Error(), "very secret")
}

func TestTheServerSaysItsVersion(t *testing.T) {
	version, err := server.Version(t.Context())
	require.NoError(t, err)
	require.Regexp(t, `^\d+\.\d+`, version)
}

func TestStopRemovesTheServer(t *testing.T) {
	other, err := postgres.Start(t.Context(), t.TempDir(), nil)
	require.NoError(t, err)
	require.NoError(t, other.SetPassword(t.Context(), "app", scram(t, "right")))
	require.NoError(t, other.Stop())
	require.ErrorContains(t, other.Login(t.Context(), "app", "right"), "Connection refused")
}

// scram is the verifier of RFC 5803 for a password.
func scram(t *testing.T, password string) string {
	salt := make([]byte, 16)
	_, _ = rand.Read(salt) // never fails
	salted, err := pbkdf2.Key(sha256.New, password, salt, 4096, sha256.Size)
	require.NoError(t, err)
	sign := func(text string) []byte {
		mac := hmac.New(sha256.New, salted)
		mac.Write([]byte(text))
		return mac.Sum(nil)
	}
	stored := sha256.Sum256(sign("Client Key"))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$4096:%s$%s:%s", encode(salt), encode(stored[:]), encode(sign("Server Key")))
}
