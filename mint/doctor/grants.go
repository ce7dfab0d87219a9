package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/enrolment"
)

const (
	// grantPrefix begins, and grantLabel marks, the Role and RoleBinding by which the projector is granted the account
	// Secrets of an application.
	grantPrefix = "credentials-"
	grantLabel  = "credentials.cozystack.io/grant"
	// noSecret stands in a grant without Secrets.
	noSecret = "_"
)

// settling is how long an application or a Secret may be there before everything is in step.
const settling = 5 * time.Second

// grantFacts are what the projector is granted, and what it should be.
type grantFacts struct {
	projector rbacv1.Subject
	now       time.Time
	enrolled  map[string]bool // namespaces where the accounts role works
	served    map[string]bool // kinds
	releases  []releaseFacts
	secrets   []secretFacts
	roles     []rbacv1.Role
	bindings  []rbacv1.RoleBinding
}

// lookAtGrants looks twice where something is not in step: applications come and go while it reads.
func (d *Doctor) lookAtGrants(ctx context.Context) []Finding {
	f, unread := d.readGrants(ctx, d.definitions, d.releases, d.secrets)
	if unread != nil {
		return []Finding{*unread}
	}
	findings := judgeGrants(f)
	if !slices.ContainsFunc(findings, func(f Finding) bool { return f.Verdict == Fail }) {
		return findings
	}
	select {
	case <-ctx.Done():
		return findings
	case <-time.After(2 * time.Second):
	}
	again, unread := d.readGrants(ctx,
		func() ([]definitionFacts, error) { return d.readDefinitions(ctx) },
		func() ([]releaseFacts, error) { return d.readReleases(ctx) },
		func() ([]secretFacts, error) { return d.readSecrets(ctx) })
	if unread != nil {
		return findings
	}
	return judgeGrants(again)
}

func (d *Doctor) readGrants(ctx context.Context, definitions func() ([]definitionFacts, error), releases func() ([]releaseFacts, error), secrets func() ([]secretFacts, error)) (grantFacts, *Finding) {
	f := grantFacts{
		projector: rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: d.Identities.Namespace, Name: d.Identities.Projector},
		now:       d.Now(), enrolled: map[string]bool{},
	}
	not := func(err error, right string) (grantFacts, *Finding) {
		finding := unseen(err, right)
		return f, &finding
	}
	all, err := definitions()
	if err != nil {
		return not(err, rightDefinitions)
	}
	f.served = servedKinds(all)
	if f.releases, err = releases(); err != nil {
		return not(err, rightReleases)
	}
	if f.secrets, err = secrets(); err != nil {
		return not(err, rightSecrets)
	}
	roles, err := d.client.RbacV1().Roles(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: grantLabel + "=true"})
	if err != nil {
		return not(err, rightRoles)
	}
	bindings, err := d.client.RbacV1().RoleBindings(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return not(err, rightBindings)
	}
	f.roles, f.bindings = roles.Items, bindings.Items
	for _, b := range f.bindings {
		if b.RoleRef.Kind == "ClusterRole" && b.RoleRef.Name == enrolment.AccountsRole {
			f.enrolled[b.Namespace] = true
		}
	}
	return f, nil
}

func judgeGrants(f grantFacts) []Finding {
	g := f.byName()
	var findings []Finding
	right, names := 0, 0
	for _, r := range f.releases {
		if !f.served[r.kind] || r.leaving || !f.enrolled[r.Namespace] || g.unsettled[r.NamespacedName] || f.young(r.created) {
			continue
		}
		want := slices.Sorted(slices.Values(g.secrets[r.NamespacedName]))
		if problem := g.judge(r.NamespacedName, want, f.projector); problem != "" {
			findings = append(findings, fail("see that the accounts role runs, and its log: it keeps the grants", "%s", problem))
			continue
		}
		right, names = right+1, names+len(want)
	}
	if left := g.left(); len(left) > 0 {
		findings = append(findings, fail("delete them, each RoleBinding before its Role: a binding left behind comes alive when somebody makes a Role of its name", "grants without an application, or without a Role: %s", some(left)))
	}
	if len(g.unlabelled) > 0 {
		findings = append(findings, fail("put the label "+cluster.AccountLabel+"=true back (it takes the break-glass group)", "account Secrets without their label, which nobody can see or mint: %s", some(g.unlabelled)))
	}
	if len(g.orphans) > 0 {
		findings = append(findings, warn("see whether their application is to come back; else delete them (it takes the break-glass group)", "account Secrets without an application: %s", some(g.orphans)))
	}
	return append(findings, good("%d grants name exactly their %d account Secrets", right, names))
}

func (f *grantFacts) young(at time.Time) bool { return f.now.Sub(at) < settling }

