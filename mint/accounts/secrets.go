package accounts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mintlog/mintlog/mint/account"
	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/store/ledger"
)

// held tells which accounts have a password in the Secrets where charts keep them: <release>-credentials has one under
// each username, <release>-auth one for all. It asks for what there is now: kube-apiserver's own cache would answer for a
// little less, but may be behind by any time, and what it did not have yet would lock somebody out.
func (a *Accounts) held(ctx context.Context, release *cluster.Release) (func(name string) bool, error) {
	var credentials, auth map[string]bool
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		credentials, err = a.keysOf(ctx, release.Namespace, release.Name+"-credentials")
		return err
	})
	group.Go(func() (err error) {
		auth, err = a.keysOf(ctx, release.Namespace, release.Name+"-auth")
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	shared := false
	for name := range auth {
		shared = shared || strings.Contains(strings.ToLower(name), "password")
	}
	return func(name string) bool { return credentials[name] || auth[name] || shared }, nil
}

// keysOf are the keys of a Secret, none if it does not exist.
func (a *Accounts) keysOf(ctx context.Context, namespace, name string) (map[string]bool, error) {
	secret, err := a.Client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for passwords in the Secret %s: %w", name, quiet(err))
	}
	keys := map[string]bool{}
	for key := range secret.Data {
		keys[key] = true
	}
	return keys, nil
}

// seed creates the account Secret of a new account, with the stored form of a password that nobody sees. It returns the
// Secret that is there now, and whether that is not an account Secret.
func (a *Accounts) seed(ctx context.Context, s situation, acc definition.Account) (is *corev1.Secret, foreign bool, err error) {
	secret, err := a.newSecret(ctx, s, acc)
	if err != nil {
		return nil, false, fmt.Errorf("make the account Secret %s: %w", acc.SecretName, err)
	}
	client := a.Client.CoreV1().Secrets(secret.Namespace)
	is, err = client.Create(ctx, secret, metav1.CreateOptions{})
	if err == nil {
		a.metrics.wrote("secret", "create")
		return is, false, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return nil, false, fmt.Errorf("create the account Secret %s: %w", acc.SecretName, quiet(err))
	}
	is, err = client.Get(ctx, secret.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, false, fmt.Errorf("the account Secret %s has just gone: %w", acc.SecretName, errNotYet)
	}
	if err != nil {
		return nil, false, fmt.Errorf("read the account Secret %s: %w", acc.SecretName, quiet(err))
	}
	// One that is labelled is a mint's, or an earlier application's; the cache will tell.
	return is, is.Labels[cluster.AccountLabel] != "true", nil
}

func (a *Accounts) newSecret(ctx context.Context, s situation, acc definition.Account) (*corev1.Secret, error) {
	stored, err := s.block.Unissued(ctx, s.release.Kind, a.Webhooks, a.Random, acc)
	if err != nil {
		return nil, reportedError{err}
	}
	book := ledger.Ledger{}
	if book.Account, err = ledger.NewID(a.Random); err != nil {
		return nil, err
	}
	id, err := ledger.NewID(a.Random)
	if err != nil {
		return nil, err
	}
	book = book.Append(ledger.Entry{ID: id, Operation: ledger.Create, At: a.Now(), Stored: book.StoredDigest("", stored)})
	secret := account.NewSecret(s.release, acc, s.block)
	secret.Annotations = map[string]string{
		ledger.Annotation:       book.Encode(),
		ledger.OriginAnnotation: ledger.Create.Origin(),
	}
	secret.Data[corev1.BasicAuthPasswordKey] = stored
	return secret, nil
}

// repair puts labels and owner back, and touches nothing else.
func (a *Accounts) repair(ctx context.Context, s situation, secret *corev1.Secret) error {
	metadata := map[string]any{"uid": secret.UID, "resourceVersion": secret.ResourceVersion}
	if labels := driftedLabels(secret, s.release, s.block); len(labels) > 0 {
		metadata["labels"] = labels
	}
	if !account.Owned(secret, s.release) {
		metadata["ownerReferences"] = append(secret.DeepCopy().OwnerReferences, account.Owner(s.release))
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	_, err = a.Client.CoreV1().Secrets(secret.Namespace).Patch(ctx, secret.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return fmt.Errorf("the account Secret %s has just changed: %w", secret.Name, errNotYet)
	}
	if err != nil {
		return fmt.Errorf("put the labels of the account Secret %s back: %w", secret.Name, quiet(err))
	}
	a.metrics.wrote("secret", "repair")
	return nil
}

// remove deletes the Secrets of accounts that are no longer declared, by what the API server says now: a cache that is
// behind would take an account that was just added and minted for one that is gone.
func (a *Accounts) remove(ctx context.Context, s situation, secrets []*corev1.Secret) error {
	if len(secrets) == 0 {
		return nil
	}
	release, d, err := a.Cluster.Live(ctx, s.release)
	if err != nil {
		return fmt.Errorf("confirm that accounts are gone: %w", err)
	}
	if release.UID != s.release.UID || release.Deleting || !d.HasBlock || d.Err != nil {
		return nil
	}
	if kind := s.release.Kind; release.Kind != kind || d.Kind != kind {
		return nil // another kind's block says nothing of these accounts
	}
	s.release, s.block = release, d.Block
	var failures []error
	for _, secret := range decide(ctx, s, a.Webhooks).remove {
		if slices.ContainsFunc(release.ValuesFrom, sameSecret(cluster.ValuesEntry{Secret: secret.Name})) {
			// Without it the release could not be upgraded.
			failures = append(failures, fmt.Errorf("the HelmRelease still takes values from the Secret %s: %w", secret.Name, errNotYet))
			continue
		}
		err := a.Client.CoreV1().Secrets(secret.Namespace).Delete(ctx, secret.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion},
		})
		switch {
		case err == nil:
			a.metrics.wrote("secret", "delete")
			a.Log.Info("an account is no longer declared; its Secret is deleted", "namespace", secret.Namespace, "secret", secret.Name)
		case apierrors.IsConflict(err): // it may have been declared and minted again since
			failures = append(failures, fmt.Errorf("the account Secret %s has just changed: %w", secret.Name, errNotYet))
		case !apierrors.IsNotFound(err):
			failures = append(failures, fmt.Errorf("delete the account Secret %s: %w", secret.Name, quiet(err)))
		}
	}
	return errors.Join(failures...)
}

// quiet is an error of a request about a Secret without the words of the API server, which may quote what is stored.
func quiet(err error) error {
	if reason := apierrors.ReasonForError(err); reason != metav1.StatusReasonUnknown {
		return fmt.Errorf("the API server answered %s", reason)
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return errors.New("the API server did not answer in time")
	}
	return errors.New("the API server could not be reached, or refused without a reason")
}
