package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
)

var (
	update = flag.Bool("update", false, "write the golden files anew")
	now    = time.Date(2026, 8, 21, 12, 0, 0, 0, time.UTC)
)

const (
	collection = "/apis/credentials.cozystack.io/v1alpha1/namespaces/tenant-acme/credentials"
	app        = collection + "/postgres-orders.app"
	// made stands where the server answers with a password.
	made = "Zq8w-not-a-real-password-Zq8w-0123"
	id   = "5f2b6c0e9d7a41b8a3c4d5e6f7081920"
)

// A server records what it was asked and answers by path.
type server struct {
	*httptest.Server
	mu      sync.Mutex
	asked   []asked
	answers map[string]http.HandlerFunc // by method and path
}

type asked struct {
	method, path string
	query        url.Values
	header       http.Header
	body         string
}

func newServer(t *testing.T) *server {
	s := &server{answers: map[string]http.HandlerFunc{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.asked = append(s.asked, asked{r.Method, r.URL.Path, r.URL.Query(), r.Header, string(body)})
		answer := s.answers[r.Method+" "+r.URL.Path]
		s.mu.Unlock()
		if answer == nil {
			http.Error(w, "404 page not found", http.StatusNotFound)
			return
		}
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) requests() []asked {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]asked(nil), s.asked...)
}

// sends answers with a JSON body.
func sends(code int, body any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		text, isText := body.(string)
		if !isText {
			encoded, err := json.Marshal(body)
			if err != nil {
				panic(err)
			}
			text = string(encoded)
		}
		io.WriteString(w, text)
	}
}

// refuses answers as an API server does when it refuses.
func refuses(err *apierrors.StatusError) http.HandlerFunc {
	status := err.ErrStatus
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	return sends(int(status.Code), status)
}

// result is what a command did.
type result struct {
	code     int
	out, err string
}

// command runs a command line against the server, as a user whose kubeconfig names tenant-acme.
func (s *server) command(t *testing.T, args ...string) result {
	return s.onTerminal(t, terminal{in: strings.NewReader("")}, args...)
}

func (s *server) onTerminal(t *testing.T, where terminal, args ...string) result {
	return s.inContext(t.Context(), t, where, args...)
}

