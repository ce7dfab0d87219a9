package server_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/mintlog/mintlog/test/sandbox"
)

// code asks for a mint and returns the answer's code.
func code(ctx context.Context, config *rest.Config) (int, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return 0, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, config.Host+mintPath, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Audit-Id", uuid.NewString())
	response, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

func TestARotatedClientAuthorityIsTakenOverLiveAndMintsGoOn(t *testing.T) {
	s := cluster(t)
	file := filepath.Join(s.Directory(), "pki", "client-ca.crt")
	before, err := os.ReadFile(file)
	require.NoError(t, err)
	next, err := sandbox.NewAuthority("next clients")
	require.NoError(t, err)
	old := s.RESTConfig(sandbox.Jane, 0)
	fresh := rest.CopyConfig(old)
	fresh.CertFile, fresh.KeyFile = "", ""
	fresh.CertData, fresh.KeyData, err = next.Issue(sandbox.Identity{Name: "jane", Groups: []string{"tenant-acme-admin"}})
	require.NoError(t, err)

	until := func(ctx context.Context, what string, config *rest.Config, want int) {
		t.Helper()
		for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
			got, err := code(ctx, config)
			if err == nil && got == want {
				return
			}
			require.True(t, time.Now().Before(deadline), "%s: %d, %v", what, got, err)
		}
	}
	// kube-apiserver reads a file that is half written as well, and goes on with what it had.
	trust := func(bundle ...[]byte) { require.NoError(t, os.WriteFile(file, bytes.Join(bundle, nil), 0o600)) }
	t.Cleanup(func() {
		trust(before)
		until(context.Background(), "the old authority is trusted again", old, http.StatusCreated)
	})

	// Mints by whoever is trusted at the time, all the while.
	var current atomic.Pointer[rest.Config]
	current.Store(old)
	var answered atomic.Int64
	var failed []string
	ctx, stop := context.WithCancel(t.Context())
	var minting sync.WaitGroup
	minting.Go(func() {
		for ctx.Err() == nil {
			got, err := code(t.Context(), current.Load())
			if got != http.StatusCreated {
				failed = append(failed, fmt.Sprint(got, err))
			}
			answered.Add(1)
		}
	})
	defer minting.Wait()
	defer stop()
	goOn := func() {
		t.Helper()
		more := answered.Load() + 5
		require.Eventually(t, func() bool { return answered.Load() >= more }, 2*time.Minute, 20*time.Millisecond)
	}

	goOn()
	until(t.Context(), "a certificate of an authority that is not trusted", fresh, http.StatusUnauthorized)
	trust(before, next.PEM())
	until(t.Context(), "both authorities are trusted", fresh, http.StatusCreated)
	current.Store(fresh)
	goOn()
	trust(next.PEM())
	until(t.Context(), "the old authority is trusted no more", old, http.StatusUnauthorized)
	goOn()
	trust(before, next.PEM())
	until(t.Context(), "both are trusted again", old, http.StatusCreated)
	require.Eventually(t, func() bool {
		published, err := s.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(t.Context(), "extension-apiserver-authentication", metav1.GetOptions{})
		return err == nil && strings.Contains(published.Data["client-ca-file"], strings.TrimSpace(string(next.PEM())))
	}, 2*time.Minute, 50*time.Millisecond, "kube-apiserver publishes it")
	goOn()
	stop()
	minting.Wait()
	assert.Empty(t, failed)

	// And nobody gets in past kube-apiserver by a certificate of either.
	direct := s.direct(s.MintAddress())
	direct.CertData, direct.KeyData = fresh.CertData, fresh.KeyData
	got, err := code(t.Context(), direct)
	if err == nil { // else the handshake was refused
		assert.Equal(t, http.StatusUnauthorized, got)
	}
}
