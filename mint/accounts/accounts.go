// Package accounts gives each declared account its account Secret, and takes it away with the account, as applications
// come, change and go. Nobody is locked out by it: what ran before its kind had a block is left for a mint by name.
package accounts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
)

const (
	// defaultWorkers is for waiting: before kube-apiserver takes a Role or RoleBinding it reads all that could allow it,
	// and waits up to 100 ms for etcd's word that what it reads is the newest.
	defaultWorkers   = 64
	defaultProjector = "projector"

	// What fails is tried again after firstRetry, doubling up to lastRetry, each with up to half as much again by chance.
	firstRetry = 200 * time.Millisecond
	lastRetry  = 5 * time.Minute
	// longest is how long one look at an application may take, and seedingTime the part of it in which new accounts are
	// seeded: a format's webhook that hangs leaves time for those who have a password already.
	longest     = time.Minute
	seedingTime = longest / 2
	// inspection is how often an application is looked at though nothing of it changed: its grant is not watched. Nor is
	// what stands in the place of an account Secret or a grant, and is waited for.
	inspection      = time.Hour
	closeInspection = time.Minute
	// catchUp is how long the cache is waited for after Secrets were created.
	catchUp = time.Second
)

// Options are what an accounts role needs.
type Options struct {
	// Cluster is run by the caller, after New. Its identity may also, in enrolled namespaces, patch HelmReleases.
	Cluster *cluster.Cluster
	// Client may, in enrolled namespaces, get, create, patch and delete Secrets, get, create, update and delete Roles and
	// RoleBindings and create and patch Events, and in Namespace get, create and update ConfigMaps.
	Client kubernetes.Interface
	// Namespace is mintlog's own: it holds the record of kinds and the projector's service account.
	Namespace string
	Webhooks  definition.Webhooks // asks the webhooks of definitions
	Projector string              // the name of that service account; default "projector"
	Workers   int                 // applications in work at once, and as many more of each kind that asks webhooks; default 64
	Now       func() time.Time    // default time.Now
	Random    io.Reader           // cryptographically secure
	Log       *slog.Logger

	Registerer prometheus.Registerer
}

// Accounts is the role.
type Accounts struct {
	Options
	lanes   lanes
	sights  *sights
	settled *settled
	granted *granted
	report  *reports
	changes *changes
	metrics *metrics
}

