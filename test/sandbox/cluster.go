package sandbox

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/mintlog/mintlog/test/sandbox/process"
)

// The tenants of the sandbox. All are enrolled.
const (
	TenantRootNamespace = "tenant-root"
	TenantAcme          = "tenant-acme"
	TenantBeta          = "tenant-beta"
)

//go:embed manifests/cozystack.yaml
var cozystack []byte

type object = map[string]any

// connect makes what the sandbox lays its objects with.
func (s *Sandbox) connect() error {
	configuration := s.RESTConfig(ClusterAdmin, 0)
	var err error
	if s.objects, err = dynamic.NewForConfig(configuration); err != nil {
		return err
	}
	client, err := discovery.NewDiscoveryClientForConfig(configuration)
	if err != nil {
		return err
	}
	s.kinds = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client))
	return nil
}

// Apply lays an object as cluster-admin (server-side, over whatever else holds its fields), in the given namespace if
// its kind has namespaces and it names none. It returns the object as it stands.
func (s *Sandbox) Apply(ctx context.Context, namespace string, content map[string]any) (*unstructured.Unstructured, error) {
	given := &unstructured.Unstructured{Object: content}
	kind := given.GroupVersionKind()
	what := strings.TrimSpace(kind.Kind + " " + given.GetName())
	mapping, err := s.kinds.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) { // a kind that came after the last look
		s.kinds.Reset()
		mapping, err = s.kinds.RESTMapping(kind.GroupKind(), kind.Version)
	}
	if err != nil {
		return nil, fmt.Errorf("applying %s: %w", what, err)
	}
	var client dynamic.ResourceInterface = s.objects.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		if given.GetNamespace() != "" {
			namespace = given.GetNamespace()
		}
		client = s.objects.Resource(mapping.Resource).Namespace(namespace)
	}
	applied, err := client.Apply(ctx, given.GetName(), given, metav1.ApplyOptions{FieldManager: "sandbox", Force: true})
	if err != nil {
		return nil, fmt.Errorf("applying %s: %w", what, err)
	}
	return applied, nil
}

// ApplyManifest lays every document of a YAML text.
func (s *Sandbox) ApplyManifest(ctx context.Context, namespace string, manifest []byte) error {
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096)
	for {
		var content object
		if err := documents.Decode(&content); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading a manifest: %w", err)
		}
		if len(content) == 0 {
			continue
		}
		if _, err := s.Apply(ctx, namespace, content); err != nil {
			return err
		}
	}
}

// applyFiles lays the manifests that deploy/ ships.
func (s *Sandbox) applyFiles(ctx context.Context, namespace string, names ...string) error {
	for _, name := range names {
		manifest, err := os.ReadFile(filepath.Join(s.root, "deploy", name))
		if err != nil {
			return err
		}
		if err := s.ApplyManifest(ctx, namespace, manifest); err != nil {
			return fmt.Errorf("deploy/%s: %w", name, err)
		}
	}
	return nil
}

func (s *Sandbox) layCustomResources(ctx context.Context) error {
	if err := s.applyFiles(ctx, "", "crds/helmreleases.yaml", "crds/applicationdefinitions.yaml"); err != nil {
		return err
	}
	// Each kube-apiserver serves them when its own watch has told it, and takes a second for the first answer.
	var waits []func() error
	for number := range s.apiServers {
		client, err := dynamic.NewForConfig(s.RESTConfig(ClusterAdmin, number))
		if err != nil {
			return err
		}
		for _, resource := range []schema.GroupVersionResource{HelmReleases, ApplicationDefinitions} {
			waits = append(waits, func() error {
				return until(ctx, func(ctx context.Context) error {
					_, err := client.Resource(resource).List(ctx, metav1.ListOptions{})
					return err
				})
			})
		}
	}
	if err := together(waits...); err != nil {
		return err
	}
	s.say("the custom resources are served")
	return nil
}

// layAccess lays mintlog's roles and tokens, and the tenants.
func (s *Sandbox) layAccess(ctx context.Context) error {
	if err := s.applyFiles(ctx, "", "rbac/mintlog.yaml", "rbac/tenants.yaml"); err != nil {
		return err
	}
	for _, name := range []string{"mint", "accounts", "projector", "ingest", "archiver"} {
		for number := range s.apiServers {
			if _, err := s.ServiceAccountKubeconfig(ctx, name, number); err != nil {
				return err
			}
		}
	}
	if err := s.layPolicies(ctx); err != nil {
		return err
	}
	if err := s.ApplyManifest(ctx, "", cozystack); err != nil {
		return err
	}
	for _, tenant := range []string{TenantRootNamespace, TenantAcme, TenantBeta} {
		if err := s.AddTenant(ctx, tenant); err != nil {
			return err
		}
	}
	s.say("mintlog's roles and the tenants are laid")
	return nil
}

// AddTenant makes a tenant below tenant-root, with the bindings that Cozystack makes, and enrols it.
func (s *Sandbox) AddTenant(ctx context.Context, namespace string) error {
	if err := s.AddNamespace(ctx, namespace); err != nil {
		return err
	}
	return s.Enrol(ctx, namespace)
}

