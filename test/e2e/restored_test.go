package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/test/sandbox"
)

func TestASecretThatIsPutBackFromABackupIsRestoredUntilTheNextMint(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "backup", "app") + ".app"
	shared.mint(t, sandbox.Jane, 0, credential)
	shared.awaitBy(t, credential, "jane", "")
	secrets := shared.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().Secrets(acme)
	backup := shared.secret(t, credential)
	backup.ObjectMeta = metav1.ObjectMeta{
		Name: backup.Name, Namespace: backup.Namespace, Labels: backup.Labels, Annotations: backup.Annotations, OwnerReferences: backup.OwnerReferences,
	}
	// The accounts role seeds what is missing at once: the restore has to come between.
	within(t, 2*time.Minute, func() error {
		if err := secrets.Delete(ctx(t), backup.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		_, err := secrets.Create(ctx(t), backup.DeepCopy(), metav1.CreateOptions{})
		return err
	})
	shared.awaitCredential(t, credential, func(c *v1alpha1.Credential) error {
		if !hasFinding(c, "Restored") {
			return fmt.Errorf("the findings are %v", c.Status.Findings)
		}
		return nil
	})
	shared.mint(t, sandbox.Jane, 1, credential)
	c := shared.awaitCredential(t, credential, func(c *v1alpha1.Credential) error {
		if hasFinding(c, "Restored") {
			return fmt.Errorf("it is restored still")
		}
		return errors.Join(isNewest(c, shared.ledger(t, credential).Newest()), allAttributed(c))
	})
	assert.Equal(t, "Minted", c.Status.Password.Origin)
	require.NotEqual(t, backup.Data[corev1.BasicAuthPasswordKey], shared.secret(t, credential).Data[corev1.BasicAuthPasswordKey])
}
