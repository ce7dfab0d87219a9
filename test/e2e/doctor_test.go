package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/mintlog/mintlog/mint/admission"
	"github.com/mintlog/mintlog/mint/doctor"
	"github.com/mintlog/mintlog/test/sandbox"
	"github.com/mintlog/mintlog/test/sandbox/process"
)

// A diagnosis is what mintlog doctor printed.
type diagnosis struct {
	Verdict doctor.Verdict  `json:"verdict"`
	Checks  []doctor.Result `json:"checks"`
	text    string
	status  int
}

// of is all that a check has with a verdict, seen and to be mended.
func (d diagnosis) of(check string, verdict doctor.Verdict) string {
	var all []string
	for _, c := range d.Checks {
		for _, f := range c.Findings {
			if c.Check == check && f.Verdict == verdict {
				all = append(all, f.Seen+" | "+f.Mend)
			}
		}
	}
	return strings.Join(all, "\n")
}

func (d diagnosis) failed() []string {
	var failed []string
	for _, c := range d.Checks {
		if c.Verdict == doctor.Fail {
			failed = append(failed, c.Check)
		}
	}
	return failed
}

// diagnose runs mintlog doctor as a person.
func diagnose(t *testing.T, s *sandbox.Sandbox, person string, arguments ...string) diagnosis {
	t.Helper()
	arguments = append([]string{"doctor", "-o=json", "--kubeconfig=" + s.Kubeconfig(person, 0), "--victorialogs=" + s.VictoriaLogsURL()}, arguments...)
	run := exec.CommandContext(ctx(t), s.Binary(), arguments...)
	var out, progress bytes.Buffer
	run.Stdout, run.Stderr = &out, &progress
	err := run.Run()
	var exit *exec.ExitError
	if err != nil {
		require.ErrorAs(t, err, &exit)
	}
	d := diagnosis{text: out.String(), status: run.ProcessState.ExitCode()}
	require.NoError(t, json.Unmarshal(out.Bytes(), &d), "%s", progress.String())
	assert.Contains(t, progress.String(), fmt.Sprintf("[%d/%d]", len(d.Checks), len(d.Checks)), "it tells how far it is")
	assert.Equal(t, d.Verdict == doctor.Fail, d.status == 1, "the status tells of a FAIL")
	return d
}

func TestADoctorFindsNothingThatFailsInAHealthyInstallation(t *testing.T) {
	release := shared.application(t, "checked", "app")
	minted := shared.mint(t, sandbox.Jane, 0, release+".app")
	before := shared.secret(t, release+".app")
	var d diagnosis
	within(t, 3*time.Minute, func() error { // a slow machine may need another look
		d = diagnose(t, shared.Sandbox, sandbox.ClusterAdmin, "--credential="+acme+"/"+release+".app", "--metrics=http://"+shared.MetricsAddress()+"/metrics")
		for _, check := range []string{"api-service", "serving-certificate", "front-proxy", "api", "policies", "definitions", "events", "archive", "clocks", "versions"} {
			if d.of(check, doctor.OK) == "" {
				return fmt.Errorf("%s is not OK: %s", check, d.text)
			}
		}
		if len(d.failed()) > 0 || !strings.Contains(d.of("events", doctor.OK), "both its audit events arrived in the archive") {
			return errors.New(d.text)
		}
		return nil
	})
	assert.Contains(t, d.of("serving-certificate", doctor.OK), "caBundle signs it")
	for _, policy := range admission.All() {
		assert.Contains(t, d.of("policies", doctor.OK), policy+" is bound and denied what it must")
	}
	assert.NotContains(t, d.text, minted.Password)
	assert.NotContains(t, d.text, string(before.Data["password"]))
	after := shared.secret(t, release+".app")
	assert.Equal(t, before.Data, after.Data, "a dry run changes nothing")
	assert.Equal(t, before.Annotations["credentials.cozystack.io/ledger"], after.Annotations["credentials.cozystack.io/ledger"])
}

