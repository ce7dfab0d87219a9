package chart

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func chartFolder() string { return filepath.Join(cluster.Root(), "deploy", "chart", "mintlog") }

// shapes are the values files in ci/, by their name without -values.yaml.
func shapes(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chartFolder(), "ci", "*-values.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	all := map[string]string{}
	for _, file := range files {
		all[strings.TrimSuffix(filepath.Base(file), "-values.yaml")] = file
	}
	return all
}

func render(t *testing.T, arguments ...string) []byte {
	t.Helper()
	text, err := cluster.RenderChart(t.Context(), arguments...)
	require.NoError(t, err)
	return text
}

// run runs one of the sandbox's tools.
func run(t *testing.T, input []byte, name string, arguments ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, filepath.Join(cluster.Root(), "bin", name), arguments...)
	var out bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(input), &out, &out
	err := c.Run()
	return out.String(), err
}

func TestEachShapeIsWellFormed(t *testing.T) {
	for name, values := range shapes(t) {
		out, err := run(t, nil, "helm", "lint", "--strict", chartFolder(), "--values", values)
		require.NoError(t, err, "%s: %s", name, out)
	}
}

// A workload is what the chart runs.
type workload struct {
	name string
	pod  corev1.PodSpec
}

// jobs are those that end, and workloads those that go on.
func jobs(t *testing.T, text []byte) []workload {
	t.Helper()
	var all []workload
	require.NoError(t, documents(text, func(kind metav1.TypeMeta, document []byte) error {
		switch kind.Kind {
		case "Job":
			var j batchv1.Job
			require.NoError(t, unmarshal(document, &j))
			all = append(all, workload{j.Name, j.Spec.Template.Spec})
		case "CronJob":
			var j batchv1.CronJob
			require.NoError(t, unmarshal(document, &j))
			all = append(all, workload{j.Name, j.Spec.JobTemplate.Spec.Template.Spec})
		}
		return nil
	}))
	return all
}

func workloads(t *testing.T, text []byte) []workload {
	t.Helper()
	var all []workload
	require.NoError(t, documents(text, func(kind metav1.TypeMeta, document []byte) error {
		var of struct {
			Metadata metav1.ObjectMeta `json:"metadata"`
			Spec     struct {
				Template corev1.PodTemplateSpec `json:"template"`
			} `json:"spec"`
		}
		if !slices.Contains([]string{"Deployment", "DaemonSet", "StatefulSet"}, kind.Kind) {
			return nil
		}
		// Strictly, by the kind's own type, and then what all of them have.
		into := map[string]any{"Deployment": &appsv1.Deployment{}, "DaemonSet": &appsv1.DaemonSet{}, "StatefulSet": &appsv1.StatefulSet{}}[kind.Kind]
		if err := unmarshal(document, into); err != nil {
			return err
		}
		text, err := json.Marshal(into)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(text, &of); err != nil {
			return err
		}
		all = append(all, workload{of.Metadata.Name, of.Spec.Template.Spec})
		return nil
	}))
	require.NotEmpty(t, all)
	return all
}

func TestNoContainerCanGainOrWriteAnything(t *testing.T) {
	for name, values := range shapes(t) {
		text := render(t, "--values", values)
		for _, w := range append(workloads(t, text), jobs(t, text)...) {
			what := name + " " + w.name
			readsAuditLog := slices.ContainsFunc(w.pod.Volumes, func(v corev1.Volume) bool { return v.Name == "audit" })
			asRoot := *w.pod.SecurityContext.RunAsUser == 0
			assert.True(t, !asRoot || readsAuditLog, "%s: only who reads the audit log may need to be root", what)
			assert.Equal(t, !asRoot, *w.pod.SecurityContext.RunAsNonRoot, what)
			assert.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, w.pod.SecurityContext.SeccompProfile.Type, what)
			assert.False(t, w.pod.HostNetwork || w.pod.HostPID || w.pod.HostIPC, what)
			for _, v := range w.pod.Volumes {
				if v.HostPath != nil {
					assert.Contains(t, []string{"audit", "state"}, v.Name, what)
				}
			}
			require.Len(t, w.pod.Containers, 1, what)
			c := w.pod.Containers[0]
			assert.True(t, *c.SecurityContext.ReadOnlyRootFilesystem, what)
			assert.False(t, *c.SecurityContext.AllowPrivilegeEscalation, what)
			assert.Equal(t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop, what)
			assert.Empty(t, c.SecurityContext.Capabilities.Add, what)
			assert.Nil(t, c.SecurityContext.Privileged, what)
			for _, m := range c.VolumeMounts {
				assert.Equal(t, m.Name != "state", m.ReadOnly, "%s mounts %s", what, m.Name)
			}
			assert.Positive(t, c.Resources.Limits.Memory().Value(), what)
			asksNothing := slices.Contains([]string{"mintlog-ingest", "mintlog-archiver", "mintlog-streams"}, w.name)
			assert.Equal(t, !asksNothing, *w.pod.AutomountServiceAccountToken, "%s: who asks nothing of Kubernetes has no token", what)
		}
	}
}

