package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/pager"

	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/mint/enrolment"
	"github.com/mintlog/mintlog/store/history"
	"github.com/mintlog/mintlog/store/ledger"
)

const (
	// grantPrefix begins, and grantLabel marks, the Role and RoleBinding by which the projector is granted the account
	// Secrets of an application.
	grantPrefix = "credentials-"
	grantLabel  = "credentials.cozystack.io/grant"
	// noSecret stands in a grant without Secrets.
	noSecret = "_"
	// kindsRecord is where the accounts role notes when it first saw the block of a kind.
	kindsRecord = "mintlog-kinds"
)

// shown is how many objects are named where many are alike.
const shown = 5

// settling is how long an application or a Secret may be there before everything is in step.
const settling = 5 * time.Second

// some are the first of a list in words.
func some(list []string) string {
	slices.Sort(list)
	if len(list) <= shown {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:shown], ", "), len(list)-shown)
}

// definitionFacts are one ApplicationDefinition.
type definitionFacts struct {
	name, kind string
	hasBlock   bool
	err        error // why its kind is not served
}

func (d *Doctor) readDefinitions(ctx context.Context) ([]definitionFacts, error) {
	list, err := d.objects.Resource(cluster.DefinitionResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var all []definitionFacts
	for i := range list.Items {
		is := cluster.ReadDefinition(&list.Items[i])
		all = append(all, definitionFacts{name: is.Name, kind: is.Kind, hasBlock: is.HasBlock, err: is.Err})
	}
	return all, nil
}

const rightDefinitions = "list applicationdefinitions.cozystack.io"

func (d *Doctor) lookAtDefinitions(ctx context.Context) []Finding {
	definitions, err := d.definitions()
	if err != nil {
		return []Finding{unseen(err, rightDefinitions)}
	}
	record, err := d.client.CoreV1().ConfigMaps(d.Identities.Namespace).Get(ctx, kindsRecord, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		record, err = &corev1.ConfigMap{}, nil
	}
	if err != nil {
		return append(judgeDefinitions(definitions, nil), unseen(err, "get the configmap "+d.Identities.Namespace+"/"+kindsRecord))
	}
	if record.Data == nil {
		record.Data = map[string]string{}
	}
	return judgeDefinitions(definitions, record.Data)
}

// servedKinds are the kinds whose applications have accounts.
func servedKinds(definitions []definitionFacts) map[string]bool {
	served := map[string]bool{}
	for kind, names := range byKind(definitions) {
		served[kind] = len(names) == 1 && names[0].hasBlock && names[0].err == nil
	}
	return served
}

func byKind(definitions []definitionFacts) map[string][]definitionFacts {
	kinds := map[string][]definitionFacts{}
	for _, f := range definitions {
		kinds[f.kind] = append(kinds[f.kind], f)
	}
	return kinds
}

// judgeDefinitions wants every kind with a block to be served, and to be noted by the accounts role. Sights are nil where
// they could not be read.
func judgeDefinitions(definitions []definitionFacts, sights map[string]string) []Finding {
	var findings []Finding
	var served, unnoted []string
	kinds := byKind(definitions)
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		var names []string
		hasBlock := false
		for _, f := range kinds[kind] {
			names = append(names, f.name)
			hasBlock = hasBlock || f.hasBlock
			if f.err != nil {
				findings = append(findings, fail("correct the block; mintlog definitions check FILE tells beforehand", "the kind %s is not served, by the definition %s: %s", kind, f.name, f.err))
			}
		}
		switch {
		case !hasBlock:
		case len(names) > 1:
			findings = append(findings, fail("leave one of them", "the kind %s is not served: several definitions are of it: %s", kind, some(names)))
		case kinds[kind][0].err == nil:
			served = append(served, kind)
			if sights != nil && sights[kind] == "" {
				unnoted = append(unnoted, kind)
			}
		}
	}
	if len(unnoted) > 0 {
		findings = append(findings, fail("see that the accounts role runs, and its log", "the accounts role has not seen the kinds %s: their applications get no accounts", some(unnoted)))
	}
	if len(served) == 0 {
		return append(findings, warn("add a block spec.credentials to an ApplicationDefinition (docs/kinds.md)", "no kind is served"))
	}
	return append(findings, good("%d kinds are served: %s", len(served), some(served)))
}

// releaseFacts are one application.
type releaseFacts struct {
	types.NamespacedName
	uid     types.UID
	kind    string
	created time.Time
	leaving bool
}

func (d *Doctor) readReleases(ctx context.Context) ([]releaseFacts, error) {
	var all []releaseFacts
	err := d.eachMetadata(ctx, cluster.ReleaseResource, metav1.ListOptions{LabelSelector: cluster.KindLabel}, func(m *metav1.PartialObjectMetadata) {
		all = append(all, releaseFacts{
			NamespacedName: types.NamespacedName{Namespace: m.Namespace, Name: m.Name}, uid: m.UID, kind: m.Labels[cluster.KindLabel],
			created: m.CreationTimestamp.Time, leaving: m.DeletionTimestamp != nil,
		})
	})
	return all, err
}