// login makes this process's kubeconfig that of a user in tenant-acme.
func (s *server) login(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
users: [{name: jane, user: {token: none}}]
contexts: [{name: c, context: {cluster: c, user: jane, namespace: tenant-acme}}]
current-context: c
`, s.URL), 0o600))
	t.Setenv("KUBECONFIG", kubeconfig)
}

func (s *server) inContext(ctx context.Context, t *testing.T, where terminal, args ...string) result {
	s.login(t)
	var out, errOut lockedBuffer
	if where.out == nil {
		where.out = &out
	}
	where.err = &errOut
	where.now = func() time.Time { return now }
	return result{run(ctx, args, where), out.String(), errOut.String()}
}

// A lockedBuffer may be written by several at once, as standard error may.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(text)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
}

func at(d time.Duration) metav1.MicroTime { return metav1.NewMicroTime(now.Add(-d)) }

// minted is an answer to a mint.
func minted() map[string]any {
	return map[string]any{
		"apiVersion": "credentials.cozystack.io/v1alpha1", "kind": "CredentialMint",
		"metadata": map[string]any{"name": "postgres-orders.app", "namespace": "tenant-acme"},
		"spec":     map[string]any{},
		"status": map[string]any{
			"username": "app", "password": made, "id": id, "revision": 4, "at": "2026-08-21T11:59:58.123456Z",
		},
	}
}

func without(object map[string]any, fields ...string) map[string]any {
	for _, f := range fields {
		delete(object["status"].(map[string]any), f)
	}
	return object
}

func TestAMintPrintsTheBarePasswordOnStandardOutputAndAllElseOnStandardError(t *testing.T) {
	s := newServer(t)
	s.answers["POST "+app+"/mint"] = sends(201, minted())
	r := s.command(t, "mint", "postgres-orders.app", "--yes")
	assert.Equal(t, exitOK, r.code)
	assert.Equal(t, made+"\n", r.out)
	assert.NotContains(t, r.err, made)
	golden(t, "mint.txt", r.err)

	require.Len(t, s.requests(), 1)
	assert.JSONEq(t, `{"apiVersion":"credentials.cozystack.io/v1alpha1","kind":"CredentialMint","spec":{}}`, s.requests()[0].body)
	assert.Equal(t, url.Values{"fieldValidation": {"Strict"}}, s.requests()[0].query)
	assert.Equal(t, "application/json", s.requests()[0].header.Get("Content-Type"))
	assert.Equal(t, "application/json", s.requests()[0].header.Get("Accept"))
}

func TestPreconditionsAreSentAsGivenAndOnlyThen(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		for subresource, kind := range map[string]string{"mint": "CredentialMint", "revoke": "CredentialRevoke"} {
			s := newServer(t)
			s.answers["POST "+app+"/"+subresource] = sends(201, minted())
			command := append([]string{subresource, "postgres-orders.app", "--yes"}, args...)
			require.Equal(t, exitOK, s.command(t, command...).code)
			require.Len(t, s.requests(), 1)
			assert.JSONEq(t, fmt.Sprintf(`{"apiVersion":"credentials.cozystack.io/v1alpha1","kind":%q,"spec":%s}`, kind, want), s.requests()[0].body)
		}
	}
	f(`{}`)
	f(`{"preconditions":{"id":"abc"}}`, "--if-id", "abc")
	f(`{"preconditions":{"revision":0}}`, "--if-revision=0")
	f(`{"preconditions":{"id":"abc","revision":7}}`, "--if-revision", "7", "--if-id=abc")
}

func TestADryRunPrintsNothingOnStandardOutputAndSaysThatNothingWasChanged(t *testing.T) {
	f := func(subresource, want string) {
		t.Helper()
		s := newServer(t)
		s.answers["POST "+app+"/"+subresource] = sends(201, without(minted(), "password", "id", "revision", "at"))
		r := s.command(t, subresource, "postgres-orders.app", "--dry-run=server")
		assert.Equal(t, exitOK, r.code)
		assert.Empty(t, r.out)
		assert.Equal(t, want, r.err)
		require.Len(t, s.requests(), 1)
		assert.Equal(t, "All", s.requests()[0].query.Get("dryRun"))
	}
	f("mint", "Dry run: for user app of postgres-orders.app in tenant-acme a new password would be made and shown. Nothing was changed.\n")
	f("revoke", "Dry run: for user app of postgres-orders.app in tenant-acme the password would be replaced by one that nobody knows. Nothing was changed.\n")
}

func TestAMintAnsweredWithoutAPasswordIsAnError(t *testing.T) {
	s := newServer(t)
	s.answers["POST "+app+"/mint"] = sends(201, without(minted(), "password"))
	r := s.command(t, "mint", "postgres-orders.app", "--yes")
	assert.Equal(t, exitOther, r.code)
	assert.Empty(t, r.out)
	assert.Contains(t, r.err, "without a password")
	assert.Contains(t, r.err, "kubectl credentials history postgres-orders.app -n tenant-acme")
}

func TestAnAnswerThatCannotBeReadIsNotQuoted(t *testing.T) {
	f := func(body string) {
		t.Helper()
		s := newServer(t)
		s.answers["POST "+app+"/mint"] = sends(201, body)
		r := s.command(t, "mint", "postgres-orders.app", "--yes")
		assert.Equal(t, exitOther, r.code)
		assert.Empty(t, r.out)
		assert.NotContains(t, r.err, "Zq8w")
		assert.Contains(t, r.err, "could not be read")
	}
	f(`{"status":{"password":"` + made)
	f(`{"status":{"password":["` + made + `"]}}`)
	f(`{"status":{"revision":"` + made + `"}}`)
	f(made)
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestAPasswordThatCouldNotBeWrittenIsAnErrorThatSaysItIsStored(t *testing.T) {
	s := newServer(t)
	s.answers["POST "+app+"/mint"] = sends(201, minted())
	r := s.onTerminal(t, terminal{in: strings.NewReader(""), out: brokenWriter{}}, "mint", "postgres-orders.app", "--yes")
	assert.Equal(t, exitOther, r.code)
	assert.Contains(t, r.err, "no space left")
	assert.Contains(t, r.err, "mint again")
	assert.NotContains(t, r.err, made)
}

func TestAMintOrRevokeIsNeverRepeatedByTheClientAndAReadIs(t *testing.T) {
	later := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "0")
		refuses(apierrors.NewServiceUnavailable("the log is not durable"))(w, r)
	}
	f := func(wantRequests int, args ...string) {
		t.Helper()
		s := newServer(t)
		for _, path := range []string{"POST " + app + "/mint", "POST " + app + "/revoke", "GET " + app, "GET " + collection} {
			s.answers[path] = later
		}
		r := s.command(t, args...)
		assert.Equal(t, exitLater, r.code)
		assert.Empty(t, r.out)
		assert.Contains(t, r.err, "the log is not durable")
		assert.Len(t, s.requests(), wantRequests)
	}
	f(1, "mint", "postgres-orders.app", "--yes")
	f(1, "revoke", "postgres-orders.app", "--yes")
	f(1+readRetries, "list")
	f(1+readRetries, "history", "postgres-orders.app")
}

func TestAnAnswerCutOffInTheMiddleIsAnUnknownOutcome(t *testing.T) {
	s := newServer(t)
	s.answers["POST "+app+"/mint"] = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "4000")
		w.WriteHeader(201)
		io.WriteString(w, `{"status":{"password":"`+made)
		panic(http.ErrAbortHandler)
	}
	r := s.command(t, "mint", "postgres-orders.app", "--yes")
	assert.Equal(t, exitLater, r.code)
	assert.Empty(t, r.out)
	assert.NotContains(t, r.err, "Zq8w")
	assert.Contains(t, r.err, "may have been changed all the same")
	assert.Len(t, s.requests(), 1)
}

