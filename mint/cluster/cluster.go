// Package cluster is what the mint server and the accounts role see of Kubernetes: applications, definitions and
// account Secrets, held in memory by watches. Nothing here asks the API server on a read.
//
// Everything it returns is shared by all readers: it must not be changed.
package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// The requests a second that start the watches of many namespaces, where Options.Config does not say.
const (
	defaultQPS   = 100
	defaultBurst = 200
)

const defaultIdle = 5 * time.Minute

const byKind = "kind"

// Options say how to reach Kubernetes.
type Options struct {
	// Config is of an identity that may list and watch HelmReleases and ApplicationDefinitions in the cluster, and
	// Secrets in enrolled namespaces.
	Config *rest.Config
	Log    *slog.Logger
	// Idle is how long the account Secrets of a namespace without applications that may have accounts are watched after
	// somebody last asked for them; default 5 minutes. A later read starts anew.
	Idle time.Duration
}

// Notify tells what has changed. Its functions are called one at a time or at once, and must not block.
type Notify struct {
	// Release is called with a HelmRelease's key when it, its definition or one of its account Secrets comes, goes or
	// changes in what an account depends on, and when its namespace becomes readable. For a kind whose stored forms go into
	// the values, an operation on one of its accounts is such a change.
	Release func(release types.NamespacedName)
	// Ledger is called with an account Secret's key when it is seen for the first time, and when its ledger changes.
	Ledger func(secret types.NamespacedName)
	// Kind is called when a kind's definition comes, goes or changes.
	Kind func(kind string)
}

// A Cluster holds the caches.
type Cluster struct {
	log         *slog.Logger
	idle        time.Duration
	client      kubernetes.Interface
	objects     dynamic.Interface
	releases    cache.SharedIndexInformer
	definitions cache.SharedIndexInformer
	synced      []cache.InformerSynced // the handlers, behind the caches

	mu         sync.Mutex
	notify     []Notify
	namespaces map[string]*namespaceWatch
	run        context.Context // nil until Run
	running    sync.WaitGroup
}

// New prepares the caches; Run fills them.
func New(o Options) (*Cluster, error) {
	config := rest.CopyConfig(o.Config)
	if config.QPS == 0 {
		config.QPS, config.Burst = defaultQPS, defaultBurst
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for HelmReleases: %w", err)
	}
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for Secrets: %w", err)
	}
	c := &Cluster{log: o.Log, idle: cmp.Or(o.Idle, defaultIdle), client: client, objects: objects, namespaces: map[string]*namespaceWatch{}}
	c.releases = dynamicinformer.NewFilteredDynamicInformer(objects, ReleaseResource, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc, byKind: kindOf},
		func(l *metav1.ListOptions) { l.LabelSelector = KindLabel }).Informer()
	c.definitions = dynamicinformer.NewFilteredDynamicInformer(objects, DefinitionResource, metav1.NamespaceAll, 0,
		cache.Indexers{byKind: kindOf}, nil).Informer()
	if err := c.prepare(c.releases, "HelmReleases", transformRelease, c.releaseChanged); err != nil {
		return nil, err
	}
	if err := c.prepare(c.definitions, "ApplicationDefinitions", transformDefinition, c.definitionChanged); err != nil {
		return nil, err
	}
	return c, nil
}

// prepare sets an informer up before it runs. While its resource cannot be listed (its CRD may not be there yet), it
// keeps trying.
func (c *Cluster) prepare(informer cache.SharedIndexInformer, what string, transform cache.TransformFunc, changed func(before, after any)) error {
	failures := &reporter{log: c.log.With("resource", what)}
	return errors.Join(
		informer.SetTransform(transform),
		informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { failures.report(err) }),
		c.handle(informer, changed),
	)
}

// handle calls changed with what an object was, nil if it comes, and what it is, nil if it goes.
func (c *Cluster) handle(informer cache.SharedIndexInformer, changed func(before, after any)) error {
	registration, err := informer.AddEventHandler(handler(changed))
	if err == nil {
		c.synced = append(c.synced, registration.HasSynced)
	}
	return err
}

func handler(changed func(before, after any)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { changed(nil, object) },
		UpdateFunc: func(before, after any) { changed(before, after) },
		DeleteFunc: func(object any) {
			if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = gone.Obj
			}
			changed(object, nil)
		},
	}
}

// Notify adds somebody to tell of changes. It must be called before Run, which tells of everything that is there.
func (c *Cluster) Notify(n Notify) { c.notify = append(c.notify, n) }

// Run fills the caches and keeps them until ctx is done.
func (c *Cluster) Run(ctx context.Context) error {
	c.mu.Lock()
	c.run = ctx
	for _, w := range c.namespaces {
		c.start(w)
	}
	c.running.Go(func() { c.giveUpIdle(ctx) })
	c.running.Go(func() { c.definitions.RunWithContext(ctx) })
	c.running.Go(func() { c.releases.RunWithContext(ctx) })
	c.mu.Unlock()
	<-ctx.Done()
	c.running.Wait()
	return nil
}

// WaitForSync returns when applications and definitions are known, or with an error when ctx is done before.
func (c *Cluster) WaitForSync(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), c.synced...) {
		return fmt.Errorf("wait for HelmReleases and ApplicationDefinitions: %w", context.Cause(ctx))
	}
	return nil
}

