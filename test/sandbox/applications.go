package sandbox

import (
	"context"
	"fmt"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The resources of applications.
var (
	HelmReleases           = schema.GroupVersionResource{Group: "helm.toolkit.fluxcd.io", Version: "v2", Resource: "helmreleases"}
	ApplicationDefinitions = schema.GroupVersionResource{Group: "cozystack.io", Version: "v1alpha1", Resource: "applicationdefinitions"}
)

// LayDefinition lays the kind Postgres with its block. The release comes when mintlog has recorded the kind
// (AwaitFirstSight): the accounts of an application that was there before are not seeded.
func (s *Sandbox) LayDefinition(ctx context.Context) error {
	return s.InstallDefinition(ctx, "Postgres", map[string]any{
		"format":       object{"name": "scram-sha-256"},
		"accounts":     []any{object{"kind": "ValuesMap", "path": "users"}},
		"secretLabels": object{"cnpg.io/reload": "true"},
	})
}

// LayRelease lays the application orders of tenant-acme: the HelmRelease postgres-orders with two users.
func (s *Sandbox) LayRelease(ctx context.Context) (*unstructured.Unstructured, error) {
	return s.InstallRelease(ctx, TenantAcme, "Postgres", "orders", map[string]any{
		"users": object{"app": object{}, "Report.Reader": object{}},
	})
}

// InstallDefinition lays or changes the definition of a kind, which is named like the kind in lower case. Without
// credentials it has no block.
func (s *Sandbox) InstallDefinition(ctx context.Context, kind string, credentials map[string]any) error {
	name := strings.ToLower(kind)
	spec := object{
		"application": object{
			"kind": kind, "singular": name, "plural": name + "s",
			"openAPISchema": `{"title": "Chart values", "type": "object"}`,
		},
		"release": object{
			"prefix":   name + "-",
			"chartRef": object{"kind": "ExternalArtifact", "name": name, "namespace": "cozy-system"},
			"labels":   object{"sharding.fluxcd.io/key": "tenants"},
		},
		"secrets": object{"include": []any{}, "exclude": []any{}},
	}
	if credentials != nil {
		spec["credentials"] = credentials
	}
	_, err := s.Apply(ctx, "", object{
		"apiVersion": "cozystack.io/v1alpha1", "kind": "ApplicationDefinition",
		"metadata": object{"name": name}, "spec": spec,
	})
	return err
}

// InstallRelease lays or changes an application as Cozystack does: a HelmRelease named <kind>-<application> with the
// application's values.
func (s *Sandbox) InstallRelease(ctx context.Context, namespace, kind, application string, values map[string]any) (*unstructured.Unstructured, error) {
	name := strings.ToLower(kind)
	return s.Apply(ctx, namespace, object{
		"apiVersion": "helm.toolkit.fluxcd.io/v2", "kind": "HelmRelease",
		"metadata": object{
			"name": name + "-" + application,
			"labels": object{
				"apps.cozystack.io/application.kind":  kind,
				"apps.cozystack.io/application.group": "apps.cozystack.io",
				"apps.cozystack.io/application.name":  application,
			},
		},
		"spec": object{
			"interval":   "5m",
			"maxHistory": int64(5),
			"chartRef":   object{"kind": "ExternalArtifact", "name": name, "namespace": "cozy-system"},
			"valuesFrom": []any{object{"kind": "Secret", "name": "cozystack-values"}},
			"values":     values,
		},
	})
}

// DeleteRelease deletes an application's HelmRelease and waits until it is gone.
func (s *Sandbox) DeleteRelease(ctx context.Context, namespace, name string) error {
	client := s.objects.Resource(HelmReleases).Namespace(namespace)
	if err := client.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return until(ctx, func(ctx context.Context) error {
		left, err := client.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("the HelmRelease %s is still there", name)
		}
		return err
	})
}

// AwaitFirstSight waits until the accounts role has recorded, in a ConfigMap in mintlog's namespace, when it first saw
// the kind's block, and until an application made now is younger than that: its accounts are seeded.
func (s *Sandbox) AwaitFirstSight(ctx context.Context, kind string) error {
	client := s.Kubernetes(ClusterAdmin, 0).CoreV1().ConfigMaps(Namespace)
	return until(ctx, func(ctx context.Context) error {
		record, err := client.Get(ctx, "mintlog-kinds", metav1.GetOptions{})
		if err != nil {
			return err
		}
		seen, err := time.Parse(time.RFC3339, record.Data[kind])
		if err != nil {
			return fmt.Errorf("the kind %s is not recorded in the namespace %s: %w", kind, Namespace, err)
		}
		// Both times are whole seconds, and a tie makes the application the older one.
		if time.Since(seen) < 2*time.Second {
			return fmt.Errorf("the kind %s was first seen a moment ago", kind)
		}
		return nil
	})
}

// AwaitAccounts waits until a namespace has that many account Secrets.
func (s *Sandbox) AwaitAccounts(ctx context.Context, namespace string, count int) error {
	client := s.Kubernetes(ClusterAdmin, 0).CoreV1().Secrets(namespace)
	return until(ctx, func(ctx context.Context) error {
		accounts, err := client.List(ctx, metav1.ListOptions{LabelSelector: "credentials.cozystack.io/account=true"})
		if err == nil && len(accounts.Items) < count {
			err = fmt.Errorf("the namespace %s has %d of %d account Secrets", namespace, len(accounts.Items), count)
		}
		return err
	})
}

// May asks a kube-apiserver whether a person may do something with a resource of credentials.cozystack.io, such as
// "credentials" or "credentials/mint".
func (s *Sandbox) May(ctx context.Context, person string, apiserver int, verb, namespace, resource string) (bool, error) {
	return s.MayIn(ctx, person, apiserver, verb, namespace, "credentials.cozystack.io", resource)
}

// MayIn is May for any API group.
func (s *Sandbox) MayIn(ctx context.Context, person string, apiserver int, verb, namespace, group, resource string) (bool, error) {
	resource, subresource, _ := strings.Cut(resource, "/")
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Namespace: namespace, Group: group, Resource: resource, Subresource: subresource,
		},
	}}
	answer, err := s.Kubernetes(person, apiserver).AuthorizationV1().SelfSubjectAccessReviews().
		Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}
