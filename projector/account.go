package projector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/history"
	"github.com/mintlog/mintlog/store/ledger"
	"github.com/mintlog/mintlog/store/stream"
)

// fold keeps the evidence, then writes the history, if it is another than stands there. What stands there is never
// read for more than that.
func (l *Loop) fold(ctx context.Context, a Account, secret *corev1.Secret, messages []*stream.Message) error {
	var fresh []event.Event
	for _, m := range messages {
		superseded, err := l.superseded(ctx, a, m.Event)
		if err != nil {
			return err
		}
		if !superseded {
			fresh = append(fresh, m.Event)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	kept, err := l.keepEvidence(ctx, a, fresh)
	if err != nil {
		return err
	}
	l.metrics.folds.Inc()
	folded := Fold(a, append(kept, fresh...), l.own)
	annotation, dropped := fit(folded, secret.Annotations)
	if dropped > 0 {
		l.log.Warn("a history does not fit beside the Secret's other annotations and is cut short",
			"namespace", a.Namespace, "credential", a.Credential, "dropped", dropped)
	}
	if annotation == secret.Annotations[history.Annotation] {
		return nil
	}
	if err := l.write(ctx, secret, annotation); err != nil {
		return err
	}
	l.metrics.patches.Inc()
	now := l.clock.Now()
	for _, m := range messages {
		if _, isRequest := m.Event.Operation(); isRequest {
			l.metrics.lag.Observe(now.Sub(m.Event.StageTimestamp).Seconds())
		}
	}
	return nil
}

// superseded reports whether the event cannot change the history: a request without an entry that was not seen to
// succeed, or a RequestReceived whose final event is in the evidence.
func (l *Loop) superseded(ctx context.Context, a Account, e event.Event) (bool, error) {
	if e.IsWrite() || e.Outcome() == event.Succeeded {
		return false, nil
	}
	i := slices.IndexFunc(a.Ledger.Entries, func(entry ledger.Entry) bool { return entry.AuditID == e.AuditID })
	if i < 0 || e.Stage != event.RequestReceived {
		return i < 0, nil
	}
	kept, _, err := l.keptUnder(ctx, entryKey(a.Ledger, a.Ledger.Entries[i]))
	if err != nil {
		return false, err
	}
	b := a.bearing(a.Ledger.Entries[i], a.readable(kept))
	return len(b.matching) > 0 && b.matching[0].Outcome() > event.Received, nil
}

// keepEvidence keeps what the fold needs of the fresh events, and returns what is kept of the account in all.
func (l *Loop) keepEvidence(ctx context.Context, a Account, fresh []event.Event) ([]event.Event, error) {
	kept := make([][]event.Event, len(a.Ledger.Entries)+1)
	group, ctx := errgroup.WithContext(ctx)
	for i, entry := range a.Ledger.Entries {
		pick := func(events []event.Event) []event.Event { return a.bearing(entry, a.readable(events)).events() }
		if entry.Operation.ByPlatform() || i >= history.MaxEntries && len(pick(fresh)) == 0 {
			continue
		}
		group.Go(func() (err error) {
			kept[i], err = l.keepUnder(ctx, entryKey(a.Ledger, entry), fresh, pick)
			return err
		})
	}
	group.Go(func() (err error) {
		pick := func(events []event.Event) []event.Event { return a.surroundings(a.readable(events), l.own).events() }
		kept[len(kept)-1], err = l.keepUnder(ctx, surroundingsKey(a.Ledger), fresh, pick)
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return slices.Concat(kept...), nil
}

// keepUnder joins the fresh events with those kept under the key, and keeps of both what pick picks.
func (l *Loop) keepUnder(ctx context.Context, key string, fresh []event.Event, pick func([]event.Event) []event.Event) ([]event.Event, error) {
	for {
		known, revision, err := l.keptUnder(ctx, key)
		if err != nil {
			return nil, err
		}
		picked := pick(append(known, fresh...))
		if len(pick(fresh)) == 0 || slices.Equal(encode(picked), encode(known)) {
			return picked, nil
		}
		_, err = l.stream.Evidence().Put(ctx, key, encode(picked), revision)
		switch {
		case err == nil:
			return picked, nil
		case errors.Is(err, stream.ErrFull):
			l.notKept(err)
			return picked, nil
		case !errors.Is(err, stream.ErrConflict):
			return nil, fmt.Errorf("%w: %w", errEvidence, err)
		}
	}
}

// notKept reports that the bucket is full. The history is written all the same, for if nothing were acknowledged the
// stream would fill and nobody's operations be recorded any more; it is the next one that can miss what was not kept.
func (l *Loop) notKept(err error) {
	l.metrics.failures.WithLabelValues("evidence_full").Inc()
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if now := l.clock.Now(); l.fullLogged.IsZero() || now.Sub(l.fullLogged) >= fullInterval {
		l.fullLogged = now
		l.log.Error("the evidence bucket is full: histories are written, and later lose the operations of now; give it more room, then replay the archive", "error", err)
	}
}

// keptUnder returns the events under the key, and the revision, 0 if there is nothing.
func (l *Loop) keptUnder(ctx context.Context, key string) ([]event.Event, uint64, error) {
	value, revision, err := l.stream.Evidence().Get(ctx, key)
	if errors.Is(err, stream.ErrNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errEvidence, err)
	}
	events, err := decode(value)
	if err != nil {
		l.metrics.failures.WithLabelValues("broken_evidence").Inc()
		l.log.Error("evidence is not readable and will be replaced; rebuild the history from the archive", "key", key)
		return nil, revision, nil
	}
	return events, revision, nil
}

// write puts the history on the Secret, or takes it away if it is empty, provided that the Secret is still what was
// read.
func (l *Loop) write(ctx context.Context, secret *corev1.Secret, annotation string) error {
	var value any
	if annotation != "" {
		value = annotation
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":             secret.UID,
		"resourceVersion": secret.ResourceVersion,
		"annotations":     map[string]any{history.Annotation: value},
	}})
	if err != nil {
		return fmt.Errorf("encode a patch: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err = l.secrets.Secrets(secret.Namespace).Patch(ctx, secret.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return errChanged
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err):
		return errRefused // by another account under this name, mostly
	default:
		return safe(errWrite, err)
	}
}

// Failures by where they lie.
var (
	errRead     = errors.New("read the account Secret")
	errWrite    = errors.New("write the history")
	errChanged  = errors.New("the account Secret changes under the history")
	errRefused  = errors.New("the API server refuses the history")
	errEvidence = errors.New("keep evidence")
)

func reason(err error) string {
	switch {
	case errors.Is(err, errRead):
		return "read"
	case errors.Is(err, errRefused):
		return "refused"
	case errors.Is(err, errChanged):
		return "changed"
	case errors.Is(err, errEvidence):
		return "evidence"
	default:
		return "write"
	}
}

// safe wraps an error of the API client without what could quote a Secret: an answer's message, or a body that could
// not be read.
func safe(doing, err error) error {
	var status apierrors.APIStatus
	var transport *url.Error
	switch {
	case errors.As(err, &status):
		return fmt.Errorf("%w: the API server answered %d %s", doing, status.Status().Code, status.Status().Reason)
	case errors.As(err, &transport), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", doing, err)
	default:
		return fmt.Errorf("%w: the API server's answer is not readable (%T)", doing, err)
	}
}

// A target is the account that an event is about, by the names in the event.
type target struct{ namespace, credential string }

func targetOf(e event.Event) target {
	namespace, credential := e.Account()
	return target{namespace, credential}
}

func (t target) secret() string { return t.credential + event.AccountSecretSuffix }

// possible reports whether a Secret can have this name: the names in an event are the client's to choose.
func (t target) possible() bool {
	return len(validation.IsDNS1123Label(t.namespace)) == 0 && len(validation.IsDNS1123Subdomain(t.secret())) == 0
}

// of is what the fold takes of the Secret.
func (t target) of(secret *corev1.Secret, book ledger.Ledger) Account {
	newest := book.Newest()
	return Account{
		Namespace:     t.namespace,
		Credential:    strings.TrimSuffix(secret.Name, event.AccountSecretSuffix),
		UID:           string(secret.UID),
		Ledger:        book,
		StoredMatches: book.StoredDigest(newest.AuditID, secret.Data[corev1.BasicAuthPasswordKey]) == newest.Stored,
	}
}
