package projector

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/mintlog/mintlog/store/stream"
)

// A lane gathers the messages of one consumer by account, so that a burst on one account is folded once and no two
// workers of it fold the same.
type lane struct {
	consumer stream.Consumer
	workers  int
	queue    workqueue.TypedRateLimitingInterface[target]

	mutex    sync.Mutex
	messages map[target][]*stream.Message // not yet acknowledged, in the order they came
}

func newLane(consumer stream.Consumer, workers int) *lane {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[target](firstBackoff, lastBackoff)
	return &lane{
		consumer: consumer,
		workers:  workers,
		queue:    workqueue.NewTypedRateLimitingQueue(limiter),
		messages: make(map[target][]*stream.Message),
	}
}

// add takes a message in hand. Its account's turn comes after the delay, or before if something else wants it.
func (l *lane) add(t target, m *stream.Message, delay time.Duration) {
	l.mutex.Lock()
	l.messages[t] = append(l.messages[t], m)
	l.mutex.Unlock()
	l.queue.AddAfter(t, delay)
}

func (l *lane) inHand(t target) []*stream.Message {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.messages[t][:len(l.messages[t]):len(l.messages[t])]
}

// settle lets go of the first count messages of the account but those waiting, and returns what it let go.
func (l *lane) settle(t target, count int, waiting []*stream.Message) []*stream.Message {
	waits := make(map[*stream.Message]bool, len(waiting))
	for _, m := range waiting {
		waits[m] = true
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	var done, rest []*stream.Message
	for i, m := range l.messages[t] {
		if i < count && !waits[m] {
			done = append(done, m)
		} else {
			rest = append(rest, m)
		}
	}
	if len(rest) == 0 {
		delete(l.messages, t)
	} else {
		l.messages[t] = rest
	}
	return done
}

// keep tells the stream, until ctx is done, that the messages in hand are not forgotten.
func (l *lane) keep(ctx context.Context) {
	ticker := time.NewTicker(keepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, m := range l.all() {
			_ = m.InProgress() // without it the message comes a second time, which does no harm
		}
	}
}

// giveBack asks for what is still in hand to come again, to whoever consumes then.
func (l *lane) giveBack() {
	for _, m := range l.all() {
		_ = m.NakWithDelay(0) // without it the message comes again by itself, later
	}
}

func (l *lane) all() []*stream.Message {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	var all []*stream.Message
	for _, messages := range l.messages {
		all = append(all, messages...)
	}
	return all
}
