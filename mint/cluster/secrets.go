package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/store/ledger"
)

// AccountLabel is "true" on every account Secret, and what the caches select by.
const AccountLabel = "credentials.cozystack.io/account"

const (
	// patience is how long a read waits for a namespace that is being read for the first time.
	patience = 5 * time.Second
	// A namespace that may not be read is tried again after firstRetry, doubling up to lastRetry, each with up to half as
	// much again by chance; and after demandRetry if somebody asks for it.
	firstRetry  = time.Second
	lastRetry   = 2 * time.Minute
	demandRetry = time.Second
)

// AccountSecret returns an account Secret by name from the cache of its namespace. The error is NotFound where there is
// none, Forbidden where the namespace is not enrolled, ServiceUnavailable where it could not be read in time. The Secret
// is shared: it must not be changed.
func (c *Cluster) AccountSecret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	indexer, err := c.namespace(namespace).indexer(ctx, name)
	if err != nil {
		return nil, err
	}
	secret, ok, err := indexer.GetByKey(namespace + "/" + name)
	if err != nil {
		return nil, err
	}
	if !ok || !accountName(name) {
		return nil, apierrors.NewNotFound(corev1.Resource("secrets"), name)
	}
	return secret.(*corev1.Secret), nil
}

// accountName reports whether a Secret of this name can be an account's. The label alone makes none: it can be put on any
// Secret, and the admission policies keep others' hands off those of such a name only.
func accountName(name string) bool {
	_, _, ok := definition.SplitSecretName(name)
	return ok
}

// AccountSecrets returns all account Secrets of a namespace, in no order, with the errors of AccountSecret but
// NotFound. They are shared: they must not be changed.
func (c *Cluster) AccountSecrets(ctx context.Context, namespace string) ([]*corev1.Secret, error) {
	indexer, err := c.namespace(namespace).indexer(ctx, "")
	if err != nil {
		return nil, err
	}
	return secretsOf(indexer), nil
}

// AllAccountSecrets returns all account Secrets in the caches, in no order. They are shared: they must not be changed.
func (c *Cluster) AllAccountSecrets() []*corev1.Secret {
	c.mu.Lock()
	watches := slices.Collect(maps.Values(c.namespaces))
	c.mu.Unlock()
	var secrets []*corev1.Secret
	for _, w := range watches {
		if indexer, _, _ := w.state(); indexer != nil {
			secrets = append(secrets, secretsOf(indexer)...)
		}
	}
	return secrets
}

// Readable reports whether the account Secrets of a namespace are in the cache now; Notify tells when they come.
func (c *Cluster) Readable(namespace string) bool {
	indexer, _, _ := c.namespace(namespace).state()
	return indexer != nil
}

func secretsOf(indexer cache.Indexer) []*corev1.Secret {
	objects := indexer.List()
	secrets := make([]*corev1.Secret, 0, len(objects))
	for _, o := range objects {
		if secret := o.(*corev1.Secret); accountName(secret.Name) {
			secrets = append(secrets, secret)
		}
	}
	return secrets
}

// namespace returns the watch of a namespace's account Secrets, started if it was not.
func (c *Cluster) namespace(name string) *namespaceWatch {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, ok := c.namespaces[name]
	if ok {
		w.lastAsked = time.Now()
		return w
	}
	w = &namespaceWatch{
		namespace: name, client: c.client, log: c.log.With("namespace", name),
		changed: make(chan struct{}), asked: make(chan struct{}, 1),
		secretChanged: c.secretChanged, readable: c.namespaceReadable, stop: func() {}, lastAsked: time.Now(),
	}
	c.namespaces[name] = w
	if c.run != nil && c.run.Err() == nil {
		c.start(w)
	}
	return w
}

// start runs a watch until the cluster ends, or the watch is given up. The caller holds c.mu.
func (c *Cluster) start(w *namespaceWatch) {
	ctx, stop := context.WithCancel(c.run)
	w.stop = stop
	c.running.Go(func() {
		defer stop()
		w.run(ctx)
	})
}

// giveUpIdle ends, until ctx is done, the watches of namespaces that nobody needs: else each that was deleted, or whose
// name somebody made up, would be asked for forever. One that is needed and may not be read is kept: nobody tells when
// it is enrolled.
func (c *Cluster) giveUpIdle(ctx context.Context) {
	look := time.NewTicker(max(c.idle/4, time.Millisecond))
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		c.mu.Lock()
		for name, w := range c.namespaces {
			if time.Since(w.lastAsked) > c.idle && !slices.ContainsFunc(c.Releases(name), c.mayHaveAccounts) {
				w.stop()
				delete(c.namespaces, name)
			}
		}
		c.mu.Unlock()
	}
}

func (c *Cluster) secretChanged(before, after any) {
	old, _ := before.(*corev1.Secret)
	now, _ := after.(*corev1.Secret)
	if one := cmp.Or(now, old); one == nil || !accountName(one.Name) {
		return
	}
	if now != nil && (old == nil || !sameLedger(old, now)) {
		c.tellLedger(types.NamespacedName{Namespace: now.Namespace, Name: now.Name})
	}
	if old != nil && now != nil && sameAccount(old, now) && (sameLedger(old, now) || !c.throughValues(now)) {
		return // an operation or its history, which changes no account
	}
	for _, s := range []*corev1.Secret{now, old} {
		if s == nil {
			continue
		}
		if release, _, ok := definition.SplitSecretName(s.Name); ok {
			c.tellRelease(types.NamespacedName{Namespace: s.Namespace, Name: release})
		}
		return
	}
}

