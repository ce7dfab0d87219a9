package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

// answering is a transport that answers each request, or holds it until its context ends.
type answering struct{ hang bool }

func (a answering) RoundTrip(request *http.Request) (*http.Response, error) {
	if a.hang {
		<-request.Context().Done()
		return nil, request.Context().Err()
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("ok"))}, nil
}

func TestNothingIsWrittenWithoutTheLease(t *testing.T) {
	now := time.Now()
	l := &leader{leaderFlags: leaderFlags{duration: 15 * time.Second, deadline: 10 * time.Second}, now: func() time.Time { return now }}
	f := func(method string, hang bool) error {
		config := l.fence(&rest.Config{})
		request, err := http.NewRequestWithContext(t.Context(), method, "http://kube-apiserver", nil)
		require.NoError(t, err)
		response, err := config.WrapTransport(answering{hang}).RoundTrip(request)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(response.Body)
		assert.Equal(t, "ok", string(body))
		require.NoError(t, response.Body.Close())
		return err
	}
	writes := []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
	all := func(want error) {
		t.Helper()
		for _, method := range writes {
			assert.ErrorIs(t, f(method, false), want, method)
		}
		assert.NoError(t, f(http.MethodGet, false), "reading is free")
	}
	all(errNoLease) // it was never held
	l.renewed = now
	all(nil)
	now = now.Add(9 * time.Second)
	all(nil)
	now = now.Add(time.Second) // not renewed, as in a process that was frozen
	all(errNoLease)
	l.renewed = now
	all(nil)
	l.expire()
	all(errNoLease)

	// What was sent and hangs is broken off when the lease ends.
	l.duration, l.deadline, l.now = 3*time.Second, 2*time.Second, time.Now
	l.renewed = time.Now()
	assert.ErrorIs(t, f(http.MethodPut, true), context.DeadlineExceeded) // or never
}

func TestWithoutAnElectionAPartRunsAndWritesAtOnce(t *testing.T) {
	l, err := (&leaderFlags{}).newLeader(runtime{}, "mintlog", accountsLease, &rest.Config{})
	require.NoError(t, err)
	config := &rest.Config{}
	assert.Same(t, config, l.fence(config))
	ran := false
	require.NoError(t, l.lead(func(context.Context) error { ran = true; return nil })(t.Context()))
	assert.True(t, ran)
}

func TestTimesOfAnElectionThatCannotKeepTwoAtWorkApartAreRefused(t *testing.T) {
	f := func(duration, deadline, retry time.Duration, want string) {
		t.Helper()
		err := (&leaderFlags{elect: true, duration: duration, deadline: deadline, retry: retry}).validate()
		if want == "" {
			assert.NoError(t, err)
			return
		}
		assert.ErrorContains(t, err, want)
	}
	f(15*time.Second, 10*time.Second, time.Second, "")
	f(3*time.Second, 2*time.Second, 500*time.Millisecond, "")
	f(15*time.Second, 10*time.Second, 0, "--leader-retry-period 0s")
	f(15*time.Second, time.Second, time.Second, "--leader-renew-deadline 1s")
	f(10*time.Second, 10*time.Second, time.Second, "--leader-lease-duration 10s")
	f(500*time.Millisecond, 200*time.Millisecond, 100*time.Millisecond, "--leader-lease-duration 500ms")
}
