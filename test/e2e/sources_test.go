package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/stream"
	"github.com/mintlog/mintlog/test/sandbox"
	"github.com/mintlog/mintlog/test/sandbox/process"
)

// received are the arguments with which mintlog all receives audit events, and the file that tells kube-apiservers so.
func received(t *testing.T) (arguments []string, kubeconfig string) {
	t.Helper()
	directory := t.TempDir()
	write := func(name string, text []byte) string {
		path := filepath.Join(directory, name)
		require.NoError(t, os.WriteFile(path, text, 0o600))
		return path
	}
	issue := func(by *sandbox.Authority, identity sandbox.Identity, name string) (certificate, key string) {
		certificateText, keyText, err := by.Issue(identity)
		require.NoError(t, err)
		return write(name+".crt", certificateText), write(name+".key", keyText)
	}
	serving, err := sandbox.NewAuthority("webhook serving")
	require.NoError(t, err)
	clients, err := sandbox.NewAuthority("webhook clients")
	require.NoError(t, err)
	address, err := process.FreeAddress()
	require.NoError(t, err)
	certificate, key := issue(serving, sandbox.Identity{Name: "mintlog", Hosts: []string{"127.0.0.1"}}, "serving")
	arguments = []string{"--webhook-address=" + address, "--webhook-tls-cert-file=" + certificate, "--webhook-tls-private-key-file=" + key,
		"--webhook-client-ca-file=" + write("clients.crt", clients.PEM()), "--webhook-client-name=kube-apiserver"}
	certificate, key = issue(clients, sandbox.Identity{Name: "kube-apiserver"}, "client")
	root, err := process.Root()
	require.NoError(t, err)
	text, err := exec.Command(filepath.Join(root, "bin", "mintlog"), "ingest", "webhook-kubeconfig", "--server=https://"+address, "--name=cp-1",
		"--embed", "--certificate-authority="+write("serving.ca", serving.PEM()), "--client-certificate="+certificate, "--client-key="+key).Output()
	require.NoError(t, err, "make build")
	return arguments, write("webhook.yaml", text)
}

func TestAnEventThatComesByFilesWebhookAndReplayIsOneInHistoryEvidenceAndArchive(t *testing.T) {
	t.Parallel()
	webhook, kubeconfig := received(t)
	h := openHouse(t, sandbox.Options{ExtraAPIServerFlags: []string{
		"--audit-webhook-config-file=" + kubeconfig, "--audit-webhook-batch-max-wait=100ms",
	}}, webhook...)
	credential := h.application(t, "sources", "app") + ".app"
	var ids []string
	mint := func(apiserver int) {
		id := newAuditID()
		h.minted(t, call{person: sandbox.Jane, apiserver: apiserver, path: credential + "/mint", header: auditID(id)})
		ids = append(ids, id)
		h.awaitBy(t, credential, "jane", "")
	}
	mint(0)
	mint(1)
	for _, id := range ids {
		within(t, 2*time.Minute, func() error {
			if sources := h.sources(t, id); len(sources) != 1 || sources[0] != "webhook:cp-1" && !strings.HasPrefix(sources[0], "file:") {
				return fmt.Errorf("sources in the archive: %q", sources)
			}
			return nil
		})
	}

	// Another pipeline has all of it too, and a replay brings it once more.
	require.NoError(t, h.mintlog.Stop())
	h.insertAsCozystack(t, h.auditLines(t))
	said := h.command(t, "replay", "--state="+h.StateDirectory(), "--victorialogs="+h.VictoriaLogsURL(), "--since=1h")
	assert.NotContains(t, said, "replayed 0 events")
	require.NoError(t, h.RestartAll(t.Context(), h.mintlog))
	mint(0)
	c := h.awaitAttributed(t, credential)
	assert.Empty(t, c.Status.Findings)
	require.NoError(t, h.mintlog.Stop())
	book := h.ledger(t, credential)
	embedded, err := stream.Open(t.Context(), stream.Options{Directory: filepath.Join(h.StateDirectory(), "stream")})
	require.NoError(t, err)
	for _, entry := range book.Entries {
		if !slices.Contains(ids, entry.AuditID) {
			continue
		}
		digest := sha256.Sum256(fmt.Appendf(nil, "entry/%s/%d", book.Account, entry.Revision%32))
		value, _, err := embedded.Evidence().Get(t.Context(), hex.EncodeToString(digest[:]))
		require.NoError(t, err)
		var kept []event.Event
		require.NoError(t, json.Unmarshal(value, &kept))
		require.Len(t, kept, 1)
		assert.Equal(t, entry.AuditID, kept[0].AuditID)
	}
	require.NoError(t, embedded.Close())
	assert.Len(t, h.sources(t, ids[0]), 1, "it was not archived again")

	// What the webhook sends is enough.
	var arguments []string
	for _, argument := range append(h.AllArguments(), webhook...) {
		if !strings.HasPrefix(argument, "--audit-log=") {
			arguments = append(arguments, argument)
		}
	}
	h.mintlog, err = h.Run(t.Context(), "mintlog-by-webhook", h.Binary(), arguments...)
	require.NoError(t, err)
	require.NoError(t, h.LayAPI(t.Context()))
	h.awaitBy(t, credential, "jane", "")
	mint(1)
	within(t, 2*time.Minute, func() error {
		if sources := h.sources(t, ids[len(ids)-1]); !slices.Equal(sources, []string{"webhook:cp-1"}) {
			return fmt.Errorf("sources in the archive: %q", sources)
		}
		return nil
	})
}

// TestAnOperationIsAttributedThoughTheLogHasNoBodies is kubernetes#103889: requests for aggregated APIs are recorded
// without theirs.
func TestAnOperationIsAttributedThoughTheLogHasNoBodies(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "no-bodies", "app") + ".app"
	id := newAuditID()
	shared.minted(t, call{person: sandbox.Jane, path: credential + "/mint", header: auditID(id)})
	shared.awaitBy(t, credential, "jane", "")
	events := 0
	for _, line := range shared.auditLines(t) {
		var e struct{ Level, AuditID string }
		require.NoError(t, json.Unmarshal(line, &e))
		if e.AuditID == id {
			events++
			assert.Equal(t, "Metadata", e.Level)
			assert.NotContains(t, string(line), "requestObject")
			assert.NotContains(t, string(line), "responseObject")
		}
	}
	assert.GreaterOrEqual(t, events, 3, "reception and end of the request, and the commit")
}

// sources are those of the rows that the archive has, in mintlog's own shape, of the end of a request.
func (h *house) sources(t *testing.T, id string) []string {
	t.Helper()
	var sources []string
	query := fmt.Sprintf(`_time:1d auditID:=%q stage:=ResponseComplete "objectRef.resource":=credentials eventID:!="" | fields source`, id)
	for line := range strings.Lines(h.archived(t, query)) {
		var row struct{ Source string }
		require.NoError(t, json.Unmarshal([]byte(line), &row))
		sources = append(sources, row.Source)
	}
	return sources
}
