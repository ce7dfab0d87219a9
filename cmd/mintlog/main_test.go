package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/mint/enrolment"
)

func run(t *testing.T, arguments ...string) error {
	t.Helper()
	c := command()
	c.SetOut(t.Output())
	c.SetErr(t.Output())
	c.SetArgs(arguments)
	return c.ExecuteContext(t.Context())
}

func TestAWrongFlagIsNamedTogetherWithWhatToDo(t *testing.T) {
	t.Setenv("MINTLOG_VICTORIALOGS", "")
	f := func(names string, arguments ...string) {
		t.Helper()
		err := run(t, arguments...)
		require.Error(t, err, "%v", arguments)
		assert.Contains(t, err.Error(), names, "%v", arguments)
	}
	f("--tls-cert-file", "mint", "--metrics-address=")
	f("--secure-port", "mint", "--metrics-address=", "--tls-cert-file=x", "--tls-private-key-file=y", "--secure-port=70000")
	f("--retention", "mint", "--metrics-address=", "--tls-cert-file=x", "--tls-private-key-file=y", "--retention=1s")
	f("--kubernetes-verbosity", "mint", "--metrics-address=", "--tls-cert-file=x", "--tls-private-key-file=y", "--kubernetes-verbosity=8")
	f("--log-level", "mint", "--log-level=loud")
	f("--namespace", "accounts", "--metrics-address=", "--namespace=")
	f("--admission-policies", "mint", "--metrics-address=", "--tls-cert-file=x", "--tls-private-key-file=y", "--admission-policies=off")
	f("--accounts-workers", "accounts", "--metrics-address=", "--accounts-workers=0")
	f("--audit-log", "ingest", "--metrics-address=", "--nats=nats://127.0.0.1:1")
	f("--nats", "ingest", "--metrics-address=", "--audit-log=x")
	f("--nats", "project", "--metrics-address=")
	f("--nats", "archive", "--metrics-address=")
	f("--victorialogs", "replay", "--since=1h")
	f("--victorialogs", "replay", "--victorialogs=victoria-logs:9428")
	f("--since", "replay", "--since=-1h")
	f("--since", "replay", "--victorialogs=http://127.0.0.1:1", "--since=1h", "--until=2h")
	f("--silence", "replay", "--victorialogs=http://127.0.0.1:1", "--silence=1ms")
	f("--victorialogs", "who")
	f("--since", "who", "--victorialogs=http://127.0.0.1:1", "--since=yesterday")
	f("--since", "who", "--victorialogs=http://127.0.0.1:1", "--since=1h", "--until=2h")
	f("--limit", "who", "--victorialogs=http://127.0.0.1:1", "--limit=-1")
	f("--operation", "who", "--victorialogs=http://127.0.0.1:1", "--operation=rotate")
	f("--output", "who", "--victorialogs=http://127.0.0.1:1", "--output=yaml")
	f("--until", "who", "--victorialogs=http://127.0.0.1:1", "--follow", "--until=1m")
	f("--limit", "who", "--victorialogs=http://127.0.0.1:1", "--follow", "--limit=1")
	f("--by", "who", "--victorialogs=http://127.0.0.1:1", "--by=")
	f("--namespace", "who", "--victorialogs=http://127.0.0.1:1", "--namespace=")
	f("--kubeconfig", "accounts", "--metrics-address=", "--kubeconfig=/no/such/file")
	f("--serving", "certificates")
	f("--serving", "certificates", "--serving=mintlog-mint-tls")
	f("--namespace", "enroll", "--namespace=", "tenant-acme")
	f("--kubeconfig", "unenroll", "--kubeconfig=/no/such/file", "tenant-acme")
	f("name the namespaces", "enroll")
	f("name the namespaces", "unenroll")
	f(`unknown command "chekc"`, "definitions", "chekc", "wiki.yaml")
	f(`unknown command "tcsh"`, "completion", "tcsh")
	f(`no help about "al"`, "help", "al")
	f(`no help about "definitions chekc"`, "help", "definitions", "chekc")
	f("unknown flag", "all", "--auditlog=x")
	f("unknown command", "al")
	f("--audit-log", "all", "--metrics-address=", "--state="+t.TempDir())
	f("--webhook-client-ca-file", "all", "--metrics-address=", "--state="+t.TempDir())
	for flag, wrong := range map[string][]string{
		"--webhook-client-ca-file":      {"--webhook-address=127.0.0.1:0"},
		"--webhook-tls-cert-file":       {"--webhook-client-ca-file=x"},
		"--webhook-retry-after":         {"--webhook-client-ca-file=x", "--webhook-tls-cert-file=x", "--webhook-tls-private-key-file=x", "--webhook-retry-after=1ms"},
		"--webhook-set-aside-max-bytes": {"--webhook-client-ca-file=x", "--webhook-tls-cert-file=x", "--webhook-tls-private-key-file=x", "--webhook-set-aside-max-bytes=0"},
	} {
		f(flag, append([]string{"all", "--metrics-address=", "--audit-log=x", "--state=" + t.TempDir()}, wrong...)...)
	}
}

func TestNoKubeconfigIsToldWithWhatToGive(t *testing.T) {
	t.Setenv("KUBECONFIG", "/no/such/file")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	require.ErrorContains(t, run(t, "enrolled"), "give --kubeconfig or set KUBECONFIG")
}