// Release returns an application by its HelmRelease's namespace and name.
func (c *Cluster) Release(namespace, name string) (*Release, bool) {
	object, ok, err := c.releases.GetIndexer().GetByKey(namespace + "/" + name)
	if err != nil || !ok {
		return nil, false
	}
	return object.(*releaseObject).release, true
}

// Releases returns the applications of a namespace, in no order.
func (c *Cluster) Releases(namespace string) []*Release {
	return c.releasesBy(cache.NamespaceIndex, namespace)
}

// ReleasesOfKind returns the applications of a kind in all namespaces, in no order.
func (c *Cluster) ReleasesOfKind(kind string) []*Release { return c.releasesBy(byKind, kind) }

func (c *Cluster) releasesBy(index, value string) []*Release {
	objects, err := c.releases.GetIndexer().ByIndex(index, value)
	if err != nil {
		panic(err) // the index was given to the informer above
	}
	releases := make([]*Release, 0, len(objects))
	for _, object := range objects {
		releases = append(releases, object.(*releaseObject).release)
	}
	return releases
}

// Definition returns the definition of a kind. If several claim one kind, none of them is served.
func (c *Cluster) Definition(kind string) (*Definition, bool) {
	objects, err := c.definitions.GetIndexer().ByIndex(byKind, kind)
	if err != nil {
		panic(err) // the index was given to the informer above
	}
	if len(objects) == 0 {
		return nil, false
	}
	if len(objects) == 1 {
		return definitionOf(objects[0]), true
	}
	return ambiguous(kind, objects), true
}

func definitionOf(o any) *Definition { return o.(*definitionObject).definition }

// Live asks the API server itself for an application and the definition of its kind, for whoever is about to do what
// cannot be undone. Either is an error if it is not there, and so is a kind that is not served.
func (c *Cluster) Live(ctx context.Context, r *Release) (*Release, *Definition, error) {
	known, ok := c.Definition(r.Kind)
	if !ok {
		return nil, nil, fmt.Errorf("the kind %s has no definition", r.Kind)
	}
	if known.Err != nil { // it may be two
		return nil, nil, fmt.Errorf("the kind %s is not served: %w", r.Kind, known.Err)
	}
	release, err := c.HelmReleases(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("read the HelmRelease %s: %w", r.Name, err)
	}
	definition, err := c.objects.Resource(DefinitionResource).Get(ctx, known.Name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("read the ApplicationDefinition %s: %w", known.Name, err)
	}
	return ReadRelease(release), ReadDefinition(definition), nil
}

// HelmReleases asks the API server itself, with the identity of the caches, about the HelmReleases of a namespace.
func (c *Cluster) HelmReleases(namespace string) dynamic.ResourceInterface {
	return c.objects.Resource(ReleaseResource).Namespace(namespace)
}

// Kinds returns the kinds that have a definition, sorted.
func (c *Cluster) Kinds() []string {
	return slices.Sorted(slices.Values(c.definitions.GetIndexer().ListIndexFuncValues(byKind)))
}

// kindOf indexes applications and definitions.
func kindOf(o any) ([]string, error) {
	switch o := o.(type) {
	case *releaseObject:
		return []string{o.release.Kind}, nil
	case *definitionObject:
		return []string{o.definition.Kind}, nil
	}
	return nil, fmt.Errorf("an object of type %T has no kind", o)
}

func (c *Cluster) releaseChanged(before, after any) {
	old, _ := before.(*releaseObject)
	now, _ := after.(*releaseObject)
	if old != nil && now != nil && old.release.same(now.release) {
		return // its status, which wakes nobody
	}
	for _, o := range []*releaseObject{now, old} {
		if o != nil {
			c.follow(o.release)
			c.tellRelease(types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
			return
		}
	}
}

func (c *Cluster) definitionChanged(before, after any) {
	old, _ := before.(*definitionObject)
	now, _ := after.(*definitionObject)
	if old != nil && now != nil && old.same(now) {
		return
	}
	kinds := map[string]bool{}
	for _, o := range []*definitionObject{old, now} {
		if o != nil {
			kinds[o.definition.Kind] = true
		}
	}
	for kind := range maps.Keys(kinds) {
		for _, n := range c.notify {
			if n.Kind != nil {
				n.Kind(kind)
			}
		}
		for _, r := range c.ReleasesOfKind(kind) {
			c.follow(r)
			c.tellRelease(types.NamespacedName{Namespace: r.Namespace, Name: r.Name})
		}
	}
}

// follow watches the account Secrets of an application that may have accounts.
func (c *Cluster) follow(r *Release) {
	if c.mayHaveAccounts(r) {
		c.namespace(r.Namespace)
	}
}

// mayHaveAccounts reports whether the application's kind has a block.
func (c *Cluster) mayHaveAccounts(r *Release) bool {
	d, ok := c.Definition(r.Kind)
	return ok && d.HasBlock
}

func (c *Cluster) tellRelease(key types.NamespacedName) {
	for _, n := range c.notify {
		if n.Release != nil {
			n.Release(key)
		}
	}
}

// A reporter logs why a watch fails, once per reason and at most every ten minutes, in words that quote no object.
type reporter struct {
	log  *slog.Logger
	mu   sync.Mutex
	last string
	at   time.Time
}

const reportAgain = 10 * time.Minute

func (r *reporter) report(err error) {
	reason, fails := reasonOf(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !fails || reason == r.last && time.Since(r.at) < reportAgain {
		return
	}
	r.last, r.at = reason, time.Now()
	r.log.Warn("cannot watch; trying again", "reason", reason)
}
