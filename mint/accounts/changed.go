package accounts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"

	"github.com/mintlog/mintlog/mint/account"
	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/store/ledger"
)

const (
	reasonPasswordChanged = "PasswordChanged"
	eventSource           = "mintlog-accounts"

	// tellWithin is how old an operation may be of which an Event tells. It is less than the hour for which kube-apiserver
	// keeps Events by default: as long as an operation is young enough, the Event that told of it is still there.
	tellWithin = 10 * time.Minute
)

// changes tells of each Mint and Revoke by one Event on the HelmRelease, which says what happened to which account and
// not who asked. The Event is named after the operation: neither a restart nor a second replica makes another.
type changes struct {
	cluster *cluster.Cluster
	client  kubernetes.Interface
	now     func() time.Time
	log     *slog.Logger
	queue   workqueue.TypedRateLimitingInterface[types.NamespacedName] // of account Secrets

	told map[string]time.Time // when the operation was done, by its id; for as long as it is young
}

func newChanges(o Options) *changes {
	return &changes{
		cluster: o.Cluster, client: o.Client, now: o.Now, log: o.Log, told: map[string]time.Time{},
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](firstRetry, time.Minute)),
	}
}

// run tells of changes until the queue is shut down.
func (c *changes) run(ctx context.Context) {
	for {
		key, quit := c.queue.Get()
		if quit {
			return
		}
		switch err := c.tell(ctx, key); {
		case err == nil:
			c.queue.Forget(key)
		case ctx.Err() == nil:
			if expected(err) == "" {
				c.log.Warn("a changed password is not told of yet; trying again", "namespace", key.Namespace, "secret", key.Name, "error", err)
			}
			c.queue.AddRateLimited(key)
		}
		c.queue.Done(key)
	}
}

// tell creates the Events that are missing for an account Secret.
func (c *changes) tell(ctx context.Context, key types.NamespacedName) error {
	secret, err := c.cluster.AccountSecret(ctx, key.Namespace, key.Name)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil // it has gone, or its namespace is not ours any more
	}
	if err != nil {
		return fmt.Errorf("read the account Secret: %w", quiet(err))
	}
	book, err := ledger.Parse(secret.Annotations[ledger.Annotation])
	if err != nil {
		return nil // a finding tells of it
	}
	var failures []error
	for _, entry := range book.Entries {
		if c.due(entry) {
			failures = append(failures, c.create(ctx, secret, entry))
		}
	}
	return errors.Join(failures...)
}

func (c *changes) due(entry ledger.Entry) bool {
	if entry.Operation.ByPlatform() || c.now().Sub(entry.At) > tellWithin {
		return false
	}
	return c.told[entry.ID].IsZero()
}

func (c *changes) create(ctx context.Context, secret *corev1.Secret, entry ledger.Entry) error {
	name, segment, _ := definition.SplitSecretName(secret.Name)
	release, ok := c.cluster.Release(secret.Namespace, name)
	if !ok || !account.Owned(secret, release) {
		return fmt.Errorf("the HelmRelease is not known: %w", errNotYet)
	}
	owner := account.Owner(release)
	at := metav1.NewTime(entry.At)
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: release.Namespace, Name: release.Name + "." + entry.ID},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: release.Namespace, Name: release.Name, UID: release.UID,
		},
		Type: corev1.EventTypeNormal, Reason: reasonPasswordChanged, Message: changeMessage(name+"."+segment, entry.Operation),
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
		Source: corev1.EventSource{Component: eventSource}, ReportingController: eventSource,
	}
	_, err := c.client.CoreV1().Events(release.Namespace).Create(ctx, event, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("tell of a changed password by an Event: %w", err)
	}
	c.remember(entry)
	return nil
}

// remember forgets what is too old to be told of again.
func (c *changes) remember(entry ledger.Entry) {
	for id, at := range c.told {
		if c.now().Sub(at) > tellWithin {
			delete(c.told, id)
		}
	}
	c.told[entry.ID] = entry.At
}

func changeMessage(credential string, operation ledger.Operation) string {
	const history = "the credential's history says when and by whom"
	if operation == ledger.Revoke {
		return fmt.Sprintf("password of %s changed: revoked, nobody has the new one; %s", credential, history)
	}
	return fmt.Sprintf("password of %s changed: clients that hold the old one fail once the engine has applied it; %s", credential, history)
}
