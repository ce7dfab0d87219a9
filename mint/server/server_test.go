package server_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/mint/server"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/test/output"
	"github.com/mintlog/mintlog/test/sandbox"
)

const (
	group    = "/apis/credentials.cozystack.io/v1alpha1"
	acme     = group + "/namespaces/" + sandbox.TenantAcme + "/credentials"
	mintPath = acme + "/postgres-orders.app/mint"
	// mintRoute is where a mint stands in the API's documentation.
	mintRoute = group + "/namespaces/{namespace}/credentials/{name}/mint"
	body      = `{"apiVersion": "credentials.cozystack.io/v1alpha1", "kind": "CredentialMint"}`
)

// A served is a server of ours behind a real kube-apiserver, and what it did.
type served struct {
	*sandbox.Sandbox
	storage *recorder
	logs    *output.Buffer
	stop    func() error
}

// shared starts the one that the tests share, when the first of them asks.
var (
	started *served
	shared  = sync.OnceValues(func() (*served, error) {
		cluster, err := sandbox.Start(interrupted, sandbox.Options{Apiservers: 1})
		if err != nil {
			return nil, err
		}
		started = &served{Sandbox: cluster, storage: &recorder{}, logs: &output.Buffer{}, stop: func() error { return nil }}
		log := slog.New(slog.NewTextHandler(started.logs, &slog.HandlerOptions{Level: slog.Level(-server.MaxVerbosity)}))
		if err := server.LogKubernetes(log, server.MaxVerbosity); err != nil {
			return nil, err
		}
		certificate, key := cluster.MintCertificate()
		if _, started.stop, err = serve(cluster, options(cluster.MintAddress(), certificate, key, started.storage, log)); err != nil {
			return nil, err
		}
		return started, cluster.LayAPI(interrupted)
	})
	interrupted context.Context
)

func TestMain(m *testing.M) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	interrupted = ctx
	code := m.Run()
	if started != nil {
		if err := started.stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		if err := started.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func cluster(t *testing.T) *served {
	t.Helper()
	s, err := shared()
	require.NoError(t, err)
	return s
}

func options(address, certificate, key string, storage *recorder, log *slog.Logger) server.Options {
	return server.Options{
		Address: address, CertFile: certificate, KeyFile: key, Storage: storage.storage(),
		Now: time.Now, Log: log, Registerer: prometheus.NewRegistry(),
	}
}

// serve runs a server with the mint server's own identity. stop ends it and says how it ended.
func serve(cluster *sandbox.Sandbox, o server.Options) (s *server.Server, stop func() error, err error) {
	kubeconfig, err := cluster.ServiceAccountKubeconfig(interrupted, "mint", 0)
	if err != nil {
		return nil, nil, err
	}
	if o.Config, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
		return nil, nil, err
	}
	if s, err = server.New(o); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(interrupted)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return s, func() error { cancel(); return <-ended }, nil
}

// direct is a configuration that goes straight to a server of ours, past kube-apiserver, and does not authenticate.
func (s *served) direct(address string) *rest.Config {
	return &rest.Config{Host: "https://" + address, TLSClientConfig: rest.TLSClientConfig{
		CAData: s.ServingAuthority().PEM(), ServerName: sandbox.ServiceName + "." + sandbox.Namespace + ".svc",
	}}
}

// forged goes straight to a server of ours with a certificate of the front proxy's authority.
func (s *served) forged(t *testing.T, address, name string) *rest.Config {
	t.Helper()
	config := s.direct(address)
	var err error
	config.CertData, config.KeyData, err = s.FrontProxyAuthority().Issue(sandbox.Identity{Name: name})
	require.NoError(t, err)
	return config
}

const frontProxyName = "front-proxy-client"

// send sends a request and returns the answer's code and body.
func send(t *testing.T, config *rest.Config, method, path string, header http.Header, body string) (int, string) {
	t.Helper()
	response, answer := exchange(t, config, method, path, header, body)
	return response.StatusCode, answer
}

