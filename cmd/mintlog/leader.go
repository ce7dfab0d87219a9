package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// accountsLease is the Lease that replicas of the accounts role agree by. It is made with mintlog's roles, so that the
// right to get and update this one is enough.
const accountsLease = "mintlog-accounts"

// leaderFlags say whether one of several replicas is at work at a time, and how soon another follows one that died.
type leaderFlags struct {
	elect                     bool
	duration, deadline, retry time.Duration
}

func (f *leaderFlags) bind(flags *pflag.FlagSet, elect bool) {
	flags.BoolVar(&f.elect, "leader-elect", elect, "of several replicas of the accounts role let one work at a time, the one that holds the Lease "+accountsLease+" in --namespace")
	flags.DurationVar(&f.duration, "leader-lease-duration", 15*time.Second, "how long after its last renewal the lease of a replica that died is left to it")
	flags.DurationVar(&f.deadline, "leader-renew-deadline", 10*time.Second, "how long after its last renewal the replica that holds the lease goes on writing")
	flags.DurationVar(&f.retry, "leader-retry-period", time.Second, "how often the lease is renewed, and how often the others try to get it")
}

func (f *leaderFlags) validate() error {
	switch {
	case f.retry <= 0:
		return fmt.Errorf("--leader-retry-period %s: it is more than 0", f.retry)
	case f.deadline < 2*f.retry:
		return fmt.Errorf("--leader-renew-deadline %s: it is at least twice --leader-retry-period (%s)", f.deadline, f.retry)
	case f.duration < f.deadline+f.retry || f.duration < time.Second:
		return fmt.Errorf("--leader-lease-duration %s: it is at least a second, and at least --leader-renew-deadline and --leader-retry-period together (%s)", f.duration, f.deadline+f.retry)
	}
	return nil
}

// errLeaseLost ends a process whose part may not go on. Started again it waits for its turn.
var errLeaseLost = errors.New("the lease is lost: another replica may be at work")

// errNoLease is what a write comes to that would be sent without the lease.
var errNoLease = errors.New("this replica does not hold the lease; nothing is written")

// A leader lets a part run while this process holds a Lease, and nothing be written without it.
type leader struct {
	leaderFlags
	lock     *resourcelock.LeaseLock
	log      *slog.Logger
	now      func() time.Time
	isLeader prometheus.Gauge

	mutex   sync.Mutex
	renewed time.Time // when the last renewal that succeeded was begun; zero: the lease is not held
}

// newLeader takes part in the election by the Lease of that name. It is nil if there is none.
func (f *leaderFlags) newLeader(p runtime, namespace, lease string, c *rest.Config) (*leader, error) {
	if !f.elect {
		return nil, nil
	}
	c = rest.CopyConfig(c)
	c.Timeout = max(f.deadline/2, time.Second) // one request that hangs is not the end of the term
	client, err := kubernetes.NewForConfig(protobuf(c))
	if err != nil {
		return nil, fmt.Errorf("build the client for the lease: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("name this replica: %w", err)
	}
	l := &leader{
		leaderFlags: *f, now: time.Now, log: p.log.With("lease", lease),
		isLeader: prometheus.NewGauge(prometheus.GaugeOpts{Name: "mintlog_accounts_leader", Help: "1 while this replica of the accounts role holds the lease."}),
		lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: namespace, Name: lease},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: host + "-" + uuid.NewString()},
		},
	}
	if err := p.registry.Register(l.isLeader); err != nil {
		return nil, fmt.Errorf("register the metric of the lease: %w", err)
	}
	return l, nil
}

// lead runs a part when it is this replica's turn. When ctx is done the part drains first, and then the lease is given
// up, so that another replica begins at once and not before. Where the lease is lost, lead ends with errLeaseLost.
func (l *leader) lead(run part) part {
	if l == nil {
		return run
	}
	return func(ctx context.Context) error {
		logged := klog.NewContext(context.WithoutCancel(ctx), logr.FromSlogHandler(l.log.Handler()))
		electing, stopElection := context.WithCancel(logged)
		defer stopElection()
		elected, lost := make(chan struct{}), make(chan struct{})
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: renewals{l.lock, l}, Name: l.lock.LeaseMeta.Name,
			LeaseDuration: l.duration, RenewDeadline: l.deadline, RetryPeriod: l.retry,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { close(elected) },
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			return fmt.Errorf("take part in the election: %w", err)
		}
		go func() {
			defer close(lost)
			elector.Run(electing)
		}()
		select {
		case <-elected:
		case <-ctx.Done():
			stopElection()
			<-lost
			select {
			case <-elected: // in the last moment
				return l.release(logged)
			default:
				return nil
			}
		}
		return l.hold(ctx, logged, run, stopElection, lost)
	}
}

