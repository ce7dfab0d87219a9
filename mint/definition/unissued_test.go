package definition_test

import (
	"crypto/rand"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/mint/definition"
)

func TestAnAccountThatWasNeverIssuedStoresTheBlocksForm(t *testing.T) {
	bob := definition.Account{Name: "bob", Username: "Bob"}
	f := func(b definition.Block, hooks definition.Webhooks, want string) {
		t.Helper()
		stored, err := b.Unissued(t.Context(), "Wiki", hooks, rand.Reader, bob)
		require.NoError(t, err)
		assert.Regexp(t, want, string(stored))
	}
	f(blockOf(t, "[{kind: ValuesMap, path: users}]"), nil, "^[0-9a-f]{64}$")
	f(block(t, "format: {name: scram-sha-256, parameters: {iterations: 5000}}\naccounts: [{kind: ValuesMap, path: users}]"), nil, `^SCRAM-SHA-256\$5000:`)
	passwords := map[string]bool{}
	hook := formats(func(kind, format, username, password string) (string, error) {
		assert.Equal(t, []string{"Wiki", "argon2id", "Bob"}, []string{kind, format, username})
		assert.GreaterOrEqual(t, len(password), 32)
		passwords[password] = true
		return "$argon2id$x", nil
	})
	f(block(t, argon), hook, `^\$argon2id\$x$`)
	f(block(t, argon), hook, `^\$argon2id\$x$`)
	assert.Len(t, passwords, 2, "each is another")

	_, err := block(t, argon).Unissued(t.Context(), "Wiki", formats(func(string, string, string, string) (string, error) {
		return "", errors.New("it is away")
	}), rand.Reader, bob)
	var failed *definition.WebhookError
	require.ErrorAs(t, err, &failed)
}
