// Package v1alpha1 holds the types of the API credentials.cozystack.io/v1alpha1: the read view of an account, and the
// bodies of the requests that change its password. It imports apimachinery only, so that clients stay small.
//
// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=io.cozystack.credentials.v1alpha1
// +groupName=credentials.cozystack.io
package v1alpha1
