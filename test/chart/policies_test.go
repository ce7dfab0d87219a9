package chart

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mintlog/mintlog/mint/admission"
	"github.com/mintlog/mintlog/test/sandbox"
)

// An attempt to write, by somebody whom RBAC lets do everything in the namespace. What is denied must be denied by an
// admission policy of mintlog.
type attempt struct {
	user, how, path, body string
	allowed               bool
}

func (a attempt) String() string {
	return fmt.Sprintf("%s %s %s %s", a.user, a.how, a.path, a.body)
}

const (
	forge = "tenant-forge"
	// target is the account Secret that the attempts are about.
	target = "secrets/postgres-x.app.account"
)

func patched(patch string) string { return `{"metadata": {` + patch + `}}` }

func note(key, value string) string {
	return patched(fmt.Sprintf(`"annotations": {%q: %q}`, key, value))
}

func label(key, value string) string { return patched(fmt.Sprintf(`"labels": {%q: %q}`, key, value)) }

const (
	newPassword = `"data": {"password": "bmV3"}`
	newLedger   = `"metadata": {"annotations": {"credentials.cozystack.io/ledger": "new"}}`
	nobodys     = `"ownerReferences": [{"apiVersion": "helm.toolkit.fluxcd.io/v2", "kind": "HelmRelease", "name": "gone", "uid": "00000000-0000-0000-0000-000000000000"}]`
	ownLabels   = `"credentials.cozystack.io/account": "true", "internal.cozystack.io/managed-by-cozystack": "true", "internal.cozystack.io/tenantresource": "false"`
)

// accountSecret is a new account Secret as mintlog writes it, with what differs from that.
func accountSecret(change func(secret map[string]any)) string {
	secret := map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/basic-auth",
		"data": map[string]any{"username": "bmV3", "password": "bmV3"},
		"metadata": map[string]any{
			"name": "postgres-x.new.account",
			"labels": map[string]any{
				"credentials.cozystack.io/account": "true", "internal.cozystack.io/managed-by-cozystack": "true",
				"internal.cozystack.io/tenantresource": "false",
			},
			"annotations": map[string]any{"credentials.cozystack.io/ledger": "one", "credentials.cozystack.io/origin": "Minted"},
		},
	}
	if change != nil {
		change(secret)
	}
	text, err := json.Marshal(secret)
	if err != nil {
		panic(err) // it is of strings
	}
	return string(text)
}

// without takes a field of an object away.
func without(keys ...string) func(map[string]any) {
	return func(o map[string]any) {
		for _, key := range keys[:len(keys)-1] {
			o = o[key].(map[string]any)
		}
		delete(o, keys[len(keys)-1])
	}
}

func with(value any, keys ...string) func(map[string]any) {
	return func(o map[string]any) {
		for _, key := range keys[:len(keys)-1] {
			o = o[key].(map[string]any)
		}
		o[keys[len(keys)-1]] = value
	}
}

