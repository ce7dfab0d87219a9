package webhook_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/mint/webhook"
	"github.com/mintlog/mintlog/test/sandbox/process"
)

const plaintext = "hunter2-the-plaintext"

// A hook is a webhook on loopback.
type hook struct {
	*httptest.Server
	asked atomic.Int32

	mu          sync.Mutex
	connections map[net.Conn]http.ConnState
}

// serve starts a webhook, with HTTP/2 if it may.
func serve(t *testing.T, http2 bool, handler http.HandlerFunc) *hook {
	t.Helper()
	h := &hook{connections: map[net.Conn]http.ConnState{}}
	h.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.asked.Add(1)
		handler(w, r)
	}))
	h.EnableHTTP2 = http2
	h.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes are what some tests want
	h.Config.ConnState = func(c net.Conn, state http.ConnState) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.connections[c] = state
	}
	h.StartTLS()
	t.Cleanup(h.Close)
	return h
}

// open counts the connections there were, and those that are.
func (h *hook) open() (ever, now int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, state := range h.connections {
		ever++
		if state != http.StateClosed {
			now++
		}
	}
	return ever, now
}

func (h *hook) config() webhook.Config {
	return webhook.Config{URL: h.URL + "/ask", CABundle: pemOf(h.Certificate().Raw), Timeout: time.Minute}
}

func pemOf(der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// answer writes JSON as a webhook should.
func answer(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body)
}

// uid is the uid of the request.
func uid(r *http.Request) string {
	var head webhook.Head
	_ = json.NewDecoder(r.Body).Decode(&head)
	return head.UID
}

// stores answers as a good format webhook does.
func stores(w http.ResponseWriter, r *http.Request) {
	answer(w, map[string]any{"apiVersion": webhook.APIVersion, "kind": "FormatAnswer", "uid": uid(r), "stored": "$argon2id$x"})
}

func format(c *webhook.Clients, to webhook.Config) (string, error) {
	return c.Format(context.Background(), "Wiki", to, "argon2id", "app", plaintext)
}

func accounts(c *webhook.Clients, to webhook.Config) ([]webhook.Account, error) {
	return c.Accounts(context.Background(), "Wiki", to, webhook.Application{
		Namespace: "tenant-acme", Kind: "Wiki", Name: "docs", Release: "wiki-docs", Values: map[string]any{"users": []any{"app", plaintext}},
	})
}

func TestAWebhookIsSentWhatItsTypesSayAndItsAnswerIsTaken(t *testing.T) {
	var sent []byte
	var head http.Header
	h := serve(t, true, func(w http.ResponseWriter, r *http.Request) {
		head = r.Header
		sent, _ = io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(sent))
		if r.Method != http.MethodPost || r.URL.Path != "/ask" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if strings.Contains(string(sent), "AccountsRequest") {
			answer(w, map[string]any{"apiVersion": webhook.APIVersion, "kind": "AccountsAnswer", "uid": uid(r),
				"accounts": []any{map[string]any{"name": "app"}, map[string]any{"name": "root", "username": "admin", "owner": "platform"}}})
			return
		}
		stores(w, r)
	})
	c := webhook.New(webhook.Options{})
	found, err := accounts(c, h.config())
	require.NoError(t, err)
	assert.Equal(t, []webhook.Account{{Name: "app"}, {Name: "root", Username: "admin", Owner: "platform"}}, found)
	assert.Equal(t, "application/json", head.Get("Content-Type"))
	assert.Regexp(t, `^\{"apiVersion":"webhook.credentials.cozystack.io/v1alpha1","kind":"AccountsRequest","uid":"[0-9a-f-]{36}",`+
		`"application":\{"namespace":"tenant-acme","kind":"Wiki","name":"docs","release":"wiki-docs","values":\{"users":\["app","hunter2-the-plaintext"\]\}\}\}$`, string(sent))

	stored, err := format(c, h.config())
	require.NoError(t, err)
	assert.Equal(t, "$argon2id$x", stored)
	assert.Regexp(t, `^\{"apiVersion":"webhook.credentials.cozystack.io/v1alpha1","kind":"FormatRequest","uid":"[0-9a-f-]{36}",`+
		`"format":"argon2id","username":"app","password":"hunter2-the-plaintext"\}$`, string(sent))
}

