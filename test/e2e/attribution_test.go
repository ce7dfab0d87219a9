package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/store/archive"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/test/sandbox"
)

func TestAMintIsAttributedToJaneWhicheverApiserverTookIt(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "whichever", "app") + ".app"
	for apiserver := range 2 {
		minted := shared.mint(t, sandbox.Jane, apiserver, credential)
		assert.GreaterOrEqual(t, len(minted.Password), 32)
		c := shared.awaitBy(t, credential, "jane", "")
		assert.Equal(t, minted.ID, c.Status.History[0].ID)
		assert.Equal(t, minted.Revision, c.Status.History[0].Revision)
		assert.Equal(t, "Success", c.Status.History[0].Response)
		assert.Equal(t, "Minted", c.Status.Password.Origin)
		assert.Empty(t, c.Status.Findings)
	}
}

func TestAMintByImpersonationIsAttributedToJaneThroughRoot(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "through", "app") + ".app"
	shared.minted(t, call{person: sandbox.TenantRoot, path: credential + "/mint", as: "jane", asGroups: []string{"tenant-acme-admin"}})
	shared.awaitBy(t, credential, "jane", "root")
}

func TestAViewerMayReadAndNotMint(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "viewer", "app") + ".app"
	before := shared.secret(t, credential)
	for _, operation := range []string{"/mint", "/revoke"} {
		shared.refused(t, http.StatusForbidden, call{person: sandbox.Ivan, path: credential + operation})
	}
	c, err := shared.credential(ctx(t), sandbox.Ivan, 0, acme, credential)
	require.NoError(t, err)
	assert.Equal(t, "NotIssued", c.Status.Password.Origin)
	shared.refused(t, http.StatusForbidden, call{person: sandbox.Olga, method: http.MethodGet, path: credential})

	// What was refused is in the archive, and changed nothing.
	shared.awaitArchive(t, archive.Query{Namespace: acme, Credential: credential}, func(events []event.Event) error {
		for _, e := range events {
			if e.User.Username == sandbox.Ivan && e.Outcome() == event.Refused {
				return nil
			}
		}
		return fmt.Errorf("ivan's attempt is not among %d events", len(events))
	})
	assert.Equal(t, before.ResourceVersion, shared.secret(t, credential).ResourceVersion)
}

// awaitArchive queries VictoriaLogs for the last hour until what it returns is as wanted.
func (h *house) awaitArchive(t *testing.T, q archive.Query, wanted func([]event.Event) error) {
	t.Helper()
	q.Start, q.End = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	archived := archive.New(h.VictoriaLogsURL(), http.DefaultClient)
	within(t, 2*time.Minute, func() error {
		var events []event.Event
		if err := archived.Query(ctx(t), q, func(e event.Event) error { events = append(events, e); return nil }); err != nil {
			return err
		}
		return wanted(events)
	})
}

func TestARevokeIsAttributedAndReturnsNoPassword(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "revoked", "app") + ".app"
	before := shared.mint(t, sandbox.Jane, 0, credential)
	a, err := shared.do(ctx(t), call{person: sandbox.Jane, path: credential + "/revoke"})
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, a.code, "%s", a)
	assert.NotContains(t, string(a.body), "password")
	var body v1alpha1.CredentialRevoke
	require.NoError(t, json.Unmarshal(a.body, &body))
	assert.Equal(t, before.Revision+1, body.Status.Revision)
	c := shared.awaitBy(t, credential, "jane", "")
	assert.Equal(t, "Revoked", c.Status.Password.Origin)
	assert.Equal(t, "Revoke", c.Status.History[0].Operation)
}