func onAccountSecrets() []attempt {
	plain := `{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "plain"}}`
	attempts := []attempt{
		{user: eve, how: "merge", path: target, body: `{` + newPassword + `}`},
		{user: eve, how: "merge", path: target, body: `{"stringData": {"password": "new"}}`},
		{user: eve, how: "strategic", path: target, body: `{` + newPassword + `}`},
		{user: eve, how: "json", path: target, body: `[{"op": "replace", "path": "/data/password", "value": "bmV3"}]`},
		{user: eve, how: "json", path: target, body: `[{"op": "remove", "path": "/data/password"}]`},
		{user: eve, how: "apply", path: target + "?fieldManager=eve&force=true", body: `{"apiVersion": "v1", "kind": "Secret", ` + newPassword + `}`},
		{user: eve, how: "apply", path: target + "?fieldManager=eve&force=true", body: `{"apiVersion": "v1", "kind": "Secret", "stringData": {"password": "new"}}`},
		{user: eve, how: "put", path: target, body: `{` + newPassword + `}`},
		{user: eve, how: "put", path: target, body: `{` + newPassword + `, ` + newLedger + `}`},
		{user: eve, how: "merge", path: target, body: `{"data": {"more": "bmV3"}}`},
		{user: eve, how: "merge", path: target, body: `{"data": {"username": "bmV3"}}`},
		{user: eve, how: "merge", path: target, body: `{"data": {"username": null}}`},
		{user: eve, how: "merge", path: target, body: `{"immutable": true}`},
		{user: eve, how: "merge", path: target, body: note("credentials.cozystack.io/ledger", "new")},
		{user: eve, how: "merge", path: target, body: patched(`"annotations": {"credentials.cozystack.io/ledger": null}`)},
		{user: eve, how: "merge", path: target, body: patched(`"annotations": null`)},
		{user: eve, how: "merge", path: target, body: note("credentials.cozystack.io/origin", "Revoked")},
		{user: eve, how: "merge", path: target, body: note("credentials.cozystack.io/history", "new")},
		{user: eve, how: "merge", path: target, body: patched(`"annotations": {"credentials.cozystack.io/history": null}`)},
		{user: eve, how: "apply", path: target + "?fieldManager=eve&force=true", body: `{"apiVersion": "v1", "kind": "Secret", "metadata": {"annotations": {"credentials.cozystack.io/history": "new"}}}`},
		{user: eve, how: "merge", path: target, body: note("credentials.cozystack.io/other", "new")},
		{user: eve, how: "merge", path: target, body: patched(`"annotations": {"credentials.cozystack.io/kept": null}`)},
		{user: eve, how: "merge", path: target, body: patched(`"labels": {"credentials.cozystack.io/account": null}`)},
		{user: eve, how: "merge", path: target, body: label("credentials.cozystack.io/account", "false")},
		{user: eve, how: "merge", path: target, body: patched(`"labels": {"internal.cozystack.io/managed-by-cozystack": null}`)},
		{user: eve, how: "merge", path: target, body: label("internal.cozystack.io/tenantresource", "true")},
		{user: eve, how: "merge", path: target, body: label("apps.cozystack.io/user-secret", "true")},
		{user: eve, how: "merge", path: target, body: patched(nobodys)},
		{user: eve, how: "merge", path: target, body: patched(`"ownerReferences": null`)},
		{user: eve, how: "merge", path: target, body: patched(`"finalizers": ["eve/keeps"]`)},
		{user: eve, how: "delete", path: target},
		{user: eve, how: "delete", path: "secrets"},
		{user: eve, how: "delete", path: "secrets?labelSelector=credentials.cozystack.io/account"},
		{user: eve, how: "post", path: "secrets", body: accountSecret(nil)},
		{user: eve, how: "post", path: "secrets", body: accountSecret(with("Opaque", "type"))},
		{user: eve, how: "post", path: "secrets", body: accountSecret(without("metadata", "labels"))},
		{user: eve, how: "apply", path: "secrets/postgres-x.new.account?fieldManager=eve", body: accountSecret(nil)},
		{user: eve, how: "merge", path: target, body: `{}`, allowed: true},
		{user: eve, how: "merge", path: target, body: `{"data": {"password": "b2xk"}}`, allowed: true}, // what it is
		{user: eve, how: "merge", path: target, body: note("eve/notes", "new"), allowed: true},
		{user: eve, how: "merge", path: target, body: label("eve", "was-here"), allowed: true},
		{user: eve, how: "post", path: "secrets", body: plain, allowed: true},
		{user: eve, how: "post", path: "secrets", body: accountSecret(with("my.account", "metadata", "name")), allowed: true},
		{user: eve, how: "merge", path: "secrets/ordinary", body: `{` + newPassword + `, ` + newLedger + `}`, allowed: true},
		{user: eve, how: "delete", path: "secrets/ordinary", allowed: true},
		{user: eve, how: "delete", path: "secrets?fieldSelector=metadata.name=ordinary", allowed: true},

		{user: mint, how: "merge", path: target, body: `{` + newPassword + `}`},
		{user: mint, how: "merge", path: target, body: `{"data": {"password": null}}`},
		{user: mint, how: "merge", path: target, body: `{` + newLedger + `}`},
		{user: mint, how: "merge", path: target, body: `{` + newPassword + `, "metadata": {"annotations": {"credentials.cozystack.io/ledger": null}}}`},
		{user: mint, how: "merge", path: target, body: `{` + newPassword + `, "metadata": {"annotations": {"credentials.cozystack.io/ledger": ""}}}`},
		{user: mint, how: "merge", path: target, body: note("credentials.cozystack.io/origin", "Revoked")},
		{user: mint, how: "merge", path: target, body: note("credentials.cozystack.io/history", "new")},
		{user: mint, how: "merge", path: target, body: note("credentials.cozystack.io/other", "new")},
		{user: mint, how: "put", path: target, body: `{"data": {"password": "bmV3", "username": "bmV3"}, ` + newLedger + `}`},
		{user: mint, how: "put", path: target, body: `{"data": {"password": "bmV3", "more": "bmV3"}, ` + newLedger + `}`},
		{user: mint, how: "put", path: target, body: `{"immutable": true, ` + newPassword + `, ` + newLedger + `}`},
		{user: mint, how: "merge", path: target, body: patched(`"labels": {"credentials.cozystack.io/account": null}`)},
		{user: mint, how: "merge", path: target, body: patched(nobodys)},
		{user: mint, how: "merge", path: target, body: patched(`"finalizers": ["mint/keeps"]`)},
		{user: mint, how: "delete", path: target},
		{user: mint, how: "post", path: "secrets", body: plain},
		{user: mint, how: "merge", path: "secrets/ordinary", body: `{` + newPassword + `, ` + newLedger + `}`},
		{user: mint, how: "merge", path: "secrets/foreign.app.account", body: note("mint", "new")},
		{user: mint, how: "delete", path: "secrets/ordinary"},
		{user: mint, how: "post", path: "secrets", body: accountSecret(with("Opaque", "type"))},
		{user: mint, how: "post", path: "secrets", body: accountSecret(without("metadata", "annotations"))},
		{user: mint, how: "post", path: "secrets", body: accountSecret(without("metadata", "labels"))},
		{user: mint, how: "post", path: "secrets", body: accountSecret(without("metadata", "labels", "credentials.cozystack.io/account"))},
		{user: mint, how: "post", path: "secrets", body: accountSecret(without("metadata", "labels", "internal.cozystack.io/managed-by-cozystack"))},
		{user: mint, how: "post", path: "secrets", body: accountSecret(with("true", "metadata", "labels", "internal.cozystack.io/tenantresource"))},
		{user: mint, how: "post", path: "secrets", body: accountSecret(with(true, "immutable"))},
		{user: mint, how: "post", path: "secrets", body: accountSecret(with("new", "metadata", "annotations", "credentials.cozystack.io/history"))},
		{user: mint, how: "post", path: "secrets", body: accountSecret(nil), allowed: true},
		{user: mint, how: "put", path: target, body: `{` + newPassword + `, ` + newLedger + `}`, allowed: true},
		{user: mint, how: "put", path: target, body: `{` + newPassword + `, "metadata": {"annotations": {"credentials.cozystack.io/ledger": "new", "credentials.cozystack.io/origin": "Revoked"}}}`, allowed: true},

		{user: accounts, how: "merge", path: target, body: `{` + newPassword + `}`},
		{user: accounts, how: "merge", path: target, body: `{` + newPassword + `, ` + newLedger + `}`},
		{user: accounts, how: "merge", path: target, body: `{` + newLedger + `}`},
		{user: accounts, how: "merge", path: target, body: note("credentials.cozystack.io/origin", "Revoked")},
		{user: accounts, how: "merge", path: target, body: note("credentials.cozystack.io/history", "new")},
		{user: accounts, how: "merge", path: target, body: `{"data": {"username": "bmV3"}}`},
		{user: accounts, how: "merge", path: target, body: `{"immutable": true}`},
		{user: accounts, how: "post", path: "secrets", body: plain},
		{user: accounts, how: "merge", path: "secrets/ordinary", body: label("a", "b")},
		{user: accounts, how: "delete", path: "secrets/ordinary"},
		{user: accounts, how: "delete", path: "secrets"}, // the ordinary one is among them
		{user: accounts, how: "post", path: "secrets", body: accountSecret(with("new", "metadata", "annotations", "credentials.cozystack.io/history"))},
		{user: accounts, how: "post", path: "secrets", body: accountSecret(without("metadata", "annotations"))},
		{user: accounts, how: "post", path: "secrets", body: accountSecret(without("metadata", "labels"))},
		{user: accounts, how: "post", path: "secrets", body: accountSecret(nil), allowed: true},
		{user: accounts, how: "merge", path: target, body: patched(`"labels": {` + ownLabels + `, "cnpg.io/reload": "true"}`), allowed: true},
		{user: accounts, how: "merge", path: target, body: label("internal.cozystack.io/tenantresource", "true"), allowed: true},
		{user: accounts, how: "merge", path: target, body: patched(nobodys), allowed: true},
		{user: accounts, how: "delete", path: target, allowed: true},

		{user: projector, how: "merge", path: target, body: `{` + newPassword + `}`},
		{user: projector, how: "merge", path: target, body: `{` + newPassword + `, ` + newLedger + `}`},
		{user: projector, how: "merge", path: target, body: `{"data": {"username": "bmV3"}}`},
		{user: projector, how: "merge", path: target, body: `{"immutable": true}`},
		{user: projector, how: "merge", path: target, body: note("credentials.cozystack.io/ledger", "new")},
		{user: projector, how: "merge", path: target, body: note("credentials.cozystack.io/other", "new")},
		{user: projector, how: "merge", path: target, body: note("cnpg.io/hold", "new")},
		{user: projector, how: "merge", path: target, body: patched(`"annotations": {"foreign/kept": null}`)},
		{user: projector, how: "merge", path: target, body: label("cnpg.io/reload", "true")},
		{user: projector, how: "merge", path: target, body: patched(`"labels": {"credentials.cozystack.io/account": null}`)},
		{user: projector, how: "merge", path: target, body: patched(nobodys)},
		{user: projector, how: "merge", path: target, body: patched(`"finalizers": ["projector/keeps"]`)},
		{user: projector, how: "merge", path: "secrets/ordinary", body: note("credentials.cozystack.io/history", "new")},
		{user: projector, how: "post", path: "secrets", body: accountSecret(nil)},
		{user: projector, how: "post", path: "secrets", body: accountSecret(with("new", "metadata", "annotations", "credentials.cozystack.io/history"))},
		{user: projector, how: "delete", path: target},
		{user: projector, how: "merge", path: target, body: note("credentials.cozystack.io/history", "new"), allowed: true},
		{user: projector, how: "merge", path: target, body: patched(`"annotations": {"credentials.cozystack.io/history": null}`), allowed: true},
	}
	for _, controller := range []string{collector, cleaner, "system:kube-controller-manager"} {
		attempts = append(attempts,
			attempt{user: controller, how: "merge", path: target, body: `{` + newPassword + `}`},
			attempt{user: controller, how: "merge", path: target, body: patched(`"labels": {"credentials.cozystack.io/account": null}`)},
			attempt{user: controller, how: "merge", path: target, body: note("credentials.cozystack.io/history", "new")},
			attempt{user: controller, how: "post", path: "secrets", body: accountSecret(nil)},
			attempt{user: controller, how: "merge", path: target, body: patched(`"ownerReferences": null`), allowed: true},
			attempt{user: controller, how: "merge", path: target, body: patched(`"finalizers": null`), allowed: true},
			attempt{user: controller, how: "delete", path: target, allowed: true},
			attempt{user: controller, how: "delete", path: "secrets", allowed: true})
	}
	return append(attempts,
		attempt{user: admin, how: "merge", path: target, body: `{` + newPassword + `}`, allowed: true},
		attempt{user: admin, how: "merge", path: target, body: `{"immutable": true, "data": {"more": "bmV3"}}`, allowed: true},
		attempt{user: admin, how: "merge", path: target, body: patched(`"annotations": null, "labels": null, "ownerReferences": null, "finalizers": ["a/b"]`), allowed: true},
		attempt{user: admin, how: "post", path: "secrets", body: accountSecret(with("new", "metadata", "annotations", "credentials.cozystack.io/history")), allowed: true},
		attempt{user: admin, how: "delete", path: target, allowed: true},
		attempt{user: admin, how: "delete", path: "secrets", allowed: true})
}

const rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/" + forge + "/"

func role(name, rule string) string {
	return fmt.Sprintf(`{"metadata": {"name": %q}, "rules": [%s]}`, name, rule)
}

func binding(name, kind, of, subject string) string {
	return fmt.Sprintf(`{"metadata": {"name": %q}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": %q, "name": %q}, "subjects": [%s]}`,
		name, kind, of, subject)
}

func onGrants() []attempt {
	const (
		granted = `{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["postgres-x.app.account"], "verbs": ["get", "patch"]}`
		toHim   = `{"kind": "ServiceAccount", "namespace": "mintlog", "name": "projector"}`
	)
	attempts := []attempt{
		{user: accounts, how: "post", path: rbac + "roles", body: role("credentials-new", granted), allowed: true},
		{user: accounts, how: "post", path: rbac + "roles", body: role("credentials-new", `{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["_"], "verbs": ["get", "patch"]}`), allowed: true},
		{user: accounts, how: "post", path: rbac + "rolebindings", body: binding("credentials-new", "Role", "credentials-new", toHim), allowed: true},
		{user: accounts, how: "merge", path: rbac + "roles/credentials-postgres-x", body: note("credentials.cozystack.io/found", "[]"), allowed: true},
		{user: accounts, how: "delete", path: rbac + "roles/credentials-postgres-x", allowed: true},
		{user: accounts, how: "delete", path: rbac + "rolebindings/credentials-postgres-x", allowed: true},
		{user: accounts, how: "post", path: rbac + "roles", body: role("other", granted)},
		{user: accounts, how: "merge", path: rbac + "roles/ordinary", body: label("a", "b")},
		{user: accounts, how: "delete", path: rbac + "roles/ordinary"},
		{user: accounts, how: "delete", path: rbac + "roles"},
		{user: accounts, how: "delete", path: rbac + "rolebindings/ordinary"},
		{user: accounts, how: "post", path: rbac + "rolebindings", body: binding("other", "Role", "other", toHim)},
		{user: accounts, how: "post", path: rbac + "rolebindings", body: binding("credentials-new", "ClusterRole", "credentials-new", toHim)},
		{user: accounts, how: "post", path: rbac + "rolebindings", body: binding("credentials-new", "ClusterRole", "mintlog-mint", toHim)},
		{user: accounts, how: "post", path: rbac + "rolebindings", body: binding("credentials-new", "Role", "ordinary", toHim)},
		{user: accounts, how: "merge", path: rbac + "rolebindings/credentials-postgres-x", body: `{"subjects": [` + toHim + `, {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "eve"}]}`},
		{user: eve, how: "post", path: rbac + "roles", body: `{"metadata": {"name": "credentials-planted", "annotations": {"credentials.cozystack.io/found": "[]"}}, "rules": [` + granted + `]}`},
		{user: eve, how: "merge", path: rbac + "roles/credentials-postgres-x", body: note("credentials.cozystack.io/found", "[]")},
		{user: eve, how: "merge", path: rbac + "roles/credentials-postgres-x", body: note("credentials.cozystack.io/first-sight", "2000-01-01T00:00:00Z")},
		{user: eve, how: "merge", path: rbac + "roles/credentials-postgres-x", body: patched(`"annotations": null`)},
		{user: eve, how: "put", path: rbac + "roles/credentials-postgres-x", body: note("credentials.cozystack.io/found", "[]")},
		{user: eve, how: "merge", path: rbac + "roles/credentials-postgres-x", body: label("a", "b"), allowed: true},
		{user: eve, how: "delete", path: rbac + "roles/credentials-postgres-x", allowed: true},
		{user: eve, how: "post", path: rbac + "roles", body: role("hers", granted), allowed: true},
		{user: admin, how: "merge", path: rbac + "roles/credentials-postgres-x", body: note("credentials.cozystack.io/found", "[]"), allowed: true},
	}
	for _, rule := range []string{
		`{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "patch"]}`,
		`{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["ordinary"], "verbs": ["get"]}`,
		`{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["postgres-x.app.account"], "verbs": ["get", "list"]}`,
		`{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["postgres-x.app.account"], "verbs": ["*"]}`,
		`{"apiGroups": [""], "resources": ["secrets", "configmaps"], "resourceNames": ["postgres-x.app.account"], "verbs": ["get"]}`,
		`{"apiGroups": ["*"], "resources": ["secrets"], "resourceNames": ["postgres-x.app.account"], "verbs": ["get"]}`,
		granted + `, {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}`,
	} {
		attempts = append(attempts, attempt{user: accounts, how: "post", path: rbac + "roles", body: role("credentials-new", rule)})
	}
	for _, subject := range []string{
		`{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "eve"}`,
		`{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "projector"}`,
		`{"kind": "ServiceAccount", "namespace": "mintlog", "name": "mint"}`,
		`{"kind": "ServiceAccount", "namespace": "tenant-forge", "name": "projector"}`,
		toHim + `, {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "eve"}`,
	} {
		attempts = append(attempts, attempt{user: accounts, how: "post", path: rbac + "rolebindings", body: binding("credentials-new", "Role", "credentials-new", subject)})
	}
	return attempts
}

