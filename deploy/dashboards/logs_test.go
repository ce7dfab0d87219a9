package dashboards_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/test/victorialogs"
)

func TestWhoAskedIsWhatTheArchiveHasOfTheChosenNamespaces(t *testing.T) {
	server := victorialogs.Start(t).URL
	record := func(changes map[string]string) map[string]any {
		r := map[string]any{
			"date": time.Now().UTC().Format(time.RFC3339Nano), "requestURI": "/apis", "log_source": "audit_log", "stage": "ResponseComplete", "verb": "create",
			"auditID": "1", "user_username": "jane", "objectRef.apiGroup": "credentials.cozystack.io", "objectRef.resource": "credentials",
			"objectRef.subresource": "mint", "objectRef.namespace": "tenant-acme", "objectRef.name": "postgres-orders.app",
			"annotations.authorization.k8s.io/decision": "allow", "responseStatus.code": "201",
		}
		for k, v := range changes {
			r[k] = v
		}
		return r
	}
	victorialogs.InsertAsCozystack(t, server,
		record(nil),
		record(map[string]string{"auditID": "2", "impersonatedUser.username": "ivan", "objectRef.subresource": "revoke"}),
		record(map[string]string{"auditID": "3", "objectRef.namespace": "tenant-acme-dev"}),
		record(map[string]string{"auditID": "4", "annotations.authorization.k8s.io/decision": "forbid", "responseStatus.code": "403"}),
		record(map[string]string{"auditID": "5", "objectRef.resource": "secrets", "objectRef.apiGroup": ""}),
	)

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
		var all []string
		for _, row := range victorialogs.Rows(t, server, filled) {
			all = append(all, row["_msg"])
		}
		return all
	}
	own := []string{"mint tenant-acme/postgres-orders.app by jane: 201", "revoke tenant-acme/postgres-orders.app by jane as ivan: 201"}
	assert.ElementsMatch(t, append(own, "mint tenant-acme-dev/postgres-orders.app by jane: 201"), messages(".*"), "all")
	assert.ElementsMatch(t, own, messages("tenant-acme"), "one, and not those whose names begin like it")
	assert.ElementsMatch(t, own, messages("(tenant-acme|tenant-b)"), "several")
}
