// Package credential serves the credentials API: the view of an account, and the operations that change its password.
// A credential has no storage of its own; it is read from its account Secret.
package credential

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/gap"
	"github.com/mintlog/mintlog/store/history"
	"github.com/mintlog/mintlog/store/ledger"
)

// Settling is how long an operation may wait for its audit event before it counts as unattributed.
const Settling = 2 * time.Minute

// secretName is the account Secret of a credential.
func secretName(credential string) string { return credential + event.AccountSecretSuffix }

// A viewer reads credentials out of account Secrets.
type viewer struct {
	now       func() time.Time
	retention time.Duration
	gaps      Gaps // nil: none is known of
}

// Gaps tell where parts of the audit log are known to be missing. They are asked at every read, so they answer from
// memory, also while what they know it from is down.
type Gaps interface {
	// OpenGaps are those that no replay has closed.
	OpenGaps() []gap.Gap
}

// view is the credential of an account Secret. Of what stands in the history annotation it shows only what agrees with
// the ledger: a name must have the digest that the ledger holds, or it is not shown.
func (v viewer) view(secret *corev1.Secret, format string) *v1alpha1.Credential {
	c := &v1alpha1.Credential{
		ObjectMeta: metav1.ObjectMeta{
			Name:              strings.TrimSuffix(secret.Name, event.AccountSecretSuffix),
			Namespace:         secret.Namespace,
			UID:               secret.UID,
			ResourceVersion:   secret.ResourceVersion,
			CreationTimestamp: secret.CreationTimestamp,
			DeletionTimestamp: secret.DeletionTimestamp,
			Labels:            applicationLabels(secret),
		},
		Spec: v1alpha1.CredentialSpec{
			Application: v1alpha1.ApplicationReference{Kind: secret.Labels[cluster.KindLabel], Name: secret.Labels[cluster.NameLabel]},
			Username:    string(secret.Data[corev1.BasicAuthUsernameKey]),
			Format:      format,
		},
	}
	book, err := ledger.Parse(secret.Annotations[ledger.Annotation])
	if err != nil {
		c.Status.Password.Origin = origin(secret)
		c.Status.Findings = []v1alpha1.Finding{{
			Type:    string(history.FindingBrokenLedger),
			Message: "the ledger of this account cannot be read; the next mint or revoke begins a new one",
		}}
		return c
	}
	written := readHistory(secret)
	newest := book.Newest()
	at := metav1.NewMicroTime(newest.At)
	c.Status.Password = v1alpha1.PasswordStatus{Origin: newest.Operation.Origin(), At: &at, Revision: newest.Revision}
	c.Status.History = v.operations(book, written)
	c.Status.Findings = v.findings(secret, book, written, c.Status.History)
	return c
}

func applicationLabels(secret *corev1.Secret) map[string]string {
	labels := map[string]string{}
	for _, key := range []string{cluster.KindLabel, cluster.GroupLabel, cluster.NameLabel} {
		if value, ok := secret.Labels[key]; ok {
			labels[key] = value
		}
	}
	return labels
}

// origin is the word on the Secret, for want of a ledger that says it.
func origin(secret *corev1.Secret) string {
	switch word := secret.Annotations[ledger.OriginAnnotation]; word {
	case "NotIssued", "Migrated", "Minted", "Revoked":
		return word
	}
	return "Unknown"
}

// readHistory is the history annotation, the empty history if it cannot be read: what the projector has not said, or
// somebody overwrote, attributes nothing.
func readHistory(secret *corev1.Secret) history.History {
	h, err := history.Parse(secret.Annotations[history.Annotation])
	if err != nil {
		return history.History{}
	}
	return h
}

// operations are the newest entries of the ledger, each with its attribution.
func (v viewer) operations(book ledger.Ledger, written history.History) []v1alpha1.Operation {
	matched := map[string]history.Entry{}
	for _, e := range written.Entries {
		matched[e.ID] = e
	}
	newest := book.Entries[:min(len(book.Entries), history.MaxEntries)]
	operations := make([]v1alpha1.Operation, 0, len(newest))
	for _, entry := range newest {
		o := v1alpha1.Operation{
			ID: entry.ID, Revision: entry.Revision, Operation: string(entry.Operation), At: metav1.NewMicroTime(entry.At),
		}
		match, ok := matched[entry.ID]
		if ok && agrees(book, entry, match) {
			o.Attribution = string(history.AuditLog)
			o.By, o.ImpersonatedBy, o.Response = match.By, match.ImpersonatedBy, string(match.Response)
		} else {
			o.Attribution = string(v.unmatched(entry))
		}
		operations = append(operations, o)
	}
	return operations
}