func TestTenAccountsUnderTwoHundredMintsHaveTheLastTenOperationsInLedgerOrder(t *testing.T) {
	t.Parallel()
	users := make([]string, 10)
	for i := range users {
		users[i] = fmt.Sprintf("u%d", i)
	}
	release := shared.application(t, "busy", users...)
	people := []call{
		{person: sandbox.Jane},
		{person: sandbox.TenantRoot},
		{person: sandbox.TenantRoot, as: "jane", asGroups: []string{"tenant-acme-admin"}},
	}
	who := sync.Map{} // entry id → name and impersonator
	var done atomic.Int64
	var clients sync.WaitGroup
	for client := range 8 {
		clients.Go(func() {
			for n := client; n < 200; n += 8 {
				c := people[n%len(people)]
				c.apiserver, c.path = n/len(users)%2, release+"."+users[n%len(users)]+"/mint"
				for attempt := 0; ; attempt++ {
					a, err := shared.do(t.Context(), c)
					if err == nil && a.code == http.StatusCreated {
						var body v1alpha1.CredentialMint
						if assert.NoError(t, json.Unmarshal(a.body, &body)) {
							name := [2]string{c.person, ""}
							if c.as != "" {
								name = [2]string{c.as, c.person}
							}
							who.Store(body.Status.ID, name)
							done.Add(1)
						}
						break
					}
					// Another of the eight was first: a client asks again.
					if err != nil || a.code != http.StatusConflict || attempt == 50 {
						assert.Fail(t, "mint failed", "%v %s", err, a)
						break
					}
				}
			}
		})
	}
	clients.Wait()
	require.Equal(t, int64(200), done.Load())
	for _, user := range users {
		credential := release + "." + user
		c := shared.awaitAttributed(t, credential)
		book := shared.ledger(t, credential)
		require.Len(t, c.Status.History, 10)
		for i, o := range c.Status.History {
			assert.Equal(t, book.Entries[i].ID, o.ID)
			assert.Equal(t, int64(21-i), o.Revision, "20 mints upon one creation")
			name, ok := who.Load(o.ID)
			require.True(t, ok)
			assert.Equal(t, name, [2]string{o.By, o.ImpersonatedBy})
			assert.Equal(t, "Success", o.Response)
		}
		assert.Empty(t, c.Status.Findings)
	}
}

func TestOfTwentyConcurrentMintsOfOneRevisionExactlyOneWins(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "race", "app") + ".app"
	body := `{"apiVersion": "credentials.cozystack.io/v1alpha1", "kind": "CredentialMint", "spec": {"preconditions": {"revision": 1}}}`
	var won, lost atomic.Int64
	var clients sync.WaitGroup
	for n := range 20 {
		clients.Go(func() {
			a, err := shared.do(t.Context(), call{person: sandbox.Jane, apiserver: n % 2, path: credential + "/mint", body: body})
			switch {
			case err != nil:
				assert.NoError(t, err)
			case a.code == http.StatusCreated:
				won.Add(1)
			case a.code == http.StatusConflict:
				lost.Add(1)
			default:
				assert.Fail(t, "neither won nor lost", "%s", a)
			}
		})
	}
	clients.Wait()
	assert.Equal(t, int64(1), won.Load())
	assert.Equal(t, int64(19), lost.Load())
	assert.Equal(t, int64(2), shared.ledger(t, credential).Newest().Revision)
}

func TestARepeatedAuditIDIsRefusedAndBothEventsAreKept(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "repeated", "app") + ".app"
	id := newAuditID()
	shared.minted(t, call{person: sandbox.Jane, path: credential + "/mint", header: auditID(id)})
	message := shared.refused(t, http.StatusConflict, call{person: sandbox.Jane, path: credential + "/mint", header: auditID(id)})
	assert.Contains(t, message, "Audit-ID")
	assert.Equal(t, int64(2), shared.ledger(t, credential).Newest().Revision)
	shared.awaitArchive(t, archive.Query{Namespace: acme, Credential: credential}, func(events []event.Event) error {
		codes := map[int]int{}
		for _, e := range events {
			if _, is := e.Operation(); is && e.AuditID == id && e.Stage == event.ResponseComplete {
				codes[e.ResponseStatus.Code]++
			}
		}
		if codes[201] != 1 || codes[409] != 1 {
			return fmt.Errorf("kept by code: %v", codes)
		}
		return nil
	})
	shared.awaitBy(t, credential, "jane", "")
}

