package sandbox_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mintlog/mintlog/test/sandbox"
)

var cluster *sandbox.Sandbox

func TestMain(m *testing.M) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	var err error
	if cluster, err = sandbox.Start(ctx, sandbox.Options{Log: os.Stderr}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := cluster.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func TestBothAPIServersShareOneState(t *testing.T) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "shared"}}
	_, err := admin(0).CoreV1().Secrets(sandbox.TenantAcme).Create(t.Context(), secret, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = admin(1).CoreV1().Secrets(sandbox.TenantAcme).Get(t.Context(), "shared", metav1.GetOptions{})
	require.NoError(t, err)
}

func TestEachPersonMayDoWhatTheirGroupAllows(t *testing.T) {
	const acme, beta = sandbox.TenantAcme, sandbox.TenantBeta
	f := func(person, verb, namespace, resource string, want bool) {
		t.Helper()
		for apiserver := range 2 {
			allowed, err := cluster.May(t.Context(), person, apiserver, verb, namespace, resource)
			require.NoError(t, err)
			require.Equal(t, want, allowed, "%s %s %s in %s at apiserver %d", person, verb, resource, namespace, apiserver)
		}
	}
	for _, resource := range []string{"credentials/mint", "credentials/revoke"} {
		f(sandbox.Jane, "create", acme, resource, true)
		f(sandbox.Jane, "create", beta, resource, false)
		f(sandbox.Ivan, "create", acme, resource, false)
		f(sandbox.Olga, "create", beta, resource, true)
		f(sandbox.Olga, "create", acme, resource, false)
		f(sandbox.TenantRoot, "create", acme, resource, true)
		f(sandbox.TenantRoot, "create", beta, resource, true)
	}
	for _, verb := range []string{"get", "list"} {
		f(sandbox.Jane, verb, acme, "credentials", true)
		f(sandbox.Ivan, verb, acme, "credentials", true)
		f(sandbox.Ivan, verb, beta, "credentials", false)
		f(sandbox.Olga, verb, acme, "credentials", false)
	}
	for _, person := range []string{sandbox.Jane, sandbox.Ivan, sandbox.Olga, sandbox.TenantRoot} {
		f(person, "watch", acme, "credentials", false)
		allowed, err := cluster.MayIn(t.Context(), person, 0, "get", acme, "", "secrets")
		require.NoError(t, err)
		require.False(t, allowed, "%s reads Secrets", person)
	}
}

func TestRootMayActAsJaneAndNobodyElseMay(t *testing.T) {
	f := func(person, as string, groups []string, allowed bool) {
		t.Helper()
		configuration := cluster.RESTConfig(person, 0)
		configuration.Impersonate.UserName, configuration.Impersonate.Groups = as, groups
		self, err := kubernetes.NewForConfigOrDie(configuration).AuthenticationV1().SelfSubjectReviews().
			Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if !allowed {
			require.True(t, apierrors.IsForbidden(err), "%s as %s: %v", person, as, err)
			return
		}
		require.NoError(t, err)
		require.Equal(t, as, self.Status.UserInfo.Username)
	}
	f(sandbox.TenantRoot, sandbox.Jane, []string{"tenant-acme-admin"}, true)
	f(sandbox.TenantRoot, sandbox.Jane, []string{"system:masters"}, false)
	f(sandbox.TenantRoot, sandbox.Olga, nil, false)
	f(sandbox.Jane, sandbox.TenantRoot, nil, false)
}

