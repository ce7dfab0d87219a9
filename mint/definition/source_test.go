package definition_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/mint/webhook"
)

// answers stands in for webhooks at the seam where they are asked.
type answers struct {
	accounts func(ctx context.Context, kind string, c webhook.Config, app webhook.Application) ([]webhook.Account, error)
}

func (a answers) Accounts(ctx context.Context, kind string, c webhook.Config, app webhook.Application) ([]webhook.Account, error) {
	return a.accounts(ctx, kind, c, app)
}

func (a answers) Format(context.Context, string, webhook.Config, string, string, string) (string, error) {
	return "", errors.New("not asked for")
}

func blockOf(t testing.TB, sources string) definition.Block {
	t.Helper()
	return block(t, "format: {name: sha256}\naccounts: "+sources)
}

func TestTheElementsOfAListAreAccounts(t *testing.T) {
	b := blockOf(t, "[{kind: ValuesList, path: db.accounts, nameField: name, usernameField: login}]")
	secrets, reasons := served(t, b, `{db: {accounts: [{name: app, quota: 3}, {name: Report.Reader, login: reports}, {name: bob, login: null}, {name: eve, login: ""}, {name: app}]}}`, nothingRecorded)
	assert.Equal(t, map[string]string{
		"pg-orders.app.account": "app", "pg-orders.report-reader.account": "reports", "pg-orders.bob.account": "bob", "pg-orders.eve.account": "eve",
	}, secrets)
	assert.Empty(t, reasons)
	for _, values := range []string{"{}", "{db: null}", "{db: {accounts: null}}", "{db: {accounts: []}}"} {
		secrets, _ := served(t, b, values, nothingRecorded)
		assert.Empty(t, secrets, values)
	}
}

func TestASourceThatFailsSaysWhatIsWrongInTheValuesAndQuotesNothing(t *testing.T) {
	const secret = "hunter2"
	f := func(sources, values, want string) {
		t.Helper()
		accounts, refused, err := blockOf(t, sources).Accounts(t.Context(), app("r", decoded(t, values)), nil, nothingRecorded)
		require.EqualError(t, err, "spec.credentials.accounts"+want)
		assert.NotContains(t, err.Error(), secret)
		assert.Empty(t, accounts)
		assert.Empty(t, refused)
	}
	list := "[{kind: ValuesList, path: a.accounts, nameField: name, usernameField: login}]"
	f(list, "{a: {accounts: {bob: hunter2}}}", "[0]: the value at a.accounts is no list")
	f(list, "{a: {accounts: hunter2}}", "[0]: the value at a.accounts is no list")
	f(list, "{a: [hunter2]}", "[0]: the value at a is no map, so there is no a.accounts")
	f(list, "{a: {accounts: [{name: x}, hunter2]}}", "[0]: the value at a.accounts[1] is no map")
	f(list, "{a: {accounts: [{password: hunter2}]}}", "[0]: the value at a.accounts[0].name is no string, or empty")
	f(list, "{a: {accounts: [{name: ''}]}}", "[0]: the value at a.accounts[0].name is no string, or empty")
	f(list, "{a: {accounts: [{name: {hunter2: x}}]}}", "[0]: the value at a.accounts[0].name is no string, or empty")
	f(list, "{a: {accounts: [{name: x, login: [hunter2]}]}}", "[0]: the value at a.accounts[0].login is no string")
	f("[{kind: ValuesMap, path: users}]", "{users: [hunter2]}", "[0]: the value at users is no map")
	f("[{kind: Static, name: x, when: flag}]", "{flag: hunter2}", "[0]: the value at flag is no boolean")
	f("[{kind: ValuesMap, path: users}, {kind: Static, name: x, when: flag}]", "{users: 1, flag: 2}",
		"[0]: the value at users is no map; spec.credentials.accounts[1]: the value at flag is no boolean")
}

