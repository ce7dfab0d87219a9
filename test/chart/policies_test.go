package chart

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	authorizationv1 "k8s.io/api/authorization/v1"
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

// seeded is a new account Secret as the accounts role writes it, with what differs from that.
func seeded(change func(secret map[string]any)) string {
	return accountSecret(func(secret map[string]any) {
		with("NotIssued", "metadata", "annotations", "credentials.cozystack.io/origin")(secret)
		with(`{"entries": [{"operation": "Create"}]}`, "metadata", "annotations", "credentials.cozystack.io/ledger")(secret)
		if change != nil {
			change(secret)
		}
	})
}

// many are JSON fields eve/0, eve/1 and so on with one value.
func many(number int, value string) string {
	var fields []string
	for i := range number {
		fields = append(fields, fmt.Sprintf(`"eve/%d": %s`, i, value))
	}
	return strings.Join(fields, ", ")
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
		{user: eve, how: "post", path: "secrets", body: seeded(nil)},
		{user: eve, how: "post", path: "secrets", body: accountSecret(with("Opaque", "type"))},
		{user: eve, how: "post", path: "secrets", body: accountSecret(without("metadata", "labels"))},
		{user: eve, how: "apply", path: "secrets/postgres-x.new.account?fieldManager=eve", body: accountSecret(nil)},
		{user: eve, how: "merge", path: target, body: note("eve/notes", strings.Repeat("€", 683))},
		{user: eve, how: "merge", path: target, body: patched(`"annotations": {` + many(28, `""`) + `}`)},
		{user: eve, how: "merge", path: target, body: patched(`"labels": {` + many(30, `""`) + `}`)},
		{user: eve, how: "merge", path: "secrets/swollen.app.account", body: note("foreign/kept", "new")},
		{user: eve, how: "merge", path: "secrets/ordinary", body: label("credentials.cozystack.io/account", "true")},
		{user: eve, how: "post", path: "secrets", body: seeded(with("plain", "metadata", "name"))},
		{user: eve, how: "merge", path: target, body: `{}`, allowed: true},
		{user: eve, how: "merge", path: target, body: note("eve/notes", strings.Repeat("€", 682)), allowed: true},
		{user: eve, how: "merge", path: target, body: patched(`"annotations": {` + many(27, `""`) + `}, "labels": {` + many(29, `""`) + `}`), allowed: true},
		{user: eve, how: "merge", path: "secrets/swollen.app.account", body: patched(`"annotations": {` + many(20, "null") + `}, "labels": {` + many(20, "null") + `}`), allowed: true},
		{user: eve, how: "merge", path: "secrets/ordinary", body: label("credentials.cozystack.io/account", "false"), allowed: true},
		{user: eve, how: "merge", path: target, body: `{"data": {"password": "b2xk"}}`, allowed: true}, // what it is
		{user: eve, how: "merge", path: target, body: note("eve/notes", "new"), allowed: true},
		{user: eve, how: "merge", path: target, body: label("eve", "was-here"), allowed: true},
		{user: eve, how: "post", path: "secrets", body: plain, allowed: true},
		{user: eve, how: "post", path: "secrets", body: strings.Replace(plain, `"plain"`, `"my.account"`, 1), allowed: true},
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
		{user: mint, how: "post", path: "secrets", body: accountSecret(with([]any{"mint/keeps"}, "metadata", "finalizers"))},
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
		{user: accounts, how: "merge", path: target, body: patched(`"labels": {"credentials.cozystack.io/account": null}`)},
		{user: accounts, how: "merge", path: target, body: label("internal.cozystack.io/tenantresource", "true")},
		{user: accounts, how: "merge", path: target, body: patched(`"finalizers": ["accounts/keeps"]`)},
		{user: accounts, how: "post", path: "secrets", body: seeded(with("new", "metadata", "annotations", "credentials.cozystack.io/history"))},
		{user: accounts, how: "post", path: "secrets", body: seeded(without("metadata", "annotations"))},
		{user: accounts, how: "post", path: "secrets", body: seeded(without("metadata", "labels"))},
		{user: accounts, how: "post", path: "secrets", body: accountSecret(nil)},
		{user: accounts, how: "post", path: "secrets", body: seeded(with("Minted", "metadata", "annotations", "credentials.cozystack.io/origin"))},
		{user: accounts, how: "post", path: "secrets", body: seeded(with(`{"entries": [{"operation": "Mint"}]}`, "metadata", "annotations", "credentials.cozystack.io/ledger"))},
		{user: accounts, how: "post", path: "secrets", body: seeded(with(`{"entries": [{"operation": "Revoke"}]}`, "metadata", "annotations", "credentials.cozystack.io/ledger"))},
		{user: accounts, how: "post", path: "secrets", body: seeded(with(`{"entries": [{"operation": "M\u0069nt"}]}`, "metadata", "annotations", "credentials.cozystack.io/ledger"))},
		{user: accounts, how: "post", path: "secrets", body: seeded(nil), allowed: true},
		{user: accounts, how: "merge", path: target, body: patched(`"labels": {` + ownLabels + `, "cnpg.io/reload": "true"}`), allowed: true},
		{user: accounts, how: "merge", path: "secrets/swollen.app.account", body: patched(`"labels": {` + ownLabels + `}`), allowed: true},
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
			attempt{user: controller, how: "post", path: "secrets", body: seeded(nil)},
			attempt{user: controller, how: "merge", path: target, body: patched(`"ownerReferences": null`), allowed: true},
			attempt{user: controller, how: "merge", path: target, body: patched(`"finalizers": null`), allowed: true},
			attempt{user: controller, how: "merge", path: "secrets/swollen.app.account", body: patched(`"ownerReferences": null, "finalizers": null`), allowed: true},
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
		hisOwn  = `{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "rob"}`
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
		{user: eve, how: "merge", path: rbac + "roles/credentials-postgres-x", body: note("credentials.cozystack.io/values", "{}")},
		{user: eve, how: "merge", path: rbac + "roles/credentials-postgres-x", body: patched(`"annotations": null`)},
		// What a Role of that name granted was no more than he has, and what it will grant is.
		{user: rob, how: "post", path: rbac + "rolebindings", body: binding("his", "Role", "credentials-lure", hisOwn)},
		{user: rob, how: "merge", path: rbac + "rolebindings/credentials-lure", body: `{"subjects": [` + toHim + `, ` + hisOwn + `]}`},
		{user: rob, how: "post", path: rbac + "rolebindings", body: binding("his", "Role", "credentials-lure", toHim), allowed: true},
		{user: rob, how: "post", path: rbac + "rolebindings", body: binding("his", "Role", "roles-only", hisOwn), allowed: true},
		{user: rob, how: "delete", path: rbac + "rolebindings/credentials-lure", allowed: true},
		{user: eve, how: "post", path: rbac + "rolebindings", body: binding("hers", "Role", "credentials-lure", hisOwn), allowed: true},
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
		{user: accounts, how: "merge", path: releases + "/postgres-x", body: values(strings.Replace(handed, "postgres-x", "postgres-y", 1))},
		{user: accounts, how: "merge", path: releases + "/postgres-x", body: values(strings.Replace(handed, `, "targetPath": "users.app.password"`, "", 1))},
		{user: accounts, how: "merge", path: releases + "/postgres-x", body: values(strings.Replace(handed, `"password"`, `"username"`, 1))},
		{user: accounts, how: "merge", path: releases + "/postgres-x", body: note("reconcile.fluxcd.io/forceAt", "now")},
		{user: accounts, how: "merge", path: releases + "/postgres-x", body: note("credentials.cozystack.io/requested", "one"), allowed: true},
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
	for _, o := range []string{
		`{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "` + forge + `"}}`, everything, rolesOnly,
	} {
		if err := apply(ctx, forge, o); err != nil {
			return err
		}
	}
	if err := apply(ctx, sandbox.Namespace, everything); err != nil {
		return err
	}
	return errors.Join(furnish(ctx, forge), apply(ctx, sandbox.Namespace, kindsRecord)) // another test may have left it
})

