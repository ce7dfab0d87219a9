//lint:file-ignore SA1019 the classic form is what Cozystack keeps and its Grafana operator takes

package main

import (
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/heatmap"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
)

const (
	prometheusTable   = prometheus.PromQueryFormatTable
	prometheusHeatmap = prometheus.PromQueryFormatHeatmap
)

// pipeline shows whether events get from the audit logs to histories and archive.
func pipeline() *dashboard.DashboardBuilder {
	return page("mintlog-pipeline", "Mintlog / Pipeline",
		"From kube-apiserver's audit log through ingest and stream to histories and archive: what is late, full, lost, or about to end.").
		Time("now-6h", "now").
		WithRow(row("Now")).
		WithPanel(number("Open gaps", "Parts of audit logs known to be missing that no replay has closed.", "short", 4,
			limits(base("green"), from(1, "red")), now(`max(mintlog_gaps_open)`, "Gaps"))).
		WithPanel(number("Stream of events", "How full it is. At 100 % ingest stands still, and nothing is dropped.", "percentunit", 4,
			limits(base("green"), from(0.5, "yellow"), from(0.8, "red")), now(`max(mintlog_stream_events_bytes) / max(mintlog_stream_events_max_bytes)`, "Events"))).
		WithPanel(number("Evidence", "How full the bucket of matched events is. At 100 % new evidence is lost.", "percentunit", 4,
			limits(base("green"), from(0.5, "yellow"), from(0.8, "red")), now(`max(mintlog_stream_evidence_bytes) / max(mintlog_stream_evidence_max_bytes)`, "Evidence"))).
		WithPanel(number("Policies not in force", "Admission policies that let through what they must deny.", "short", 4,
			limits(base("green"), from(1, "red")), now(`count(min by (part, policy) (mintlog_admission_policy_in_force) == 0) or vector(0)`, "Policies"))).
		WithPanel(number("Certificates end in", "Renewed well before: below 14 days something is stuck.", "s", 8,
			limits(base("red"), from(7*86400, "orange"), from(14*86400, "green")),
			now(`min by (certificate) (mintlog_certificate_expiry_timestamp_seconds) - time()`, "{{certificate}}"))).
		WithRow(row("Ingest")).
		WithPanel(curve("Unread bytes of audit logs", "By log and node. What stays here while kube-apiserver rotates is lost.", "bytes", 8,
			query(`mintlog_ingest_lag_bytes`, "{{source}} {{instance}}"))).
		WithPanel(limit(curve("Behind the clock, while bytes are unread", "How old the last line is that was read.", "s", 8,
			query(`(time() - mintlog_ingest_position_timestamp_seconds) and mintlog_ingest_lag_bytes > 0`, "{{source}} {{instance}}")), 300, "red")).
		WithPanel(limit(curve("Since the last batch of each kube-apiserver", "For the audit webhook: only what was answered with 200 counts.", "s", 8,
			query(`time() - max by (source) (mintlog_ingest_webhook_last_batch_timestamp_seconds)`, "{{source}}")), 600, "red")).
		WithPanel(curve("Read", "Bytes of audit logs, in whichever way they come.", "Bps", 8,
			query(`sum by (source) (rate(mintlog_ingest_read_bytes_total[$__rate_interval]))`, "file {{source}}"),
			query(`sum(rate(mintlog_ingest_webhook_body_bytes_total[$__rate_interval]))`, "webhook"))).
		WithPanel(curve("Events of ours published", "Requests for mints and revokes, and writes of account Secrets.", "cps", 8,
			query(`sum(rate(mintlog_ingest_published_events_total[$__rate_interval]))`, "files"),
			query(`sum(rate(mintlog_ingest_webhook_published_events_total[$__rate_interval]))`, "webhook"),
			query(`sum(rate(mintlog_ingest_fluentbit_published_events_total[$__rate_interval]))`, "Fluent Bit"))).
		WithPanel(curve("Given up, by reason", "Bytes of files, items of webhooks, parts of Fluent Bit's chunks, and events that VictoriaLogs does not take. Each may have been an event of ours.", "short", 8,
			query(`sum by (reason) (increase(mintlog_ingest_dropped_bytes_total[$__rate_interval])) > 0`, "file bytes {{reason}}"),
			query(`sum by (reason) (increase(mintlog_ingest_webhook_set_aside_total[$__rate_interval])) > 0`, "webhook items {{reason}}"),
			query(`sum by (reason) (increase(mintlog_ingest_fluentbit_unused_total[$__rate_interval])) > 0`, "Fluent Bit {{reason}}"),
			query(`sum by (reason) (increase(mintlog_archive_set_aside_total[$__rate_interval])) > 0`, "archive {{reason}}"))).
		WithPanel(curve("Batches of webhooks not taken", "kube-apiserver repeats them, and drops them after about four minutes.", "short", 12,
			query(`sum by (reason) (increase(mintlog_ingest_webhook_rejected_total[$__rate_interval])) > 0`, "{{reason}}"))).
		WithPanel(curve("Publications refused or failed", "Ingest holds its position and tries again.", "short", 12,
			query(`sum(increase(mintlog_stream_full_total[$__rate_interval]))`, "stream full"),
			query(`sum(increase(mintlog_stream_publish_failed_total[$__rate_interval]))`, "failed"))).
		WithRow(row("Stream")).
		WithPanel(curve("Waiting for each consumer", "Messages not acknowledged.", "short", 8,
			query(`max by (consumer) (mintlog_stream_pending)`, "{{consumer}}"))).
		WithPanel(limit(curve("The oldest of them", "How long it has been in the stream. Receptions wait up to 76 s by design.", "s", 8,
			query(`max by (consumer) (mintlog_stream_lag_seconds)`, "{{consumer}}")), 120, "orange")).
		WithPanel(curve("Size", "Against the bound.", "bytes", 8,
			query(`max(mintlog_stream_events_bytes)`, "events"), query(`max(mintlog_stream_events_max_bytes)`, "events, bound"),
			query(`max(mintlog_stream_evidence_bytes)`, "evidence"), query(`max(mintlog_stream_evidence_max_bytes)`, "evidence, bound"))).
		WithRow(row("Histories")).
		WithPanel(heatmap.NewPanelBuilder().Title("From a request's end to its name in the history").
			Description("How many operations waited how long, by kube-apiserver's clock.").Datasource(metrics()).Span(12).Height(8).
			Unit("short").
			YAxis(heatmap.NewYAxisConfigBuilder().Unit("s")).
			WithTarget(query(`sum by (le) (increase(mintlog_projector_lag_seconds_bucket[$__rate_interval]))`, "{{le}}").Format(prometheusHeatmap).RefId("A")).
			Tooltip(heatmap.NewHeatmapTooltipBuilder().Mode(common.TooltipDisplayModeSingle))).
		WithPanel(limit(curve("The same, in numbers", "After two minutes an operation without a name is shown as Unattributed.", "s", 12,
			query(`histogram_quantile(0.5, sum by (le) (rate(mintlog_projector_lag_seconds_bucket[$__rate_interval])))`, "median"),
			query(`histogram_quantile(0.99, sum by (le) (rate(mintlog_projector_lag_seconds_bucket[$__rate_interval])))`, "99 %")), 60, "orange")).
		WithPanel(curve("Projector", "Histories made and written, and those that another write came before.", "cps", 12,
			query(`sum(rate(mintlog_projector_folds_total[$__rate_interval]))`, "made"),
			query(`sum(rate(mintlog_projector_patches_total[$__rate_interval]))`, "written"),
			query(`sum(rate(mintlog_projector_conflicts_total[$__rate_interval]))`, "made anew"))).
		WithPanel(curve("Projector's failures, by reason", "not_granted: the accounts role has not granted the Secret.", "short", 12,
			query(`sum by (reason) (increase(mintlog_projector_failures_total[$__rate_interval])) > 0`, "{{reason}}"))).
		WithRow(row("Archive")).
		WithPanel(curve("Archived", "Sent to VictoriaLogs, and acknowledged after they were read back.", "cps", 12,
			query(`sum(rate(mintlog_archive_inserted_total[$__rate_interval]))`, "sent"),
			query(`sum(rate(mintlog_archive_acknowledged_total[$__rate_interval]))`, "read back"))).
		WithPanel(curve("Archiver's trouble", "Calls that failed, and events that were sent and not found; each is tried again.", "short", 12,
			query(`sum(increase(mintlog_archive_errors_total[$__rate_interval]))`, "failed calls"),
			query(`sum(increase(mintlog_archive_unconfirmed_total[$__rate_interval]))`, "not found")))
}