func TestAnEmptyListMeansNoAccountsAndNoListMeansNothing(t *testing.T) {
	f := func(list, want string) {
		t.Helper()
		h := serve(t, true, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json; charset=utf-8")
			fmt.Fprintf(w, `{"apiVersion":%q,"kind":"AccountsAnswer","uid":%q%s}`, webhook.APIVersion, uid(r), list)
		})
		found, err := accounts(webhook.New(webhook.Options{}), h.config())
		if want == "" {
			require.NoError(t, err)
			assert.Empty(t, found)
			return
		}
		require.ErrorContains(t, err, want)
	}
	f(`,"accounts":[]`, "")
	f(`,"accounts":null`, "an empty list means none")
	f(``, "an empty list means none")
}

// echo answers with a body in which the UID stands where it says UID.
func echo(status int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		text := strings.ReplaceAll(body, "UID", uid(r))
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

func TestAnythingButAGoodAnswerFailsIsAskedForOnceAndIsNotQuoted(t *testing.T) {
	const head = `{"apiVersion":"webhook.credentials.cozystack.io/v1alpha1","kind":"FormatAnswer","uid":"UID"`
	const good = head + `,"stored":"$argon2id$x"}`
	f := func(handler http.HandlerFunc, want string) {
		t.Helper()
		for _, http2 := range []bool{true, false} {
			h := serve(t, http2, handler)
			stored, err := format(webhook.New(webhook.Options{}), h.config())
			require.EqualError(t, err, "the webhook "+want)
			assert.Empty(t, stored)
			assert.NotContains(t, err.Error(), plaintext)
			assert.Equal(t, int32(1), h.asked.Load(), want)
		}
	}
	for _, status := range []int{201, 202, 400, 403, 404, 429, 500, 503} {
		f(echo(status, "application/json", good), fmt.Sprintf("answered with status %d, not 200", status))
	}
	f(echo(204, "application/json", ""), "answered with status 204, not 200")
	for _, status := range []int{301, 302, 307, 308} {
		f(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere/"+plaintext, status)
		}, fmt.Sprintf("answered with status %d, not 200", status))
	}
	f(echo(200, "text/plain", good), "answered what is not of Content-Type application/json")
	f(echo(200, "application/jsonx", good), "answered what is not of Content-Type application/json")
	f(echo(200, "", good), "answered what is not of Content-Type application/json")
	const noJSON = "answered what is no JSON object of the kind FormatAnswer"
	f(echo(200, "application/json", ""), noJSON)
	f(echo(200, "application/json", plaintext), noJSON)
	f(echo(200, "application/json", "null"), "answered what is not of the kind FormatAnswer of webhook.credentials.cozystack.io/v1alpha1")
	f(echo(200, "application/json", "["+good+"]"), noJSON)
	f(echo(200, "application/json", good+good), noJSON)
	f(echo(200, "application/json", good+"x"), noJSON)
	f(echo(200, "application/json", good[:len(good)-1]), noJSON)
	f(echo(200, "application/json", head+`,"stored":7}`), noJSON)
	f(echo(200, "application/json", head+`,"stored":["`+plaintext+`"]}`), noJSON)
	const strict = "answered what has fields that a FormatAnswer does not have, or has one twice"
	f(echo(200, "application/json", head+`,"stored":"x","`+plaintext+`":1}`), strict)
	f(echo(200, "application/json", head+`,"stored":"x","stored":"y"}`), strict)
	f(echo(200, "application/json", head+`,"Stored":"x"}`), strict)
	f(echo(200, "application/json", strings.Replace(good, "FormatAnswer", "FormatRequest", 1)), "answered what is not of the kind FormatAnswer of webhook.credentials.cozystack.io/v1alpha1")
	f(echo(200, "application/json", strings.Replace(good, "v1alpha1", "v1", 1)), "answered what is not of the kind FormatAnswer of webhook.credentials.cozystack.io/v1alpha1")
	f(echo(200, "application/json", strings.Replace(good, "UID", plaintext, 1)), "answered what does not repeat the uid of the request")
	f(echo(200, "application/json", head+`}`), "answered what has no stored form")
	f(echo(200, "application/json", head+`,"stored":"x\n"}`), "answered what has a stored form with characters other than printable ASCII, or blanks about it")
	f(echo(200, "application/json", head+`,"stored":" x"}`), "answered what has a stored form with characters other than printable ASCII, or blanks about it")
	f(echo(200, "application/json", head+`,"stored":"ü"}`), "answered what has a stored form with characters other than printable ASCII, or blanks about it")
	f(echo(200, "application/json", head+`,"stored":"`+strings.Repeat("x", 4097)+`"}`), "answered what has a stored form of 4097 characters, more than the 4096 that are allowed")
	f(echo(200, "application/json", good+strings.Repeat(" ", 16<<10)), "answered more than the 16384 bytes that are allowed")
	f(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Echo", strings.Repeat(plaintext, 10_000))
		answer(w, nil)
	}, "broke off, or does not speak HTTPS")
	f(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "broke off, or does not speak HTTPS")
	f(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, plaintext)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}, "broke off, or does not speak HTTPS")
}

