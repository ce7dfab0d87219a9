package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/test/sandbox"
)

// kubectl runs kubectl as a person, with the plugin in its path.
func kubectl(t *testing.T, person string, arguments ...string) (stdout, stderr string, err error) {
	t.Helper()
	return shared.kubectl(t, person, arguments...)
}

func (h *house) kubectl(t *testing.T, person string, arguments ...string) (stdout, stderr string, err error) {
	t.Helper()
	bin := filepath.Join(h.Root(), "bin")
	command := exec.CommandContext(ctx(t), filepath.Join(bin, "kubectl"), arguments...)
	command.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "KUBECONFIG="+h.Kubeconfig(person, 0), "HOME="+t.TempDir())
	var out, complaint bytes.Buffer
	command.Stdout, command.Stderr = &out, &complaint
	err = command.Run()
	return out.String(), complaint.String(), err
}

// read is what kubectl prints. What kube-apiserver says of the API, discovery and OpenAPI, follows the API a moment later.
func read(t *testing.T, person string, arguments ...string) (out string) {
	t.Helper()
	within(t, 2*time.Minute, func() error {
		printed, stderr, err := kubectl(t, person, arguments...)
		out = printed
		if err != nil {
			return fmt.Errorf("%w: %s", err, stderr)
		}
		return nil
	})
	return out
}

func TestKubectlExplainsEveryFieldOfTheAPI(t *testing.T) {
	t.Parallel()
	for _, path := range []string{
		"credentials", "credential.spec", "credential.spec.application", "credential.status", "credential.status.password",
		"credential.status.history", "credential.status.findings",
	} {
		out := read(t, sandbox.Jane, "explain", path)
		assert.Contains(t, out, "DESCRIPTION:", path)
		assert.NotContains(t, out, "<no description>", path)
	}
}

func TestKubectlListsTheResource(t *testing.T) {
	t.Parallel()
	resource := regexp.MustCompile(`credentials\s+cred,creds\s+credentials\.cozystack\.io/v1alpha1\s+true\s+Credential`)
	within(t, 2*time.Minute, func() error {
		if out := read(t, sandbox.Jane, "api-resources", "--api-group=credentials.cozystack.io"); !resource.MatchString(out) {
			return errors.New(out)
		}
		return nil
	})
}

func TestKubectlPrintsTheTable(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "table", "app") + ".app"
	shared.mint(t, sandbox.Jane, 0, credential)
	shared.awaitBy(t, credential, "jane", "")
	out := read(t, sandbox.Ivan, "get", "credentials", "-n", acme, credential)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 2)
	assert.Equal(t, []string{"NAME", "USERNAME", "ORIGIN", "LAST", "CHANGE", "BY", "FINDINGS", "AGE"}, strings.Fields(lines[0]))
	assert.Equal(t, []string{credential, "app", "Minted"}, strings.Fields(lines[1])[:3])
	assert.Equal(t, "jane", strings.Fields(lines[1])[4])

	out = read(t, sandbox.Ivan, "get", "creds", "-n", acme, "-l", "apps.cozystack.io/application.name=table", "-o", "name")
	assert.Equal(t, "credential.credentials.cozystack.io/"+credential, strings.TrimSpace(out))
}

func TestThePluginPrintsTheBarePasswordOnStandardOutputAndAllElseOnStandardError(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "plugin", "app") + ".app"
	out, stderr, err := kubectl(t, sandbox.Jane, "credentials", "mint", credential, "-n", acme)
	require.NoError(t, err, stderr)
	assert.Regexp(t, `^[A-Za-z0-9]{32,}\n$`, out)
	assert.NotContains(t, stderr, strings.TrimSpace(out))

	shared.awaitBy(t, credential, "jane", "")
	out, stderr, err = kubectl(t, sandbox.Ivan, "credentials", "history", credential, "-n", acme)
	require.NoError(t, err, stderr)
	assert.Contains(t, out, "jane")

	_, stderr, err = kubectl(t, sandbox.Ivan, "credentials", "mint", credential, "-n", acme)
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, stderr)
	assert.Equal(t, 3, exit.ExitCode())

	out, stderr, err = kubectl(t, sandbox.Jane, "credentials", "revoke", credential, "-n", acme, "--yes")
	require.NoError(t, err, stderr)
	assert.NotRegexp(t, `[A-Za-z0-9]{32}`, out)
	shared.awaitBy(t, credential, "jane", "")
}

func TestPlainKubectlMintsWithTheSmallestBody(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "plain", "app") + ".app"
	file := filepath.Join(t.TempDir(), "mint.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"apiVersion": "credentials.cozystack.io/v1alpha1", "kind": "CredentialMint"}`), 0o600))
	out, stderr, err := kubectl(t, sandbox.Jane, "create", "--raw",
		"/apis/credentials.cozystack.io/v1alpha1/namespaces/"+acme+"/credentials/"+credential+"/mint", "-f", file)
	require.NoError(t, err, stderr)
	assert.Contains(t, out, `"password":`)
}
