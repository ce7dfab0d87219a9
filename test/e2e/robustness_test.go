package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/store/archive"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/history"
	"github.com/mintlog/mintlog/store/ledger"
	"github.com/mintlog/mintlog/test/sandbox"
)

func TestAClientThatGoesAwayInMidMintLeavesNoTraceOrAnUnknownAnswerUnderHerName(t *testing.T) {
	credential := shared.application(t, "away", "app") + ".app"
	id := newAuditID()
	for attempt := 1; !shared.leavesInMidMint(t, credential, id, time.Duration(attempt)*time.Second); attempt++ {
		require.Less(t, attempt, 5, "no mint is done when its client has left")
		id = newAuditID()
	}
	newest := shared.ledger(t, credential).Newest()
	require.Equal(t, id, newest.AuditID)
	c := shared.awaitBy(t, credential, "jane", "")
	assert.Equal(t, "Unknown", c.Status.History[0].Response)

	// And whenever she goes, what stands in the ledger bears her name. The answer is Success where kube-apiserver had
	// sent it before she left, for that is what the log says, and Unknown otherwise.
	ids := map[string]bool{}
	for range 30 {
		id := newAuditID()
		ids[id] = true
		soon, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(20_000))*time.Microsecond)
		_, _ = shared.do(soon, call{person: sandbox.Jane, path: credential + "/mint", header: auditID(id)})
		cancel()
	}
	time.Sleep(2 * time.Second) // for commits that are on their way
	var book ledger.Ledger
	c = shared.awaitCredential(t, credential, func(c *v1alpha1.Credential) error {
		book = shared.ledger(t, credential)
		return errors.Join(isNewest(c, book.Newest()), allAttributed(c))
	})
	byID := map[string]v1alpha1.Operation{}
	for _, o := range c.Status.History {
		byID[o.ID] = o
	}
	for _, entry := range book.Entries[:min(len(book.Entries), history.MaxEntries)] {
		if ids[entry.AuditID] {
			assert.Equal(t, "jane", byID[entry.ID].By)
			assert.Contains(t, []string{"Success", "Unknown"}, byID[entry.ID].Response)
		}
	}
	assert.Empty(t, c.Status.Findings)
}

// leavesInMidMint asks for a mint as jane and goes away while mintlog stands still with the request in its hands, for as
// long as kube-apiserver is given to hand it on. It says whether the mint was done all the same: kube-apiserver may not
// have handed the request on yet.
func (h *house) leavesInMidMint(t *testing.T, credential, id string, handedOn time.Duration) (done bool) {
	t.Helper()
	h.mint(t, sandbox.Jane, 0, credential) // connections and authorization are warm
	pid := h.mintlog.PID()
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	resume := sync.OnceFunc(func() { assert.NoError(t, syscall.Kill(pid, syscall.SIGCONT)) })
	defer resume()
	staying, leave := context.WithCancel(t.Context())
	defer leave()
	left := make(chan error, 1)
	go func() {
		_, err := h.do(staying, call{person: sandbox.Jane, path: credential + "/mint", header: auditID(id)})
		left <- err
	}()
	h.awaitLogged(t, id, event.RequestReceived)
	time.Sleep(handedOn)
	leave()
	require.ErrorIs(t, <-left, context.Canceled)
	h.awaitLogged(t, id, event.ResponseComplete)
	resume()
	for deadline := time.Now().Add(30 * time.Second); !done && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		done = h.ledger(t, credential).HasAuditID(id)
	}
	require.NoError(t, h.LayAPI(ctx(t))) // a kube-apiserver that looked meanwhile takes it for gone
	return done
}

// isNewest wants the view to begin with an entry of the ledger.
func isNewest(c *v1alpha1.Credential, entry ledger.Entry) error {
	if len(c.Status.History) == 0 || c.Status.History[0].ID != entry.ID {
		return errors.New("the view is behind")
	}
	return nil
}

// awaitLogged waits until an audit log tells of a mint at a stage.
func (h *house) awaitLogged(t *testing.T, id string, stage event.Stage) {
	t.Helper()
	within(t, 2*time.Minute, func() error {
		for _, line := range h.auditLines(t) {
			if bytes.Contains(line, []byte(id)) && bytes.Contains(line, fmt.Appendf(nil, `"stage":%q`, stage)) && bytes.Contains(line, []byte(`"subresource":"mint"`)) {
				return nil
			}
		}
		return fmt.Errorf("no audit log tells of %s at the stage %s", id, stage)
	})
}

