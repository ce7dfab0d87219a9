package chart

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/mintlog/mintlog/test/sandbox"
)

// owned lays an application and an account Secret of it, as the accounts role does.
func owned(t *testing.T, namespace, application string) *corev1.Secret {
	t.Helper()
	release, err := cluster.InstallRelease(t.Context(), namespace, "Redis", application, map[string]any{})
	require.NoError(t, err)
	no := false
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: "redis-" + application + ".app.account",
			Labels: map[string]string{
				"credentials.cozystack.io/account": "true", "internal.cozystack.io/managed-by-cozystack": "true", "internal.cozystack.io/tenantresource": "false",
			},
			Annotations: map[string]string{"credentials.cozystack.io/ledger": "one", "credentials.cozystack.io/origin": "NotIssued"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "helm.toolkit.fluxcd.io/v2", Kind: "HelmRelease", Name: release.GetName(), UID: release.GetUID(),
				Controller: &no, BlockOwnerDeletion: &no,
			}},
		},
		Type: corev1.SecretTypeBasicAuth,
		Data: map[string][]byte{"username": []byte("app"), "password": []byte("stored")},
	}
	require.NoError(t, cluster.Enrol(t.Context(), namespace))
	client := kubernetes.NewForConfigOrDie(as(accounts)).CoreV1().Secrets(namespace)
	var made *corev1.Secret
	within(t, 3*time.Minute, func() error { // until the enrolment is seen
		made, err = client.Create(t.Context(), secret, metav1.CreateOptions{})
		return err
	})
	return made
}

func account(ctx context.Context, secret *corev1.Secret) (*corev1.Secret, error) {
	return cluster.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().Secrets(secret.Namespace).Get(ctx, secret.Name, metav1.GetOptions{})
}

func awaitGone(t *testing.T, secret *corev1.Secret) {
	t.Helper()
	within(t, 5*time.Minute, func() error {
		_, err := account(t.Context(), secret)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the Secret %s is still there: %w", secret.Name, err)
	})
}

func TestAnAccountSecretGoesWithItsApplicationInEveryWayThatKubernetesHas(t *testing.T) {
	namespace := fresh(t, "tenant-collected")
	releases := dynamic.NewForConfigOrDie(cluster.RESTConfig(sandbox.ClusterAdmin, 0)).Resource(sandbox.HelmReleases).Namespace(namespace)
	for _, how := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan} {
		name := map[metav1.DeletionPropagation]string{
			metav1.DeletePropagationBackground: "background", metav1.DeletePropagationForeground: "foreground", metav1.DeletePropagationOrphan: "orphan",
		}[how]
		secret := owned(t, namespace, name)
		require.NoError(t, releases.Delete(t.Context(), "redis-"+name, metav1.DeleteOptions{PropagationPolicy: &how}))
		if how != metav1.DeletePropagationOrphan {
			awaitGone(t, secret)
			continue
		}
		within(t, 5*time.Minute, func() error {
			is, err := account(t.Context(), secret)
			require.NoError(t, err)
			if len(is.OwnerReferences) > 0 {
				return fmt.Errorf("the Secret has its owner still")
			}
			return nil
		})
	}
}

func TestANamespaceWithAccountSecretsCanBeDeleted(t *testing.T) {
	namespace := fresh(t, "tenant-deleted")
	secret := owned(t, namespace, "orders")
	namespaces := cluster.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().Namespaces()
	require.NoError(t, namespaces.Delete(t.Context(), namespace, metav1.DeleteOptions{}))
	within(t, 5*time.Minute, func() error {
		is, err := namespaces.Get(t.Context(), namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return fmt.Errorf("the namespace is still there: %v", is.Status.Conditions)
	})
	awaitGone(t, secret)
}