func TestAWebhookThatDoesNotAnswerIsGivenUpInTime(t *testing.T) {
	for _, headers := range []bool{false, true} {
		h := serve(t, true, func(w http.ResponseWriter, r *http.Request) {
			if headers {
				w.Header().Set("Content-Type", "application/json")
				_ = http.NewResponseController(w).Flush()
			}
			select {
			case <-r.Context().Done():
			case <-time.After(5 * time.Minute):
			}
		})
		to := h.config()
		to.Timeout = 100 * time.Millisecond
		began := time.Now()
		_, err := format(webhook.New(webhook.Options{}), to)
		require.EqualError(t, err, "the webhook did not answer in time")
		assert.Less(t, time.Since(began), 2*time.Minute)

		to.Timeout = 5 * time.Minute
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, err = webhook.New(webhook.Options{}).Format(ctx, "Wiki", to, "argon2id", "app", plaintext)
		cancel()
		require.EqualError(t, err, "the webhook did not answer in time", "the caller's deadline counts as well")
		assert.Less(t, time.Since(began), 4*time.Minute)
	}
}

func TestAConnectionThatHangsIsGivenUpWithItsQuestion(t *testing.T) {
	to := webhook.Config{URL: "https://webhook.example/ask", Timeout: 100 * time.Millisecond}
	f := func(dial func(context.Context) (net.Conn, error)) {
		t.Helper()
		c := webhook.New(webhook.Options{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }})
		_, err := format(c, to)
		require.EqualError(t, err, "the webhook did not answer in time")
	}
	ended := make(chan error, 1)
	within := func() error {
		select {
		case err := <-ended:
			return err
		case <-time.After(time.Minute):
			return nil
		}
	}
	f(func(ctx context.Context) (net.Conn, error) {
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	})
	require.Error(t, within(), "nobody answers the dialling")

	f(func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			_, err := io.Copy(io.Discard, theirs) // and no word of TLS in return
			ended <- errors.Join(err, io.EOF)
		}()
		return ours, nil
	})
	require.Error(t, within(), "nobody shakes hands")
}