func TestAKindGoesFromAMapToAListWithoutAFlagDay(t *testing.T) {
	for _, sources := range []string{
		"[{kind: ValuesMap, path: users}, {kind: ValuesList, path: users, nameField: name}]",
		"[{kind: ValuesList, path: users, nameField: name}, {kind: ValuesMap, path: users}]",
		"[{kind: ValuesMap, path: users}, {kind: ValuesList, path: accounts, nameField: name}]",
	} {
		b := blockOf(t, sources)
		held := recorded(map[string]string{"app": "app", "bob": "bob"})
		want := map[string]string{"pg-orders.app.account": "app", "pg-orders.bob.account": "bob"}
		values := map[string]string{"the old way": "{users: {app: {}, bob: {}}}", "the new way": "{users: [{name: app}, {name: bob}]}"}
		if strings.Contains(sources, "path: accounts") {
			values["the new way"] = "{accounts: [{name: app}, {name: bob}]}"
			values["both at once"] = "{users: {app: {}, bob: {}}, accounts: [{name: app}, {name: bob}]}"
			values["in the middle"] = "{users: {bob: {}}, accounts: [{name: app}]}"
		}
		for way, v := range values {
			secrets, reasons := served(t, b, v, held)
			assert.Equal(t, want, secrets, way)
			assert.Empty(t, reasons, way)
		}
		_, _, err := b.Accounts(t.Context(), app("r", decoded(t, "{users: 7}")), nil, nothingRecorded)
		assert.ErrorContains(t, err, "the value at users is no", "what neither reads is still at fault")
	}
}

func TestOneNameWithTwoUsernamesIsTheRecordedOnesOrNobodys(t *testing.T) {
	b := blockOf(t, "[{kind: ValuesMap, path: users}, {kind: ValuesList, path: accounts, nameField: name, usernameField: login}]")
	values := "{users: {app: {}}, accounts: [{name: app, login: other}]}"
	secrets, reasons := served(t, b, values, nothingRecorded)
	assert.Empty(t, secrets)
	assert.Contains(t, reasons["app"], `declared with two usernames`)
	secrets, _ = served(t, b, values, recorded(map[string]string{"app": "app"}))
	assert.Equal(t, map[string]string{"pg-orders.app.account": "app"}, secrets)
}

func TestAStaticAccountIsThereWhereItsConditionHolds(t *testing.T) {
	b := blockOf(t, "[{kind: Static, name: default, when: auth.enabled}, {kind: Static, name: root, owner: platform, when: auth.root}]")
	f := func(values string, served int, platform int) {
		t.Helper()
		accounts, refused, err := b.Accounts(t.Context(), app("r", decoded(t, values)), nil, nothingRecorded)
		require.NoError(t, err)
		assert.Len(t, accounts, served, values)
		assert.Len(t, refused, platform, values)
	}
	f("{}", 0, 0)
	f("{auth: {enabled: true, root: true}}", 1, 1)
	f("{auth: {enabled: false, root: true}}", 0, 1)
}

const webhookSource = "{kind: Webhook, webhook: {clientConfig: {url: 'https://example.com/accounts'}}}"

func TestAWebhookIsToldOfTheApplicationAndItsAccountsCount(t *testing.T) {
	b := blockOf(t, "["+webhookSource+", {kind: ValuesMap, path: users}]")
	values := decoded(t, "{users: {app: {}}}")
	var asked webhook.Application
	hooks := answers{accounts: func(_ context.Context, kind string, c webhook.Config, app webhook.Application) ([]webhook.Account, error) {
		asked = app
		assert.Equal(t, "Postgres", kind)
		assert.Equal(t, webhook.Config{URL: "https://example.com/accounts", Timeout: 5 * time.Second}, c)
		return []webhook.Account{{Name: "app"}, {Name: "Eve", Username: "eve_1"}, {Name: "root", Owner: "platform"}}, nil
	}}
	accounts, refused, err := b.Accounts(t.Context(), app("pg", values), hooks, nothingRecorded)
	require.NoError(t, err)
	assert.Equal(t, webhook.Application{Namespace: "tenant-acme", Kind: "Postgres", Name: "orders", Release: "pg", Values: values}, asked)
	assert.Equal(t, []definition.Account{
		{Name: "Eve", Username: "eve_1", Segment: "eve", SecretName: "pg.eve.account"},
		{Name: "app", Username: "app", Segment: "app", SecretName: "pg.app.account"},
	}, accounts)
	require.Len(t, refused, 1)
	assert.True(t, refused[0].Platform)
}