func TestOneAuditIDOnTwoAccountsAttributesBoth(t *testing.T) {
	t.Parallel()
	release := shared.application(t, "twice", "a", "b")
	id := newAuditID()
	for _, account := range []string{".a", ".b"} {
		shared.minted(t, call{person: sandbox.Jane, path: release + account + "/mint", header: auditID(id)})
	}
	for _, account := range []string{".a", ".b"} {
		shared.awaitBy(t, release+account, "jane", "")
	}
}

func TestTheLogHoldsTheCommitOfAMintUnderTheCallersAuditIDWithTheSecretsUID(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "commit", "app") + ".app"
	id := newAuditID()
	shared.minted(t, call{person: sandbox.Jane, path: credential + "/mint", header: auditID(id)})
	uid := shared.secret(t, credential).UID
	shared.awaitArchive(t, archive.Query{Namespace: acme, Credential: credential}, func(events []event.Event) error {
		for _, e := range events {
			if e.IsWrite() && e.AuditID == id && e.Verb == "update" {
				assert.Equal(t, string(uid), e.ObjectRef.UID)
				assert.Equal(t, "system:serviceaccount:mintlog:mint", e.User.Username)
				assert.Equal(t, event.Succeeded, e.Outcome())
				return nil
			}
		}
		return fmt.Errorf("no commit among %d events", len(events))
	})
}

func TestAPasswordChangedByHandIsOutOfBandAndBearsItsAuthorsName(t *testing.T) {
	credential := shared.application(t, "byhand", "app") + ".app"
	const metric = `mintlog_findings{type="OutOfBand"}`
	before := shared.metric(t, metric)
	shared.mint(t, sandbox.Jane, 0, credential)
	shared.awaitBy(t, credential, "jane", "")
	_, err := shared.Kubernetes(sandbox.ClusterAdmin, 1).CoreV1().Secrets(acme).Patch(ctx(t), credential+".account",
		types.MergePatchType, []byte(`{"stringData": {"password": "SCRAM-SHA-256$4096:AAAA$AAAA:AAAA"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	c := shared.awaitCredential(t, credential, func(c *v1alpha1.Credential) error {
		for _, f := range c.Status.Findings {
			if f.Type == "OutOfBand" && strings.Contains(f.Message, `"cluster-admin"`) {
				return nil
			}
		}
		return fmt.Errorf("findings: %v", c.Status.Findings)
	})
	require.NoError(t, by("jane", "")(c), "the history stands as it was")
	within(t, 2*time.Minute, func() error {
		if now := shared.metric(t, metric); now != before+1 {
			return fmt.Errorf("the metric is %v, and was %v before", now, before)
		}
		return nil
	})

	shared.mint(t, sandbox.Jane, 0, credential)
	shared.awaitCredential(t, credential, func(c *v1alpha1.Credential) error {
		if hasFinding(c, "OutOfBand") {
			return fmt.Errorf("a mint mends it: %v", c.Status.Findings)
		}
		return errors.Join(isNewest(c, shared.ledger(t, credential).Newest()), by("jane", "")(c))
	})
}

func TestUserNamesComeOutOfTheViewAsTheyWereInTheEvent(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "names", "app") + ".app"
	for _, name := range []string{`o'hara "the *" > all`, "Ünïcode-名前-\u202e", "system:serviceaccount:a:b", "x" + strings.Repeat("é", 500)} {
		shared.minted(t, call{person: sandbox.ClusterAdmin, path: credential + "/mint", as: name, asGroups: []string{"tenant-acme-admin"}})
		shared.awaitBy(t, credential, name, sandbox.ClusterAdmin)
	}
	a, err := shared.do(ctx(t), call{person: sandbox.ClusterAdmin, path: credential + "/mint", as: strings.Repeat("x", 1025), asGroups: []string{"tenant-acme-admin"}})
	require.NoError(t, err)
	assert.Equal(t, http.StatusBadRequest, a.code, "%s", a)
	a, err = shared.do(ctx(t), call{person: sandbox.ClusterAdmin, path: credential + "/mint", as: "bad\xffutf8", asGroups: []string{"tenant-acme-admin"}})
	require.NoError(t, err)
	assert.Equal(t, http.StatusBadRequest, a.code, "%s", a)
}
