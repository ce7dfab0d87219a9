package accounts

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// granted are the applications whose grants have been seen in place, by namespace.
type granted struct {
	mu sync.Mutex
	of map[string]map[string]bool
}

// add remembers an application, and reports whether it is the first of its namespace.
func (m *granted) add(name types.NamespacedName) (first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of[name.Namespace] == nil {
		m.of[name.Namespace] = map[string]bool{}
		first = true
	}
	m.of[name.Namespace][name.Name] = true
	return first
}

func (m *granted) has(name types.NamespacedName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.of[name.Namespace][name.Name]
}

func (m *granted) remove(name types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.of[name.Namespace], name.Name)
}

// forget forgets the applications of a namespace, and returns them.
func (m *granted) forget(namespace string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := slices.Collect(maps.Keys(m.of[namespace]))
	delete(m.of, namespace)
	return names
}

// one is any application of a namespace.
func (m *granted) one(namespace string) (name string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name = range m.of[namespace] {
		return name, true
	}
	return "", false
}

// inPlace remembers that an application has its grant. With the first of a namespace its grants begin to be reviewed.
func (a *Accounts) inPlace(name types.NamespacedName) {
	if a.granted.add(name) {
		a.lanes.quick.queue.Add(key{swept: name.Namespace})
		a.lanes.quick.queue.AddAfter(key{reviewed: name.Namespace}, closeInspection)
	}
}

// review asks for any one grant of a namespace. When a namespace is taken out all its grants are, and nobody tells:
// kube-apiserver keeps the watch of its Secrets open for up to ten minutes, so one that is let in again before then was
// never found unreadable. Then everything in it is looked at anew.
func (a *Accounts) review(ctx context.Context, namespace string) (time.Duration, error) {
	if !a.Cluster.Readable(namespace) {
		for _, name := range a.granted.forget(namespace) { // it wakes us when it is enrolled
			a.settled.forget(types.NamespacedName{Namespace: namespace, Name: name})
		}
		return 0, nil
	}
	name, ok := a.granted.one(namespace)
	if !ok {
		a.granted.forget(namespace) // it begins again with the next application
		return 0, nil
	}
	application := types.NamespacedName{Namespace: namespace, Name: name}
	_, err := a.Client.RbacV1().Roles(namespace).Get(ctx, grantPrefix+name, metav1.GetOptions{})
	switch release, there := a.Cluster.Release(namespace, name); {
	case err == nil, apierrors.IsForbidden(err): // the namespace is out, and may be let in again
		return closeInspection, nil
	case !apierrors.IsNotFound(err):
		return 0, fmt.Errorf("look whether the grants are still there: %w", err)
	case !there || release.Deleting: // it has taken its grant along
		a.granted.remove(application)
		return time.Second, nil
	}
	for _, name := range a.granted.forget(namespace) {
		application.Name = name
		a.settled.forget(application)
		a.lanes.quick.queue.Add(key{application: application})
	}
	return 0, nil
}

// sweep takes back the grants of a namespace whose applications went while nobody looked.
func (a *Accounts) sweep(ctx context.Context, namespace string) error {
	if !a.Cluster.Readable(namespace) {
		return nil
	}
	roles, err := a.Client.RbacV1().Roles(namespace).List(ctx, metav1.ListOptions{LabelSelector: grantLabel + "=true"})
	if apierrors.IsForbidden(err) {
		return nil // the namespace is out
	}
	if err != nil {
		return fmt.Errorf("list the grants: %w", err)
	}
	for _, role := range roles.Items {
		name, ok := strings.CutPrefix(role.Name, grantPrefix)
		if _, there := a.Cluster.Release(namespace, name); !ok || there {
			continue
		}
		application := types.NamespacedName{Namespace: namespace, Name: name}
		err := a.takeBack(ctx, application)
		a.settled.forget(application)
		a.lanes.quick.queue.Add(key{application: application}) // one of that name may have come meanwhile, and lost its binding
		if err != nil {
			return err
		}
	}
	return nil
}

// takeBack takes the grant of an application that is gone, binding first. Garbage collection would take both in either
// order, and neither if the application was deleted alone (--cascade=orphan). What it leaves for a moment gives nobody
// anything: the binding is the projector's alone, and whoever could put a Role under it could bind the projector himself;
// a Role is bound by nobody who does not hold what it grants. But what stays would be read by the projector for ever.
func (a *Accounts) takeBack(ctx context.Context, name types.NamespacedName) error {
	role, err := a.Client.RbacV1().Roles(name.Namespace).Get(ctx, grantPrefix+name.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) { // or the namespace is out, and its grants with it
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the grant of an application that is gone: %w", err)
	}
	if !recorded(role) {
		return nil // it is not mintlog's
	}
	_, err = a.Cluster.HelmReleases(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		return nil // it is there still, and has lost the labels of an application
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("look whether an application is gone: %w", err)
	}
	return a.removeGrant(ctx, role)
}

// recorded reports whether a Role has the record of an application, which nobody but the accounts role may write.
func recorded(role *rbacv1.Role) bool { return role.Annotations[foundAnnotation] != "" }

// gone is what is done when an application is no longer there.
func (a *Accounts) gone(ctx context.Context, name types.NamespacedName) error {
	if !a.granted.has(name) {
		return nil
	}
	if err := a.takeBack(ctx, name); err != nil {
		return err
	}
	a.granted.remove(name)
	return nil
}