func exchange(t *testing.T, config *rest.Config, method, path string, header http.Header, body string) (*http.Response, string) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	r, err := http.NewRequestWithContext(t.Context(), method, config.Host+path, strings.NewReader(body))
	require.NoError(t, err)
	if header != nil {
		r.Header = header
	}
	if method == http.MethodPost && r.Header.Get("Content-Type") == "" {
		r.Header.Set("Content-Type", "application/json")
	}
	response, err := client.Do(r)
	require.NoError(t, err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response, string(answer)
}

// as are the headers with which the front proxy names a user.
func as(user string, groups ...string) http.Header {
	return http.Header{"X-Remote-User": {user}, "X-Remote-Group": groups, "Audit-Id": {uuid.NewString()}}
}

func asJane() http.Header { return as("jane", "tenant-acme-admin", "system:authenticated") }

func TestAMintReachesTheStorageUnderTheIDAndTheNameThatTheAuditLogHas(t *testing.T) {
	s := cluster(t)
	f := func(name string, header http.Header) {
		t.Run(name, func(t *testing.T) {
			before := len(s.storage.made())
			response, answer := exchange(t, s.RESTConfig(sandbox.Jane, 0), "POST", mintPath, header, body)
			require.Equal(t, http.StatusCreated, response.StatusCode, answer)
			require.Contains(t, response.Header.Values("Cache-Control"), "no-store")
			var mint v1alpha1.CredentialMint
			require.NoError(t, json.Unmarshal([]byte(answer), &mint))
			require.Equal(t, password, mint.Status.Password)

			calls := s.storage.made()
			require.Len(t, calls, before+1)
			made := calls[before]
			require.Equal(t, "postgres-orders.app", made.name)
			require.Equal(t, sandbox.Jane, made.user)
			require.WithinDuration(t, time.Now(), made.received, time.Minute)
			s.awaitAudited(t, made.auditID, []string{"jane RequestReceived", "jane ResponseComplete"})
		})
	}
	const own = "11111111-2222-4333-8444-555555555555"
	f("made up by kube-apiserver", nil)
	f("given by the client", http.Header{"Audit-Id": {own}})
	f("given by the client twice over", http.Header{"Audit-Id": {uuid.NewString(), uuid.NewString()}})
}

// awaitAudited waits until kube-apiserver's audit log has mints of these users and stages under an id: the answer may
// come before the event of it.
func (s *served) awaitAudited(t *testing.T, id string, want []string) {
	t.Helper()
	var got []string
	require.Eventually(t, func() bool { got = s.audited(t, id); return len(got) >= len(want) }, time.Minute, 10*time.Millisecond)
	require.Equal(t, want, got)
}

// audited are user and stage of the mints that kube-apiserver's audit log has under an id.
func (s *served) audited(t *testing.T, id string) []string {
	t.Helper()
	log, err := os.ReadFile(s.AuditLog(0))
	require.NoError(t, err)
	var found []string
	for line := range strings.Lines(string(log)) {
		if !strings.HasSuffix(line, "\n") {
			break // it is just being written
		}
		var event struct {
			AuditID   string
			Stage     string
			User      struct{ Username string }
			ObjectRef struct{ Subresource string }
		}
		require.NoError(t, json.Unmarshal([]byte(line), &event))
		if event.AuditID == id && event.ObjectRef.Subresource == "mint" {
			found = append(found, event.User.Username+" "+event.Stage)
		}
	}
	return found
}

// raw sends a request as it stands, over HTTP/1.1, and returns the code of the answer: the last, for kube-apiserver may
// send 100 before it.
func raw(t *testing.T, config *rest.Config, text string) int {
	t.Helper()
	tlsConfig, err := rest.TLSConfigFor(config)
	require.NoError(t, err)
	tlsConfig.NextProtos = []string{"http/1.1"}
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: time.Minute}, Config: tlsConfig}
	connection, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(config.Host, "https://"))
	require.NoError(t, err)
	defer connection.Close()
	require.NoError(t, connection.SetDeadline(time.Now().Add(time.Minute)))
	_, err = io.WriteString(connection, text)
	require.NoError(t, err)
	reader := bufio.NewReader(connection)
	for {
		response, err := http.ReadResponse(reader, nil)
		require.NoError(t, err)
		if response.StatusCode >= http.StatusOK {
			return response.StatusCode
		}
	}
}