// everything lets everybody whom the attempts name do all in a namespace.
var everything = func() string {
	var subjects []string
	for _, user := range []string{eve, mint, accounts, projector, collector, cleaner, "system:kube-controller-manager"} {
		subjects = append(subjects, fmt.Sprintf(`{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": %q}`, user))
	}
	return `{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "everything"},
		"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}, "subjects": [` + strings.Join(subjects, ", ") + `]}`
}()

// rolesOnly is what rob may do: he writes Roles and RoleBindings, and has no right on Secrets.
const rolesOnly = `{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "roles-only"}, "rules": [
	{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": ["get", "create", "update", "patch", "delete"]},
	{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]}`

const kindsRecord = `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mintlog-kinds"}, "data": {"Postgres": "2026-01-01T00:00:00Z"}}`

// apply lays an object as the cluster's admin, to whom no policy applies.
func apply(ctx context.Context, namespace, object string) error {
	var content map[string]any
	if err := json.Unmarshal([]byte(object), &content); err != nil {
		return err
	}
	_, err := cluster.Apply(ctx, namespace, content)
	return err
}

// furnish lays what the attempts are about in a namespace.
func furnish(ctx context.Context, namespace string) error {
	owner, err := cluster.InstallRelease(ctx, namespace, "Postgres", "x", map[string]any{})
	if err != nil {
		return err
	}
	owners := fmt.Sprintf(`"ownerReferences": [{"apiVersion": "helm.toolkit.fluxcd.io/v2", "kind": "HelmRelease", "name": "postgres-x", "uid": %q}]`, owner.GetUID())
	granted := `{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["postgres-x.app.account"], "verbs": ["get", "patch"]}`
	rbac, secrets := strings.ReplaceAll(rbac, forge, namespace), "/api/v1/namespaces/"+namespace+"/secrets"
	for _, o := range []struct{ path, body string }{
		{secrets, `{"metadata": {"name": "postgres-x.app.account", ` + owners + `, "labels": {` + ownLabels + `},
			"annotations": {"credentials.cozystack.io/ledger": "old", "credentials.cozystack.io/origin": "Minted", "credentials.cozystack.io/history": "old",
				"credentials.cozystack.io/kept": "old", "foreign/kept": "old"}},
			"type": "kubernetes.io/basic-auth", "data": {"username": "YXBw", "password": "b2xk"}}`},
		{secrets, `{"metadata": {"name": "foreign.app.account"}, "type": "Opaque"}`},
		// As others may have left them where the policies were not in force.
		{secrets, `{"metadata": {"name": "swollen.app.account", ` + owners + `, "finalizers": ["eve/keeps"], "labels": {` + many(40, `""`) + `}, "annotations": {` + many(40, `""`) + `}},
			"type": "kubernetes.io/basic-auth", "data": {"username": "YXBw", "password": "b2xk"}}`},
		{rbac + "rolebindings", binding("roles-only", "Role", "roles-only", `{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "rob"}`)},
		{rbac + "roles", role("credentials-lure", `{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}`)},
		{rbac + "rolebindings", binding("credentials-lure", "Role", "credentials-lure", "")},
		{secrets, `{"metadata": {"name": "ordinary"}, "data": {"password": "b2xk"}}`},
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
	a, err := send(ctx, admin, "merge", "/apis/helm.toolkit.fluxcd.io/v2/namespaces/"+namespace+"/helmreleases/postgres-x", note("kept", "old"))
	if err == nil && a.code != 200 {
		err = fmt.Errorf("noting on the HelmRelease: %s", a)
	}
	return errors.Join(err, awaitRights(ctx, namespace))
}

// awaitRights waits until kube-apiserver's authorizer, which has Roles and RoleBindings by a watch each, has all that was
// laid before.
func awaitRights(ctx context.Context, namespace string) error {
	for _, o := range []string{
		`{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "the-last"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]}`,
		`{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "the-last"},
			"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "the-last"}, "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "the-last"}]}`,
	} {
		if err := apply(ctx, namespace, o); err != nil {
			return err
		}
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "the-last", ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "get", Resource: "configmaps"},
	}}
	for {
		got, err := cluster.Kubernetes(admin, 0).AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil || got.Status.Allowed {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// in is the same attempt in a namespace that is furnished like the one that it names.
func (a attempt) in(namespace string) attempt {
	if !strings.HasPrefix(a.path, "/") {
		a.path = "/api/v1/namespaces/" + forge + "/" + a.path
	}
	a.path = strings.NewReplacer(forge, namespace, "/namespaces/"+sandbox.Namespace+"/", "/namespaces/"+namespace+"/").Replace(a.path)
	return a
}

// make makes an attempt as a dry run.
func (a attempt) make(t *testing.T) answer {
	t.Helper()
	if !strings.HasPrefix(a.path, "/") {
		a.path = "/api/v1/namespaces/" + forge + "/" + a.path
	}
	body := a.body
	if a.how == "put" {
		is := must(t, admin, "get", a.path, "")
		body = merged(t, string(is.body), a.body)
	}
	dry := "?dryRun=All"
	if strings.Contains(a.path, "?") {
		dry = "&dryRun=All"
	}
	got, err := send(t.Context(), a.user, a.how, a.path+dry, body)
	require.NoError(t, err)
	return got
}

// deniedBy is whether an answer says that the policy of that name, or one whose name begins so, has denied.
func (a answer) deniedBy(policy string) bool {
	return a.code == 403 && strings.Contains(a.String(), "ValidatingAdmissionPolicy '"+policy)
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
			got := a.make(t)
			if a.allowed {
				assert.Less(t, got.code, 300, "%s must be allowed: %s", a, got)
			} else {
				assert.True(t, got.deniedBy(policy), "%s must be denied by %s: %s", a, policy, got)
			}
		}
	}
}

