package engines_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/mint/webhook"
	"github.com/mintlog/mintlog/store/history"
)

const page = "../../docs/kinds.md"

// quoted finds a block of the page with the comment before it that names its file.
var quoted = regexp.MustCompile("(?s)(?:<!-- ([^ ]+) -->\n)?```([a-z]+)\n(.*?)```\n")

func TestThePageQuotesTheFilesAsTheyAre(t *testing.T) {
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	quotes := map[string]bool{}
	for _, block := range quoted.FindAllStringSubmatch(string(text), -1) {
		file, language, content := block[1], block[2], block[3]
		if language == "console" {
			continue
		}
		if !assert.NotEmpty(t, file, "this block does not say which file it is of:\n%s", content) {
			continue
		}
		whole, err := os.ReadFile(filepath.Join("../..", file))
		require.NoError(t, err)
		assert.Contains(t, string(whole), content, "%s does not hold this block", file)
		quotes[file] = true
	}
	assert.Equal(t, strings.Count(string(text), "```"), 2*len(quoted.FindAllString(string(text), -1)), "a block is not read")
	for folder := range defined {
		assert.True(t, quotes["deploy/kinds/"+folder+"/definition.yaml"], "the definition of %s is not on the page", folder)
	}
}

// definitionOf is the block of a kind's definition.
func definitionOf(t *testing.T, folder string) definition.Block {
	t.Helper()
	text, err := os.ReadFile(kinds + folder + "/definition.yaml")
	require.NoError(t, err)
	objects, err := documents(text)
	require.NoError(t, err)
	require.Len(t, objects, 1)
	block, err := definition.Parse(objects[0]["spec"].(object)["credentials"])
	require.NoError(t, err)
	return block
}

func TestTheDefinitionsYieldTheAccountsThatThePageSays(t *testing.T) {
	f := func(folder string, values object, want ...string) {
		t.Helper()
		accounts, refused, err := definitionOf(t, folder).Accounts(t.Context(), definition.Application{
			Namespace: tenant, Kind: defined[folder].kind, Name: "shop", Release: folder + "-shop", Values: values,
		}, nil, func(string) (string, bool) { return "", false })
		require.NoError(t, err)
		var names []string
		for _, a := range accounts {
			names = append(names, a.SecretName+" "+a.Username)
		}
		for _, r := range refused {
			names = append(names, "refused "+r.Name)
		}
		assert.Equal(t, want, names, folder)
	}
	f("postgres", usersOf("app", "Report.Reader"), "postgres-shop.report-reader.account Report.Reader", "postgres-shop.app.account app", "refused postgres", "refused streaming_replica")
	f("clickhouse", usersOf("app"), "clickhouse-shop.app.account app", "refused backup")
	f("mariadb", usersOf("app", "root"), "mariadb-shop.app.account app", "refused root")
	f("redis", object{"authEnabled": true}, "redis-shop.default.account default")
	f("redis", object{"authEnabled": false})
	f("gallery", object{"visitors": []any{object{"name": "Curator"}}}, "gallery-shop.curator.account Curator")
}

func TestEachSourceAndFormatOfThePageIsUnderstood(t *testing.T) {
	read := func(file string) object {
		text, err := os.ReadFile(kinds + "reference/" + file)
		require.NoError(t, err)
		var o object
		require.NoError(t, yaml.Unmarshal(text, &o))
		return o
	}
	f := func(file string, into any) {
		text, err := os.ReadFile(kinds + "reference/" + file)
		require.NoError(t, err)
		require.NoError(t, yaml.UnmarshalStrict(text, into), file)
	}
	var request webhook.AccountsRequest
	var answer webhook.AccountsAnswer
	f("request.json", &request)
	f("answer.json", &answer)
	assert.Equal(t, webhook.Head{APIVersion: webhook.APIVersion, Kind: webhook.KindAccountsRequest, UID: answer.UID}, request.Head)
	assert.Equal(t, webhook.KindAccountsAnswer, answer.Kind)

	for _, format := range []string{"format.yaml", "parameters.yaml"} {
		raw := read(format)
		raw["accounts"] = read("sources.yaml")["accounts"]
		block, err := definition.Parse(raw)
		require.NoError(t, err, format)
		accounts, _, err := block.Accounts(t.Context(), definition.Application{Kind: "Any", Name: "shop", Release: "any-shop", Values: object{
			"users": object{"app": nil}, "logins": []any{object{"name": "bob"}}, "authEnabled": true, "tenants": []any{object{"id": "acme"}},
		}}, saysBot{}, func(string) (string, bool) { return "", false })
		require.NoError(t, err)
		var names []string
		for _, a := range accounts {
			names = append(names, a.Name+"="+a.Username)
		}
		assert.Equal(t, []string{"acme-reader=acme", "app=app", "bob=bob", "bot=bot", "default=default"}, names)
	}
}