func rawMint(query string, header ...string) string {
	return fmt.Sprintf("POST %s%s HTTP/1.1\r\nHost: kubernetes\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n%s",
		mintPath, query, len(body), strings.Join(append(header, ""), "\r\n"), body)
}

func TestWhatWouldEscapeTheLogIsRefusedBeforeTheStorageIsReached(t *testing.T) {
	s := cluster(t)
	f := func(want int, query string, header ...string) {
		t.Helper()
		before := len(s.storage.made())
		code := raw(t, s.RESTConfig(sandbox.Jane, 0), rawMint(query, header...))
		assert.Equal(t, want, code, "%s %.80s", query[:min(len(query), 20)], header)
		assert.Len(t, s.storage.made(), before)
	}
	f(400, "", "Connection: Audit-ID")
	f(400, "", "Connection: Audit-ID", "Audit-ID: "+uuid.NewString())
	f(400, "", "Connection: upgrade", "Upgrade: websocket")
	f(417, "", "Expect: 100-continue")
	f(400, "", "X-Forwarded-For: "+strings.Repeat("192.0.2.1,", 200))
	f(400, "", "Audit-ID: mine")
	f(400, "", "Audit-ID: "+strings.Repeat("a", 200<<10))
	f(400, "?DryRun=All")
	f(414, "?pad="+strings.Repeat("a", 100<<10))
	f(406, "", "Accept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	f(406, "", "Accept: application/vnd.kubernetes.protobuf")

	before := len(s.storage.made())
	require.Equal(t, http.StatusCreated, raw(t, s.RESTConfig(sandbox.Jane, 0), rawMint("")))
	require.Len(t, s.storage.made(), before+1)
}

func TestAQueryThatKubeAPIServerCleansIsReadHereAsTheLogsReadersReadIt(t *testing.T) {
	s := cluster(t)
	f := func(query string) {
		t.Helper()
		before := len(s.storage.made())
		require.Equal(t, http.StatusCreated, raw(t, s.RESTConfig(sandbox.Jane, 0), rawMint(query)))
		made := s.storage.made()
		require.Len(t, made, before+1)
		logged := event.Event{RequestURI: mintPath + query}
		require.Equal(t, logged.DryRun(), made[before].dryRun, query[:min(len(query), 40)])
		s.awaitAudited(t, made[before].auditID, []string{"jane RequestReceived", "jane ResponseComplete"})
	}
	f("?dryRun=All")
	f("?dryRun=%zz")
	f("?dryRun=All;x=y")
	f("?x=%zz&dryRun=All")
	f("?dryRun=All&x=%zz")
	f("?%64ryRun=All")
	f("?pad=%zz" + strings.Repeat("a", 100<<10)) // cannot be refused: it is gone when it comes here
}

func TestABodyThatIsNotExactlyAMintIsRefusedBeforeTheStorageIsReached(t *testing.T) {
	s := cluster(t)
	f := func(want int, names, body string, header http.Header) {
		t.Helper()
		before := len(s.storage.made())
		code, answer := send(t, s.RESTConfig(sandbox.Jane, 0), "POST", mintPath, header, body)
		assert.Equal(t, want, code, answer)
		assert.Contains(t, answer, names)
		assert.Len(t, s.storage.made(), before)
	}
	f(400, "Other", `{"apiVersion": "credentials.cozystack.io/v1alpha1", "kind": "Other"}`, nil)
	f(400, "v2", `{"apiVersion": "credentials.cozystack.io/v2", "kind": "CredentialMint"}`, nil)
	f(400, "CredentialRevoke", `{"apiVersion": "credentials.cozystack.io/v1alpha1", "kind": "CredentialRevoke"}`, nil)
	f(400, "CredentialMint", `{"apiVersion": "v1", "kind": "Status"}`, nil)
	f(400, `unknown field \"spec.preconditions.revison\"`, `{"spec": {"preconditions": {"revison": 1}}}`, nil)
	f(400, `unknown field \"spec.precondition\"`, `{"spec": {"precondition": {"revision": 1}}}`, nil)
	f(400, `duplicate field \"spec.preconditions.revision\"`, `{"spec": {"preconditions": {"revision": 1, "revision": 2}}}`, nil)
	f(400, "revision", `{"spec": {"preconditions": {"revision": "one"}}}`, nil)
	f(400, "", ``, nil)
	f(400, "", `{`, nil)
	f(413, "65536", `{"metadata": {"name": "`+strings.Repeat("a", 70<<10)+`"}}`, nil)
	f(415, "application/json", body, http.Header{"Content-Type": {"application/yaml"}})
	f(415, "Content-Encoding", body, http.Header{"Content-Encoding": {"gzip"}})

	for _, plain := range []string{`{}`, body, `{"spec": {"preconditions": {"id": "x", "revision": 0, "uid": "y", "resourceVersion": "1"}}}`} {
		code, answer := send(t, s.RESTConfig(sandbox.Jane, 0), "POST", mintPath, nil, plain)
		require.Equal(t, http.StatusCreated, code, answer)
	}
	last := s.storage.made()[len(s.storage.made())-1].spec.Preconditions
	require.Equal(t, []any{"x", int64(0), "y", "1"}, []any{*last.ID, *last.Revision, string(*last.UID), *last.ResourceVersion})
}

func TestABodyOfUnknownLengthIsCutOffAtTheLimit(t *testing.T) {
	s := cluster(t)
	before := len(s.storage.made())
	client, err := rest.HTTPClientFor(s.RESTConfig(sandbox.Jane, 0))
	require.NoError(t, err)
	chunked := io.MultiReader(strings.NewReader(`{"metadata": {"name": "`), strings.NewReader(strings.Repeat("a", 70<<10)), strings.NewReader(`"}}`))
	response, err := client.Post(s.APIServerURL(0)+mintPath, "application/json", chunked)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusRequestEntityTooLarge, response.StatusCode)
	require.Len(t, s.storage.made(), before)
}

