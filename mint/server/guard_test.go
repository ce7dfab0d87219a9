package server

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mintlog/mintlog/mint/request"
)

const (
	mintPath = "/apis/credentials.cozystack.io/v1alpha1/namespaces/tenant-acme/credentials/postgres-orders.app/mint"
	anID     = "0c4b1a9e-6f0d-4a43-9a54-3f1d7d4f6c11"
)

var noon = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// A guarded is a guard on a real listener, and the requests that passed it.
type guarded struct {
	guard  *guard
	server *httptest.Server
	passed []*http.Request
}

func newGuarded(t *testing.T) *guarded {
	g := &guarded{}
	next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.passed = append(g.passed, r)
		w.WriteHeader(http.StatusCreated)
	})
	var err error
	g.guard, err = newGuard(next, func() time.Time { return noon }, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	require.NoError(t, err)
	g.server = httptest.NewServer(g.guard)
	t.Cleanup(g.server.Close)
	return g
}

// header is what kube-apiserver sends with a mint, changed by lines: "Name: value" adds, "-Name" takes away, "=Name:
// value" replaces.
func header(lines ...string) string {
	all := []string{"Host: mint", "X-Remote-User: jane", "Audit-ID: " + anID, "Content-Type: application/json", "Accept: application/json"}
	for _, line := range lines {
		name, _, _ := strings.Cut(strings.TrimLeft(line, "-="), ":")
		if line[0] == '-' || line[0] == '=' {
			kept := all[:0]
			for _, l := range all {
				if !strings.HasPrefix(strings.ToLower(l), strings.ToLower(name)+":") {
					kept = append(kept, l)
				}
			}
			all = kept
		}
		if line[0] != '-' {
			all = append(all, strings.TrimPrefix(line, "="))
		}
	}
	return strings.Join(all, "\r\n") + "\r\n"
}

// send writes the request as it is and reads the answer.
func (g *guarded) send(t *testing.T, method, uri, header, body string) (*http.Response, string) {
	t.Helper()
	connection, err := net.Dial("tcp", g.server.Listener.Addr().String())
	require.NoError(t, err)
	defer connection.Close()
	require.NoError(t, connection.SetDeadline(time.Now().Add(time.Minute)))
	text := fmt.Sprintf("%s %s HTTP/1.1\r\n%s", method, uri, header)
	if body != "" {
		text += fmt.Sprintf("Content-Length: %d\r\n", len(body))
	}
	_, err = io.WriteString(connection, text+"\r\n"+body)
	require.NoError(t, err)
	response, err := http.ReadResponse(bufio.NewReader(connection), &http.Request{Method: method})
	require.NoError(t, err)
	answer, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response, string(answer)
}

