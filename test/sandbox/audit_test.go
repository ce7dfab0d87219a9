package sandbox_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mintlog/mintlog/test/sandbox"
)

func TestAWriteIsInTheAuditLogOfTheAPIServerThatTookItAndInNoOther(t *testing.T) {
	for apiserver := range 2 {
		name := fmt.Sprintf("logged-%d", apiserver)
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"key": "not to be logged"}}
		created, err := admin(apiserver).CoreV1().Secrets(sandbox.TenantAcme).Create(t.Context(), secret, metav1.CreateOptions{})
		require.NoError(t, err)
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
		_, err = admin(apiserver).CoreV1().ServiceAccounts(sandbox.TenantAcme).Create(t.Context(), account, metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = admin(apiserver).CoreV1().ServiceAccounts(sandbox.TenantAcme).
			CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		require.NoError(t, err)

		require.Eventually(t, func() bool {
			return len(audited(t, apiserver, "secrets/", name)) > 0 && len(audited(t, apiserver, "serviceaccounts/token", name)) > 0
		}, 2*time.Minute, 50*time.Millisecond)
		event := audited(t, apiserver, "secrets/", name)[0]
		require.Equal(t, sandbox.ClusterAdmin, event.User.Username)
		require.Equal(t, "create", event.Verb)
		require.NotEmpty(t, created.UID)
		require.Empty(t, audited(t, 1-apiserver, "secrets/", name))
		require.Empty(t, audited(t, 1-apiserver, "serviceaccounts/token", name))
		log, err := os.ReadFile(cluster.AuditLog(apiserver))
		require.NoError(t, err)
		require.NotContains(t, string(log), "not to be logged")
	}
}

type auditEvent struct {
	Verb       string
	RequestURI string
	User       struct{ Username string }
	ObjectRef  struct{ Resource, Subresource, Name string }
}

// audited are the events of a kube-apiserver's log for a resource/subresource and name.
func audited(t *testing.T, apiserver int, resource, name string) []auditEvent {
	t.Helper()
	file, err := os.Open(cluster.AuditLog(apiserver))
	require.NoError(t, err)
	defer file.Close()
	var found []auditEvent
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event auditEvent
		if json.Unmarshal(lines.Bytes(), &event) != nil {
			continue // a line that is being written
		}
		reference := event.ObjectRef
		if strings.HasPrefix(reference.Resource+"/"+reference.Subresource, resource) && reference.Name == name {
			found = append(found, event)
		}
	}
	require.NoError(t, lines.Err())
	return found
}
