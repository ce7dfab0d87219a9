package ha

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/mintlog/mintlog/test/sandbox"
	"github.com/mintlog/mintlog/test/sandbox/process"
)

// atATime is how many tests run in parallel. Most wait: for elections, and for what comes again.
const atATime = "4"

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", atATime); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func openHouse(t *testing.T) *House {
	t.Helper()
	h, err := Open(t.Context(), sandbox.Open(t, SandboxOptions(sandbox.Options{})))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, h.Close()) })
	return h
}

func TestMintlogWithTwoOfEachPartOnAClusterOfThree(t *testing.T) {
	t.Parallel()
	h := openHouse(t)
	credentials, err := h.Application(t.Context(), "rolling", 8)
	require.NoError(t, err)
	t.Run("no mint fails while every component is restarted, one at a time", func(t *testing.T) {
		rolling, err := h.RollingRestart(t.Context(), 200, credentials)
		require.NoError(t, err)
		require.Zero(t, rolling.Failed, "%v", rolling.Failures)
		require.GreaterOrEqual(t, rolling.Mints, 200)
		require.Len(t, rolling.Restarts, 11)
		t.Logf("%d mints, %d repeats, %s", rolling.Mints, rolling.Repeats, rolling.Took)
	})
	t.Run("a mint is attributed after the leader of the stream was killed", func(t *testing.T) {
		leader, err := h.NATS.Leader(t.Context(), eventsStream)
		require.NoError(t, err)
		h.NATS.Server(leader).Kill()
		h.attributed(t, credentials[0])
		require.NoError(t, h.NATS.Server(leader).Restart(t.Context()))
		require.NoError(t, h.NATS.AwaitReplicas(t.Context(), eventsStream))
	})
	t.Run("every mint is attributed while the projectors are killed and stopped in turn", func(t *testing.T) { h.projectorsInTurn(t, credentials) })
	t.Run("one replica of the accounts role works at a time, and the other follows", h.elections)
	t.Run("what went with the stream, and with the whole cluster, comes back from the archive and from the files", h.losses)
}

// attributed mints as jane and waits for her name.
func (h *House) attributed(t *testing.T, credential string) {
	t.Helper()
	client, err := rest.HTTPClientFor(h.Config(sandbox.Jane))
	require.NoError(t, err)
	id, _, err := h.Mint(t.Context(), client, credential)
	require.NoError(t, err)
	require.NoError(t, h.AwaitAttributed(t.Context(), client, patience, credential, id, "jane"))
}

// projectorsInTurn ends one projector after the other while clients mint, so that each has something in hand when it ends.
func (h *House) projectorsInTurn(t *testing.T, credentials []string) {
	client, err := rest.HTTPClientFor(h.Config(sandbox.Jane))
	require.NoError(t, err)
	ids := map[string]string{} // of the entries, the credentials
	mintAll := func() {
		for _, credential := range credentials {
			id, _, err := h.Mint(t.Context(), client, credential)
			require.NoError(t, err)
			ids[id] = credential
		}
	}
	for i := range 2 {
		killed, stopped := h.Part(fmt.Sprintf("project-%d", i)), h.Part(fmt.Sprintf("project-%d", 1-i))
		mintAll()
		killed.Kill()
		mintAll()
		require.NoError(t, stopped.Stop())
		mintAll() // for nobody
		require.NoError(t, killed.Restart(t.Context()))
		require.NoError(t, stopped.Restart(t.Context()))
	}
	for id, credential := range ids {
		require.NoError(t, h.AwaitAttributed(t.Context(), client, patience, credential, id, "jane"))
	}
}

// holder is the identity that holds the Lease of the accounts role, and the number of the process whose log says so.
func (h *House) holder(ctx context.Context) (identity string, err error) {
	lease, err := h.Kubernetes(sandbox.ClusterAdmin, 0).CoordinationV1().Leases(sandbox.Namespace).Get(ctx, "mintlog-accounts", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		return "", errors.New("nobody holds the lease")
	}
	return *lease.Spec.HolderIdentity, nil
}