// New prepares the role and asks the cluster to tell it of changes.
func New(o Options) (*Accounts, error) {
	if o.Workers == 0 {
		o.Workers = defaultWorkers
	}
	if o.Projector == "" {
		o.Projector = defaultProjector
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	m := newMetrics()
	if err := m.register(o.Registerer); err != nil {
		return nil, fmt.Errorf("register the accounts role's metrics: %w", err)
	}
	a := &Accounts{
		Options: o, metrics: m, lanes: lanes{quick: newLane(), slow: map[string]*lane{}},
		sights:  &sights{client: o.Client.CoreV1().ConfigMaps(o.Namespace), metrics: m, known: map[string]time.Time{}},
		settled: newSettled(), granted: &granted{of: map[string]map[string]bool{}}, report: newReports(o.Client, m), changes: newChanges(o),
	}
	o.Cluster.Notify(cluster.Notify{
		Release: func(name types.NamespacedName) { a.lanes.quick.queue.Add(key{application: name}) },
		Kind:    func(kind string) { a.lanes.quick.queue.Add(key{kind: kind}) },
		Ledger:  a.changes.queue.Add,
	})
	return a, nil
}

// Run keeps accounts and Secrets in step until ctx is done. What is being written then is finished first.
func (a *Accounts) Run(ctx context.Context) error {
	stopReports := a.report.start()
	defer stopReports()
	if err := a.Cluster.WaitForSync(ctx); err != nil {
		a.shutDown()
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	if err := a.reviewKinds(ctx); err != nil {
		a.shutDown()
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	a.lanes.start(func(l *lane) {
		for range a.Workers {
			a.lanes.workers.Go(func() {
				for a.work(ctx, l) {
				}
			})
		}
	})
	a.lanes.workers.Go(func() { a.changes.run(ctx) })
	<-ctx.Done()
	a.shutDown()
	a.lanes.workers.Wait()
	return nil
}

func (a *Accounts) shutDown() {
	a.lanes.shutDown()
	a.changes.queue.ShutDown()
}

// reviewKinds puts the kinds in the queue that were recorded in an earlier life: a block may have gone since.
func (a *Accounts) reviewKinds(ctx context.Context) error {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		kinds, err := a.sights.load(ctx)
		if err == nil {
			for _, kind := range append(kinds, a.Cluster.Kinds()...) {
				a.lanes.quick.queue.Add(key{kind: kind})
			}
			return nil
		}
		a.Log.Warn("cannot read which kinds were seen before; trying again", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait + rand.N(wait/2)):
		}
	}
}

// work takes one key from a lane; it returns false when that is shut down.
func (a *Accounts) work(ctx context.Context, l *lane) bool {
	k, quit := l.queue.Get()
	if quit {
		return false
	}
	defer l.queue.Done(k)
	if ctx.Err() != nil {
		return true
	}
	if kind, asks := a.asksWebhooks(k); asks && l == a.lanes.quick {
		l.queue.Forget(k)
		a.lanes.ofKind(kind).queue.Add(k)
		return true
	}
	began := time.Now()
	// What was begun is finished though the process is told to stop.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest)
	defer cancel()
	next, err := a.reconcile(ctx, k)
	a.metrics.duration.Observe(time.Since(began).Seconds())
	if err != nil {
		a.retry(l, k, err)
		return true
	}
	a.metrics.reconciles.WithLabelValues("ok").Inc()
	l.queue.Forget(k)
	if next > 0 {
		l.queue.AddAfter(k, next+rand.N(next/10))
	}
	return true
}

// asksWebhooks reports whether a look at an application may take as long as a webhook takes, and the application's kind.
func (a *Accounts) asksWebhooks(k key) (kind string, asks bool) {
	release, ok := a.Cluster.Release(k.application.Namespace, k.application.Name)
	if !ok {
		return "", false
	}
	d, ok := a.Cluster.Definition(release.Kind)
	return release.Kind, ok && (d.Block.Format.Kind == definition.Webhook ||
		slices.ContainsFunc(d.Block.Sources, func(s definition.Source) bool { return s.Kind == definition.Webhook }))
}

func (a *Accounts) retry(l *lane, k key, err error) {
	wait := l.retries.When(k)
	l.queue.AddAfter(k, wait+rand.N(wait/2))
	if result := expected(err); result != "" {
		a.metrics.reconciles.WithLabelValues(result).Inc()
		return
	}
	a.metrics.reconciles.WithLabelValues("error").Inc()
	a.Log.Warn("accounts are not in step; trying again",
		"namespace", cmp.Or(k.application.Namespace, k.swept, k.reviewed), "release", k.application.Name, "kind", k.kind, "error", err)
}

// errNotYet is returned for what will come right by itself, and is no fault.
var errNotYet = errors.New("not yet")

// A reportedError is that of a source or a format: a problem tells of it already.
type reportedError struct{ error }

// expected is the result of a reconcile whose errors are all of those that need no words in the log, "" otherwise.
func expected(err error) string {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		result := ""
		for _, one := range joined.Unwrap() {
			if result = expected(one); result == "" {
				return ""
			}
		}
		return result
	}
	switch reported := (reportedError{}); {
	case errors.Is(err, errNotYet):
		return "waiting"
	case errors.As(err, &reported):
		return "reported"
	}
	return ""
}

// reconcile returns when the key is to be looked at again, 0 if not before something changes.
func (a *Accounts) reconcile(ctx context.Context, k key) (time.Duration, error) {
	switch {
	case k.kind != "":
		return 0, a.reconcileKind(ctx, k.kind)
	case k.swept != "":
		return 0, a.sweep(ctx, k.swept)
	case k.reviewed != "":
		return a.review(ctx, k.reviewed)
	}
	return a.reconcileApplication(ctx, k.application)
}