// A grantIndex is grantFacts as they are looked up: Roles and RoleBindings by their own name, the rest by the application's.
type grantIndex struct {
	roles     map[types.NamespacedName]rbacv1.Role
	bindings  map[types.NamespacedName]rbacv1.RoleBinding
	releases  map[types.NamespacedName]releaseFacts
	secrets   map[types.NamespacedName][]string // those with their label
	unsettled map[types.NamespacedName]bool     // Secrets have just come, or are going

	unlabelled, orphans []string // Secrets, as namespace/name
}

func (f *grantFacts) byName() *grantIndex {
	g := &grantIndex{
		roles: map[types.NamespacedName]rbacv1.Role{}, bindings: map[types.NamespacedName]rbacv1.RoleBinding{},
		releases: map[types.NamespacedName]releaseFacts{}, secrets: map[types.NamespacedName][]string{},
		unsettled: map[types.NamespacedName]bool{},
	}
	for _, r := range f.roles {
		g.roles[types.NamespacedName{Namespace: r.Namespace, Name: r.Name}] = r
	}
	for _, b := range f.bindings {
		if strings.HasPrefix(b.Name, grantPrefix) && (b.Labels[grantLabel] == "true" || slices.Contains(b.Subjects, f.projector)) {
			g.bindings[types.NamespacedName{Namespace: b.Namespace, Name: b.Name}] = b
		}
	}
	for _, r := range f.releases {
		g.releases[r.NamespacedName] = r
	}
	for _, s := range f.secrets {
		of := types.NamespacedName{Namespace: s.namespace, Name: s.release}
		r, is := g.releases[of]
		switch {
		case s.leaving || f.young(s.created):
			g.unsettled[of] = true
		case !s.labelled && is && f.served[r.kind]:
			g.unlabelled = append(g.unlabelled, s.namespace+"/"+s.name)
		case s.labelled && !is:
			g.orphans = append(g.orphans, s.namespace+"/"+s.name)
		}
		if s.labelled {
			g.secrets[of] = append(g.secrets[of], s.name)
		}
	}
	return g
}

// judge is what is wrong with the grant of a release that has these account Secrets, "" if nothing is.
func (g *grantIndex) judge(release types.NamespacedName, want []string, projector rbacv1.Subject) string {
	name := types.NamespacedName{Namespace: release.Namespace, Name: grantPrefix + release.Name}
	role, is := g.roles[name]
	if !is {
		return fmt.Sprintf("%s has no grant: there is no Role %s, so the projector writes no history there", release, name.Name)
	}
	if problem := judgeGrant(role, want, projector, g.bindings, name); problem != "" {
		return fmt.Sprintf("%s: %s", release, problem)
	}
	return ""
}

// left are the Roles of no application, and the RoleBindings of no Role.
func (g *grantIndex) left() []string {
	var left []string
	for role := range g.roles {
		if _, is := g.releases[types.NamespacedName{Namespace: role.Namespace, Name: strings.TrimPrefix(role.Name, grantPrefix)}]; !is {
			left = append(left, "role "+role.String())
		}
	}
	for binding := range g.bindings {
		if _, is := g.roles[binding]; !is {
			left = append(left, "rolebinding "+binding.String())
		}
	}
	return left
}

// judgeGrant is what is wrong with a grant, "" if it names exactly the Secrets, for the projector alone.
func judgeGrant(role rbacv1.Role, want []string, projector rbacv1.Subject, bindings map[types.NamespacedName]rbacv1.RoleBinding, grant types.NamespacedName) string {
	var named []string
	for _, rule := range role.Rules {
		if !slices.Equal(rule.APIGroups, []string{""}) || !slices.Equal(rule.Resources, []string{"secrets"}) || len(rule.ResourceNames) == 0 ||
			slices.ContainsFunc(rule.Verbs, func(v string) bool { return v != "get" && v != "patch" }) {
			return "the Role " + role.Name + " grants more than account Secrets by name"
		}
		named = append(named, rule.ResourceNames...)
	}
	slices.Sort(named)
	if slices.Equal(named, []string{noSecret}) {
		named = nil
	}
	if missing := without(want, named); len(missing) > 0 {
		return fmt.Sprintf("the Role %s does not name %s", role.Name, some(missing))
	}
	if more := without(named, want); len(more) > 0 {
		return fmt.Sprintf("the Role %s names what is no account Secret of it: %s", role.Name, some(more))
	}
	if len(want) == 0 {
		return ""
	}
	binding, is := bindings[grant]
	switch {
	case !is:
		return "there is no RoleBinding " + grant.Name + " for the projector"
	case !slices.Equal(binding.Subjects, []rbacv1.Subject{projector}) || binding.RoleRef.Kind != "Role" || binding.RoleRef.Name != grant.Name:
		return fmt.Sprintf("the RoleBinding %s is not for the ServiceAccount %s/%s alone", grant.Name, projector.Namespace, projector.Name)
	}
	return ""
}

func without(list, others []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(others, s) })
}
