// Writes the dashboards. It is a module of its own so that nothing of Grafana's is among the product's dependencies.
module github.com/mintlog/mintlog/deploy/dashboards/generator

go 1.26.0

require github.com/grafana/grafana-foundation-sdk/go v0.0.22 // indirect
