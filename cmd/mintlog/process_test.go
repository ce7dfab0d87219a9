package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/test/sandbox/process"
)

func TestAPartIsHealthyWhileNothingThatItAsksAnswers(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "a",
		"contexts": [{"name": "a", "context": {"cluster": "a"}}], "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}]}`), 0o600))
	for _, arguments := range [][]string{
		{"archive", "--nats=nats://127.0.0.1:1", "--nats-existing", "--victorialogs=http://127.0.0.1:1"},
		{"project", "--nats=nats://127.0.0.1:1", "--nats-existing", "--kubeconfig=" + kubeconfig},
		{"accounts", "--kubeconfig=" + kubeconfig},
	} {
		t.Run(arguments[0], func(t *testing.T) {
			address, err := process.FreeAddress()
			require.NoError(t, err)
			running, stop := context.WithCancel(t.Context())
			defer stop()
			done := make(chan error, 1)
			go func() {
				c := command()
				c.SetArgs(append(arguments, "--metrics-address="+address))
				done <- c.ExecuteContext(running)
			}()
			require.EventuallyWithT(t, func(t *assert.CollectT) {
				answer, err := http.Get("http://" + address + "/healthz")
				require.NoError(t, err)
				assert.NoError(t, answer.Body.Close())
				assert.Equal(t, http.StatusOK, answer.StatusCode)
			}, time.Minute, 50*time.Millisecond)
			stop()
			require.NoError(t, <-done)
		})
	}
}
