package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func configurationFile(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mintlog.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// configured applies a file to the flags of a command behind some arguments.
func configured(t testing.TB, command_, text string, arguments ...string) (*pflag.FlagSet, error) {
	t.Helper()
	c, _, err := command().Find(strings.Fields(command_))
	require.NoError(t, err)
	require.NoError(t, c.ParseFlags(arguments))
	file := configuration{path: configurationFile(t, text), lines: map[string]int{}}
	return c.Flags(), file.apply(c.Flags())
}

func TestAFileGivesFlagsTheirValues(t *testing.T) {
	flags, err := configured(t, "all", `
# the small shape
audit-log: [/var/log/audit/a.log, "/var/log/audit/b,c.log"]
own-user: [one, "two,three"]
secure-port: 7443
stream-max-bytes: 1048576
retention: 720h
last-change-metric: false
metrics-address: ""
`)
	require.NoError(t, err)
	list := func(name string) []string { return flags.Lookup(name).Value.(pflag.SliceValue).GetSlice() }
	assert.Equal(t, []string{"/var/log/audit/a.log", "/var/log/audit/b,c.log"}, list("audit-log"))
	assert.Equal(t, []string{"one", "two,three"}, list("own-user"), "the file wins over the default")
	for name, want := range map[string]string{
		"secure-port": "7443", "stream-max-bytes": "1048576", "retention": "720h0m0s", "last-change-metric": "false", "metrics-address": "",
		"log-level": "info",
	} {
		assert.Equal(t, want, flags.Lookup(name).Value.String(), name)
	}
	assert.True(t, flags.Changed("audit-log"))
	assert.False(t, flags.Changed("log-level"))
}

func TestTheCommandLineWinsOverTheFile(t *testing.T) {
	flags, err := configured(t, "all", "audit-log: [/from/file]\nsecure-port: 7443\nretention: 48h\n",
		"--audit-log=/from/line", "--audit-log=/again", "--secure-port=8443")
	require.NoError(t, err)
	assert.Equal(t, "8443", flags.Lookup("secure-port").Value.String())
	assert.Equal(t, []string{"/from/line", "/again"}, flags.Lookup("audit-log").Value.(pflag.SliceValue).GetSlice())
	assert.Equal(t, "48h0m0s", flags.Lookup("retention").Value.String())
}

func TestAnEmptyFileGivesNothing(t *testing.T) {
	for _, text := range []string{"", "\n", "# nothing yet\n", "---\n", "{}\n"} {
		flags, err := configured(t, "mint", text)
		require.NoError(t, err, "%q", text)
		assert.Zero(t, flags.NFlag(), "%q", text)
	}
}

func TestAWrongFileIsRefusedWithLineKeyAndWhatItMustBe(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		_, err := configured(t, "all", text)
		require.Error(t, err, "%s", text)
		for _, part := range want {
			assert.Contains(t, err.Error(), part, "%s", text)
		}
	}
	f("secure-prot: 1\n", "line 1", `"secure-prot" is no flag`, "is it secure-port?")
	f("\nauditLog: [x]\n", "line 2", `"auditLog"`, "is it audit-log?")
	f("nothing-like-it: 1\n", "line 1", `"nothing-like-it" is no flag of this command`)
	f("--secure-port: 1\n", "line 1", "is it secure-port?")
	f("config: other.yaml\n", "line 1", "config")
	f("help: true\n", "line 1", "help")
	f("secure-port: 1\nlog-level: info\nsecure-port: 2\n", "line 3", "secure-port", "line 1 already")
	f("secure-port: \"7443\"\n", "line 1", "secure-port", "a whole number")
	f("secure-port: 7443.5\n", "line 1", "secure-port", "a whole number")
	f("secure-port: 99999999999999999999\n", "line 1", "secure-port", "a whole number")
	f("secure-port:\n", "line 1", "secure-port", "a whole number")
	f("secure-port: [1]\n", "line 1", "secure-port", "a whole number")
	f("retention: 30\n", "line 1", "retention", "a duration")
	f("retention: 30 days\n", "line 1", "retention", "a duration")
	f("last-change-metric: \"no\"\n", "line 1", "last-change-metric", "true or false")
	f("tls-cert-file: 5\n", "line 1", "tls-cert-file", "a text")
	f("tls-cert-file: {a: b}\n", "line 1", "tls-cert-file", "a text")
	f("audit-log: /var/log/audit.log\n", "line 1", "audit-log", "a list")
	f("audit-log: [1]\n", "line 1", "audit-log", "a list of texts")
	f("a: &x 1\nsecure-port: *x\n", "line 2", "secure-port", "a whole number")
	f("<<: {secure-port: 1}\n", "line 1", `"<<"`)
	f("? [a]\n: 1\n", "line 1", "no flag")
	f("- secure-port\n", "line 1", "a mapping")
	f("secure-port: 1\n---\nsecure-port: 2\n", "one YAML document")
	f("secure-port: [\n", "yaml")
	f("mint: {secure-port: 1}\nlog-level: 1\n", "line 1", `"mint"`, "line 2", "log-level")
}

