package server

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
)

func TestTheKubernetesLibrariesNeverLogBodies(t *testing.T) {
	var text bytes.Buffer
	t.Cleanup(klog.ClearLogger)
	t.Cleanup(func() { require.NoError(t, setVerbosity(0)) })

	require.NoError(t, LogKubernetes(slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.Level(-10)})), 10))
	require.False(t, klog.V(MaxVerbosity+1).Enabled())
	klog.V(MaxVerbosity).Info("as much as is allowed")
	require.Contains(t, text.String(), "as much as is allowed")

	require.NoError(t, setVerbosity(9))
	require.NoError(t, capVerbosity())
	require.False(t, klog.V(MaxVerbosity+1).Enabled())
	require.True(t, klog.V(MaxVerbosity).Enabled())
}