// reconcileKind records when a kind's block was first seen, and forgets it when the block goes: with the next one
// everything begins anew. A block that is not served has not been seen, and if it was served before, has not gone.
func (a *Accounts) reconcileKind(ctx context.Context, kind string) error {
	d, ok := a.Cluster.Definition(kind)
	switch {
	case !ok || !d.HasBlock:
		return a.sights.forget(ctx, kind)
	case d.Err != nil:
		a.Log.Warn("the credentials of a kind are not served", "kind", kind, "definition", d.Name, "error", d.Err)
		return nil
	}
	first, err := a.sights.record(ctx, kind)
	if err != nil || !first {
		return err
	}
	a.Log.Info("a kind's block is seen for the first time", "kind", kind, "definition", d.Name)
	for _, r := range a.Cluster.ReleasesOfKind(kind) {
		a.lanes.quick.queue.Add(key{application: types.NamespacedName{Namespace: r.Namespace, Name: r.Name}})
	}
	return nil
}

// reconcileApplication brings one application's Secrets and grant in step with its declared accounts.
func (a *Accounts) reconcileApplication(ctx context.Context, name types.NamespacedName) (time.Duration, error) {
	s, d, err := a.situationOf(ctx, name)
	if err != nil || d == nil {
		return 0, err
	}
	if wait := a.settled.until(name, a.settled.state(s, d), a.Now()); wait > 0 {
		return wait, nil
	}
	p, g, err := a.plan(ctx, &s)
	if err != nil {
		return 0, err
	}
	known := len(s.secrets)
	err = a.carryOut(ctx, &s, &p, g)
	a.report.tell(s.release, p.problems)
	next := a.nextLook(p)
	if err == nil {
		a.settled.inStep(name, a.settled.state(s, d), a.Now().Add(next))
		a.inPlace(name)
		a.awaitSeen(ctx, s.secrets[known:])
	}
	return next, err
}

// situationOf is the situation of an application but for its record, and the definition of its kind: nil if there is
// nothing to be done before something changes.
func (a *Accounts) situationOf(ctx context.Context, name types.NamespacedName) (situation, *cluster.Definition, error) {
	release, ok := a.Cluster.Release(name.Namespace, name.Name)
	if !ok || release.Deleting {
		a.report.forget(name) // what it owns goes with it
		a.settled.forget(name)
		if !ok {
			return situation{}, nil, a.gone(ctx, name)
		}
		return situation{}, nil, nil
	}
	d, ok := a.Cluster.Definition(release.Kind)
	if !ok || !d.HasBlock || d.Err != nil {
		return situation{}, nil, nil // nothing is deleted; its definition wakes us
	}
	if !a.Cluster.Readable(release.Namespace) {
		return situation{}, nil, nil // its namespace wakes us when it is enrolled
	}
	sight, ok := a.sights.of(release.Kind)
	if !ok {
		return situation{}, nil, nil // its kind wakes us when it is recorded
	}
	secrets, err := a.Cluster.AccountSecrets(ctx, release.Namespace)
	if err != nil {
		return situation{}, nil, fmt.Errorf("read the account Secrets: %w", err)
	}
	return situation{release: release, block: d.Block, sight: sight, secrets: secrets}, d, nil
}

// awaitSeen waits, not for long, until the cache has the Secrets that were created. Each of them wakes us, and before
// all are there we would find some missing and look for them.
func (a *Accounts) awaitSeen(ctx context.Context, created []*corev1.Secret) {
	ctx, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	for _, secret := range created {
		for {
			if _, err := a.Cluster.AccountSecret(ctx, secret.Namespace, secret.Name); err == nil {
				break
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(catchUp / 100):
			}
		}
	}
}

// plan decides what is to be done, by the record in the application's grant. Where there most likely is none the API
// server is not asked: the Role is created, which fails if there is one, and then nothing else has been done.
func (a *Accounts) plan(ctx context.Context, s *situation) (plan, grant, error) {
	if a.isNew(*s) {
		if p := decide(ctx, *s, a.Webhooks); p.unknown || len(p.seed) > 0 {
			return p, grant{}, nil
		}
	}
	g, err := a.readGrant(ctx, s.release)
	if err != nil {
		return plan{}, grant{}, err
	}
	s.record = g.record
	return decide(ctx, *s, a.Webhooks), g, nil
}

