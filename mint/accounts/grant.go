package accounts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mintlog/mintlog/mint/account"
	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
)

const (
	// foundAnnotation holds the JSON list of the logins of an application that are never seeded.
	foundAnnotation = "credentials.cozystack.io/found"
	// sightAnnotation holds the first sight of the kind's block under which that list was made.
	sightAnnotation = "credentials.cozystack.io/first-sight"
	// valuesAnnotation holds the JSON of a valuesRecord, if there is something to remember.
	valuesAnnotation = "credentials.cozystack.io/values"
	// grantLabel is "true" on the Role and the RoleBinding of each grant: what lists them all.
	grantLabel = "credentials.cozystack.io/grant"
	// noSecret is what no Secret can be called.
	noSecret = "_"
)

// grantPrefix begins the name of a grant; that of its HelmRelease follows.
const grantPrefix = "credentials-"

// grantName names the Role, which also bears the application's record, and the RoleBinding.
func grantName(release *cluster.Release) string { return grantPrefix + release.Name }

// A grant is what the API server has of an application's Role: what lets the projector read and patch its account
// Secrets by name.
type grant struct {
	role    *rbacv1.Role // nil if there is none, or it is of an earlier application
	record  record
	foreign bool // the Role of that name is not mintlog's, or somebody may have bound it who could not bind mintlog's
}

// readGrant asks the API server, and not for what its cache has: a record that a cache did not have yet would be taken
// for none.
func (a *Accounts) readGrant(ctx context.Context, release *cluster.Release) (grant, error) {
	role, err := a.Client.RbacV1().Roles(release.Namespace).Get(ctx, grantName(release), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return grant{}, nil
	}
	if err != nil {
		return grant{}, fmt.Errorf("read the grant: %w", err)
	}
	switch {
	case !guarded(role, release):
		return grant{foreign: true}, nil
	case account.Owned(role, release):
		return grant{role: role, record: readRecord(role)}, nil
	case ofEarlierApplication(role, release):
		return grant{}, a.removeGrant(ctx, role)
	}
	return grant{foreign: true}, nil
}

// rulesFor are the rules of a grant for these Secrets. A rule without names would grant every Secret, and a Role without
// rules could be bound by anybody, before it gains some: where there are no Secrets it names one that cannot exist.
func rulesFor(names []string) []rbacv1.PolicyRule {
	if len(names) == 0 {
		names = []string{noSecret}
	}
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: names, Verbs: []string{"get", "patch"}}}
}

// guarded reports whether a Role grants at least what the application's grant does at its least: then nobody could write
// or bind it who does not hold that himself. Of one that grants less, or something else, anybody may be waiting for more.
func guarded(role *rbacv1.Role, release *cluster.Release) bool {
	other := func(name string) bool {
		of, _, ok := definition.SplitSecretName(name)
		return name != noSecret && (!ok || of != release.Name)
	}
	return slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.APIGroups, "") && slices.Contains(r.Resources, "secrets") &&
			slices.Contains(r.Verbs, "get") && slices.Contains(r.Verbs, "patch") && !slices.ContainsFunc(r.ResourceNames, other)
	})
}

// readRecord reads a record. One that cannot be read is none: then all accounts of an older application are found, and
// what was put into its values counts as never put there.
func readRecord(role *rbacv1.Role) record {
	var r record
	if json.Unmarshal([]byte(role.Annotations[foundAnnotation]), &r.found) != nil {
		return record{}
	}
	r.sight, _ = time.Parse(time.RFC3339, role.Annotations[sightAnnotation])
	if json.Unmarshal([]byte(role.Annotations[valuesAnnotation]), &r.values) != nil {
		r.values = valuesRecord{}
	}
	return r
}

// removeGrant takes a grant back, binding first: a binding without its Role comes alive with the next Role of its name.
func (a *Accounts) removeGrant(ctx context.Context, role *rbacv1.Role) error {
	if err := a.unbind(ctx, role.Namespace, role.Name); err != nil {
		return err
	}
	uid := role.UID
	err := a.Client.RbacV1().Roles(role.Namespace).Delete(ctx, role.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the Role of a grant: %w", err)
	}
	a.metrics.wrote("role", "delete")
	return nil
}

func (a *Accounts) unbind(ctx context.Context, namespace, name string) error {
	err := a.Client.RbacV1().RoleBindings(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("take the grant back: %w", err)
	}
	a.metrics.wrote("rolebinding", "delete")
	return nil
}

// writeGrant brings Role and RoleBinding in step with the record and the Secrets' names. Without accounts there is no
// binding.
func (a *Accounts) writeGrant(ctx context.Context, release *cluster.Release, g grant, r record, names []string) error {
	if len(names) == 0 && g.role != nil && !equality.Semantic.DeepEqual(g.role.Rules, rulesFor(nil)) {
		if err := a.unbind(ctx, release.Namespace, grantName(release)); err != nil {
			return err
		}
	}
	if err := a.writeRole(ctx, release, g.role, r, names); err != nil {
		return fmt.Errorf("write the grant's Role: %w", err)
	}
	if len(names) == 0 {
		return nil
	}
	if err := a.bind(ctx, release, g.role == nil); err != nil {
		return fmt.Errorf("write the grant's RoleBinding: %w", err)
	}
	return nil
}

