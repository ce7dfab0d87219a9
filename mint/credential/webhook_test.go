package credential

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/mint/webhook"
	"github.com/mintlog/mintlog/store/ledger"
	"github.com/mintlog/mintlog/test/sandbox"
)

// A hook is a webhook on loopback that answers as it is told to.
type hook struct {
	server *httptest.Server
	asked  atomic.Int32

	mu      sync.Mutex
	answers http.HandlerFunc
	seen    []webhook.FormatRequest
}

// newHook starts a webhook that knows a format and the accounts app and eve.
func newHook(t *testing.T) *hook {
	t.Helper()
	h := &hook{}
	h.answers = h.wellBehaved
	h.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.asked.Add(1)
		h.mu.Lock()
		answers := h.answers
		h.mu.Unlock()
		answers(w, r)
	}))
	t.Cleanup(h.server.Close)
	return h
}

// turned is what the webhook makes of a password.
func turned(password string) string { return "$turned$" + reversed(password) }

func reversed(s string) string {
	var b strings.Builder
	for i := len(s) - 1; i >= 0; i-- {
		b.WriteByte(s[i])
	}
	return b.String()
}

func (h *hook) wellBehaved(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var request webhook.FormatRequest
	_ = json.Unmarshal(body, &request)
	answer := map[string]any{"apiVersion": webhook.APIVersion, "uid": request.UID}
	if request.Kind == webhook.KindFormatRequest {
		h.mu.Lock()
		h.seen = append(h.seen, request)
		h.mu.Unlock()
		answer["kind"], answer["stored"] = webhook.KindFormatAnswer, turned(request.Password)
	} else {
		answer["kind"], answer["accounts"] = webhook.KindAccountsAnswer, []webhook.Account{{Name: "app"}, {Name: "eve", Username: "eve_1"}}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// answer has it answer otherwise from now on.
func (h *hook) answer(with http.HandlerFunc) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answers = with
}

// requests are the passwords it was shown.
func (h *hook) requests() []webhook.FormatRequest {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen
}

// reference names it in a definition.
func (h *hook) reference(seconds int64) map[string]any {
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.server.Certificate().Raw})
	return map[string]any{
		"clientConfig":   map[string]any{"url": h.server.URL, "caBundle": base64.StdEncoding.EncodeToString(bundle)},
		"timeoutSeconds": seconds,
	}
}

// ofKind declares an application of a kind of its own with that block, and is about its account app.
func ofKind(t *testing.T, block map[string]any) *subject {
	t.Helper()
	w := theWorld(t)
	kind := fmt.Sprintf("Wiki%d", w.count.Add(1))
	require.NoError(t, w.servers.InstallDefinition(t.Context(), kind, block))
	_, err := w.servers.InstallRelease(t.Context(), sandbox.TenantAcme, kind, "docs", map[string]any{"users": map[string]any{"app": map[string]any{}}})
	require.NoError(t, err)
	release := strings.ToLower(kind) + "-docs"
	s := &subject{world: w, namespace: sandbox.TenantAcme, release: release, credential: release + ".app", secret: release + ".app.account"}
	eventually(t, "application and definition are in the cache", func() bool {
		_, known := w.cluster.Release(s.namespace, release)
		d, defined := w.cluster.Definition(kind)
		return known && defined && d.HasBlock
	})
	return s
}

func byWebhook(h *hook, seconds int64) map[string]any {
	return map[string]any{
		"format":   map[string]any{"name": "turned", "kind": "Webhook", "webhook": h.reference(seconds)},
		"accounts": []any{map[string]any{"kind": "ValuesMap", "path": "users"}},
	}
}

func listedBy(h *hook) map[string]any {
	return map[string]any{
		"format":   map[string]any{"name": "sha256"},
		"accounts": []any{map[string]any{"kind": "Webhook", "webhook": h.reference(5)}},
	}
}

// read reads the account and lists its namespace, as tenants do.
func (s *server) read(t *testing.T, of *subject) (*v1alpha1.Credential, error) {
	t.Helper()
	ctx := genericapirequest.WithNamespace(t.Context(), of.namespace)
	storage := s.storage["credentials"]
	list, err := storage.(rest.Lister).List(ctx, &metainternalversion.ListOptions{})
	require.NoError(t, err)
	_, err = storage.(rest.TableConvertor).ConvertToTable(ctx, list, nil)
	require.NoError(t, err)
	var object runtime.Object
	if object, err = storage.(rest.Getter).Get(ctx, of.credential, &metav1.GetOptions{}); err != nil {
		return nil, err
	}
	return object.(*v1alpha1.Credential), nil
}