func TestARequestThatCouldEscapeTheLogIsRefused(t *testing.T) {
	f := func(name string, code int, method, uri, header, body string) {
		t.Run(name, func(t *testing.T) {
			g := newGuarded(t)
			response, answer := g.send(t, method, uri, header, body)
			require.Equal(t, code, response.StatusCode, answer)
			require.Empty(t, g.passed)
			require.Equal(t, "no-store", response.Header.Get("Cache-Control"))
			var status metav1.Status
			require.NoError(t, json.Unmarshal([]byte(answer), &status))
			require.Equal(t, "Status", status.Kind)
			require.Equal(t, metav1.StatusFailure, status.Status)
			require.EqualValues(t, code, status.Code)
			require.NotEmpty(t, status.Message)
			require.Equal(t, 1, testutil.CollectAndCount(g.guard.refused))
		})
	}
	post := func(name string, code int, lines ...string) { f(name, code, "POST", mintPath, header(lines...), "{}") }

	post("no audit id", 400, "-Audit-ID")
	post("an empty audit id", 400, "=Audit-ID: ")
	post("an audit id that is no UUID", 400, "=Audit-ID: 1234")
	post("an audit id in braces", 400, "=Audit-ID: {"+anID+"}")
	post("an audit id as a URN", 400, "=Audit-ID: urn:uuid:"+anID)
	post("an audit id of 32 digits", 400, "=Audit-ID: "+strings.ReplaceAll(anID, "-", ""))
	post("an audit id of 200 KB", 400, "=Audit-ID: "+strings.Repeat("a", 200<<10))
	post("two audit ids", 400, "Audit-ID: "+anID)
	post("Connection: Audit-ID", 400, "Connection: Audit-ID")
	post("Connection: upgrade", 400, "Connection: upgrade")
	post("Connection: keep-alive, Upgrade", 400, "Connection: keep-alive, Upgrade")
	post("a second Connection header", 400, "Connection: close", "Connection: X-Remote-Group")
	post("an Upgrade header", 400, "Upgrade: websocket")
	post("Expect: 100-continue", 417, "Expect: 100-continue")
	post("no user", 401, "-X-Remote-User")
	post("an empty user", 401, "=X-Remote-User: ")
	post("two users", 400, "X-Remote-User: ivan")
	post("a user that is not UTF-8", 400, "=X-Remote-User: jane\xff")
	post("a user of 1,025 bytes", 400, "=X-Remote-User: "+strings.Repeat("j", 1025))
	post("addresses of 2 KB", 400, "X-Forwarded-For: "+strings.Repeat("192.0.2.1,", 200))
	post("groups of 33 KB", 400, groups(33<<10)...)
	post("groups of 11 KB that take 38 KB in the log", 400, "X-Remote-Group: "+strings.Repeat("<a", 11<<9))
	post("a UID of 33 KB", 400, "X-Remote-Uid: "+strings.Repeat("u", 33<<10))
	post("an extra of 33 KB", 400, "X-Remote-Extra-Scopes: "+strings.Repeat("s", 33<<10))
	post("groups and extras of 33 KB together", 400, append(groups(17<<10), "X-Remote-Extra-Scopes: "+strings.Repeat("s", 16<<10))...)
	post("impersonation", 400, "Impersonate-User: ivan")
	post("an empty content type", 415, "=Content-Type: ")
	post("a body in YAML", 415, "=Content-Type: application/yaml")
	post("a body in protobuf", 415, "=Content-Type: application/vnd.kubernetes.protobuf")
	post("a second content type", 415, "Content-Type: application/yaml")
	post("an encoded body", 415, "Content-Encoding: gzip")
	post("an answer in protobuf", 406, "=Accept: application/vnd.kubernetes.protobuf")
	post("an answer as HTML", 406, "=Accept: text/html")
	post("an answer as metadata", 406, "=Accept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	post("an answer as a table, else whole", 406, "=Accept: application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
	post("an answer as metadata in a second header", 406, "Accept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	post("an answer as metadata in capitals", 406, "=Accept: application/json; AS=PartialObjectMetadata")
	post("an Accept that does not parse", 406, "=Accept: application/json;as")

	f("a URI of 100 KB", 414, "POST", mintPath+"?pad="+strings.Repeat("a", 100<<10), header(), "{}")
	f("a URI of 8,193 bytes", 414, "POST", mintPath+"?"+strings.Repeat("a", 8193-len(mintPath)-1), header(), "{}")
	f("a query with a semicolon", 400, "POST", mintPath+"?dryRun=All;x=y", header(), "{}")
	f("a query with a broken escape", 400, "POST", mintPath+"?dryRun=%zz", header(), "{}")
	f("a body of 70 KB", 413, "POST", mintPath, header(), strings.Repeat(" ", 70<<10))
	f("a read with a URI of 100 KB", 414, "GET", mintPath+"?pad="+strings.Repeat("a", 100<<10), header(), "")
	for _, misspelt := range []string{"dryrun=All", "dry-run=All", "DryRun=All", "dry_run", "fieldManager=x&%64ry-run=server"} {
		f("the parameter "+misspelt, 400, "POST", mintPath+"?"+misspelt, header(), "{}")
	}
	f("a read by a user of 1,025 bytes", 400, "GET", mintPath, header("=X-Remote-User: "+strings.Repeat("j", 1025)), "")
	f("a read by a user that is not UTF-8", 400, "GET", mintPath, header("=X-Remote-User: \xff"), "")
	f("a delete without an audit id", 400, "DELETE", mintPath, header("-Audit-ID"), "")
}

// groups are headers with groups of so many bytes in all.
func groups(length int) []string {
	const size = 64
	return slices.Repeat([]string{"X-Remote-Group: " + strings.Repeat("g", size)}, length/size)
}

func TestABodyIsUnreadWhenItWasExpectedToBeAskedFor(t *testing.T) {
	g := newGuarded(t)
	connection, err := net.Dial("tcp", g.server.Listener.Addr().String())
	require.NoError(t, err)
	defer connection.Close()
	require.NoError(t, connection.SetDeadline(time.Now().Add(time.Minute)))
	_, err = io.WriteString(connection, "POST "+mintPath+" HTTP/1.1\r\n"+header("Expect: 100-continue")+"Content-Length: 2\r\n\r\n")
	require.NoError(t, err)
	line, err := bufio.NewReader(connection).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 417 Expectation Failed\r\n", line)
}

// trickle sends a request whose body comes drop by drop and does not end, and returns the answer's code and whether the
// connection was closed after it.
func trickle(t *testing.T, server *httptest.Server, method, header string) (code int, closed bool) {
	t.Helper()
	connection, err := tls.Dial("tcp", server.Listener.Addr().String(), &tls.Config{RootCAs: server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs, ServerName: "example.com"})
	require.NoError(t, err)
	defer connection.Close()
	require.NoError(t, connection.SetDeadline(time.Now().Add(time.Minute)))
	_, err = fmt.Fprintf(connection, "%s %s HTTP/1.1\r\n%sContent-Length: 60000\r\n\r\n", method, mintPath, header)
	require.NoError(t, err)
	answered := make(chan struct{})
	defer close(answered)
	go func() {
		for drop := time.NewTicker(10 * time.Millisecond); ; {
			select {
			case <-answered:
				drop.Stop()
				return
			case <-drop.C:
				if _, err := io.WriteString(connection, " "); err != nil {
					return
				}
			}
		}
	}()
	reader := bufio.NewReader(connection)
	response, err := http.ReadResponse(reader, nil)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, response.Body)
	require.NoError(t, err)
	_, err = reader.ReadByte()
	var timeout net.Error
	return response.StatusCode, err != nil && !(errors.As(err, &timeout) && timeout.Timeout())
}

func TestABodyThatComesDropByDropIsNotWaitedFor(t *testing.T) {
	g := newGuarded(t)
	g.guard.bodyTimeout = 200 * time.Millisecond
	server := httptest.NewTLSServer(g.guard)
	defer server.Close()
	f := func(want int, method, header string) {
		t.Helper()
		code, closed := trickle(t, server, method, header)
		require.Equal(t, want, code)
		require.True(t, closed)
		require.Empty(t, g.passed)
	}
	f(http.StatusRequestTimeout, "POST", header())
	f(http.StatusRequestTimeout, "DELETE", header())
	f(http.StatusRequestTimeout, "GET", header("-Audit-ID"))
	f(http.StatusBadRequest, "POST", header("-Audit-ID")) // refused before the body is looked at
}

func TestAConnectionOutlivesTheDeadlinesOfItsBodies(t *testing.T) {
	const timeout = 2 * time.Second
	var bodies []string
	next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		if bodies = append(bodies, string(body)); len(bodies) > 1 {
			return
		}
		select {
		case <-r.Context().Done():
			t.Error("a request was given up because of the deadline of its body")
		case <-time.After(timeout + time.Second):
		}
	})
	guard, err := newGuard(next, time.Now, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	require.NoError(t, err)
	guard.bodyTimeout = timeout
	server := httptest.NewTLSServer(guard)
	defer server.Close()
	reused := false
	f := func(method string, body io.Reader) {
		t.Helper()
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused },
		})
		r, err := http.NewRequestWithContext(ctx, method, server.URL+mintPath, body)
		require.NoError(t, err)
		r.Header = http.Header{"X-Remote-User": {"jane"}, "Audit-Id": {anID}}
		response, err := server.Client().Do(r)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusOK, response.StatusCode)
	}
	f("POST", strings.NewReader("{}"))
	time.Sleep(timeout + time.Second)
	f("POST", io.MultiReader(strings.NewReader("{ }"))) // of unknown length
	require.True(t, reused, "it is the same connection")
	f("POST", nil)
	f("GET", nil)
	require.Equal(t, []string{"{}", "{ }", "", ""}, bodies)
}