// certificate is one for a DNS name, signed by itself.
func certificate(t *testing.T, name string, until time.Time) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: plaintext}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: until, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestOnlyTheGivenAuthoritiesAndTheRightNameAreBelieved(t *testing.T) {
	f := func(name string, until time.Time, own bool, want string) {
		t.Helper()
		h := httptest.NewUnstartedServer(http.HandlerFunc(stores))
		h.Config.ErrorLog = log.New(io.Discard, "", 0)
		chain := certificate(t, name, until)
		h.TLS = &tls.Config{Certificates: []tls.Certificate{chain}}
		h.StartTLS()
		t.Cleanup(h.Close)
		c := webhook.New(webhook.Options{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			assert.Equal(t, "hashes.platform.svc:443", address)
			return (&net.Dialer{}).DialContext(ctx, network, h.Listener.Addr().String())
		}})
		bundle := ""
		if own {
			bundle = pemOf(chain.Certificate[0])
		}
		_, err := format(c, webhook.Config{URL: "https://hashes.platform.svc:443/", CABundle: bundle, Timeout: time.Minute})
		if want == "" {
			require.NoError(t, err)
			return
		}
		require.EqualError(t, err, "the webhook has a certificate "+want)
	}
	later := time.Now().Add(time.Hour)
	f("hashes.platform.svc", later, true, "")
	f("hashes.platform.svc", later, false, "that none of the authorities it may be signed by has signed")
	f("hashes.other.svc", later, true, "for another name than its own")
	f("hashes.platform.svc", time.Now().Add(-time.Minute), true, "that is not valid, or not now")
}

func TestWhatIsNoHTTPSServerIsNotTalkedTo(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(stores))
	t.Cleanup(plain.Close)
	gone, err := process.FreeAddress()
	require.NoError(t, err)
	f := func(url, want string) {
		t.Helper()
		_, err := format(webhook.New(webhook.Options{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if address == "nowhere.invalid:443" { // as any resolver says it; the machine may have none
				return nil, &net.OpError{Op: "dial", Net: network, Err: &net.DNSError{Err: "no such host", Name: "nowhere.invalid", IsNotFound: true}}
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		}}), webhook.Config{URL: url, Timeout: time.Minute})
		require.EqualError(t, err, "the webhook "+want)
	}
	f(strings.Replace(plain.URL, "http:", "https:", 1), "broke off, or does not speak HTTPS")
	f("https://"+gone, "cannot be reached")
	f("https://nowhere.invalid", "cannot be reached: its name does not resolve")
}

func TestNoProxyOfTheEnvironmentSeesAPassword(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://proxy.example:3128")
	t.Setenv("https_proxy", "http://proxy.example:3128")
	dialed := ""
	c := webhook.New(webhook.Options{Dial: func(_ context.Context, _, address string) (net.Conn, error) {
		dialed = address
		return nil, io.ErrUnexpectedEOF
	}})
	_, err := format(c, webhook.Config{URL: "https://hashes.example", Timeout: time.Minute})
	require.Error(t, err)
	assert.Equal(t, "hashes.example:443", dialed)
}

func TestConnectionsAreKeptUntilTheDefinitionChanges(t *testing.T) {
	h := serve(t, true, stores)
	c := webhook.New(webhook.Options{})
	for range 10 {
		_, err := format(c, h.config())
		require.NoError(t, err)
	}
	ever, _ := h.open()
	assert.LessOrEqual(t, ever, 2, "connections for ten questions: the first tells that the webhook talks HTTP/2")

	c.Forget("Postgres")
	_, err := format(c, h.config())
	require.NoError(t, err)
	again, _ := h.open()
	assert.Equal(t, ever, again, "another kind's definition has nothing to do with it")

	c.Forget("Wiki")
	// One on which the last answer has only just ended may count as busy; then it is closed when it was idle for 90 s.
	require.Eventually(t, func() bool { _, now := h.open(); return now == 0 }, 3*time.Minute, 10*time.Millisecond)
	_, err = format(c, h.config())
	require.NoError(t, err)
}

func TestAClientIsMadeAnewWhereTheDefinitionNamesAnotherAuthority(t *testing.T) {
	h := serve(t, true, stores)
	c := webhook.New(webhook.Options{})
	_, err := format(c, h.config())
	require.NoError(t, err)
	other := h.config()
	other.CABundle = pemOf(certificate(t, "other", time.Now().Add(time.Hour)).Certificate[0])
	_, err = format(c, other)
	require.ErrorContains(t, err, "none of the authorities")
	_, err = format(c, h.config())
	require.NoError(t, err)
}

