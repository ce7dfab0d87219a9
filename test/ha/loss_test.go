package ha

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/store/archive"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/test/sandbox"
	"github.com/mintlog/mintlog/test/sandbox/process"
)

// losses take the stream of events away, and then the whole cluster with all that it kept.
func (h *House) losses(t *testing.T) {
	client, err := rest.HTTPClientFor(h.Config(sandbox.Jane))
	require.NoError(t, err)
	credential := h.served(t, "lost")
	mint := func() string {
		id, _, err := h.Mint(t.Context(), client, credential)
		require.NoError(t, err)
		return id
	}
	view := func() (*v1alpha1.Credential, error) { return h.Credential(t.Context(), client, credential) }

	h.stop(t, "project-0", "project-1")
	first := mint()
	h.awaitArchived(t, credential)
	require.NoError(t, h.NATS.DeleteStream(t.Context(), eventsStream))
	_, err = h.NATS.Leader(t.Context(), eventsStream) // it is made again, though nobody publishes
	require.NoError(t, err)
	require.NoError(t, eventually(t.Context(), patience, func(context.Context) error { return h.alarmed(eventsStream) }))
	h.restart(t, "project-0", "project-1")
	require.NoError(t, h.AwaitShown(t.Context(), sandbox.TenantAcme, []string{credential}, h.mintServers()...))
	c, err := view()
	require.NoError(t, err)
	require.Equal(t, first, c.Status.History[0].ID)
	require.Empty(t, c.Status.History[0].By, "its event went with the stream")
	h.replay(t)
	require.NoError(t, h.AwaitAttributed(t.Context(), client, patience, credential, first, "jane"))

	// What the archive has not got is in the audit log's files: without its checkpoint ingest reads them again.
	h.stop(t, "project-0", "project-1", "archive-0", "archive-1")
	second := mint()
	require.NoError(t, h.Part("ingest").Stop())
	require.NoError(t, h.NATS.Lose(t.Context()))
	require.NoError(t, os.Remove(filepath.Join(h.StateDirectory(), "ingest.json")))
	h.restart(t, "project-0", "project-1", "archive-0", "archive-1", "ingest")
	h.replay(t)
	require.NoError(t, h.AwaitAttributed(t.Context(), client, patience, credential, second, "jane"))
	require.NoError(t, h.AwaitAttributed(t.Context(), client, patience, credential, first, "jane"))
	require.NoError(t, eventually(t.Context(), patience, func(context.Context) error { // the other mint server's view may be behind
		c, err := view()
		if err == nil && len(c.Status.Findings) > 0 {
			err = fmt.Errorf("the findings are %v", c.Status.Findings)
		}
		return err
	}))
}

func (h *House) stop(t *testing.T, parts ...string) {
	t.Helper()
	for _, name := range parts {
		require.NoError(t, h.Part(name).Stop())
	}
}

func (h *House) restart(t *testing.T, parts ...string) {
	t.Helper()
	for _, name := range parts {
		require.NoError(t, h.Part(name).Restart(t.Context()))
	}
}

// replay runs "mintlog replay" to its end, again if the cluster is not ready for it.
func (h *House) replay(t *testing.T) {
	t.Helper()
	require.NoError(t, eventually(t.Context(), patience, func(ctx context.Context) error {
		started, err := process.Start(ctx, process.Options{
			Name: "replay", Path: h.Binary(), LogFile: filepath.Join(h.Directory(), "logs", "replay.log"),
			Arguments: slices.Concat([]string{"replay", "--victorialogs=" + h.VictoriaLogsURL(), "--since=1h"}, h.stream),
		})
		if err != nil {
			return err
		}
		return started.Result()
	}))
}

// awaitArchived waits until the archive has a successful request for a credential.
func (h *House) awaitArchived(t *testing.T, credential string) {
	t.Helper()
	q := archive.Query{Namespace: sandbox.TenantAcme, Credential: credential, Start: time.Now().Add(-time.Hour), End: time.Now().Add(time.Hour)}
	archived := archive.New(h.VictoriaLogsURL(), http.DefaultClient)
	require.NoError(t, eventually(t.Context(), patience, func(ctx context.Context) error {
		found := errors.New("the archive has no request for it")
		err := archived.Query(ctx, q, func(e event.Event) error {
			if _, is := e.Operation(); is && e.Stage == event.ResponseComplete && e.Outcome() == event.Succeeded {
				found = nil
			}
			return nil
		})
		return errors.Join(err, found)
	}))
}

// alarmed wants a process to have said that part of the stream was lost.
func (h *House) alarmed(object string) error {
	for _, p := range h.parts {
		text, err := os.ReadFile(p.LogFile())
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "part of the stream was lost") && strings.Contains(line, object) {
				return nil
			}
		}
	}
	return fmt.Errorf("nobody says that %s was lost", object)
}