// isNew reports whether an application most likely has no grant yet: it came after its kind's block, and has no account
// Secret.
func (a *Accounts) isNew(s situation) bool {
	return !s.isOlder() && len(s.ofRelease()) == 0 &&
		a.settled.mayLackRole(types.NamespacedName{Namespace: s.release.Namespace, Name: s.release.Name})
}

func (a *Accounts) nextLook(p plan) time.Duration {
	next := inspection
	if slices.ContainsFunc(p.problems, problem.inTheWay) {
		next = closeInspection
	}
	if !p.again.IsZero() {
		next = min(next, max(p.again.Sub(a.Now()), time.Second))
	}
	return next
}

// carryOut does what is planned, whatever of it fails. The Secrets that it creates are added to the situation's.
func (a *Accounts) carryOut(ctx context.Context, s *situation, p *plan, g grant) error {
	failures := []error{a.spareHeld(ctx, *s, p)}
	d, err := a.planDelivery(ctx, *s, p, g)
	failures = append(failures, err)
	switch {
	case p.unknown: // which accounts there are
		return errors.Join(append(failures, a.deliver(ctx, *s, p, d), reportedError{errors.New(p.problems[0].message)})...)
	case g.foreign:
		p.problems = append(p.problems, foreignRole(grantName(s.release)))
	default:
		// The record goes before the first Secret and before what it counts; the grant before there is something to read.
		if err = a.writeGrant(ctx, s.release, g, p.record, p.secretNames()); err == nil {
			s.secrets, err = a.seedAll(ctx, *s, p)
		} else {
			d = delivery{}
			err = p.withoutGrant(grantName(s.release), err)
		}
		failures = append(failures, err)
	}
	failures = append(failures, a.deliver(ctx, *s, p, d), a.repairAll(ctx, *s, p), a.remove(ctx, *s, p.remove))
	if p.waiting {
		failures = append(failures, fmt.Errorf("the Secrets of an earlier application of this name are still being collected: %w", errNotYet))
	}
	return errors.Join(failures...)
}

// spareHeld leaves out of what is seeded what has a password elsewhere. If that is not known nothing is seeded; but what
// is in the way of seeding is not in the way of the grant: an account is minted without having been seeded too.
func (a *Accounts) spareHeld(ctx context.Context, s situation, p *plan) error {
	if len(p.seed) == 0 {
		return nil
	}
	held, err := a.held(ctx, s.release)
	if err != nil {
		p.seed = nil
		return err
	}
	p.spare(held)
	return nil
}

// seedAll creates what is to be seeded, some of it at once, and returns the account Secrets that there are now.
func (a *Accounts) seedAll(ctx context.Context, s situation, p *plan) ([]*corev1.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, seedingTime)
	defer cancel()
	created := make([]seeding, len(p.seed))
	var group errgroup.Group
	group.SetLimit(seedsAtOnce)
	for i, account := range p.seed {
		group.Go(func() error {
			created[i].is, created[i].foreign, created[i].err = a.seed(ctx, s, account)
			return nil
		})
	}
	_ = group.Wait() // each has its own error
	secrets := slices.Clip(s.secrets)
	var failures []error
	for i, account := range p.seed {
		c := created[i]
		failures = append(failures, c.err)
		switch failed := (reportedError{}); {
		case errors.As(c.err, &failed):
			p.problems = append(p.problems, formatFailed(account.Name, failed.error))
		case c.foreign:
			p.problems = append(p.problems, foreignSecret(account.SecretName))
		case c.is != nil:
			secrets = append(secrets, c.is)
		}
	}
	return secrets, errors.Join(failures...)
}

// seedsAtOnce are how many Secrets of one application are created at a time: it is the API server's answers that are
// waited for.
const seedsAtOnce = 4

// A seeding is what became of one account that is to be seeded.
type seeding struct {
	is      *corev1.Secret
	foreign bool // what is there is not this application's
	err     error
}

func (a *Accounts) repairAll(ctx context.Context, s situation, p *plan) error {
	var failures []error
	for _, secret := range p.repair {
		failures = append(failures, a.repair(ctx, s, secret))
	}
	return errors.Join(failures...)
}