func TestMintlogTakesTheArgumentsOfEveryContainer(t *testing.T) {
	for name, values := range shapes(t) {
		text := render(t, "--values", values)
		for _, w := range append(workloads(t, text), jobs(t, text)...) {
			for _, argument := range w.pod.Containers[0].Args {
				assert.False(t, strings.HasSuffix(argument, "=") || strings.Contains(argument, "<no value>"), "%s %s: %s", name, w.name, argument)
			}
			// --help ends it behind the parsing of flags.
			out, err := run(t, nil, "mintlog", append(w.pod.Containers[0].Args, "--help")...)
			assert.NoError(t, err, "%s %s: %s", name, w.name, out)
		}
	}
}

func TestAPodIsServedByWhatIsMadeForIt(t *testing.T) {
	for name, values := range shapes(t) {
		text := render(t, "--values", values)
		all := workloads(t, text)
		has := slices.Sorted(slices.Values(names(all)))
		if strings.HasPrefix(name, "small") {
			require.Equal(t, []string{"mintlog"}, has, name)
		} else {
			require.Equal(t, []string{"mintlog-accounts", "mintlog-archiver", "mintlog-ingest", "mintlog-mint", "mintlog-projector", "mintlog-streams"}, has, name)
		}
		ports := map[string]bool{}
		accounts := map[string]bool{}
		for _, w := range all {
			for _, p := range w.pod.Containers[0].Ports {
				ports[p.Name] = true
			}
			accounts[w.pod.ServiceAccountName] = true
		}
		for _, w := range jobs(t, text) {
			accounts[w.pod.ServiceAccountName] = true
		}
		require.NoError(t, documents(text, func(kind metav1.TypeMeta, document []byte) error {
			switch kind.Kind {
			case "Service":
				var s corev1.Service
				require.NoError(t, unmarshal(document, &s))
				for _, p := range s.Spec.Ports {
					assert.True(t, ports[p.TargetPort.String()], "%s: no pod has the port %s of the Service %s", name, p.TargetPort.String(), s.Name)
				}
			case "ServiceAccount":
				var s corev1.ServiceAccount
				require.NoError(t, unmarshal(document, &s))
				assert.True(t, accounts[s.Name], "%s: no pod is the ServiceAccount %s", name, s.Name)
				delete(accounts, s.Name)
			}
			return nil
		}))
		require.Empty(t, accounts, "%s: a ServiceAccount is missing", name)
	}
}