func TestABodyOfUnknownLengthIsReadUpToTheLimit(t *testing.T) {
	g := newGuarded(t)
	f := func(want, length int) {
		t.Helper()
		chunk := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", length, strings.Repeat(" ", length))
		response, _ := g.send(t, "POST", mintPath, header("Transfer-Encoding: chunked")+"\r\n"+chunk, "")
		require.Equal(t, want, response.StatusCode)
	}
	f(http.StatusCreated, maxBody)
	f(http.StatusRequestEntityTooLarge, maxBody+1)
	require.Len(t, g.passed, 1)
	body, err := io.ReadAll(g.passed[0].Body)
	require.NoError(t, err)
	require.Len(t, body, maxBody)
}

func TestAPlainRequestPassesWithItsAuditIDAndTheTimeOfItsReception(t *testing.T) {
	f := func(name, uri string, lines ...string) {
		t.Run(name, func(t *testing.T) {
			g := newGuarded(t)
			response, answer := g.send(t, "POST", uri, header(lines...), "{}")
			require.Equal(t, http.StatusCreated, response.StatusCode, answer)
			require.Equal(t, "no-store", response.Header.Get("Cache-Control"))
			require.Len(t, g.passed, 1)
			id, ok := request.AuditID(g.passed[0].Context())
			require.True(t, ok)
			require.Equal(t, anID, id)
			require.Equal(t, noon, request.Received(g.passed[0].Context()))
			require.Equal(t, []string{"Strict"}, g.passed[0].URL.Query()["fieldValidation"])
			require.Equal(t, []string{"application/json"}, g.passed[0].Header.Values("Content-Type"))
		})
	}
	f("as kube-apiserver sends it", mintPath)
	f("on a connection that stays", mintPath, "Connection: keep-alive")
	f("on a connection that goes", mintPath, "Connection: close")
	f("with a character set", mintPath, "=Content-Type: application/json; charset=utf-8")
	f("from kubectl create --raw", mintPath, "=Accept: application/json, */*", "-Content-Type")
	f("without Accept", mintPath, "-Accept")
	f("by a user of 1,024 bytes", mintPath, "=X-Remote-User: "+strings.Repeat("j", 1024))
	f("by a user of many groups", mintPath, append(groups(24<<10), "X-Remote-Extra-Scopes: "+strings.Repeat("s", 6<<10))...)
	f("by a user with any Unicode", mintPath, `=X-Remote-User: "*>日本 `+"\U0001F511")
	f("asking for lax fields", mintPath+"?fieldValidation=Ignore")
	f("asking for lax fields twice", mintPath+"?fieldValidation=Strict&fieldValidation=Ignore")
	f("with a URI of 8,192 bytes", mintPath+"?"+strings.Repeat("a", 8192-len(mintPath)-1))
}