// eachMetadata lists the metadata of objects in all namespaces, and nothing of what is in them.
func (d *Doctor) eachMetadata(ctx context.Context, resource schema.GroupVersionResource, o metav1.ListOptions, handle func(*metav1.PartialObjectMetadata)) error {
	return pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return d.metadata.Resource(resource).List(ctx, o)
	}).EachListItem(ctx, o, func(object runtime.Object) error {
		m, ok := object.(*metav1.PartialObjectMetadata)
		if !ok {
			return fmt.Errorf("kube-apiserver listed a %T", object)
		}
		handle(m)
		return nil
	})
}

// secretFacts are the metadata of one account Secret.
type secretFacts struct {
	namespace, name string
	release         string
	labelled        bool
	created         time.Time
	leaving         bool
	entries         []ledger.Entry  // newest first
	named           map[string]bool // ids of the entries whose authors the history names
	judged          map[int64]bool  // revisions about which the history has a finding
}

func (d *Doctor) readSecrets(ctx context.Context) ([]secretFacts, error) {
	var all []secretFacts
	err := d.eachMetadata(ctx, corev1.SchemeGroupVersion.WithResource("secrets"), metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeBasicAuth)}, func(m *metav1.PartialObjectMetadata) {
		release, _, ok := definition.SplitSecretName(m.Name)
		if !ok {
			return
		}
		f := secretFacts{
			namespace: m.Namespace, name: m.Name, release: release, labelled: m.Labels[cluster.AccountLabel] == "true",
			created: m.CreationTimestamp.Time, leaving: m.DeletionTimestamp != nil,
		}
		if book, err := ledger.Parse(m.Annotations[ledger.Annotation]); err == nil {
			f.entries = book.Entries
		}
		if written, err := history.Parse(m.Annotations[history.Annotation]); err == nil {
			f.named, f.judged = map[string]bool{}, map[int64]bool{}
			for _, e := range written.Entries {
				f.named[e.ID] = e.By != ""
			}
			for _, finding := range written.Findings {
				f.judged[finding.Revision] = true
			}
		}
		all = append(all, f)
	})
	return all, err
}

const (
	rightReleases = "list helmreleases.helm.toolkit.fluxcd.io in all namespaces"
	rightSecrets  = "list secrets in all namespaces"
	rightBindings = "list rolebindings in all namespaces"
	rightRoles    = "list roles in all namespaces"
)

// enrolmentFacts are who works where, and what is there for them.
type enrolmentFacts struct {
	enrolled []enrolment.Enrolment
	served   map[string]bool // kinds
	releases []releaseFacts
	secrets  []secretFacts // nil where they could not be listed
}

func (d *Doctor) lookAtEnrolments(context.Context) []Finding {
	var f enrolmentFacts
	var err error
	if f.enrolled, err = d.enrolled(); err != nil {
		return []Finding{unseen(err, rightBindings)}
	}
	definitions, err := d.definitions()
	if err != nil {
		return []Finding{unseen(err, rightDefinitions)}
	}
	f.served = servedKinds(definitions)
	if f.releases, err = d.releases(); err != nil {
		return []Finding{unseen(err, rightReleases)}
	}
	if f.secrets, err = d.secrets(); err != nil {
		return append(judgeEnrolments(f), unseen(err, rightSecrets))
	}
	return judgeEnrolments(f)
}

func judgeEnrolments(f enrolmentFacts) []Finding {
	var findings []Finding
	applications, accounts := map[string]int{}, map[string]int{}
	for _, r := range f.releases {
		if f.served[r.kind] && !r.leaving {
			applications[r.Namespace]++
		}
	}
	for _, s := range f.secrets {
		if s.labelled && !s.leaving {
			accounts[s.namespace]++
		}
	}
	var whole, idle []string
	in := map[string]bool{}
	for _, e := range f.enrolled {
		if !e.Mint && !e.Accounts && len(e.Others) == 0 {
			continue // grants that the check of grants names
		}
		in[e.Namespace] = e.Mint || e.Accounts
		if len(e.Others) > 0 {
			findings = append(findings, warn("take the RoleBinding away, unless it is another installation's: its subject may read every Secret there", "in %s also %s hold a role of mintlog's", e.Namespace, some(e.Others)))
		}
		switch {
		case !e.Mint && !e.Accounts:
		case !e.Mint:
			findings = append(findings, fail("mintlog enroll "+e.Namespace, "%s is enrolled by half: the mint server may not work there", e.Namespace))
		case !e.Accounts:
			findings = append(findings, fail("mintlog enroll "+e.Namespace, "%s is enrolled by half: the accounts role may not work there", e.Namespace))
		default:
			whole = append(whole, e.Namespace)
			if applications[e.Namespace]+accounts[e.Namespace] == 0 {
				idle = append(idle, e.Namespace)
			}
		}
	}
	var never []string
	for _, namespace := range slices.Sorted(maps.Keys(union(applications, accounts))) {
		switch {
		case in[namespace]:
		case accounts[namespace] > 0:
			findings = append(findings, fail("mintlog enroll "+namespace+", or delete its account Secrets", "%s is not enrolled and has %d account Secrets: nobody can mint or read them", namespace, accounts[namespace]))
		default:
			never = append(never, fmt.Sprintf("%s (%d)", namespace, applications[namespace]))
		}
	}
	if len(never) > 0 {
		findings = append(findings, warn("mintlog enroll NAMESPACE, where accounts are wanted", "applications of served kinds in namespaces that are not enrolled: %s", some(never)))
	}
	if len(idle) > 0 {
		findings = append(findings, warn("mintlog unenroll NAMESPACE, unless applications are to come: the mint server may read every Secret there", "enrolled without an application of a served kind: %s", some(idle)))
	}
	if len(whole) == 0 {
		return append(findings, warn("mintlog enroll NAMESPACE", "no namespace is enrolled"))
	}
	return append(findings, good("%d namespaces are enrolled", len(whole)))
}

