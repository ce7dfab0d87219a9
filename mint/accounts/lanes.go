package accounts

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
)

// A key is what is in a queue: an application, a kind, or a namespace whose grants are swept or reviewed.
type key struct {
	application     types.NamespacedName
	kind            string
	swept, reviewed string
}

// A lane is a queue with workers of its own.
type lane struct {
	queue   workqueue.TypedRateLimitingInterface[key]
	retries workqueue.TypedRateLimiter[key]
}

func newLane() *lane {
	retries := workqueue.NewTypedItemExponentialFailureRateLimiter[key](firstRetry, lastRetry)
	return &lane{queue: workqueue.NewTypedRateLimitingQueue(retries), retries: retries}
}

// lanes are one for everything, and one for each kind that asks webhooks: one that hangs delays its own kind alone. There
// are no more of them than platform administrators have written definitions.
type lanes struct {
	quick   *lane // everything comes in here
	workers sync.WaitGroup

	mu     sync.Mutex
	slow   map[string]*lane // by kind
	work   func(*lane)      // starts a lane's workers; nil before start
	closed bool
}

// start has all lanes worked on, also those to come.
func (l *lanes) start(work func(*lane)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.work = work
	work(l.quick)
}

// ofKind is the lane of a kind that asks webhooks. It is for workers, who run between start and shutDown.
func (l *lanes) ofKind(kind string) *lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	is := l.slow[kind]
	if is == nil {
		is = newLane()
		l.slow[kind] = is
		if l.closed {
			is.queue.ShutDown()
		} else {
			l.work(is)
		}
	}
	return is
}

// shutDown lets the workers end when they have done what they are at.
func (l *lanes) shutDown() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.quick.queue.ShutDown()
	for _, slow := range l.slow {
		slow.queue.ShutDown()
	}
}