func TestOtherParametersOfTheQueryStay(t *testing.T) {
	g := newGuarded(t)
	g.send(t, "POST", mintPath+"?dryRun=All&fieldManager=a%26b&pretty=1", header(), "{}")
	require.Len(t, g.passed, 1)
	require.Equal(t, url.Values{"dryRun": {"All"}, "fieldManager": {"a&b"}, "pretty": {"1"}, "fieldValidation": {"Strict"}}, g.passed[0].URL.Query())
}

func TestAnAnswerHasOneFormThatCannotBeTakenForAnother(t *testing.T) {
	f := func(accept, want string) {
		t.Helper()
		g := newGuarded(t)
		g.send(t, "POST", mintPath, header("=Accept: "+accept), "{}")
		require.Len(t, g.passed, 1, accept)
		require.Equal(t, []string{want}, g.passed[0].Header.Values("Accept"), accept)
	}
	f("", "application/json")
	f("*/*", "application/json")
	f("application/*", "application/json")
	f("application/vnd.kubernetes.protobuf, application/json", "application/json")
	f("application/yaml", "application/yaml")
	f("application/json;q=0.9, application/yaml", "application/json")
}

func TestAReadNeedsNoAuditID(t *testing.T) {
	g := newGuarded(t)
	for _, method := range []string{"GET", "HEAD"} {
		g.send(t, method, mintPath, header("-Audit-ID", "-Content-Type", "=Accept: application/json;as=Table;v=v1;g=meta.k8s.io"), "")
	}
	require.Len(t, g.passed, 2)
	for _, r := range g.passed {
		_, ok := request.AuditID(r.Context())
		require.False(t, ok)
		require.Equal(t, noon, request.Received(r.Context()))
		require.Equal(t, "application/json;as=Table;v=v1;g=meta.k8s.io", r.Header.Get("Accept"))
	}
}