// awaitSuccessor waits until another than the former holds the lease.
func (h *House) awaitSuccessor(t *testing.T, former string) string {
	t.Helper()
	var identity string
	require.NoError(t, eventually(t.Context(), patience, func(ctx context.Context) error {
		var err error
		if identity, err = h.holder(ctx); err == nil && identity == former {
			err = errors.New("the lease is still the former's")
		}
		return err
	}))
	return identity
}

// keepRunning starts a replica of the accounts role again that has ended, as the kubelet does: one that lost its lease.
func (h *House) keepRunning(ctx context.Context) error {
	for i := range 2 {
		if replica := h.Part(fmt.Sprintf("accounts-%d", i)); !replica.Running() {
			if err := replica.Restart(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// atWork is the replica that is at work: the one whose log said so last.
func (h *House) atWork(ctx context.Context) (*process.Process, error) {
	if err := h.keepRunning(ctx); err != nil {
		return nil, err
	}
	var working *process.Process
	last := ""
	for i := range 2 {
		replica := h.Part(fmt.Sprintf("accounts-%d", i))
		text, err := os.ReadFile(replica.LogFile())
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "this replica is at work") && line > last {
				working, last = replica, line
			}
		}
	}
	if working == nil {
		return nil, errors.New("no replica says that it is at work")
	}
	return working, nil
}

// leader is the replica that holds the lease and says that it is at work, with its identity.
func (h *House) leader(t *testing.T) (working *process.Process, identity string) {
	t.Helper()
	require.NoError(t, eventually(t.Context(), patience, func(ctx context.Context) error {
		before, err := h.holder(ctx)
		if err != nil {
			return errors.Join(err, h.keepRunning(ctx))
		}
		if working, err = h.atWork(ctx); err != nil {
			return err
		}
		identity, err = h.holder(ctx)
		if err == nil && identity != before {
			err = errors.New("the lease has just changed hands")
		}
		return err
	}))
	return working, identity
}

func (h *House) elections(t *testing.T) {
	working, first := h.leader(t)
	require.NoError(t, working.Stop())
	h.awaitSuccessor(t, first)
	require.NoError(t, working.Restart(t.Context()))
	h.served(t, "after-a-stop")

	working, second := h.leader(t)
	working.Kill()
	h.awaitSuccessor(t, second)
	require.NoError(t, working.Restart(t.Context()))
	h.served(t, "after-a-kill")

	// One that is frozen until another is at work notices, writes nothing more and ends.
	working, third := h.leader(t)
	require.NoError(t, syscall.Kill(working.PID(), syscall.SIGSTOP))
	h.awaitSuccessor(t, third)
	require.NoError(t, syscall.Kill(working.PID(), syscall.SIGCONT))
	select {
	case <-working.Exited():
	case <-time.After(patience):
		t.Fatal("a replica that lost its lease goes on")
	}
	require.Error(t, working.Result())
	text, err := os.ReadFile(working.LogFile())
	require.NoError(t, err)
	require.Contains(t, string(text), "the lease is lost")
	require.NoError(t, working.Restart(t.Context()))
	h.served(t, "after-a-freeze")
	_, now := h.leader(t)
	require.NotEqual(t, third, now)
}

// served wants whoever is at work to seed a new application. A replica that lost its lease, on a machine that is too busy
// to renew it, is started again meanwhile.
func (h *House) served(t *testing.T, application string) (credential string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var kubelet sync.WaitGroup
	kubelet.Go(func() {
		for ctx.Err() == nil {
			_ = h.keepRunning(ctx) // what fails is tried again
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
	credentials, err := h.Application(ctx, application, 1)
	cancel()
	kubelet.Wait()
	require.NoError(t, err)
	return credentials[0]
}