// hold runs the part until it ends, ctx is done, or the lease is lost.
func (l *leader) hold(ctx, logged context.Context, run part, stopElection func(), lost <-chan struct{}) error {
	l.log.Info("this replica is at work")
	l.isLeader.Set(1)
	defer l.isLeader.Set(0)
	term, endTerm := context.WithCancel(ctx)
	defer endTerm()
	ended := make(chan error, 1)
	go func() { ended <- run(term) }()
	select {
	case err := <-ended: // by itself, or because ctx is done
		stopElection()
		<-lost
		return errors.Join(err, l.release(logged))
	case <-lost:
		l.expire()
		endTerm()
		return errors.Join(errLeaseLost, <-ended)
	}
}

// release gives the lease up. Where that fails it ends by itself, later.
func (l *leader) release(ctx context.Context) error {
	l.expire()
	ctx, cancel := context.WithTimeout(ctx, l.deadline)
	defer cancel()
	record, _, err := l.lock.Get(ctx)
	if err == nil && record.HolderIdentity == l.lock.Identity() {
		now := metav1.NewTime(l.now())
		err = l.lock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
		})
	}
	if err != nil {
		l.log.Warn("the lease cannot be given up; it ends by itself", "error", err)
	}
	return nil
}

func (l *leader) expire() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.renewed = time.Time{}
}

// term is until when a request may be sent, and until when it must have ended: no other replica begins before that.
func (l *leader) term() (send, end time.Time) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.renewed.IsZero() {
		return time.Time{}, time.Time{}
	}
	return l.renewed.Add(l.deadline), l.renewed.Add(l.duration)
}

// renewals are the lock, and tell when it was renewed.
type renewals struct {
	*resourcelock.LeaseLock
	leader *leader
}

// Create is what the election does where there is no Lease yet.
func (r renewals) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return r.note(record, func() error { return r.LeaseLock.Create(ctx, record) })
}

// Update is what the election acquires and renews with.
func (r renewals) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return r.note(record, func() error { return r.LeaseLock.Update(ctx, record) })
}

func (r renewals) note(record resourcelock.LeaderElectionRecord, write func() error) error {
	began := r.leader.now()
	if err := write(); err != nil {
		return err
	}
	r.leader.mutex.Lock()
	defer r.leader.mutex.Unlock()
	if record.HolderIdentity == r.Identity() {
		r.leader.renewed = began
	}
	return nil
}

// fence is a connection through which nothing is written without the lease: not by what was begun before it was lost,
// and not by a process that was frozen and does not know yet. What was sent and has not been answered when the lease
// ends is broken off. What it cannot call back is harmless: each write carries the uid or the resourceVersion of what it
// is meant for, or creates what must not be there; only the projector's binding is taken away by its name, which the
// next look at the application puts right.
func (l *leader) fence(c *rest.Config) *rest.Config {
	if l == nil {
		return c
	}
	c = rest.CopyConfig(c)
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return fenced{leader: l, next: next} })
	return c
}

type fenced struct {
	leader *leader
	next   http.RoundTripper
}

func (f fenced) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodGet {
		return f.next.RoundTrip(request)
	}
	send, end := f.leader.term()
	if !f.leader.now().Before(send) {
		return nil, errNoLease
	}
	ctx, cancel := context.WithDeadline(request.Context(), end)
	response, err := f.next.RoundTrip(request.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	response.Body = cancelledBody{response.Body, cancel}
	return response, nil
}

// cancelledBody ends its request's context when it is closed.
type cancelledBody struct {
	io.ReadCloser
	cancel func()
}

func (b cancelledBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}
