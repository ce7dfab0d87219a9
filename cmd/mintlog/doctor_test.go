package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/mint/doctor"
)

func TestAWrongFlagOfTheDoctorIsNamed(t *testing.T) {
	f := func(names string, arguments ...string) {
		t.Helper()
		err := run(t, append([]string{"doctor"}, arguments...)...)
		require.Error(t, err, "%v", arguments)
		assert.Contains(t, err.Error(), names, "%v", arguments)
	}
	f("--output", "-o=yaml")
	f("--wait", "--wait=0s")
	f("--timeout", "--timeout=-1s")
	f("--retention", "--retention=1s")
	f("--credential", "--credential=app")
	f("--credential", "--credential=acme/")
	f("--credential", "--credential=acme/app?dryRun=")
	f("--mint-address", "--mint-address=mint")
	f("--metrics", "--metrics=mint:9404")
	f("--nats", "--nats=http://nats")
	f("--nats-credentials", "--nats=nats://127.0.0.1:1", "--nats-credentials=/no/such/file")
	f("--kubeconfig", "--kubeconfig=/no/such/file")
	f("--victorialogs", "--victorialogs=victoria-logs:9428", "--kubeconfig="+configurationFile(t, emptyKubeconfig))
}

const emptyKubeconfig = `
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
`

// TestADoctorWithoutAClusterEndsWithEveryCheckAndAnError has every check fail or say why it did not look, each by itself.
func TestADoctorWithoutAClusterEndsWithEveryCheckAndAnError(t *testing.T) {
	c := command()
	var out, progress bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&progress)
	c.SetArgs([]string{"doctor", "-o=json", "--kubeconfig=" + configurationFile(t, emptyKubeconfig), "--victorialogs=http://127.0.0.1:1", "--nats=nats://127.0.0.1:1", "--timeout=4s"})
	require.ErrorIs(t, c.ExecuteContext(t.Context()), errSick)
	var printed struct {
		Verdict doctor.Verdict
		Checks  []doctor.Result
	}
	require.NoError(t, json.Unmarshal(out.Bytes(), &printed))
	assert.Equal(t, doctor.Fail, printed.Verdict)
	require.Len(t, printed.Checks, 13)
	for _, check := range printed.Checks {
		assert.NotEqual(t, doctor.OK, check.Verdict, check.Check)
		assert.NotEmpty(t, check.Findings, check.Check)
		for _, f := range check.Findings {
			assert.NotEmpty(t, f.Mend, "%s: %s", check.Check, f.Seen)
		}
		assert.Contains(t, progress.String(), check.Check+": ")
	}
}

func TestResultsArePrintedWithWhatToMend(t *testing.T) {
	results := []doctor.Result{
		{Check: "api", Verdict: doctor.OK, Findings: []doctor.Finding{{Verdict: doctor.OK, Seen: "it answers"}}},
		{Check: "grants", Verdict: doctor.Fail, Findings: []doctor.Finding{{Verdict: doctor.Fail, Seen: "none for \x1b[2J", Mend: "see the log"}, {Verdict: doctor.OK, Seen: "others"}}},
	}
	var out bytes.Buffer
	require.NoError(t, printResults(&out, "table", 0, results))
	assert.Equal(t, `CHECK   VERDICT  SEEN
api     OK       it answers
grants  FAIL     none for \x1b[2J
                   mend: see the log
        OK       others
`, out.String())
	out.Reset()
	require.NoError(t, printResults(&out, "json", 0, results))
	assert.Contains(t, out.String(), `"verdict": "FAIL"`)
	assert.Equal(t, doctor.OK, worst(results[:1]))
}

func TestOnATerminalResultsAreFoldedToItsWidth(t *testing.T) {
	long := strings.Repeat("seven letters ", 20)
	var out bytes.Buffer
	require.NoError(t, printResults(&out, "table", 80, []doctor.Result{
		{Check: "serving-certificate", Verdict: doctor.Fail, Findings: []doctor.Finding{{Verdict: doctor.Fail, Seen: long, Mend: long}, {Verdict: doctor.OK, Seen: strings.Repeat("x", 100)}}},
	}))
	for line := range strings.Lines(out.String()) {
		if !strings.Contains(line, "xxx") {
			assert.LessOrEqual(t, len(line), 81, line)
		}
	}
	assert.Equal(t, 40, strings.Count(out.String(), "seven"))
	assert.Contains(t, out.String(), "\nserving-certificate  FAIL     seven letters seven")
	assert.Contains(t, out.String(), "\n                                mend: seven")
	assert.Contains(t, out.String(), "OK       "+strings.Repeat("x", 100)+"\n", "a word is whole")
}
