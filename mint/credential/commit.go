package credential

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"

	"github.com/mintlog/mintlog/mint/account"
	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/history"
	"github.com/mintlog/mintlog/store/ledger"
)

const (
	maxAttempts   = 5
	readBackPause = 100 * time.Millisecond
)

// commit writes the draft onto base, the account Secret as the cache has it, nil if there is none. A conflict means a
// live read: a change of annotations alone, or an operation older than this request that the cache had not seen, is
// written upon; an operation that came while this one ran has won, and this one is refused.
func (m *minter) commit(ctx context.Context, d draft, base *corev1.Secret) (result, error) {
	live := false
	for range maxAttempts {
		next, entry, err := m.next(d, base)
		if apierrors.IsConflict(err) && !live {
			// The cache may be behind what the caller has already seen.
			live = true
			if base, err = m.read(ctx, d); err != nil {
				return result{}, err
			}
			continue
		}
		if err != nil {
			return result{}, err
		}
		if ctx.Err() != nil {
			return result{}, tryAgain(d.credential, "the time for it was spent on the way; nothing was written")
		}
		err = m.write(ctx, d, next)
		if err == nil {
			return result{entry: entry, username: d.target.account.Username, password: d.password}, nil
		}
		again, landed, err := m.afterFailure(ctx, d, base, err)
		if landed {
			return result{entry: entry, username: d.target.account.Username, password: d.password}, nil
		}
		if err != nil {
			return result{}, err
		}
		base, live = again, true
	}
	return result{}, tryAgain(d.credential, "its Secret changed too often meanwhile; nothing was written")
}

// afterFailure decides what a failed write means: it returns the Secret to write upon next, or that the write had
// landed after all, or the error to answer.
func (m *minter) afterFailure(ctx context.Context, d draft, base *corev1.Secret, failure error) (next *corev1.Secret, landed bool, err error) {
	switch {
	case apierrors.IsConflict(failure), apierrors.IsAlreadyExists(failure), apierrors.IsNotFound(failure):
		live, err := m.read(ctx, d)
		if err != nil {
			return nil, false, err
		}
		if holds(live, d.id) { // the transport had repeated a write whose answer was lost
			return live, true, nil
		}
		return live, false, m.overtaken(d, base, live)
	case apierrors.HasStatusCause(failure, corev1.NamespaceTerminatingCause):
		return nil, false, conflict(d.credential, "its namespace is being deleted")
	case apierrors.IsForbidden(failure):
		return nil, false, apierrors.NewForbidden(v1alpha1.Resource(event.Resource), d.credential,
			fmt.Errorf("mintlog may not write account Secrets in %s: the namespace is not enrolled, a policy denies it, or its quota is used up", d.namespace))
	case apierrors.IsInvalid(failure), apierrors.IsBadRequest(failure), apierrors.IsRequestEntityTooLargeError(failure):
		return nil, false, refusedSecret(d.credential)
	case apierrors.IsTooManyRequests(failure), apierrors.IsUnauthorized(failure):
		return nil, false, tryAgain(d.credential, "kube-apiserver did not take the write; nothing was written")
	case d.dryRun:
		return nil, false, tryAgain(d.credential, "kube-apiserver did not answer")
	}
	return m.readBack(ctx, d, base)
}

// overtaken is the refusal of an operation that lost against another which came while it ran. The platform's seeding of
// the account is no such other: nobody saw that password.
func (m *minter) overtaken(d draft, base, live *corev1.Secret) error {
	if live == nil {
		return nil
	}
	book, err := ledger.Parse(live.Annotations[ledger.Annotation])
	if err != nil {
		return nil
	}
	newest := book.Newest()
	if !newest.Operation.ByPlatform() && newest.ID != newestID(base) && !newest.At.Before(d.received.Truncate(time.Microsecond)) {
		return conflict(d.credential, fmt.Sprintf("another %s came first (revision %d)", strings.ToLower(string(newest.Operation)), newest.Revision))
	}
	return nil
}

func newestID(secret *corev1.Secret) string {
	if secret == nil {
		return ""
	}
	book, err := ledger.Parse(secret.Annotations[ledger.Annotation])
	if err != nil {
		return ""
	}
	return book.Newest().ID
}

// readBack looks, until the budget is spent, whether a write without an answer has landed: its ledger entry tells. A
// Secret that has moved on without the entry can never take it any more.
func (m *minter) readBack(ctx context.Context, d draft, base *corev1.Secret) (next *corev1.Secret, landed bool, err error) {
	err = wait.PollUntilContextCancel(ctx, readBackPause, true, func(ctx context.Context) (bool, error) {
		live, err := m.read(ctx, d)
		if err != nil {
			return false, nil
		}
		next, landed = live, holds(live, d.id)
		return landed || resourceVersion(live) != resourceVersion(base), nil
	})
	if err != nil {
		return nil, false, tryAgain(d.credential, "kube-apiserver did not say in time whether it stored the password; its history will tell")
	}
	if landed {
		return next, true, nil
	}
	return next, false, m.overtaken(d, base, next)
}

func holds(secret *corev1.Secret, entryID string) bool {
	if secret == nil {
		return false
	}
	book, err := ledger.Parse(secret.Annotations[ledger.Annotation])
	if err != nil {
		return false
	}
	for _, e := range book.Entries {
		if e.ID == entryID {
			return true
		}
	}
	return false
}

func resourceVersion(secret *corev1.Secret) string {
	if secret == nil {
		return ""
	}
	return secret.ResourceVersion
}

