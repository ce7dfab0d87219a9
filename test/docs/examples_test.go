package docs

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/test/sandbox"
)

const beta = sandbox.TenantBeta

func example(names ...string) string {
	return filepath.Join(append([]string{cluster.Root(), "deploy", "examples"}, names...)...)
}

// lay applies an example's manifest in tenant-beta.
func lay(t *testing.T, names ...string) {
	t.Helper()
	out, err := tool(t, sandbox.ClusterAdmin, "kubectl", "apply", "--namespace", beta, "--filename", example(names...))
	require.NoError(t, err, out)
}

// podKubeconfig is what a pod of a ServiceAccount of tenant-beta finds, as a file: a token of its own, and its namespace.
func podKubeconfig(t *testing.T, account string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	c := clientcmdapi.NewConfig()
	c.Clusters["it"] = &clientcmdapi.Cluster{Server: cluster.APIServerURL(0), CertificateAuthorityData: cluster.ServingAuthority().PEM()}
	c.AuthInfos["it"] = &clientcmdapi.AuthInfo{Token: tokenOf(t, account, nil)}
	c.Contexts["it"] = &clientcmdapi.Context{Cluster: "it", AuthInfo: "it", Namespace: beta}
	c.CurrentContext = "it"
	require.NoError(t, clientcmd.WriteToFile(*c, file))
	return file
}

func tokenOf(t *testing.T, account string, boundTo *authenticationv1.BoundObjectReference) string {
	t.Helper()
	answer, err := cluster.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().ServiceAccounts(beta).CreateToken(t.Context(), account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo}}, metav1.CreateOptions{})
	require.NoError(t, err)
	return answer.Status.Token
}

// job is the container of a manifest's one Job.
func job(t *testing.T, name string) corev1.Container {
	t.Helper()
	text, err := os.ReadFile(example("gitops", name))
	require.NoError(t, err)
	var found []corev1.Container
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		var j batchv1.Job
		require.NoError(t, yaml.Unmarshal(document, &j))
		if j.Kind == "Job" {
			require.NoError(t, yaml.UnmarshalStrict(document, &j))
			found = append(found, j.Spec.Template.Spec.Containers...)
		}
	}
	require.Len(t, found, 1)
	return found[0]
}

// A host is where an example's commands run instead of in a pod or a pipeline.
type host struct {
	folder      string
	environment []string
}

// run returns what a command prints, without passwords, and its exit status.
func (h host) run(t *testing.T, command ...string) (string, int) {
	t.Helper()
	c := exec.CommandContext(t.Context(), command[0], command[1:]...)
	c.Dir, c.Env = h.folder, h.environment
	out, err := c.CombinedOutput()
	if _, ok := err.(*exec.ExitError); err != nil && !ok { //nolint:errorlint // exec returns it as it is
		require.NoError(t, err)
	}
	for _, word := range regexp.MustCompile(`\b[A-Za-z0-9]{32}\b`).FindAllString(string(out), -1) {
		assert.True(t, word == strings.ToLower(word), "a password is printed, for an operation's id has no capitals")
	}
	return redacted(string(out)), c.ProcessState.ExitCode()
}

// container is a host for a container of a ServiceAccount's pod, with the environment that the container is given.
func container(t *testing.T, account string, c corev1.Container, more ...string) host {
	t.Helper()
	h := host{folder: t.TempDir(), environment: environment(t, sandbox.Olga)}
	for _, variable := range c.Env {
		if variable.Name != "HOME" {
			h.environment = append(h.environment, variable.Name+"="+variable.Value)
		}
	}
	h.environment = append(append(h.environment, more...), "KUBECONFIG="+podKubeconfig(t, account))
	return h
}

// credential is one of tenant-beta as olga sees it, once its view has its ledger's newest entry.
func credential(t *testing.T, name string) v1alpha1.Credential {
	t.Helper()
	require.NoError(t, cluster.AwaitShown(t.Context(), beta, []string{name}))
	text, err := cluster.Kubernetes(sandbox.Olga, 0).CoreV1().RESTClient().Get().
		AbsPath("/apis/credentials.cozystack.io/v1alpha1/namespaces", beta, "credentials", name).DoRaw(t.Context())
	require.NoError(t, err)
	var c v1alpha1.Credential
	require.NoError(t, json.Unmarshal(text, &c))
	return c
}