// AddNamespace makes a tenant as AddTenant does, but does not enrol it.
func (s *Sandbox) AddNamespace(ctx context.Context, namespace string) error {
	objects := []object{
		{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": namespace}},
		{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": object{"name": namespace}},
	}
	owners := []string{namespace}
	if namespace != TenantRootNamespace {
		owners = append(owners, TenantRootNamespace)
	}
	subjects := func(level string) []any {
		var subjects []any
		for _, owner := range owners {
			subjects = append(subjects, object{
				"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": owner + "-" + level,
			})
		}
		return subjects
	}
	var accounts []any
	for _, owner := range owners {
		accounts = append(accounts, object{"kind": "ServiceAccount", "name": owner, "namespace": owner})
	}
	objects = append(objects, roleBinding(namespace, "cozy:tenant", accounts))
	for _, level := range []string{"view", "use", "admin", "super-admin"} {
		objects = append(objects, roleBinding(namespace+"-"+level, "cozy:tenant:"+level, subjects(level)))
	}
	for _, content := range objects {
		if _, err := s.Apply(ctx, namespace, content); err != nil {
			return fmt.Errorf("making the tenant %s: %w", namespace, err)
		}
	}
	return nil
}

// Enrol lets mintlog work in a namespace, and waits until every kube-apiserver's authorizer knows.
func (s *Sandbox) Enrol(ctx context.Context, namespace string) error {
	if err := s.applyFiles(ctx, namespace, "rbac/enrolment.yaml"); err != nil {
		return err
	}
	for number := range s.apiServers {
		for _, name := range []string{"mint", "accounts"} {
			if err := until(ctx, func(ctx context.Context) error { return s.mayListSecrets(ctx, name, number, namespace) }); err != nil {
				return fmt.Errorf("enrolling %s: %w", namespace, err)
			}
		}
	}
	return nil
}

// mayListSecrets is an error unless a kube-apiserver lets a service account of mintlog list the Secrets of a namespace.
func (s *Sandbox) mayListSecrets(ctx context.Context, name string, apiserver int, namespace string) error {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:               "system:serviceaccount:" + Namespace + ":" + name,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Namespace: namespace, Resource: "secrets"},
	}}
	answer, err := s.Kubernetes(ClusterAdmin, apiserver).AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err == nil && !answer.Status.Allowed {
		err = fmt.Errorf("%s may not list Secrets yet", name)
	}
	return err
}

func roleBinding(name, role string, subjects []any) object {
	return object{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": object{"name": name},
		"roleRef":  object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
		"subjects": subjects,
	}
}

// awaitTenantRoles waits until every kube-apiserver's authorizer has the roles that the controller manager puts together.
func (s *Sandbox) awaitTenantRoles(ctx context.Context) error {
	last := []struct{ person, verb, namespace, resource string }{
		{Jane, "create", TenantAcme, "credentials/mint"},
		{Ivan, "list", TenantAcme, "credentials"},
		{Olga, "create", TenantBeta, "credentials/mint"},
		{TenantRoot, "create", TenantBeta, "credentials/mint"},
	}
	for number := range s.apiServers {
		for _, will := range last {
			if err := until(ctx, func(ctx context.Context) error {
				allowed, err := s.May(ctx, will.person, number, will.verb, will.namespace, will.resource)
				if err == nil && !allowed {
					err = fmt.Errorf("%s may not yet %s %s in %s", will.person, will.verb, will.resource, will.namespace)
				}
				return err
			}); err != nil {
				return fmt.Errorf("waiting for the tenants' roles: %w", err)
			}
		}
		if err := until(ctx, func(ctx context.Context) error { return s.mayActAsJane(ctx, number) }); err != nil {
			return fmt.Errorf("waiting for the tenants' roles: %w", err)
		}
	}
	return nil
}

// mayActAsJane is an error unless a kube-apiserver lets tenant-root act as jane, whose binding is in no namespace.
func (s *Sandbox) mayActAsJane(ctx context.Context, apiserver int) error {
	for resource, name := range map[string]string{"users": Jane, "groups": groups[Jane][0]} {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "impersonate", Resource: resource, Name: name},
		}}
		answer, err := s.Kubernetes(TenantRoot, apiserver).AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if !answer.Status.Allowed {
			return fmt.Errorf("%s may not yet act as %s", TenantRoot, name)
		}
	}
	return nil
}

// LayAPI points the APIService of credentials.cozystack.io at MintAddress and waits until every kube-apiserver answers
// for it: the mint server has to listen already. While the APIService stands and nothing answers, no namespace of the
// cluster can be deleted.
func (s *Sandbox) LayAPI(ctx context.Context) error {
	_, port := split(s.mintAddress)
	number, err := strconv.ParseInt(port, 10, 64)
	if err != nil {
		return err
	}
	service := object{
		"apiVersion": "v1", "kind": "Service", "metadata": object{"name": ServiceName, "namespace": Namespace},
		"spec": object{"type": "ExternalName", "externalName": "localhost"},
	}
	api := object{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": object{
			"name": "v1alpha1.credentials.cozystack.io",
			// Another value makes the kube-apiservers ask again at once, however long the API was down.
			"annotations": object{"sandbox/laid": time.Now().Format(time.RFC3339Nano)},
		},
		"spec": object{
			"group": "credentials.cozystack.io", "version": "v1alpha1",
			"groupPriorityMinimum": int64(1000), "versionPriority": int64(15),
			"caBundle": base64.StdEncoding.EncodeToString(s.serving.PEM()),
			"service":  object{"name": ServiceName, "namespace": Namespace, "port": number},
		},
	}
	for _, content := range []object{service, api} {
		if _, err := s.Apply(ctx, Namespace, content); err != nil {
			return err
		}
	}
	client, err := s.adminClient()
	if err != nil {
		return err
	}
	for number := range s.apiServers {
		url := s.APIServerURL(number) + "/apis/credentials.cozystack.io/v1alpha1"
		if err := until(ctx, process.Answers(client, url)); err != nil {
			return fmt.Errorf("waiting for the API of mintlog: %w", err)
		}
	}
	s.say("the API is served")
	return nil
}

// until repeats a step until it succeeds, for at most three minutes, and returns its last error.
func until(ctx context.Context, step func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for {
		err := step(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func split(address string) (host, port string) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		panic(err) // it is one of ours
	}
	return host, port
}
