package ha

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	etcd "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	require.NoError(t, eventually(t.Context(), patience, func(ctx context.Context) (err error) {
		id, _, err = p.Mint(ctx, p.client, credential)
		return err
	}))
	return id
}

// await reads the view until it is as wanted.
func (p tenant) await(t *testing.T, credential string, wanted func(*v1alpha1.Credential) error) (c *v1alpha1.Credential) {
	t.Helper()
	require.NoError(t, eventually(t.Context(), patience, func(ctx context.Context) (err error) {
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

// A restoredHouse is a sandbox with mintlog in one process, whose etcd is taken back.
type restoredHouse struct {
	*sandbox.Sandbox
	all *process.Process
	by  map[string]string // who asked for the mints that are in the ledger, by their ids
}

func openRestored(t *testing.T) *restoredHouse {
	t.Helper()
	s := sandbox.Open(t, sandbox.Options{Apiservers: 1})
	all, err := s.RunAll(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.LayDefinition(t.Context()))
	require.NoError(t, s.AwaitFirstSight(t.Context(), "Postgres"))
	return &restoredHouse{Sandbox: s, all: all, by: map[string]string{}}
}

// mint mints as a person and waits until the view names everybody rightly.
func (r *restoredHouse) mint(t *testing.T, p tenant, name, credential string) (id string) {
	t.Helper()
	id = p.mint(t, credential)
	r.by[id] = name
	p.await(t, credential, names(r.by, id))
	return id
}

// snapshot is one of etcd while it runs, as etcdctl makes it.
func (r *restoredHouse) snapshot(t *testing.T) (file string) {
	t.Helper()
	client, err := etcd.New(etcd.Config{Endpoints: []string{r.EtcdURL()}, Logger: zap.NewNop()})
	require.NoError(t, err)
	defer client.Close()
	response, err := client.SnapshotWithVersion(t.Context())
	require.NoError(t, err)
	defer response.Snapshot.Close()
	file = filepath.Join(t.TempDir(), "snapshot.db")
	written, err := os.Create(file)
	require.NoError(t, err)
	_, err = io.Copy(written, response.Snapshot)
	require.NoError(t, errors.Join(err, written.Close()))
	return file
}

// restore takes etcd back to a snapshot, and lets mintlog run on with what it remembers of a future that did not come.
func (r *restoredHouse) restore(t *testing.T, snapshot string, flags ...string) {
	t.Helper()
	server := processCalled(t, r.Sandbox, "etcd")
	r.APIServer(0).Kill()
	server.Kill()
	require.NoError(t, os.RemoveAll(filepath.Join(r.Directory(), "etcd")))
	etcdutl, err := process.Binary("etcdutl")
	require.NoError(t, err)
	arguments := slices.Concat([]string{"snapshot", "restore", snapshot}, flags, r.EtcdMember())
	said, err := exec.CommandContext(t.Context(), etcdutl, arguments...).CombinedOutput()
	require.NoError(t, err, "%s", said)
	require.NoError(t, server.Restart(t.Context()))
	require.NoError(t, r.APIServer(0).Restart(t.Context()))
}

func TestAfterEtcdIsRestoredToAnOlderPointHistoriesAreRightOrMarked(t *testing.T) {
	t.Parallel()
	r := openRestored(t)
	jane, root := newTenant(t, r.Sandbox, sandbox.Jane), newTenant(t, r.Sandbox, sandbox.TenantRoot)
	credentials, err := jane.Application(t.Context(), "restored", 1)
	require.NoError(t, err)
	credential := credentials[0]
	time.Sleep(6 * time.Second) // what is not in the ledger and is within the clocks' skew of its oldest entry is let pass
	r.mint(t, jane, "jane", credential)

	// Without the bump what watches etcd waits for revisions that it has seen already: mintlog is restarted.
	snapshot := r.snapshot(t)
	lost := r.mint(t, root, "root", credential)
	delete(r.by, lost) // it never was
	r.restore(t, snapshot)
	require.NoError(t, r.all.Stop())
	require.NoError(t, r.all.Restart(t.Context()))
	again := r.mint(t, jane, "jane", credential)
	c := jane.await(t, credential, names(r.by, again))
	require.Equal(t, int64(3), c.Status.History[0].Revision, "the revision of the mint that is lost is used again")

	// With the bump everything that watches is told to begin anew, and recovers by itself.
	snapshot = r.snapshot(t)
	lostToo := r.mint(t, root, "root", credential)
	delete(r.by, lostToo)
	before, err := r.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().Secrets(sandbox.TenantAcme).Get(t.Context(), credential+".account", metav1.GetOptions{})
	require.NoError(t, err)
	r.restore(t, snapshot, "--bump-revision", "1000000000", "--mark-compacted")
	c = jane.await(t, credential, names(r.by, again))
	for _, o := range c.Status.History {
		require.NotEqual(t, "root", o.By, "nobody is named for what is no more")
	}
	added, err := jane.Application(t.Context(), "added", 1)
	require.NoError(t, err, "the accounts role sees what is new")
	r.mint(t, jane, "jane", added[0])
	newest := r.mint(t, jane, "jane", credential)
	after, err := r.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().Secrets(sandbox.TenantAcme).Get(t.Context(), credential+".account", metav1.GetOptions{})
	require.NoError(t, err)
	require.Greater(t, revision(t, after), revision(t, before)+500_000_000)
	for _, o := range jane.await(t, credential, names(r.by, newest)).Status.History {
		require.NotEqual(t, "root", o.By, "nobody is named for what is no more")
	}

	// The archive knows of the mints that are lost, and a replay has them marked. The stream recognizes for ten minutes
	// what it has had, so here it begins anew.
	require.NoError(t, r.all.Stop())
	require.NoError(t, os.RemoveAll(r.StateDirectory()))
	require.NoError(t, eventually(t.Context(), patience, func(ctx context.Context) error {
		replay, err := r.Run(ctx, "replay", r.Binary(), "replay", "--state="+r.StateDirectory(), "--victorialogs="+r.VictoriaLogsURL(), "--since=1h")
		if err != nil {
			return err
		}
		<-replay.Exited()
		return replay.Result()
	}))
	require.NoError(t, r.all.Restart(t.Context()))
	last := r.mint(t, jane, "jane", credential)
	c = jane.await(t, credential, func(c *v1alpha1.Credential) error {
		marked := 0
		for _, f := range c.Status.Findings {
			if f.Type == "Uncommitted" {
				marked++
			}
		}
		if marked != 2 {
			return fmt.Errorf("the mints that are lost are not marked: %v", c.Status.Findings)
		}
		return names(r.by, last)(c)
	})
	t.Log(c.Status.Findings)
}

// revision is that of etcd's at which an object was written.
func revision(t *testing.T, object metav1.Object) int64 {
	t.Helper()
	number, err := strconv.ParseInt(object.GetResourceVersion(), 10, 64)
	require.NoError(t, err)
	return number
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