func TestAWebhookThatFailsOrAnswersNonsenseFailsTheSource(t *testing.T) {
	b := blockOf(t, "[{kind: ValuesMap, path: users}, "+webhookSource+"]")
	f := func(hooks definition.Webhooks, want string) {
		t.Helper()
		accounts, _, err := b.Accounts(t.Context(), app("r", decoded(t, "{users: {app: {}}}")), hooks, nothingRecorded)
		require.ErrorContains(t, err, "spec.credentials.accounts[1]: "+want)
		assert.Empty(t, accounts)
	}
	answer := func(accounts []webhook.Account, err error) answers {
		return answers{accounts: func(context.Context, string, webhook.Config, webhook.Application) ([]webhook.Account, error) {
			return accounts, err
		}}
	}
	f(nil, "webhooks are not asked here")
	f(answer(nil, errors.New("the webhook did not answer in time")), "the webhook did not answer in time")
	f(answer([]webhook.Account{{Name: "a"}, {Username: "b"}}, nil), "element 1 of the webhook's accounts has no name")
	f(answer([]webhook.Account{{Name: "a", Owner: "me"}}, nil), `element 0 of the webhook's accounts has an owner other than "platform"`)
	f(answer(make([]webhook.Account, 4097), nil), "4097 accounts are declared, more than the 4096 that are allowed")
}

func TestSeveralWebhooksAreAskedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sources []string
		for i := range 5 {
			sources = append(sources, fmt.Sprintf("{kind: Webhook, webhook: {clientConfig: {url: 'https://example.com/%d'}}}", i))
		}
		var asked atomic.Int32
		hooks := answers{accounts: func(context.Context, string, webhook.Config, webhook.Application) ([]webhook.Account, error) {
			asked.Add(1)
			time.Sleep(4 * time.Second)
			return nil, nil
		}}
		began := time.Now()
		_, _, err := blockOf(t, "["+strings.Join(sources, ",")+"]").Accounts(t.Context(), app("r", nil), hooks, nothingRecorded)
		require.NoError(t, err)
		assert.Equal(t, int32(5), asked.Load())
		assert.Equal(t, 4*time.Second, time.Since(began))
	})
}

func TestANameFarTooLongIsNotQuotedInFull(t *testing.T) {
	name := strings.Repeat("x", 100_000)
	_, refused, err := blockOf(t, "[{kind: ValuesList, path: a, nameField: id}]").Accounts(t.Context(), app("r", map[string]any{"a": []any{map[string]any{"id": name}}}), nil, nothingRecorded)
	require.NoError(t, err)
	require.Len(t, refused, 1)
	assert.Less(t, len(refused[0].Reason), 300)
}