func TestEachPolicyCompilesForEverythingThatItIsAbout(t *testing.T) {
	client := cluster.Kubernetes(admin, 0).AdmissionregistrationV1().ValidatingAdmissionPolicies()
	for _, name := range admission.All() {
		within(t, 2*time.Minute, func() error {
			p, err := client.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if p.Status.TypeChecking == nil || p.Status.ObservedGeneration != p.Generation {
				return fmt.Errorf("nobody has looked at %s yet", name)
			}
			require.Empty(t, p.Status.TypeChecking.ExpressionWarnings, name)
			return nil
		})
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

// A mutant is a policy with a hole, under a name of its own and in force in a namespace of its own, where the one that it
// was made of is not.
type mutant struct {
	hole      string
	policy    *admissionregistrationv1.ValidatingAdmissionPolicy
	namespace string
}

// mutantsOf labels the namespaces of a policy's mutants.
const mutantsOf = "mutants-of"

// canary is what every mutant denies to be named: by it we see that the mutant is in force.
const canary = "canary"

// mutants are the policy with each validation left out, and with each comparison of old and new taken for the same.
func mutants(p *admissionregistrationv1.ValidatingAdmissionPolicy) []mutant {
	var all []mutant
	forbidden := metav1.StatusReasonForbidden
	add := func(hole string, change func(spec *admissionregistrationv1.ValidatingAdmissionPolicySpec)) {
		m := mutant{hole: hole, policy: p.DeepCopy()}
		m.policy.Name = fmt.Sprintf("%s-%d", p.Name, len(all))
		m.namespace = "forge-" + m.policy.Name
		change(&m.policy.Spec)
		const isCanary = `object != null && object.metadata.name == "` + canary + `"`
		m.policy.Spec.Validations = append(m.policy.Spec.Validations, admissionregistrationv1.Validation{Expression: "!(" + isCanary + ")", Reason: &forbidden})
		for i, c := range m.policy.Spec.MatchConditions {
			m.policy.Spec.MatchConditions[i].Expression = isCanary + " || " + c.Expression
		}
		m.policy.Spec.MatchConstraints.NamespaceSelector = nil // it is the binding's
		all = append(all, m)
	}
	for i, v := range p.Spec.Validations {
		add("without: "+v.Message, func(spec *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
			spec.Validations = slices.Delete(spec.Validations, i, i+1)
		})
	}
	for i, v := range p.Spec.Variables {
		if strings.HasSuffix(strings.ToLower(v.Name), "same") {
			add(v.Name+" is true", func(spec *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
				spec.Variables[i].Expression = "true"
			})
		}
	}
	return all
}

// bindingOf binds a policy in the namespaces of a selector, JSON.
func bindingOf(policy, selector string) string {
	return fmt.Sprintf(`{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": %q},
		"spec": {"policyName": %[1]q, "validationActions": ["Deny", "Audit"], "matchResources": {"namespaceSelector": %s}}}`, policy, selector)
}

// release puts a mutant in force in its namespace.
func (m mutant) release(t *testing.T, of string) {
	t.Helper()
	m.policy.TypeMeta = metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "ValidatingAdmissionPolicy"}
	policy, err := json.Marshal(m.policy)
	require.NoError(t, err)
	for _, o := range []string{
		fmt.Sprintf(`{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": %q, "labels": {%q: %q}}}`, m.namespace, mutantsOf, of), everything, rolesOnly,
		string(policy), bindingOf(m.policy.Name, fmt.Sprintf(`{"matchLabels": {"kubernetes.io/metadata.name": %q}}`, m.namespace)),
	} {
		require.NoError(t, apply(t.Context(), m.namespace, o))
	}
	require.NoError(t, furnish(t.Context(), m.namespace))
	require.NoError(t, apply(t.Context(), m.namespace, kindsRecord))
}

// awaitInForce waits until a mutant denies the canary.
func (m mutant) awaitInForce(t *testing.T) {
	t.Helper()
	kind := map[string]string{
		"secrets": `"apiVersion": "v1", "kind": "Secret", `, "configmaps": `"apiVersion": "v1", "kind": "ConfigMap", `, "roles": "",
		"helmreleases": `"apiVersion": "helm.toolkit.fluxcd.io/v2", "kind": "HelmRelease", "spec": {}, `,
	}
	resource := m.policy.Spec.MatchConstraints.ResourceRules[0].Resources[0]
	path := map[string]string{"roles": strings.ReplaceAll(rbac, forge, m.namespace) + "roles",
		"helmreleases": "/apis/helm.toolkit.fluxcd.io/v2/namespaces/" + m.namespace + "/helmreleases"}[resource]
	a := attempt{user: admin, how: "post", path: cmp.Or(path, "/api/v1/namespaces/"+m.namespace+"/"+resource), body: `{` + kind[resource] + `"metadata": {"name": "` + canary + `"}}`}
	within(t, 2*time.Minute, func() error {
		if got := a.make(t); !got.deniedBy(m.policy.Name + "'") {
			return fmt.Errorf("%s is not in force yet: %s", m.policy.Name, got)
		}
		return nil
	})
}

// hit is an attempt that must be denied and that a mutant lets through.
func (m mutant) hit(t *testing.T, attempts []attempt) *attempt {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); { // until the policy without a hole is out of force here
		for _, a := range attempts {
			if a = a.in(m.namespace); !a.allowed && a.make(t).code < 300 {
				return &a
			}
		}
	}
	return nil
}

