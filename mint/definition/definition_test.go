package definition_test

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/quick"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/mintlog/mintlog/mint/definition"
)

// decoded is YAML as the API server hands it out.
func decoded(t testing.TB, text string) map[string]any {
	t.Helper()
	document, err := yaml.YAMLToJSON([]byte(text))
	require.NoError(t, err)
	var v map[string]any
	require.NoError(t, utiljson.Unmarshal(document, &v))
	return v
}

func block(t testing.TB, text string) definition.Block {
	t.Helper()
	b, err := definition.Parse(decoded(t, text))
	require.NoError(t, err)
	return b
}

func app(release string, values map[string]any) definition.Application {
	return definition.Application{Namespace: "tenant-acme", Release: release, Kind: "Postgres", Name: "orders", Values: values}
}

func nothingRecorded(string) (string, bool) { return "", false }

func recorded(usernames map[string]string) func(string) (string, bool) {
	return func(segment string) (string, bool) {
		username, ok := usernames[segment]
		return username, ok
	}
}

func TestABlockIsReadInFull(t *testing.T) {
	b := block(t, `
format: {name: scram-sha-256, kind: BuiltIn}
accounts:
- {kind: ValuesMap, path: engine.users}
- {kind: Static, name: default, username: db_default, when: auth.enabled}
- {kind: Static, name: root, owner: platform}
secretLabels: {cnpg.io/reload: "true", k8s.mariadb.com/watch: ""}
`)
	assert.Equal(t, definition.Block{
		Format: definition.Format{Name: "scram-sha-256", Kind: "BuiltIn"},
		Sources: []definition.Source{
			{Kind: "ValuesMap", Path: "engine.users"},
			{Kind: "Static", Name: "default", Username: "db_default", When: "auth.enabled"},
			{Kind: "Static", Name: "root", Username: "root", Owner: "platform"},
		},
		SecretLabels: map[string]string{"cnpg.io/reload": "true", "k8s.mariadb.com/watch": ""},
	}, b)
}

