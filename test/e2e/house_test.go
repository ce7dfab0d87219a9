// Package e2e holds the tests of the whole: tenants and operators on one side, real servers on the other.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/store/ledger"
	"github.com/mintlog/mintlog/test/sandbox"
	"github.com/mintlog/mintlog/test/sandbox/process"
)

const acme = sandbox.TenantAcme

// house is the sandbox with mintlog running in it.
type house struct {
	*sandbox.Sandbox
	mintlog *process.Process
}

// shared serves the tests that leave the servers as they were. Most run in parallel; those that stop mintlog's process
// or count what all others do run before them, one at a time.
var shared *house

// atATime is how many tests run in parallel. Most wait for what is on its way. Go resumes the tests first that were
// paused last: the longest stand in files whose names come late.
const atATime = "6"

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", atATime); err != nil {
		panic(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if shared, err = open(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "the end-to-end tests need their servers:", err)
		os.Exit(1)
	}
	code := m.Run()
	if code != 0 {
		fmt.Fprintln(os.Stderr, "the servers' logs are kept in", shared.KeepLogs())
	}
	if err := shared.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the sandbox:", err)
		code = 1
	}
	os.Exit(code)
}

// open starts the shared sandbox and mintlog in it, and lays the kind Postgres and the application orders.
func open(ctx context.Context) (*house, error) {
	s, err := sandbox.Start(ctx, sandbox.Options{Log: os.Stderr})
	if err != nil {
		return nil, err
	}
	h := &house{Sandbox: s}
	err = h.settle(ctx)
	if err == nil {
		_, err = h.LayRelease(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, fmt.Errorf("the servers' logs are kept in %s", s.KeepLogs()), s.Stop())
	}
	return h, nil
}

// openHouse starts a test's own sandbox and mintlog in it, with more arguments if there are any, and lays the kind
// Postgres.
func openHouse(t *testing.T, options sandbox.Options, arguments ...string) *house {
	t.Helper()
	h := &house{Sandbox: sandbox.Open(t, options)}
	require.NoError(t, h.settle(t.Context(), arguments...))
	return h
}

func (h *house) settle(ctx context.Context, arguments ...string) error {
	var err error
	if h.mintlog, err = h.RunAll(ctx, arguments...); err != nil {
		return err
	}
	if err := h.LayDefinition(ctx); err != nil {
		return err
	}
	return h.AwaitFirstSight(ctx, "Postgres")
}

// ctx ends with the test, or after five minutes.
func ctx(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// application lays an application of the kind Postgres in tenant-acme with the given users, and waits until all of
// them are seeded, shown and minted. It returns the release's name.
func (h *house) application(t *testing.T, name string, users ...string) string {
	t.Helper()
	_, err := h.InstallRelease(ctx(t), acme, "Postgres", name, values(users...))
	require.NoError(t, err)
	release := "postgres-" + name
	credentials := make([]string, len(users))
	for i, user := range users {
		credentials[i] = release + "." + strings.ToLower(user)
	}
	require.NoError(t, h.AwaitServed(ctx(t), acme, credentials))
	return release
}

func values(users ...string) map[string]any {
	all := map[string]any{}
	for _, user := range users {
		all[user] = map[string]any{}
	}
	return map[string]any{"users": all}
}

// An answer is what a call came back with.
type answer struct {
	code   int
	body   []byte
	header http.Header
}

func (a answer) String() string {
	var status metav1.Status
	if json.Unmarshal(a.body, &status) == nil && status.Kind == "Status" {
		return fmt.Sprintf("%d %s", a.code, status.Message)
	}
	return fmt.Sprint(a.code) // no body: it may hold a password
}

// A call is a request to the credentials API.
type call struct {
	person    string
	apiserver int
	method    string // default POST
	path      string // below the namespace
	namespace string // default tenant-acme
	query     string
	body      string // default the smallest that mints or revokes
	header    http.Header
	as        string // impersonated user, by whoever person is
	asGroups  []string
	config    *rest.Config // instead of person's
}

func (h *house) do(ctx context.Context, c call) (answer, error) {
	config := c.config
	if config == nil {
		config = h.RESTConfig(c.person, c.apiserver)
	}
	if c.as != "" {
		config.Impersonate = rest.ImpersonationConfig{UserName: c.as, Groups: c.asGroups}
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return answer{}, err
	}
	if c.method == "" {
		c.method = http.MethodPost
	}
	if c.namespace == "" {
		c.namespace = acme
	}
	if c.body == "" && c.method == http.MethodPost {
		kind := "CredentialMint"
		if strings.HasSuffix(c.path, "/revoke") {
			kind = "CredentialRevoke"
		}
		c.body = fmt.Sprintf(`{"apiVersion": "credentials.cozystack.io/v1alpha1", "kind": %q}`, kind)
	}
	url := fmt.Sprintf("%s/apis/credentials.cozystack.io/v1alpha1/namespaces/%s/credentials/%s%s", config.Host, c.namespace, c.path, c.query)
	request, err := http.NewRequestWithContext(ctx, c.method, url, strings.NewReader(c.body))
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	for key, values := range c.header {
		request.Header[key] = values
	}
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return answer{code: response.StatusCode, body: body, header: response.Header}, err
}

// mint mints, as person through an apiserver, and must succeed.
func (h *house) mint(t *testing.T, person string, apiserver int, credential string) v1alpha1.MintStatus {
	t.Helper()
	return h.minted(t, call{person: person, apiserver: apiserver, path: credential + "/mint"})
}

func (h *house) minted(t *testing.T, c call) v1alpha1.MintStatus {
	t.Helper()
	a, err := h.do(ctx(t), c)
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, a.code, "%s", a)
	return decodeMint(t, a)
}