func TestAJobMintsIntoASecretOnceHoweverOftenItRuns(t *testing.T) {
	quickstart(t)
	lay(t, "gitops", "rbac.yaml")
	lay(t, "gitops", "mint-to-secret.yaml")
	c := job(t, "mint-to-secret.yaml")
	pod := container(t, "orders-password", c)
	awaitRight(t, podKubeconfig(t, "orders-password"), "create", "credentials.credentials.cozystack.io/postgres-orders.app", "--subresource=mint")
	awaitRight(t, podKubeconfig(t, "orders-password"), "patch", "secret/orders-app")
	held := func() map[string][]byte {
		secret, err := cluster.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().Secrets(beta).Get(t.Context(), "orders-app", metav1.GetOptions{})
		require.NoError(t, err)
		return secret.Data
	}
	run := func(want int, in host) {
		t.Helper()
		out, code := in.run(t, c.Command...)
		require.Equal(t, want, code, out)
	}

	run(0, pod)
	first, minted := held(), credential(t, "postgres-orders.app")
	require.Regexp(t, `^[A-Za-z0-9]{32}$`, string(first["password"]))
	require.Equal(t, minted.Status.History[0].ID, string(first["id"]))
	require.Equal(t, int64(2), minted.Status.Password.Revision)

	for range 2 { // as a retry in the same pod, and in a new one
		run(0, pod)
		pod = container(t, "orders-password", c)
	}
	require.True(t, bytes.Equal(first["password"], held()["password"]))
	require.Equal(t, int64(2), credential(t, "postgres-orders.app").Status.Password.Revision)

	t.Run("rotates once when told which password to replace", func(t *testing.T) {
		again := container(t, "orders-password", c, "REPLACE="+string(first["id"]))
		run(0, again)
		second := held()
		require.False(t, bytes.Equal(first["password"], second["password"]))
		require.Equal(t, credential(t, "postgres-orders.app").Status.History[0].ID, string(second["id"]))
		run(0, again)
		require.True(t, bytes.Equal(second["password"], held()["password"]))
		require.Equal(t, int64(3), credential(t, "postgres-orders.app").Status.Password.Revision)
	})
	t.Run("and never where a password was minted that the Secret has not", func(t *testing.T) {
		_, err := cluster.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().Secrets(beta).Patch(t.Context(), "orders-app",
			"application/json-patch+json", []byte(`[{"op": "remove", "path": "/data"}]`), metav1.PatchOptions{})
		require.NoError(t, err)
		run(5, pod)
		require.Equal(t, int64(3), credential(t, "postgres-orders.app").Status.Password.Revision)
	})
}

func TestWhatExternalSecretsPushesIsWhatTheJobFills(t *testing.T) {
	var push struct {
		Spec struct {
			Selector struct {
				Secret struct{ Name string }
			}
			Data []struct {
				Match struct{ SecretKey string }
			}
		}
	}
	text, err := os.ReadFile(example("gitops", "pushsecret.yaml"))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &push))
	require.Len(t, push.Spec.Data, 1)
	script := strings.Join(job(t, "mint-to-secret.yaml").Command, " ")
	require.Contains(t, script, "create secret generic "+push.Spec.Selector.Secret.Name+" --from-file="+push.Spec.Data[0].Match.SecretKey+" ")
}

func TestAJobMintsIntoAFileOnceHoweverOftenItRuns(t *testing.T) {
	quickstart(t)
	lay(t, "gitops", "rbac.yaml")
	lay(t, "gitops", "mint-to-file.yaml")
	c := job(t, "mint-to-file.yaml")
	// The example's credential is the other Job's; here another of the same application.
	for i := range c.Command {
		c.Command[i] = strings.ReplaceAll(c.Command[i], "postgres-orders.app", "postgres-orders.report-reader")
	}
	_, err := cluster.Apply(t.Context(), beta, map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": map[string]any{"name": "report-reader"},
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "mintlog-credentials-admin"},
		"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": "orders-password", "namespace": beta}},
	})
	require.NoError(t, err)
	_, err = cluster.Apply(t.Context(), beta, map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": map[string]any{"name": "report-reader-view"},
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "mintlog-credentials-view"},
		"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": "orders-password", "namespace": beta}},
	})
	require.NoError(t, err)
	pod := container(t, "orders-password", c)
	awaitRight(t, podKubeconfig(t, "orders-password"), "create", "credentials.credentials.cozystack.io/postgres-orders.report-reader", "--subresource=mint")
	awaitRight(t, podKubeconfig(t, "orders-password"), "get", "credentials.credentials.cozystack.io/postgres-orders.report-reader")
	file := filepath.Join(pod.folder, "password")
	require.NoError(t, os.WriteFile(file, []byte("\n\n\n"), 0o600), "as a run leaves it that ended before its mint")

	out, code := pod.run(t, c.Command...)
	require.Zero(t, code, out)
	first, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Len(t, string(first), 33)
	out, code = pod.run(t, c.Command...)
	require.Zero(t, code, out)
	second, err := os.ReadFile(file)
	require.NoError(t, err)
	require.True(t, bytes.Equal(first, second))
	require.Equal(t, int64(2), credential(t, "postgres-orders.report-reader").Status.Password.Revision)

	require.NoError(t, os.Remove(file)) // a volume that was lost
	_, code = pod.run(t, c.Command...)
	require.Equal(t, 5, code)
	require.NoFileExists(t, file)
}