func TestAnInterruptedMintSaysThatItsOutcomeIsUnknown(t *testing.T) {
	s := newServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	s.answers["POST "+app+"/mint"] = func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}
	r := s.inContext(ctx, t, terminal{in: strings.NewReader("")}, "mint", "postgres-orders.app", "--yes")
	assert.Equal(t, exitOther, r.code)
	assert.Contains(t, r.err, "may have been changed all the same")
}

func TestExitCodesTellScriptsWhatHappened(t *testing.T) {
	resource, name := v1alpha1.Resource("credentials"), "postgres-orders.app"
	internal := apierrors.NewInternalError(errors.New("broken"))
	f := func(want int, hint string, answer http.HandlerFunc, args ...string) {
		t.Helper()
		s := newServer(t)
		for _, path := range []string{"POST " + app + "/mint", "POST " + app + "/revoke", "GET " + app, "GET " + collection} {
			s.answers[path] = answer
		}
		r := s.command(t, args...)
		assert.Equal(t, want, r.code, r.err)
		assert.Empty(t, r.out)
		assert.Contains(t, r.err, hint)
	}
	forbidden := refuses(apierrors.NewForbidden(resource, name, errors.New("no rule allows it")))
	f(exitRefused, "--subresource=mint -n tenant-acme", forbidden, "mint", name, "--yes")
	f(exitRefused, "group tenant-acme-admin", forbidden, "revoke", name, "--yes")
	f(exitRefused, "group tenant-acme-view and above", forbidden, "list")
	f(exitRefused, "enrol", refuses(apierrors.NewForbidden(resource, name, errors.New("namespace tenant-acme is not enrolled"))), "mint", name, "--yes")
	f(exitRefused, "leave out --as", refuses(apierrors.NewForbidden(resource, name, errors.New(`User "jane" cannot impersonate resource "users"`))), "list")
	f(exitNotFound, "kubectl credentials list -n tenant-acme", refuses(apierrors.NewNotFound(resource, name)), "history", name)
	f(exitConflict, "If somebody was faster", refuses(apierrors.NewConflict(resource, name, errors.New("another mint came first"))), "mint", name, "--yes")
	f(exitConflict, "repeat with --if-id", refuses(apierrors.NewConflict(resource, name, errors.New("precondition id"))), "mint", name, "--if-id=x")
	f(exitLater, "may have been changed all the same", refuses(apierrors.NewServiceUnavailable("no")), "mint", name, "--yes")
	f(exitLater, "Try again in a moment", refuses(apierrors.NewServiceUnavailable("no")), "mint", name, "--dry-run=server")
	f(exitLater, "Try again in a moment", refuses(apierrors.NewTooManyRequestsError("busy")), "mint", name, "--yes")
	f(exitLater, "may have been changed all the same", refuses(apierrors.NewTimeoutError("slow", 1)), "revoke", name, "--yes")
	f(exitLater, "Try again in a moment", refuses(apierrors.NewServiceUnavailable("no")), "history", name)
	f(exitLater, "may have been changed all the same", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "bad gateway", http.StatusBadGateway) }, "mint", name, "--yes")
	f(exitLater, "", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "service unavailable", http.StatusServiceUnavailable)
	}, "list")
	f(exitOther, "may have been changed all the same", refuses(internal), "mint", name, "--yes")
	f(exitOther, "broken", refuses(internal), "list")
	f(exitOther, "log in again", refuses(apierrors.NewUnauthorized("who are you")), "list")
	f(exitOther, "not a table", sends(200, `{"kind":"CredentialList"}`), "list")
}