func decodeMint(t *testing.T, a answer) v1alpha1.MintStatus {
	t.Helper()
	var body v1alpha1.CredentialMint
	require.NoError(t, json.Unmarshal(a.body, &body))
	return body.Status
}

// refused makes a call that must be answered with the code, and returns the answer's message.
func (h *house) refused(t *testing.T, code int, c call) string {
	t.Helper()
	a, err := h.do(ctx(t), c)
	require.NoError(t, err)
	require.Equal(t, code, a.code, "%s", a)
	return a.String()
}

// credential reads a view through the front proxy.
func (h *house) credential(ctx context.Context, person string, apiserver int, namespace, name string) (*v1alpha1.Credential, error) {
	a, err := h.do(ctx, call{person: person, apiserver: apiserver, method: http.MethodGet, namespace: namespace, path: name})
	if err != nil {
		return nil, err
	}
	if a.code != http.StatusOK {
		return nil, errors.New(a.String())
	}
	var c v1alpha1.Credential
	return &c, json.Unmarshal(a.body, &c)
}

// awaitCredential reads the credential of tenant-acme as jane until it is as wanted.
func (h *house) awaitCredential(t *testing.T, name string, wanted func(*v1alpha1.Credential) error) *v1alpha1.Credential {
	t.Helper()
	return h.awaitWithin(t, 2*time.Minute, name, wanted)
}

// awaitBy waits until the credential's view begins with its ledger's newest entry, and says that it was asked for by a
// user, through another if impersonator is not empty. The name alone would be true of an operation before it: a view is
// read from a cache.
func (h *house) awaitBy(t *testing.T, name, user, impersonator string) *v1alpha1.Credential {
	t.Helper()
	return h.awaitCredential(t, name, func(c *v1alpha1.Credential) error {
		return errors.Join(isNewest(c, h.ledger(t, name).Newest()), by(user, impersonator)(c))
	})
}

// awaitAttributed waits until the credential's view begins with its ledger's newest entry, and every requested operation
// in it bears a name.
func (h *house) awaitAttributed(t *testing.T, name string) *v1alpha1.Credential {
	t.Helper()
	return h.awaitCredential(t, name, func(c *v1alpha1.Credential) error {
		return errors.Join(isNewest(c, h.ledger(t, name).Newest()), allAttributed(c))
	})
}

func (h *house) awaitWithin(t *testing.T, limit time.Duration, name string, wanted func(*v1alpha1.Credential) error) *v1alpha1.Credential {
	t.Helper()
	var c *v1alpha1.Credential
	within(t, limit, func() error {
		var err error
		if c, err = h.credential(t.Context(), sandbox.Jane, 0, acme, name); err != nil {
			return err
		}
		return wanted(c)
	})
	return c
}

// within repeats step until it succeeds.
func within(t *testing.T, limit time.Duration, step func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := step()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %v", limit, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// by wants the newest operation to have been asked for by a user, through another if impersonator is not empty.
func by(user, impersonator string) func(*v1alpha1.Credential) error {
	return func(c *v1alpha1.Credential) error {
		if len(c.Status.History) == 0 {
			return errors.New("no history")
		}
		o := c.Status.History[0]
		if o.By != user || o.ImpersonatedBy != impersonator || o.Attribution != "AuditLog" {
			return fmt.Errorf("the newest operation is by %q through %q (%s)", o.By, o.ImpersonatedBy, o.Attribution)
		}
		return nil
	}
}

// allAttributed wants every requested operation to bear a name.
func allAttributed(c *v1alpha1.Credential) error {
	for _, o := range c.Status.History {
		if o.Attribution != "AuditLog" && o.Attribution != "Platform" {
			return fmt.Errorf("revision %d is %s", o.Revision, o.Attribution)
		}
	}
	return nil
}

func hasFinding(c *v1alpha1.Credential, findingType string) bool {
	for _, f := range c.Status.Findings {
		if f.Type == findingType {
			return true
		}
	}
	return false
}

// secret is the account Secret of a credential, as cluster-admin.
func (h *house) secret(t *testing.T, credential string) *corev1.Secret {
	t.Helper()
	secret, err := h.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().Secrets(acme).Get(ctx(t), credential+".account", metav1.GetOptions{})
	require.NoError(t, err)
	return secret
}

func (h *house) ledger(t *testing.T, credential string) ledger.Ledger {
	t.Helper()
	book, err := ledger.Parse(h.secret(t, credential).Annotations[ledger.Annotation])
	require.NoError(t, err)
	return book
}

func auditID(id string) http.Header { return http.Header{"Audit-Id": {id}} }

func newAuditID() string { return uuid.NewString() }

// metric is the value of a metric of mintlog, by its name and labels. One that is not there fails the test.
func (h *house) metric(t *testing.T, name string) float64 {
	t.Helper()
	response, err := http.Get("http://" + h.MetricsAddress() + "/metrics")
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	for line := range bytes.Lines(body) {
		if value, ok := strings.CutPrefix(string(line), name+" "); ok {
			number, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			require.NoError(t, err)
			return number
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

func occurrences(t *testing.T, response *http.Response, text string) int {
	t.Helper()
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.NotEmpty(t, body)
	return strings.Count(string(body), text)
}