func TestTheSchemaRefusesWrongValues(t *testing.T) {
	f := func(shape string, names string, set ...string) {
		t.Helper()
		arguments := []string{"--values", filepath.Join(chartFolder(), "ci", shape+"-values.yaml")}
		for _, s := range set {
			arguments = append(arguments, "--set", s)
		}
		_, err := cluster.RenderChart(t.Context(), arguments...)
		require.ErrorContains(t, err, names, "%v", set)
		require.ErrorContains(t, err, "schema", "%v", set)
	}
	f("large", "/shape", "shape=some")
	f("large", "mispelt", "mispelt=1")
	f("large", "/mint", "mint.replica=2")
	f("large", "/mint/replicas", "mint.replicas=0")
	f("large", "/mint/retention", "mint.retention=30d")
	f("large", "/stream/url", "stream.url=")
	f("large", "/stream/url", "stream.url=http://nats:4222")
	f("large", "/stream/nkeys/ingest", "stream.nkeys.ingest=Nats")
	f("large", "streamer", "stream.nkeys.streamer=nats")
	f("large", "/streams/replicas", "streams.replicas=0")
	f("small", "/stream/url", "stream.url=nats://nats:4222")
	f("large", "/victorialogs/url", "victorialogs.url=")
	f("large", "/victorialogs/url", "victorialogs.url=http://vlinsert:9481/insert")
	f("large", "/authorities/configMap", "authorities.configMap=Platform")
	f("large", "/image/digest", "image.digest=latest")
	f("large", "missing property 'apiServers'", "networkPolicies.apiServers=null")
	f("large", "/networkPolicies/apiServers/0", "networkPolicies.apiServers[0]=control-plane")
	f("large", "/serviceAccounts/mint", "serviceAccounts.mint=Mint")
	f("large", "/policies/breakGlassGroup", `policies.breakGlassGroup=a" in x || "`)
	f("large", "missing property 'collectors'", "policies.collectors=null")
	f("large", "/logLevel", "logLevel=trace")
	f("large", "/ingest/source", "ingest.source=journal")
	f("large", "/ingest/files/auditLog", "ingest.files.auditLog=audit.log")
	f("large", "/ingest/webhook/clientCASecret", "ingest.source=webhook")
	f("webhook", "/tls/existingSecret", "tls.existingSecret=")
	f("webhook", "/tls/caBundle", "tls.caBundle=none")
	f("small", "/stream/url", "mint.readsGaps=true")
	f("large", "missing property 'streams'", "serviceAccounts.streams=null")
	for _, group := range []string{"system:authenticated", "system:unauthenticated", "system:serviceaccounts"} {
		f("large", "/policies/breakGlassGroup", "policies.breakGlassGroup="+group)
	}
	f("large", "/ingest/files/auditLog", "ingest.files.auditLog=/audit.log") // its folder is the node's whole disk
	f("large", "/ingest/files/auditLog", "ingest.files.auditLog=/var/log/audit/*/audit.log")
	f("large", "/ingest/files/stateDirectory", "ingest.files.stateDirectory=/")
	f("large", "/mint/shutdownDelay", "mint.shutdownDelay=1m")
	f("large", "/mint/shutdownDelay", "mint.shutdownDelay=30s")
	for _, addresses := range []string{"10.0.0.1/33", "10.0.0/24", "10.0.0.1", "fd00::/129"} {
		f("large", "/networkPolicies/apiServers/0", "networkPolicies.apiServers[0]="+addresses)
	}
}

func TestTheSchemaTakesTheAddressesOfBothFamilies(t *testing.T) {
	render(t, "--values", shapes(t)["large"], "--set", "networkPolicies.apiServers={10.0.0.11/32,0.0.0.0/0,fd00::1/128,2001:db8::/32,::/0}")
}

func TestTwoPartsAreNeverOneIdentity(t *testing.T) {
	_, err := cluster.RenderChart(t.Context(), "--values", shapes(t)["large"], "--set", "serviceAccounts.ingest=mint")
	require.ErrorContains(t, err, "serviceAccounts: two parts have one name")
}

func TestANameOfAnAuditWebhooksClientIsTakenAsItIs(t *testing.T) {
	for _, shape := range []string{"webhook", "small-webhook"} {
		var found []string
		for _, w := range workloads(t, render(t, "--values", shapes(t)[shape], "--set-json", `ingest.webhook.clientNames=["kube: apiserver # one", "{a}"]`)) {
			for _, argument := range w.pod.Containers[0].Args {
				if _, name, ok := strings.Cut(argument, "client-name="); ok {
					found = append(found, name)
				}
			}
		}
		require.Equal(t, []string{"kube: apiserver # one", "{a}"}, found, shape)
	}
}

