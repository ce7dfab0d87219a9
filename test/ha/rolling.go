package ha

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/mintlog/mintlog/test/sandbox"
	"github.com/mintlog/mintlog/test/sandbox/process"
)

// A Rolling is what mints came to while every component was restarted.
type Rolling struct {
	Mints, Failed, Repeats int
	Failures               []error // the first few
	Restarts               []string
	Took                   time.Duration
}

// RollingRestart restarts each process of each component, one at a time: mint servers, accounts, projectors, archivers,
// ingest and the kube-apiservers. Clients mint all the while, count mints at least.
func (h *House) RollingRestart(ctx context.Context, count int, credentials []string) (Rolling, error) {
	began := time.Now()
	var r Rolling
	var mutex sync.Mutex
	var issued atomic.Int64
	var restarted atomic.Bool
	var clients sync.WaitGroup
	last := map[string]string{} // the newest entry's id, by credential
	const workers = 4
	for worker := range workers {
		client, err := rest.HTTPClientFor(h.Config(sandbox.Jane))
		if err != nil {
			return r, err
		}
		clients.Go(func() {
			for n := worker; ctx.Err() == nil && (issued.Add(1) <= int64(count) || !restarted.Load()); n += workers {
				credential := credentials[n%len(credentials)] // no other client mints it
				id, repeats, err := h.Mint(ctx, client, credential)
				mutex.Lock()
				r.Mints++
				r.Repeats += repeats
				if err != nil {
					r.Failed++
					if len(r.Failures) < 5 {
						r.Failures = append(r.Failures, err)
					}
				} else {
					last[credential] = id
				}
				mutex.Unlock()
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	err := h.restartAll(ctx, &r)
	restarted.Store(true)
	clients.Wait()
	r.Took = time.Since(began)
	if err != nil {
		return r, err
	}
	client, err := rest.HTTPClientFor(h.Config(sandbox.Jane))
	if err != nil {
		return r, err
	}
	for credential, id := range last {
		if err := h.AwaitAttributed(ctx, client, patience, credential, id, "jane"); err != nil {
			return r, err
		}
	}
	return r, nil
}

func (h *House) restartAll(ctx context.Context, r *Rolling) error {
	restart := func(p *process.Process) error {
		if err := p.Stop(); err != nil {
			return err
		}
		if err := p.Restart(ctx); err != nil {
			return err
		}
		r.Restarts = append(r.Restarts, p.Name())
		return nil
	}
	for _, p := range h.parts {
		if err := restart(p); err != nil {
			return err
		}
		time.Sleep(2 * readyInterval)
	}
	for number := range h.AuditLogs() {
		if err := restart(h.APIServer(number)); err != nil {
			return err
		}
		time.Sleep(2 * readyInterval)
	}
	return nil
}
