package credential

import (
	"context"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	mintrequest "github.com/mintlog/mintlog/mint/request"
	"github.com/mintlog/mintlog/store/ledger"
)

// mintStorage serves create on credentials/mint.
type mintStorage struct{ minter *minter }

// revokeStorage serves create on credentials/revoke.
type revokeStorage struct{ minter *minter }

var _, _ interface {
	rest.Storage
	rest.NamedCreater
	rest.GroupVersionKindProvider
} = &mintStorage{}, &revokeStorage{}

// New returns an empty body.
func (s *mintStorage) New() runtime.Object { return &v1alpha1.CredentialMint{} }

// New returns an empty body.
func (s *revokeStorage) New() runtime.Object { return &v1alpha1.CredentialRevoke{} }

// Destroy has nothing to close.
func (s *mintStorage) Destroy() {}

// Destroy has nothing to close.
func (s *revokeStorage) Destroy() {}

// GroupVersionKind is what discovery says of the body.
func (s *mintStorage) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return v1alpha1.SchemeGroupVersion.WithKind("CredentialMint")
}

// GroupVersionKind is what discovery says of the body.
func (s *revokeStorage) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return v1alpha1.SchemeGroupVersion.WithKind("CredentialRevoke")
}

// Create mints: it answers once with the plaintext.
func (s *mintStorage) Create(ctx context.Context, name string, object runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	given, ok := object.(*v1alpha1.CredentialMint)
	if !ok {
		return nil, apierrors.NewBadRequest("the body is no CredentialMint")
	}
	r, done, err := s.minter.serve(ctx, ledger.Mint, name, body{
		kind: "CredentialMint", object: object, meta: &given.ObjectMeta, preconditions: given.Spec.Preconditions,
	}, validate, options)
	if err != nil {
		return nil, err
	}
	answer := &v1alpha1.CredentialMint{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: r.namespace}, Spec: given.Spec}
	answer.Status.Username = done.username
	if !r.dryRun {
		answer.Status = v1alpha1.MintStatus{
			Username: done.username, Password: done.password,
			ID: done.entry.ID, Revision: done.entry.Revision, At: metav1.NewMicroTime(done.entry.At),
		}
	}
	return answer, nil
}

// Create revokes: what it stores, nobody has seen.
func (s *revokeStorage) Create(ctx context.Context, name string, object runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	given, ok := object.(*v1alpha1.CredentialRevoke)
	if !ok {
		return nil, apierrors.NewBadRequest("the body is no CredentialRevoke")
	}
	r, done, err := s.minter.serve(ctx, ledger.Revoke, name, body{
		kind: "CredentialRevoke", object: object, meta: &given.ObjectMeta, preconditions: given.Spec.Preconditions,
	}, validate, options)
	if err != nil {
		return nil, err
	}
	answer := &v1alpha1.CredentialRevoke{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: r.namespace}, Spec: given.Spec}
	answer.Status.Username = done.username
	if !r.dryRun {
		answer.Status = v1alpha1.RevokeStatus{
			Username: done.username,
			ID:       done.entry.ID, Revision: done.entry.Revision, At: metav1.NewMicroTime(done.entry.At),
		}
	}
	return answer, nil
}

// A body is what both operations read of theirs.
type body struct {
	kind          string
	object        runtime.Object
	meta          *metav1.ObjectMeta
	preconditions *v1alpha1.Preconditions
}

// serve carries an operation out if its request is one: every refusal of that comes before any write and names the
// field at fault.
func (m *minter) serve(ctx context.Context, operation ledger.Operation, name string, b body, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (request, result, error) {
	r, err := newRequest(ctx, operation, name, b, options)
	if err != nil {
		return r, result{}, err
	}
	if validate != nil {
		if err := validate(ctx, b.object.DeepCopyObject()); err != nil {
			return r, result{}, err
		}
	}
	done, err := m.do(ctx, r)
	return r, done, err
}

// newRequest is what the caller asks for.
func newRequest(ctx context.Context, operation ledger.Operation, name string, b body, options *metav1.CreateOptions) (request, error) {
	r := request{operation: operation, namespace: genericapirequest.NamespaceValue(ctx), credential: name}
	caller, ok := genericapirequest.UserFrom(ctx)
	if !ok || caller.GetName() == "" || !utf8.ValidString(caller.GetName()) {
		return r, apierrors.NewUnauthorized("the front proxy named no user")
	}
	r.caller = caller.GetName()
	if r.auditID, ok = mintrequest.AuditID(ctx); !ok {
		return r, apierrors.NewBadRequest("the request has no Audit-ID: it did not come through kube-apiserver, or lost it on the way")
	}
	r.received = mintrequest.Received(ctx)
	if b.preconditions != nil {
		r.preconditions = *b.preconditions
	}
	r.dryRun = options != nil && len(options.DryRun) > 0
	if faults := bodyFaults(r, b.meta); len(faults) > 0 {
		return r, apierrors.NewInvalid(v1alpha1.SchemeGroupVersion.WithKind(b.kind).GroupKind(), name, faults)
	}
	return r, nil
}

// bodyFaults are what is wrong with a body that names another object, or a revision there cannot be.
func bodyFaults(r request, meta *metav1.ObjectMeta) field.ErrorList {
	var faults field.ErrorList
	if meta.Name != "" && meta.Name != r.credential {
		faults = append(faults, field.Invalid(field.NewPath("metadata", "name"), meta.Name, "it is not the name in the path"))
	}
	if meta.Namespace != "" && meta.Namespace != r.namespace {
		faults = append(faults, field.Invalid(field.NewPath("metadata", "namespace"), meta.Namespace, "it is not the namespace in the path"))
	}
	if meta.GenerateName != "" {
		faults = append(faults, field.Forbidden(field.NewPath("metadata", "generateName"), "the name is in the path"))
	}
	if revision := r.preconditions.Revision; revision != nil && *revision < 0 {
		faults = append(faults, field.Invalid(field.NewPath("spec", "preconditions", "revision"), *revision, "revisions begin at 1; 0 means that the account Secret must not exist"))
	}
	return faults
}
