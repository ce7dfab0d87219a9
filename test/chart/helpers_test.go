package chart

import (
	"context"
	"encoding/json"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"

	"github.com/mintlog/mintlog/mint/admission"
	"github.com/mintlog/mintlog/test/sandbox"
)

func contextOf() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 5*time.Minute)
}

func unmarshal(document []byte, into any) error { return yaml.UnmarshalStrict(document, into) }

func withAuditID(id string) transport.WrapperFunc {
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			r = r.Clone(r.Context())
			r.Header.Set("Audit-Id", id)
			return next.RoundTrip(r)
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// anew is an object of the API server without what it assigned.
func anew(t *testing.T, object []byte) string {
	t.Helper()
	var o map[string]any
	require.NoError(t, json.Unmarshal(object, &o))
	metadata := o["metadata"].(map[string]any)
	for _, key := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"} {
		delete(metadata, key)
	}
	text, err := json.Marshal(o)
	require.NoError(t, err)
	return string(text)
}

// newCheck looks as one of mintlog's service accounts.
func newCheck(t *testing.T, account string, policies []string) (*admission.Check, *prometheus.Registry) {
	t.Helper()
	file, err := cluster.ServiceAccountKubeconfig(t.Context(), account, 0)
	require.NoError(t, err)
	c, err := clientcmd.BuildConfigFromFlags("", file)
	require.NoError(t, err)
	registry := prometheus.NewRegistry()
	check, err := admission.New(admission.Options{
		Client: kubernetes.NewForConfigOrDie(c), Namespace: sandbox.Namespace, Part: account, Policies: policies,
		Patience: time.Second, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Registerer: registry,
	})
	require.NoError(t, err)
	return check, registry
}

// dereferenced is the chart's folder with its links followed, as in a package of it.
func dereferenced(t *testing.T) fs.FS {
	t.Helper()
	copied := fstest.MapFS{}
	require.NoError(t, filepath.WalkDir(chartFolder(), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(chartFolder(), path)
		copied[filepath.ToSlash(name)] = &fstest.MapFile{Data: text, Mode: 0o600}
		return err
	}))
	return copied
}
