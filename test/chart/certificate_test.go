package chart

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/mintlog/mintlog/mint/certificate"
	"github.com/mintlog/mintlog/test/sandbox"
)

const (
	apiService = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.credentials.cozystack.io"
	mintHost   = "mintlog-mint.mintlog.svc"
	day        = 24 * time.Hour
)

// laySelfSigned lays the chart's Secrets, identity and APIService for certificates of mintlog's own.
func laySelfSigned(t *testing.T) {
	t.Helper()
	text := render(t, "--values", shapes(t)["small"], "--show-only", "templates/self-signed.yaml", "--show-only", "templates/api.yaml")
	require.NoError(t, cluster.ApplyManifest(t.Context(), sandbox.Namespace, text))
	t.Cleanup(func() { // else no namespace could be deleted
		ctx, release := contextOf()
		defer release()
		_, err := send(ctx, admin, "delete", apiService, "")
		require.NoError(t, err)
	})
}

// trusted are the authorities that kube-apiserver is told to trust.
func trusted(t *testing.T) []byte {
	t.Helper()
	var is struct{ Spec struct{ CABundle string } }
	require.NoError(t, json.Unmarshal(must(t, admin, "get", apiService, "").body, &is))
	bundle, err := base64.StdEncoding.DecodeString(is.Spec.CABundle)
	require.NoError(t, err)
	return bundle
}

// served is what the Secret of the mint server has.
func served(t *testing.T) *x509.Certificate {
	t.Helper()
	secret, err := cluster.Kubernetes(admin, 0).CoreV1().Secrets(sandbox.Namespace).Get(t.Context(), "mintlog-mint-tls", metav1.GetOptions{})
	require.NoError(t, err)
	block, _ := pem.Decode(secret.Data["tls.crt"])
	require.NotNil(t, block)
	c, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	return c
}

func verifies(c *x509.Certificate, bundle []byte, at time.Time) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	_, err := c.Verify(x509.VerifyOptions{Roots: roots, DNSName: mintHost, CurrentTime: at})
	return err
}

// awaitCertifier waits until kube-apiserver's authorizer knows what the job may do.
func awaitCertifier(t *testing.T) {
	t.Helper()
	const job = "system:serviceaccount:mintlog:certificates"
	within(t, 3*time.Minute, func() error {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: job, ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: "patch", Group: "apiregistration.k8s.io", Resource: "apiservices", Name: "v1alpha1.credentials.cozystack.io",
			},
		}}
		got, err := cluster.Kubernetes(admin, 0).AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if !got.Status.Allowed || !may(t, job, "update", sandbox.Namespace, "mintlog-mint-tls") {
			return errors.New("the job may not do its work yet")
		}
		return nil
	})
}

func TestTheJobMakesCertificatesWithItsOwnRightsAndOnce(t *testing.T) {
	laySelfSigned(t)
	awaitCertifier(t)
	file, err := cluster.ServiceAccountKubeconfig(t.Context(), "certificates", 0)
	require.NoError(t, err)
	for _, w := range jobs(t, render(t, "--values", shapes(t)["small"])) {
		out, err := run(t, nil, "mintlog", append(w.pod.Containers[0].Args, "--kubeconfig="+file)...)
		require.NoError(t, err, out)
		if w.name != "mintlog-certificates" { // the job that comes first
			require.Equal(t, "secret mintlog-ca renewed\napiservice v1alpha1.credentials.cozystack.io renewed\nsecret mintlog-mint-tls renewed\n", out)
		} else {
			require.Empty(t, out)
		}
	}
	require.NoError(t, verifies(served(t), trusted(t), time.Now()))
	for _, verb := range []string{"get", "update", "list", "watch", "create", "delete", "patch"} {
		const it = "system:serviceaccount:mintlog:certificates"
		for secret, want := range map[string]bool{"mintlog-ca": true, "mintlog-mint-tls": true, "mintlog-policy-probe": false, "": false} {
			require.Equal(t, want && (verb == "get" || verb == "update"), may(t, it, verb, sandbox.Namespace, secret), "%s %s", verb, secret)
		}
		require.False(t, may(t, it, verb, sandbox.TenantAcme, "mintlog-ca"))
	}
}

