package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/mintlog/mintlog/mint/cluster"
)

// clusterSubjects are a cluster's definitions with their applications, both by name.
func (f *checkFlags) clusterSubjects(ctx context.Context) ([]checkSubject, error) {
	c, err := administrator(f.kubeconfig, f.context, "mintlog-definitions")
	if err != nil {
		return nil, err
	}
	c.QPS = -1
	objects, err := dynamic.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(protobuf(c))
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	definitions, err := list(ctx, objects, cluster.DefinitionResource, "")
	if err != nil {
		return nil, err
	}
	releases, err := list(ctx, objects, cluster.ReleaseResource, cluster.KindLabel)
	if err != nil {
		return nil, err
	}
	byKind := map[string][]*cluster.Release{}
	for _, u := range releases {
		r := cluster.ReadRelease(u)
		byKind[r.Kind] = append(byKind[r.Kind], r)
	}
	secrets := &accountSecrets{client: client, known: map[string]accountUsernames{}}
	var subjects []checkSubject
	for _, u := range definitions {
		d := cluster.ReadDefinition(u)
		subjects = append(subjects, checkSubject{definition: d, releases: byKind[d.Kind], recorded: secrets.recorded})
	}
	return subjects, nil
}

// list is all of a resource, sorted by namespace and name.
func list(ctx context.Context, objects dynamic.Interface, resource schema.GroupVersionResource, selector string) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	err := pager.New(func(ctx context.Context, o metav1.ListOptions) (apiruntime.Object, error) {
		return objects.Resource(resource).List(ctx, o)
	}).EachListItem(ctx, metav1.ListOptions{LabelSelector: selector}, func(o apiruntime.Object) error {
		all = append(all, o.(*unstructured.Unstructured))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", resource.Resource, err)
	}
	slices.SortFunc(all, func(a, b *unstructured.Unstructured) int {
		return strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
	})
	return all, nil
}

// accountSecrets are the usernames of account Secrets, of each namespace listed once. What else is in them is not kept.
type accountSecrets struct {
	client kubernetes.Interface
	known  map[string]accountUsernames // by namespace
}

type accountUsernames struct {
	byName map[string]string
	err    error
}

func (a *accountSecrets) recorded(ctx context.Context, namespace, secret string) (string, bool, error) {
	usernames, ok := a.known[namespace]
	if !ok {
		usernames.byName, usernames.err = a.list(ctx, namespace)
		a.known[namespace] = usernames
	}
	username, ok := usernames.byName[secret]
	return username, ok, usernames.err
}

func (a *accountSecrets) list(ctx context.Context, namespace string) (map[string]string, error) {
	secrets, err := a.client.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{LabelSelector: cluster.AccountLabel + "=true"})
	if err != nil {
		return nil, fmt.Errorf("kube-apiserver answered %s", apierrors.ReasonForError(err))
	}
	usernames := map[string]string{}
	for _, s := range secrets.Items {
		usernames[s.Name] = string(s.Data[corev1.BasicAuthUsernameKey])
	}
	return usernames, nil
}