func union(maps ...map[string]int) map[string]bool {
	all := map[string]bool{}
	for _, m := range maps {
		for key := range m {
			all[key] = true
		}
	}
	return all
}

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
	const accountsRole = "see that the accounts role runs, and its log: it keeps the grants"
	var findings []Finding
	key := func(namespace, name string) types.NamespacedName {
		return types.NamespacedName{Namespace: namespace, Name: name}
	}
	roles, bindings := map[types.NamespacedName]rbacv1.Role{}, map[types.NamespacedName]rbacv1.RoleBinding{}
	for _, r := range f.roles {
		roles[key(r.Namespace, r.Name)] = r
	}
	for _, b := range f.bindings {
		if strings.HasPrefix(b.Name, grantPrefix) && (b.Labels[grantLabel] == "true" || slices.Contains(b.Subjects, f.projector)) {
			bindings[key(b.Namespace, b.Name)] = b
		}
	}
	releases := map[types.NamespacedName]releaseFacts{}
	for _, r := range f.releases {
		releases[r.NamespacedName] = r
	}
	secrets := map[types.NamespacedName][]string{}
	var unlabelled, orphans []string
	young := func(at time.Time) bool { return f.now.Sub(at) < settling }
	unsettled := map[types.NamespacedName]bool{}
	for _, s := range f.secrets {
		of := key(s.namespace, s.release)
		r, is := releases[of]
		switch {
		case s.leaving || young(s.created):
			unsettled[of] = true
		case !s.labelled && is && f.served[r.kind]:
			unlabelled = append(unlabelled, s.namespace+"/"+s.name)
		case s.labelled && !is:
			orphans = append(orphans, s.namespace+"/"+s.name)
		}
		if s.labelled {
			secrets[of] = append(secrets[of], s.name)
		}
	}
	right, names := 0, 0
	for _, r := range f.releases {
		if !f.served[r.kind] || r.leaving || !f.enrolled[r.Namespace] || unsettled[r.NamespacedName] || young(r.created) {
			continue
		}
		grant := key(r.Namespace, grantPrefix+r.Name)
		role, is := roles[grant]
		if !is {
			findings = append(findings, fail(accountsRole, "%s has no grant: there is no Role %s, so the projector writes no history there", r.NamespacedName, grant.Name))
			continue
		}
		want := slices.Sorted(slices.Values(secrets[r.NamespacedName]))
		if problem := judgeGrant(role, want, f.projector, bindings, grant); problem != "" {
			findings = append(findings, fail(accountsRole, "%s: %s", r.NamespacedName, problem))
			continue
		}
		right, names = right+1, names+len(want)
	}
	var left []string
	for grant := range roles {
		if _, is := releases[key(grant.Namespace, strings.TrimPrefix(grant.Name, grantPrefix))]; !is {
			left = append(left, "role "+grant.String())
		}
	}
	for grant := range bindings {
		if _, is := roles[grant]; !is {
			left = append(left, "rolebinding "+grant.String())
		}
	}
	if len(left) > 0 {
		findings = append(findings, fail("delete them, each RoleBinding before its Role: a binding left behind comes alive when somebody makes a Role of its name", "grants without an application, or without a Role: %s", some(left)))
	}
	if len(unlabelled) > 0 {
		findings = append(findings, fail("put the label "+cluster.AccountLabel+"=true back (it takes the break-glass group)", "account Secrets without their label, which nobody can see or mint: %s", some(unlabelled)))
	}
	if len(orphans) > 0 {
		findings = append(findings, warn("see whether their application is to come back; else delete them (it takes the break-glass group)", "account Secrets without an application: %s", some(orphans)))
	}
	return append(findings, good("%d grants name exactly their %d account Secrets", right, names))
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
