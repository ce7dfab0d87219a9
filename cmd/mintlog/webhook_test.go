package main

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mintlog/mintlog/store/stream"
	"github.com/mintlog/mintlog/test/natsserver"
	"github.com/mintlog/mintlog/test/sandbox"
	"github.com/mintlog/mintlog/test/sandbox/process"
)

func TestAWrongFlagOfTheWebhookIsNamed(t *testing.T) {
	serving := []string{"--tls-cert-file=x", "--tls-private-key-file=y"}
	f := func(names string, arguments ...string) {
		t.Helper()
		err := run(t, append([]string{"ingest", "webhook", "--metrics-address="}, arguments...)...)
		require.Error(t, err, "%v", arguments)
		assert.Contains(t, err.Error(), names, "%v", arguments)
	}
	f("--client-ca-file", serving...)
	f("--tls-cert-file", "--client-ca-file=x")
	f("--set-aside", append(serving, "--client-ca-file=x", "--set-aside=")...)
	f("--set-aside-max-bytes", append(serving, "--client-ca-file=x", "--set-aside-max-bytes=0")...)
	f("--retry-after", append(serving, "--client-ca-file=x", "--retry-after=10ms")...)
	f("--nats", append(serving, "--client-ca-file=x")...)
	f("unknown command", "more")
}

// webhookFiles are a CA, a client's certificate and its key.
func webhookFiles(t *testing.T) (ca, certificate, key string) {
	t.Helper()
	authority, err := sandbox.NewAuthority("webhook")
	require.NoError(t, err)
	certificateText, keyText, err := authority.Issue(sandbox.Identity{Name: "kube-apiserver"})
	require.NoError(t, err)
	directory := t.TempDir()
	write := func(name string, text []byte) string {
		path := filepath.Join(directory, name)
		require.NoError(t, os.WriteFile(path, text, 0o600))
		return path
	}
	return write("ca.crt", authority.PEM()), write("tls.crt", certificateText), write("tls.key", keyText)
}

// printed is what a command writes to standard output.
func printed(t *testing.T, arguments ...string) []byte {
	t.Helper()
	c := command()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetArgs(arguments)
	require.NoError(t, c.ExecuteContext(t.Context()))
	return out.Bytes()
}

func TestTheWebhookKubeconfigIsOneThatKubeAPIServerReads(t *testing.T) {
	ca, certificate, key := webhookFiles(t)
	arguments := []string{"ingest", "webhook-kubeconfig", "--server=https://mintlog-ingest:9443/", "--name=cp-1",
		"--certificate-authority=" + ca, "--client-certificate=" + certificate, "--client-key=" + key}
	named, err := clientcmd.RESTConfigFromKubeConfig(printed(t, arguments...))
	require.NoError(t, err)
	require.Equal(t, "https://mintlog-ingest:9443/audit/cp-1", named.Host)
	require.Equal(t, []string{ca, certificate, key}, []string{named.CAFile, named.CertFile, named.KeyFile})
	require.Empty(t, named.KeyData)

	embedded, err := clientcmd.RESTConfigFromKubeConfig(printed(t, append(arguments, "--embed")...))
	require.NoError(t, err)
	require.Equal(t, named.Host, embedded.Host)
	require.Empty(t, embedded.CAFile+embedded.CertFile+embedded.KeyFile)
	for path, data := range map[string][]byte{ca: embedded.CAData, certificate: embedded.CertData, key: embedded.KeyData} {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, text, data)
	}
}

