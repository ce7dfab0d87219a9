package dashboards_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/test/sandbox/process"
)

// startVictoriaLogs starts a real one and returns its URL.
func startVictoriaLogs(t *testing.T) string {
	t.Helper()
	binary, err := filepath.Abs(filepath.Join("..", "..", "bin", "victoria-logs"))
	require.NoError(t, err)
	require.FileExists(t, binary, "run make tools")
	address, err := process.FreeAddress()
	require.NoError(t, err)
	directory := t.TempDir()
	p, err := process.Start(t.Context(), process.Options{
		Name: "victoria-logs", Path: binary, LogFile: filepath.Join(directory, "log"),
		Arguments: []string{"-httpListenAddr=" + address, "-storageDataPath=" + filepath.Join(directory, "data"), "-loggerLevel=ERROR"},
		Ready: func(context.Context) error {
			answer, err := http.Get("http://" + address + "/health")
			if err != nil {
				return err
			}
			return answer.Body.Close()
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Stop()) })
	return "http://" + address
}

func TestWhoAskedIsWhatTheArchiveHasOfTheChosenNamespaces(t *testing.T) {
	server := startVictoriaLogs(t)
	record := func(changes map[string]string) []byte {
		r := map[string]string{
			"_time": time.Now().UTC().Format(time.RFC3339Nano), "_msg": "/apis", "log_source": "audit_log", "stage": "ResponseComplete", "verb": "create",
			"auditID": "1", "user_username": "jane", "objectRef.apiGroup": "credentials.cozystack.io", "objectRef.resource": "credentials",
			"objectRef.subresource": "mint", "objectRef.namespace": "tenant-acme", "objectRef.name": "postgres-orders.app",
			"annotations.authorization.k8s.io/decision": "allow", "responseStatus.code": "201",
		}
		for k, v := range changes {
			r[k] = v
		}
		line, err := json.Marshal(r)
		require.NoError(t, err)
		return append(line, '\n')
	}
	lines := bytes.Join([][]byte{
		record(nil),
		record(map[string]string{"auditID": "2", "impersonatedUser.username": "ivan", "objectRef.subresource": "revoke"}),
		record(map[string]string{"auditID": "3", "objectRef.namespace": "tenant-acme-dev"}),
		record(map[string]string{"auditID": "4", "annotations.authorization.k8s.io/decision": "forbid", "responseStatus.code": "403"}),
		record(map[string]string{"auditID": "5", "objectRef.resource": "secrets", "objectRef.apiGroup": ""}),
	}, nil)
	answer, err := http.Post(server+"/insert/jsonline?_stream_fields=log_source,stage", "application/stream+json", bytes.NewReader(lines))
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusOK, answer.StatusCode)

	query := ""
	for _, b := range boards(t) {
		for _, p := range b.Panels {
			if p.Type == "logs" {
				query = p.Targets[0].Expr
			}
		}
	}
	require.NotEmpty(t, query)
	messages := func(namespaces string) []string {
		filled := strings.ReplaceAll(query, "${namespace:regex}", namespaces)
		require.NotContains(t, filled, "${")
		answer, err := http.PostForm(server+"/select/logsql/query", url.Values{"query": {filled}})
		require.NoError(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, answer.StatusCode, string(text))
		var all []string
		for line := range strings.Lines(string(text)) {
			var row map[string]string
			require.NoError(t, json.Unmarshal([]byte(line), &row))
			all = append(all, row["_msg"])
		}
		return all
	}
	own := []string{"mint tenant-acme/postgres-orders.app by jane: 201", "revoke tenant-acme/postgres-orders.app by jane as ivan: 201"}
	require.Eventually(t, func() bool { return len(messages(".*")) == 3 }, 30*time.Second, 200*time.Millisecond)
	assert.ElementsMatch(t, append(own, "mint tenant-acme-dev/postgres-orders.app by jane: 201"), messages(".*"), "all")
	assert.ElementsMatch(t, own, messages("tenant-acme"), "one, and not those whose names begin like it")
	assert.ElementsMatch(t, own, messages("(tenant-acme|tenant-b)"), "several")
}
