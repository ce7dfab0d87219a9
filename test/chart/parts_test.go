package chart

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/mintlog/mintlog/test/natsserver"
	"github.com/mintlog/mintlog/test/sandbox"
)

// Where the chart mounts what a part is given.
const (
	mountedNkey        = "/etc/mintlog/nats/nkey"
	mountedTLS         = "/etc/mintlog/tls/"
	mountedState       = "/var/lib/mintlog"
	mountedAuthorities = "/etc/mintlog/authorities"
)

// arguments are those of a rendered container, with the paths of this machine in the place of what it mounts.
func arguments(t *testing.T, part string, rendered []string, nats *natsserver.Guarded) []string {
	t.Helper()
	certificate, key := cluster.MintCertificate()
	_, port, err := net.SplitHostPort(cluster.MintAddress())
	require.NoError(t, err)
	here := strings.NewReplacer(
		mountedNkey, nats.Seed(strings.ToUpper(part)), mountedTLS+"tls.crt", certificate, mountedTLS+"tls.key", key,
		mountedState, filepath.Join(t.TempDir(), "state"), "--secure-port=6443", "--secure-port="+port, "--shutdown-delay=5s", "--shutdown-delay=0s",
	)
	all := []string{}
	for _, argument := range rendered {
		all = append(all, here.Replace(argument))
	}
	return append(all, "--metrics-address=")
}

// startNATS starts a server with the account file that speaks TLS, with a certificate of an authority that nobody knows
// by himself. The processes that the test starts know it by the variable that the chart gives them.
func startNATS(t *testing.T) *natsserver.Guarded {
	t.Helper()
	nats := natsserver.StartGuarded(t)
	certificate, key, err := cluster.ServingAuthority().Issue(sandbox.Identity{Name: "nats", Hosts: []string{"127.0.0.1"}})
	require.NoError(t, err)
	authorities := t.TempDir()
	for file, content := range map[string][]byte{
		filepath.Join(nats.Store, "tls.crt"): certificate, filepath.Join(nats.Store, "tls.key"): key,
		filepath.Join(authorities, "platform.crt"): cluster.ServingAuthority().PEM(),
	} {
		require.NoError(t, os.WriteFile(file, content, 0o600))
	}
	nats.Configure(t, "include accounts.conf", fmt.Sprintf("tls { cert_file: %q, key_file: %q }", filepath.Join(nats.Store, "tls.crt"), filepath.Join(nats.Store, "tls.key")))
	require.NoError(t, nats.Restart(t.Context()))
	t.Setenv("SSL_CERT_DIR", authorities)
	return nats
}

func TestThePartsDoTheMainJobWithTheArgumentsIdentitiesAndKeysThatTheChartGivesThem(t *testing.T) {
	nats := startNATS(t)
	url := "tls://" + nats.Address
	text := render(t, "--values", shapes(t)["large"], "--set", strings.Join([]string{
		"stream.url=" + url, "stream.replicas=1", "stream.maxBytes=67108864", "stream.evidenceMaxBytes=67108864",
		"victorialogs.url=" + cluster.VictoriaLogsURL(), "ingest.files.auditLog=" + cluster.AuditLog(0),
	}, ","))
	for _, w := range workloads(t, text) {
		part := strings.TrimPrefix(w.name, "mintlog-")
		require.Equal(t, []corev1.EnvVar{{Name: "SSL_CERT_DIR", Value: mountedAuthorities}}, w.pod.Containers[0].Env)
		arguments := arguments(t, part, w.pod.Containers[0].Args, nats)
		if *w.pod.AutomountServiceAccountToken {
			kubeconfig, err := cluster.ServiceAccountKubeconfig(t.Context(), w.pod.ServiceAccountName, 0)
			require.NoError(t, err)
			arguments = append(arguments, "--kubeconfig="+kubeconfig)
		}
		if part == "mint" {
			arguments = append(arguments, "--bind-address=127.0.0.1")
		}
		process, err := cluster.Run(t.Context(), w.name, "bin/mintlog", arguments...)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, process.Stop()) })
	}
	t.Cleanup(func() { // else no namespace could be deleted
		ctx, release := contextOf()
		defer release()
		_, err := send(ctx, admin, "delete", apiService, "")
		require.NoError(t, err)
	})
	require.NoError(t, cluster.LayAPI(t.Context()))
	require.NoError(t, cluster.LayDefinition(t.Context()))
	require.NoError(t, cluster.AwaitFirstSight(t.Context(), "Postgres"))
	_, err := cluster.LayRelease(t.Context())
	require.NoError(t, err)
	require.NoError(t, cluster.AwaitServed(t.Context(), sandbox.TenantAcme, []string{"postgres-orders.app", "postgres-orders.report-reader"}))

	const credential = "/apis/credentials.cozystack.io/v1alpha1/namespaces/" + sandbox.TenantAcme + "/credentials/postgres-orders.app"
	jane := cluster.RESTConfig(sandbox.Jane, 0)
	minted, err := sendWith(t.Context(), jane, "post", credential+"/mint", `{"apiVersion": "credentials.cozystack.io/v1alpha1", "kind": "CredentialMint"}`)
	require.NoError(t, err)
	require.Equal(t, 201, minted.code, minted)
	within(t, 2*time.Minute, func() error {
		got, err := sendWith(t.Context(), jane, "get", credential, "")
		if err != nil {
			return err
		}
		var view struct {
			Status struct {
				History []struct{ Operation, By, Attribution string }
			}
		}
		require.NoError(t, json.Unmarshal(got.body, &view))
		if h := view.Status.History; len(h) == 0 || h[0].Operation != "Mint" || h[0].By != "jane" || h[0].Attribution != "AuditLog" {
			return fmt.Errorf("the history is %+v", h)
		}
		return nil
	})
	within(t, 2*time.Minute, func() error {
		out, err := run(t, nil, "mintlog", "who", "--victorialogs", cluster.VictoriaLogsURL(), "--namespace", sandbox.TenantAcme, "--credential", "postgres-orders.app")
		if err != nil || !strings.Contains(out, "jane") || !strings.Contains(out, "Done") {
			return fmt.Errorf("who says %s: %w", out, err)
		}
		return nil
	})
	out, err := run(t, nil, "mintlog", "gaps", "--nats", url, "--nats-nkey-file", nats.Seed("DOCTOR"))
	require.NoError(t, err, out)
}