func TestTheReplayRunsOnTheVolumeOfTheChartsPodAsItsUser(t *testing.T) {
	text, err := os.ReadFile(example("operators", "replay.yaml"))
	require.NoError(t, err)
	var pod corev1.Pod
	require.NoError(t, yaml.UnmarshalStrict(text, &pod))
	var set appsv1.StatefulSet
	rendered, err := cluster.RenderChart(t.Context(), "--values", filepath.Join(cluster.Root(), "deploy", "chart", "mintlog", "ci", "small-values.yaml"), "--show-only", "templates/all.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(rendered, &set))

	its, theirs := pod.Spec.Containers[0], set.Spec.Template.Spec.Containers[0]
	require.Equal(t, set.Spec.VolumeClaimTemplates[0].Name+"-"+set.Name+"-0", pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName)
	require.Contains(t, theirs.VolumeMounts, corev1.VolumeMount{Name: set.Spec.VolumeClaimTemplates[0].Name, MountPath: its.VolumeMounts[0].MountPath})
	require.Equal(t, theirs.Image, its.Image)
	require.Equal(t, set.Spec.Template.Spec.SecurityContext.RunAsUser, pod.Spec.SecurityContext.RunAsUser)
	for _, argument := range its.Args[1:] {
		if value, ok := strings.CutPrefix(argument, "--since="); ok {
			require.NotEmpty(t, value)
			continue
		}
		require.Contains(t, theirs.Args, argument, "as the chart's pod has it")
	}
	out, err := tool(t, sandbox.ClusterAdmin, "mintlog", append(its.Args, "--help")...)
	require.NoError(t, err, out)
}

// pipelines are the shell commands of each pipeline, and the variable of the command that stores a password.
func pipelines(t *testing.T) map[string]string {
	t.Helper()
	var github struct {
		Jobs map[string]struct {
			Steps []struct {
				Name, Run string
			}
		}
	}
	var gitlab map[string]struct{ Script []string }
	var run []string
	text, err := os.ReadFile(example("ci", "github.yaml"))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &github))
	for _, step := range github.Jobs["mint"].Steps {
		if step.Run != "" {
			run = append(run, step.Run)
		}
	}
	text, err = os.ReadFile(example("ci", "gitlab.yaml"))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &gitlab))
	// Terraform's local-exec gives its command to a shell, too.
	text, err = os.ReadFile(example("terraform", "main.tf"))
	require.NoError(t, err)
	command := regexp.MustCompile(`command\s*=\s*"((?:[^"\\]|\\.)*)"`).FindSubmatch(text)
	require.NotNil(t, command)
	return map[string]string{
		"GitHub":    strings.Join(run, "\n"),
		"GitLab":    strings.Join(gitlab["database-password"].Script, "\n"),
		"Terraform": "cd deploy/examples/terraform\n" + strings.ReplaceAll(string(command[1]), `\"`, `"`) + "\n" + `[ ! -e "$PASSWORD_FILE" ] || cp "$PASSWORD_FILE" "$STORED"`,
	}
}

func pipelineCredential(name string) string {
	if name == "GitHub" {
		return "postgres-ci.app"
	}
	return "postgres-" + strings.ToLower(name) + ".app"
}

// awaitRight waits until kube-apiserver's authorizer has what was just granted to the kubeconfig's user.
func awaitRight(t *testing.T, kubeconfig string, what ...string) {
	t.Helper()
	h := host{environment: append(environment(t, sandbox.Olga), "KUBECONFIG="+kubeconfig)}
	require.Eventually(t, func() bool {
		_, code := h.run(t, append([]string{"kubectl", "auth", "can-i"}, what...)...)
		return code == 0
	}, 2*time.Minute, 100*time.Millisecond, "%v", what)
}