func TestAMethodThatIsNotServedIsLeftToTheAPI(t *testing.T) {
	g := newGuarded(t)
	for _, method := range []string{"PUT", "PATCH", "DELETE"} {
		g.send(t, method, mintPath, header("=Content-Type: application/merge-patch+json"), "{}")
	}
	require.Len(t, g.passed, 3)
}

// FuzzWhatPassesTheGuardIsOnTheLogUnderOneIDAndOneName holds for any request what the guard promises of those it lets
// pass.
func FuzzWhatPassesTheGuardIsOnTheLogUnderOneIDAndOneName(f *testing.F) {
	f.Add("", anID, "jane", "", "application/json")
	f.Add("dryRun=All", anID, "jane", "keep-alive", "*/*")
	f.Add("a=%zz", anID+anID, "\xff", "Audit-ID", "application/json;as=Table")
	f.Add("fieldValidation=Ignore&x=%00", strings.ToUpper(anID), "日本", "close, upgrade", "application/json;q=\"1,2\"")
	f.Fuzz(func(t *testing.T, query, auditID, user, connection, accept string) {
		r := httptest.NewRequest("POST", mintPath, strings.NewReader("{}"))
		r.URL.RawQuery, r.RequestURI = query, mintPath+"?"+query
		r.Header = http.Header{
			"Audit-Id": {auditID}, "X-Remote-User": {user}, "Connection": {connection}, "Accept": {accept}, "Content-Type": {"application/json"},
		}
		if check(r) != nil {
			return
		}
		values, err := url.ParseQuery(r.URL.RawQuery)
		require.NoError(t, err)
		require.Equal(t, []string{"Strict"}, values["fieldValidation"])
		require.LessOrEqual(t, len(r.RequestURI), maxURI)
		_, err = uuid.Parse(auditID)
		require.NoError(t, err)
		require.Len(t, auditID, 36)
		require.True(t, utf8.ValidString(user))
		require.NotEmpty(t, user)
		require.LessOrEqual(t, len(user), maxUsername)
		require.Contains(t, []string{"application/json", "application/yaml"}, r.Header.Get("Accept"))
		require.NotContains(t, strings.ToLower(connection), "upgrade")
		require.NotContains(t, strings.ToLower(connection), "audit")
	})
}
