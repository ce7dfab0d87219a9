//lint:file-ignore SA1019 the classic form is what Cozystack keeps and its Grafana operator takes

// Command generator writes mintlog's Grafana dashboards, as plain JSON with variables for the data sources:
//
//	go -C deploy/dashboards/generator run . DIRECTORY
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: generator DIRECTORY")
		os.Exit(2)
	}
	for name, builder := range map[string]*dashboard.DashboardBuilder{"credentials": credentials(), "pipeline": pipeline()} {
		if err := write(filepath.Join(os.Args[1], name+".json"), builder); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func write(path string, builder *dashboard.DashboardBuilder) error {
	built, err := builder.Build()
	if err != nil {
		return fmt.Errorf("build %s: %w", path, err)
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(built); err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	if is, err := os.ReadFile(path); err == nil && bytes.Equal(is, text.Bytes()) {
		return nil
	}
	return os.WriteFile(path, text.Bytes(), 0o644)
}
