// Package event is one audit event of kube-apiserver, reduced to what the fold and the archive read, and what it
// says: which operation was asked for, by whom, and whether it can have taken effect.
//
// A field's control lies with the client or with the server as kube-apiserver's audit log has it: the audit id, the
// URI and the object's name are the client's to choose, user, verb, stage, annotations and times are not.
package event

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/mintlog/mintlog/store/ledger"
)

// The API whose requests are recorded, and what marks an account Secret: the ending of its name, and a label that is
// "true".
const (
	AccountLabel        = "credentials.cozystack.io/account"
	Group               = "credentials.cozystack.io"
	Resource            = "credentials"
	AccountSecretSuffix = ".account"
)

// A Stage is how far kube-apiserver had come with the request when it recorded the event.
type Stage string

const (
	// RequestReceived precedes impersonation and authorization: it names the authenticated user and no more.
	RequestReceived  Stage = "RequestReceived"
	ResponseComplete Stage = "ResponseComplete"
	Panic            Stage = "Panic"
)

// A User is one identity of a request.
type User struct {
	Username string              `json:"username,omitempty"`
	UID      string              `json:"uid,omitempty"`
	Groups   []string            `json:"groups,omitempty"`
	Extra    map[string][]string `json:"extra,omitempty"`
}

// An ObjectRef is the object of a request, decoded from its path by kube-apiserver.
type ObjectRef struct {
	APIGroup    string `json:"apiGroup,omitempty"`
	APIVersion  string `json:"apiVersion,omitempty"`
	Resource    string `json:"resource,omitempty"`
	Subresource string `json:"subresource,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
	Name        string `json:"name,omitempty"`
	UID         string `json:"uid,omitempty"` // always empty for proxied requests
}

// A ResponseStatus is the answer as recorded: the first status code written, which a client can skew.
type ResponseStatus struct {
	Code    int    `json:"code,omitempty"`
	Status  string `json:"status,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// An Event has the JSON shape of audit.k8s.io/v1 Event, less what nothing here reads.
type Event struct {
	AuditID                  string            `json:"auditID,omitempty"`
	Stage                    Stage             `json:"stage,omitempty"`
	Verb                     string            `json:"verb,omitempty"`
	RequestURI               string            `json:"requestURI,omitempty"`
	User                     User              `json:"user"`
	ImpersonatedUser         *User             `json:"impersonatedUser,omitempty"`
	SourceIPs                []string          `json:"sourceIPs,omitempty"` // only the last is not the client's to choose
	UserAgent                string            `json:"userAgent,omitempty"`
	ObjectRef                *ObjectRef        `json:"objectRef,omitempty"`
	ResponseStatus           *ResponseStatus   `json:"responseStatus,omitempty"`
	Annotations              map[string]string `json:"annotations,omitempty"`
	RequestReceivedTimestamp time.Time         `json:"requestReceivedTimestamp"`
	StageTimestamp           time.Time         `json:"stageTimestamp"`

	// Source is where the event came from ("file:audit.log", "archive"): not part of its identity.
	Source string `json:"source,omitempty"`
}

// object is the event's objectRef, empty if it has none.
func (e *Event) object() ObjectRef {
	if e.ObjectRef == nil {
		return ObjectRef{}
	}
	return *e.ObjectRef
}

// Operation is the operation that the event asks for, if it is a request for one.
func (e *Event) Operation() (ledger.Operation, bool) {
	o := e.object()
	if o.APIGroup != Group || o.Resource != Resource || e.Verb != "create" || o.Name == "" || o.Namespace == "" {
		return "", false
	}
	switch o.Subresource {
	case "mint":
		return ledger.Mint, true
	case "revoke":
		return ledger.Revoke, true
	}
	return "", false
}

// IsWrite reports whether the event is a write of an account Secret.
func (e *Event) IsWrite() bool {
	o := e.object()
	if o.APIGroup != "" || o.Resource != "secrets" || o.Subresource != "" || o.Namespace == "" {
		return false
	}
	switch e.Verb {
	case "create", "update", "patch", "delete":
		return strings.HasSuffix(o.Name, AccountSecretSuffix) && len(o.Name) > len(AccountSecretSuffix)
	}
	return false
}

// Account is the namespace and the credential's name (<release>.<account>) that a request or a write is about.
func (e *Event) Account() (namespace, credential string) {
	o := e.object()
	if e.IsWrite() {
		return o.Namespace, strings.TrimSuffix(o.Name, AccountSecretSuffix)
	}
	return o.Namespace, o.Name
}

// EffectiveUser is the user on whose behalf the request ran: the impersonated one, else the authenticated one. At
// RequestReceived nobody is impersonated yet.
func (e *Event) EffectiveUser() string {
	if e.ImpersonatedUser != nil {
		return e.ImpersonatedUser.Username
	}
	return e.User.Username
}

// Impersonator is the authenticated user, where the request ran on behalf of another; else "".
func (e *Event) Impersonator() string {
	if e.ImpersonatedUser != nil {
		return e.User.Username
	}
	return ""
}

// An Outcome is what an event can say about whether its request took effect, from least to most.
type Outcome int

const (
	// Refused: definitely not done, by kube-apiserver or by the server behind it.
	Refused Outcome = iota
	// Received: asked for, nothing known of the rest.
	Received
	// Indeterminate: only the ledger can tell.
	Indeterminate
	// Succeeded: the server behind kube-apiserver reported success.
	Succeeded
)

// DecisionAnnotation is where kube-apiserver's authorizer says "allow" or "forbid".
const DecisionAnnotation = "authorization.k8s.io/decision"

// ClosedEarly is the message of the 200 that kube-apiserver records when nothing was written.
const ClosedEarly = "Connection closed early"

// Outcome reads stage, decision and status. A status other than 2xx and 4xx at ResponseComplete proves nothing: a
// client can make kube-apiserver record 100, 101 and 503 for a request that was done.
func (e *Event) Outcome() Outcome {
	if e.Stage == RequestReceived {
		return Received
	}
	if e.Annotations[DecisionAnnotation] != "allow" {
		return Refused
	}
	if e.Stage != ResponseComplete || e.ResponseStatus == nil {
		return Indeterminate
	}
	code := e.ResponseStatus.Code
	switch {
	case code >= 400 && code < 500:
		return Refused
	case code >= 200 && code < 300 && e.ResponseStatus.Message != ClosedEarly:
		return Succeeded
	}
	return Indeterminate
}

const dryRun = "dryRun"

// DryRun reports whether the URI asks for a dry run. A query that does not parse keeps the parts that do.
func (e *Event) DryRun() bool {
	_, query, _ := strings.Cut(e.RequestURI, "?")
	if !strings.Contains(query, dryRun) && !strings.Contains(query, "%") {
		return false // most events: no key of the query can be that
	}
	values, _ := url.ParseQuery(query)
	return values.Has(dryRun)
}

// Eligible reports whether the event can stand for an operation that took effect.
func (e *Event) Eligible() bool { return e.Outcome() != Refused && !e.DryRun() }

// Identity is a digest of every field that the fold reads, in canonical form: the same from every source, and another
// for two events that share an audit id.
func (e *Event) Identity() string {
	o := e.object()
	code, early := 0, false
	if e.ResponseStatus != nil {
		code, early = e.ResponseStatus.Code, e.ResponseStatus.Message == ClosedEarly
	}
	impersonated := "-"
	if e.ImpersonatedUser != nil {
		impersonated = "+" + e.ImpersonatedUser.Username
	}
	canonical := make([]byte, 0, 1<<10) // each part behind its length, so that no two lists of parts look alike
	for _, part := range []string{
		e.AuditID, string(e.Stage), e.Verb, e.User.Username, impersonated,
		o.APIGroup, o.Resource, o.Subresource, o.Namespace, o.Name, o.UID,
		strconv.Itoa(code), strconv.FormatBool(early), e.Annotations[DecisionAnnotation], strconv.FormatBool(e.DryRun()),
		canonicalTime(e.RequestReceivedTimestamp), canonicalTime(e.StageTimestamp),
	} {
		canonical = strconv.AppendInt(canonical, int64(len(part)), 10)
		canonical = append(append(canonical, ':'), part...)
	}
	digest := sha256.Sum256(canonical)
	return hex.EncodeToString(digest[:])
}

// Plausible reports whether t is a time that every store of events can hold.
func Plausible(t time.Time) bool { return t.UTC().Year() >= 1970 && t.UTC().Year() <= 9999 }

// canonicalTime is what kube-apiserver's microseconds survive as in every source.
func canonicalTime(t time.Time) string {
	return t.UTC().Truncate(time.Microsecond).Format("2006-01-02T15:04:05.000000Z")
}
