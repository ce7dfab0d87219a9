package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/archive"
)

func TestWhatChangedNothingIsLeftOutUnlessAskedFor(t *testing.T) {
	f := func(denied bool, want ...archive.Effect) {
		t.Helper()
		var got []archive.Effect
		for _, a := range append(asked(), func() archive.Asked {
			dry := asked()[0]
			dry.Commit, dry.Event.RequestURI = nil, "/x?dryRun=All"
			return dry
		}()) {
			if (&whoFlags{denied: denied}).wanted(&a) {
				got = append(got, a.Effect())
			}
		}
		assert.Equal(t, want, got)
	}
	f(false, archive.Done, archive.Reported, archive.Unknown, archive.Unknown, archive.Reported)
	f(true, archive.Refused)
}

func TestFollowOutlivesAnArchiveThatFailsForAWhile(t *testing.T) {
	row := func(i int) string {
		at := asked()[0].Event.RequestReceivedTimestamp.Add(time.Duration(i) * time.Second).Format(time.RFC3339Nano)
		return fmt.Sprintf(`{"_time":%[1]q,"stage":"ResponseComplete","verb":"create","auditID":"%[2]d","user_username":"jane","stageTimestamp":%[1]q,`+
			`"objectRef.apiGroup":"credentials.cozystack.io","objectRef.resource":"credentials","objectRef.subresource":"mint",`+
			`"objectRef.namespace":"tenant-acme","objectRef.name":"postgres-orders.app","responseStatus.code":"201",`+
			`"annotations.authorization.k8s.io/decision":"allow"}`, at, i) + "\n"
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var calls atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch calls.Add(1) {
		case 1:
			_, _ = io.WriteString(w, row(1))
		case 2:
			http.Error(w, "restarting", http.StatusServiceUnavailable)
		case 3:
			_, _ = io.WriteString(w, row(2)+row(1))
		default:
			cancel()
		}
	}))
	defer server.Close()
	var out, progress bytes.Buffer
	print, err := newAnswers("csv", &out, 0)
	require.NoError(t, err)
	now := func() time.Time { return asked()[0].Event.RequestReceivedTimestamp.Add(time.Minute) }
	q := archive.Query{Start: now().Add(-time.Hour)}
	require.NoError(t, new(whoFlags).watch(ctx, archive.New(server.URL, nil), q, print, &progress, now))
	assert.Equal(t, 3, strings.Count(out.String(), "\n"), "the header, and each request once: %s", out.String())
	assert.Equal(t, 1, strings.Count(progress.String(), "\n"))
	assert.Contains(t, progress.String(), "503")

	calls.Store(1) // the first answer is the failure
	assert.ErrorContains(t, new(whoFlags).watch(t.Context(), archive.New(server.URL, nil), q, print, &progress, now), "503")
}
