// Package chart holds the tests of what is installed on a cluster: the chart, its admission policies, enrolment. Its own
// code says what a manifest lets its identities reach.
package chart

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Rights are the roles and bindings in manifests.
type Rights struct {
	ClusterRoles map[string]rbacv1.ClusterRole
	Roles        []rbacv1.Role
	Everywhere   []rbacv1.ClusterRoleBinding
	Bindings     []rbacv1.RoleBinding
}

// Read adds what stands in a YAML text of several documents.
func (r *Rights) Read(manifest []byte) error {
	if r.ClusterRoles == nil {
		r.ClusterRoles = map[string]rbacv1.ClusterRole{}
	}
	return documents(manifest, func(kind metav1.TypeMeta, document []byte) error {
		switch kind.Kind {
		case "ClusterRole":
			var role rbacv1.ClusterRole
			if err := yaml.UnmarshalStrict(document, &role); err != nil {
				return err
			}
			r.ClusterRoles[role.Name] = role
		case "Role":
			r.Roles = append(r.Roles, rbacv1.Role{})
			return yaml.UnmarshalStrict(document, &r.Roles[len(r.Roles)-1])
		case "ClusterRoleBinding":
			r.Everywhere = append(r.Everywhere, rbacv1.ClusterRoleBinding{})
			return yaml.UnmarshalStrict(document, &r.Everywhere[len(r.Everywhere)-1])
		case "RoleBinding":
			r.Bindings = append(r.Bindings, rbacv1.RoleBinding{})
			return yaml.UnmarshalStrict(document, &r.Bindings[len(r.Bindings)-1])
		}
		return nil
	})
}

// documents calls f for each document of a YAML text that has a kind.
func documents(manifest []byte, f func(kind metav1.TypeMeta, document []byte) error) error {
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(document, &kind); err != nil {
			return err
		}
		if kind.Kind == "" {
			continue
		}
		if err := f(kind, document); err != nil {
			return fmt.Errorf("%s: %w", kind.Kind, err)
		}
	}
}

// SecretsEverywhere is why somebody reaches Secrets in the whole cluster: a role that does is bound cluster-wide, or
// bears a label by which roles that we do not see collect it. A role that is bound and not here counts as one that does.
func (r *Rights) SecretsEverywhere() []string {
	var why []string
	for _, binding := range r.Everywhere {
		role, ok := r.ClusterRoles[binding.RoleRef.Name]
		switch {
		case !ok:
			why = append(why, fmt.Sprintf("%s binds %s, which is not in these manifests", binding.Name, binding.RoleRef.Name))
		case ReachesSecrets(role):
			why = append(why, fmt.Sprintf("%s binds %s, which reaches Secrets", binding.Name, role.Name))
		}
	}
	for _, role := range r.ClusterRoles {
		if collected(role) && ReachesSecrets(role) {
			why = append(why, fmt.Sprintf("%s reaches Secrets and is put into roles that are not in these manifests", role.Name))
		}
	}
	slices.Sort(why)
	return why
}

// collected reports whether a role may be put into others by its labels: by any but those that Helm sets.
func collected(role rbacv1.ClusterRole) bool {
	for label := range role.Labels {
		if !slices.Contains([]string{
			"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by",
			"app.kubernetes.io/component", "app.kubernetes.io/part-of", "helm.sh/chart",
		}, label) {
			return true
		}
	}
	return false
}

// ReachesSecrets says whether a role lets its holder read or write a Secret, or give itself a role that does.
func ReachesSecrets(role rbacv1.ClusterRole) bool {
	if role.AggregationRule != nil {
		return true // whatever somebody labels becomes part of it
	}
	return slices.ContainsFunc(role.Rules, func(rule rbacv1.PolicyRule) bool {
		covers := func(group string, resources, verbs []string) bool {
			meets := func(have, want []string) bool {
				return slices.ContainsFunc(have, func(one string) bool { return one == "*" || slices.Contains(want, one) })
			}
			return meets(rule.APIGroups, []string{group}) && meets(rule.Resources, resources) &&
				(len(verbs) == 0 || meets(rule.Verbs, verbs))
		}
		const rbac = "rbac.authorization.k8s.io"
		return covers("", []string{"secrets", "secrets/*"}, nil) ||
			covers("", []string{"serviceaccounts/token", "*/token"}, []string{"create"}) ||
			slices.Contains(rule.Verbs, "impersonate") ||
			covers(rbac, []string{"roles", "clusterroles"}, []string{"bind", "escalate"}) ||
			covers(rbac, []string{"roles", "clusterroles", "rolebindings", "clusterrolebindings"},
				[]string{"create", "update", "patch"})
	})
}
