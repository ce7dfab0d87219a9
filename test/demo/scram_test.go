package main

import (
	"crypto/rand"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/mint/format"
)

func TestTheExchangeThatStandsInForPostgreSQLLetsInTheRightPasswordAlone(t *testing.T) {
	formatter, ok := format.Built("scram-sha-256")
	require.True(t, ok)
	stored, err := formatter.Format(rand.Reader, "app", "right")
	require.NoError(t, err)
	s := &story{}
	require.NoError(t, s.apply(t.Context(), "app", string(stored)))
	require.NoError(t, scramLogin(t.Context(), "app", "right"))
	assert.ErrorIs(t, scramLogin(t.Context(), "app", "wrong"), errRefused)
	assert.Error(t, scramLogin(t.Context(), "nobody", "right"))
	require.NoError(t, s.apply(t.Context(), "app", "no verifier"))
	assert.Error(t, scramLogin(t.Context(), "app", "right"))
}