func TestADoctorWithoutRightsSaysWhichAreMissing(t *testing.T) {
	var d diagnosis
	within(t, 3*time.Minute, func() error {
		if d = diagnose(t, shared.Sandbox, sandbox.Ivan, "--wait=1s"); len(d.failed()) > 0 {
			return fmt.Errorf("what could not be looked at is called broken: %s", d.text)
		}
		return nil
	})
	for check, right := range map[string]string{
		"api-service": "get the APIService", "front-proxy": "get the configmap extension-apiserver-authentication", "policies": "list validatingadmissionpolicybindings",
		"definitions": "list applicationdefinitions", "enrolments": "list rolebindings in all namespaces", "grants": "list", "events": "list secrets",
	} {
		assert.Contains(t, d.of(check, doctor.Warn), "the right to "+right, check)
		assert.Contains(t, d.of(check, doctor.Warn), "is missing", check)
	}
}

// clinic is a sandbox with every part in a process of its own.
type clinic struct {
	*sandbox.Sandbox
	t                       *testing.T
	nats                    string
	mint, ingest, projector *process.Process
}

func openClinic(t *testing.T) *clinic {
	s := sandbox.Open(t, sandbox.Options{Apiservers: 1})
	c := &clinic{Sandbox: s, t: t}
	var err error
	c.nats, err = s.StartNATS(ctx(t))
	require.NoError(t, err)
	certificate, key := s.MintCertificate()
	host, port, err := net.SplitHostPort(s.MintAddress())
	require.NoError(t, err)
	c.part("accounts", "accounts", "--leader-elect=false")
	c.mint = c.part("mint", "mint", "--bind-address="+host, "--secure-port="+port, "--tls-cert-file="+certificate, "--tls-private-key-file="+key, "--nats="+c.nats)
	c.projector = c.part("project", "projector", "--nats="+c.nats)
	c.part("archive", "", "--nats="+c.nats, "--victorialogs="+s.VictoriaLogsURL())
	c.ingest = c.part("ingest", "", "--nats="+c.nats, "--state="+filepath.Join(s.StateDirectory(), "ingest"), "--audit-log="+s.AuditLog(0))
	require.NoError(t, s.LayAPI(ctx(t)))
	require.NoError(t, s.LayDefinition(ctx(t)))
	require.NoError(t, s.AwaitFirstSight(ctx(t), "Postgres"))
	_, err = s.LayRelease(ctx(t))
	require.NoError(t, err)
	require.NoError(t, s.AwaitServed(ctx(t), acme, []string{"postgres-orders.app", "postgres-orders.report-reader"}))
	return c
}

func (c *clinic) part(name, account string, arguments ...string) *process.Process {
	arguments = append([]string{name, "--metrics-address="}, arguments...)
	if account != "" {
		kubeconfig, err := c.ServiceAccountKubeconfig(ctx(c.t), account, 0)
		require.NoError(c.t, err)
		arguments = append(arguments, "--kubeconfig="+kubeconfig, "--namespace="+sandbox.Namespace)
	}
	started, err := c.Run(ctx(c.t), "mintlog-"+name, c.Binary(), arguments...)
	require.NoError(c.t, err)
	return started
}

func (c *clinic) diagnose(t *testing.T, arguments ...string) diagnosis {
	t.Helper()
	return diagnose(t, c.Sandbox, sandbox.ClusterAdmin, append([]string{"--nats=" + c.nats, "--wait=12s"}, arguments...)...)
}

// fails wants exactly these checks to fail, at the latest when what was broken before has recovered, and the first one's
// words to hold these.
func (c *clinic) fails(t *testing.T, checks []string, words ...string) {
	t.Helper()
	within(t, 3*time.Minute, func() error {
		d := c.diagnose(t)
		if !slices.Equal(checks, d.failed()) {
			return fmt.Errorf("%q fail: %s", d.failed(), d.text)
		}
		for _, word := range words {
			if !strings.Contains(d.of(checks[0], doctor.Fail), word) {
				return fmt.Errorf("it does not say %q: %s", word, d.text)
			}
		}
		return nil
	})
}

func (c *clinic) object(resource schema.GroupVersionResource, name string) (dynamic.ResourceInterface, *unstructured.Unstructured) {
	client := dynamic.NewForConfigOrDie(c.RESTConfig(sandbox.ClusterAdmin, 0)).Resource(resource)
	object, err := client.Get(ctx(c.t), name, metav1.GetOptions{})
	require.NoError(c.t, err)
	return client, object
}

