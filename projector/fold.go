// Package projector makes the history of an account out of its ledger and the audit log. Fold is the whole of the
// judgement and touches nothing; Loop reads and writes around it.
package projector

import (
	"fmt"
	"slices"
	"time"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/history"
	"github.com/mintlog/mintlog/store/ledger"
)

const (
	// clockSkew is how far the clocks of kube-apiservers and mint servers may lie apart.
	clockSkew = 5 * time.Second
	// commitLimit is how long after its own reception of a request the mint server writes, or gives up.
	commitLimit = ledger.WriteBudget
	// requestLimit is kube-apiserver's deadline for a request, by its default.
	requestLimit = time.Minute

	maxUncommitted = 5    // findings of a history that say Uncommitted, the newest ones
	maxWriterBytes = 4096 // of the names in Writers together
)

// An Account is what the fold knows of an account Secret.
type Account struct {
	Namespace  string
	Credential string // the credential's name, <release>.<account>
	UID        string // the Secret's
	Ledger     ledger.Ledger
	// StoredMatches says that the stored password is the one that the newest entry wrote.
	StoredMatches bool
}

// Fold joins the account's ledger with events, those kept as evidence and new ones together, in any order and any
// number of copies. own are the usernames of the mint server, the accounts role and the projector: a write of the
// Secret by one of them is a commit, by anybody else it is out of band.
//
// No name leaves it but of a caller whose digest is in the ledger, of who impersonated that caller, and, in Writers, of
// who wrote the Secret.
func Fold(account Account, events []event.Event, own []string) history.History {
	events = account.readable(events)
	var folded history.History
	for _, entry := range account.Ledger.Entries[:min(len(account.Ledger.Entries), history.MaxEntries)] {
		b := account.bearing(entry, events)
		if len(b.matching) > 0 {
			folded.Entries = append(folded.Entries, attribute(entry, b))
		}
		folded.Findings = append(folded.Findings, b.findings(entry)...)
	}
	surroundings := account.surroundings(events, own)
	folded.Findings = append(folded.Findings, surroundings.restored(account)...)
	folded.Findings = append(folded.Findings, surroundings.findings(account)...)
	if !account.StoredMatches {
		folded.Writers = surroundings.writers(own)
	}
	return folded
}

// A relation is how an event stands to an entry of the ledger.
type relation int

const (
	unrelated relation = iota
	differing          // all agrees but the user
	skewed             // all agrees but the time
	matching
)

// relate compares a readable event with an entry.
func (a Account) relate(entry ledger.Entry, e event.Event) relation {
	if operation, ok := e.Operation(); !ok || operation != entry.Operation || e.AuditID != entry.AuditID {
		return unrelated
	}
	if a.Ledger.CallerDigest(e.AuditID, e.EffectiveUser()) != entry.Caller {
		if e.Stage == event.RequestReceived {
			return unrelated // the impersonator, perhaps: whom the request ran as is not known yet
		}
		return differing
	}
	if entry.At.Before(e.RequestReceivedTimestamp.Add(-clockSkew)) || entry.At.After(lastCommit(e).Add(clockSkew)) {
		return skewed
	}
	return matching
}

// lastCommit is the time, by the event's clock, after which the request can no longer have been committed. The mint
// server's commitLimit counts from its own reception, and that may lie anywhere between kube-apiserver's reception and
// the end of its event: before kube-apiserver passes a request on it may wait for authentication and for its turn. The
// end of a request of which only the reception is known is its deadline at the latest.
func lastCommit(e event.Event) time.Time {
	end := e.StageTimestamp
	if e.Stage == event.RequestReceived {
		end = e.RequestReceivedTimestamp.Add(requestLimit)
	}
	if end.Before(e.RequestReceivedTimestamp) {
		end = e.RequestReceivedTimestamp
	}
	return end.Add(commitLimit)
}

// settled is the time, by the clock of who asks, from which no entry of the request can come any more.
func settled(e event.Event) time.Time { return lastCommit(e).Add(clockSkew + time.Second) }

// impersonator is the authenticated user of the request where it is another than the effective one, else "".
func impersonator(e event.Event) string {
	if name := e.Impersonator(); name != e.EffectiveUser() {
		return name
	}
	return ""
}

