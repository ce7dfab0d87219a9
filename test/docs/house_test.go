package docs

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mintlog/mintlog/test/sandbox"
	"github.com/mintlog/mintlog/test/sandbox/process"
)

// cluster is where what the documents say is tried. Its kube-apiserver has the audit flags of the quickstart.
var cluster *sandbox.Sandbox

func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code, err := run(ctx, m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "the tests of the documents need their servers:", err)
		code = 1
	}
	os.Exit(code)
}

func run(ctx context.Context, m *testing.M) (code int, err error) {
	root, err := process.Root()
	if err != nil {
		return 0, err
	}
	flags, err := quickstartFlags(root)
	if err != nil {
		return 0, err
	}
	if cluster, err = sandbox.Start(ctx, sandbox.Options{Apiservers: 1, Log: os.Stderr, ExtraAPIServerFlags: flags}); err != nil {
		return 0, err
	}
	defer func() {
		if failed := cluster.Stop(); err == nil {
			err = failed
		}
	}()
	return m.Run(), nil
}

// environment is a person's at a terminal.
func environment(t *testing.T, person string) []string {
	t.Helper()
	tools := t.TempDir()
	// The sandbox has laid mintlog's roles and policies; an installation finds none.
	helm := fmt.Sprintf("#!/bin/sh\ncase $1 in install) set -- \"$@\" --take-ownership --force-conflicts;; esac\nexec %s \"$@\"\n", filepath.Join(cluster.Root(), "bin", "helm"))
	require.NoError(t, os.WriteFile(filepath.Join(tools, "helm"), []byte(helm), 0o700))
	return []string{
		"PATH=" + strings.Join([]string{tools, filepath.Join(cluster.Root(), "bin"), os.Getenv("PATH")}, ":"),
		"HOME=" + t.TempDir(), "LC_ALL=C.UTF-8", "KUBECONFIG=" + cluster.Kubeconfig(person, 0), "MINTLOG_VICTORIALOGS=" + cluster.VictoriaLogsURL(),
	}
}

// startPod runs what the chart's StatefulSet would, with its arguments and its ServiceAccount, where the sandbox's files
// and addresses are.
func startPod(t *testing.T) {
	t.Helper()
	set, err := cluster.Kubernetes(sandbox.ClusterAdmin, 0).AppsV1().StatefulSets(sandbox.Namespace).Get(t.Context(), "mintlog", metav1.GetOptions{})
	require.NoError(t, err)
	kubeconfig, err := cluster.ServiceAccountKubeconfig(t.Context(), set.Spec.Template.Spec.ServiceAccountName, 0)
	require.NoError(t, err)
	var arguments []string
	for _, argument := range set.Spec.Template.Spec.Containers[0].Args {
		if !strings.HasPrefix(argument, "--audit-log=") { // which adds up
			arguments = append(arguments, argument)
		}
	}
	certificate, key := cluster.MintCertificate()
	host, port, err := net.SplitHostPort(cluster.MintAddress())
	require.NoError(t, err)
	arguments = append(arguments, "--kubeconfig="+kubeconfig, "--bind-address="+host, "--secure-port="+port, "--tls-cert-file="+certificate,
		"--tls-private-key-file="+key, "--state="+cluster.StateDirectory(), "--victorialogs="+cluster.VictoriaLogsURL(),
		"--metrics-address="+cluster.MetricsAddress(), "--audit-log="+cluster.AuditLog(0))
	_, err = cluster.Run(t.Context(), "mintlog", cluster.Binary(), arguments...)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	require.NoError(t, cluster.LayAPI(ctx))
}