func TestEachShapeReachesNoSecretClusterWide(t *testing.T) {
	for name, values := range shapes(t) {
		rights := &Rights{}
		require.NoError(t, rights.Read(render(t, "--values", values)))
		require.NotEmpty(t, rights.Everywhere, name)
		require.Empty(t, rights.SecretsEverywhere(), name)
		for _, b := range rights.Bindings {
			if b.RoleRef.Kind == "ClusterRole" {
				assert.False(t, ReachesSecrets(rights.ClusterRoles[b.RoleRef.Name]), "%s: %s/%s: enrolment is not the chart's", name, b.Namespace, b.Name)
			}
		}
	}
}

func TestAChartThatReachesSecretsIsCaught(t *testing.T) {
	bound := func(role string) string {
		return "\n---\n" + `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: mintlog-mutant}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: ` + role + `}
subjects: [{kind: ServiceAccount, name: mint, namespace: mintlog}]
`
	}
	rule := func(rule string) func(string) string {
		return func(text string) string {
			const of = "resources: [helmreleases]\n    verbs: [get, list, watch]\n"
			return strings.Replace(text, of, of+"  - "+rule+"\n", 1)
		}
	}
	for what, mutate := range map[string]func(string) string{
		"the mint server's role is bound everywhere":  func(text string) string { return text + bound("mintlog-mint") },
		"the accounts role's role bound everywhere":   func(text string) string { return text + bound("mintlog-accounts") },
		"a role of the cluster's is bound everywhere": func(text string) string { return text + bound("cluster-admin") },
		"a rule for Secrets":                          rule(`{apiGroups: [""], resources: [secrets], verbs: [list]}`),
		"a rule for Secrets by name":                  rule(`{apiGroups: [""], resources: [secrets], resourceNames: [a], verbs: [get]}`),
		"a rule for all resources":                    rule(`{apiGroups: [""], resources: ["*"], verbs: [get]}`),
		"a rule for all groups":                       rule(`{apiGroups: ["*"], resources: ["secrets"], verbs: [get]}`),
		"a rule to bind":                              rule(`{apiGroups: [rbac.authorization.k8s.io], resources: [clusterroles], verbs: [bind]}`),
		"a rule to escalate":                          rule(`{apiGroups: [rbac.authorization.k8s.io], resources: [roles], verbs: [escalate]}`),
		"a rule to write bindings":                    rule(`{apiGroups: [rbac.authorization.k8s.io], resources: [rolebindings], verbs: [create]}`),
		"a rule for tokens":                           rule(`{apiGroups: [""], resources: [serviceaccounts/token], verbs: [create]}`),
		"a rule to impersonate":                       rule(`{apiGroups: [""], resources: [users], verbs: [impersonate]}`),
		"a role that others collect": func(text string) string {
			return strings.Replace(text, "metadata: {name: mintlog-mint}\nrules:", "metadata: {name: mintlog-mint, labels: {rbac.authorization.k8s.io/aggregate-to-view: \"true\"}}\nrules:", 1)
		},
		"a role that collects others": func(text string) string {
			return strings.Replace(text, "metadata: {name: mintlog-applications}\nrules:", "metadata: {name: mintlog-applications}\naggregationRule: {clusterRoleSelectors: [{matchLabels: {a: b}}]}\nrules:", 1)
		},
	} {
		folder := t.TempDir()
		require.NoError(t, os.CopyFS(folder, dereferenced(t)))
		file := filepath.Join(folder, "files", "rbac.yaml")
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		mutant := mutate(string(text))
		require.NotEqual(t, string(text), mutant, what)
		require.NoError(t, os.WriteFile(file, []byte(mutant), 0o600))
		out, err := run(t, nil, "helm", "template", "mintlog", folder, "--namespace", "mintlog", "--values", shapes(t)["large"], "--show-only", "templates/rbac.yaml")
		require.NoError(t, err, out)
		rights := &Rights{}
		require.NoError(t, rights.Read([]byte(out)))
		assert.NotEmpty(t, rights.SecretsEverywhere(), what)
	}
}