// attribute says who asked for an entry that events match. These have one rank and, by the digest, one effective user:
// of what is shown they can differ in the impersonator only.
func attribute(entry ledger.Entry, b bearing) history.Entry {
	best := b.matching[0]
	attributed := history.Entry{
		ID:       entry.ID,
		Revision: entry.Revision,
		By:       best.EffectiveUser(),
		Response: history.Unknown,
	}
	if best.Outcome() == event.Succeeded {
		attributed.Response = history.Success
	}
	if len(b.matching) == 1 {
		attributed.ImpersonatedBy = impersonator(best)
	}
	return attributed
}

// findings are those of one entry.
func (b bearing) findings(entry ledger.Entry) []history.Finding {
	var findings []history.Finding
	report := func(t history.FindingType, message string) {
		findings = append(findings, history.Finding{Type: t, Revision: entry.Revision, Message: message})
	}
	if len(b.matching) > 1 {
		report(history.FindingConflict, "The audit log has several requests that could be this operation, and they differ in who acted on the "+
			"caller's behalf: nobody is shown there. The archive has them all under the operation's time.")
	}
	if len(b.matching) == 0 && len(b.differing) > 0 {
		report(history.FindingMismatch, "The audit log has this operation under another user than the one that the mint server saw. "+
			"Its request did not come through kube-apiserver as logged, or the ledger was written by another hand.")
	}
	if len(b.matching) == 0 && len(b.skewed) > 0 {
		report(history.FindingSkewed, "The audit log has this operation at a time that does not fit the ledger's. "+
			"Compare the clocks of the kube-apiservers and the mint servers; if they agree, the audit id was used twice.")
	}
	return findings
}

// findings are those of no entry: successes that the ledger does not have. A success received within the clock skew
// after the oldest entry is let pass, for it may have been that of an entry just trimmed, or of an account of the same
// name just deleted; one received before was theirs.
func (s surroundings) findings(account Account) []history.Finding {
	elsewhere := make(map[string]bool) // audit ids committed to another Secret of this name
	for _, commit := range s.commits {
		if commit.ObjectRef.UID != account.UID {
			elsewhere[commit.AuditID] = true
		}
	}
	var findings []history.Finding
	for _, e := range s.successes {
		if account.Ledger.HasAuditID(e.AuditID) || elsewhere[e.AuditID] || len(findings) == maxUncommitted {
			continue
		}
		operation, _ := e.Operation()
		findings = append(findings, history.Finding{
			Type: history.FindingUncommitted,
			Message: fmt.Sprintf("The audit log reports that a %s received at %s succeeded, and the ledger does not have it. "+
				"The Secret was restored to an earlier state, or something else than the mint server answered.",
				operation, e.RequestReceivedTimestamp.Format(time.RFC3339Nano)),
		})
	}
	return findings
}

// restored reports that the newest entry of which the log has the commit was committed to another Secret, of another
// UID: somebody put this one in its place with its ledger, as from a backup. The next operation's commit ends it.
func (s surroundings) restored(account Account) []history.Finding {
	for _, entry := range account.Ledger.Entries {
		elsewhere, here := s.committed(entry, account.UID)
		if here {
			return nil
		}
		if elsewhere {
			return []history.Finding{{
				Type: history.FindingRestored, Revision: entry.Revision,
				Message: "The audit log has this operation committed to a Secret that is no more; this one was put in its place with the same ledger, " +
					"as from a backup. The password is the one of then.",
			}}
		}
	}
	return nil
}

// committed reports whether an entry's commit names another Secret, and whether one names the Secret of that UID. An
// audit id is the client's to choose, so a commit at another time is another's.
func (s surroundings) committed(entry ledger.Entry, uid string) (elsewhere, here bool) {
	if entry.AuditID == "" {
		return false, false
	}
	for _, commit := range s.commits {
		apart := commit.RequestReceivedTimestamp.Sub(entry.At).Abs()
		if commit.AuditID != entry.AuditID || apart > commitLimit+clockSkew {
			continue
		}
		if commit.ObjectRef.UID == uid {
			here = true
		} else {
			elsewhere = true
		}
	}
	return elsewhere, here
}

// writers names who wrote the Secret out of band: the effective users, and those who impersonated them. Names beyond
// maxWriterBytes are left out, those of the oldest writes first.
func (s surroundings) writers(own []string) []string {
	var names []string
	size := 0
	for _, write := range s.outOfBand {
		for _, name := range []string{write.EffectiveUser(), impersonator(write)} {
			if name == "" || slices.Contains(own, name) || slices.Contains(names, name) || size+len(name) > maxWriterBytes {
				continue
			}
			names = append(names, name)
			size += len(name)
		}
	}
	slices.Sort(names)
	return names
}
