package request

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAContextCarriesTheAuditIDAndTheTimeOfReception(t *testing.T) {
	at := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	ctx := With(t.Context(), "0c4b1a9e-6f0d-4a43-9a54-3f1d7d4f6c11", at)

	id, ok := AuditID(ctx)
	require.True(t, ok)
	require.Equal(t, "0c4b1a9e-6f0d-4a43-9a54-3f1d7d4f6c11", id)
	require.Equal(t, at, Received(ctx))
}

func TestARequestThatDidNotPassTheGuardHasNeither(t *testing.T) {
	for _, ctx := range []context.Context{t.Context(), With(t.Context(), "", time.Time{})} {
		_, ok := AuditID(ctx)
		require.False(t, ok)
		require.True(t, Received(ctx).IsZero())
	}
}
