package definition_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/mint/definition"
)

// expression is a block whose only source is that expression.
func expression(text string) map[string]any {
	return map[string]any{
		"format":   map[string]any{"name": "sha256"},
		"accounts": []any{map[string]any{"kind": "Expression", "expression": text}},
	}
}

const severalValues = `{
  accounts: [{name: app}, {name: Report.Reader, username: reports, enabled: false}],
  users: {app: {}, bob: null}, authEnabled: true, replicas: 2, password: hunter2}`

func TestAnExpressionYieldsAccountsOfTheValues(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		b, err := definition.Parse(expression(text))
		require.NoError(t, err, text)
		accounts, refused, err := b.Accounts(t.Context(), app("r", decoded(t, severalValues)), nil, nothingRecorded)
		require.NoError(t, err, text)
		var got []string
		for _, a := range accounts {
			got = append(got, a.Name+"/"+a.Username)
		}
		for _, r := range refused {
			assert.True(t, r.Platform, text)
			got = append(got, "platform:"+r.Name)
		}
		slices.Sort(got)
		assert.Equal(t, want, got, text)
	}
	f("spec.accounts.map(a, {'name': a.name})", "Report.Reader/Report.Reader", "app/app")
	f("spec.accounts.map(a, {'name': a.name, 'username': a.?username.orValue('')})", "Report.Reader/reports", "app/app")
	f("spec.accounts.map(a, {'name': a.name, ?'username': a.?username})", "Report.Reader/reports", "app/app")
	f("spec.accounts.filter(a, a.?enabled.orValue(true)).map(a, {'name': a.name})", "app/app")
	f("spec.accounts.map(a, {'name': a.name, 'owner': 'platform'})", "platform:Report.Reader", "platform:app")
	f("spec.users.map(u, {'name': u}) + [{'name': 'root', 'owner': 'platform'}]", "app/app", "bob/bob", "platform:root")
	f("spec.?absent.orValue([]).map(a, {'name': a.name})", []string(nil)...)
	f("has(spec.absent) ? spec.absent.map(a, {'name': a}) : []", []string(nil)...)
	f("spec.authEnabled ? [{'name': 'default'}] : []", "default/default")
	f("spec.?users"+strings.Repeat(".optMap(u, u)", 5)+".orValue({}).map(u, {'name': u})", "app/app", "bob/bob")
	f("lists.range(spec.replicas).map(i, {'name': 'worker-' + string(i)})", "worker-0/worker-0", "worker-1/worker-1")
	f("spec.users.map(u, {'name': u.upperAscii()})", "APP/APP", "BOB/BOB")
	f("spec.accounts.filter(a, !spec.users.exists(u, u == a.name)).map(a, {'name': a.name})", "Report.Reader/Report.Reader")
	f("[]", []string(nil)...)
}

func TestAnExpressionIsCompiledWhenTheDefinitionIsRead(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		_, err := definition.Parse(expression(text))
		require.ErrorContains(t, err, "spec.credentials.accounts[0].expression: "+want)
	}
	f("spec.accounts.map(a, {'name': a.name}", "does not compile: 1:38: Syntax error")
	f("values.accounts", "does not compile: 1:1: undeclared reference to 'values'")
	f("spec.accounts.mop(a, a)", "does not compile: 1:18: undeclared reference to 'mop'")
	f("'app'", "yields a value of type string, not a list")
	f("{'name': 'app'}", "yields a value of type map(string, string), not a list")
	f("[spec.name.matches('(')]", "does not compile: ")
	f("spec.a.map(a, spec.a.map(b, spec.a.map(c, {'name': c.name}))[0])[0]", "may cost ")
	f("[{'name': spec.a.replace('', spec.b).replace('', spec.c).replace('', spec.d)}]", "may cost ")
	f("spec.?a"+strings.Repeat(".optMap(x, x)", 3)+strings.Repeat(".optFlatMap (x, x)", 3)+".orValue([])", "has more than the 5 optMap and optFlatMap that are allowed")
	f("["+strings.Repeat("{'name': 'a'},", 1000)+"]", "has 14002 bytes, more than the 8192")
}

