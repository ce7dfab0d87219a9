package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group.
const GroupName = "credentials.cozystack.io"

// The kinds, the resource and its subresources, as they stand in bodies and paths.
const (
	CredentialKind       = "Credential"
	CredentialListKind   = "CredentialList"
	CredentialMintKind   = "CredentialMint"
	CredentialRevokeKind = "CredentialRevoke"

	CredentialResource = "credentials"
	MintSubresource    = "mint"
	RevokeSubresource  = "revoke"
)

// SchemeGroupVersion is the version of the API in this package.
var SchemeGroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}

var (
	schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)
	// AddToScheme registers the types of this package.
	AddToScheme = schemeBuilder.AddToScheme
)

// Resource names a resource of this group.
func Resource(resource string) schema.GroupResource {
	return schema.GroupResource{Group: GroupName, Resource: resource}
}

// Objects are new objects of all kinds of this version.
func Objects() []runtime.Object {
	return []runtime.Object{&Credential{}, &CredentialList{}, &CredentialMint{}, &CredentialRevoke{}}
}

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion, Objects()...)
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}