func TestABlockThatIsNotUnderstoodIsRefusedWithTheFieldNamed(t *testing.T) {
	const format, users = "format: {name: sha256}\n", "accounts: [{kind: ValuesMap, path: users}]\n"
	f := func(text string, words ...string) {
		t.Helper()
		_, err := definition.Parse(decoded(t, text))
		require.Error(t, err, text)
		for _, w := range words {
			assert.ErrorContains(t, err, w)
		}
	}
	f(format+users+"acounts: []", "spec.credentials.acounts: this field is unknown", "format, accounts")
	f(users, "spec.credentials.format: is required")
	f("format: {}\n"+users, "spec.credentials.format.name: is required")
	for _, path := range []string{"{username}", "{username}.hash", "x-{account}.hash"} {
		f(format+users+"valuesPath: '"+path+"'", "spec.credentials.valuesPath: must begin with a name of the chart's own")
	}
	for _, path := range []string{"a.{username}{account}", "a.{username}-{account}.hash", "a.{username}{username}"} {
		f(format+users+"valuesPath: '"+path+"'", "spec.credentials.valuesPath: must hold one of {username} and {account} at most in each name")
	}
	f("format: {name: rot13}\n"+users, `spec.credentials.format.name: "rot13" is unknown`, "scram-sha-256", "apr1")
	f("format: {name: x, kind: Plugin}\n"+users, `spec.credentials.format.kind: "Plugin" is unknown to this version (known: BuiltIn, Webhook)`)
	f("format: {name: sha256, rounds: 3}\n"+users, "spec.credentials.format.rounds: this field is unknown")
	f("format: sha256\n"+users, "spec.credentials.format: must be an object")
	f("format: {name: 7}\n"+users, "spec.credentials.format.name: must be a string")
	f(format, "spec.credentials.accounts: must be a list")
	f(format+"accounts: []", "spec.credentials.accounts: must be a list of at least one")
	f(format+"accounts: [users]", "spec.credentials.accounts[0]: must be an object")
	f(format+"accounts: [{path: users}]", "spec.credentials.accounts[0].kind: is required")
	f(format+"accounts: [{kind: valuesMap, path: users}]", `spec.credentials.accounts[0].kind: "valuesMap" is unknown to this version (known: ValuesMap, ValuesList, Static, Expression, Webhook)`)
	f(format+"accounts: [{kind: ValuesMap}]", "spec.credentials.accounts[0].path: is required")
	f(format+"accounts: [{kind: ValuesMap, path: a..b}]", "spec.credentials.accounts[0].path: must be names joined by dots")
	f(format+"accounts: [{kind: ValuesMap, path: users, name: x}]", "spec.credentials.accounts[0].name: this field is unknown")
	f(format+"accounts: [{kind: ValuesMap, path: users}, {kind: ValuesMap, path: users}]", "spec.credentials.accounts[1]: repeats spec.credentials.accounts[0]")
	f(format+"accounts: [{kind: Static}]", "spec.credentials.accounts[0].name: is required")
	f(format+"accounts: [{kind: Static, name: a, when: .x}]", "accounts[0].when: must be names joined by dots")
	f(format+"accounts: [{kind: Static, name: a, owner: me}]", `accounts[0].owner: "me" is unknown`, "platform")
	f(format+"accounts: [{kind: Static, name: '...'}]", "accounts[0].name: the account cannot be served")
	f(format+"accounts: [{kind: Static, name: a, username: 'b c'}]", "accounts[0].username: the account cannot be served")
	f(format+"accounts: [{kind: Static, name: a}, {kind: Static, name: a, owner: platform}]", "accounts[1].name", "another account's name")
	f(format+users+"secretLabels: {credentials.cozystack.io/account: 'false'}", "secretLabels", "mintlog's own")
	f(format+users+"secretLabels: {internal.cozystack.io/tenantresource: 'true'}", "secretLabels", "mintlog's own")
	f(format+users+"secretLabels: {a: 1}", `secretLabels["a"]: must be a string`)
	f(format+users+"secretLabels: {'a b': x}", `secretLabels["a b"]`)
	f(format+users+"secretLabels: {a: 'x y'}", `secretLabels["a"]`)
	f(format+users+"status: {}", "spec.credentials.status: this field is unknown to this version")
	f(format+users+"valuesPath: ''", "spec.credentials.valuesPath: must be a string that is not empty")
	for _, path := range []string{"a..{username}", ".{username}", "{username}.", "users.{name}", "users[0].{account}", "a,{account}", "a b.{account}", "{username", `a\\.{username}`, "ü.{account}"} {
		f(format+users+"valuesPath: '"+path+"'", "spec.credentials.valuesPath: must be names of letters")
	}
	f(format+users+"valuesPath: users.password", "spec.credentials.valuesPath: must hold {username} or {account}")
	f("format: {name: rot13}\naccounts: [{kind: List}]", "format.name", "accounts[0].kind")
	_, err := definition.Parse(nil)
	assert.ErrorContains(t, err, "spec.credentials: must be an object")
}