// TestWhatComesAfterAnAnswerIsNotLogged is a webhook that counts its bytes wrong and so sends some after the end of its
// answer, which net/http would quote in the log.
func TestWhatComesAfterAnAnswerIsNotLogged(t *testing.T) {
	chain := certificate(t, "hashes.platform.svc", time.Now().Add(time.Hour))
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{chain}})
	require.NoError(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				r, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					return
				}
				body := fmt.Sprintf(`{"apiVersion":%q,"kind":"FormatAnswer","uid":%q,"stored":"x"}`, webhook.APIVersion, uid(r))
				fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s%s", len(body), body, plaintext)
				time.Sleep(200 * time.Millisecond)
				fmt.Fprint(conn, plaintext)
			}()
		}
	}()
	var printed lockedBuffer
	log.SetOutput(&printed)
	t.Cleanup(func() { log.SetOutput(io.Discard) })
	c := webhook.New(webhook.Options{Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, listener.Addr().String())
	}})
	for range 3 {
		_, err = format(c, webhook.Config{URL: "https://hashes.platform.svc", CABundle: pemOf(chain.Certificate[0]), Timeout: time.Minute})
		require.NoError(t, err)
	}
	time.Sleep(300 * time.Millisecond)
	assert.Empty(t, printed.String())
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestWhatIsSentIsBoundedAndCanBeSent(t *testing.T) {
	h := serve(t, true, stores)
	c := webhook.New(webhook.Options{})
	_, err := c.Accounts(t.Context(), "Wiki", h.config(), webhook.Application{Values: map[string]any{"x": strings.Repeat(plaintext, 200_000)}})
	require.ErrorContains(t, err, "more than the 2097152 that are allowed")
	_, err = c.Format(t.Context(), "Wiki", h.config(), "argon2id", "app", strings.Repeat("x", 20_000))
	require.ErrorContains(t, err, "more than the 16384 that are allowed")
	for _, password := range []string{"", "a\xff"} {
		_, err = c.Format(t.Context(), "Wiki", h.config(), "argon2id", "app", password)
		require.ErrorContains(t, err, "the password is empty or not UTF-8")
	}
	assert.Zero(t, h.asked.Load())
}

func TestQuestionsAreCountedByTheirResult(t *testing.T) {
	good, bad := serve(t, true, stores), serve(t, true, echo(500, "application/json", "{}"))
	registry := prometheus.NewRegistry()
	c := webhook.New(webhook.Options{Registerer: registry})
	_, _ = format(c, good.config())
	_, _ = format(c, bad.config())
	_, _ = accounts(c, bad.config())
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP mintlog_webhook_requests_total Questions to webhooks of definitions, by the definition's kind, purpose (accounts, format) and result: ok, timeout, unreachable, untrusted, broken, status, malformed, oversized.
# TYPE mintlog_webhook_requests_total counter
mintlog_webhook_requests_total{kind="Wiki",purpose="accounts",result="status"} 1
mintlog_webhook_requests_total{kind="Wiki",purpose="format",result="ok"} 1
mintlog_webhook_requests_total{kind="Wiki",purpose="format",result="status"} 1
`), "mintlog_webhook_requests_total"))
}

func FuzzAnAnswerIsTakenOrRefusedWithoutBeingQuoted(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"webhook.credentials.cozystack.io/v1alpha1","kind":"FormatAnswer","uid":"UID","stored":"x"}`))
	f.Add([]byte(`{"stored":"hunter2-the-plaintext"}`))
	f.Add([]byte(`[{}]`))
	f.Add([]byte("\xff"))
	var body atomic.Value
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		echo(200, "application/json", body.Load().(string))(w, r)
	}))
	f.Cleanup(server.Close)
	c := webhook.New(webhook.Options{})
	to := webhook.Config{URL: server.URL, CABundle: pemOf(server.Certificate().Raw), Timeout: time.Minute}
	f.Fuzz(func(t *testing.T, b []byte) {
		body.Store(string(b))
		stored, err := format(c, to)
		if err != nil {
			assert.Empty(t, stored)
			assert.NotContains(t, err.Error(), plaintext)
			return
		}
		assert.Contains(t, string(b), "UID")
		assert.NotEmpty(t, stored)
	})
}
