package ingest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/mintlog/mintlog/store/event"
)

// What an event of ours keeps at most, in bytes, so that a client cannot make one that no store takes. The mint server
// refuses requests that come near these before it writes.
const (
	maxID       = 512
	maxURI      = 8 << 10
	maxAgent    = 1 << 10
	maxUsername = 2 << 10
	maxName     = 1 << 10
	maxMessage  = 1 << 10
	maxList     = 8 << 10 // of the strings of a list together
	maxSources  = 16      // of a request's addresses, the last: those before are the client's to choose
)

// bound cuts an event to the limits. Strings that were different stay different.
func bound(e *event.Event) {
	e.AuditID = cut(e.AuditID, maxID)
	boundURI(e)
	e.UserAgent = cut(e.UserAgent, maxAgent)
	e.Verb = cut(e.Verb, maxName)
	e.Stage = event.Stage(cut(string(e.Stage), maxName))
	boundUser(&e.User)
	if e.ImpersonatedUser != nil {
		boundUser(e.ImpersonatedUser)
	}
	if drop := len(e.SourceIPs) - maxSources; drop > 0 {
		e.SourceIPs = append([]string(nil), e.SourceIPs[drop:]...)
	}
	for i := range e.SourceIPs {
		e.SourceIPs[i] = cut(e.SourceIPs[i], maxID)
	}
	for _, s := range []*string{
		&e.ObjectRef.APIGroup, &e.ObjectRef.APIVersion, &e.ObjectRef.Resource, &e.ObjectRef.Subresource,
		&e.ObjectRef.Namespace, &e.ObjectRef.UID,
	} {
		*s = cut(*s, maxName)
	}
	boundName(e)
	if status := e.ResponseStatus; status != nil {
		status.Status, status.Reason = cut(status.Status, maxID), cut(status.Reason, maxID)
		status.Message = cut(status.Message, maxMessage)
	}
	for key, value := range e.Annotations {
		e.Annotations[key] = cut(value, maxMessage)
	}
}

// boundURI keeps whether the URI asks for a dry run.
func boundURI(e *event.Event) {
	if len(e.RequestURI) <= maxURI {
		return
	}
	dry := e.DryRun()
	e.RequestURI = cut(e.RequestURI, maxURI)
	if dry && !e.DryRun() {
		separator := "?"
		if strings.Contains(e.RequestURI, "?") {
			separator = "&"
		}
		e.RequestURI += separator + "dryRun=All"
	}
}

// boundName keeps what the name of an account Secret ends in.
func boundName(e *event.Event) {
	if len(e.ObjectRef.Name) <= maxName {
		return
	}
	suffix := ""
	if e.IsWrite() {
		suffix = event.AccountSecretSuffix
	}
	e.ObjectRef.Name = cut(e.ObjectRef.Name, maxName) + suffix
}

func boundUser(u *event.User) {
	u.Username, u.UID = cut(u.Username, maxUsername), cut(u.UID, maxID)
	u.Groups = cutList(u.Groups, maxList)
	room := maxList
	for key, values := range u.Extra {
		room -= len(key)
		for _, value := range values {
			room -= len(value)
		}
	}
	if room < 0 { // which of them are kept must not depend on the order of a map
		u.Extra = map[string][]string{"mintlog": {fmt.Sprintf("%d keys were too large to keep", len(u.Extra))}}
	}
}

// cutList keeps as many of the list's first strings as fit.
func cutList(list []string, limit int) []string {
	for i, s := range list {
		if limit -= len(s); limit < 0 {
			return append(append([]string(nil), list[:i]...), fmt.Sprintf("(%d more)", len(list)-i))
		}
	}
	return list
}

// cut shortens s to about limit bytes. What is cut off is replaced by the length and digest of the whole.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	digest := sha256.Sum256([]byte(s))
	return strings.ToValidUTF8(s[:limit], "") + fmt.Sprintf("…(%d bytes, sha256 %s)", len(s), hex.EncodeToString(digest[:]))
}
