package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/rest"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/mint/credential"
	"github.com/mintlog/mintlog/test/sandbox"
)

func tokenRequest() *authenticationv1.TokenRequest { return &authenticationv1.TokenRequest{} }

// forged reaches the mint server as if it were the front proxy, with a certificate of its CA and an allowed name: what
// only the holder of that CA's key can do. There is no audit event.
func forged(t *testing.T, user string, groups ...string) *rest.Config {
	t.Helper()
	certificate, key, err := shared.FrontProxyAuthority().Issue(sandbox.Identity{Name: "front-proxy-client"})
	require.NoError(t, err)
	config := shared.RESTConfig(sandbox.ClusterAdmin, 0)
	config.Host = "https://" + shared.MintAddress()
	config.ServerName = sandbox.ServiceName + "." + sandbox.Namespace + ".svc"
	config.CertData, config.KeyData = certificate, key
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			r.Header.Set("X-Remote-User", user)
			r.Header["X-Remote-Group"] = groups
			return next.RoundTrip(r)
		})
	})
	return config
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestAnOperationThatBypassedTheLogIsPendingAndThenUnattributedInViewAndMetric(t *testing.T) {
	name := shared.application(t, "forged", "app") + ".app"
	shared.minted(t, call{config: forged(t, "jane", "tenant-acme-admin", "system:authenticated"), path: name + "/mint", header: auditID(newAuditID())})
	c := shared.awaitCredential(t, name, func(c *v1alpha1.Credential) error {
		if c.Status.Password.Revision != 2 {
			return errors.New("the view is behind")
		}
		return nil
	})
	assert.Equal(t, "Pending", c.Status.History[0].Attribution)
	assert.Empty(t, c.Status.History[0].By)

	t.Parallel() // the settling time passes while other tests run
	shared.awaitWithin(t, credential.Settling+2*time.Minute, name, func(c *v1alpha1.Credential) error {
		if o := c.Status.History[0]; o.Attribution != "Unattributed" || o.By != "" {
			return fmt.Errorf("attribution %s by %q", o.Attribution, o.By)
		}
		if !hasFinding(c, "Unattributed") {
			return errors.New("no finding")
		}
		return nil
	})
	assert.NotZero(t, shared.metric(t, `mintlog_findings{type="Unattributed"}`))
}