// TestADoctorNamesWhatIsBroken breaks one thing after the other, and mends it; the last stays broken.
func TestADoctorNamesWhatIsBroken(t *testing.T) {
	t.Parallel()
	c := openClinic(t)
	h := &house{Sandbox: c.Sandbox}

	t.Run("nothing", func(t *testing.T) {
		h.mint(t, sandbox.Jane, 0, "postgres-orders.app")
		h.awaitBy(t, "postgres-orders.app", sandbox.Jane, "")
		// A young grant is not judged yet, and what the sandbox has just done may still be on its way.
		within(t, 3*time.Minute, func() error {
			d := c.diagnose(t)
			for check, word := range map[string]string{
				"grants": "1 grants name exactly their 2 account Secrets", "stream": "consumers that keep up",
				"archive": "the newest operation (Mint of tenant-acme/postgres-orders.app",
			} {
				if !strings.Contains(d.of(check, doctor.OK), word) {
					return fmt.Errorf("%s does not say %q: %s", check, word, d.text)
				}
			}
			for _, where := range []string{"arrived in the stream", "arrived in the archive"} {
				if !strings.Contains(d.of("events", doctor.OK), where) {
					return fmt.Errorf("not both %s: %s", where, d.text)
				}
			}
			if len(d.failed()) > 0 {
				return errors.New(d.text)
			}
			return nil
		})
	})

	t.Run("a policy is not bound", func(t *testing.T) {
		bindings := schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"}
		client, binding := c.object(bindings, "mintlog-grants")
		require.NoError(t, client.Delete(ctx(t), "mintlog-grants", metav1.DeleteOptions{}))
		c.fails(t, []string{"policies"}, "mintlog-grants is not bound", "apply mintlog's chart again")
		binding.SetResourceVersion("")
		_, err := client.Create(ctx(t), binding, metav1.CreateOptions{})
		require.NoError(t, err)
		require.NoError(t, c.AwaitPolicies(ctx(t)))
	})

	t.Run("ingest does not run", func(t *testing.T) {
		require.NoError(t, c.ingest.Stop())
		c.fails(t, []string{"events"}, "none of its audit events arrived in the stream", "see that ingest runs")
		require.NoError(t, c.ingest.Restart(ctx(t)))
	})

	t.Run("the projector does not run", func(t *testing.T) {
		require.NoError(t, c.projector.Stop())
		h.mint(t, sandbox.Jane, 0, "postgres-orders.app")
		c.fails(t, []string{"stream"}, "events wait for the projector (projector-events) and nobody reads them", "see that the projector runs")
		require.NoError(t, c.projector.Restart(ctx(t)))
	})

	t.Run("VictoriaLogs does not run", func(t *testing.T) {
		archive := c.process(t, "victoria-logs")
		archive.Kill()
		c.fails(t, []string{"archive"}, "the archive cannot be asked", "see that VictoriaLogs runs")
		require.NoError(t, archive.Restart(ctx(t)))
	})

	services := schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	const name = "v1alpha1.credentials.cozystack.io"
	t.Run("the mint server does not run, and all else goes on", func(t *testing.T) {
		require.NoError(t, c.mint.Stop())
		client, _ := c.object(services, name)
		within(t, 2*time.Minute, func() error { return c.available(client, name, "False") })
		c.fails(t, []string{"api-service", "api"}, "not Available", "no namespace of the cluster can be deleted")
		c.goesOnWithoutOurs(t, func() { require.NoError(t, c.mint.Restart(ctx(t))) })
	})

	t.Run("the APIService trusts another authority", func(t *testing.T) {
		other, err := sandbox.NewAuthority("another")
		require.NoError(t, err)
		client, _ := c.object(services, name)
		_, err = client.Patch(ctx(t), name, types.MergePatchType, fmt.Appendf(nil, `{"spec": {"caBundle": %q}}`, base64.StdEncoding.EncodeToString(other.PEM())), metav1.PatchOptions{})
		require.NoError(t, err)
		within(t, 2*time.Minute, func() error { return c.available(client, name, "False") })
		c.fails(t, []string{"api-service", "serving-certificate", "api"}, "not Available", "caBundle signs its certificate")
		within(t, 3*time.Minute, func() error {
			d := c.diagnose(t)
			if !strings.Contains(d.of("serving-certificate", doctor.Fail), "signed by unknown authority | have it issued again") {
				return errors.New(d.text)
			}
			return nil
		})
		require.NoError(t, c.LayAPI(ctx(t)))
	})

	t.Run("the APIService leads nowhere", func(t *testing.T) {
		dead, err := process.FreeAddress()
		require.NoError(t, err)
		_, port, err := net.SplitHostPort(dead)
		require.NoError(t, err)
		client, _ := c.object(services, name)
		_, err = client.Patch(ctx(t), name, types.MergePatchType, fmt.Appendf(nil, `{"spec": {"service": {"port": %s}}}`, port), metav1.PatchOptions{})
		require.NoError(t, err)
		within(t, 2*time.Minute, func() error { return c.available(client, name, "False") })
		c.fails(t, []string{"api-service", "api"}, "not Available", "mintlog/mint:"+port, "no namespace of the cluster can be deleted")
		require.NoError(t, c.LayAPI(ctx(t)))
	})

	t.Run("a namespace is not enrolled any more", func(t *testing.T) {
		out, err := exec.CommandContext(ctx(t), c.Binary(), "unenroll", "--kubeconfig="+c.Kubeconfig(sandbox.ClusterAdmin, 0), acme).CombinedOutput()
		require.NoError(t, err, "%s", out)
		c.fails(t, []string{"enrolments"}, acme+" is not enrolled and has 2 account Secrets", "mintlog enroll "+acme)
	})
}