func TestTheNamesOfIdentitiesAreTheValues(t *testing.T) {
	text := string(render(t, "--namespace", "elsewhere", "--values", shapes(t)["large"],
		"--set", "serviceAccounts.mint=minter,serviceAccounts.accounts=keeper,serviceAccounts.projector=folder"))
	rights := &Rights{}
	require.NoError(t, rights.Read([]byte(text)))
	subjects := map[string][]rbacv1.Subject{}
	for _, b := range rights.Bindings {
		subjects[b.Name] = b.Subjects
		if b.Name != "mintlog-mint-authentication-reader" {
			require.Equal(t, "elsewhere", b.Namespace, b.Name)
		}
	}
	for _, b := range rights.Everywhere {
		subjects[b.Name] = b.Subjects
	}
	account := func(name string) rbacv1.Subject {
		return rbacv1.Subject{Kind: "ServiceAccount", Namespace: "elsewhere", Name: name}
	}
	require.Equal(t, []rbacv1.Subject{account("minter"), account("keeper")}, subjects["mintlog-applications"])
	require.Equal(t, []rbacv1.Subject{account("keeper")}, subjects["mintlog-accounts-records"])
	require.Equal(t, []rbacv1.Subject{account("minter"), account("keeper"), account("folder")}, subjects["mintlog-policy-probe"])
	require.Equal(t, []rbacv1.Subject{account("minter")}, subjects["mintlog-mint-authentication-reader"])
	require.Contains(t, text, "--own-user=system:serviceaccount:elsewhere:minter,system:serviceaccount:elsewhere:keeper,system:serviceaccount:elsewhere:folder")
	require.Contains(t, text, `{name: isMint, expression: 'request.userInfo.username == "system:serviceaccount:elsewhere:minter"'}`)
	require.NotContains(t, text, "serviceaccount:mintlog:")
	require.NotContains(t, text, "namespace: mintlog\n")
}

func TestTheChartGrantsWhatTheListSays(t *testing.T) {
	listed, rendered := &Rights{}, &Rights{}
	for _, file := range []string{"mintlog.yaml", "tenants.yaml"} {
		text, err := os.ReadFile(filepath.Join(cluster.Root(), "deploy", "rbac", file))
		require.NoError(t, err)
		require.NoError(t, listed.Read(text))
	}
	require.NoError(t, rendered.Read(render(t, "--values", shapes(t)["large"])))
	require.Len(t, rendered.ClusterRoles, len(listed.ClusterRoles))
	for name, role := range listed.ClusterRoles {
		require.Equal(t, role.Rules, rendered.ClusterRoles[name].Rules, name)
		for label, value := range role.Labels {
			require.Equal(t, value, rendered.ClusterRoles[name].Labels[label], name)
		}
	}
	require.Len(t, rendered.Everywhere, len(listed.Everywhere))
	for i, b := range listed.Everywhere {
		found := slices.IndexFunc(rendered.Everywhere, func(r rbacv1.ClusterRoleBinding) bool { return r.Name == b.Name })
		require.GreaterOrEqual(t, found, 0, b.Name)
		require.Equal(t, listed.Everywhere[i].Subjects, rendered.Everywhere[found].Subjects, b.Name)
		require.Equal(t, listed.Everywhere[i].RoleRef, rendered.Everywhere[found].RoleRef, b.Name)
	}
	// In namespaces too, but for what the policies are tried with.
	probing := func(name string) bool { return strings.HasPrefix(name, "mintlog-policy-probe") }
	roles, bindings := map[string]any{}, map[string]any{}
	for _, r := range rendered.Roles {
		if !probing(r.Name) {
			roles[r.Namespace+"/"+r.Name] = r.Rules
		}
	}
	for _, b := range rendered.Bindings {
		if !probing(b.Name) {
			bindings[b.Namespace+"/"+b.Name] = []any{b.RoleRef, b.Subjects}
		}
	}
	require.Len(t, roles, len(listed.Roles))
	for _, r := range listed.Roles {
		require.Equal(t, r.Rules, roles[r.Namespace+"/"+r.Name], r.Name)
	}
	require.Len(t, bindings, len(listed.Bindings))
	for _, b := range listed.Bindings {
		require.Equal(t, []any{b.RoleRef, b.Subjects}, bindings[b.Namespace+"/"+b.Name], b.Name)
	}
}