func TestABodyThatDoesNotEndReachesNothing(t *testing.T) {
	s := cluster(t)
	before := len(s.storage.made())
	client, err := rest.HTTPClientFor(s.RESTConfig(sandbox.Jane, 0))
	require.NoError(t, err)
	reader, writer := io.Pipe()
	defer writer.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "POST", s.APIServerURL(0)+mintPath, reader)
	require.NoError(t, err)
	response, err := client.Do(r)
	require.NoError(t, err)
	answer, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusRequestTimeout, response.StatusCode)
	require.Contains(t, string(answer), "send it at once")
	require.Len(t, s.storage.made(), before)
}

func TestADryRunIsOne(t *testing.T) {
	s := cluster(t)
	code, answer := send(t, s.RESTConfig(sandbox.Jane, 0), "POST", mintPath+"?dryRun=All", nil, body)
	require.Equal(t, http.StatusCreated, code, answer)
	calls := s.storage.made()
	require.True(t, calls[len(calls)-1].dryRun)
	code, answer = send(t, s.RESTConfig(sandbox.Jane, 0), "POST", mintPath+"?dryRun=", nil, body)
	require.Equal(t, http.StatusUnprocessableEntity, code, answer)
}

func TestWhoMayNotMintIsForbidden(t *testing.T) {
	s := cluster(t)
	before := len(s.storage.made())
	address := s.MintAddress()
	code, answer := send(t, s.RESTConfig(sandbox.Ivan, 0), "POST", mintPath, nil, body)
	require.Equal(t, http.StatusForbidden, code, answer)
	// The server asks for itself, too: whoever the front proxy names.
	code, answer = send(t, s.forged(t, address, frontProxyName), "POST", mintPath, as("ivan", "tenant-acme-view", "system:authenticated"), body)
	require.Equal(t, http.StatusForbidden, code, answer)
	code, answer = send(t, s.forged(t, address, frontProxyName), "POST", mintPath, asJane(), body)
	require.Equal(t, http.StatusCreated, code, answer)
	require.Len(t, s.storage.made(), before+1)
}