func TestAPasswordIsStoredAsTheWebhookSays(t *testing.T) {
	h := newHook(t)
	s, of := theWorld(t).serve(t, nil), ofKind(t, byWebhook(h, 5))
	answer, err := s.mint(t, of)
	require.NoError(t, err)
	assert.True(t, string(of.live(t).Data["password"]) == turned(answer.Status.Password))
	require.Len(t, h.requests(), 1)
	shown := h.requests()[0]
	assert.Equal(t, []string{"turned", "app"}, []string{shown.Format, shown.Username})
	assert.True(t, shown.Password == answer.Status.Password)

	revoked, err := s.revoke(t, of)
	require.NoError(t, err)
	require.Len(t, h.requests(), 2)
	assert.True(t, string(of.live(t).Data["password"]) == turned(h.requests()[1].Password), "a revoke stores what nobody has seen, in the same form")
	assert.Equal(t, int64(2), revoked.Status.Revision)

	eventually(t, "the view shows the format's name", func() bool {
		c, err := s.read(t, of)
		return err == nil && c.Spec.Format == "turned"
	})
}

func TestAFormatWebhookThatFailsOrAnswersWrongHasNothingWritten(t *testing.T) {
	h := newHook(t)
	s, of, impatient := theWorld(t).serve(t, nil), ofKind(t, byWebhook(h, 10)), ofKind(t, byWebhook(h, 3))
	f := func(of *subject, want string, with http.HandlerFunc) {
		t.Helper()
		h.answer(with)
		asked := h.asked.Load()
		_, err := s.mint(t, of)
		refusedForNow(t, err, "the format turned: the webhook "+want+"; nothing was written")
		_, err = s.revoke(t, of)
		refusedForNow(t, err, "the format turned: the webhook "+want+"; nothing was written")
		assert.Nil(t, of.live(t))
		assert.Equal(t, asked+2, h.asked.Load(), "each asks once")
		assert.Contains(t, s.log.String(), want, "whoever is on call reads why")
		for _, shown := range h.requests() {
			assert.False(t, strings.Contains(err.Error(), shown.Password))
			assert.False(t, strings.Contains(s.log.String(), shown.Password))
		}
	}
	f(of, "answered with status 500, not 200", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write(body) // the password in it is not passed on
	})
	f(of, "answered what has fields that a FormatAnswer does not have, or has one twice", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.Copy(w, r.Body)
	})
	f(of, "answered more than the 16384 bytes that are allowed", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, strings.Repeat(" ", 20_000))
	})
	f(impatient, "did not answer in time", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		<-r.Context().Done()
	})
	assert.Empty(t, s.faults.sent())

	assert.Equal(t, strings.Count(s.log.String(), "\n"), strings.Count(s.log.String(), "code=503"))
	assert.Contains(t, s.log.String(), "namespace="+of.namespace+" credential="+of.credential)
	s.log.Reset()

	h.answer(h.wellBehaved)
	_, err := s.mint(t, of)
	require.NoError(t, err, "when it is back, it works again")
	_, err = s.mint(t, of, func(c *call) { c.preconditions = &v1alpha1.Preconditions{Revision: new(int64)} })
	refused(t, err, http.StatusConflict, "precondition")
	assert.Empty(t, s.log.String(), "what the caller has to mend is told to the caller")
	h.server.Close()
	before := of.version(t)
	_, err = s.mint(t, of)
	refusedForNow(t, err, "the format turned: the webhook cannot be reached; nothing was written")
	assert.Equal(t, before, of.version(t))
}

// A patience notes until when a format's webhook is waited for.
type patience struct {
	definition.Webhooks
	until time.Time
}

func (p *patience) Format(ctx context.Context, kind string, to webhook.Config, format, username, password string) (string, error) {
	p.until, _ = ctx.Deadline()
	return p.Webhooks.Format(ctx, kind, to, format, username, password)
}

