// Package history is what the projector writes on an account Secret: who asked for the operations in its ledger, as
// far as the audit log says so, and where the two books disagree.
package history

import (
	"encoding/json"
	"errors"
)

// Annotation is the key under which a history stands on its account Secret.
const Annotation = "credentials.cozystack.io/history"

// MaxEntries is how many operations a history shows.
const MaxEntries = 10

// MaxAnnotationBytes is what kube-apiserver allows the annotations of an object to hold, as AnnotationBytes counts.
const MaxAnnotationBytes = 256 << 10

// AnnotationBytes is the size of all annotations of an object, keys and values.
func AnnotationBytes(annotations map[string]string) int {
	size := 0
	for key, value := range annotations {
		size += len(key) + len(value)
	}
	return size
}

// A Response is what is known of the answer to a request that took effect.
type Response string

const (
	// Success: the log has a final 2xx.
	Success Response = "Success"
	// Unknown: the operation took effect and its answer may not have arrived; mint again.
	Unknown Response = "Unknown"
)

// An Attribution is on whose word a name stands.
type Attribution string

const (
	AuditLog     Attribution = "AuditLog"
	Platform     Attribution = "Platform"     // Create and Migrate have no event
	Pending      Attribution = "Pending"      // no event yet
	Unattributed Attribution = "Unattributed" // no event within the settling time
	Expired      Attribution = "Expired"      // the evidence is older than what is retained
)

// A FindingType names a way in which ledger and log can disagree.
type FindingType string

const (
	FindingUnattributed FindingType = "Unattributed" // it did not pass the log, or the log lost it
	FindingMismatch     FindingType = "Mismatch"     // an eligible event has the audit id and another user, and nothing matches
	FindingConflict     FindingType = "Conflict"     // matching events differ in a field that is shown
	FindingSkewed       FindingType = "Skewed"       // all agrees but the time
	FindingUncommitted  FindingType = "Uncommitted"  // the log reports a success that the ledger does not have
	FindingOutOfBand    FindingType = "OutOfBand"    // the stored password is not what the newest entry wrote
	FindingRestored     FindingType = "Restored"     // the Secret's UID is not the one first seen with this ledger
	FindingBrokenLedger FindingType = "BrokenLedger" // the annotation is not readable
	FindingGap          FindingType = "Gap"          // part of the log is missing where an Unattributed entry lies
)

// A Finding is a place where the two books disagree.
type Finding struct {
	Type     FindingType `json:"type"`
	Revision int64       `json:"revision,omitempty"` // of the entry concerned; 0 where there is none
	Message  string      `json:"message"`
}

// An Entry attributes one entry of the ledger that an event matched.
type Entry struct {
	ID             string   `json:"id"` // the ledger entry's
	Revision       int64    `json:"revision"`
	By             string   `json:"by,omitempty"`             // the effective user
	ImpersonatedBy string   `json:"impersonatedBy,omitempty"` // the authenticated user, where it is another; absent where events conflict in it
	Response       Response `json:"response,omitempty"`
}

// A History holds the matched entries among the ledger's newest MaxEntries, newest first, and the findings that do not
// depend on time.
type History struct {
	Entries  []Entry   `json:"entries,omitempty"`
	Findings []Finding `json:"findings,omitempty"`
	// Writers are the users other than the platform's own parts who wrote the Secret after its newest ledger entry,
	// sorted: the mint server names them if the stored password is not what that entry wrote.
	Writers []string `json:"writers,omitempty"`
}

// Parse reads a history annotation; an absent one is the empty history.
func Parse(annotation string) (History, error) {
	var h History
	if annotation == "" {
		return h, nil
	}
	if err := json.Unmarshal([]byte(annotation), &h); err != nil {
		return History{}, errors.New("broken history: it is not the JSON of a history")
	}
	return h, nil
}

// Encode is the annotation that Parse reads.
func (h History) Encode() string {
	b, err := json.Marshal(h)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return string(b)
}
