package projector

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

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/ledger"
	"github.com/mintlog/mintlog/store/stream"
)

const (
	defaultWorkers = 8
	// defaultSettleIntents is when an entry of a request can no longer come of which only the reception is known.
	defaultSettleIntents = requestLimit + commitLimit + clockSkew + time.Second

	// commitDelay is what a commit waits for its request, which is logged right after it.
	commitDelay = time.Second
	// lookInterval is how often an account is looked at of which a request may yet be committed.
	lookInterval = 2 * time.Second
	// The grants come by the account. A success, which no client can fake, waits for one as long as the accounts role
	// may be down. Of anything else a client can make any number, under names that are no account's: it waits once.
	successGrace, otherGrace = 24 * time.Hour, time.Minute
	// shortGrace is how long a success waits at any rate. Beyond it no more than maxUngranted do, so that others' events
	// find room among those that the stream hands out.
	shortGrace   = 10 * time.Minute
	maxUngranted = 10_000
	// Waiting for a grant, a success is looked at about each tenth of its age.
	firstLook, lastLook = 2 * time.Second, 10 * time.Minute

	// fullInterval is how often a full evidence bucket is logged.
	fullInterval = time.Minute

	firstBackoff, lastBackoff = 50 * time.Millisecond, 30 * time.Second
	maxAttempts               = 5  // without a pause, when the Secret changed in between
	maxRefusals               = 12 // over some two minutes; the evidence is kept, and the next event tries again
	keepInterval              = 20 * time.Second
	drainTime                 = 10 * time.Second
	callTimeout               = 15 * time.Second
)

// Options of New.
type Options struct {
	Stream *stream.Stream
	// Client reads and patches Secrets by name. Its own rate limit should be off: the workers bound it.
	Client corev1client.SecretsGetter
	// Own are the usernames of the mint server, the accounts role and the projector.
	Own     []string
	Workers int // accounts worked on at a time; 0: 8
	// SettleIntents is how long after its reception a request of which nothing else is known is believed to be all
	// that there is; 0: 76 s. If it is shorter than kube-apiserver's deadline for requests and the 16 s in which they
	// may yet be committed, those that are committed late are not attributed.
	SettleIntents time.Duration
	Clock         clock.PassiveClock    // nil: the real one
	Log           *slog.Logger          // nil: slog.Default()
	Registerer    prometheus.Registerer // nil: metrics are not registered
}

// A Loop turns events into histories on account Secrets. Several may share the stream's consumers.
type Loop struct {
	stream        *stream.Stream
	secrets       corev1client.SecretsGetter
	own           []string
	settleIntents time.Duration
	clock         clock.PassiveClock
	log           *slog.Logger
	metrics       *metrics

	mutex      sync.Mutex           // guards the next two
	ungranted  map[uint64]time.Time // when messages come back that wait for a grant for longer than shortGrace, by sequence
	fullLogged time.Time            // when it was last logged that the evidence bucket is full

	events  *lane
	intents *lane // its own, so that no number of requests that came to nothing delays those that did
}

// New makes a Loop that Run starts.
func New(o Options) (*Loop, error) {
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("register the projector's metrics: %w", err)
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Loop{
		stream:        o.Stream,
		secrets:       o.Client,
		own:           slices.Clone(o.Own),
		settleIntents: cmp.Or(o.SettleIntents, defaultSettleIntents),
		clock:         o.Clock,
		log:           o.Log,
		metrics:       m,
		ungranted:     make(map[uint64]time.Time),
		events:        newLane(stream.ProjectorEvents, cmp.Or(o.Workers, defaultWorkers)),
		intents:       newLane(stream.ProjectorIntents, 1),
	}, nil
}

// Run works until ctx is done. It then finishes what it has begun, within 10 s, gives back what it has not, and returns
// nil; or the error for which the stream cannot be consumed any more.
func (l *Loop) Run(ctx context.Context) error {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	consuming, receiving := errgroup.WithContext(ctx)
	defer context.AfterFunc(receiving, func() { time.AfterFunc(drainTime, cancel) })()
	var working sync.WaitGroup
	for _, lane := range []*lane{l.events, l.intents} {
		consuming.Go(func() error {
			defer lane.queue.ShutDown()
			return l.stream.Consume(receiving, lane.consumer, func(m *stream.Message) { l.receive(lane, m) })
		})
		for range lane.workers {
			working.Go(func() { l.work(work, lane) })
		}
		working.Go(func() { lane.keep(receiving) })
	}
	err := consuming.Wait()
	working.Wait()
	l.events.giveBack()
	l.intents.giveBack()
	if err != nil {
		return fmt.Errorf("consume events: %w", err)
	}
	return nil
}