func TestARightToMintOneAccountIsNoneToMintAnother(t *testing.T) {
	s := cluster(t)
	admin := s.Kubernetes(sandbox.ClusterAdmin, 0).RbacV1()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "mint-one"}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"credentials/mint"}, Verbs: []string{"create"}, ResourceNames: []string{"postgres-orders.app"},
	}}}
	_, err := admin.Roles(sandbox.TenantAcme).Create(t.Context(), role, metav1.CreateOptions{})
	require.NoError(t, err)
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "mint-one"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "mint-one"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "robot"}},
	}
	_, err = admin.RoleBindings(sandbox.TenantAcme).Create(t.Context(), binding, metav1.CreateOptions{})
	require.NoError(t, err)
	// The server keeps a refusal for a while: it is asked when kube-apiserver's authorizer knows of the role.
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "robot",
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "create", Namespace: sandbox.TenantAcme, Group: v1alpha1.GroupName, Resource: "credentials", Subresource: "mint", Name: "postgres-orders.app",
		},
	}}
	require.Eventually(t, func() bool {
		answer, err := s.Kubernetes(sandbox.ClusterAdmin, 0).AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		return err == nil && answer.Status.Allowed
	}, time.Minute, 20*time.Millisecond)
	robot := s.forged(t, s.MintAddress(), frontProxyName)
	mint := func(credential string) int {
		code, _ := send(t, robot, "POST", acme+"/"+credential+"/mint", as("robot", "system:authenticated"), body)
		return code
	}
	require.Equal(t, http.StatusForbidden, mint("postgres-orders.other"))
	require.Equal(t, http.StatusCreated, mint("postgres-orders.app"))
}

func TestWhoComesStraightToTheServerIsNobody(t *testing.T) {
	s := cluster(t)
	token, err := s.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().ServiceAccounts(sandbox.Namespace).
		CreateToken(t.Context(), "mint", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	address := s.MintAddress()
	f := func(name string, config *rest.Config) {
		t.Run(name, func(t *testing.T) {
			before := len(s.storage.made())
			for _, header := range []http.Header{{}, asJane(), as("root", "system:masters", "system:authenticated")} {
				for _, path := range []string{acme, group, "/openapi/v2", "/metrics", "/version"} {
					code, answer := send(t, config, "GET", path, header.Clone(), "")
					assert.Equal(t, http.StatusUnauthorized, code, "%s: %s", path, answer)
				}
				code, answer := send(t, config, "POST", mintPath, header.Clone(), body)
				assert.Equal(t, http.StatusUnauthorized, code, answer)
			}
			assert.Len(t, s.storage.made(), before)
		})
	}
	f("without anything", s.direct(address))
	bearer := s.direct(address)
	bearer.BearerToken = token.Status.Token
	f("with a token of the cluster", bearer)
	certified := s.RESTConfig(sandbox.ClusterAdmin, 0)
	certified.Host, certified.ServerName = s.direct(address).Host, s.direct(address).ServerName
	f("with a certificate of the cluster", certified)
	f("with another name of the front proxy's authority", s.forged(t, address, "somebody-else"))
}

func TestAForgedCallWithoutAnAuditIDIsRefused(t *testing.T) {
	s := cluster(t)
	before := len(s.storage.made())
	header := asJane()
	header.Del("Audit-Id")
	code, answer := send(t, s.forged(t, s.MintAddress(), frontProxyName), "POST", mintPath, header, body)
	require.Equal(t, http.StatusBadRequest, code, answer)
	require.Len(t, s.storage.made(), before)
}

func TestAnybodyMayAskForItsHealthAndForNothingElse(t *testing.T) {
	s := cluster(t)
	f := func(path string, want int) {
		t.Helper()
		code, answer := send(t, s.direct(s.MintAddress()), "GET", path, nil, "")
		require.Equal(t, want, code, "%s: %s", path, answer)
	}
	f("/livez", 200)
	f("/readyz", 200)
	f("/healthz", 200)
	f("/readyz/front-proxy", 401)
	f("/metrics", 401)
	f("/debug/pprof/heap", 401)
}

func TestNoMetricsAndNoProfilesAreServedHere(t *testing.T) {
	s := cluster(t)
	for _, path := range []string{"/metrics", "/metrics/slis", "/debug/pprof/", "/debug/pprof/heap", "/debug/flags/v"} {
		code, answer := send(t, s.forged(t, s.MintAddress(), frontProxyName), "GET", path, as("root", "system:masters"), "")
		require.Equal(t, http.StatusNotFound, code, "%s: %s", path, answer)
	}
}

func TestHTTP2IsNotSpokenForItWouldHideAnExpectHeader(t *testing.T) {
	s := cluster(t)
	config, err := rest.TLSConfigFor(s.direct(s.MintAddress()))
	require.NoError(t, err)
	config.NextProtos = []string{"h2", "http/1.1"}
	connection, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", s.MintAddress())
	require.NoError(t, err)
	defer connection.Close()
	require.Equal(t, "http/1.1", connection.(*tls.Conn).ConnectionState().NegotiatedProtocol)
}

// kubectl runs it as a person and returns its output.
func (s *served) kubectl(t *testing.T, person string, arguments ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(s.Root(), "bin", "kubectl"), arguments...)
	command.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig(person, 0), "HOME="+t.TempDir())
	output, err := command.CombinedOutput()
	require.NoError(t, err, "kubectl %v: %s", arguments, output)
	return string(output)
}