func TestMintlogsIdentitiesReachSecretsInEnrolledNamespacesOnly(t *testing.T) {
	require.NoError(t, cluster.AddNamespace(t.Context(), "tenant-aloof"))
	f := func(name, verb, namespace, group, resource string, want bool) {
		t.Helper()
		file, err := cluster.ServiceAccountKubeconfig(t.Context(), name, 0)
		require.NoError(t, err)
		configuration, err := clientcmd.BuildConfigFromFlags("", file)
		require.NoError(t, err)
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Namespace: namespace, Group: group, Resource: resource},
		}}
		answer, err := kubernetes.NewForConfigOrDie(configuration).AuthorizationV1().SelfSubjectAccessReviews().
			Create(t.Context(), review, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Equal(t, want, answer.Status.Allowed, "%s %s %s in %q", name, verb, resource, namespace)
	}
	for _, verb := range []string{"get", "list", "watch", "create", "update"} {
		f("mint", verb, sandbox.TenantAcme, "", "secrets", true)
		f("accounts", verb, sandbox.TenantAcme, "", "secrets", verb != "update") // it patches
		for _, name := range []string{"projector", "ingest", "archiver"} {
			f(name, verb, sandbox.TenantAcme, "", "secrets", false)
		}
		for _, name := range []string{"mint", "accounts", "projector", "ingest", "archiver"} {
			f(name, verb, "tenant-aloof", "", "secrets", false)
			f(name, verb, "kube-system", "", "secrets", false)
			f(name, verb, "", "", "secrets", false)
		}
	}
	f("mint", "delete", sandbox.TenantAcme, "", "secrets", false)
	f("mint", "patch", sandbox.TenantAcme, "", "secrets", false)
	f("accounts", "patch", sandbox.TenantAcme, "", "secrets", true)
	f("accounts", "delete", sandbox.TenantAcme, "", "secrets", true)
	f("accounts", "create", sandbox.TenantAcme, "rbac.authorization.k8s.io", "rolebindings", true)
	f("accounts", "create", "tenant-aloof", "rbac.authorization.k8s.io", "rolebindings", false)
	f("accounts", "create", sandbox.Namespace, "", "configmaps", true)
	for _, name := range []string{"mint", "accounts"} {
		f(name, "watch", "", "helm.toolkit.fluxcd.io", "helmreleases", true)
		f(name, "watch", "", "cozystack.io", "applicationdefinitions", true)
	}
}

func TestWhatAHelmReleaseOwnsGoesWithIt(t *testing.T) {
	release, err := cluster.InstallRelease(t.Context(), sandbox.TenantBeta, "Postgres", "owner", map[string]any{})
	require.NoError(t, err)
	owned := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "owned", OwnerReferences: []metav1.OwnerReference{{
		APIVersion: "helm.toolkit.fluxcd.io/v2", Kind: "HelmRelease", Name: release.GetName(), UID: release.GetUID(),
	}}}}
	secrets := admin(0).CoreV1().Secrets(sandbox.TenantBeta)
	_, err = secrets.Create(t.Context(), owned, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, cluster.DeleteRelease(t.Context(), sandbox.TenantBeta, release.GetName()))
	require.Eventually(t, func() bool {
		_, err := secrets.Get(t.Context(), "owned", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, 5*time.Minute, 100*time.Millisecond)
}

func TestADeletedNamespaceGoes(t *testing.T) {
	require.NoError(t, cluster.AddTenant(t.Context(), "tenant-passing"))
	namespaces := admin(0).CoreV1().Namespaces()
	require.NoError(t, namespaces.Delete(t.Context(), "tenant-passing", metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		_, err := namespaces.Get(t.Context(), "tenant-passing", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, 5*time.Minute, 100*time.Millisecond)
}

func TestAFieldOfTheBlockThatNobodyKnowsReachesTheReader(t *testing.T) {
	block := map[string]any{
		"format":   map[string]any{"name": "scram-sha-256", "rounds": int64(3)},
		"accounts": []any{map[string]any{"kind": "Oracle", "path": "users", "depth": "all"}},
		"unheard":  "of",
	}
	require.NoError(t, cluster.InstallDefinition(t.Context(), "Strange", block))
	definition, err := dynamic.NewForConfigOrDie(cluster.RESTConfig(sandbox.ClusterAdmin, 1)).
		Resource(sandbox.ApplicationDefinitions).Get(t.Context(), "strange", metav1.GetOptions{})
	require.NoError(t, err)
	kept, _, err := unstructured.NestedMap(definition.Object, "spec", "credentials")
	require.NoError(t, err)
	require.Equal(t, block, kept)
}

func TestTheValuesOfAReleaseCanBeChanged(t *testing.T) {
	install := func(values map[string]any) map[string]any {
		release, err := cluster.InstallRelease(t.Context(), sandbox.TenantBeta, "Postgres", "changing", values)
		require.NoError(t, err)
		users, _, err := unstructured.NestedMap(release.Object, "spec", "values", "users")
		require.NoError(t, err)
		return users
	}
	require.Len(t, install(map[string]any{"users": map[string]any{"app": map[string]any{}, "Report.Reader": map[string]any{}}}), 2)
	require.Equal(t, map[string]any{"other": map[string]any{}},
		install(map[string]any{"users": map[string]any{"other": map[string]any{}}}))
}

func TestAKilledAPIServerComesBackWithItsState(t *testing.T) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "survivor"}}
	_, err := admin(1).CoreV1().Secrets(sandbox.TenantAcme).Create(t.Context(), secret, metav1.CreateOptions{})
	require.NoError(t, err)
	cluster.APIServer(1).Kill()
	_, err = admin(1).CoreV1().Secrets(sandbox.TenantAcme).Get(t.Context(), "survivor", metav1.GetOptions{})
	require.Error(t, err)
	require.NoError(t, cluster.APIServer(1).Restart(t.Context()))
	_, err = admin(1).CoreV1().Secrets(sandbox.TenantAcme).Get(t.Context(), "survivor", metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, cluster.APIServer(1).Restart(t.Context()), "a running one is stopped by SIGTERM first")
}

