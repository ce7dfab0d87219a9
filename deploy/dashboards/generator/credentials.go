//lint:file-ignore SA1019 the classic form is what Cozystack keeps and its Grafana operator takes

package main

import (
	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/logs"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/text"
)

// credentials shows a platform's accounts: when their passwords last changed, what disagrees, and who asked.
func credentials() *dashboard.DashboardBuilder {
	const inNamespace = `{namespace=~"$namespace"}`
	choice := func(name, label, definition string) *dashboard.QueryVariableBuilder {
		return dashboard.NewQueryVariableBuilder(name).Label(label).Datasource(metrics()).
			Query(dashboard.StringOrMap{String: cog.ToPtr(definition)}).Definition(definition).
			Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Sort(dashboard.VariableSortAlphabeticalAsc).
			Multi(true).IncludeAll(true).AllValue(".*")
	}
	return page("mintlog-credentials", "Mintlog / Credentials",
		"Accounts of all enrolled namespaces: when each password last changed and by which operation, where ledger and audit log disagree, and who asked for what.").
		Time("now-7d", "now").
		WithVariable(dashboard.NewDatasourceVariableBuilder(logsVariable).Label("Logs").Type(logsPlugin)).
		WithVariable(choice("namespace", "Namespace", "label_values(mintlog_credential_last_change_timestamp_seconds, namespace)")).
		WithRow(row("Now")).
		WithPanel(number("Unattributed", "Operations that no request in the audit log accounts for. Anything above 0 is worth waking for.", "short", 4,
			limits(base("green"), from(1, "red")), now(`max(mintlog_findings{type="Unattributed"})`, "Unattributed"))).
		WithPanel(number("Out of band", "Stored passwords that somebody other than the mint server wrote.", "short", 4,
			limits(base("green"), from(1, "red")), now(`max(mintlog_findings{type="OutOfBand"})`, "Out of band"))).
		WithPanel(number("Other findings", "All other places where ledger and log disagree, or where the log has a gap.", "short", 4,
			limits(base("green"), from(1, "orange")), now(`sum(max by (type) (mintlog_findings{type!~"Unattributed|OutOfBand"}))`, "Others"))).
		WithPanel(number("Waiting for a name", "Operations of the last two minutes whose event has not come yet.", "short", 4,
			limits(base("blue"), from(10, "orange")), now(`max(mintlog_attributions{attribution="Pending"})`, "Pending"))).
		WithPanel(number("Accounts by origin", "Where the present password came from. NotIssued: nobody has it.", "short", 8,
			limits(base("text")), now(`max by (origin) (mintlog_accounts)`, "{{origin}}"))).
		WithRow(row("Passwords")).
		WithPanel(lastChanges(`time() - max by (namespace, credential, operation) (mintlog_credential_last_change_timestamp_seconds` + inNamespace + `)`)).
		WithPanel(limit(curve("Age of the oldest passwords", "The ten that have not changed for the longest. An account whose first password nobody has asked for is left out.", "s", 10,
			query(`topk(10, time() - max by (namespace, credential) (mintlog_credential_last_change_timestamp_seconds{namespace=~"$namespace",operation!="create"}))`, "{{namespace}}/{{credential}}")), 365*86400, "orange").
			Height(14)).
		WithRow(row("Operations")).
		WithPanel(curve("Operations by outcome", "Requests for mints and revokes by the answer that the mint server gave. 409: somebody else was first, or a precondition did not hold. 503: nothing can be said to have changed; look before you mint again.", "short", 12,
			query(`sum by (operation, code) (increase(mintlog_operations_total[$__rate_interval]))`, "{{operation}} {{code}}"))).
		WithPanel(curve("Time to answer", "From a request's reception to its answer.", "s", 12,
			query(`histogram_quantile(0.5, sum by (operation, le) (rate(mintlog_operation_duration_seconds_bucket[$__rate_interval])))`, "{{operation}} median"),
			query(`histogram_quantile(0.99, sum by (operation, le) (rate(mintlog_operation_duration_seconds_bucket[$__rate_interval])))`, "{{operation}} 99 %"))).
		WithPanel(curve("Findings", "By type, over time. They stay for as long as the operation is among the account's newest ten.", "short", 12,
			query(`max by (type) (mintlog_findings) > 0`, "{{type}}"))).
		WithPanel(curve("Operations in the histories by attribution", "AuditLog: the log says who. Platform: nobody asked. Expired: the evidence is older than the log is kept.", "short", 12,
			query(`max by (attribution) (mintlog_attributions)`, "{{attribution}}"))).
		WithRow(row("Who")).
		WithPanel(who()).
		WithPanel(text.NewPanelBuilder().Title("About this list").Description("How far it can be trusted.").Span(24).Height(4).Mode(text.TextModeMarkdown).
			Content("No metric holds a name: this asks the archive. It lists *requests that were let through*; a code proves nothing on its own, and an `impersonatedUser` is who was acted for. " +
				"`mintlog who` says the same with commits and denials, [docs/queries.md](https://github.com/mintlog/mintlog/blob/main/docs/queries.md) has more questions, and the history of a credential (`kubectl credentials history`) is what has been checked against the ledger."))
}