func TestKubectlExplainsListsAndShowsCredentials(t *testing.T) {
	s := cluster(t)
	// kube-apiserver fetches the documentation of an API, in each version of its own, some time after the API is there.
	eventually(t, func() int {
		_, index := send(t, s.RESTConfig(sandbox.Jane, 0), "GET", "/openapi/v3", nil, "")
		v3, _ := send(t, s.RESTConfig(sandbox.Jane, 0), "GET", "/openapi/v3"+group, nil, "")
		_, v2 := send(t, s.RESTConfig(sandbox.Jane, 0), "GET", "/openapi/v2", nil, "")
		if !strings.Contains(index, group[1:]) || !strings.Contains(v2, `"`+mintRoute+`"`) {
			return 0
		}
		return v3
	}, http.StatusOK)
	explained := s.kubectl(t, sandbox.Jane, "explain", "credentials", "--recursive")
	for _, field := range []string{"GROUP:      credentials.cozystack.io", "KIND:       Credential", "username", "format", "origin", "impersonatedBy", "findings"} {
		require.Contains(t, explained, field)
	}
	require.Contains(t, s.kubectl(t, sandbox.Jane, "explain", "credentials.status.history.by"), "as the audit log has it")
	require.Contains(t, s.kubectl(t, sandbox.Jane, "explain", "credentials.status.password", "--output=plaintext-openapiv2"), "Migrated")

	resources := s.kubectl(t, sandbox.Jane, "api-resources", "--api-group=credentials.cozystack.io", "--no-headers")
	require.Equal(t, []string{"credentials", "cred", "credentials.cozystack.io/v1alpha1", "true", "Credential"}, strings.Fields(resources))

	table := s.kubectl(t, sandbox.Jane, "get", "cred", "-n", sandbox.TenantAcme)
	require.Contains(t, table, "NAME")
	require.Contains(t, table, "postgres-orders.app")
	require.Contains(t, s.kubectl(t, sandbox.Jane, "get", "credential", "postgres-orders.app", "-n", sandbox.TenantAcme, "-o", "yaml"), "username: app")

	file := filepath.Join(t.TempDir(), "mint.json")
	require.NoError(t, os.WriteFile(file, []byte(body), 0o600))
	require.Contains(t, s.kubectl(t, sandbox.Jane, "create", "--raw", mintPath, "-f", file), password)
}

