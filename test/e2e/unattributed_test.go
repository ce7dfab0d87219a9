package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/test/sandbox"
	"github.com/mintlog/mintlog/test/victorialogs"
)

func TestALineThatIsLostIsAGapThatExplainsItsMintUntilAReplayBringsItFromAnotherPipeline(t *testing.T) {
	t.Parallel()
	h := openSplit(t, sandbox.Options{AuditLogMaxMegabytes: 1})
	credential := h.application(t, "lost", "app") + ".app"
	h.mint(t, sandbox.Jane, 0, credential)
	h.awaitBy(t, credential, "jane", "")

	// A gap begins up to a quarter of a minute before the last line that was read, and the log has to be older than that
	// for another pipeline to have been there before.
	time.Sleep(time.Until(h.firstLogged(t, 0).Add(20 * time.Second)))
	h.request(t, 0, "")

	// Ingest is down while the log rotates, and the file with the mint in it is deleted.
	require.NoError(t, h.parts["ingest"].Stop())
	id := newAuditID()
	h.minted(t, call{person: sandbox.Jane, path: credential + "/mint", header: auditID(id)})
	h.awaitLogged(t, id, event.ResponseComplete)
	revision := h.ledger(t, credential).Newest().Revision
	h.rotate(t, 0)
	lines := h.auditLines(t)
	h.deleteRotated(t, 0)
	h.request(t, 0, "")
	require.NoError(t, h.parts["ingest"].Restart(t.Context()))

	within(t, 2*time.Minute, func() error {
		if listed := h.command(t, "gaps", "--nats="+h.nats, "--open"); !strings.Contains(listed, "Open ") {
			return errors.New(listed)
		}
		return nil
	})
	c := h.awaitWithin(t, 5*time.Minute, credential, func(c *v1alpha1.Credential) error {
		if c.Status.Password.Revision != revision {
			return errors.New("the view is behind")
		}
		if !hasFinding(c, "Unattributed") || !hasFinding(c, "Gap") {
			return fmt.Errorf("findings: %v", c.Status.Findings)
		}
		return nil
	})
	assert.Equal(t, "Unattributed", c.Status.History[0].Attribution)
	assert.Equal(t, "jane", c.Status.History[1].By, "what is attributed stays so")
	for _, f := range c.Status.Findings {
		assert.Equal(t, revision, f.Revision)
		if f.Type == "Gap" {
			assert.Contains(t, f.Message, "audit.log")
		}
	}
	within(t, 2*time.Minute, func() error {
		if shown := h.archived(t, `_time:1h _stream:{log_source="mintlog_gap"}`); !strings.Contains(shown, `"state":"open"`) {
			return errors.New("the archive does not tell of the gap")
		}
		return nil
	})

	// What our own archiver has proves nothing.
	replay := []string{"replay", "--nats=" + h.nats, "--victorialogs=" + h.VictoriaLogsURL(), "--since=1h"}
	said := h.command(t, replay...)
	assert.Contains(t, said, "left open the gap of ")
	assert.NotContains(t, said, "closed the gap of ")

	h.insertAsCozystack(t, append(lines, h.auditLines(t)...))
	said = h.command(t, replay...)
	assert.Contains(t, said, "closed the gap of ")
	assert.NotContains(t, said, "left open the gap of ")
	c = h.awaitCredential(t, credential, func(c *v1alpha1.Credential) error {
		if len(c.Status.Findings) > 0 {
			return fmt.Errorf("findings: %v", c.Status.Findings)
		}
		if err := by("jane", "")(c); err != nil {
			return err
		}
		if response := c.Status.History[0].Response; response != "Success" { // of its reception alone nothing is known
			return fmt.Errorf("the response is %s", response)
		}
		return nil
	})
	assert.NoError(t, allAttributed(c))
	assert.NotContains(t, h.command(t, "gaps", "--nats="+h.nats), "Open ")
}