func TestAWrongFlagOfTheWebhookKubeconfigIsNamed(t *testing.T) {
	ca, certificate, key := webhookFiles(t)
	good := map[string]string{"--server": "https://a:1", "--name": "cp-1", "--certificate-authority": ca,
		"--client-certificate": certificate, "--client-key": key}
	f := func(flag, value string, more ...string) {
		t.Helper()
		arguments := append([]string{"ingest", "webhook-kubeconfig"}, more...)
		for name, usual := range good {
			if name == flag {
				usual = value
			}
			arguments = append(arguments, name+"="+usual)
		}
		err := run(t, arguments...)
		require.ErrorContains(t, err, flag)
		require.NotContains(t, err.Error(), "BEGIN")
		require.NotContains(t, err.Error(), "secret")
	}
	f("--server", "")
	f("--server", "http://a:1")
	f("--server", "https://a:1/audit/x")
	f("--server", "https://user:secret@a:1")
	f("--name", "")
	f("--name", "CP/1")
	f("--certificate-authority", "")
	f("--client-certificate", "")
	f("--client-key", "")
	f("--certificate-authority", "/no/such/file", "--embed")
	f("--certificate-authority", key, "--embed")
	f("--client-certificate", "/no/such/file", "--embed")
	f("--client-key", ca, "--embed")
}

func TestWhatThePrintedKubeconfigLeadsToPublishesToTheStream(t *testing.T) {
	url := natsserver.Run(t, natsserver.Options(t)).ClientURL()
	address, err := process.FreeAddress()
	require.NoError(t, err)
	ca, certificate, key := webhookFiles(t)
	serving, err := sandbox.NewAuthority("serving")
	require.NoError(t, err)
	text, servingKey, err := serving.Issue(sandbox.Identity{Name: "mintlog", Hosts: []string{"127.0.0.1"}})
	require.NoError(t, err)
	directory := t.TempDir()
	for name, content := range map[string][]byte{"tls.crt": text, "tls.key": servingKey, "ca.crt": serving.PEM()} {
		require.NoError(t, os.WriteFile(filepath.Join(directory, name), content, 0o600))
	}
	file := func(name string) string { return filepath.Join(directory, name) }

	stopping, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() {
		c := command()
		c.SetArgs([]string{"ingest", "webhook", "--metrics-address=", "--address=" + address, "--nats=" + url,
			"--tls-cert-file=" + file("tls.crt"), "--tls-private-key-file=" + file("tls.key"), "--client-ca-file=" + ca,
			"--client-name=kube-apiserver", "--set-aside=" + file("aside"), "--stream-max-bytes=67108864", "--evidence-max-bytes=67108864"})
		done <- c.ExecuteContext(stopping)
	}()
	config, err := clientcmd.RESTConfigFromKubeConfig(printed(t, "ingest", "webhook-kubeconfig", "--server=https://"+address, "--name=cp-1",
		"--embed", "--certificate-authority="+file("ca.crt"), "--client-certificate="+certificate, "--client-key="+key))
	require.NoError(t, err)
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	defer client.CloseIdleConnections()
	body := `{"kind":"EventList","items":["x.account",{"auditID":"1","stage":"ResponseComplete","verb":"update","user":{"username":"jane"},` +
		`"objectRef":{"resource":"secrets","namespace":"a","name":"b.c.account","apiVersion":"v1"},"responseStatus":{"code":200},` +
		`"annotations":{"authorization.k8s.io/decision":"allow"},` +
		`"requestReceivedTimestamp":"2026-08-21T10:00:00.000001Z","stageTimestamp":"2026-08-21T10:00:00.000002Z"}]}`
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		response, err := client.Post(config.Host, "application/json", strings.NewReader(body))
		if assert.NoError(t, err) {
			assert.NoError(t, response.Body.Close())
			assert.Equal(t, http.StatusOK, response.StatusCode)
		}
	}, time.Minute, 50*time.Millisecond)

	s, err := stream.Open(t.Context(), stream.Options{URL: url, MaxBytes: 64 << 20, EvidenceBytes: 64 << 20})
	require.NoError(t, err)
	defer s.Close()
	messages, err := s.Fetch(t.Context(), stream.ProjectorEvents, 1, time.Minute)
	require.NoError(t, err)
	require.Len(t, messages, 1)
	require.Equal(t, "webhook:cp-1", messages[0].Event.Source)
	aside, err := os.ReadDir(file("aside"))
	require.NoError(t, err)
	require.Len(t, aside, 1)
	stop()
	require.NoError(t, <-done)
}
