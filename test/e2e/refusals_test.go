package e2e

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/test/sandbox"
)

// unchanged runs what must not write the account Secret of a credential.
func unchanged(t *testing.T, credential string, attempt func()) {
	t.Helper()
	before := shared.secret(t, credential)
	attempt()
	after := shared.secret(t, credential)
	assert.Equal(t, before.ResourceVersion, after.ResourceVersion, "the account Secret was written")
}

// raw sends a request as it stands over HTTP/1.1, as jane to a kube-apiserver, and returns the code of its answer.
func raw(t *testing.T, config *rest.Config, request string) string {
	t.Helper()
	tlsConfig, err := rest.TLSConfigFor(config)
	require.NoError(t, err)
	tlsConfig.NextProtos = []string{"http/1.1"}
	address := strings.TrimPrefix(config.Host, "https://")
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Minute}, "tcp", address, tlsConfig)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = conn.Write([]byte(request))
	require.NoError(t, err)
	reader := bufio.NewReader(conn)
	for {
		response, err := http.ReadResponse(reader, nil)
		require.NoError(t, err)
		if response.StatusCode != http.StatusContinue { // which kube-apiserver sends on its own
			return fmt.Sprintf(" %d ", response.StatusCode)
		}
	}
}

const mintBody = `{"apiVersion": "credentials.cozystack.io/v1alpha1", "kind": "CredentialMint"}`

func rawMint(host, credential, query, headers string) string {
	return fmt.Sprintf("POST /apis/credentials.cozystack.io/v1alpha1/namespaces/%s/credentials/%s/mint%s HTTP/1.1\r\nHost: %s\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n%s\r\n%s", acme, credential, query, host, len(mintBody), headers, mintBody)
}

func TestWhatWouldEscapeTheLogIsRefusedBeforeAnyWrite(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "escape", "app") + ".app"
	config := shared.RESTConfig(sandbox.Jane, 0)
	host := strings.TrimPrefix(config.Host, "https://")
	f := func(name, query, headers, want string) {
		t.Helper()
		unchanged(t, credential, func() {
			assert.Contains(t, raw(t, config, rawMint(host, credential, query, headers)), want, name)
		})
	}
	f("the audit id stripped on the way", "", "Connection: Audit-ID\r\nAudit-ID: "+newAuditID()+"\r\n", " 400 ")
	f("an upgrade", "", "Connection: upgrade\r\nUpgrade: x\r\n", " 400 ")
	f("an Expect header", "", "Expect: 100-continue\r\n", " 417 ")
	f("a 100 KB query", "?pad="+strings.Repeat("x", 100<<10), "", " 414 ")
	f("an audit id that is no UUID", "", "Audit-ID: x\r\n", " 400 ")
	f("a long audit id", "", "Audit-ID: "+strings.Repeat("x", 2000)+"\r\n", " 400 ")
	f("an answer without the password", "", "Accept: application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io\r\n", " 406 ")
	f("an answer as a table", "", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io\r\n", " 406 ")

	assert.Contains(t, raw(t, config, rawMint(host, credential, "", "")), " 201 ", "the same request without any of these")
}

