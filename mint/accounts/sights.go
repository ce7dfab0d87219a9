package accounts

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/retry"
)

// sightsName is the ConfigMap that remembers when the block of a kind was first seen: kind, and time as RFC 3339.
const sightsName = "mintlog-kinds"

// sights is that record, and a copy in memory of what was read of it.
type sights struct {
	client  typedcorev1.ConfigMapInterface
	metrics *metrics

	mu    sync.Mutex
	known map[string]time.Time
}

// load reads the record and returns the kinds in it.
func (s *sights) load(ctx context.Context) ([]string, error) {
	stored, err := s.client.Get(ctx, sightsName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the ConfigMap %s: %w", sightsName, err)
	}
	var kinds []string
	for kind, text := range stored.Data {
		kinds = append(kinds, kind)
		if at, err := time.Parse(time.RFC3339, text); err == nil {
			s.remember(kind, at)
		}
	}
	return kinds, nil
}

func (s *sights) remember(kind string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[kind] = at
}

// of is when a kind's block was first seen, if that is recorded.
func (s *sights) of(kind string) (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.known[kind]
	return at, ok
}

// record notes that a kind's block is there, and returns whether this is the first that is known of it here. A time
// that cannot be read is written anew: that counts more applications as older, and seeds fewer.
func (s *sights) record(ctx context.Context, kind string) (bool, error) {
	if _, ok := s.of(kind); ok {
		return false, nil
	}
	var at time.Time
	err := s.update(ctx, func(data map[string]string) (bool, error) {
		var err error
		if at, err = time.Parse(time.RFC3339, data[kind]); err == nil {
			return false, nil
		}
		if at, err = s.serverTime(ctx); err != nil {
			return false, err
		}
		data[kind] = at.Format(time.RFC3339)
		return true, nil
	})
	if err != nil {
		return false, fmt.Errorf("record the first sight of the kind %s: %w", kind, err)
	}
	s.remember(kind, at)
	return true, nil
}

// forget notes that a kind's block is gone.
func (s *sights) forget(ctx context.Context, kind string) error {
	s.mu.Lock()
	delete(s.known, kind)
	s.mu.Unlock()
	err := s.update(ctx, func(data map[string]string) (bool, error) {
		_, recorded := data[kind]
		delete(data, kind)
		return recorded, nil
	})
	if err != nil {
		return fmt.Errorf("forget the kind %s: %w", kind, err)
	}
	return nil
}

// update changes the record under its resourceVersion, if change returns that it did.
func (s *sights) update(ctx context.Context, change func(data map[string]string) (bool, error)) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		stored, err := s.client.Get(ctx, sightsName, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		if err != nil && !missing {
			return err
		}
		if missing {
			stored = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: sightsName}}
		}
		next := stored.DeepCopy()
		if next.Data == nil {
			next.Data = map[string]string{}
		}
		changed, err := change(next.Data)
		if err != nil || !changed || maps.Equal(stored.Data, next.Data) {
			return err
		}
		if missing {
			_, err = s.client.Create(ctx, next, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				err = apierrors.NewConflict(corev1.Resource("configmaps"), sightsName, err)
			}
		} else {
			_, err = s.client.Update(ctx, next, metav1.UpdateOptions{})
		}
		if err == nil {
			s.metrics.wrote("configmap", "write")
		}
		return err
	})
}

// serverTime is the API server's clock in whole seconds, by which creation timestamps go: another machine's clock that
// is behind would make applications look younger than they are.
func (s *sights) serverTime(ctx context.Context) (time.Time, error) {
	probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: sightsName + "-clock-"}}
	answer, err := s.client.Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return time.Time{}, fmt.Errorf("ask the API server for its time: %w", err)
	}
	if answer.CreationTimestamp.IsZero() {
		return time.Time{}, fmt.Errorf("ask the API server for its time: it did not say")
	}
	return answer.CreationTimestamp.UTC(), nil
}