// next is the account Secret with the draft on top of its ledger, or why it must not be written.
func (m *minter) next(d draft, base *corev1.Secret) (*corev1.Secret, ledger.Entry, error) {
	book, err := m.book(d, base)
	if err != nil {
		return nil, ledger.Entry{}, err
	}
	book = book.Append(ledger.Entry{
		ID: d.id, Operation: d.operation, At: m.now(), AuditID: d.auditID,
		Caller: book.CallerDigest(d.auditID, d.caller), Stored: book.StoredDigest(d.auditID, d.stored),
	})
	next := base.DeepCopy()
	if base == nil {
		next = account.NewSecret(d.target.release, d.target.account, d.target.definition.Block)
	}
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	next.Annotations[ledger.Annotation] = book.Encode()
	next.Annotations[ledger.OriginAnnotation] = d.operation.Origin()
	if next.Data == nil {
		next.Data = map[string][]byte{}
	}
	next.Data[corev1.BasicAuthPasswordKey] = d.stored
	if size := history.AnnotationBytes(next.Annotations); size > history.MaxAnnotationBytes {
		return nil, ledger.Entry{}, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"the annotations of the account Secret %s would hold %d bytes, more than the %d that kube-apiserver allows: remove what others put there; nothing was written",
			next.Name, size, history.MaxAnnotationBytes))
	}
	return next, book.Newest(), nil
}

// book is the ledger to write upon: the Secret's, or a new one where there is none that can be read.
func (m *minter) book(d draft, base *corev1.Secret) (ledger.Ledger, error) {
	if base != nil {
		if err := m.ours(d, base); err != nil {
			return ledger.Ledger{}, err
		}
		book, err := ledger.Parse(base.Annotations[ledger.Annotation])
		if err == nil {
			return book, check(d, base, book)
		}
	}
	if err := check(d, base, ledger.Ledger{}); err != nil {
		return ledger.Ledger{}, err
	}
	id, err := ledger.NewID(m.random)
	return ledger.Ledger{Account: id}, err
}

// ours refuses a Secret of the account's name that is not the account Secret of this very application.
func (m *minter) ours(d draft, secret *corev1.Secret) error {
	switch {
	case secret.Labels[cluster.AccountLabel] != "true":
		return conflict(d.credential, fmt.Sprintf("the Secret %s is not an account Secret: the label %s is missing", secret.Name, cluster.AccountLabel))
	case secret.Type != corev1.SecretTypeBasicAuth:
		return conflict(d.credential, fmt.Sprintf("the Secret %s is not of type %s", secret.Name, corev1.SecretTypeBasicAuth))
	case string(secret.Data[corev1.BasicAuthUsernameKey]) != d.target.account.Username:
		return conflict(d.credential, fmt.Sprintf("the Secret %s belongs to another username", secret.Name))
	case secret.DeletionTimestamp != nil, !account.Owned(secret, d.target.release):
		return conflict(d.credential, fmt.Sprintf(
			"the Secret %s is not owned by this application: it is an earlier one's and about to go, or was restored without its owner; try again", secret.Name))
	}
	return nil
}

// check holds the preconditions against the Secret, nil if there is none, and refuses an audit id that is spent.
func check(d draft, secret *corev1.Secret, book ledger.Ledger) error {
	if book.HasAuditID(d.auditID) {
		return conflict(d.credential, "an operation with this Audit-ID is already in the ledger: send another, or none")
	}
	var uid, version string
	if secret != nil {
		uid, version = string(secret.UID), secret.ResourceVersion
	}
	newest, p := book.Newest(), d.preconditions
	switch {
	case p.ID != nil && *p.ID != newest.ID:
		return unmet(d, "id", *p.ID, newest.ID)
	case p.Revision != nil && *p.Revision == 0 && secret != nil:
		return unmet(d, "revision", "0 (no account Secret)", fmt.Sprint(newest.Revision))
	case p.Revision != nil && *p.Revision != newest.Revision:
		return unmet(d, "revision", fmt.Sprint(*p.Revision), fmt.Sprint(newest.Revision))
	case p.ResourceVersion != nil && *p.ResourceVersion != version:
		return unmet(d, "resourceVersion", *p.ResourceVersion, version)
	case p.UID != nil && string(*p.UID) != uid:
		return unmet(d, "uid", string(*p.UID), uid)
	}
	return nil
}

func unmet(d draft, field, want, got string) error {
	return conflict(d.credential, fmt.Sprintf("precondition %s is %s, the account has %q: somebody changed it meanwhile; nothing was written", field, want, got))
}

// read is the live account Secret, nil if there is none.
func (m *minter) read(ctx context.Context, d draft) (*corev1.Secret, error) {
	secret, err := m.client.Secrets(d.namespace).Get(ctx, secretName(d.credential), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, tryAgain(d.credential, "kube-apiserver did not return its account Secret")
	}
	return secret, nil
}

// write creates or updates the Secret under the caller's audit id, so that the log holds the commit beside the request.
// Neither client-go nor kube-apiserver goes on with it past the budget.
func (m *minter) write(ctx context.Context, d draft, secret *corev1.Secret) error {
	call := m.client.RESTClient().Post()
	if secret.UID != "" {
		call = m.client.RESTClient().Put().Name(secret.Name)
	}
	if d.dryRun {
		call = call.Param("dryRun", metav1.DryRunAll)
	}
	if deadline, ok := ctx.Deadline(); ok {
		call = call.Timeout(time.Until(deadline))
	}
	return call.Namespace(d.namespace).Resource("secrets").Param("fieldManager", "mintlog").
		SetHeader(auditinternal.HeaderAuditID, d.auditID).MaxRetries(0).Body(secret).Do(ctx).Error()
}

// refusedSecret is the answer when kube-apiserver, or a policy in it, did not admit the account Secret. Its own text is
// left out: it may quote the Secret.
func refusedSecret(credential string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: fmt.Sprintf("credentials %q: kube-apiserver did not admit its account Secret, for what stands on it or by a policy; nothing was written", credential),
	}}
}