func TestAMissingAPIIsToldFromAMissingCredential(t *testing.T) {
	s := newServer(t)
	r := s.command(t, "mint", "postgres-orders.app", "--yes")
	assert.Equal(t, exitNotFound, r.code)
	assert.Contains(t, r.err, "does not serve credentials.credentials.cozystack.io/v1alpha1")
	assert.Len(t, s.requests(), 1, "nothing to list for suggestions")
}

func TestWithoutAConnectionTheExitCodeIsTryAgainLater(t *testing.T) {
	s := newServer(t)
	s.Close()
	r := s.command(t, "mint", "postgres-orders.app", "--yes")
	assert.Equal(t, exitLater, r.code)
	assert.Contains(t, r.err, "connection refused")
	assert.NotContains(t, r.err, "may have been changed")
}

func TestWhereNoConnectionCameAboutNothingWasAsked(t *testing.T) {
	for _, reason := range []error{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, &net.DNSError{Name: "elsewhere", IsNotFound: true}} {
		err := &url.Error{Op: "Post", URL: "https://elsewhere", Err: &net.OpError{Op: "dial", Net: "tcp", Err: reason}}
		f := call{namespace: "tenant-acme", credential: "postgres-orders.app", subresource: "mint"}.failed(err)
		assert.Equal(t, exitLater, f.code, reason)
		assert.Contains(t, f.hint, "Nothing was asked", reason)
	}
}

func TestWithoutAKubeconfigTheErrorSaysSo(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, args := range [][]string{{"list"}, {"mint", "x", "--to-file=x"}, {"history", "x"}, {"wait", "x", "--for=attributed"}} {
		var out, errOut bytes.Buffer
		code := run(t.Context(), args, terminal{in: strings.NewReader(""), out: &out, err: &errOut, now: time.Now})
		assert.Equal(t, exitOther, code, args)
		assert.Equal(t, "error: no kubeconfig names a cluster\nGive --kubeconfig, or set KUBECONFIG.\n", errOut.String(), args)
	}
}

func TestAContextThatIsNotThereIsToldWithWhereToLook(t *testing.T) {
	r := newServer(t).command(t, "list", "--context=nowhere")
	assert.Equal(t, exitOther, r.code)
	assert.Contains(t, r.err, "nowhere\nSee kubectl config get-contexts.")
}

func TestWhatIsNoAPIServerIsToldFromOne(t *testing.T) {
	s := newServer(t)
	s.answers["GET "+collection] = func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "what?", http.StatusBadRequest) }
	untrusted := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(untrusted.Close)
	untrusted.Config.ErrorLog = log.New(io.Discard, "", 0)
	for _, address := range []string{s.URL, "https://" + s.Listener.Addr().String(), untrusted.URL} {
		r := s.command(t, "list", "--server", address)
		assert.Equal(t, exitOther, r.code, address)
		assert.Contains(t, r.err, "not the API server of this kubeconfig", address)
	}
}

func TestAShellsScriptIsCompleteOrAnError(t *testing.T) {
	s := newServer(t)
	r := s.command(t, "completion", "tcsh")
	assert.Equal(t, exitUsage, r.code)
	assert.Empty(t, r.out)
	r = s.onTerminal(t, terminal{in: strings.NewReader(""), out: fullDisk{}}, "completion", "bash")
	assert.Equal(t, exitOther, r.code)
	assert.NotContains(t, r.err, "--help")
}