func (c *Cluster) tellLedger(key types.NamespacedName) {
	for _, n := range c.notify {
		if n.Ledger != nil {
			n.Ledger(key)
		}
	}
}

func (c *Cluster) namespaceReadable(namespace string) {
	for _, r := range c.Releases(namespace) {
		c.tellRelease(types.NamespacedName{Namespace: r.Namespace, Name: r.Name})
	}
}

// sameAccount reports whether two states of an account Secret are alike in all but password and annotations.
func sameAccount(a, b *corev1.Secret) bool {
	return a.UID == b.UID && a.Type == b.Type && a.DeletionTimestamp.Equal(b.DeletionTimestamp) &&
		string(a.Data[corev1.BasicAuthUsernameKey]) == string(b.Data[corev1.BasicAuthUsernameKey]) &&
		equality.Semantic.DeepEqual(a.Labels, b.Labels) && equality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences)
}

func sameLedger(a, b *corev1.Secret) bool {
	return a.Annotations[ledger.Annotation] == b.Annotations[ledger.Annotation]
}

// throughValues reports whether the stored form of an account Secret goes into its application's values.
func (c *Cluster) throughValues(secret *corev1.Secret) bool {
	name, _, _ := definition.SplitSecretName(secret.Name)
	release, ok := c.Release(secret.Namespace, name)
	if !ok {
		return false
	}
	d, ok := c.Definition(release.Kind)
	return ok && d.Block.ValuesPath != ""
}

// A namespaceWatch keeps the account Secrets of one namespace, as long as they may be read.
type namespaceWatch struct {
	namespace     string
	client        kubernetes.Interface
	log           *slog.Logger
	secretChanged func(before, after any)
	readable      func(namespace string)

	stop      context.CancelFunc // of what start started; guarded, as lastAsked is, by the cluster's mutex
	lastAsked time.Time

	asked chan struct{} // somebody wants a namespace that may not be read

	mu      sync.Mutex
	current cache.Indexer // nil unless it is complete
	failure error         // why it is not; nil also while it is being read
	failed  bool          // and has since it was last complete
	changed chan struct{} // closed when current or failure change
}

// run watches until ctx is done, over and over: a namespace may be enrolled and taken out at any time.
func (w *namespaceWatch) run(ctx context.Context) {
	retry := firstRetry
	for ctx.Err() == nil {
		began := time.Now()
		failure := w.watch(ctx)
		if ctx.Err() != nil {
			return
		}
		if w.set(nil, failure) {
			w.log.Warn("the namespace is not enrolled: its account Secrets may not be read; trying again")
		}
		if time.Since(began) > lastRetry {
			retry = firstRetry
		}
		w.pause(ctx, retry+rand.N(retry/2))
		retry = min(2*retry, lastRetry)
		w.set(nil, nil)
	}
}

// pause waits until it is time to try again, or demandRetry has passed and somebody asks.
func (w *namespaceWatch) pause(ctx context.Context, long time.Duration) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(min(long, demandRetry)):
	}
	select {
	case <-ctx.Done():
	case <-time.After(long - min(long, demandRetry)):
	case <-w.asked:
	}
}

// watch returns why the namespace may not be read, when that is so.
func (w *namespaceWatch) watch(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	informer := informers.NewFilteredSecretInformer(w.client, w.namespace, 0, cache.Indexers{},
		func(l *metav1.ListOptions) { l.LabelSelector = AccountLabel + "=true" })
	others := &reporter{log: w.log.With("resource", "Secrets")}
	err := errors.Join(
		informer.SetTransform(trimSecret),
		informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
			if apierrors.IsForbidden(err) {
				stop(err)
				return
			}
			others.report(err)
		}))
	if err != nil {
		return fmt.Errorf("set the watch of Secrets up: %w", err)
	}
	registration, err := informer.AddEventHandler(handler(w.secretChanged))
	if err != nil {
		return fmt.Errorf("set the watch of Secrets up: %w", err)
	}
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			w.set(informer.GetIndexer(), nil)
			w.readable(w.namespace)
		}
	})
	informer.RunWithContext(ctx)
	waiting.Wait()
	return context.Cause(ctx)
}

func trimSecret(o any) (any, error) {
	if secret, ok := o.(*corev1.Secret); ok {
		secret.ManagedFields = nil
	}
	return o, nil
}

// state is the cache if it is complete, a channel that is closed when that changes, and why it is not.
func (w *namespaceWatch) state() (cache.Indexer, <-chan struct{}, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.current, w.changed, w.failure
}

// set changes the state and reports whether the namespace has failed for the first time since it was last readable.
func (w *namespaceWatch) set(indexer cache.Indexer, failure error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := failure != nil && !w.failed
	if failure != nil {
		w.failed = true
	}
	if indexer != nil {
		w.failed = false
	}
	w.current, w.failure = indexer, failure
	close(w.changed)
	w.changed = make(chan struct{})
	return first
}

// indexer waits for the namespace to be read, for up to patience. One that was found unreadable is tried again.
func (w *namespaceWatch) indexer(ctx context.Context, name string) (cache.Indexer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for tried := false; ; {
		indexer, changed, failure := w.state()
		switch {
		case indexer != nil:
			return indexer, nil
		case failure == nil:
			tried = true // what is being waited for
		case tried:
			return nil, apierrors.NewForbidden(corev1.Resource("secrets"), name, fmt.Errorf("namespace %s is not enrolled", w.namespace))
		default:
			select {
			case w.asked <- struct{}{}:
			default:
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("the account Secrets of namespace %s are not read yet", w.namespace))
		}
	}
}