// goesOnWithoutOurs wants other APIs, kubectl and the garbage collector to work while nothing answers for ours, and a
// namespace that is deleted meanwhile to go when it is mended.
func (c *clinic) goesOnWithoutOurs(t *testing.T, mend func()) {
	t.Helper()
	h := &house{Sandbox: c.Sandbox}
	for _, arguments := range [][]string{{"get", "secrets", "-n", acme, "-o", "name"}, {"get", "helmreleases.helm.toolkit.fluxcd.io", "-A", "-o", "name"}, {"explain", "secret"}} {
		out, complaint, err := h.kubectl(t, sandbox.ClusterAdmin, arguments...)
		require.NoError(t, err, "%v: %s", arguments, complaint)
		assert.NotEmpty(t, out, "%v", arguments)
	}
	out, _, _ := h.kubectl(t, sandbox.ClusterAdmin, "api-resources") // it may say that it does not see all
	assert.Contains(t, out, "configmaps")
	_, complaint, err := h.kubectl(t, sandbox.ClusterAdmin, "get", "credentials.credentials.cozystack.io", "-n", acme)
	assert.Error(t, err)
	assert.NotEmpty(t, complaint)

	core := c.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1()
	owner, err := core.ConfigMaps(acme).Create(ctx(t), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = core.ConfigMaps(acme).Create(ctx(t), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owned", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, core.ConfigMaps(acme).Delete(ctx(t), owner.Name, metav1.DeleteOptions{}))
	within(t, 2*time.Minute, func() error {
		if _, err := core.ConfigMaps(acme).Get(ctx(t), "owned", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("what it owned is still there: %v", err)
		}
		return nil
	})

	_, err = core.Namespaces().Create(ctx(t), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "leaving"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, core.Namespaces().Delete(ctx(t), "leaving", metav1.DeleteOptions{}))
	within(t, 2*time.Minute, func() error {
		leaving, err := core.Namespaces().Get(ctx(t), "leaving", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range leaving.Status.Conditions {
			if condition.Type == corev1.NamespaceDeletionDiscoveryFailure && strings.Contains(condition.Message, "credentials.cozystack.io/v1alpha1") {
				return nil
			}
		}
		return fmt.Errorf("the namespace does not say what it waits for: %v", leaving.Status)
	})
	mend()
	require.NoError(t, c.LayAPI(ctx(t)))
	within(t, 5*time.Minute, func() error {
		if _, err := core.Namespaces().Get(ctx(t), "leaving", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the namespace is still there: %v", err)
		}
		return nil
	})
}

func (c *clinic) process(t *testing.T, name string) *process.Process {
	t.Helper()
	for _, p := range c.Processes() {
		if p.Name() == name {
			return p
		}
	}
	t.Fatalf("no process %s", name)
	return nil
}

func (c *clinic) available(client dynamic.ResourceInterface, name, want string) error {
	ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Second)
	defer cancel()
	object, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, condition := range conditions {
		if condition, ok := condition.(map[string]any); ok && condition["type"] == "Available" && condition["status"] == want {
			return nil
		}
	}
	return errors.New("the APIService is not yet as wanted")
}