func TestAnExpressionThatFailsQuotesNoValue(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		b, err := definition.Parse(expression(text))
		require.NoError(t, err, text)
		_, _, err = b.Accounts(t.Context(), app("r", decoded(t, severalValues)), nil, nothingRecorded)
		require.ErrorContains(t, err, "spec.credentials.accounts[0]: "+want, text)
		assert.NotContains(t, err.Error(), "hunter2")
	}
	f("spec.accounts.map(a, {'name': a.nam})", "the expression asks for a field that is absent from the values, at 1:32")
	f("spec.absent.map(a, {'name': a})", "the expression asks for a field that is absent from the values, at 1:5")
	f("spec.users[spec.password].map(a, {'name': a})", "the expression asks for a field that is absent")
	f("[{'name': string(int(spec.password))}]", "the expression cannot be evaluated for these values")
	f("[{'name': string(timestamp(spec.password))}]", "the expression cannot be evaluated for these values")
	f("[{'name': spec.password + 1}]", "the expression meets a value of another type than it expects")
	f("spec.password.map(a, {'name': a})", "the expression cannot be evaluated for these values")
	f("spec.password", "the expression yields no list")
	f("[spec.password]", "element 0 of what the expression yields is no map")
	f("[{'name': 'a'}, {'name': spec.users}]", "element 1 of what the expression yields has a name that is no string")
	f("[{'name': ''}]", "element 0 of what the expression yields has no name")
	f("[{spec.password: 'a'}]", "element 0 of what the expression yields has a field other than name, username and owner")
	f("[{'name': 'a', 'owner': spec.password}]", `element 0 of what the expression yields has an owner other than "platform"`)
}

// elements are n accounts' names.
func elements(n int) []any {
	list := make([]any, n)
	for i := range list {
		list[i] = fmt.Sprintf("user%d", i)
	}
	return list
}

func TestWhatAnExpressionMayCostAndYieldIsBounded(t *testing.T) {
	f := func(text string, values map[string]any, want string) {
		t.Helper()
		b, err := definition.Parse(expression(text))
		require.NoError(t, err, text)
		_, _, err = b.Accounts(t.Context(), app("r", values), nil, nothingRecorded)
		if want == "" {
			require.NoError(t, err, text)
			return
		}
		require.ErrorContains(t, err, "spec.credentials.accounts[0]: "+want, text)
	}
	f("spec.a.map(x, {'name': x})", map[string]any{"a": elements(1000)}, "")
	f("spec.a.map(x, {'name': x})", map[string]any{"a": elements(1001)}, "the expression meets a list of more than 1000 elements")
	f("spec.a.map(x, {'name': x})", map[string]any{"a": []any{strings.Repeat("x", 1001)}}, "the expression meets a string of more than 1000 bytes")
	f("[{'name': 'app'}]", map[string]any{"script": strings.Repeat("x", 1<<20), "a": elements(5000)}, "")
	many := map[string]any{}
	for _, e := range elements(1001) {
		many[e.(string)] = nil
	}
	f("spec.a.map(x, {'name': x})", map[string]any{"a": many}, "the expression meets a map of more than 1000 elements")
	f("spec.a.map(x, spec.a.map(y, {'name': x}))[0]", map[string]any{"a": elements(10)}, "")
	f("spec.a.map(x, spec.a.map(y, {'name': x}))[0]", map[string]any{"a": elements(1000)}, "the expression costs more than the 1000000 that are allowed")
	f("lists.range(spec.n).map(i, {'name': 'u' + string(i)})", map[string]any{"n": int64(1_000_000_000)}, "the expression cannot be evaluated for these values")
	sum := strings.TrimSuffix(strings.Repeat("spec.a.map(x, {'name': x}) + ", 5), " + ")
	f(sum, map[string]any{"a": elements(1000)}, "5000 accounts are declared, more than the 4096 that are allowed")
}

func TestAnExpressionStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b, err := definition.Parse(expression("spec.a.map(x, spec.a.exists(y, y == 'z')).filter(x, x).map(x, {'name': 'x'})"))
	require.NoError(t, err)
	_, _, err = b.Accounts(ctx, app("r", map[string]any{"a": elements(400)}), nil, nothingRecorded)
	require.ErrorContains(t, err, "the expression was not evaluated in time")
}

func TestTwoReadingsOfADefinitionAreEqual(t *testing.T) {
	text := "spec.accounts.map(a, {'name': a.name})"
	first, err := definition.Parse(expression(text))
	require.NoError(t, err)
	second, err := definition.Parse(expression(text))
	require.NoError(t, err)
	assert.Equal(t, first, second)
}

func FuzzAnExpressionFailsOrYieldsNamedAccounts(f *testing.F) {
	for _, seed := range []string{"spec.accounts.map(a, {'name': a.name})", "[]", "spec", "spec.users.map(u, {'name': u, 'owner': 'platform'})", "[{'name': spec.password}]", "1/0 == 1 ? [] : []", "[optional.none()]", "[{?'name': spec.?x}]"} {
		f.Add(seed)
	}
	values := decoded(f, severalValues)
	f.Fuzz(func(t *testing.T, text string) {
		b, err := definition.Parse(expression(text))
		if err != nil {
			return
		}
		accounts, refused, err := b.Accounts(t.Context(), app("r", values), nil, nothingRecorded)
		if err != nil {
			assert.NotContains(t, err.Error(), "hunter2")
		}
		for _, a := range accounts {
			assert.NotEmpty(t, a.SecretName)
		}
		assert.LessOrEqual(t, len(accounts)+len(refused), 4096)
	})
}