func TestHelpShowsNoPasswordOfTheArchive(t *testing.T) {
	t.Setenv("MINTLOG_VICTORIALOGS", "http://sre:hunter2@victoria-logs:9428")
	for _, name := range []string{"who", "replay", "archive", "all", "doctor"} {
		c := command()
		var out bytes.Buffer
		c.SetOut(&out)
		c.SetArgs([]string{name, "--help"})
		require.NoError(t, c.Execute())
		assert.Contains(t, out.String(), "--victorialogs")
		assert.NotContains(t, out.String(), "hunter2", name)
	}
}

func TestAURLThatIsWrongIsNotQuotedForAPasswordMayStandInIt(t *testing.T) {
	for _, given := range []string{"ftp://sre:hunter2@x", "sre:hunter2@x:9428", "http://sre:hunter2@x y", "nats://sre:hunter2@x y"} {
		for _, arguments := range [][]string{
			{"who", "--victorialogs=" + given}, {"archive", "--metrics-address=", "--nats=nats://127.0.0.1:1", "--victorialogs=" + given},
			{"doctor", "--metrics=x:" + given}, {"gaps", "--nats=http:" + given}, {"project", "--metrics-address=", "--nats=http:" + given},
		} {
			err := run(t, arguments...)
			require.Error(t, err, "%v", arguments)
			assert.NotContains(t, err.Error(), "hunter2", "%v", arguments)
		}
	}
}

func TestGapsSayThatNoNATSAnswers(t *testing.T) {
	require.EqualError(t, run(t, "gaps", "--nats=nats://127.0.0.1:1"), "--nats: no server answers there")
}

func TestAReplayMakesNoStreamWhereNobodySaidThatOneIsToBe(t *testing.T) {
	directory := t.TempDir()
	f := &replayFlags{logLevel: "error", since: moment{text: "1h", ago: time.Hour}, silence: time.Minute,
		from: archiveFlags{url: "http://127.0.0.1:1"}, where: streamFlags{state: directory}}
	require.ErrorContains(t, f.run(t.Context(), t.Output(), t.Output(), time.Now), "give --nats")
	entries, err := os.ReadDir(directory)
	require.NoError(t, err)
	assert.Empty(t, entries)
}

func TestEveryCommandAndFlagSaysWhatItIsFor(t *testing.T) {
	for _, c := range command().Commands() {
		assert.NotEmpty(t, c.Short, c.Name())
		c.Flags().VisitAll(func(flag *pflag.Flag) {
			assert.NotEmpty(t, flag.Usage, "%s --%s", c.Name(), flag.Name)
		})
	}
}

func TestAllTakesTheFlagsOfEveryPart(t *testing.T) {
	var all *cobra.Command
	for _, c := range command().Commands() {
		if c.Name() == "all" {
			all = c
		}
	}
	require.NotNil(t, all)
	for _, c := range command().Commands() {
		if c.Flags().Lookup("metrics-address") == nil {
			continue // it is no part: it does its work and ends
		}
		c.Flags().VisitAll(func(flag *pflag.Flag) {
			assert.NotNil(t, all.Flags().Lookup(flag.Name), "--%s of %s", flag.Name, c.Name())
		})
	}
}

func TestAllTakesTheFlagsOfTheWebhookUnderNamesOfTheirOwn(t *testing.T) {
	all, _, err := command().Find([]string{"all"})
	require.NoError(t, err)
	receiving, _, err := command().Find([]string{"ingest", "webhook"})
	require.NoError(t, err)
	receiving.Flags().VisitAll(func(flag *pflag.Flag) {
		own := all.Flags().Lookup("webhook-" + flag.Name)
		if shared := all.Flags().Lookup(flag.Name); own == nil && shared != nil && shared.Usage == flag.Usage {
			return // the process's and the stream's
		}
		if assert.NotNil(t, own, "--webhook-%s", flag.Name) {
			assert.Equal(t, flag.Usage, own.Usage)
			assert.Equal(t, flag.DefValue, own.DefValue)
		}
	})
}

func TestTheVersionIsPrinted(t *testing.T) {
	c := command()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetArgs([]string{"--version"})
	require.NoError(t, c.Execute())
	assert.True(t, strings.HasPrefix(out.String(), "mintlog version"))
}

func TestWhatOthersNamedIsShownHarmless(t *testing.T) {
	assert.Equal(t, "one: \\x1b[2J\ntwo\\r", shown(errors.Join(errors.New("one: \x1b[2J"), errors.New("two\r"))))

	var out bytes.Buffer
	require.NoError(t, printEnrolments(&out, []enrolment.Enrolment{{Namespace: "tenant-acme", Others: []string{"user \x1b[2J\t\n"}}}))
	assert.Contains(t, out.String(), `user \x1b[2J\t\n`)
	assert.NotContains(t, out.String(), "\x1b")

	out.Reset()
	flags := enrolFlags{}
	require.NoError(t, flags.forEach(t.Context(), &out, []string{"tenant-acme"}, func(context.Context, string) ([]enrolment.Change, error) {
		return []enrolment.Change{{Namespace: "tenant-acme", Object: "rolebinding \x1b[2J", Done: "deleted"}}, nil
	}))
	assert.Equal(t, "tenant-acme: rolebinding \\x1b[2J deleted\n", out.String())
}