func TestWebhooksLeaveTimeToWrite(t *testing.T) {
	h := newHook(t)
	s, of := theWorld(t).serve(t, nil), ofKind(t, byWebhook(h, 10))
	waiting := &patience{Webhooks: of.webhooks}
	s.storage["credentials/mint"].(*mintStorage).minter.webhooks = waiting
	h.answer(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		<-r.Context().Done()
	})
	var received time.Time
	_, err := s.mint(t, of, remaining(writeReserve+200*time.Millisecond), func(c *call) { received = c.received })
	refusedForNow(t, err, "the webhook did not answer in time; nothing was written")
	assert.WithinDuration(t, received.Add(ledger.WriteBudget-writeReserve), waiting.until, writeReserve/2, "the mint gives up while it could still write")
	assert.Empty(t, s.faults.sent())
}

func TestADryRunAsksTheWebhookAndWritesNothing(t *testing.T) {
	h := newHook(t)
	s, of := theWorld(t).serve(t, nil), ofKind(t, byWebhook(h, 5))
	answer, err := s.mint(t, of, dry)
	require.NoError(t, err)
	assert.Empty(t, answer.Status.Password)
	assert.Len(t, h.requests(), 1)
	assert.Nil(t, of.live(t))
	h.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	_, err = s.mint(t, of, dry)
	refusedForNow(t, err, "answered with status 502")
}

func TestAWriteThatIsReadBackAsksTheFormatWebhookNoSecondTime(t *testing.T) {
	h := newHook(t)
	of := ofKind(t, byWebhook(h, 5))
	s := of.serve(t, first(func(w *write) (*http.Response, error) {
		w.land(w.request.Context())
		return nil, errLost
	}))
	answer, err := s.mint(t, of)
	require.NoError(t, err)
	assert.True(t, string(of.live(t).Data["password"]) == turned(answer.Status.Password))
	assert.Len(t, h.requests(), 1)
}

func TestTheAccountsAreTheWebhooksAtAMint(t *testing.T) {
	h := newHook(t)
	s, of := theWorld(t).serve(t, nil), ofKind(t, listedBy(h))
	eve := *of
	eve.credential, eve.secret = of.release+".eve", of.release+".eve.account"
	answer, err := s.mint(t, &eve)
	require.NoError(t, err)
	assert.Equal(t, "eve_1", answer.Status.Username)

	nobody := *of
	nobody.credential = of.release + ".nobody"
	_, err = s.mint(t, &nobody)
	refused(t, err, http.StatusNotFound, "declares no such account")

	h.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	_, err = s.mint(t, of)
	refusedForNow(t, err, "are not known: spec.credentials.accounts[0]: the webhook answered with status 503, not 200; nothing was written")
	assert.Nil(t, of.live(t))
}

func TestAReadAsksNoWebhook(t *testing.T) {
	h := newHook(t)
	s := theWorld(t).serve(t, nil)
	block := listedBy(h)
	block["format"] = map[string]any{"name": "turned", "kind": "Webhook", "webhook": h.reference(5)}
	of := ofKind(t, block)
	_, err := s.mint(t, of)
	require.NoError(t, err)
	asked := h.asked.Load()
	require.Equal(t, int32(2), asked, "source and format are asked at a mint")
	eventually(t, "the account is in the cache", func() bool { _, err := s.read(t, of); return err == nil })
	h.server.Close()
	for range 5 {
		c, err := s.read(t, of)
		require.NoError(t, err, "and need it not")
		assert.Equal(t, "turned", c.Spec.Format)
	}
	assert.Equal(t, asked, h.asked.Load())
}

func TestAKindWithABrokenBlockIsNotServedAndSaysWhichField(t *testing.T) {
	s, of := theWorld(t).serve(t, nil), ofKind(t, map[string]any{
		"format":   map[string]any{"name": "bcrypt", "parameters": map[string]any{"cost": int64(31)}},
		"accounts": []any{map[string]any{"kind": "Expression", "expression": "spec.users.mop(u, u)"}},
	})
	for _, field := range []string{
		"spec.credentials.format.parameters.cost: must be a whole number from 4 to 14",
		"spec.credentials.accounts[0].expression: does not compile: 1:15: undeclared reference to 'mop'",
	} {
		_, err := s.mint(t, of)
		refused(t, err, http.StatusNotFound, field)
		_, err = s.revoke(t, of)
		refused(t, err, http.StatusNotFound, field)
	}
}
