package accounts

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
)

// RemoveUndeclared removes what an application as the cache has it does not declare.
func (a *Accounts) RemoveUndeclared(ctx context.Context, release *cluster.Release, block definition.Block, secrets ...*corev1.Secret) error {
	s := situation{release: release, block: block, sight: time.Unix(0, 0), secrets: secrets}
	return a.remove(ctx, s, decide(ctx, s, a.Webhooks).remove)
}

// Look looks at an application once.
func (a *Accounts) Look(ctx context.Context, name types.NamespacedName) (time.Duration, error) {
	return a.reconcileApplication(ctx, name)
}

// LoadSights reads when the kinds' blocks were first seen.
func (a *Accounts) LoadSights(ctx context.Context) error {
	_, err := a.sights.load(ctx)
	return err
}

// Review reviews the grants of a namespace once. It returns which applications were put in the queue to be looked at.
func (a *Accounts) Review(ctx context.Context, namespace string) (next time.Duration, again []types.NamespacedName, err error) {
	for a.lanes.quick.queue.Len() > 0 { // what was there before
		k, _ := a.lanes.quick.queue.Get()
		a.lanes.quick.queue.Done(k)
	}
	next, err = a.review(ctx, namespace)
	for a.lanes.quick.queue.Len() > 0 {
		k, _ := a.lanes.quick.queue.Get()
		a.lanes.quick.queue.Done(k)
		again = append(again, k.application)
	}
	return next, again, err
}
