//lint:file-ignore SA1019 the classic form is what Cozystack keeps and its Grafana operator takes

package main

import (
	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// The variables of the data sources, as Cozystack's dashboards name them, and their plugins.
const (
	metricsVariable, metricsPlugin = "ds_prometheus", "prometheus"
	logsVariable, logsPlugin       = "ds_logs", "victoriametrics-logs-datasource"
)

func source(plugin, variable string) common.DataSourceRef {
	return common.DataSourceRef{Type: cog.ToPtr(plugin), Uid: cog.ToPtr("${" + variable + "}")}
}

func metrics() common.DataSourceRef { return source(metricsPlugin, metricsVariable) }

// page is an empty dashboard that asks for metrics.
func page(uid, title, description string) *dashboard.DashboardBuilder {
	return dashboard.NewDashboardBuilder(title).Uid(uid).Description(description).
		Tags([]string{"mintlog"}).Timezone("browser").Readonly().Refresh("1m").
		Tooltip(dashboard.DashboardCursorSyncCrosshair).
		WithVariable(dashboard.NewDatasourceVariableBuilder(metricsVariable).Label("Metrics").Type(metricsPlugin))
}

// query is one question in PromQL.
func query(expr, legend string) *prometheus.DataqueryBuilder {
	return prometheus.NewDataqueryBuilder().Datasource(metrics()).Expr(expr).LegendFormat(legend)
}

// now asks for the present value alone.
func now(expr, legend string) *prometheus.DataqueryBuilder {
	return query(expr, legend).Instant()
}

// limits colour what is above each; the first has no value.
func limits(steps ...dashboard.Threshold) *dashboard.ThresholdsConfigBuilder {
	return dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).Steps(steps)
}

func from(value float64, colour string) dashboard.Threshold {
	return dashboard.Threshold{Value: cog.ToPtr(value), Color: colour}
}

func base(colour string) dashboard.Threshold { return dashboard.Threshold{Color: colour} }

// number is a panel of present values.
func number(title, description, unit string, width uint32, colours *dashboard.ThresholdsConfigBuilder, queries ...*prometheus.DataqueryBuilder) *stat.PanelBuilder {
	return stat.NewPanelBuilder().Title(title).Description(description).Datasource(metrics()).Unit(unit).
		Span(width).Height(5).Thresholds(colours).
		ColorScheme(dashboard.NewFieldColorBuilder().Mode(dashboard.FieldColorModeIdThresholds)).
		ColorMode(common.BigValueColorModeValue).GraphMode(common.BigValueGraphModeNone).
		ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"})).
		Targets(targets(queries))
}

// curve is a panel of values over time.
func curve(title, description, unit string, width uint32, queries ...*prometheus.DataqueryBuilder) *timeseries.PanelBuilder {
	return timeseries.NewPanelBuilder().Title(title).Description(description).Datasource(metrics()).Unit(unit).
		Span(width).Height(8).Min(0).FillOpacity(10).LineWidth(1).
		ShowPoints(common.VisibilityModeNever).
		Legend(common.NewVizLegendOptionsBuilder().ShowLegend(true).DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom)).
		Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending)).
		Targets(targets(queries))
}

// limit draws a line at a value, from which on the panel is in the given colour.
func limit(panel *timeseries.PanelBuilder, value float64, colour string) *timeseries.PanelBuilder {
	return panel.Thresholds(limits(base("transparent"), from(value, colour))).
		ThresholdsStyle(common.NewGraphThresholdsStyleConfigBuilder().Mode(common.GraphThresholdsStyleModeLine))
}

func targets(queries []*prometheus.DataqueryBuilder) []cog.Builder[variants.Dataquery] {
	var all []cog.Builder[variants.Dataquery]
	for i, q := range queries {
		all = append(all, q.RefId(string(rune('A'+i))))
	}
	return all
}

// row is a heading.
func row(title string) *dashboard.RowBuilder { return dashboard.NewRowBuilder(title) }
