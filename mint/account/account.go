// Package account is the shape of an account Secret, for whoever creates one.
package account

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
)

// What hides an account Secret from tenants, and keeps Cozystack's lineage webhook from stamping it.
const (
	managedLabel        = "internal.cozystack.io/managed-by-cozystack"
	tenantResourceLabel = "internal.cozystack.io/tenantresource"
	applicationGroup    = "apps.cozystack.io"
)

// NewSecret is the account Secret of a declared account, without password, ledger and origin, which are written
// together with it.
func NewSecret(release *cluster.Release, account definition.Account, block definition.Block) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       release.Namespace,
			Name:            account.SecretName,
			Labels:          Labels(release, block),
			OwnerReferences: []metav1.OwnerReference{Owner(release)},
		},
		Type: corev1.SecretTypeBasicAuth,
		Data: map[string][]byte{corev1.BasicAuthUsernameKey: []byte(account.Username)},
	}
}

// Labels are the labels that an account Secret carries: the block's, and those that say what it is.
func Labels(release *cluster.Release, block definition.Block) map[string]string {
	labels := map[string]string{}
	maps.Copy(labels, block.SecretLabels)
	maps.Copy(labels, map[string]string{
		cluster.AccountLabel: "true",
		managedLabel:         "true",
		tenantResourceLabel:  "false",
		cluster.KindLabel:    release.Kind,
		cluster.GroupLabel:   applicationGroup,
		cluster.NameLabel:    release.Application,
	})
	if block.ValuesPath != "" {
		labels[cluster.WatchLabel] = "Enabled"
	}
	return labels
}

// Owner is the reference to the application that an account Secret goes with.
func Owner(release *cluster.Release) metav1.OwnerReference {
	no := false
	return metav1.OwnerReference{
		APIVersion: cluster.ReleaseResource.GroupVersion().String(), Kind: "HelmRelease",
		Name: release.Name, UID: release.UID,
		Controller: &no, BlockOwnerDeletion: &no,
	}
}

// Owned reports whether the owner references name this very application, not an earlier one of its name.
func Owned(object metav1.Object, release *cluster.Release) bool {
	for _, owner := range object.GetOwnerReferences() {
		if owner.UID == release.UID {
			return true
		}
	}
	return false
}