// A fullDisk takes nothing.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) {
	return 0, &fs.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}
}

func TestATimeoutOfTheClientIsAnUnknownOutcome(t *testing.T) {
	s := newServer(t)
	s.answers["POST "+app+"/mint"] = func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	r := s.command(t, "mint", "postgres-orders.app", "--request-timeout=2s")
	assert.Equal(t, exitLater, r.code)
	assert.Contains(t, r.err, "may have been changed all the same")
}

func TestAWrongCommandLineIsAUsageErrorAndAsksTheServerNothing(t *testing.T) {
	s := newServer(t)
	f := func(want string, args ...string) {
		t.Helper()
		r := s.command(t, args...)
		assert.Equal(t, exitUsage, r.code, args)
		assert.Empty(t, r.out)
		assert.Contains(t, r.err, want)
	}
	f(`there is no command "mnt"`, "mnt", "x")
	f(`there is no command "mnt"`, "help", "mnt")
	f(`there is no command "mint x"`, "help", "mint", "x")
	f("Did you mean mint?", "mnt", "x")
	f("one NAME", "mint")
	f("is not the name of a credential: it may not contain '/'", "mint", "a/b")
	f("is not the name of a namespace: it may not contain '/'", "list", "-n", "a/b")
	f("--request-timeout", "list", "--request-timeout=soon")
	f("one NAME", "history", "a", "b")
	f("not the name of a credential", "mint", "a/b")
	f("not the name of a credential", "mint", "")
	f("takes no argument", "list", "x")
	f("unknown flag", "mint", "x", "--force")
	f("--if-id is empty", "mint", "x", "--if-id=")
	f("below 0", "mint", "x", "--if-revision=-1")
	f("invalid argument", "revoke", "x", "--yes", "--if-revision=four")
	f("it is server or none", "mint", "x", "--dry-run=client")
	f("no output format", "list", "-o", "jsonpath={.items}")
	f("no output format", "history", "x", "-o", "name")
	f("give --yes", "revoke", "x")
	assert.Empty(t, s.requests())
}

func TestARevokeAsksOnATerminalAndDoesNothingUnlessTheAnswerIsYes(t *testing.T) {
	f := func(answer string, confirmed bool) {
		t.Helper()
		s := newServer(t)
		s.answers["POST "+app+"/revoke"] = sends(201, without(minted(), "password"))
		r := s.onTerminal(t, terminal{in: strings.NewReader(answer), interactive: true}, "revoke", "postgres-orders.app")
		assert.Empty(t, r.out)
		assert.Contains(t, r.err, "Revoke the password of postgres-orders.app in tenant-acme?")
		if confirmed {
			assert.Equal(t, exitOK, r.code)
			assert.Len(t, s.requests(), 1)
		} else {
			assert.Equal(t, exitOther, r.code)
			assert.Contains(t, r.err, "nothing was changed")
			assert.Empty(t, s.requests())
		}
	}
	f("y\n", true)
	f(" Yes \n", true)
	f("n\n", false)
	f("\n", false)
	f("yesterday\n", false)
	f("", false)
}

func TestAnInterruptAtTheQuestionRevokesNothing(t *testing.T) {
	s := newServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	in, out := io.Pipe() // nobody answers
	defer out.Close()
	r := s.inContext(ctx, t, terminal{in: in, interactive: true}, "revoke", "postgres-orders.app")
	assert.Equal(t, exitOther, r.code)
	assert.Empty(t, s.requests())
}

func TestARevokeSaysWhatHappensNextOnStandardErrorOnly(t *testing.T) {
	s := newServer(t)
	s.answers["POST "+app+"/revoke"] = sends(201, without(minted(), "password"))
	r := s.command(t, "revoke", "credential.credentials.cozystack.io/postgres-orders.app", "-y")
	assert.Equal(t, exitOK, r.code)
	assert.Empty(t, r.out)
	golden(t, "revoke.txt", r.err)
}