func TestWhoComesStraightToTheMintServerIsNobody(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "straight", "app") + ".app"
	token, err := shared.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().ServiceAccounts(acme).
		CreateToken(ctx(t), acme, tokenRequest(), metav1.CreateOptions{})
	require.NoError(t, err)
	direct := func(change func(*rest.Config)) *rest.Config {
		config := shared.RESTConfig(sandbox.ClusterAdmin, 0)
		config.Host = "https://" + shared.MintAddress()
		config.TLSClientConfig.ServerName = sandbox.ServiceName + "." + sandbox.Namespace + ".svc"
		change(config)
		return config
	}
	f := func(name string, config *rest.Config) {
		t.Helper()
		unchanged(t, credential, func() {
			a, err := shared.do(ctx(t), call{config: config, path: credential + "/mint", header: auditID(newAuditID())})
			require.NoError(t, err, name)
			assert.Equal(t, http.StatusUnauthorized, a.code, "%s: %s", name, a)
			a, err = shared.do(ctx(t), call{config: config, method: http.MethodGet, path: credential})
			require.NoError(t, err, name)
			assert.Equal(t, http.StatusUnauthorized, a.code, "%s: %s", name, a)
		})
	}
	f("a cluster client certificate", direct(func(*rest.Config) {}))
	f("a bearer token", direct(func(c *rest.Config) {
		c.CertData, c.KeyData, c.BearerToken = nil, nil, token.Status.Token
	}))
	f("nothing", direct(func(c *rest.Config) { c.CertData, c.KeyData = nil, nil }))
	f("a certificate of the front proxy's CA under another name", direct(func(c *rest.Config) {
		certificate, key, err := shared.FrontProxyAuthority().Issue(sandbox.Identity{Name: "somebody-else"})
		require.NoError(t, err)
		c.CertData, c.KeyData = certificate, key
	}))
}

func TestBadBodiesAreRefusedWithTheFieldNamed(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "bodies", "app") + ".app"
	f := func(name string, code int, body, names string) {
		t.Helper()
		unchanged(t, credential, func() {
			a, err := shared.do(ctx(t), call{person: sandbox.Jane, path: credential + "/mint", body: body})
			require.NoError(t, err, name)
			assert.Equal(t, code, a.code, "%s: %s", name, a)
			assert.Contains(t, a.String(), names, name)
		})
	}
	spec := func(spec string) string {
		return `{"apiVersion": "credentials.cozystack.io/v1alpha1", "kind": "CredentialMint", "spec": ` + spec + `}`
	}
	f("another kind", 400, `{"apiVersion": "credentials.cozystack.io/v1alpha1", "kind": "CredentialGuess"}`, "CredentialGuess")
	f("the other operation's kind", 400, `{"apiVersion": "credentials.cozystack.io/v1alpha1", "kind": "CredentialRevoke"}`, "CredentialRevoke")
	f("over 64 KiB", 413, spec(`{"preconditions": {"id": "`+strings.Repeat("x", 70<<10)+`"}}`), "65536")
	f("no JSON", 400, `{"`, "")
	f("a revision that is no number", 400, spec(`{"preconditions": {"revision": "seven"}}`), "revision")
	f("a fractional revision", 400, spec(`{"preconditions": {"revision": 1.5}}`), "revision")
	f("a negative revision", 422, spec(`{"preconditions": {"revision": -1}}`), "spec.preconditions.revision")
	f("a misspelt precondition", 400, spec(`{"preconditions": {"revison": 1}}`), "revison")
	f("a duplicate field", 400, spec(`{"preconditions": {"revision": 1, "revision": 2}}`), "revision")
	f("a foreign name", 422, `{"apiVersion": "credentials.cozystack.io/v1alpha1", "kind": "CredentialMint", "metadata": {"name": "postgres-other.app"}}`, "metadata.name")
	f("a foreign namespace", 400, `{"apiVersion": "credentials.cozystack.io/v1alpha1", "kind": "CredentialMint", "metadata": {"namespace": "tenant-beta"}}`, "namespace")
	f("an unmet revision", 409, spec(`{"preconditions": {"revision": 7}}`), "revision")
	f("an unmet id", 409, spec(`{"preconditions": {"id": "x"}}`), "id")
	f("an unmet uid", 409, spec(`{"preconditions": {"uid": "x"}}`), "uid")
	f("an unmet resourceVersion", 409, spec(`{"preconditions": {"resourceVersion": "1"}}`), "resourceVersion")
	f("that it must not exist", 409, spec(`{"preconditions": {"revision": 0}}`), "revision")

	unchanged(t, credential, func() {
		a, err := shared.do(ctx(t), call{person: sandbox.Jane, path: credential + "/mint", header: http.Header{"Content-Type": {"text/plain"}}})
		require.NoError(t, err)
		assert.Equal(t, http.StatusUnsupportedMediaType, a.code)
	})
	shared.minted(t, call{person: sandbox.Jane, path: credential + "/mint", body: "{}"})
}

