package definition_test

import (
	"context"
	"crypto/rand"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/mint/webhook"
)

// formats stands in for the webhook of a format.
type formats func(kind, format, username, password string) (string, error)

func (f formats) Accounts(context.Context, string, webhook.Config, webhook.Application) ([]webhook.Account, error) {
	return nil, errors.New("not asked for")
}

func (f formats) Format(_ context.Context, kind string, _ webhook.Config, format, username, password string) (string, error) {
	return f(kind, format, username, password)
}

const argon = "format: {name: argon2id, kind: Webhook, webhook: {clientConfig: {url: 'https://a'}}}\naccounts: [{kind: ValuesMap, path: users}]\n"

func TestTheStoredFormIsThatOfTheBlocksFormat(t *testing.T) {
	bob := definition.Account{Name: "bob", Username: "Bob"}
	f := func(b definition.Block, hooks definition.Webhooks, want string) {
		t.Helper()
		stored, err := b.Stored(t.Context(), "Wiki", hooks, rand.Reader, bob, "pass")
		require.NoError(t, err)
		assert.Regexp(t, want, string(stored))
	}
	f(blockOf(t, "[{kind: ValuesMap, path: users}]"), nil, "^[0-9a-f]{64}$")
	f(block(t, "format: {name: scram-sha-256, parameters: {iterations: 5000}}\naccounts: [{kind: ValuesMap, path: users}]"), nil, `^SCRAM-SHA-256\$5000:`)
	f(block(t, argon), formats(func(kind, format, username, password string) (string, error) {
		assert.Equal(t, []string{"Wiki", "argon2id", "Bob", "pass"}, []string{kind, format, username, password})
		return "$argon2id$x", nil
	}), `^\$argon2id\$x$`)
}

func TestAFormatThatFailsYieldsNothingAndTellsAWebhooksFailureFromOthers(t *testing.T) {
	f := func(b definition.Block, hooks definition.Webhooks, password, want string, webhooks bool) {
		t.Helper()
		stored, err := b.Stored(t.Context(), "Wiki", hooks, rand.Reader, definition.Account{}, password)
		require.ErrorContains(t, err, want)
		assert.Nil(t, stored)
		assert.NotContains(t, err.Error(), "hunter2")
		var failed *definition.WebhookError
		assert.Equal(t, webhooks, errors.As(err, &failed))
	}
	answers := func(stored string, err error) formats {
		return func(string, string, string, string) (string, error) { return stored, err }
	}
	f(block(t, argon), answers("", errors.New("the webhook did not answer in time")), "hunter2", "the format argon2id: the webhook did not answer in time", true)
	f(block(t, argon), nil, "hunter2", "webhooks are not asked here", false)
	for _, special := range []string{`a\b`, "a,b", "{a}", "42", "true", "Null", `"a"`, "'a'"} {
		f(block(t, argon+"valuesPath: users.{username}.hash"), answers(special, nil), "hunter2", "the stored form would be read as something else in a HelmRelease's values", true)
	}
	f(blockOf(t, "[{kind: ValuesMap, path: users}]"), nil, "", "the format sha256: a password must not be empty", false)
}
