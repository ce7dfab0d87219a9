package main

import "github.com/grafana/grafana-foundation-sdk/go/cog/variants"

// A logsQuery is a question in LogsQL, which the SDK has no type for.
type logsQuery struct {
	Datasource any    `json:"datasource"`
	Expr       string `json:"expr"`
	QueryType  string `json:"queryType"`
	RefID      string `json:"refId"`
}

func (logsQuery) ImplementsDataqueryVariant() {}

// DataqueryType is the plugin's.
func (logsQuery) DataqueryType() string { return logsPlugin }

// Equals reports whether it is the same question.
func (q logsQuery) Equals(other variants.Dataquery) bool {
	o, ok := other.(logsQuery)
	return ok && o.Expr == q.Expr && o.RefID == q.RefID
}

// Validate finds no fault: what LogsQL is, VictoriaLogs says.
func (logsQuery) Validate() error { return nil }

// Build makes it a builder of itself.
func (q logsQuery) Build() (variants.Dataquery, error) { return q, nil }

func ask(expr string) logsQuery {
	return logsQuery{Datasource: source(logsPlugin, logsVariable), Expr: expr, QueryType: "instant", RefID: "A"}
}