func TestMetPreconditionsMint(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "met", "app") + ".app"
	secret := shared.secret(t, credential)
	f := func(precondition string) v1alpha1.MintStatus {
		t.Helper()
		return shared.minted(t, call{person: sandbox.Jane, path: credential + "/mint", body: `{"apiVersion": "credentials.cozystack.io/v1alpha1",
			"kind": "CredentialMint", "spec": {"preconditions": {` + precondition + `}}}`})
	}
	f(fmt.Sprintf(`"resourceVersion": %q, "uid": %q`, secret.ResourceVersion, secret.UID))
	last := f(`"revision": 2`)
	// The very next request may state what the last answer said, however far behind the caches are.
	for range 10 {
		last = f(fmt.Sprintf(`"id": %q`, last.ID))
	}
	assert.Equal(t, int64(13), last.Revision)
}

func TestADryRunChecksEverythingWritesNothingAndReturnsNoPassword(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "dry", "app") + ".app"
	unchanged(t, credential, func() {
		a, err := shared.do(ctx(t), call{person: sandbox.Jane, path: credential + "/mint", query: "?dryRun=All"})
		require.NoError(t, err)
		require.Equal(t, http.StatusCreated, a.code, "%s", a)
		assert.Equal(t, v1alpha1.MintStatus{Username: "app"}, decodeMint(t, a))
		shared.refused(t, http.StatusNotFound, call{person: sandbox.Jane, path: credential + "x/mint", query: "?dryRun=All"})
		shared.refused(t, http.StatusForbidden, call{person: sandbox.Ivan, path: credential + "/mint", query: "?dryRun=All"})
		shared.refused(t, http.StatusConflict, call{person: sandbox.Jane, path: credential + "/mint", query: "?dryRun=All",
			body: `{"apiVersion": "credentials.cozystack.io/v1alpha1", "kind": "CredentialMint", "spec": {"preconditions": {"revision": 7}}}`})
	})
}

func TestWhatIsNotDeclaredIsNotFound(t *testing.T) {
	t.Parallel()
	release := shared.application(t, "declared", "app")
	for _, path := range []string{release + ".other/mint", "postgres-nowhere.app/mint", "nodot/mint", release + ".app.app/revoke"} {
		shared.refused(t, http.StatusNotFound, call{person: sandbox.Jane, path: path})
	}
	shared.refused(t, http.StatusNotFound, call{person: sandbox.Jane, method: http.MethodGet, path: release + ".other"})
	shared.refused(t, http.StatusNotFound, call{person: sandbox.ClusterAdmin, path: release + ".app/burn"})
}

func TestTheAnswerOfAMintIsNotStored(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "nostore", "app") + ".app"
	a, err := shared.do(ctx(t), call{person: sandbox.Jane, path: credential + "/mint"})
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, a.code, "%s", a)
	assert.Contains(t, strings.Join(a.header.Values("Cache-Control"), ", "), "no-store")
}

func TestAnnotationsThatWouldNotFitAreRefusedAndNothingIsWritten(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "full", "app") + ".app"
	const key, limit = "example.com/large", 262_144
	room := limit - len(key)
	for name, value := range shared.secret(t, credential).Annotations {
		room -= len(name) + len(value)
	}
	patchSecret(t, shared, credential, map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: strings.Repeat("x", room)}}})
	before := shared.ledger(t, credential)
	message := shared.refused(t, http.StatusRequestEntityTooLarge, call{person: sandbox.Jane, path: credential + "/mint"})
	assert.Contains(t, message, "262144")
	assert.Equal(t, before, shared.ledger(t, credential))
}