func TestAValuesPathLeadsToOnePlaceForEachAccount(t *testing.T) {
	f := func(path, username, want string) {
		t.Helper()
		b := block(t, "format: {name: sha256}\naccounts: [{kind: ValuesMap, path: users}]\nvaluesPath: '"+path+"'")
		got, err := b.ValuesPath.TargetPath(definition.Account{Name: username, Username: username, Segment: "bob-smith"}, nil)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	f("users.{username}.password_sha256_hex", "bob", "users.bob.password_sha256_hex")
	f("users.{username}/password_sha256_hex", "Bob.Smith", `users.Bob\.Smith/password_sha256_hex`)
	f("accounts.{account}.hash", "Bob.Smith", "accounts.bob-smith.hash")
	f("a.{account}.{username}", "{account}", "a.bob-smith.{account}") // what stands in a name is no placeholder

	b := block(t, "format: {name: sha256}\naccounts: [{kind: Static, name: default}, {kind: Static, name: root, owner: platform}]\nvaluesPath: auth.hash")
	got, err := b.ValuesPath.TargetPath(definition.Account{Name: "default", Username: "default", Segment: "default"}, nil)
	require.NoError(t, err)
	assert.Equal(t, "auth.hash", got, "one account needs no placeholder")

	_, err = definition.ValuesPath("a.{username}").TargetPath(definition.Account{Name: "x", Username: strings.Repeat(".", 125)}, nil)
	assert.ErrorContains(t, err, "252 characters")
}

const postgres = "format: {name: scram-sha-256}\naccounts: [{kind: ValuesMap, path: users}, {kind: Static, name: root, owner: platform}]\n"

// served are the usernames of accounts by their Secrets' names, and the reasons of refusal by name.
func served(t *testing.T, b definition.Block, values string, recorded func(string) (string, bool)) (map[string]string, map[string]string) {
	t.Helper()
	accounts, refused, err := b.Accounts(t.Context(), app("pg-orders", decoded(t, values)), nil, recorded)
	require.NoError(t, err)
	secrets, reasons := map[string]string{}, map[string]string{}
	for _, a := range accounts {
		secrets[a.SecretName] = a.Username
	}
	for _, r := range refused {
		reasons[r.Name] = r.Reason
	}
	return secrets, reasons
}

func TestTheUnionOfTheSourcesIsServed(t *testing.T) {
	b := block(t, `
format: {name: sha256}
accounts:
- {kind: ValuesMap, path: users}
- {kind: ValuesMap, path: more.users}
- {kind: Static, name: default, username: db_default, when: auth}
- {kind: Static, name: app}
`)
	secrets, reasons := served(t, b, "{users: {app: {}, Report.Reader: null}, more: {users: {app: {x: 1}, bob: {}}}, auth: true}", nothingRecorded)
	assert.Equal(t, map[string]string{
		"pg-orders.app.account": "app", "pg-orders.report-reader.account": "Report.Reader",
		"pg-orders.bob.account": "bob", "pg-orders.default.account": "db_default",
	}, secrets)
	assert.Empty(t, reasons)
}

func TestASourceOfAbsentValuesYieldsNothing(t *testing.T) {
	b := block(t, "format: {name: sha256}\naccounts: [{kind: ValuesMap, path: a.users}, {kind: Static, name: x, when: a.enabled}]")
	for _, values := range []string{"{}", "{a: null}", "{a: {users: null, enabled: null}}", "{a: {users: {}, enabled: false}}"} {
		accounts, refused, err := b.Accounts(t.Context(), app("r", decoded(t, values)), nil, nothingRecorded)
		require.NoError(t, err, values)
		assert.Empty(t, accounts, values)
		assert.Empty(t, refused, values)
	}
}

func TestASourceThatCannotReadItsValuesFails(t *testing.T) {
	b := block(t, "format: {name: sha256}\naccounts: [{kind: ValuesMap, path: a.users}, {kind: Static, name: x, when: a.enabled}]")
	f := func(values, want string) {
		t.Helper()
		_, _, err := b.Accounts(t.Context(), app("r", decoded(t, values)), nil, nothingRecorded)
		require.ErrorContains(t, err, want)
	}
	f("{a: {users: [bob]}}", "spec.credentials.accounts[0]: the value at a.users is no map")
	f("{a: {users: bob}}", "a.users is no map")
	f("{a: 7}", "the value at a is no map")
	f("{a: {enabled: 'true'}}", "spec.credentials.accounts[1]: the value at a.enabled is no boolean")
}

func TestTwoNewNamesThatMeetInOneSecretNameAreBothRefused(t *testing.T) {
	secrets, reasons := served(t, block(t, postgres), "{users: {Bob.Smith: {}, bob-smith: {}, app: {}}}", nothingRecorded)
	assert.Equal(t, map[string]string{"pg-orders.app.account": "app"}, secrets)
	assert.Contains(t, reasons["Bob.Smith"], `meets the account "bob-smith"`)
	assert.Contains(t, reasons["bob-smith"], `meets the account "Bob.Smith"`)
}

func TestAnApplicationDeclaresABoundedNumberOfAccounts(t *testing.T) {
	b := block(t, "format: {name: sha256}\naccounts: [{kind: ValuesMap, path: users}, {kind: ValuesList, path: logins, nameField: name}]")
	users, logins := map[string]any{}, []any{}
	for i := range 4096 {
		users[fmt.Sprintf("user%d", i)] = nil
	}
	f := func(want string) {
		t.Helper()
		accounts, _, err := b.Accounts(t.Context(), app("r", map[string]any{"users": users, "logins": logins}), nil, nothingRecorded)
		if want == "" {
			require.NoError(t, err)
			assert.Len(t, accounts, 4096)
			return
		}
		require.EqualError(t, err, want)
	}
	f("")
	logins = append(logins, map[string]any{"name": "one-more"})
	f("spec.credentials.accounts: 4097 accounts are declared, more than the 4096 that are allowed")
	b = block(t, "format: {name: sha256}\naccounts: [{kind: ValuesMap, path: users}]")
	for i := range 200_000 {
		users[fmt.Sprintf("a%s%d", strings.Repeat("_", i%7), i)] = nil
	}
	f("spec.credentials.accounts: 204096 accounts are declared, more than the 4096 that are allowed")
}

func TestThousandsOfNamesThatMeetInOneSecretNameCostNoMoreThanOthers(t *testing.T) {
	b := block(t, "format: {name: sha256}\naccounts: [{kind: ValuesMap, path: users}]")
	meeting, apart := map[string]any{}, map[string]any{}
	for i := range 4096 {
		meeting["a"+strings.NewReplacer("0", ".", "1", "_").Replace(fmt.Sprintf("%012b", i))] = nil
		apart[fmt.Sprintf("user%d", i)] = nil
	}
	allocated := func(users map[string]any) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err := b.Accounts(t.Context(), app("r", map[string]any{"users": users}), nil, nothingRecorded)
		runtime.ReadMemStats(&after)
		require.NoError(t, err)
		return after.TotalAlloc - before.TotalAlloc
	}
	assert.Less(t, allocated(meeting), 10*allocated(apart))
}