func TestNothingIsServedThatTheStorageDoesNot(t *testing.T) {
	s := cluster(t)
	code, answer := send(t, s.RESTConfig(sandbox.ClusterAdmin, 0), "GET", group, nil, "")
	require.Equal(t, http.StatusOK, code)
	var list metav1.APIResourceList
	require.NoError(t, json.Unmarshal([]byte(answer), &list))
	verbs := map[string][]string{}
	for _, r := range list.APIResources {
		verbs[r.Name] = r.Verbs
	}
	require.Equal(t, map[string][]string{"credentials": {"get", "list"}, "credentials/mint": {"create"}}, verbs)

	f := func(method, path string) {
		t.Helper()
		code, answer := send(t, s.RESTConfig(sandbox.ClusterAdmin, 0), method, path, http.Header{"Content-Type": {"application/json"}}, "{}")
		require.Equal(t, http.StatusMethodNotAllowed, code, "%s %s: %s", method, path, answer)
	}
	f("POST", acme)
	f("PUT", acme+"/postgres-orders.app")
	f("PATCH", acme+"/postgres-orders.app")
	f("DELETE", acme+"/postgres-orders.app")
	f("DELETE", acme)
	f("GET", mintPath)
	f("GET", acme+"?watch=true")
}

func TestAnAnswerCanBeReadInYAML(t *testing.T) {
	s := cluster(t)
	response, answer := exchange(t, s.RESTConfig(sandbox.Jane, 0), "POST", mintPath, http.Header{"Accept": {"application/yaml"}}, body)
	require.Equal(t, http.StatusCreated, response.StatusCode, answer)
	require.Contains(t, answer, "  password: "+password)
}

func TestARotatedFrontProxyAuthorityIsTakenOverLive(t *testing.T) {
	s := cluster(t)
	const configMap = "extension-apiserver-authentication"
	configMaps := s.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().ConfigMaps(metav1.NamespaceSystem)
	publish := func(change func(data map[string]string)) {
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			published, err := configMaps.Get(t.Context(), configMap, metav1.GetOptions{})
			require.NoError(c, err)
			change(published.Data)
			_, err = configMaps.Update(t.Context(), published, metav1.UpdateOptions{})
			require.NoError(c, err)
		}, time.Minute, 50*time.Millisecond)
	}
	before, err := configMaps.Get(t.Context(), configMap, metav1.GetOptions{})
	require.NoError(t, err)
	defer publish(func(data map[string]string) { maps.Copy(data, before.Data) })

	fresh, err := sandbox.NewAuthority("fresh")
	require.NoError(t, err)
	config := s.direct(s.MintAddress())
	config.CertData, config.KeyData, err = fresh.Issue(sandbox.Identity{Name: frontProxyName})
	require.NoError(t, err)
	get := func() int { code, _ := send(t, config, "GET", acme, asJane(), ""); return code }
	require.Equal(t, http.StatusUnauthorized, get())
	publish(func(data map[string]string) {
		data["requestheader-client-ca-file"] = before.Data["requestheader-client-ca-file"] + string(fresh.PEM())
	})
	eventually(t, get, http.StatusOK)
	code, answer := send(t, s.RESTConfig(sandbox.Jane, 0), "GET", acme, nil, "")
	require.Equal(t, http.StatusOK, code, answer)

	// One authority for users and for the front proxy: nobody gets in, and it says so, until that is mended.
	publish(func(data map[string]string) {
		data["client-ca-file"] = before.Data["client-ca-file"] + string(fresh.PEM())
	})
	eventually(t, get, http.StatusUnauthorized)
	ready := func() int { code, _ := send(t, s.direct(s.MintAddress()), "GET", "/readyz", nil, ""); return code }
	eventually(t, ready, http.StatusInternalServerError)
	require.Contains(t, s.logs.String(), "apart from --client-ca-file")
	publish(func(data map[string]string) {
		data["client-ca-file"] = before.Data["client-ca-file"]
	})
	eventually(t, get, http.StatusOK)
	eventually(t, ready, http.StatusOK)
}

