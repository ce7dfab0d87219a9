package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// buildMetric is where a part says of which version it is.
const buildMetric = "go_build_info"

func (d *Doctor) lookAtVersions(ctx context.Context) []Finding {
	var findings []Finding
	told := map[string][]string{}
	for _, given := range d.Metrics {
		shown := withoutPassword(given)
		version, err := readVersion(ctx, given)
		if err != nil {
			findings = append(findings, warn("see that this part runs, and that its --metrics-address can be reached from this machine", "%s does not tell its version: %s", shown, words(err)))
			continue
		}
		told[version] = append(told[version], shown)
	}
	return append(findings, judgeVersions(told, d.Version)...)
}

// withoutPassword is a URL as it may be shown.
func withoutPassword(given string) string {
	u, err := url.Parse(given)
	if err != nil {
		return "what --metrics names"
	}
	return u.Redacted()
}

func readVersion(ctx context.Context, address string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", errors.New("it is no URL") // the error would quote it, with the password that may stand in it
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("it answered %d", response.StatusCode)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return "", fmt.Errorf("its metrics cannot be read: %w", err)
	}
	for _, m := range families[buildMetric].GetMetric() {
		for _, label := range m.GetLabel() {
			if label.GetName() == "version" {
				return label.GetValue(), nil
			}
		}
	}
	return "", fmt.Errorf("there is no metric %s: it is older than this program, or no part of mintlog", buildMetric)
}

func judgeVersions(told map[string][]string, own string) []Finding {
	var findings []Finding
	var versions []string
	for version := range told {
		versions = append(versions, version)
	}
	slices.Sort(versions)
	for _, version := range versions {
		if version == own && len(versions) == 1 {
			findings = append(findings, good("%d parts are of version %s, as this program is", len(told[version]), version))
		} else if version != own {
			findings = append(findings, warn("bring all parts and this program to one version", "%s is of version %s, this program of %s", some(told[version]), version, own))
		}
	}
	return findings
}
