package ha

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/test/sandbox"
	"github.com/mintlog/mintlog/test/sandbox/process"
)

// tenant is somebody who mints in tenant-acme through the first kube-apiserver.
type tenant struct {
	*House
	client *http.Client
}

func newTenant(t *testing.T, s *sandbox.Sandbox, person string) tenant {
	t.Helper()
	b, err := newBalancer("", &backend{address: s.APIServerURL(0)[len("https://"):], ready: func(context.Context) error { return nil }})
	require.NoError(t, err)
	t.Cleanup(b.close)
	h := &House{Sandbox: s, apiServers: b}
	client, err := rest.HTTPClientFor(h.Config(person))
	require.NoError(t, err)
	return tenant{h, client}
}

// mint mints, again if the servers are not there yet.
func (p tenant) mint(t *testing.T, credential string) (id string) {
	t.Helper()
	require.NoError(t, eventually(t.Context(), time.Minute, func(ctx context.Context) (err error) {
		id, _, err = p.Mint(ctx, p.client, credential)
		return err
	}))
	return id
}

// await reads the view until it is as wanted.
func (p tenant) await(t *testing.T, credential string, wanted func(*v1alpha1.Credential) error) (c *v1alpha1.Credential) {
	t.Helper()
	require.NoError(t, eventually(t.Context(), time.Minute, func(ctx context.Context) (err error) {
		if c, err = p.Credential(ctx, p.client, credential); err != nil {
			return err
		}
		return wanted(c)
	}))
	return c
}

// names wants the history to be those operations, newest first, each with its name ("" for the platform).
func names(ids map[string]string, newest string) func(*v1alpha1.Credential) error {
	return func(c *v1alpha1.Credential) error {
		if len(c.Status.History) == 0 || c.Status.History[0].ID != newest {
			return errors.New("the newest operation is another")
		}
		for _, o := range c.Status.History {
			if want, ok := ids[o.ID]; o.Operation == "Mint" && (!ok || o.By != want) {
				return fmt.Errorf("revision %d is by %q (%s), not by %q", o.Revision, o.By, o.Attribution, want)
			}
		}
		return nil
	}
}

func TestAfterEtcdIsRestoredToAnOlderPointHistoriesAreRightOrMarked(t *testing.T) {
	t.Parallel()
	s, err := sandbox.Start(t.Context(), sandbox.Options{Apiservers: 1})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Stop()) })
	all, err := s.RunAll(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.LayDefinition(t.Context()))
	require.NoError(t, s.AwaitFirstSight(t.Context(), "Postgres"))
	jane, root := newTenant(t, s, sandbox.Jane), newTenant(t, s, sandbox.TenantRoot)
	credentials, err := jane.Application(t.Context(), "restored", 1)
	require.NoError(t, err)
	credential := credentials[0]
	by := map[string]string{}
	mint := func(p tenant, name string) string {
		t.Helper()
		id := p.mint(t, credential)
		by[id] = name
		return id
	}
	first := mint(jane, "jane")
	jane.await(t, credential, names(by, first))

	etcd := processCalled(t, s, "etcd")
	snapshot := filepath.Join(t.TempDir(), "snapshot")
	_ = etcd.Stop() // it ends by the signal that it was sent, once all is written
	require.NoError(t, os.CopyFS(snapshot, os.DirFS(filepath.Join(s.Directory(), "etcd"))))
	require.NoError(t, etcd.Restart(t.Context()))
	lost := mint(root, "root")
	jane.await(t, credential, names(by, lost))

	// The restore, while mintlog runs on with what it remembers of a future that did not come.
	s.APIServer(0).Kill()
	etcd.Kill()
	require.NoError(t, os.RemoveAll(filepath.Join(s.Directory(), "etcd")))
	require.NoError(t, os.CopyFS(filepath.Join(s.Directory(), "etcd"), os.DirFS(snapshot)))
	require.NoError(t, etcd.Restart(t.Context()))
	require.NoError(t, s.APIServer(0).Restart(t.Context()))
	delete(by, lost) // it never was
	again := mint(jane, "jane")

	// Then it is restarted, as the operators are told to.
	require.NoError(t, all.Stop())
	require.NoError(t, all.Restart(t.Context()))
	c := jane.await(t, credential, names(by, again))
	require.Equal(t, int64(3), c.Status.History[0].Revision, "the revision of the mint that is lost is used again")
	for _, o := range c.Status.History {
		require.NotEqual(t, "root", o.By, "nobody is named for what is no more")
	}

	// The archive knows of the mint that is lost, and a replay has it marked. The stream recognizes for ten minutes what it
	// has had, so here it begins anew.
	require.NoError(t, all.Stop())
	require.NoError(t, os.RemoveAll(s.StateDirectory()))
	require.NoError(t, eventually(t.Context(), time.Minute, func(ctx context.Context) error {
		replay, err := s.Run(ctx, "replay", s.Binary(), "replay", "--state="+s.StateDirectory(), "--victorialogs="+s.VictoriaLogsURL(), "--since=1h")
		if err != nil {
			return err
		}
		<-replay.Exited()
		return replay.Result()
	}))
	require.NoError(t, all.Restart(t.Context()))
	last := mint(jane, "jane")
	c = jane.await(t, credential, func(c *v1alpha1.Credential) error {
		if err := names(by, last)(c); err != nil {
			return err
		}
		for _, f := range c.Status.Findings {
			if f.Type == "Uncommitted" {
				return nil
			}
		}
		return fmt.Errorf("the mint that is lost is not marked: %v", c.Status.Findings)
	})
	t.Log(c.Status.Findings)
}

func processCalled(t *testing.T, s *sandbox.Sandbox, name string) *process.Process {
	t.Helper()
	for _, p := range s.Processes() {
		if p.Name() == name {
			return p
		}
	}
	t.Fatalf("there is no process called %s", name)
	return nil
}