func TestAHoleInAPolicyIsFound(t *testing.T) {
	require.NoError(t, prepare())
	all := policies(t)
	require.Len(t, all, len(admission.All()))
	mutated := map[string][]mutant{}
	for name, p := range all {
		mutated[name] = mutants(p)
		for _, m := range mutated[name] {
			m.release(t, name)
		}
	}
	t.Cleanup(func() {
		ctx, release := contextOf()
		defer release()
		client := cluster.Kubernetes(admin, 0).AdmissionregistrationV1()
		for name, ms := range mutated {
			for _, m := range ms {
				assert.NoError(t, client.ValidatingAdmissionPolicyBindings().Delete(ctx, m.policy.Name, metav1.DeleteOptions{}))
				assert.NoError(t, client.ValidatingAdmissionPolicies().Delete(ctx, m.policy.Name, metav1.DeleteOptions{}))
			}
			assert.NoError(t, apply(ctx, "", bindingOf(name, "{}")))
		}
	})
	for name, ms := range mutated {
		for _, m := range ms {
			m.awaitInForce(t)
		}
		// Only now, or what is let through would say nothing about the mutants.
		require.NoError(t, apply(t.Context(), "", bindingOf(name, fmt.Sprintf(`{"matchExpressions": [{"key": %q, "operator": "NotIn", "values": [%q]}]}`, mutantsOf, name))))
	}
	for name, ms := range mutated {
		for _, m := range ms {
			if by := m.hit(t, attempts()[name]); assert.NotNil(t, by, "nothing finds %s %s", name, m.hole) {
				t.Logf("%s %s: found by %s", name, m.hole, by)
			}
		}
	}
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
		within(t, 3*time.Minute, func() error {
			log, err := os.ReadFile(cluster.AuditLog(0))
			if err != nil {
				return err
			}
			for line := range bytes.Lines(log) {
				if !bytes.Contains(line, []byte(id)) || !bytes.HasSuffix(line, []byte("\n")) { // another's, or it is being written
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
	check, registry := newCheck(t, "accounts", admission.All())
	require.NoError(t, check.Await(t.Context()))
	was := map[string]string{}
	restore := sync.OnceFunc(func() {
		for _, binding := range was {
			must(t, admin, "post", strings.TrimSuffix(bindings, "/"), binding)
		}
		settle(t)
	})
	defer restore()
	for _, policy := range admission.All() {
		require.Equal(t, 1.0, inForce(t, registry)[policy], policy)
		was[policy] = anew(t, must(t, admin, "get", bindings+policy, "").body)
		must(t, admin, "delete", bindings+policy, "")
	}
	awaitInForce(t, check, registry, 0, admission.All()...)
	for _, policy := range admission.All() {
		alone, registry := newCheck(t, "accounts", []string{policy})
		require.ErrorIs(t, alone.Await(t.Context()), admission.ErrOpen, policy)
		require.Equal(t, map[string]float64{policy: 0}, inForce(t, registry))
	}
	restore()
	awaitInForce(t, check, registry, 1, admission.All()...)
}

// inForce is what the metric says of each policy.
func inForce(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families, 1)
	found := map[string]float64{}
	for _, m := range families[0].Metric {
		for _, l := range m.Label {
			if l.GetName() == "policy" {
				found[l.GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	return found
}

// awaitInForce waits until a check finds policies in force, 1, or out of it, 0.
func awaitInForce(t *testing.T, check *admission.Check, registry *prometheus.Registry, want float64, policies ...string) {
	t.Helper()
	within(t, 3*time.Minute, func() error {
		check.Look(t.Context())
		is := inForce(t, registry)
		for _, policy := range policies {
			if is[policy] != want {
				return fmt.Errorf("the metric is %v", is)
			}
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
	awaitInForce(t, check, registry, 0, admission.Grants)
	arguments := []string{"accounts", "--metrics-address=", "--kubeconfig=" + accountsKubeconfig(t)}

	warned, err := cluster.Run(t.Context(), "accounts-warned", "bin/mintlog", append(slices.Clone(arguments), "--admission-policies=warn")...)
	require.NoError(t, err)
	out, err := run(t, nil, "mintlog", arguments...)
	require.Error(t, err)
	require.Contains(t, out, "accounts: an admission policy is not in force: mintlog-grants lets accounts change what it must not")
	require.Contains(t, out, "--admission-policies=warn")
	within(t, 3*time.Minute, func() error {
		log, err := os.ReadFile(warned.LogFile())
		if err == nil && !bytes.Contains(log, []byte("going on without an admission policy")) {
			err = fmt.Errorf("it has not warned yet: %s", log)
		}
		return err
	})
	require.True(t, warned.Running())
	require.NoError(t, warned.Stop())
}
