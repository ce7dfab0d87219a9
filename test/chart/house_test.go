package chart

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/mintlog/mintlog/test/sandbox"
)

// cluster has no mintlog running in it: what a test lays stays as it laid it.
var cluster *sandbox.Sandbox

func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if cluster, err = sandbox.Start(ctx, sandbox.Options{Log: os.Stderr, Apiservers: 1}); err != nil {
		fmt.Fprintln(os.Stderr, "the tests of the chart need their servers:", err)
		os.Exit(1)
	}
	code := m.Run()
	if err := cluster.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the sandbox:", err)
		code = 1
	}
	os.Exit(code)
}

// Who asks, by the user that kube-apiserver takes him for. All but the cluster's admin are in no group of note.
const (
	admin     = sandbox.ClusterAdmin // breaks the glass
	eve       = "eve"                // a namespace's admin
	rob       = "rob"                // writes Roles and RoleBindings in a namespace, and has no right on Secrets
	mint      = "system:serviceaccount:mintlog:mint"
	accounts  = "system:serviceaccount:mintlog:accounts"
	projector = "system:serviceaccount:mintlog:projector"
	collector = "system:serviceaccount:kube-system:generic-garbage-collector"
	cleaner   = "system:serviceaccount:kube-system:namespace-controller"
)

func as(user string) *rest.Config {
	c := cluster.RESTConfig(sandbox.ClusterAdmin, 0)
	if user != admin {
		c.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	}
	return c
}

// An answer of kube-apiserver.
type answer struct {
	code int
	body []byte
}

func (a answer) String() string {
	var status struct{ Message string }
	_ = json.Unmarshal(a.body, &status)
	return fmt.Sprintf("%d %s", a.code, status.Message)
}

// contentTypes are the ways to change an object, by the words that the tables use.
var contentTypes = map[string]string{
	"merge": "application/merge-patch+json", "strategic": "application/strategic-merge-patch+json",
	"json": "application/json-patch+json", "apply": "application/apply-patch+yaml",
}

// send makes a request. How is merge, strategic, json, apply, put, post, delete or get.
func send(ctx context.Context, user, how, url, body string) (answer, error) {
	return sendWith(ctx, as(user), how, url, body)
}

func sendWith(ctx context.Context, c *rest.Config, how, url, body string) (answer, error) {
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		return answer{}, err
	}
	method, kind := strings.ToUpper(how), "application/json"
	if patch, ok := contentTypes[how]; ok {
		method, kind = http.MethodPatch, patch
	}
	request, err := http.NewRequestWithContext(ctx, method, c.Host+url, bytes.NewReader([]byte(body)))
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("Content-Type", kind)
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{code: response.StatusCode, body: text}, err
}

// must makes a request that has to succeed.
func must(t *testing.T, user, how, url, body string) answer {
	t.Helper()
	a, err := send(t.Context(), user, how, url, body)
	require.NoError(t, err)
	require.Less(t, a.code, 300, "%s %s as %s: %s", how, url, user, a)
	return a
}

// within repeats a step until it returns nil.
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