func TestAfterKillsUnderTrafficEveryHistoryIsExactAndTheArchiveAloneRebuildsIt(t *testing.T) {
	t.Parallel()
	h := openSplit(t, sandbox.Options{})
	release := h.application(t, "storm", "a", "b", "c", "d")
	credentials := []string{release + ".a", release + ".b", release + ".c", release + ".d"}
	run := h.startTraffic(t, credentials)
	for _, part := range []string{"project", "ingest", "mint", "archive", "ingest", "project", "mint"} {
		time.Sleep(1500 * time.Millisecond)
		h.parts[part].Kill()
		time.Sleep(300 * time.Millisecond)
		require.NoError(t, h.parts[part].Restart(t.Context()))
	}
	for _, credential := range credentials {
		within(t, 2*time.Minute, func() error {
			if entries := len(h.ledger(t, credential).Entries); entries < ledger.MaxEntries {
				return fmt.Errorf("the ledger of %s has %d entries", credential, entries)
			}
			return nil
		})
	}
	run.end()

	for _, credential := range credentials {
		h.awaitWithin(t, 2*time.Minute, credential, func(c *v1alpha1.Credential) error { return run.exact(c, h.ledger(t, credential)) })
	}

	// The archive has the events of all that is in the ledgers.
	for _, credential := range credentials {
		book := h.ledger(t, credential)
		h.awaitArchive(t, archive.Query{Namespace: acme, Credential: credential}, func(events []event.Event) error {
			requests, commits := map[string]bool{}, map[string]bool{}
			for _, e := range events {
				switch _, is := e.Operation(); {
				case is && e.Stage != event.RequestReceived && e.Outcome() != event.Refused:
					requests[e.AuditID] = true
				case e.IsWrite() && e.Outcome() != event.Refused: // 504, if the mint server was killed while etcd wrote
					commits[e.AuditID] = true
				}
			}
			for _, entry := range book.Entries {
				if !entry.Operation.ByPlatform() && (!requests[entry.AuditID] || !commits[entry.AuditID]) {
					return fmt.Errorf("of revision %d of %s (%s) the archive has the request: %t, the commit: %t", entry.Revision, credential, entry.AuditID,
						requests[entry.AuditID], commits[entry.AuditID])
				}
			}
			return nil
		})
	}
	h.rebuildFromArchive(t, credentials)
}

// rebuildFromArchive takes the stream, the evidence, ingest's checkpoint and every history away, and wants the archive
// alone to bring the histories back as they were, to the byte.
func (h *splitHouse) rebuildFromArchive(t *testing.T, credentials []string) {
	t.Helper()
	before := map[string]string{}
	for _, credential := range credentials {
		before[credential] = h.secret(t, credential).Annotations[history.Annotation]
		require.NotEmpty(t, before[credential])
	}
	for _, part := range []string{"ingest", "project", "archive"} {
		require.NoError(t, h.parts[part].Stop())
	}
	for _, credential := range credentials {
		patchSecret(t, h.house, credential, map[string]any{"metadata": map[string]any{"annotations": map[string]any{history.Annotation: nil}}})
	}
	state := filepath.Join(h.Directory(), "rebuilt") // with the servers, for they write to it until they end
	replay, err := h.Run(t.Context(), "replay", h.Binary(), "replay", "--state="+state, "--victorialogs="+h.VictoriaLogsURL(), "--since=1h")
	require.NoError(t, err)
	<-replay.Exited()
	require.NoError(t, replay.Result())

	arguments := h.AllArguments()
	for i, argument := range arguments {
		if strings.HasPrefix(argument, "--state=") {
			arguments[i] = "--state=" + state
		}
		if strings.HasPrefix(argument, "--audit-log=") {
			arguments[i] = "--audit-log=" + filepath.Join(state, "no-such.log")
		}
	}
	require.NoError(t, h.parts["mint"].Stop())
	_, err = h.Run(t.Context(), "all", h.Binary(), dedupe(arguments)...)
	require.NoError(t, err)
	for _, credential := range credentials {
		within(t, 2*time.Minute, func() error {
			if got := h.secret(t, credential).Annotations[history.Annotation]; got != before[credential] {
				return fmt.Errorf("the history of %s is not what it was", credential)
			}
			return nil
		})
	}
}

func dedupe(arguments []string) []string {
	var once []string
	seen := map[string]bool{}
	for _, a := range arguments {
		if !seen[a] {
			seen[a] = true
			once = append(once, a)
		}
	}
	return once
}

