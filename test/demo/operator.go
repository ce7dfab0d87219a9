package main

import (
	"context"
	"errors"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/mintlog/mintlog/test/sandbox"
)

// An operator stands in for the database's: it watches the account Secrets that ask for a reload and applies the stored
// form as it is, which is all that CloudNativePG does with them.
type operator struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
}

func operate(ctx context.Context, s *sandbox.Sandbox, apply func(ctx context.Context, role, stored string) error) *operator {
	ctx, cancel := context.WithCancel(ctx)
	o := &operator{cancel: cancel}
	secrets := s.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().Secrets(sandbox.TenantAcme)
	o.done.Go(func() {
		for ctx.Err() == nil {
			watched, err := secrets.Watch(ctx, metav1.ListOptions{LabelSelector: "cnpg.io/reload=true"})
			if err != nil {
				continue
			}
			for event := range watched.ResultChan() {
				secret, ok := event.Object.(*corev1.Secret)
				if ok && event.Type != watch.Deleted {
					_ = apply(ctx, string(secret.Data["username"]), string(secret.Data["password"])) // the login shows it
				}
			}
		}
	})
	return o
}

func (o *operator) stop() {
	o.cancel()
	o.done.Wait()
}

// apply gives the stored form to PostgreSQL, or keeps it for the SCRAM exchange.
func (s *story) apply(ctx context.Context, role, stored string) error {
	if s.postgres == nil {
		applied.Store(role, stored)
		return nil
	}
	return s.postgres.SetPassword(ctx, role, stored)
}

var errRefused = errors.New("the SCRAM exchange failed")