func TestTheRecordedUsernameKeepsItsSecretName(t *testing.T) {
	held := recorded(map[string]string{"bob-smith": "bob-smith"})
	secrets, reasons := served(t, block(t, postgres), "{users: {Bob.Smith: {}, bob-smith: {}}}", held)
	assert.Equal(t, map[string]string{"pg-orders.bob-smith.account": "bob-smith"}, secrets)
	assert.Contains(t, reasons["Bob.Smith"], "holds another username")

	secrets, reasons = served(t, block(t, postgres), "{users: {Bob.Smith: {}}}", held)
	assert.Empty(t, secrets, "also when its account is no longer declared: its Secret must go first")
	assert.Contains(t, reasons["Bob.Smith"], "holds another username")
}

func TestThePlatformsAccountsAreLeftAloneAndGoBeforeATenants(t *testing.T) {
	b := block(t, "format: {name: sha256}\naccounts: [{kind: ValuesMap, path: users}, {kind: Static, name: super, username: root, owner: platform}]")
	accounts, refused, err := b.Accounts(t.Context(), app("r", decoded(t, "{users: {root: {}, Super: {}, app: {}}}")), nil,
		recorded(map[string]string{"root": "root", "super": "Super"}))
	require.NoError(t, err)
	require.Len(t, accounts, 1)
	assert.Equal(t, "app", accounts[0].Name)
	require.Len(t, refused, 3)
	for _, r := range refused {
		assert.Equal(t, r.Name == "super", r.Platform, r.Name)
		assert.Contains(t, r.Reason, "the platform's own")
	}
}