func TestImpersonationAndNamespaceGoToTheServer(t *testing.T) {
	s := newServer(t)
	s.answers["POST "+strings.Replace(app, "tenant-acme", "tenant-beta", 1)+"/mint"] = sends(201, minted())
	r := s.command(t, "mint", "postgres-orders.app", "--yes", "-n", "tenant-beta", "--as", "jane", "--as-group", "tenant-beta-admin")
	require.Equal(t, exitOK, r.code, r.err)
	assert.Equal(t, "jane", s.requests()[0].header.Get("Impersonate-User"))
	assert.Equal(t, "tenant-beta-admin", s.requests()[0].header.Get("Impersonate-Group"))
	assert.Regexp(t, `^kubectl-credentials/\S+ \(\w+/\w+\)$`, s.requests()[0].header.Get("User-Agent"), "the audit log has it")
	assert.Contains(t, r.err, "kubectl credentials history postgres-orders.app -n tenant-beta")
}

func TestWarningsOfTheServerArePrintedEscaped(t *testing.T) {
	s := newServer(t)
	s.answers["POST "+app+"/mint"] = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Warning", "299 - \"be careful \u202e\"")
		sends(201, minted())(w, r)
	}
	r := s.command(t, "mint", "postgres-orders.app", "--yes")
	assert.Equal(t, made+"\n", r.out)
	assert.Contains(t, r.err, `Warning: be careful \u202e`+"\n")
}

func TestAnUnknownNameIsAnsweredWithTheNearestOne(t *testing.T) {
	f := func(given, want string) {
		t.Helper()
		s := newServer(t)
		notFound := refuses(apierrors.NewNotFound(v1alpha1.Resource("credentials"), given))
		s.answers["POST "+collection+"/"+given+"/mint"], s.answers["GET "+collection+"/"+given] = notFound, notFound
		s.answers["GET "+collection] = sends(200, credentials())
		for _, command := range []string{"mint", "history"} {
			r := s.command(t, command, given)
			assert.Equal(t, exitNotFound, r.code)
			assert.Contains(t, r.err, "\n"+want+"List what there is: kubectl credentials list -n tenant-acme\n")
		}
	}
	f("postgres-order.app", "Did you mean postgres-orders.app? ")
	f("postgres-orders.ap", "Did you mean postgres-orders.app? ")
	f("postgres-orders.app", "") // listed and still not found, as under an application that goes
	f("redis", "")
}

func TestAShellCompletesNamesOfCredentials(t *testing.T) {
	s := newServer(t)
	s.answers["GET "+collection] = sends(200, credentials())
	for _, command := range []string{"mint", "revoke", "history"} {
		assert.Equal(t, "postgres-orders.app\n:4\n", s.command(t, "__complete", command, "postgres-orders.a").out)
		assert.Equal(t, ":4\n", s.command(t, "__complete", command, "postgres-orders.app", "").out)
	}
}

func TestEveryCommandDocumentsExitCodesAndShowsExamples(t *testing.T) {
	s := newServer(t)
	root := newRoot(terminal{})
	for _, command := range append(root.Commands(), root) {
		args := []string{"--help"}
		if command != root {
			args = []string{command.Name(), "--help"}
		}
		r := s.command(t, args...)
		assert.Equal(t, exitOK, r.code)
		assert.Contains(t, r.out, exitCodes, command.Name())
		assert.Contains(t, r.out, "kubectl credentials "+strings.TrimPrefix(command.Name(), root.Name()), command.Name())
		assert.NotEmpty(t, command.Example, command.Name())
		assert.NotContains(t, r.out, cobra.CommandDisplayNameAnnotation)
	}
}

func TestHelpIsAskedForByACommandToo(t *testing.T) {
	s := newServer(t)
	for _, words := range [][]string{nil, {"mint"}, {"completion", "bash"}} {
		asked := s.command(t, append([]string{"help"}, words...)...)
		assert.Equal(t, exitOK, asked.code, "%v", words)
		assert.NotEmpty(t, asked.out, "%v", words)
		assert.Equal(t, s.command(t, append(words, "--help")...).out, asked.out, "%v", words)
	}
}

func TestTheVersionNamesTheProgram(t *testing.T) {
	r := newServer(t).command(t, "version")
	assert.Equal(t, exitOK, r.code)
	assert.Regexp(t, `^kubectl-credentials \S+ \(go\S+, \w+/\w+\)\n$`, r.out)
}