// receive puts a message in its account's hand, or deals with it at once. Then it counts.
func (l *Loop) receive(lane *lane, m *stream.Message) {
	defer l.metrics.events.WithLabelValues(string(lane.consumer)).Inc()
	reduced, ok := readable(m.Event)
	if !ok {
		l.ack(m)
		return
	}
	m.Event = reduced
	t := targetOf(reduced)
	if !t.possible() || reduced.IsWrite() && !l.matters(reduced) {
		l.ack(m)
		return
	}
	switch {
	case reduced.Stage == event.RequestReceived:
		if early := l.settleIntents - l.clock.Since(reduced.RequestReceivedTimestamp); early > 0 {
			l.putOff(m, early)
			return
		}
		lane.add(t, m, 0)
	case isOwn(reduced, l.own):
		lane.add(t, m, commitDelay)
	default:
		lane.add(t, m, 0)
	}
}

// matters reports whether a write of the Secret can change a history: not a deletion, nor our own patches, this loop's
// among them.
func (l *Loop) matters(write event.Event) bool {
	if isOwn(write, l.own) {
		return isCommit(write)
	}
	return write.Verb != "delete"
}

func (l *Loop) ack(m *stream.Message) {
	if isSuccess(m.Event) {
		l.mutex.Lock()
		delete(l.ungranted, m.Sequence)
		l.mutex.Unlock()
	}
	if err := m.Ack(); err != nil {
		l.log.Warn("acknowledging an event; it comes again", "error", err)
	}
}

func (l *Loop) work(ctx context.Context, lane *lane) {
	for {
		t, shutdown := lane.queue.Get()
		if shutdown {
			return
		}
		l.handle(ctx, lane, t)
		lane.queue.Done(t)
	}
}

// A wait says of messages that cannot be dealt with yet how they wait for what may come.
type wait struct {
	inHand []*stream.Message                 // looked at again and again; for accounts that may be read
	putOff map[*stream.Message]time.Duration // given back to the stream, which costs nothing
}

// handle projects the account, then acknowledges the messages that are dealt with and puts off the others.
func (l *Loop) handle(ctx context.Context, lane *lane, t target) {
	messages := lane.inHand(t)
	if len(messages) == 0 {
		lane.queue.Forget(t)
		return
	}
	later, err := l.project(ctx, t, messages)
	attempt := lane.queue.NumRequeues(t) + 1
	givenUp := errors.Is(err, errRefused) && attempt > maxRefusals
	if err != nil {
		l.metrics.failures.WithLabelValues(reason(err)).Inc()
		l.log.Log(ctx, severity(err, attempt), "projecting an account", "namespace", t.namespace, "credential", t.credential,
			"events", len(messages), "attempt", attempt, "given up until the next event", givenUp, "error", err)
		if !givenUp {
			lane.queue.AddRateLimited(t)
			return
		}
	}
	lane.queue.Forget(t)
	for _, m := range lane.settle(t, len(messages), later.inHand) {
		if delay, ok := later.putOff[m]; ok {
			l.putOff(m, delay)
		} else {
			l.ack(m)
		}
	}
	if len(later.inHand) > 0 {
		lane.queue.AddAfter(t, lookInterval)
	}
}

