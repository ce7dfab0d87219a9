package main

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mintlog/mintlog/store/history"
	"github.com/mintlog/mintlog/test/sandbox"
)

// written tells when an operation stands in the history of its account Secret, so that the view is read when it can
// have changed, and not all the time: the readers would be what is measured.
type written struct {
	mutex sync.Mutex
	ids   map[string]chan struct{} // closed when the operation stands there
}

func (b *bencher) watchHistories(ctx context.Context) (*written, error) {
	w := &written{ids: map[string]chan struct{}{}}
	watched, err := b.admin.CoreV1().Secrets(sandbox.TenantAcme).Watch(ctx, metav1.ListOptions{LabelSelector: accountSecrets})
	if err != nil {
		return nil, fmt.Errorf("watch account Secrets: %w", err)
	}
	go func() {
		for event := range watched.ResultChan() {
			secret, ok := event.Object.(*corev1.Secret)
			if !ok {
				continue
			}
			if h, err := history.Parse(secret.Annotations[history.Annotation]); err == nil {
				for _, entry := range h.Entries {
					w.note(entry.ID)
				}
			}
		}
	}()
	return w, nil
}

func (w *written) note(id string) {
	c := w.of(id)
	w.mutex.Lock()
	defer w.mutex.Unlock()
	select {
	case <-c:
	default:
		close(c)
	}
}

// of is closed when the operation stands in a history.
func (w *written) of(id string) chan struct{} {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if _, ok := w.ids[id]; !ok {
		w.ids[id] = make(chan struct{})
	}
	return w.ids[id]
}
