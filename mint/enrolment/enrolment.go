// Package enrolment lets mintlog into namespaces and out of them again, with an administrator's own rights: a RoleBinding
// each for the mint server and the accounts role. Nothing of mintlog holds the right to do this.
package enrolment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/mintlog/mintlog/mint/cluster"
)

// The ClusterRoles that are bound in enrolled namespaces. The RoleBindings are named like them.
const (
	MintRole     = "mintlog-mint"
	AccountsRole = "mintlog-accounts"
)

// grantPrefix begins the names of the Roles and RoleBindings by which the accounts role grants the projector the account
// Secrets of an application.
const grantPrefix = "credentials-"

// settle is how long a kube-apiserver may take to see that a binding is gone: until then the accounts role may still
// write a grant.
const settle = time.Second

// Identities are the service accounts of an installation.
type Identities struct {
	Namespace string // mintlog's own
	Mint      string
	Accounts  string
	Projector string
}

// An Enroller works with the rights of its client.
type Enroller struct {
	Client     kubernetes.Interface
	Identities Identities
	DryRun     bool // kube-apiserver is asked, and stores nothing
}

// A Change is what was done, or in a dry run would have been.
type Change struct {
	Namespace string
	Object    string // such as "rolebinding mintlog-mint"
	Done      string // created, updated, replaced, unchanged, deleted
}

// Check says what is missing of the installation that namespaces are enrolled in.
func (e *Enroller) Check(ctx context.Context) error {
	var missing []error
	for _, name := range []string{MintRole, AccountsRole} {
		_, err := e.Client.RbacV1().ClusterRoles().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			err = fmt.Errorf("there is no ClusterRole %s: install mintlog first", name)
		} else if err != nil {
			err = fmt.Errorf("read the ClusterRole %s: %w", name, err)
		}
		missing = append(missing, err)
	}
	for _, name := range []string{e.Identities.Mint, e.Identities.Accounts} {
		_, err := e.Client.CoreV1().ServiceAccounts(e.Identities.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			err = fmt.Errorf("there is no ServiceAccount %s in the namespace %s: mintlog is installed in another namespace, or under other names", name, e.Identities.Namespace)
		} else if err != nil {
			err = fmt.Errorf("read the ServiceAccount %s: %w", name, err)
		}
		missing = append(missing, err)
	}
	return errors.Join(missing...)
}

// Enroll binds both roles in a namespace. What is there already and right is left as it is.
func (e *Enroller) Enroll(ctx context.Context, namespace string) ([]Change, error) {
	is, err := e.namespace(ctx, namespace)
	if err != nil {
		return nil, err
	}
	if is.DeletionTimestamp != nil {
		return nil, fmt.Errorf("the namespace %s is being deleted", namespace)
	}
	var changes []Change
	for _, b := range []struct{ role, account string }{{MintRole, e.Identities.Mint}, {AccountsRole, e.Identities.Accounts}} {
		done, err := e.bind(ctx, namespace, b.role, b.account)
		if apierrors.IsForbidden(err) {
			return changes, fmt.Errorf("bind the ClusterRole %s in %s: %w (it takes the right to write RoleBindings there, and to bind the role or to hold what it grants)", b.role, namespace, err)
		}
		if err != nil {
			return changes, fmt.Errorf("bind the ClusterRole %s in %s: %w", b.role, namespace, err)
		}
		changes = append(changes, Change{Namespace: namespace, Object: "rolebinding " + b.role, Done: done})
	}
	return changes, nil
}

func (e *Enroller) namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	is, err := e.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no namespace %s", name)
	}
	if err != nil {
		return nil, fmt.Errorf("read the namespace %s: %w", name, err)
	}
	return is, nil
}

func (e *Enroller) bind(ctx context.Context, namespace, role, account string) (done string, err error) {
	client := e.Client.RbacV1().RoleBindings(namespace)
	want := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{e.subject(account)},
	}
	is, err := client.Get(ctx, role, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = client.Create(ctx, want, metav1.CreateOptions{DryRun: e.dryRun()})
		return "created", err
	case err != nil:
		return "", err
	case is.RoleRef != want.RoleRef: // which cannot be changed
		if err := e.unbind(ctx, *is); err != nil || e.DryRun {
			return "replaced", err
		}
		_, err = client.Create(ctx, want, metav1.CreateOptions{})
		return "replaced", err
	case slices.Equal(is.Subjects, want.Subjects):
		return "unchanged", nil
	}
	next := is.DeepCopy()
	next.Subjects = want.Subjects
	_, err = client.Update(ctx, next, metav1.UpdateOptions{DryRun: e.dryRun()})
	return "updated", err
}

func (e *Enroller) subject(account string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: e.Identities.Namespace, Name: account}
}

func (e *Enroller) dryRun() []string {
	if e.DryRun {
		return []string{metav1.DryRunAll}
	}
	return nil
}

// Unenroll takes both roles out of a namespace, and then the grants there, each by its binding first: the accounts role,
// which keeps them, has lost the right to do it. The account Secrets stay.
func (e *Enroller) Unenroll(ctx context.Context, namespace string) ([]Change, error) {
	if _, err := e.namespace(ctx, namespace); err != nil {
		return nil, err
	}
	var changes []Change
	bindings, err := e.Client.RbacV1().RoleBindings(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the RoleBindings of %s: %w", namespace, err)
	}
	for _, role := range []string{AccountsRole, MintRole} {
		for _, b := range bindings.Items {
			if !binds(b, role) {
				continue
			}
			if err := e.unbind(ctx, b); err != nil {
				return changes, err
			}
			changes = append(changes, Change{Namespace: namespace, Object: "rolebinding " + b.Name, Done: "deleted"})
		}
	}
	return e.sweep(ctx, namespace, changes)
}