// severity is low for what traffic on the account explains: that its Secret has changed in between.
func severity(err error, attempt int) slog.Level {
	if errors.Is(err, errChanged) && attempt <= maxAttempts {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// putOff gives a message back to the stream until the delay is over.
func (l *Loop) putOff(m *stream.Message, delay time.Duration) {
	if err := m.NakWithDelay(delay); err != nil {
		l.log.Warn("putting an event off; it comes again by itself", "error", err)
	}
}

// project brings the account's history up to what is known with the messages. It returns those that have to wait for
// what may yet come.
func (l *Loop) project(ctx context.Context, t target, messages []*stream.Message) (wait, error) {
	var err error
	for range maxAttempts {
		var secret *corev1.Secret
		secret, err = l.read(ctx, t)
		switch {
		case apierrors.IsNotFound(err):
			return l.absent(messages), nil
		case apierrors.IsForbidden(err):
			return l.forbidden(ctx, t, messages), nil
		case err != nil:
			return wait{}, safe(errRead, err)
		case secret.Type != corev1.SecretTypeBasicAuth || secret.Labels[event.AccountLabel] != "true":
			return wait{}, nil
		}
		book, broken := ledger.Parse(secret.Annotations[ledger.Annotation])
		if broken != nil { // whoever reads the account sees it, and there is nothing to fold
			return l.absent(messages), nil
		}
		if err = l.fold(ctx, t.of(secret, book), secret, messages); err == nil {
			return wait{inHand: l.unsettled(messages, book)}, nil
		}
		if !errors.Is(err, errChanged) && !errors.Is(err, errRefused) {
			return wait{}, err
		}
		l.metrics.conflicts.Inc()
	}
	return wait{}, err
}

func (l *Loop) read(ctx context.Context, t target) (*corev1.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return l.secrets.Secrets(t.namespace).Get(ctx, t.secret(), metav1.GetOptions{})
}

// unsettled are the requests whose entry is not in the ledger and may still come: a client that leaves does not stop a
// commit.
func (l *Loop) unsettled(messages []*stream.Message, book ledger.Ledger) []*stream.Message {
	return slices.DeleteFunc(slices.Clone(messages), func(m *stream.Message) bool {
		_, isRequest := m.Event.Operation()
		return !isRequest || m.Event.Outcome() != event.Indeterminate || book.HasAuditID(m.Event.AuditID) ||
			!l.clock.Now().Before(settled(m.Event))
	})
}

// absent puts off, once, the requests that may yet make the account that is not there.
func (l *Loop) absent(messages []*stream.Message) wait {
	putOff := make(map[*stream.Message]time.Duration)
	for _, m := range l.unsettled(messages, ledger.Ledger{}) {
		putOff[m] = min(settled(m.Event).Sub(l.clock.Now()), otherGrace)
	}
	return wait{putOff: putOff}
}

// forbidden puts off what may wait for the right to read the account: it is granted when the account is made, and taken
// away with it.
func (l *Loop) forbidden(ctx context.Context, t target, messages []*stream.Message) wait {
	putOff := make(map[*stream.Message]time.Duration)
	for _, m := range messages {
		if delay, ok := l.grantDelay(m); ok {
			putOff[m] = delay
			continue
		}
		l.metrics.failures.WithLabelValues("not_granted").Inc()
		level := slog.LevelDebug
		if isSuccess(m.Event) {
			level = slog.LevelWarn
		}
		l.log.Log(ctx, level, "an event of an account that this part may not read is let go",
			"namespace", t.namespace, "credential", t.credential, "received", m.Event.RequestReceivedTimestamp)
	}
	return wait{putOff: putOff}
}

// grantDelay is when to look again whether the account of a message may be read, if at all.
func (l *Loop) grantDelay(m *stream.Message) (delay time.Duration, ok bool) {
	age := l.clock.Since(m.Event.StageTimestamp)
	if !isSuccess(m.Event) {
		return min(otherGrace-age, otherGrace), age < otherGrace
	}
	delay = min(max(age/10, firstLook), lastLook)
	if age < shortGrace {
		return delay, true
	}
	return delay, age < successGrace && l.mayWait(m.Sequence, delay)
}

// isSuccess reports whether the event is a request that was seen to succeed.
func isSuccess(e event.Event) bool {
	_, isRequest := e.Operation()
	return isRequest && e.Outcome() == event.Succeeded
}

// mayWait says whether one more message may wait for a grant for longer than shortGrace.
func (l *Loop) mayWait(sequence uint64, delay time.Duration) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	now := l.clock.Now()
	if len(l.ungranted) >= maxUngranted { // some may have come back to another loop
		maps.DeleteFunc(l.ungranted, func(_ uint64, back time.Time) bool { return now.Sub(back) > lastLook })
	}
	if _, waits := l.ungranted[sequence]; !waits && len(l.ungranted) >= maxUngranted {
		return false
	}
	l.ungranted[sequence] = now.Add(delay)
	return true
}
