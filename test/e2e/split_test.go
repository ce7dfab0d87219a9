package e2e

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/test/sandbox"
	"github.com/mintlog/mintlog/test/sandbox/process"
)

// A split house runs every part as a process of its own, around a NATS server.
type splitHouse struct {
	*house
	nats  string
	parts map[string]*process.Process
}

func openSplit(t *testing.T, options sandbox.Options) *splitHouse {
	t.Helper()
	s := sandbox.Open(t, options)
	h := &splitHouse{house: &house{Sandbox: s}, parts: map[string]*process.Process{}}
	var err error
	h.nats, err = s.StartNATS(t.Context())
	require.NoError(t, err)
	certificate, key := s.MintCertificate()
	host, port, err := net.SplitHostPort(s.MintAddress())
	require.NoError(t, err)
	account := func(name string, apiserver int) string {
		file, err := s.ServiceAccountKubeconfig(t.Context(), name, apiserver)
		require.NoError(t, err)
		return "--kubeconfig=" + file
	}
	nats, victoriaLogs := "--nats="+h.nats, "--victorialogs="+s.VictoriaLogsURL()
	h.start(t, "mint", account("mint", 0), nats, "--bind-address="+host, "--secure-port="+port, "--tls-cert-file="+certificate, "--tls-private-key-file="+key)
	h.start(t, "accounts", account("accounts", 1))
	h.start(t, "project", account("projector", 1), nats)
	h.start(t, "archive", nats, victoriaLogs)
	logs := []string{nats, "--state=" + s.StateDirectory()}
	for _, log := range s.AuditLogs() {
		logs = append(logs, "--audit-log="+log)
	}
	h.start(t, "ingest", logs...)

	require.NoError(t, h.LayDefinition(t.Context()))
	require.NoError(t, h.LayAPI(t.Context()))
	require.NoError(t, h.AwaitFirstSight(t.Context(), "Postgres"))
	return h
}

func (h *splitHouse) start(t *testing.T, part string, arguments ...string) {
	t.Helper()
	p, err := h.Run(t.Context(), part, h.Binary(), append([]string{part, "--metrics-address="}, arguments...)...)
	require.NoError(t, err)
	h.parts[part] = p
}