// sweep deletes grants until none has come for as long as a kube-apiserver may still let the accounts role write one.
func (e *Enroller) sweep(ctx context.Context, namespace string, changes []Change) ([]Change, error) {
	for first := true; ; first = false {
		deleted, err := e.deleteGrants(ctx, namespace)
		changes = append(changes, deleted...)
		if err != nil || e.DryRun || len(deleted) == 0 && !first {
			return changes, err
		}
		select {
		case <-ctx.Done():
			return changes, ctx.Err()
		case <-time.After(settle):
		}
	}
}

func (e *Enroller) deleteGrants(ctx context.Context, namespace string) ([]Change, error) {
	var changes []Change
	bindings, err := e.Client.RbacV1().RoleBindings(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the RoleBindings of %s: %w", namespace, err)
	}
	for _, b := range bindings.Items {
		if !e.isGrantBinding(b) {
			continue
		}
		if err := e.unbind(ctx, b); err != nil {
			return changes, err
		}
		changes = append(changes, Change{Namespace: namespace, Object: "rolebinding " + b.Name, Done: "deleted"})
	}
	roles, err := e.Client.RbacV1().Roles(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return changes, fmt.Errorf("list the Roles of %s: %w", namespace, err)
	}
	for _, r := range roles.Items {
		if !isGrant(r) {
			continue
		}
		err := e.Client.RbacV1().Roles(namespace).Delete(ctx, r.Name, metav1.DeleteOptions{
			Preconditions: metav1.NewUIDPreconditions(string(r.UID)), DryRun: e.dryRun(),
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return changes, fmt.Errorf("delete the Role %s of %s: %w", r.Name, namespace, err)
		}
		changes = append(changes, Change{Namespace: namespace, Object: "role " + r.Name, Done: "deleted"})
	}
	return changes, nil
}

func (e *Enroller) unbind(ctx context.Context, b rbacv1.RoleBinding) error {
	err := e.Client.RbacV1().RoleBindings(b.Namespace).Delete(ctx, b.Name, metav1.DeleteOptions{
		Preconditions: metav1.NewUIDPreconditions(string(b.UID)), DryRun: e.dryRun(),
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the RoleBinding %s of %s: %w", b.Name, b.Namespace, err)
	}
	return nil
}

func binds(b rbacv1.RoleBinding, role string) bool {
	return b.RoleRef.Kind == "ClusterRole" && b.RoleRef.Name == role
}

// isGrantBinding reports whether a RoleBinding gives a grant to the projector and to nobody else.
func (e *Enroller) isGrantBinding(b rbacv1.RoleBinding) bool {
	return strings.HasPrefix(b.Name, grantPrefix) && b.RoleRef.Kind == "Role" && b.RoleRef.Name == b.Name &&
		len(b.Subjects) > 0 && !slices.ContainsFunc(b.Subjects, func(s rbacv1.Subject) bool { return s != e.subject(e.Identities.Projector) })
}

// isGrant reports whether a Role has the name and the record of a grant, which nobody but the accounts role may write.
func isGrant(r rbacv1.Role) bool {
	return strings.HasPrefix(r.Name, grantPrefix) && r.Annotations["credentials.cozystack.io/found"] != ""
}

// Remaining is how many account Secrets a namespace has.
func (e *Enroller) Remaining(ctx context.Context, namespace string) (int, error) {
	secrets, err := e.Client.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{LabelSelector: cluster.AccountLabel + "=true"})
	if err != nil {
		return 0, fmt.Errorf("count the account Secrets of %s: %w", namespace, err)
	}
	return len(secrets.Items), nil
}

// An Enrolment is what is bound in a namespace.
type Enrolment struct {
	Namespace string
	Mint      bool // the mint server may work there
	Accounts  bool // and the accounts role
	// Grants is how many applications' account Secrets the projector may read and patch there.
	Grants int
	// Others are subjects that hold one of the roles and are not mintlog's.
	Others []string
}

// Enrolled lists the namespaces where somebody holds one of the roles, by name.
func (e *Enroller) Enrolled(ctx context.Context) ([]Enrolment, error) {
	bindings, err := e.Client.RbacV1().RoleBindings(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the RoleBindings of all namespaces: %w", err)
	}
	found := map[string]*Enrolment{}
	in := func(namespace string) *Enrolment {
		if found[namespace] == nil {
			found[namespace] = &Enrolment{Namespace: namespace}
		}
		return found[namespace]
	}
	for _, b := range bindings.Items {
		switch {
		case binds(b, MintRole):
			n := in(b.Namespace)
			e.holders(n, b, e.Identities.Mint, &n.Mint)
		case binds(b, AccountsRole):
			n := in(b.Namespace)
			e.holders(n, b, e.Identities.Accounts, &n.Accounts)
		case e.isGrantBinding(b):
			in(b.Namespace).Grants++
		}
	}
	var all []Enrolment
	for _, n := range found {
		all = append(all, *n)
	}
	slices.SortFunc(all, func(a, b Enrolment) int { return strings.Compare(a.Namespace, b.Namespace) })
	return all, nil
}

func (e *Enroller) holders(n *Enrolment, b rbacv1.RoleBinding, account string, ours *bool) {
	for _, s := range b.Subjects {
		if s == e.subject(account) {
			*ours = true
			continue
		}
		n.Others = append(n.Others, strings.ToLower(s.Kind)+" "+strings.TrimPrefix(s.Namespace+"/"+s.Name, "/"))
	}
}
