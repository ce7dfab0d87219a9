// Package ledger is the book that the mint server keeps on each account Secret: what happened to the password, when,
// and under which audit id. It never says who; that is for the audit log, and the caller's digest is there to check
// what the log says.
package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Annotation is the key under which a ledger stands on its account Secret, OriginAnnotation the key of the word for
// where the password came from.
const (
	Annotation       = "credentials.cozystack.io/ledger"
	OriginAnnotation = "credentials.cozystack.io/origin"
)

// MaxEntries is how many entries a ledger keeps; the oldest go.
const MaxEntries = 20

// WriteBudget is how long after the mint server received a request it writes the operation, or gives it up. The join of
// ledger and log relies on it.
const WriteBudget = 10 * time.Second

// An Operation is what changes a password.
type Operation string

const (
	// Create is the platform's seeding of a new account with random bytes that nobody saw.
	Create Operation = "Create"
	// Migrate is the platform's taking over of a password that existed before.
	Migrate Operation = "Migrate"
	// Mint is a request for a new password, answered once with its plaintext.
	Mint Operation = "Mint"
	// Revoke is a Mint whose plaintext was thrown away.
	Revoke Operation = "Revoke"
)

// ByPlatform reports whether the operation is the platform's own doing and so has no audit event.
func (o Operation) ByPlatform() bool { return o == Create || o == Migrate }

func (o Operation) known() bool {
	return o == Create || o == Migrate || o == Mint || o == Revoke
}

// Origin is where a password came from, as the credential view shows it.
func (o Operation) Origin() string {
	switch o {
	case Mint:
		return "Minted"
	case Revoke:
		return "Revoked"
	case Migrate:
		return "Migrated"
	default:
		return "NotIssued"
	}
}

// An Entry is one operation that took effect.
type Entry struct {
	ID        string    `json:"id"`       // 128 random bits in hex
	Revision  int64     `json:"revision"` // one more than the entry before; the first is 1
	Operation Operation `json:"operation"`
	At        time.Time `json:"at"`                // the mint server's clock before its write, UTC, microseconds
	AuditID   string    `json:"auditID,omitempty"` // absent on Create and Migrate
	Caller    string    `json:"caller,omitempty"`  // Ledger.CallerDigest of who asked; absent on Create and Migrate
	Stored    string    `json:"stored,omitempty"`  // Ledger.StoredDigest of the password; on the newest entry only
}

// A Ledger holds the newest MaxEntries operations of one account, newest first.
type Ledger struct {
	// Account is 128 random bits in hex, drawn at the first write: the salt of the digests, and what tells this
	// account from another of the same name.
	Account string  `json:"account"`
	Entries []Entry `json:"entries"`
}

// ErrBroken is returned by Parse for an annotation that is no ledger.
var ErrBroken = errors.New("broken ledger")

// Parse reads a ledger annotation. Every error wraps ErrBroken and quotes nothing of the annotation. Fields that a later
// version may add are passed over.
func Parse(annotation string) (Ledger, error) {
	var l Ledger
	if err := json.Unmarshal([]byte(annotation), &l); err != nil {
		return Ledger{}, fmt.Errorf("%w: it is not the JSON of a ledger", ErrBroken)
	}
	if err := l.check(); err != nil {
		return Ledger{}, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	return l, nil
}

func (l Ledger) check() error {
	if !isRandom(l.Account) {
		return errors.New("account is not 128 bits in hex")
	}
	if len(l.Entries) == 0 || len(l.Entries) > MaxEntries {
		return fmt.Errorf("it has %d entries, not 1 to %d", len(l.Entries), MaxEntries)
	}
	for i, e := range l.Entries {
		if err := e.check(i == 0); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		if i > 0 && e.Revision != l.Entries[i-1].Revision-1 {
			return fmt.Errorf("entry %d: its revision does not precede the one above", i)
		}
	}
	return nil
}

func (e Entry) check(newest bool) error {
	switch {
	case !isRandom(e.ID):
		return errors.New("id is not 128 bits in hex")
	case e.Revision < 1:
		return errors.New("revision is below 1")
	case !e.Operation.known():
		return errors.New("operation is unknown")
	case e.At.IsZero():
		return errors.New("at is missing")
	case e.Operation.ByPlatform() != (e.AuditID == ""), e.Operation.ByPlatform() != (e.Caller == ""):
		return errors.New("auditID and caller stand on requested operations, and on no others")
	case newest != (e.Stored != ""):
		return errors.New("stored stands on the newest entry, and on no other")
	}
	return nil
}

func isRandom(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 16
}

// NewID draws 128 bits from random and returns them in hex.
func NewID(random io.Reader) (string, error) {
	var b [16]byte
	if _, err := io.ReadFull(random, b[:]); err != nil {
		return "", fmt.Errorf("draw an id: %w", err)
	}
	return hex.EncodeToString(b[:]), nil
}

// Encode is the annotation that Parse reads.
func (l Ledger) Encode() string {
	b, err := json.Marshal(l)
	if err != nil {
		panic(err) // strings, numbers and times of this century always marshal
	}
	return string(b)
}

// Newest is the entry of the last operation, the zero Entry if there is none.
func (l Ledger) Newest() Entry {
	if len(l.Entries) == 0 {
		return Entry{}
	}
	return l.Entries[0]
}

// HasAuditID reports whether an entry kept bears the audit id.
func (l Ledger) HasAuditID(id string) bool {
	for _, e := range l.Entries {
		if e.AuditID == id {
			return true
		}
	}
	return false
}

// Append returns the ledger with e on top: its revision set, the stored digests of the others taken away, and at most
// MaxEntries kept. l is left as it was.
func (l Ledger) Append(e Entry) Ledger {
	e.Revision = l.Newest().Revision + 1
	e.At = e.At.UTC().Truncate(time.Microsecond)
	entries := append([]Entry{e}, l.Entries...)
	entries = entries[:min(len(entries), MaxEntries)]
	for i := range entries[1:] {
		entries[i+1].Stored = ""
	}
	return Ledger{Account: l.Account, Entries: entries}
}

// CallerDigest commits to the effective user of the request that bore the audit id.
func (l Ledger) CallerDigest(auditID, username string) string {
	return digest("caller", l.Account, auditID, username)
}

// StoredDigest commits to the stored form of a password.
func (l Ledger) StoredDigest(auditID string, stored []byte) string {
	return digest("stored", l.Account, auditID, string(stored))
}

// digest is SHA-256 over its parts, each behind its length, so that no two lists of parts look alike.
func digest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil))
}