// startNATS starts the one NATS server of these tests, and returns its URL.
var startNATS = sync.OnceValues(func() (string, error) { return cluster.StartNATS(context.Background()) })

func TestNATSKeepsAStreamInFiles(t *testing.T) {
	url, err := startNATS()
	require.NoError(t, err)
	connection, err := nats.Connect(url)
	require.NoError(t, err)
	defer connection.Close()
	streams, err := jetstream.New(connection)
	require.NoError(t, err)
	_, err = streams.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Storage: jetstream.FileStorage})
	require.NoError(t, err)
	_, err = streams.Publish(t.Context(), "s", []byte("kept"))
	require.NoError(t, err)
}

func TestEachPersonsKubectlIsInTheirOwnTenant(t *testing.T) {
	f := func(person, want string) {
		t.Helper()
		loaded, err := clientcmd.LoadFromFile(cluster.Kubeconfig(person, 0))
		require.NoError(t, err)
		namespace, _, err := clientcmd.NewDefaultClientConfig(*loaded, nil).Namespace()
		require.NoError(t, err)
		require.Equal(t, want, namespace, person)
	}
	f(sandbox.Jane, sandbox.TenantAcme)
	f(sandbox.Ivan, sandbox.TenantAcme)
	f(sandbox.Olga, sandbox.TenantBeta)
	f(sandbox.TenantRoot, sandbox.TenantRootNamespace)
	f(sandbox.ClusterAdmin, metav1.NamespaceDefault)
}

func TestAllArgumentsNameFilesThatAreThere(t *testing.T) {
	arguments := cluster.AllArguments()
	require.Equal(t, "all", arguments[0])
	logs := 0
	for _, argument := range arguments[1:] {
		name, value, ok := strings.Cut(argument, "=")
		require.True(t, ok, argument)
		if name == "--audit-log" {
			logs++
		}
		if strings.HasSuffix(name, "-kubeconfig") || strings.HasSuffix(name, "-file") || name == "--audit-log" {
			require.FileExists(t, value)
		}
	}
	require.Equal(t, 2, logs)
}

func TestStopLeavesNoProcessAndNoDirectory(t *testing.T) {
	f := func(stop func(s *sandbox.Sandbox, cancel func())) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, err := sandbox.Start(ctx, sandbox.Options{Apiservers: 1})
		require.NoError(t, err)
		_, err = s.Run(ctx, "sleeper", "/bin/sleep", "1000")
		require.NoError(t, err)
		processes := s.Processes()
		require.Len(t, processes, 5)
		for _, process := range processes {
			require.NoError(t, syscall.Kill(process.PID(), 0), process.Name())
		}
		stop(s, cancel)
		require.Eventually(t, func() bool {
			for _, process := range processes {
				if syscall.Kill(-process.PID(), 0) == nil {
					return false
				}
			}
			_, err := os.Stat(s.Directory())
			return os.IsNotExist(err)
		}, 5*time.Minute, 50*time.Millisecond)
	}
	f(func(s *sandbox.Sandbox, _ func()) { _ = s.Stop() }) // sleep ends by the signal: an error
	f(func(_ *sandbox.Sandbox, cancel func()) { cancel() })
}

func TestAMissingBinaryNamesTheCommandThatBuildsIt(t *testing.T) {
	_, err := sandbox.Start(t.Context(), sandbox.Options{BinDirectory: t.TempDir()})
	require.ErrorContains(t, err, `etcd is missing: run "make tools"`)
}

func admin(apiserver int) kubernetes.Interface {
	return cluster.Kubernetes(sandbox.ClusterAdmin, apiserver)
}