func (a *Accounts) writeRole(ctx context.Context, release *cluster.Release, is *rbacv1.Role, r record, names []string) error {
	client := a.Client.RbacV1().Roles(release.Namespace)
	next := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: release.Namespace, Name: grantName(release)}}
	if is != nil {
		next = is.DeepCopy()
	}
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	found, err := json.Marshal(append([]string{}, r.found...))
	if err != nil {
		return err
	}
	values, err := json.Marshal(r.values)
	if err != nil {
		return err
	}
	next.Labels = grantLabelled(next.Labels)
	next.Annotations[foundAnnotation] = string(found)
	next.Annotations[sightAnnotation] = r.sight.UTC().Format(time.RFC3339)
	delete(next.Annotations, valuesAnnotation)
	if !r.values.isZero() {
		next.Annotations[valuesAnnotation] = string(values)
	}
	if !account.Owned(next, release) {
		next.OwnerReferences = append(next.OwnerReferences, account.Owner(release))
	}
	next.Rules = rulesFor(names)
	if validation.ValidateAnnotationsSize(next.Annotations) != nil {
		return &recordTooLargeError{logins: len(r.found)}
	}
	switch {
	case is == nil:
		if _, err = client.Create(ctx, next, metav1.CreateOptions{}); err == nil || apierrors.IsAlreadyExists(err) {
			a.settled.hasRole(types.NamespacedName{Namespace: release.Namespace, Name: release.Name})
		}
	case equality.Semantic.DeepEqual(is, next):
		return nil
	default:
		_, err = client.Update(ctx, next, metav1.UpdateOptions{})
	}
	if err == nil {
		a.metrics.wrote("role", "write")
	}
	return raced(err)
}

// A recordTooLargeError says that an application has more logins that are never seeded than a Role's annotations hold.
type recordTooLargeError struct{ logins int }

func (e *recordTooLargeError) Error() string {
	return fmt.Sprintf("%d logins that ran before its kind had a block, or have a password elsewhere, do not fit into its annotations", e.logins)
}

// withoutGrant adds to the problems why the grant cannot be written, if trying again alone is of no use.
func (p *plan) withoutGrant(name string, err error) error {
	why := ""
	switch tooLarge := (&recordTooLargeError{}); {
	case errors.As(err, &tooLarge):
		why = tooLarge.Error()
	case apierrors.IsInvalid(err), apierrors.IsRequestEntityTooLargeError(err):
		why = quiet(err).Error()
	default:
		return err
	}
	p.problems = append(p.problems, grantRefused(name, why))
	return reportedError{err}
}

// bind gives the Role to the projector and to nobody else. Where the Role is new its binding commonly is as well: then
// nobody is asked for it first.
func (a *Accounts) bind(ctx context.Context, release *cluster.Release, isNew bool) error {
	client := a.Client.RbacV1().RoleBindings(release.Namespace)
	want := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: release.Namespace, Name: grantName(release), OwnerReferences: []metav1.OwnerReference{account.Owner(release)},
			Labels: grantLabelled(nil),
		},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: grantName(release)},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: a.Projector, Namespace: a.Namespace}},
	}
	create := func() error {
		_, err := client.Create(ctx, want, metav1.CreateOptions{})
		if err == nil {
			a.metrics.wrote("rolebinding", "write")
		}
		return err
	}
	if isNew {
		if err := create(); !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	is, err := client.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return raced(create())
	case err != nil:
		return err
	case is.RoleRef != want.RoleRef: // which cannot be changed
		return errors.Join(a.unbind(ctx, release.Namespace, want.Name), errNotYet)
	case account.Owned(is, release) && slices.Equal(is.Subjects, want.Subjects) && is.Labels[grantLabel] == "true":
		return nil
	default:
		next := is.DeepCopy()
		next.Labels = grantLabelled(next.Labels)
		next.Subjects, next.OwnerReferences = want.Subjects, want.OwnerReferences
		_, err = client.Update(ctx, next, metav1.UpdateOptions{})
	}
	if err == nil {
		a.metrics.wrote("rolebinding", "write")
	}
	return raced(err)
}

// grantLabelled are labels, and the one of a grant.
func grantLabelled(labels map[string]string) map[string]string {
	if labels == nil {
		labels = map[string]string{}
	}
	labels[grantLabel] = "true"
	return labels
}

// raced tells that a write came too late for another's.
func raced(err error) error {
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		return fmt.Errorf("another has just written it: %w", errNotYet)
	}
	return err
}