// lastChanges is a table of each account's last operation, oldest first.
func lastChanges(age string) *table.PanelBuilder {
	override := func(properties ...any) []dashboard.DynamicConfigValue {
		var all []dashboard.DynamicConfigValue
		for i := 0; i < len(properties); i += 2 {
			all = append(all, dashboard.DynamicConfigValue{Id: properties[i].(string), Value: properties[i+1]})
		}
		return all
	}
	return table.NewPanelBuilder().Title("Last change of each password").
		Description("Oldest first. Create is the platform's seeding with bytes that nobody saw; migrate took over a password that existed before.").
		Datasource(metrics()).Span(14).Height(14).
		WithTarget(now(age, "").Format(prometheusTable).RefId("A")).
		WithTransformation(dashboard.DataTransformerConfig{Id: "organize", Options: map[string]any{
			"excludeByName": map[string]bool{"Time": true},
			"indexByName":   map[string]int{"namespace": 0, "credential": 1, "operation": 2, "Value": 3},
			"renameByName":  map[string]string{"namespace": "Namespace", "credential": "Credential", "operation": "Operation", "Value": "Age"},
		}}).
		Thresholds(limits(base("green"), from(90*86400, "yellow"), from(365*86400, "orange"))).
		OverrideByName("Age", override("unit", "s", "decimals", 0, "custom.cellOptions", map[string]any{"type": "color-text"})).
		SortBy([]cog.Builder[common.TableSortByFieldState]{common.NewTableSortByFieldStateBuilder().DisplayName("Age").Desc(true)}).
		Filterable(true)
}

// who lists what was asked for and let through, by the query of docs/queries.md.
func who() *logs.PanelBuilder {
	return logs.NewPanelBuilder().Title("Who asked for passwords").
		Description("From the archive, newest first: mints and revokes that kube-apiserver let through, in the chosen namespaces.").
		Datasource(source(logsPlugin, logsVariable)).Span(24).Height(12).
		WithTarget(ask(`_stream:{log_source="audit_log",stage=~"ResponseComplete|Panic"} verb:=create ` +
			`"objectRef.apiGroup":="credentials.cozystack.io" "objectRef.resource":=credentials "objectRef.subresource":in(mint,revoke) ` +
			`"annotations.authorization.k8s.io/decision":=allow "objectRef.namespace":~"^(${namespace:regex})$" ` +
			`| uniq by (_time, auditID, "objectRef.namespace", "objectRef.name", "objectRef.subresource", user_username, "impersonatedUser.username", "responseStatus.code") ` +
			`| format if ("impersonatedUser.username":="") "<objectRef.subresource> <objectRef.namespace>/<objectRef.name> by <user_username>: <responseStatus.code>" as _msg ` +
			`| format if ("impersonatedUser.username":!="") "<objectRef.subresource> <objectRef.namespace>/<objectRef.name> by <user_username> as <impersonatedUser.username>: <responseStatus.code>" as _msg ` +
			`| sort by (_time desc) | limit 500`)).
		ShowTime(true).WrapLogMessage(true).EnableLogDetails(true).
		SortOrder(common.LogsSortOrderDescending).DedupStrategy(common.LogsDedupStrategyNone)
}