func onRecords() []attempt {
	const maps = "/api/v1/namespaces/mintlog/configmaps"
	record := `{"metadata": {"name": "mintlog-kinds"}, "data": {"Redis": "2000-01-01T00:00:00Z"}}`
	return []attempt{
		{user: eve, how: "merge", path: maps + "/mintlog-kinds", body: `{"data": {"Postgres": "2000-01-01T00:00:00Z"}}`},
		{user: eve, how: "merge", path: maps + "/mintlog-kinds", body: `{"data": null}`},
		{user: eve, how: "merge", path: maps + "/mintlog-kinds", body: `{"binaryData": {"Redis": "bmV3"}}`},
		{user: eve, how: "merge", path: maps + "/mintlog-kinds", body: `{"immutable": true}`},
		{user: eve, how: "apply", path: maps + "/mintlog-kinds?fieldManager=eve&force=true", body: `{"apiVersion": "v1", "kind": "ConfigMap", "data": {"Postgres": "2000-01-01T00:00:00Z"}}`},
		{user: mint, how: "merge", path: maps + "/mintlog-kinds", body: `{"data": {"Postgres": "2000-01-01T00:00:00Z"}}`},
		{user: eve, how: "merge", path: maps + "/mintlog-kinds", body: label("a", "b"), allowed: true},
		{user: eve, how: "delete", path: maps + "/mintlog-kinds", allowed: true},
		{user: eve, how: "post", path: maps, body: strings.Replace(record, "mintlog-kinds", "other", 1), allowed: true},
		{user: eve, how: "post", path: "/api/v1/namespaces/" + forge + "/configmaps", body: record, allowed: true},
		{user: accounts, how: "merge", path: maps + "/mintlog-kinds", body: `{"data": {"Redis": "2000-01-01T00:00:00Z"}}`, allowed: true},
		{user: admin, how: "merge", path: maps + "/mintlog-kinds", body: `{"data": {"Redis": "2000-01-01T00:00:00Z"}}`, allowed: true},
	}
}