func eventually(t *testing.T, get func() int, want int) {
	t.Helper()
	require.Eventually(t, func() bool { return get() == want }, time.Minute, 50*time.Millisecond)
}

func TestRequestsInFlightAreAnsweredBeforeTheServerEnds(t *testing.T) {
	s := cluster(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	storage := &recorder{during: func() { close(entered); <-leave }}
	certificate, key := s.MintCertificate()
	own, stop, err := serve(s.Sandbox, options("127.0.0.1:0", certificate, key, storage, slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	address := own.Address().String()
	eventually(t, func() int { code, _ := tryGet(s.direct(address), "/readyz"); return code }, http.StatusOK)

	type answer struct {
		code int
		text string
	}
	answers, ended := make(chan answer, 1), make(chan error, 1)
	config := s.forged(t, address, frontProxyName)
	go func() {
		code, text := send(t, config, "POST", mintPath, asJane(), body)
		answers <- answer{code, text}
	}()
	<-entered
	go func() { ended <- stop() }()
	require.Eventually(t, func() bool { _, err := tryGet(s.direct(address), "/livez"); return err != nil }, time.Minute, 20*time.Millisecond)
	select {
	case <-ended:
		t.Fatal("the server ended with a mint in flight")
	case <-time.After(200 * time.Millisecond):
	}
	close(leave)
	got := <-answers
	require.Equal(t, http.StatusCreated, got.code)
	require.Contains(t, got.text, password)
	require.NoError(t, <-ended)
}

func tryGet(config *rest.Config, path string) (int, error) {
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return 0, err
	}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: tlsConfig, DisableKeepAlives: true}}
	response, err := client.Get(config.Host + path)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

func TestAChangedServingCertificateIsTakenOverLive(t *testing.T) {
	s := cluster(t)
	directory := t.TempDir()
	certificate, key := filepath.Join(directory, "tls.crt"), filepath.Join(directory, "tls.key")
	write := func(name string) {
		pem, secret, err := s.ServingAuthority().Issue(sandbox.Identity{Name: name, Hosts: []string{"mint.mintlog.svc"}})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(key, secret, 0o600))
		require.NoError(t, os.WriteFile(certificate, pem, 0o600))
	}
	write("first")
	own, stop, err := serve(s.Sandbox, options("127.0.0.1:0", certificate, key, &recorder{}, slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	defer func() { require.NoError(t, stop()) }()
	shown := func() string {
		config, err := rest.TLSConfigFor(s.direct(own.Address().String()))
		require.NoError(t, err)
		connection, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", own.Address().String())
		if err != nil {
			return err.Error()
		}
		defer connection.Close()
		return connection.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	require.Eventually(t, func() bool { return shown() == "first" }, time.Minute, 20*time.Millisecond)
	write("second")
	require.Eventually(t, func() bool { return shown() == "second" }, time.Minute, 50*time.Millisecond)
}

func TestNoPasswordStandsInALogAtTheHighestVerbosity(t *testing.T) {
	s := cluster(t)
	code, answer := send(t, s.RESTConfig(sandbox.Jane, 0), "POST", mintPath, nil, body)
	require.Equal(t, http.StatusCreated, code)
	require.Contains(t, answer, password)
	s.storage.mu.Lock()
	s.storage.during = func() { panic("the storage broke") }
	s.storage.mu.Unlock()
	defer func() {
		s.storage.mu.Lock()
		defer s.storage.mu.Unlock()
		s.storage.during = nil
	}()
	code, _ = send(t, s.RESTConfig(sandbox.Jane, 0), "POST", mintPath, nil, `{"metadata": {"annotations": {"a": "`+password+`"}}}`)
	require.Equal(t, http.StatusServiceUnavailable, code) // kube-apiserver says that it got no answer

	logs := s.logs.String()
	require.Contains(t, logs, mintPath) // it does log requests
	require.Contains(t, logs, "the storage broke")
	require.NotContains(t, logs, password)
}