func TestATenantsNameThatIsThePlatformsIsOneAccountAndThePlatforms(t *testing.T) {
	for _, sources := range []string{
		"[{kind: ValuesMap, path: users}, {kind: Static, name: root, owner: platform}]",
		"[{kind: Static, name: root, owner: platform}, {kind: ValuesMap, path: users}]",
	} {
		b := block(t, "format: {name: sha256}\naccounts: "+sources)
		accounts, refused, err := b.Accounts(t.Context(), app("r", decoded(t, "{users: {root: {}}}")), nil, nothingRecorded)
		require.NoError(t, err)
		assert.Empty(t, accounts)
		require.Len(t, refused, 1)
		assert.True(t, refused[0].Platform)
	}
}

func TestWhatHasOneUsernameAndOneSecretNameIsOneAccount(t *testing.T) {
	for _, sources := range []string{
		"[{kind: ValuesMap, path: users}, {kind: Static, name: App, username: app}]",
		"[{kind: Static, name: App, username: app}, {kind: ValuesMap, path: users}]",
	} {
		b := block(t, "format: {name: sha256}\naccounts: "+sources)
		accounts, refused, err := b.Accounts(t.Context(), app("r", decoded(t, "{users: {app: {}}}")), nil, nothingRecorded)
		require.NoError(t, err)
		assert.Empty(t, refused)
		assert.Equal(t, []definition.Account{{Name: "App", Username: "app", Segment: "app", SecretName: "r.app.account"}}, accounts)
	}
}

func TestANameThatCannotBeServedIsInNobodysWay(t *testing.T) {
	secrets, reasons := served(t, block(t, postgres), "{users: {a b: {}, a.b: {}}}", nothingRecorded)
	assert.Equal(t, map[string]string{"pg-orders.a-b.account": "a.b"}, secrets)
	assert.Contains(t, reasons["a b"], "characters other than")
}

func TestTwoNamesOfOneUsernameAreServedOnlyWhereOneHasASecret(t *testing.T) {
	b := block(t, "format: {name: sha256}\naccounts: [{kind: ValuesMap, path: users}, {kind: Static, name: main, username: app}]")
	secrets, reasons := served(t, b, "{users: {app: {}}}", nothingRecorded)
	assert.Empty(t, secrets)
	assert.Len(t, reasons, 2)
	secrets, reasons = served(t, b, "{users: {app: {}}}", recorded(map[string]string{"main": "app"}))
	assert.Equal(t, map[string]string{"pg-orders.main.account": "app"}, secrets)
	assert.Contains(t, reasons["app"], "username")
}

func TestNamesThatCannotBeServedAreRefusedAndTheOthersServed(t *testing.T) {
	f := func(name, want string) {
		t.Helper()
		accounts, refused, err := block(t, postgres).Accounts(t.Context(), app("pg", map[string]any{"users": map[string]any{name: nil, "app": nil}}), nil, nothingRecorded)
		require.NoError(t, err)
		require.Len(t, accounts, 1, name)
		assert.Equal(t, "app", accounts[0].Name)
		require.Len(t, refused, 2, name)
		i := slices.IndexFunc(refused, func(r definition.Refused) bool { return !r.Platform })
		assert.Contains(t, refused[i].Reason, want)
	}
	f("", "no letter and no digit")
	f("---", "no letter and no digit")
	f("a b", "characters other than")
	f("jürgen", "characters other than")
	f("..a", "begins with '..'")
	f("a\nb", "characters other than")
	f(strings.Repeat("a", 64), "64 characters")
	f(strings.Repeat("a", 254), "254 characters")
}

func TestASecretNameOverTheLimitIsRefused(t *testing.T) {
	_, err := definition.SecretName(strings.Repeat("a", 64), "app")
	assert.ErrorContains(t, err, "64 characters")
	_, err = definition.SecretName(strings.Repeat("a.", 122)+"aaaaa", "app")
	assert.Error(t, err)
	_, err = definition.SecretName("UPPER", "app")
	assert.Error(t, err)
}

