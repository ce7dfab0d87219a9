package main

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// wrongValues are some that no flag of a type takes.
var wrongValues = map[string][]string{
	"bool": {"maybe"}, "duration": {"soon", "-1s"}, "int": {"many", "-1"}, "int32": {"many", "-1"}, "int64": {"many", "-1"}, "stringArray": {""}, "stringSlice": {"", "a,,b"},
}

func TestEveryFlagOfEveryPartRefusesAWrongValueAndIsNamed(t *testing.T) {
	file := configurationFile(t, "")
	// What flags that take a text refuse, by the end of their names.
	wrongTexts := map[string]string{
		"config": "/no/such/file", "log-level": "loud", "address": "9404", "admission-policies": "off", "bind-address": "a b", "namespace": "A_b",
		"service-account": "a/b", "nats": "nats", "nats-credentials": "/no/such/file", "nats-nkey-file": "/no/such/file", "kubeconfig": "/no/such/file",
		"-file": "/no/such/file", "state": file, "set-aside": file, "victorialogs": "victoria-logs:9428",
	}
	texts := func(name string) []string {
		best := ""
		for end := range wrongTexts {
			if strings.HasSuffix(name, end) && len(end) > len(best) {
				best = end
			}
		}
		require.NotEmpty(t, best, "no wrong value is known for --%s", name)
		return []string{wrongTexts[best]}
	}
	nats, keys := "--nats=nats://127.0.0.1:1", []string{"--tls-cert-file=" + file, "--tls-private-key-file=" + file}
	for part, arguments := range map[string][]string{
		"mint":           slices.Concat(keys, []string{"--kubeconfig=" + file}),
		"accounts":       {"--kubeconfig=" + file},
		"ingest":         {nats, "--audit-log=x", "--state=" + t.TempDir()},
		"ingest webhook": slices.Concat(keys, []string{nats, "--client-ca-file=" + file}),
		"project":        {nats, "--kubeconfig=" + file},
		"archive":        {nats, "--victorialogs=http://127.0.0.1:1"},
		"all": slices.Concat(keys, []string{"--state=" + t.TempDir(), "--audit-log=x", "--victorialogs=http://127.0.0.1:1",
			"--mint-kubeconfig=" + file, "--accounts-kubeconfig=" + file, "--projector-kubeconfig=" + file,
			"--webhook-tls-cert-file=" + file, "--webhook-tls-private-key-file=" + file, "--webhook-client-ca-file=" + file}),
	} {
		c, _, err := command().Find(strings.Fields(part))
		require.NoError(t, err)
		c.Flags().VisitAll(func(flag *pflag.Flag) {
			values := wrongValues[flag.Value.Type()]
			if flag.Value.Type() == "string" {
				values = texts(flag.Name)
			}
			require.NotEmpty(t, values, "no wrong value is known for --%s, a %s", flag.Name, flag.Value.Type())
			for _, value := range values {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				c := command()
				c.SetOut(t.Output())
				c.SetErr(t.Output())
				wrong := "--" + flag.Name + "=" + value
				more := arguments
				if strings.HasPrefix(flag.Name, "nats") && part != "ingest" {
					more = append(slices.Clone(arguments), nats)
				}
				c.SetArgs(slices.Concat(strings.Fields(part), []string{"--metrics-address="}, more, []string{wrong}))
				if err := c.ExecuteContext(ctx); assert.Error(t, err, "%s %s", part, wrong) {
					assert.Contains(t, err.Error(), "--"+flag.Name, "%s %s", part, wrong)
				}
			}
		})
	}
}
