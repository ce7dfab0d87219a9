package doctor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mintlog/mintlog/mint/admission"
)

// policyFacts are one policy and what binds it.
type policyFacts struct {
	name   string
	policy *admissionv1.ValidatingAdmissionPolicy // nil: there is none
	bound  []admissionv1.ValidatingAdmissionPolicyBinding
	tried  bool  // a dry run that it must deny was sent
	open   error // why it is not in force, where it was tried
}

func (d *Doctor) lookAtPolicies(ctx context.Context) []Finding {
	client := d.client.AdmissionregistrationV1()
	bindings, err := client.ValidatingAdmissionPolicyBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		return []Finding{unseen(err, "list validatingadmissionpolicybindings")}
	}
	may, err := d.mayActAs(ctx, d.Identities.Mint, d.Identities.Accounts)
	if err != nil {
		return []Finding{unseen(err, "create selfsubjectaccessreviews")}
	}
	var findings []Finding
	if !may {
		findings = append(findings, warn("look with an identity that may impersonate the ServiceAccounts of "+d.Identities.Namespace,
			"whether the policies deny what they must was not tried: the right to impersonate serviceaccounts in the namespace %s is missing", d.Identities.Namespace))
	}
	for _, name := range admission.All() {
		f := policyFacts{name: name}
		f.policy, err = client.ValidatingAdmissionPolicies().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			f.policy = nil
		} else if err != nil {
			findings = append(findings, unseen(err, "get validatingadmissionpolicies"))
			continue
		}
		f.bound = slices.DeleteFunc(slices.Clone(bindings.Items), func(b admissionv1.ValidatingAdmissionPolicyBinding) bool { return b.Spec.PolicyName != name })
		if may {
			f.open = d.try(ctx, name)
			f.tried = f.open == nil || errors.Is(f.open, admission.ErrOpen)
		}
		findings = append(findings, judgePolicy(f)...)
	}
	return findings
}

// mayActAs asks whether whoever looks may impersonate ServiceAccounts of mintlog's. His own group may break the glass.
func (d *Doctor) mayActAs(ctx context.Context, accounts ...string) (bool, error) {
	for _, account := range accounts {
		review, err := d.client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: "impersonate", Resource: "serviceaccounts", Namespace: d.Identities.Namespace, Name: account,
			}},
		}, metav1.CreateOptions{})
		if err != nil || !review.Status.Allowed {
			return false, err
		}
	}
	return true, nil
}

// try sends, as a part of mintlog, the dry run that the part sends itself at its start.
func (d *Doctor) try(ctx context.Context, policy string) error {
	account := d.Identities.Accounts
	if policy == admission.AccountSecrets {
		account = d.Identities.Mint
	}
	config := rest.CopyConfig(d.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: fmt.Sprintf("system:serviceaccount:%s:%s", d.Identities.Namespace, account)}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	check, err := admission.New(admission.Options{
		Client: client, Namespace: d.Identities.Namespace, Part: account, Policies: []string{policy},
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		return err
	}
	return check.Try(ctx, policy)
}

func judgePolicy(f policyFacts) []Finding {
	install := "apply mintlog's chart again, which brings the policy and its binding"
	if f.policy == nil {
		return []Finding{fail(install, "there is no ValidatingAdmissionPolicy %s: RBAC alone does not keep tenants from forging what it guards", f.name)}
	}
	var findings []Finding
	denies := slices.ContainsFunc(f.bound, func(b admissionv1.ValidatingAdmissionPolicyBinding) bool {
		return slices.Contains(b.Spec.ValidationActions, admissionv1.Deny) && (b.Spec.MatchResources == nil || isEmpty(*b.Spec.MatchResources))
	})
	switch {
	case len(f.bound) == 0:
		findings = append(findings, fail(install, "%s is not bound: there is no ValidatingAdmissionPolicyBinding for it, so it denies nothing", f.name))
	case !denies:
		findings = append(findings, fail(install, "no binding of %s denies everywhere: one with the action Deny and without matchResources is needed", f.name))
	}
	if f.policy.Spec.FailurePolicy != nil && *f.policy.Spec.FailurePolicy != admissionv1.Fail {
		findings = append(findings, fail(install, "%s lets pass what it cannot judge: its failurePolicy is %s", f.name, *f.policy.Spec.FailurePolicy))
	}
	checked := f.policy.Status.TypeChecking != nil && f.policy.Status.ObservedGeneration == f.policy.Generation
	if f.policy.Status.TypeChecking != nil {
		for _, w := range f.policy.Status.TypeChecking.ExpressionWarnings {
			findings = append(findings, fail(install+"; it may be of another version than this Kubernetes takes", "%s does not compile at %s: a policy that does not compile leaves everything open", f.name, w.FieldRef))
		}
	}
	switch {
	case len(findings) > 0: // what is tried would say the same again
	case f.open != nil && f.tried:
		findings = append(findings, fail("see that the policy is made for this namespace and these ServiceAccounts; then "+install, "%s is not in force: %s", f.name, f.open))
	case f.open != nil:
		findings = append(findings, warn("look again", "whether %s denies what it must could not be tried: %s", f.name, words(f.open)))
	case f.tried:
		findings = append(findings, good("%s is bound and denied what it must", f.name))
	case checked:
		findings = append(findings, good("%s is bound and compiles", f.name))
	default:
		findings = append(findings, good("%s is bound; kube-controller-manager has not said whether it compiles", f.name))
	}
	return findings
}

func isEmpty(m admissionv1.MatchResources) bool {
	empty := func(s *metav1.LabelSelector) bool { return s == nil || len(s.MatchLabels)+len(s.MatchExpressions) == 0 }
	return empty(m.NamespaceSelector) && empty(m.ObjectSelector) && len(m.ResourceRules)+len(m.ExcludeResourceRules) == 0
}