func TestAPipelineMintsWithABoundTokenOnce(t *testing.T) {
	quickstart(t)
	// Each pipeline has an application of its own, so that each finds an account that was never issued.
	manifest, err := os.ReadFile(example("ci", "rbac.yaml"))
	require.NoError(t, err)
	edited := filepath.Join(t.TempDir(), "rbac.yaml")
	require.NoError(t, os.WriteFile(edited, bytes.ReplaceAll(manifest, []byte("[postgres-ci.app]"),
		[]byte("[postgres-ci.app, "+pipelineCredential("GitLab")+", "+pipelineCredential("Terraform")+"]")), 0o600))
	out, err := tool(t, sandbox.ClusterAdmin, "kubectl", "apply", "--namespace", beta, "--filename", edited)
	require.NoError(t, err, out)
	for name := range pipelines(t) {
		awaitRight(t, podKubeconfig(t, "ci"), "create", "credentials.credentials.cozystack.io/"+pipelineCredential(name), "--subresource=mint")
	}
	kubernetes := cluster.Kubernetes(sandbox.ClusterAdmin, 0)
	secret, err := kubernetes.CoreV1().Secrets(beta).Get(t.Context(), "ci-token", metav1.GetOptions{})
	require.NoError(t, err)
	token := tokenOf(t, "ci", &authenticationv1.BoundObjectReference{Kind: "Secret", APIVersion: "v1", Name: "ci-token", UID: secret.UID})
	tools := t.TempDir()
	// What takes the password from the pipeline keeps it in the file STORED: gh from its input, curl from its form's value.
	for name, script := range map[string]string{
		"gh":   `cat > "$STORED"`,
		"curl": `for a; do case $a in value=*) cat "${a#value=<}" > "$STORED";; esac; done`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(tools, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	}
	runner := func(t *testing.T, stored, credential string) host {
		h := host{folder: cluster.Root()}
		for _, variable := range environment(t, sandbox.Olga) {
			if path, ok := strings.CutPrefix(variable, "PATH="); ok {
				variable = "PATH=" + tools + ":" + path
			}
			if !strings.HasPrefix(variable, "KUBECONFIG=") {
				h.environment = append(h.environment, variable)
			}
		}
		h.environment = append(h.environment, "KUBE_SERVER="+cluster.APIServerURL(0), "KUBE_CA="+base64.StdEncoding.EncodeToString(cluster.ServingAuthority().PEM()), "KUBE_TOKEN="+token, "KUBE_NAMESPACE="+beta,
			"STORED="+stored, "TMPDIR="+t.TempDir(), "VARIABLES_WRITER=somebody", "CI_API_V4_URL=https://gitlab.invalid", "CI_PROJECT_ID=1",
			"CREDENTIAL="+credential, "PASSWORD_FILE="+filepath.Join(t.TempDir(), "password"))
		return h
	}
	for name, commands := range pipelines(t) {
		t.Run(name, func(t *testing.T) {
			its := pipelineCredential(name)
			commands := strings.ReplaceAll(commands, "postgres-ci.app", its)
			stored := filepath.Join(t.TempDir(), "stored")
			h := runner(t, stored, its)
			out, code := h.run(t, "bash", "-eo", "pipefail", "-c", commands)
			require.Zero(t, code, out)
			first, err := os.ReadFile(stored)
			require.NoError(t, err)
			require.Regexp(t, `^[A-Za-z0-9]{32}\n?$`, string(first))
			require.Equal(t, int64(2), credential(t, its).Status.Password.Revision)

			require.NoError(t, os.Remove(stored))
			h = runner(t, stored, its)
			out, code = h.run(t, "bash", "-eo", "pipefail", "-c", commands)
			require.Zero(t, code, out)
			require.NoFileExists(t, stored, "nothing is stored where nothing was minted")
			require.Equal(t, int64(2), credential(t, its).Status.Password.Revision)
		})
	}

	require.NoError(t, kubernetes.CoreV1().Secrets(beta).Delete(t.Context(), "ci-token", metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		_, code := runner(t, filepath.Join(t.TempDir(), "stored"), "postgres-ci.app").run(t, "bash", "-eo", "pipefail", "-c", pipelines(t)["GitHub"])
		return code != 0
	}, 5*time.Minute, time.Second, "the token is void when its Secret is gone")
}