// request is one that the audit log tells of, with so much in its URI.
func (h *house) request(t *testing.T, apiserver int, padding string) {
	t.Helper()
	config := h.RESTConfig(sandbox.ClusterAdmin, apiserver)
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	response, err := client.Get(config.Host + "/api/v1/namespaces/" + acme + "/secrets/none?padding=" + padding)
	require.NoError(t, err)
	_, _ = io.Copy(io.Discard, response.Body)
	require.NoError(t, response.Body.Close())
}

// rotate has a kube-apiserver rotate its audit log, which it does at a megabyte.
func (h *house) rotate(t *testing.T, apiserver int) {
	t.Helper()
	before := len(h.rotated(t, apiserver))
	padding := strings.Repeat("x", 16<<10)
	for range 200 {
		h.request(t, apiserver, padding)
		if len(h.rotated(t, apiserver)) > before {
			return
		}
	}
	t.Fatal("the audit log is not rotated")
}

// rotated are the files that a kube-apiserver has made of its audit log.
func (h *house) rotated(t *testing.T, apiserver int) []string {
	t.Helper()
	files, err := filepath.Glob(strings.TrimSuffix(h.AuditLog(apiserver), ".log") + "-*")
	require.NoError(t, err)
	return files
}

func (h *house) deleteRotated(t *testing.T, apiserver int) {
	t.Helper()
	for _, file := range h.rotated(t, apiserver) {
		require.NoError(t, os.Remove(file))
	}
}

// auditLines are the lines of all audit logs.
func (h *house) auditLines(t *testing.T) (lines [][]byte) {
	t.Helper()
	for apiserver := range h.AuditLogs() {
		lines = append(lines, h.auditLinesOf(t, apiserver)...)
	}
	return lines
}

func (h *house) auditLinesOf(t *testing.T, apiserver int) (lines [][]byte) {
	t.Helper()
	for _, file := range append(h.rotated(t, apiserver), h.AuditLog(apiserver)) {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, line := range bytes.Split(content, []byte("\n")) {
			if json.Valid(line) {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// firstLogged is when the request was received that is first in a kube-apiserver's audit log.
func (h *house) firstLogged(t *testing.T, apiserver int) time.Time {
	t.Helper()
	lines := h.auditLinesOf(t, apiserver)
	require.NotEmpty(t, lines)
	var first struct{ RequestReceivedTimestamp time.Time }
	require.NoError(t, json.Unmarshal(lines[0], &first))
	return first.RequestReceivedTimestamp
}

// insertAsCozystack puts lines of an audit log into VictoriaLogs as Cozystack's own pipeline does.
func (h *house) insertAsCozystack(t *testing.T, lines [][]byte) {
	t.Helper()
	var records []map[string]any
	for _, line := range lines {
		var record map[string]any
		require.NoError(t, json.Unmarshal(line, &record))
		record["date"] = record["requestReceivedTimestamp"]
		user, _ := record["user"].(map[string]any)
		for key, value := range user {
			record["user_"+key] = value
		}
		delete(record, "requestReceivedTimestamp")
		delete(record, "user")
		record["log_source"], record["tenant"], record["cluster"] = "audit_log", "tenant-root", "root"
		records = append(records, record)
	}
	victorialogs.InsertAsCozystack(t, h.VictoriaLogsURL(), records...)
}

// archived is what VictoriaLogs answers, with all that it was sent by then.
func (h *house) archived(t *testing.T, query string) string {
	t.Helper()
	return victorialogs.Ask(t, h.VictoriaLogsURL(), query+" | limit 100")
}

// command runs mintlog, which must succeed, and returns what it prints.
func (h *house) command(t *testing.T, arguments ...string) string {
	t.Helper()
	c := exec.CommandContext(ctx(t), h.Binary(), arguments...)
	var out, errors bytes.Buffer
	c.Stdout, c.Stderr = &out, &errors
	require.NoError(t, c.Run(), "mintlog %v: %s", arguments, &errors)
	return out.String()
}
