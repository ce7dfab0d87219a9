package main

import (
	"context"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mintlog/mintlog/test/sandbox"
)

// A bareProgram makes the objects of applications as the role does, with nothing but client-go: as many workers, the
// same contents and owners. It caches nothing, looks nothing up, and would lock out whoever has a password already.
// Their names are others: as the role's are, they are the role's alone.
type bareProgram struct {
	client kubernetes.Interface
	grant  string // what the names of its Roles begin with
	secret string // what the names of its Secrets end with
	labels map[string]string
	spent
}

// bareAsAdmin is for kube-apiserver a member of system:masters, of whom it does not ask whether they hold what they
// grant. Its Secrets are not named as account Secrets are.
func (h *herd) bareAsAdmin() *bareProgram {
	return &bareProgram{
		client: h.admin, grant: "bare-", secret: "-account",
		labels: map[string]string{"credentials.cozystack.io/account": "false", "internal.cozystack.io/tenantresource": "false"},
	}
}

// bareAsRole is for kube-apiserver what the role is: it has the same identity and with it the same rights, and its
// objects are such as the admission policies let that identity write.
func (h *herd) bareAsRole(ctx context.Context) (*bareProgram, error) {
	kubeconfig, err := h.sandbox.ServiceAccountKubeconfig(ctx, "accounts", 0)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(protobuf(config))
	return &bareProgram{
		client: client, grant: "credentials-bare-", secret: ".account",
		labels: map[string]string{
			"credentials.cozystack.io/account": "true", "internal.cozystack.io/tenantresource": "false",
			"internal.cozystack.io/managed-by-cozystack": "true",
		},
	}, err
}

// protobuf is a configuration without a limit to its rate, which speaks to kube-apiserver as mintlog does.
func protobuf(config *rest.Config) *rest.Config {
	config.QPS = -1
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return config
}

// runBare has a bare program make the objects of some applications, and adds what that took to what it has spent.
func (h *herd) runBare(ctx context.Context, p *bareProgram, from, to int) error {
	owners, err := h.owners(ctx)
	if err != nil {
		return err
	}
	more, err := h.timed((to-from)*objectsOfEach, func() error {
		return h.each(to-from, roleWorkers, func(n int) error { return p.make(ctx, from+n, owners[releaseOf(from+n)]) })
	})
	p.spent = p.plus(more)
	return err
}

// owners are references to the HelmReleases, by name.
func (h *herd) owners(ctx context.Context) (map[string]metav1.OwnerReference, error) {
	releases, err := h.objects.Resource(sandbox.HelmReleases).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	owners := map[string]metav1.OwnerReference{}
	for _, r := range releases.Items {
		owners[r.GetName()] = *metav1.NewControllerRef(&r, r.GroupVersionKind())
	}
	return owners, nil
}

// make writes one application's objects, the grant before the Secrets, as the role does.
func (p *bareProgram) make(ctx context.Context, n int, owner metav1.OwnerReference) error {
	if err := p.makeGrant(ctx, n, owner); err != nil {
		return err
	}
	for a := range accountsOfEach {
		secret := &corev1.Secret{ObjectMeta: bareMeta(n, p.secretOf(n, a), owner), Type: corev1.SecretTypeBasicAuth}
		secret.Labels = map[string]string{
			"cnpg.io/reload": "true", "apps.cozystack.io/application.kind": "Postgres",
			"apps.cozystack.io/application.group": "apps.cozystack.io", "apps.cozystack.io/application.name": applicationOf(n),
		}
		maps.Copy(secret.Labels, p.labels)
		secret.Annotations = map[string]string{
			"credentials.cozystack.io/origin": "NotIssued",
			"credentials.cozystack.io/ledger": strings.Repeat("l", 300),
		}
		secret.Data = map[string][]byte{"username": fmt.Appendf(nil, "u%d", a), "password": []byte(strings.Repeat("s", 133))}
		if _, err := p.client.CoreV1().Secrets(secret.Namespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func (p *bareProgram) makeGrant(ctx context.Context, n int, owner metav1.OwnerReference) error {
	name := p.grant + releaseOf(n)
	role := &rbacv1.Role{ObjectMeta: bareMeta(n, name, owner)}
	role.Annotations = map[string]string{"credentials.cozystack.io/found": "[]", "credentials.cozystack.io/first-sight": "2026-01-01T00:00:00Z"}
	rule := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "patch"}}
	for a := range accountsOfEach {
		rule.ResourceNames = append(rule.ResourceNames, p.secretOf(n, a))
	}
	role.Rules = []rbacv1.PolicyRule{rule}
	if _, err := p.client.RbacV1().Roles(role.Namespace).Create(ctx, role, metav1.CreateOptions{}); err != nil {
		return err
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: bareMeta(n, name, owner),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "projector", Namespace: sandbox.Namespace}},
	}
	_, err := p.client.RbacV1().RoleBindings(binding.Namespace).Create(ctx, binding, metav1.CreateOptions{})
	return err
}

func bareMeta(n int, name string, owner metav1.OwnerReference) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespaceOf(n), Name: name, OwnerReferences: []metav1.OwnerReference{owner}}
}

func (p *bareProgram) secretOf(n, account int) string {
	return fmt.Sprintf("bare-%s.u%d%s", releaseOf(n), account, p.secret)
}