func TestABrokenLedgerIsAFindingAndTheNextMintMendsIt(t *testing.T) {
	t.Parallel()
	credential := shared.application(t, "broken", "app") + ".app"
	for _, annotation := range []string{`"hunter2"`, `null`, `"{\"account\":\"x\",\"entries\":[]}"`} {
		_, err := shared.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().Secrets(acme).Patch(ctx(t), credential+".account", types.MergePatchType,
			[]byte(`{"metadata": {"annotations": {"credentials.cozystack.io/ledger": `+annotation+`, "credentials.cozystack.io/history": "{"}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		shared.awaitCredential(t, credential, func(c *v1alpha1.Credential) error {
			if !hasFinding(c, "BrokenLedger") {
				return fmt.Errorf("findings: %v", c.Status.Findings)
			}
			return nil
		})
		for _, operation := range []string{"/mint", "/revoke"} {
			a, err := shared.do(ctx(t), call{person: sandbox.Jane, path: credential + operation})
			require.NoError(t, err)
			require.Equal(t, http.StatusCreated, a.code, "%s", a)
		}
		c := shared.awaitBy(t, credential, "jane", "")
		assert.Empty(t, c.Status.Findings)
		assert.Equal(t, int64(2), c.Status.Password.Revision, "a new ledger begins")
	}
}

func TestAKindWithAFormatOrSourceNobodyKnowsIsNotServedAndMintSaysWhy(t *testing.T) {
	t.Parallel()
	f := func(kind string, block map[string]any, names string) {
		t.Helper()
		require.NoError(t, shared.InstallDefinition(ctx(t), kind, block))
		_, err := shared.InstallRelease(ctx(t), acme, kind, "x", values("app"))
		require.NoError(t, err)
		within(t, 2*time.Minute, func() error {
			a, err := shared.do(ctx(t), call{person: sandbox.Jane, path: strings.ToLower(kind) + "-x.app/mint"})
			if err != nil || a.code != http.StatusNotFound || !strings.Contains(a.String(), names) {
				return fmt.Errorf("%v %s", err, a)
			}
			return nil
		})
	}
	users := []any{map[string]any{"kind": "ValuesMap", "path": "users"}}
	f("Cipher", map[string]any{"format": map[string]any{"name": "rot13"}, "accounts": users}, "rot13")
	f("Oracle", map[string]any{"format": map[string]any{"name": "sha256"}, "accounts": []any{map[string]any{"kind": "Tea"}}}, "Tea")
	f("Typo", map[string]any{"format": map[string]any{"name": "sha256"}, "accounts": users, "secretLables": map[string]any{}}, "secretLables")
}

func TestCredentialsAreListedInOneNamespaceAtATime(t *testing.T) {
	t.Parallel()
	config := shared.RESTConfig(sandbox.ClusterAdmin, 0)
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	response, err := client.Get(config.Host + "/apis/credentials.cozystack.io/v1alpha1/credentials")
	require.NoError(t, err)
	defer response.Body.Close()
	var status metav1.Status
	require.NoError(t, json.NewDecoder(response.Body).Decode(&status))
	assert.Equal(t, http.StatusBadRequest, response.StatusCode)
	assert.Contains(t, status.Message, "namespace")
}

func TestANamespaceThatIsNotEnrolledIsForbiddenAndTheErrorSaysSo(t *testing.T) {
	t.Parallel()
	require.NoError(t, shared.AddNamespace(ctx(t), "tenant-outside"))
	within(t, 2*time.Minute, func() error {
		a, err := shared.do(ctx(t), call{person: sandbox.ClusterAdmin, namespace: "tenant-outside", method: http.MethodGet, path: ""})
		if err != nil || a.code != http.StatusForbidden || !strings.Contains(a.String(), "not enrolled") {
			return fmt.Errorf("%v %s", err, a)
		}
		return nil
	})
}