func TestNoSecretStandsInAFile(t *testing.T) {
	for _, text := range []string{
		"nats: nats://user:hunter2@nats:4222\n", "nats: nats://hunter2@nats:4222\n", "nats: 'nats://a:4222,nats://u:hunter2@b:4222'\n",
		"victorialogs: https://u:hunter2@logs\n", "audit-log: ['x://hunter2@y']\n",
	} {
		_, err := configured(t, "all", text)
		require.Error(t, err, "%s", text)
		assert.NotContains(t, err.Error(), "hunter2")
		assert.Contains(t, err.Error(), "line 1")
	}
}

func TestAValueThatIsRefusedLaterIsNamedWithItsPlaceInTheFile(t *testing.T) {
	path := configurationFile(t, "metrics-address: ''\ntls-cert-file: x\ntls-private-key-file: y\n\nretention: 1s\n")
	err := run(t, "mint", "--config="+path)
	require.Error(t, err)
	assert.Contains(t, err.Error(), "--retention 1s")
	assert.Contains(t, err.Error(), "retention: line 5 of "+path)

	err = run(t, "mint", "--config="+path, "--retention=2s")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "--retention 2s")
	assert.NotContains(t, err.Error(), "line 5", "the value is the command line's")
}

func TestAFileThatIsNotThereIsNamed(t *testing.T) {
	err := run(t, "archive", "--config=/no/such/file.yaml")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "--config /no/such/file.yaml: no such file")
	err = run(t, "archive", "--config="+configurationFile(t, strings.Repeat("#", maxConfiguration+1)))
	require.ErrorContains(t, err, "longer than")
}

func TestEveryPartTakesAFileAndSaysSo(t *testing.T) {
	for _, name := range []string{"all", "mint", "accounts", "ingest", "ingest webhook", "project", "archive"} {
		c := command()
		var out bytes.Buffer
		c.SetOut(&out)
		c.SetArgs(append(strings.Fields(name), "--help"))
		require.NoError(t, c.Execute())
		assert.Contains(t, out.String(), "--config", name)
		assert.Contains(t, out.String(), "The command line wins over", name)
	}
}

func TestEveryFlagOfAPartCanStandInAFile(t *testing.T) {
	all, _, err := command().Find([]string{"all"})
	require.NoError(t, err)
	all.Flags().VisitAll(func(flag *pflag.Flag) {
		assert.NotEmpty(t, tags[flag.Value.Type()], "--%s is of the type %s", flag.Name, flag.Value.Type())
	})
}

func TestEveryWrongValueIsNamedByItsFlag(t *testing.T) {
	file := configurationFile(t, "")
	mint := []string{"mint", "--metrics-address=", "--tls-cert-file=" + file, "--tls-private-key-file=" + file, "--kubeconfig=" + file}
	webhook := []string{"ingest", "webhook", "--metrics-address=", "--nats=nats://127.0.0.1:1", "--tls-cert-file=" + file, "--tls-private-key-file=" + file, "--client-ca-file=" + file}
	f := func(arguments []string, more ...string) {
		t.Helper()
		name, _, _ := strings.Cut(more[len(more)-1], "=")
		err := run(t, append(append([]string{}, arguments...), more...)...)
		require.Error(t, err, "%v", more)
		assert.Contains(t, err.Error(), name, "%v", more)
	}
	f(mint, "--metrics-address=9404")
	f(mint, "--metrics-address=:70000")
	f(mint, "--bind-address=not an address")
	f(mint, "--shutdown-delay=-1s")
	f(mint, "--namespace=Not_A_Namespace")
	f(mint, "--tls-cert-file=/no/such/file")
	f(mint, "--tls-private-key-file="+t.TempDir())
	f([]string{"accounts", "--metrics-address="}, "--projector-service-account=a/b")
	f([]string{"archive", "--metrics-address="}, "--nats=nats")
	f([]string{"archive", "--metrics-address="}, "--nats=http://nats:4222")
	f([]string{"archive", "--metrics-address=", "--nats=nats://127.0.0.1:1"}, "--nats-credentials=/no/such/file")
	f([]string{"archive", "--metrics-address=", "--nats=nats://127.0.0.1:1"}, "--nats-nkey-file=/no/such/file")
	f([]string{"archive", "--metrics-address="}, "--nats-existing=true")
	f([]string{"archive", "--metrics-address=", "--nats=nats://127.0.0.1:1"}, "--nats-replicas=6")
	f([]string{"archive", "--metrics-address=", "--nats=nats://127.0.0.1:1"}, "--stream-max-bytes=0")
	f([]string{"archive", "--metrics-address=", "--nats=nats://127.0.0.1:1"}, "--evidence-max-bytes=-1")
	f([]string{"ingest", "--metrics-address=", "--nats=nats://127.0.0.1:1"}, "--audit-log=")
	f(webhook, "--address=9443")
	f(webhook, "--client-name=")
	f(webhook, "--client-ca-file=/no/such/file")
	f([]string{"all", "--metrics-address=", "--state=" + t.TempDir(), "--audit-log=x"}, "--accounts-kubeconfig=/no/such/file")
}

func FuzzAFileIsTakenOrRefused(f *testing.F) {
	f.Add("secure-port: 7443\n")
	f.Add("audit-log: [a, b]\n# x\nretention: 1h\n")
	f.Add("a: &a [*a]\n<<: *a\n")
	f.Add("? {secure-port: 1}\n: !!int \"x\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		flags, err := configured(t, "mint", text)
		if err != nil {
			assert.NotEmpty(t, err.Error())
			return
		}
		if flags.NFlag() > 0 {
			assert.Contains(t, text, ":")
		}
	})
}