func onApplications() []attempt {
	const releases = "/apis/helm.toolkit.fluxcd.io/v2/namespaces/" + forge + "/helmreleases"
	values := func(more string) string {
		return `{"spec": {"valuesFrom": [{"kind": "Secret", "name": "cozystack-values"}` + more + `]}}`
	}
	handed := `, {"kind": "Secret", "name": "postgres-x.app.account", "valuesKey": "password", "targetPath": "users.app.password"}`
	return []attempt{
		{user: accounts, how: "merge", path: releases + "/postgres-x", body: values(handed), allowed: true},
		{user: accounts, how: "merge", path: releases + "/postgres-x", body: note("reconcile.fluxcd.io/requestedAt", "now"), allowed: true},
		{user: accounts, how: "merge", path: releases + "/postgres-x", body: `{"spec": {"valuesFrom": null}}`},
		{user: accounts, how: "merge", path: releases + "/postgres-x", body: values(`, {"kind": "Secret", "name": "ordinary"}`)},
		{user: accounts, how: "merge", path: releases + "/postgres-x", body: values(`, {"kind": "ConfigMap", "name": "a.b.account"}`)},
		{user: accounts, how: "merge", path: releases + "/postgres-x", body: `{"spec": {"values": {"users": {}}}}`},
		{user: accounts, how: "merge", path: releases + "/postgres-x", body: `{"spec": {"serviceAccountName": "root"}}`},
		{user: accounts, how: "merge", path: releases + "/postgres-x", body: `{"spec": {"interval": null}}`},
		{user: accounts, how: "merge", path: releases + "/postgres-x", body: label("apps.cozystack.io/application.kind", "Redis")},
		{user: accounts, how: "merge", path: releases + "/postgres-x", body: note("other", "new")},
		{user: accounts, how: "merge", path: releases + "/postgres-x", body: patched(`"annotations": {"kept": null}`)},
		{user: accounts, how: "merge", path: releases + "/postgres-x", body: patched(nobodys)},
		{user: accounts, how: "merge", path: releases + "/postgres-x", body: patched(`"finalizers": ["a/b"]`)},
		{user: accounts, how: "merge", path: releases + "/postgres-x/status", body: `{"status": {"observedGeneration": 7}}`},
		{user: accounts, how: "post", path: releases, body: `{"apiVersion": "helm.toolkit.fluxcd.io/v2", "kind": "HelmRelease", "metadata": {"name": "new"}, "spec": {}}`},
		{user: accounts, how: "delete", path: releases + "/postgres-x"},
		{user: eve, how: "merge", path: releases + "/postgres-x", body: `{"spec": {"values": {"users": {}}}}`, allowed: true},
	}
}

