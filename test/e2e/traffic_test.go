package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/store/history"
	"github.com/mintlog/mintlog/store/ledger"
	"github.com/mintlog/mintlog/test/sandbox"
)

// traffic mints and revokes as different people, with audit ids of its own choice, so that whose operation an entry of
// the ledger is can be told without the audit log.
type traffic struct {
	who  sync.Map // audit id → [2]string{by, impersonatedBy}
	stop chan struct{}
	done sync.WaitGroup
}

func (h *house) startTraffic(t *testing.T, credentials []string) *traffic {
	run := &traffic{stop: make(chan struct{})}
	for client := range 4 {
		run.done.Go(func() {
			for n := client; ; n++ {
				select {
				case <-run.stop:
					return
				case <-time.After(20 * time.Millisecond):
				}
				c := call{person: sandbox.Jane, apiserver: n / len(credentials) % 2, path: credentials[n%len(credentials)] + "/mint"}
				name := [2]string{"jane", ""}
				switch n % 5 {
				case 1:
					c.person, name = sandbox.TenantRoot, [2]string{"root", ""}
				case 2:
					c.person, c.as, c.asGroups = sandbox.TenantRoot, "jane", []string{"tenant-acme-admin"}
					name = [2]string{"jane", "root"}
				case 3:
					c.path = strings.Replace(c.path, "/mint", "/revoke", 1)
				}
				id := newAuditID()
				c.header = auditID(id)
				run.who.Store(id, name)
				_, _ = h.do(t.Context(), c) // whether it was answered does not matter: the ledger says what was done
			}
		})
	}
	return run
}

func (run *traffic) end() {
	close(run.stop)
	run.done.Wait()
}

// exact wants the history of a credential to be the ledger's newest ten, each with its right name.
func (run *traffic) exact(c *v1alpha1.Credential, book ledger.Ledger) error {
	want := min(len(book.Entries), history.MaxEntries)
	if len(c.Status.History) != want {
		return fmt.Errorf("%d operations, not %d", len(c.Status.History), want)
	}
	for i, o := range c.Status.History {
		entry := book.Entries[i]
		if o.ID != entry.ID || o.Revision != entry.Revision || o.Operation != string(entry.Operation) {
			return fmt.Errorf("operation %d is not the ledger's", i)
		}
		if entry.Operation.ByPlatform() {
			continue
		}
		name, _ := run.who.Load(entry.AuditID)
		if got := [2]string{o.By, o.ImpersonatedBy}; got != name {
			return fmt.Errorf("revision %d is by %v (%s), not by %v", o.Revision, got, o.Attribution, name)
		}
	}
	if len(c.Status.Findings) > 0 {
		return fmt.Errorf("findings: %v", c.Status.Findings)
	}
	return nil
}