// agrees reports whether the projector's word for an entry names the user to whom the ledger committed.
func agrees(book ledger.Ledger, entry ledger.Entry, match history.Entry) bool {
	if entry.Operation.ByPlatform() || match.Revision != entry.Revision {
		return false
	}
	return book.CallerDigest(entry.AuditID, match.By) == entry.Caller
}

// unmatched is the attribution of an entry that no event attributes: by its age alone.
func (v viewer) unmatched(entry ledger.Entry) history.Attribution {
	age := v.now().Sub(entry.At)
	switch {
	case entry.Operation.ByPlatform():
		return history.Platform
	case age < Settling:
		return history.Pending
	case age > v.retention:
		return history.Expired
	default:
		return history.Unattributed
	}
}

// findings are the projector's, and those that depend on time or on nothing having come.
func (v viewer) findings(secret *corev1.Secret, book ledger.Ledger, written history.History, operations []v1alpha1.Operation) []v1alpha1.Finding {
	var all []v1alpha1.Finding
	newest := book.Newest()
	if book.StoredDigest(newest.AuditID, secret.Data[corev1.BasicAuthPasswordKey]) != newest.Stored {
		all = append(all, v1alpha1.Finding{
			Type: string(history.FindingOutOfBand), Revision: newest.Revision, Message: outOfBand(written.Writers),
		})
	}
	for _, o := range operations {
		if o.Attribution == string(history.Unattributed) {
			all = append(all, v1alpha1.Finding{
				Type: string(history.FindingUnattributed), Revision: o.Revision,
				Message: fmt.Sprintf("no audit event for this %s: it did not pass the log, or the log lost it", strings.ToLower(o.Operation)),
			})
			all = append(all, v.inGap(o)...)
		}
	}
	for _, f := range written.Findings {
		if writtenByProjector[f.Type] {
			all = append(all, v1alpha1.Finding{Type: string(f.Type), Revision: f.Revision, Message: f.Message})
		}
	}
	return all
}

// inGap is the finding that the event of an unattributed operation may lie where part of the log is missing. It excuses
// nobody: the operation stays unattributed.
func (v viewer) inGap(o v1alpha1.Operation) []v1alpha1.Finding {
	if v.gaps == nil {
		return nil
	}
	for _, g := range v.gaps.OpenGaps() {
		if g.Open() && g.Explains(o.At.Time) {
			return []v1alpha1.Finding{{Type: string(history.FindingGap), Revision: o.Revision, Message: gapMessage(g)}}
		}
	}
	return nil
}

func gapMessage(g gap.Gap) string {
	bounds := "until " + g.End().UTC().Format(time.RFC3339)
	if !g.From.IsZero() {
		bounds = "from " + g.From.UTC().Format(time.RFC3339) + " " + bounds
	}
	return fmt.Sprintf("the audit log %q is missing %s (%s), and the audit event may lie there; a replay of the archive may close this gap",
		g.Source, bounds, g.Reason)
}

// writtenByProjector are the findings that the history annotation may hold; the others are ours to compute.
var writtenByProjector = map[history.FindingType]bool{
	history.FindingMismatch:    true,
	history.FindingConflict:    true,
	history.FindingSkewed:      true,
	history.FindingUncommitted: true,
	history.FindingRestored:    true,
}

func outOfBand(writers []string) string {
	const changed = "the stored password is not what the newest operation wrote"
	switch len(writers) {
	case 0:
		return changed + "; the log names nobody who wrote the Secret since"
	case 1:
		return fmt.Sprintf("%s; the log has a write of the Secret about then or since, by %q", changed, writers[0])
	default:
		return fmt.Sprintf("%s; the log has writes of the Secret about then or since, by %s", changed, quoted(writers))
	}
}

func quoted(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = fmt.Sprintf("%q", name)
	}
	return strings.Join(quoted, ", ")
}