// attempts are all, by the policy that they are about.
func attempts() map[string][]attempt {
	return map[string][]attempt{
		"mintlog-account-secrets": onAccountSecrets(),
		"mintlog-grants":          onGrants(),
		"mintlog-records":         onRecords(),
		"mintlog-applications":    onApplications(),
	}
}

// prepare lays what the attempts are about, once: all attempts are dry runs.
var prepare = sync.OnceValue(func() error {
	ctx, release := contextOf()
	defer release()
	if err := cluster.AddNamespace(ctx, forge); err != nil {
		return err
	}
	for _, namespace := range []string{forge, sandbox.Namespace} {
		_, err := cluster.Apply(ctx, namespace, map[string]any{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": map[string]any{"name": "everything"},
			"roleRef": map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
			"subjects": []any{
				map[string]any{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": eve},
				map[string]any{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": mint},
				map[string]any{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": accounts},
				map[string]any{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": projector},
				map[string]any{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": collector},
				map[string]any{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": cleaner},
				map[string]any{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "system:kube-controller-manager"},
			},
		})
		if err != nil {
			return err
		}
	}
	owner, err := cluster.InstallRelease(ctx, forge, "Postgres", "x", map[string]any{})
	if err != nil {
		return err
	}
	const releases = "/apis/helm.toolkit.fluxcd.io/v2/namespaces/" + forge + "/helmreleases"
	owners := fmt.Sprintf(`"ownerReferences": [{"apiVersion": "helm.toolkit.fluxcd.io/v2", "kind": "HelmRelease", "name": "postgres-x", "uid": %q}]`, owner.GetUID())
	granted := `{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["postgres-x.app.account"], "verbs": ["get", "patch"]}`
	for _, o := range []struct{ path, body string }{
		{"/api/v1/namespaces/" + forge + "/secrets", `{"metadata": {"name": "postgres-x.app.account", ` + owners + `, "labels": {` + ownLabels + `},
			"annotations": {"credentials.cozystack.io/ledger": "old", "credentials.cozystack.io/origin": "Minted", "credentials.cozystack.io/history": "old",
				"credentials.cozystack.io/kept": "old", "foreign/kept": "old"}},
			"type": "kubernetes.io/basic-auth", "data": {"username": "YXBw", "password": "b2xk"}}`},
		{"/api/v1/namespaces/" + forge + "/secrets", `{"metadata": {"name": "foreign.app.account"}, "type": "Opaque"}`},
		{"/api/v1/namespaces/" + forge + "/secrets", `{"metadata": {"name": "ordinary"}, "data": {"password": "b2xk"}}`},
		{rbac + "roles", role("ordinary", granted)},
		{rbac + "rolebindings", binding("ordinary", "Role", "ordinary", "")},
		{rbac + "roles", `{"metadata": {"name": "credentials-postgres-x", "annotations": {"credentials.cozystack.io/found": "[\"app\"]",
			"credentials.cozystack.io/first-sight": "2026-01-01T00:00:00Z"}}, "rules": [` + granted + `]}`},
		{rbac + "rolebindings", binding("credentials-postgres-x", "Role", "credentials-postgres-x", `{"kind": "ServiceAccount", "namespace": "mintlog", "name": "projector"}`)},
	} {
		if a, err := send(ctx, admin, "post", o.path, o.body); err != nil || a.code != 201 {
			return fmt.Errorf("laying %s: %s: %w", o.path, a, err)
		}
	}
	if _, err := cluster.Apply(ctx, sandbox.Namespace, map[string]any{ // another test may have left it
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "mintlog-kinds"}, "data": map[string]any{"Postgres": "2026-01-01T00:00:00Z"},
	}); err != nil {
		return err
	}
	a, err := send(ctx, admin, "merge", releases+"/postgres-x", note("kept", "old"))
	if err == nil && a.code != 200 {
		err = fmt.Errorf("noting on the HelmRelease: %s", a)
	}
	return err
})

// try makes an attempt as a dry run, and returns nil if its end is as wanted.
func (a attempt) try(t *testing.T) error {
	path := a.path
	if !strings.HasPrefix(path, "/") {
		path = "/api/v1/namespaces/" + forge + "/" + path
	}
	body := a.body
	if a.how == "put" {
		is := must(t, admin, "get", path, "")
		body = merged(t, string(is.body), a.body)
	}
	dry := "?dryRun=All"
	if strings.Contains(path, "?") {
		dry = "&dryRun=All"
	}
	got, err := send(t.Context(), a.user, a.how, path+dry, body)
	if err != nil {
		return err
	}
	denied := got.code == 403 && strings.Contains(got.String(), "ValidatingAdmissionPolicy 'mintlog-")
	switch {
	case a.allowed && got.code >= 300:
		return fmt.Errorf("%s must be allowed: %s", a, got)
	case !a.allowed && !denied:
		return fmt.Errorf("%s must be denied by a policy: %s", a, got)
	}
	return nil
}

// merged is one JSON object with another laid over it.
func merged(t *testing.T, base, over string) string {
	t.Helper()
	var a, b map[string]any
	require.NoError(t, json.Unmarshal([]byte(base), &a))
	require.NoError(t, json.Unmarshal([]byte(over), &b))
	lay(a, b)
	text, err := json.Marshal(a)
	require.NoError(t, err)
	return string(text)
}

func lay(base, over map[string]any) {
	for key, value := range over {
		inner, isMap := value.(map[string]any)
		below, wasMap := base[key].(map[string]any)
		if isMap && wasMap {
			lay(below, inner)
			continue
		}
		base[key] = value
	}
}

func TestEachPartWritesWhatIsItsOwnAndNobodyElseDoes(t *testing.T) {
	require.NoError(t, prepare())
	for policy, attempts := range attempts() {
		for _, a := range attempts {
			assert.NoError(t, a.try(t), policy)
		}
	}
}

// policies are the rendered policies by name.
func policies(t *testing.T) map[string]*admissionregistrationv1.ValidatingAdmissionPolicy {
	t.Helper()
	text, err := cluster.RenderChart(t.Context(), "--skip-schema-validation", "--show-only", "templates/policies.yaml", "--set", "policies.breakGlassGroup="+sandbox.BreakGlassGroup)
	require.NoError(t, err)
	all := map[string]*admissionregistrationv1.ValidatingAdmissionPolicy{}
	require.NoError(t, documents(text, func(kind metav1.TypeMeta, document []byte) error {
		if kind.Kind != "ValidatingAdmissionPolicy" {
			return nil
		}
		p := &admissionregistrationv1.ValidatingAdmissionPolicy{}
		err := unmarshal(document, p)
		all[p.Name] = p
		return err
	}))
	return all
}

// A mutant is a policy with a hole.
type mutant struct {
	name   string
	policy *admissionregistrationv1.ValidatingAdmissionPolicy
}

// mutants are the policy with each validation left out, and with each comparison of old and new taken for the same.
func mutants(p *admissionregistrationv1.ValidatingAdmissionPolicy) []mutant {
	var all []mutant
	for i, v := range p.Spec.Validations {
		m := p.DeepCopy()
		m.Spec.Validations = slices.Delete(m.Spec.Validations, i, i+1)
		if len(m.Spec.Validations) == 0 {
			m.Spec.Validations = []admissionregistrationv1.Validation{{Expression: "true"}}
		}
		all = append(all, mutant{"without: " + v.Message, m})
	}
	for i, v := range p.Spec.Variables {
		if strings.HasSuffix(strings.ToLower(v.Name), "same") {
			m := p.DeepCopy()
			m.Spec.Variables[i].Expression = "true"
			all = append(all, mutant{v.Name + " is true", m})
		}
	}
	return all
}

func TestAHoleInAPolicyIsFound(t *testing.T) {
	require.NoError(t, prepare())
	all := policies(t)
	require.Len(t, all, 4)
	defer func() {
		for _, p := range all {
			replace(t, p)
		}
		settle(t)
	}()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		found := attempts()[name]
		for _, m := range mutants(all[name]) {
			replace(t, m.policy)
			var by *attempt
			for deadline := time.Now().Add(10 * time.Second); by == nil && time.Now().Before(deadline); {
				for i := range found {
					if !found[i].allowed && found[i].try(t) != nil {
						by = &found[i]
						break
					}
				}
			}
			if assert.NotNil(t, by, "nothing finds %s %s", name, m.name) {
				t.Logf("%s %s: found by %s", name, m.name, by)
			}
			replace(t, all[name])
			// The hole is closed again when what found it is denied.
			if by != nil {
				within(t, 10*time.Second, func() error { return by.try(t) })
			}
		}
	}
}

func replace(t *testing.T, p *admissionregistrationv1.ValidatingAdmissionPolicy) {
	t.Helper()
	p = p.DeepCopy()
	p.TypeMeta = metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "ValidatingAdmissionPolicy"}
	text, err := json.Marshal(p)
	require.NoError(t, err)
	must(t, admin, "apply", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/"+p.Name+"?fieldManager=sandbox&force=true", string(text))
}

func settle(t *testing.T) {
	t.Helper()
	require.NoError(t, cluster.AwaitPolicies(t.Context()))
}

func TestBreakingTheGlassIsOnTheLog(t *testing.T) {
	require.NoError(t, prepare())
	const secret = "/api/v1/namespaces/" + forge + "/" + target
	for i, c := range []struct {
		path, body string
		said       string // "": what is changed is not guarded
	}{
		{secret, note("credentials.cozystack.io/history", "restored"), `"mintlog-account-secrets/break-glass":"UPDATE by cluster-admin"`},
		{secret, note("foreign/kept", "new"), ""},
		{rbac + "roles/credentials-postgres-x", note("credentials.cozystack.io/values", "{}"), `"mintlog-grants/break-glass":"UPDATE by cluster-admin"`},
		{rbac + "roles/credentials-postgres-x", label("a", "b"), ""},
		{"/api/v1/namespaces/mintlog/configmaps/mintlog-kinds", `{"data": {"Kafka": "2026-01-01T00:00:00Z"}}`, `"mintlog-records/break-glass":"UPDATE by cluster-admin"`},
		{"/api/v1/namespaces/mintlog/configmaps/mintlog-kinds", label("a", "b"), ""},
	} {
		id := fmt.Sprintf("00000000-0000-4000-8000-%011d%d", time.Now().UnixNano()%1e11, i)
		config := as(admin)
		config.Wrap(withAuditID(id))
		a, err := sendWith(t.Context(), config, "merge", c.path, c.body)
		require.NoError(t, err)
		require.Equal(t, 200, a.code, a)
		within(t, 10*time.Second, func() error {
			log, err := os.ReadFile(cluster.AuditLog(0))
			if err != nil {
				return err
			}
			for line := range bytes.Lines(log) {
				if !bytes.Contains(line, []byte(id)) {
					continue
				}
				require.Equal(t, c.said != "", bytes.Contains(line, []byte("/break-glass\":")), "%s", line)
				require.Contains(t, string(line), c.said)
				return nil
			}
			return fmt.Errorf("the audit log has not %s %s yet", c.path, c.body)
		})
	}
}

func TestAPartSeesThatAPolicyIsGoneAndThatItIsBack(t *testing.T) {
	const bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/"
	for _, policy := range []string{admission.AccountSecrets, admission.Grants} {
		check, registry := newCheck(t, "accounts", []string{policy})
		require.NoError(t, check.Await(t.Context()))
		require.Equal(t, 1.0, gauge(t, registry))

		binding := must(t, admin, "get", bindings+policy, "")
		must(t, admin, "delete", bindings+policy, "")
		awaitOpen(t, check, registry)
		require.ErrorIs(t, check.Await(t.Context()), admission.ErrOpen)

		must(t, admin, "post", strings.TrimSuffix(bindings, "/"), anew(t, binding.body))
		require.NoError(t, check.Await(t.Context()))
		require.Equal(t, 1.0, gauge(t, registry))
	}
}

// awaitOpen waits until a policy that was taken away denies no more.
func awaitOpen(t *testing.T, check *admission.Check, registry *prometheus.Registry) {
	t.Helper()
	within(t, 10*time.Second, func() error {
		check.Look(t.Context())
		if gauge(t, registry) != 0 {
			return errors.New("the policy is still in force")
		}
		return nil
	})
}

func TestAPolicyForOtherIdentitiesIsNotInForce(t *testing.T) {
	check, _ := newCheck(t, "ingest", []string{admission.AccountSecrets})
	err := check.Await(t.Context())
	require.ErrorIs(t, err, admission.ErrOpen)
	require.Contains(t, err.Error(), "mintlog-policy-probe")
}

func TestAPartDoesNotRunWhileAPolicyIsNotInForceUnlessItIsToldTo(t *testing.T) {
	const binding = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/" + admission.Grants
	is := must(t, admin, "get", binding, "")
	must(t, admin, "delete", binding, "")
	defer func() {
		must(t, admin, "post", strings.TrimSuffix(binding, "/"+admission.Grants), anew(t, is.body))
		settle(t)
	}()
	check, registry := newCheck(t, "accounts", []string{admission.Grants})
	awaitOpen(t, check, registry)
	arguments := []string{"accounts", "--metrics-address=", "--kubeconfig=" + accountsKubeconfig(t)}

	out, err := run(t, nil, "mintlog", arguments...)
	require.Error(t, err)
	require.Contains(t, out, "accounts: an admission policy is not in force: mintlog-grants lets accounts change what it must not")
	require.Contains(t, out, "--admission-policies=warn")

	warned, err := cluster.Run(t.Context(), "accounts-warned", "bin/mintlog", append(arguments, "--admission-policies=warn")...)
	require.NoError(t, err)
	within(t, 20*time.Second, func() error {
		log, err := os.ReadFile(warned.LogFile())
		if err == nil && !bytes.Contains(log, []byte("going on without an admission policy")) {
			err = fmt.Errorf("it has not warned yet: %s", log)
		}
		return err
	})
	require.True(t, warned.Running())
	require.NoError(t, warned.Stop())
}