func patchSecret(t *testing.T, h *house, credential string, patch any) *corev1.Secret {
	t.Helper()
	body, err := json.Marshal(patch)
	require.NoError(t, err)
	secret, err := h.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().Secrets(acme).Patch(ctx(t), credential+".account", types.MergePatchType, body, metav1.PatchOptions{})
	require.NoError(t, err)
	return secret
}

func TestASecondStartOfAllCarriesOnWhereTheFirstWas(t *testing.T) {
	credential := shared.application(t, "again", "app") + ".app"
	run := shared.startTraffic(t, []string{credential})
	time.Sleep(time.Second)
	require.NoError(t, shared.mintlog.Stop(), "SIGTERM drains")
	time.Sleep(500 * time.Millisecond) // requests go on, and find nobody
	require.NoError(t, shared.RestartAll(t.Context(), shared.mintlog))
	time.Sleep(2 * time.Second)
	shared.mintlog.Kill()
	require.NoError(t, shared.RestartAll(t.Context(), shared.mintlog))
	time.Sleep(2 * time.Second)
	run.end()
	shared.awaitWithin(t, 2*time.Minute, credential, func(c *v1alpha1.Credential) error { return run.exact(c, shared.ledger(t, credential)) })
}

// requestResponse records bodies wherever kube-apiserver has them.
const requestResponse = `
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
  - level: RequestResponse
`

func TestAPasswordIsInNoFileOfAnyServer(t *testing.T) {
	t.Parallel()
	h := openHouse(t, sandbox.Options{AuditPolicy: requestResponse, Verbosity: 8}, "--log-level=debug", "--kubernetes-verbosity=7")
	credential := h.application(t, "secret", "app") + ".app"

	var passwords, ids []string
	for n := range 6 {
		id := newAuditID()
		c := call{person: sandbox.Jane, apiserver: n % 2, path: credential + "/mint", header: auditID(id)}
		if n%3 == 2 {
			c.person, c.as, c.asGroups = sandbox.TenantRoot, "jane", []string{"tenant-acme-admin"}
		}
		passwords, ids = append(passwords, h.minted(t, c).Password), append(ids, id)
	}
	h.refused(t, http.StatusConflict, call{person: sandbox.Jane, path: credential + "/mint",
		body: `{"apiVersion": "credentials.cozystack.io/v1alpha1", "kind": "CredentialMint", "spec": {"preconditions": {"revision": 1}}}`})
	h.awaitAttributed(t, credential)
	h.awaitArchive(t, archive.Query{Namespace: acme, Credential: credential}, func(events []event.Event) error {
		came := map[string]int{}
		for _, e := range events {
			came[e.AuditID]++
		}
		for _, id := range ids {
			if came[id] < 3 {
				return fmt.Errorf("%d events of a mint are in the archive, not reception, commit and end", came[id])
			}
		}
		return nil
	})
	// The search finds what is there: a stored form in etcd's files, an audit id in the stream's.
	book := h.ledger(t, credential)
	assert.NotEmpty(t, filesWith(t, filepath.Join(h.Directory(), "etcd"), string(h.secret(t, credential).Data["password"])))
	assert.NotEmpty(t, filesWith(t, h.StateDirectory(), book.Newest().AuditID))
	for _, password := range passwords {
		assert.Empty(t, filesWith(t, h.Directory(), password))
		assert.Zero(t, archived(t, h, password))
		metrics, err := http.Get("http://" + h.MetricsAddress() + "/metrics")
		require.NoError(t, err)
		assert.Zero(t, occurrences(t, metrics, password))
	}
}

// filesWith are the files below directory that hold a text.
func filesWith(t *testing.T, directory, text string) []string {
	t.Helper()
	var files []string
	require.NoError(t, filepath.WalkDir(directory, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil // files come and go while servers run
		}
		if content, err := os.ReadFile(path); err == nil && strings.Contains(string(content), text) {
			files = append(files, path)
		}
		return nil
	}))
	return files
}

// archived is how often a text occurs in all that VictoriaLogs returns, whose files are compressed.
func archived(t *testing.T, h *house, text string) int {
	t.Helper()
	response, err := http.PostForm(h.VictoriaLogsURL()+"/select/logsql/query", map[string][]string{"query": {"_time:1d"}})
	require.NoError(t, err)
	return occurrences(t, response, text)
}