func TestASourceThatIsNotUnderstoodIsRefusedWithTheFieldNamed(t *testing.T) {
	f := func(source string, words ...string) {
		t.Helper()
		_, err := definition.Parse(decoded(t, "format: {name: sha256}\naccounts: ["+source+"]"))
		for _, w := range words {
			require.ErrorContains(t, err, w)
		}
	}
	const at = "spec.credentials.accounts[0]"
	f("{kind: ValuesList, path: a}", at+".nameField: is required")
	f("{kind: ValuesList, nameField: a}", at+".path: is required")
	f("{kind: ValuesList, path: a., nameField: a}", at+".path: must be names joined by dots")
	f("{kind: ValuesList, path: a, nameField: a, name: b}", at+".name: this field is unknown to this version (known: kind, path, nameField, usernameField)")
	f("{kind: ValuesList, path: a, nameField: a, usernameField: 3}", at+".usernameField: must be a string")
	f("{kind: Expression}", at+".expression: is required")
	f("{kind: Expression, expression: '[]', path: a}", at+".path: this field is unknown")
	f("{kind: Expression, expression: 'spec.users.map('}", at+".expression: does not compile: 1:16: Syntax error")
	f("{kind: Expression, expression: '[]'}, {kind: Expression, expression: '[]'}", "accounts[1]: repeats spec.credentials.accounts[0]")
	f("{kind: Webhook}", at+".webhook: is required")
	f("{kind: Webhook, webhook: {}}", at+".webhook.clientConfig: is required")
	f("{kind: Webhook, webhook: {clientConfig: {}}}", at+".webhook.clientConfig: must have either url or service")
	f("{kind: Webhook, webhook: {clientConfig: {url: 'https://a', service: {name: a, namespace: b}}}}", at+".webhook.clientConfig: must have either url or service")
	f("{kind: Webhook, webhook: {clientConfig: {url: 'http://a'}}}", at+".webhook.clientConfig.url: must begin with https://")
	f("{kind: Webhook, webhook: {clientConfig: {url: 'https:///x'}}}", ".url: must name a host")
	f("{kind: Webhook, webhook: {clientConfig: {url: 'https://u:p@a/'}}}", ".url: must have neither user nor query nor fragment")
	f("{kind: Webhook, webhook: {clientConfig: {url: 'https://a/?b=c'}}}", ".url: must have neither user nor query nor fragment")
	f("{kind: Webhook, webhook: {clientConfig: {url: 'https://a/#b'}}}", ".url: must have neither user nor query nor fragment")
	f("{kind: Webhook, webhook: {clientConfig: {url: ':'}}}", ".url: is no URL")
	f("{kind: Webhook, webhook: {clientConfig: {service: {name: a}}}}", ".service.namespace: is required")
	f("{kind: Webhook, webhook: {clientConfig: {service: {name: a.b, namespace: b}}}}", ".service.name: ")
	f("{kind: Webhook, webhook: {clientConfig: {service: {name: a, namespace: b, port: 0}}}}", ".service.port: must be a whole number from 1 to 65535")
	f("{kind: Webhook, webhook: {clientConfig: {service: {name: a, namespace: b, path: x}}}}", ".service.path: must begin with a slash")
	f("{kind: Webhook, webhook: {clientConfig: {service: {name: a, namespace: b, scheme: http}}}}", ".service.scheme: this field is unknown")
	f("{kind: Webhook, webhook: {clientConfig: {url: 'https://a', caBundle: '%'}}}", ".caBundle: must be base64")
	f("{kind: Webhook, webhook: {clientConfig: {url: 'https://a', caBundle: 'aGVsbG8='}}}", ".caBundle: must hold certificates in PEM")
	f("{kind: Webhook, webhook: {clientConfig: {url: 'https://a', caBundle: 'LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCmFHVnNiRzg9Ci0tLS0tRU5EIENFUlRJRklDQVRFLS0tLS0K'}}}", ".caBundle: must hold certificates and nothing else")
	f("{kind: Webhook, webhook: {clientConfig: {url: 'https://a'}, failurePolicy: Ignore}}", ".webhook.failurePolicy: this field is unknown")
	for _, seconds := range []string{"0", "11", "1.5", "'5'", "-1", "1e300"} {
		f("{kind: Webhook, webhook: {clientConfig: {url: 'https://a'}, timeoutSeconds: "+seconds+"}}", ".webhook.timeoutSeconds: must be a whole number from 1 to 10")
	}
	f(strings.Repeat("{kind: Static, name: a},", 17), "spec.credentials.accounts: has 17 sources, more than the 16")
}