func TestTheCheckOfADefinitionPrintsWhatThePageSays(t *testing.T) {
	folder, err := filepath.Abs(kinds + "clickhouse")
	require.NoError(t, err)
	check := exec.CommandContext(t.Context(), "../../bin/mintlog", "definitions", "check", filepath.Join(folder, "definition.yaml"),
		"--values", filepath.Join(folder, "values.yaml"), "--release", "clickhouse-shop")
	said, err := check.Output()
	require.NoError(t, err, "run \"make build\"")
	want, err := os.ReadFile(filepath.Join(folder, "check.txt"))
	require.NoError(t, err)
	lines := strings.Split(string(said), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	assert.Equal(t, string(want), strings.Join(lines, "\n"))
}

// saysBot is a webhook that knows one account.
type saysBot struct{}

func (saysBot) Accounts(context.Context, string, webhook.Config, webhook.Application) ([]webhook.Account, error) {
	return []webhook.Account{{Name: "bot"}}, nil
}

func (saysBot) Format(context.Context, string, webhook.Config, string, string, string) (string, error) {
	return "", nil
}

// what differs from one account Secret to the next
var varying = []struct{ pattern, shown string }{
	{`SCRAM-SHA-256\$4096:[^$"]{24}\$[^:"]{44}:[^"\s]{44}`, `SCRAM-SHA-256$4096:<salt>$<StoredKey>:<ServerKey>`},
	{`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`, `<UUID>`},
	{`\b[0-9a-f]{64}\b`, `<digest>`},
	{`\b[0-9a-f]{32}\b`, `<128 bits>`},
	{`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`, `<time>`},
}

// pageShows wants a real account Secret, once minted, to be the one on the page, but for what is another each time.
func (h *house) pageShows(t *testing.T) {
	const name, file = "postgres-shop.report-reader.account", kinds + "postgres/account-secret.yaml"
	h.ask(t, "mint", "postgres-shop.report-reader")
	var secret *corev1.Secret
	within(t, func() error {
		var err error
		if secret, err = h.secret(t.Context(), name); err == nil && secret.Annotations[history.Annotation] == "" {
			err = os.ErrNotExist
		}
		return err
	})
	secret.ManagedFields, secret.ResourceVersion, secret.CreationTimestamp = nil, "", metav1.Time{} // the API server's
	secret.APIVersion, secret.Kind = "v1", "Secret"
	secret.StringData = map[string]string{}
	for key, value := range secret.Data {
		secret.StringData[key] = string(value)
	}
	secret.Data = nil
	text, err := yaml.Marshal(secret)
	require.NoError(t, err)
	is := strings.Replace(string(text), "\nstringData:", "\ndata: # each in base64", 1)
	is = strings.Replace(is, "  creationTimestamp: null\n", "", 1)
	for _, v := range varying {
		is = regexp.MustCompile(v.pattern).ReplaceAllLiteralString(is, v.shown)
	}
	want, err := os.ReadFile(file)
	if err != nil || string(want) != is {
		require.NotRegexp(t, `(?i)[a-z0-9+/]{40}`, is, "it is not all elided")
		t.Fatalf("the account Secret is not as in %s, but\n%s", file, is)
	}
}