func TestCertificatesAreRenewedInTimeAndNeverBeforeTheirAuthorityIsTrusted(t *testing.T) {
	laySelfSigned(t)
	now := time.Now()
	o := certificate.Options{
		Client: kubernetes.NewForConfigOrDie(as(admin)), Objects: dynamic.NewForConfigOrDie(as(admin)),
		Namespace: sandbox.Namespace, Authority: "mintlog-ca", APIService: "v1alpha1.credentials.cozystack.io",
		Serving: []certificate.Serving{{Secret: "mintlog-mint-tls", Hosts: []string{mintHost, "mintlog-mint"}}},
		Now:     func() time.Time { return now },
	}
	renew := func() []string {
		t.Helper()
		wrote, err := certificate.Renew(t.Context(), o)
		require.NoError(t, err)
		return wrote
	}
	renew()
	first := served(t)
	now = first.NotBefore.Add(59 * day)
	require.Empty(t, renew())
	now = first.NotBefore.Add(61 * day)
	require.Equal(t, []string{"secret mintlog-mint-tls"}, renew())

	authorities := 0
	for end := now.Add(14 * 365 * day); now.Before(end); now = now.Add(10 * day) {
		before := trusted(t)
		for _, wrote := range renew() {
			if wrote == "secret mintlog-ca" {
				authorities++
			}
		}
		require.NoError(t, verifies(served(t), before, now), "who has not heard of a new authority yet, at %s", now)
		require.NoError(t, verifies(served(t), trusted(t), now.Add(20*day)), "the next time may come late")
	}
	require.Equal(t, 2, authorities)

	secrets := cluster.Kubernetes(admin, 0).CoreV1().Secrets(sandbox.Namespace)
	for what, damage := range map[string]string{"its key is another's": "tls.key", "it is no certificate": "tls.crt"} {
		secret, err := secrets.Get(t.Context(), "mintlog-mint-tls", metav1.GetOptions{})
		require.NoError(t, err)
		secret.Data[damage] = []byte("damaged")
		_, err = secrets.Update(t.Context(), secret, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.Equal(t, []string{"secret mintlog-mint-tls"}, renew(), what)
		require.NoError(t, verifies(served(t), trusted(t), now), what)
	}
	o.Serving[0].Hosts = append(o.Serving[0].Hosts, "mint.example.org")
	require.Equal(t, []string{"secret mintlog-mint-tls"}, renew(), "it is for another name as well")
	require.Contains(t, served(t).DNSNames, "mint.example.org")

	o.Serving[0].Secret = "absent"
	_, err := certificate.Renew(t.Context(), o)
	require.ErrorContains(t, err, "there is no Secret absent in the namespace mintlog")
}

func TestAnAPIServiceWhoseStatusIsWrittenMeanwhileIsWrittenAllTheSame(t *testing.T) {
	laySelfSigned(t)
	config, meanwhile := as(admin), 0
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, apiService) && meanwhile < 2 {
				meanwhile++
				must(t, admin, "merge", apiService, label("status", strconv.Itoa(meanwhile)))
			}
			return next.RoundTrip(r)
		})
	})
	wrote, err := certificate.Renew(t.Context(), certificate.Options{
		Client: kubernetes.NewForConfigOrDie(config), Objects: dynamic.NewForConfigOrDie(config),
		Namespace: sandbox.Namespace, Authority: "mintlog-ca", APIService: "v1alpha1.credentials.cozystack.io", Now: time.Now,
	})
	require.NoError(t, err)
	require.Contains(t, wrote, "apiservice v1alpha1.credentials.cozystack.io")
	require.Equal(t, 2, meanwhile)
	require.NotEmpty(t, trusted(t))
}
