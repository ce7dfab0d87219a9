package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/mintlog/mintlog/ingest/fluentbit"
	"github.com/mintlog/mintlog/store/stream"
)

var updateMetrics = flag.Bool("update-metrics", false, "write docs/metrics.md anew")

const metricsHead = `# Metrics

Each part serves them under ` + "`/metrics`" + ` at its ` + "`--metrics-address`" + ` (port 9404 in the chart), beside those of the Go
runtime and of the process; the plugin for Fluent Bit at its ` + "`metrics_address`" + `. No label holds the name of who asked for
anything: that is in the histories and in the archive. What ends in ` + "`_total`" + ` counts from the start of the process; of a histogram there are ` + "`_bucket`, `_sum`" + `
and ` + "`_count`" + `. [alerts.md](alerts.md) says which of these to wake for.

| metric | labels | what it says |
|---|---|---|
`

// frontProxyAuthority is the URL of what answers the one question that the mint server asks before it counts anything.
func frontProxyAuthority(t *testing.T, ca string) string {
	text, err := os.ReadFile(ca)
	require.NoError(t, err)
	authority := corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"},
		Data: map[string]string{
			"requestheader-client-ca-file": string(text), "requestheader-allowed-names": `["front-proxy"]`,
			"requestheader-username-headers": `["X-Remote-User"]`, "requestheader-group-headers": `["X-Remote-Group"]`,
			"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
		},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(authority)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// everyMetric is the names, labels and helps of what a process with every part, and the plugin for Fluent Bit, registers.
func everyMetric(t *testing.T) []string {
	t.Helper()
	ca, certificate, key := webhookFiles(t)
	state := t.TempDir()
	kubeconfig := filepath.Join(state, "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: frontProxyAuthority(t, ca)}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"c": {}},
		Contexts:       map[string]*clientcmdapi.Context{"c": {Cluster: "c", AuthInfo: "c"}},
		CurrentContext: "c",
	}, kubeconfig))
	p := runtime{log: slog.New(slog.NewTextHandler(io.Discard, nil)), registry: prometheus.NewRegistry(), closers: &[]func() error{}}
	t.Cleanup(func() {
		for _, closer := range *p.closers {
			require.NoError(t, closer())
		}
	})
	s, err := (&streamFlags{state: state, replicas: 1, maxBytes: stream.DefaultMaxBytes, evidenceBytes: stream.DefaultEvidenceBytes}).open(t.Context(), p)
	require.NoError(t, err)
	house := houseFlags{namespace: "mintlog", policies: "require"}
	all := parts{}
	all.add((&mintFlags{bindAddress: "127.0.0.1", certFile: certificate, keyFile: key, retention: 24 * time.Hour, lastChange: true}).parts(p, house, &knownGaps{}, kubeconfig))
	all.add((&accountsFlags{projector: "projector", workers: 1, leader: leaderFlags{elect: true, duration: 15 * time.Second, deadline: 10 * time.Second, retry: time.Second}}).parts(p, house, kubeconfig))
	all.add((&ingestFlags{auditLogs: []string{filepath.Join(state, "audit.log")}}).parts(p, s, state))
	all.add((&webhookFlags{address: "127.0.0.1:0", certFile: certificate, keyFile: key, clientCAFile: ca, setAside: filepath.Join(state, "aside"), setAsideBytes: 1, retryAfter: time.Second}).parts(p, s))
	all.add((&projectFlags{own: []string{"mint"}, workers: 1}).parts(p, s, house, kubeconfig))
	all.add((&archiveFlags{url: "http://127.0.0.1:1"}).parts(p, s))
	require.NoError(t, all.err)
	_, err = fluentbit.New(fluentbit.Options{Name: "n", TagPrefix: "audit.", Publisher: s, Registerer: p.registry})
	require.NoError(t, err)

	described := make(chan *prometheus.Desc)
	go func() {
		p.registry.Describe(described)
		close(described)
	}()
	shape := regexp.MustCompile(`^Desc\{fqName: "(.*)", help: "(.*)", unit: "[^"]*", constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	rows := map[string]bool{}
	for d := range described {
		m := shape.FindStringSubmatch(d.String())
		require.NotNil(t, m, d.String())
		var labels []string
		for _, constant := range strings.Split(m[3], ",") {
			if name, _, ok := strings.Cut(constant, "="); ok {
				labels = append(labels, "`"+name+"`")
			}
		}
		for _, variable := range strings.Split(m[4], ",") {
			if variable != "" {
				labels = append(labels, "`"+variable+"`")
			}
		}
		slices.Sort(labels)
		rows[fmt.Sprintf("| `%s` | %s | %s |\n", m[1], strings.Join(labels, ", "), strings.ReplaceAll(m[2], `\"`, `"`))] = true
	}
	var sorted []string
	for row := range rows {
		sorted = append(sorted, row)
	}
	slices.Sort(sorted)
	return sorted
}

func TestTheCatalogueHasEveryMetricAndNoOther(t *testing.T) {
	var want bytes.Buffer
	want.WriteString(metricsHead)
	for _, row := range everyMetric(t) {
		want.WriteString(row)
	}
	path := filepath.Join("..", "..", "docs", "metrics.md")
	if *updateMetrics {
		require.NoError(t, os.WriteFile(path, want.Bytes(), 0o644))
	}
	is, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want.String(), string(is), "go test ./cmd/mintlog -run Catalogue -update-metrics writes it anew")
}

func TestEveryMetricIsPrefixedAndNoLabelHoldsAName(t *testing.T) {
	known := regexp.MustCompile("^\\| `mintlog_[a-z_]+` \\| (`[a-z_]+`)?(, `[a-z_]+`)* \\| [^|]+[.;0-9a-z)] \\|\n$")
	for _, row := range everyMetric(t) {
		require.Regexp(t, known, row)
		for _, label := range []string{"user", "username", "by", "caller", "who", "name"} {
			require.NotContains(t, row, "`"+label+"`")
		}
	}
}