func TestAWebhookIsReadAsKubernetesOwnAre(t *testing.T) {
	f := func(text string, want webhook.Config) {
		t.Helper()
		assert.Equal(t, want, blockOf(t, "[{kind: Webhook, webhook: "+text+"}]").Sources[0].Webhook)
	}
	f("{clientConfig: {url: 'https://a.example:8443/x/y'}}", webhook.Config{URL: "https://a.example:8443/x/y", Timeout: 5 * time.Second})
	f("{clientConfig: {service: {namespace: platform, name: names}}, timeoutSeconds: 10}", webhook.Config{URL: "https://names.platform.svc:443/", Timeout: 10 * time.Second})
	f("{clientConfig: {service: {namespace: platform, name: names, port: 8443, path: /accounts}}, timeoutSeconds: 1}", webhook.Config{URL: "https://names.platform.svc:8443/accounts", Timeout: time.Second})
}

func TestAFormatIsReadWithItsParametersOrItsWebhook(t *testing.T) {
	f := func(text string, words ...string) definition.Format {
		t.Helper()
		b, err := definition.Parse(decoded(t, "format: "+text+"\naccounts: [{kind: ValuesMap, path: users}]"))
		for _, w := range words {
			require.ErrorContains(t, err, w)
		}
		if len(words) == 0 {
			require.NoError(t, err)
		}
		return b.Format
	}
	assert.Equal(t, 8192, f("{name: scram-sha-256, parameters: {iterations: 8192}}").Parameters.Iterations)
	assert.Equal(t, 12, f("{name: bcrypt, parameters: {cost: 12}}").Parameters.Cost)
	assert.Zero(t, f("{name: bcrypt, parameters: {}}").Parameters)
	hook := f("{name: argon2id, kind: Webhook, webhook: {clientConfig: {url: 'https://a'}}}")
	assert.Equal(t, definition.Format{Name: "argon2id", Kind: "Webhook", Webhook: webhook.Config{URL: "https://a", Timeout: 5 * time.Second}}, hook)

	const at = "spec.credentials.format"
	f("{name: scram-sha-256, parameters: {iterations: 4095}}", at+".parameters.iterations: must be a whole number from 4096 to 600000")
	f("{name: scram-sha-256, parameters: {iterations: 600001}}", at+".parameters.iterations: must be a whole number from 4096 to 600000")
	f("{name: scram-sha-256, parameters: {iterations: '8192'}}", at+".parameters.iterations: must be")
	f("{name: scram-sha-256, parameters: {cost: 10}}", at+".parameters.cost: this field is unknown to this version (known: iterations)")
	f("{name: bcrypt, parameters: {cost: 15}}", at+".parameters.cost: must be a whole number from 4 to 14")
	f("{name: bcrypt, parameters: {cost: 3}}", at+".parameters.cost: must be a whole number from 4 to 14")
	f("{name: sha256, parameters: {rounds: 10}}", at+".parameters.rounds: this field is unknown to this version")
	f("{name: sha256, parameters: 7}", at+".parameters: must be an object")
	f("{name: sha256, webhook: {clientConfig: {url: 'https://a'}}}", at+".webhook: this field is unknown")
	f("{name: sha256, kind: Webhook, webhook: {clientConfig: {url: 'https://a'}}}", at+`.name: "sha256" is a built-in format`)
	f("{name: Argon 2, kind: Webhook, webhook: {clientConfig: {url: 'https://a'}}}", at+".name: ")
	f("{name: argon2id, kind: Webhook}", at+".webhook: is required")
	f("{name: argon2id, kind: Webhook, parameters: {cost: 3}, webhook: {clientConfig: {url: 'https://a'}}}", at+".parameters: this field is unknown")
}
