package sandbox_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/mintlog/mintlog/test/sandbox"
)

// An aggregated API server in miniature: it answers what the discovery asks and says who the front proxy names.
func TestTheFrontProxyNamesTheCallerToTheServerAtTheMintAddress(t *testing.T) {
	certificate, key := cluster.MintCertificate()
	frontProxy := x509.NewCertPool()
	require.True(t, frontProxy.AppendCertsFromPEM(cluster.FrontProxyAuthority().PEM()))
	server := &http.Server{
		Addr:      cluster.MintAddress(),
		TLSConfig: &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: frontProxy},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(map[string]string{
				"peer": r.TLS.PeerCertificates[0].Subject.CommonName, "user": r.Header.Get("X-Remote-User"), "auditID": r.Header.Get("Audit-ID"),
			})
		}),
	}
	go func() { _ = server.ListenAndServeTLS(certificate, key) }()
	defer server.Close()
	require.NoError(t, cluster.LayAPI(t.Context()))
	defer removeAPI(t)
	for apiserver := range 2 {
		body, err := kubernetes.NewForConfigOrDie(cluster.RESTConfig(sandbox.Jane, apiserver)).Discovery().RESTClient().
			Get().AbsPath("/apis/credentials.cozystack.io/v1alpha1/namespaces/tenant-acme/credentials/postgres-orders.app").
			DoRaw(t.Context())
		require.NoError(t, err)
		var seen map[string]string
		require.NoError(t, json.Unmarshal(body, &seen))
		require.Equal(t, "front-proxy-client", seen["peer"])
		require.Equal(t, sandbox.Jane, seen["user"])
		require.NotEmpty(t, seen["auditID"])
	}
}

// removeAPI removes what LayAPI laid: no namespace could be deleted while nothing answers.
func removeAPI(t *testing.T) {
	t.Helper()
	apis := dynamic.NewForConfigOrDie(cluster.RESTConfig(sandbox.ClusterAdmin, 0)).
		Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"})
	require.NoError(t, apis.Delete(t.Context(), "v1alpha1.credentials.cozystack.io", metav1.DeleteOptions{}))
}