func TestASecretNameIsSplitAtItsLastDots(t *testing.T) {
	f := func(name, release, segment string, ok bool) {
		t.Helper()
		r, s, is := definition.SplitSecretName(name)
		assert.Equal(t, []any{release, segment, ok}, []any{r, s, is}, name)
	}
	f("pg-orders.app.account", "pg-orders", "app", true)
	f("a.b.app.account", "a.b", "app", true)
	f("app.account", "", "", false)
	f(".app.account", "", "", false)
	f("pg..account", "", "", false)
	f("pg.app", "", "", false)
	f("", "", "", false)
}

func TestANamesPartOfASecretNameIsWhatAChartComputes(t *testing.T) {
	f := func(name, want string) {
		t.Helper()
		got, err := definition.Segment(name)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	f("Bob.Smith", "bob-smith")
	f("app", "app")
	f("_app_", "app")
	f("a--b", "a--b")
	f("Ünal", "nal")
	f("\u212Aelvin", "kelvin") // as Go's and so Helm's lower has it
	f("a\xffb", "a-b")
	f(strings.Repeat("x", 63)+"-", strings.Repeat("x", 63))
	_, err := definition.Segment(strings.Repeat("x", 64))
	assert.ErrorContains(t, err, "64 characters")
}

func TestWhateverTheNamesTheSecretNamesAreValidAndTheOutcomeIsStable(t *testing.T) {
	b := block(t, postgres)
	alphabet := []rune("abAB01.-_ ü")
	property := func(seed int64) bool {
		random := rand.New(rand.NewSource(seed))
		users := map[string]any{}
		for range random.Intn(12) {
			name := make([]rune, random.Intn(4))
			for i := range name {
				name[i] = alphabet[random.Intn(len(alphabet))]
			}
			users[string(name)] = nil
		}
		values := map[string]any{"users": users}
		accounts, refused, err := b.Accounts(t.Context(), app("pg", values), nil, nothingRecorded)
		if err != nil || len(accounts)+len(refused) != len(users)+1 {
			return false
		}
		held := map[string]string{}
		for _, a := range accounts {
			if _, twice := held[a.Segment]; twice || len(validation.IsDNS1123Subdomain(a.SecretName)) > 0 {
				return false
			}
			held[a.Segment] = a.Username
		}
		again, refusedAgain, err := b.Accounts(t.Context(), app("pg", values), nil, recorded(held))
		return err == nil && assert.ObjectsAreEqual(accounts, again) && len(refused) == len(refusedAgain)
	}
	require.NoError(t, quick.Check(property, &quick.Config{MaxCount: 3000}))
}

func FuzzASegmentIsADNSLabelAndItsOwnSegment(f *testing.F) {
	for _, seed := range []string{"app", "Bob.Smith", "", "-", "\xff", "\u0130", strings.Repeat("Ab.", 40)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		segment, err := definition.Segment(name)
		if err != nil {
			assert.Empty(t, segment)
			return
		}
		assert.Empty(t, validation.IsDNS1123Label(segment))
		again, err := definition.Segment(segment)
		require.NoError(t, err)
		assert.Equal(t, segment, again)
	})
}

func FuzzNoBlockIsReadInHalf(f *testing.F) {
	f.Add(`{"format":{"name":"sha256"},"accounts":[{"kind":"ValuesMap","path":"users"}]}`)
	f.Add(`{"format":{"name":"sha256","kind":"BuiltIn"},"accounts":[{"kind":"Static","name":"a","when":"b.c","owner":"platform"}],"secretLabels":{"a/b":""}}`)
	f.Add(`{"format":null,"accounts":[{}],"x":[[]]}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, text string) {
		var raw any
		if json.Unmarshal([]byte(text), &raw) != nil {
			return
		}
		b, err := definition.Parse(raw)
		if err != nil {
			assert.NotEmpty(t, err.Error())
			assert.Equal(t, definition.Block{}, b)
			return
		}
		require.NotEmpty(t, b.Format.Name)
		require.NotEmpty(t, b.Sources)
		_, _, _ = b.Accounts(t.Context(), app("r", map[string]any{"users": map[string]any{text: nil}}), nil, nothingRecorded)
	})
}
