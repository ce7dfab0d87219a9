package archive

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/mintlog/mintlog/store/event"
)

// Limits of VictoriaLogs, each with a margin. A line over its limit of 256 KiB takes later lines of the same request
// with it, and a field name over 128 bytes its whole row, both with an answer of 200.
const (
	maxLine      = 240 << 10
	maxFieldName = 128
	maxKeys      = 64 // of user.extra and of annotations, each
)

// How long free fields of an event are once it had to be shrunk, in bytes, and how many elements a list has.
const (
	shrunkField    = 1024
	shrunkElements = 16
)

// errTooLong is returned for an event that stays too long though everything was cut that may be cut.
var errTooLong = fmt.Errorf("event is longer than the %d bytes of a line of the archive", maxLine)

// A row is an event as VictoriaLogs has it: flat, and every value a string. An empty value is an absent one.
type row map[string]string

// Names of fields that are looked for. The others stand in toRow and fromRow.
const (
	fieldTime        = "_time"
	fieldMessage     = "_msg"
	fieldEventID     = "eventID"
	fieldUser        = "user_username"
	fieldEffective   = "impersonatedUser.username"
	fieldAuditID     = "auditID"
	fieldCluster     = "cluster" // in other pipelines' rows
	fieldGroup       = "objectRef.apiGroup"
	fieldResource    = "objectRef.resource"
	fieldSubresource = "objectRef.subresource"
	fieldNamespace   = "objectRef.namespace"
	fieldName        = "objectRef.name"
	fieldReceived    = "requestReceivedTimestamp"
	fieldStaged      = "stageTimestamp"

	// fieldImpersonated is there because an impersonated user of no name would leave nothing else.
	fieldImpersonated = "impersonated"

	logSource = "audit_log"
	// noURI stands for an empty requestURI: VictoriaLogs puts a text of its own in place of an empty message.
	noURI = "-"
)

// encode makes the line of an event, shrunk where it would be too long. What the event's identity rests on is never
// cut.
func encode(e *event.Event) ([]byte, error) {
	line, err := encodeRow(toRow(e))
	if err != nil || len(line) <= maxLine {
		return line, err
	}
	short := shrink(*e)
	r := toRow(&short)
	r["shrunk"] = "true"
	if line, err = encodeRow(r); err != nil {
		return nil, err
	}
	if len(line) > maxLine {
		return nil, errTooLong
	}
	return line, nil
}

func encodeRow(r row) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(r); err != nil {
		return nil, fmt.Errorf("encode a row: %w", err)
	}
	return b.Bytes(), nil
}

// toRow has the field names that Cozystack's pipeline writes, and ours: eventID, operation, source, impersonated,
// requestReceivedTimestamp.
func toRow(e *event.Event) row {
	r := row{
		fieldTime:     rowTime(e).Format(time.RFC3339Nano),
		fieldMessage:  e.RequestURI,
		"log_source":  logSource,
		"stage":       string(e.Stage),
		"verb":        e.Verb,
		fieldAuditID:  e.AuditID,
		"userAgent":   e.UserAgent,
		"sourceIPs":   joinList(e.SourceIPs),
		fieldReceived: e.RequestReceivedTimestamp.UTC().Format(time.RFC3339Nano),
		fieldStaged:   e.StageTimestamp.UTC().Format(time.RFC3339Nano),
		fieldEventID:  e.Identity(),
		"source":      e.Source,
		"operation":   operationOf(e),
	}
	if e.RequestURI == "" {
		r[fieldMessage] = noURI
	}
	r.putUser("user_", &e.User)
	if e.ImpersonatedUser != nil {
		r.putUser("impersonatedUser.", e.ImpersonatedUser)
		r[fieldImpersonated] = "true"
	}
	if o := e.ObjectRef; o != nil {
		r[fieldGroup], r["objectRef.apiVersion"], r["objectRef.uid"] = o.APIGroup, o.APIVersion, o.UID
		r[fieldResource], r[fieldSubresource] = o.Resource, o.Subresource
		r[fieldNamespace], r[fieldName] = o.Namespace, o.Name
	}
	if s := e.ResponseStatus; s != nil {
		r["responseStatus.code"] = strconv.Itoa(s.Code)
		r["responseStatus.status"], r["responseStatus.reason"], r["responseStatus.message"] = s.Status, s.Reason, s.Message
	}
	for _, key := range someKeys(e.Annotations, "annotations.") {
		r["annotations."+key] = e.Annotations[key]
	}
	r["annotations."+event.DecisionAnnotation] = e.Annotations[event.DecisionAnnotation] // its identity rests on this one, whatever the others are
	maps.DeleteFunc(r, func(_, value string) bool { return value == "" })
	return r
}

// rowTime is what an event is filed under. It has the microseconds that every source agrees on.
func rowTime(e *event.Event) time.Time {
	return e.RequestReceivedTimestamp.UTC().Truncate(time.Microsecond)
}

func operationOf(e *event.Event) string {
	if o, ok := e.Operation(); ok {
		return string(o)
	}
	if e.IsWrite() {
		return "Write"
	}
	return ""
}

func (r row) putUser(prefix string, u *event.User) {
	r[prefix+"username"], r[prefix+"uid"], r[prefix+"groups"] = u.Username, u.UID, joinList(u.Groups)
	for _, key := range someKeys(u.Extra, prefix+"extra.") {
		r[prefix+"extra."+key] = joinList(u.Extra[key])
	}
}

// someKeys are the keys that fit into a field name behind prefix, sorted, at most maxKeys; the keys that Kubernetes
// itself writes come first.
func someKeys[V any](m map[string]V, prefix string) []string {
	keys := slices.DeleteFunc(slices.Collect(maps.Keys(m)), func(key string) bool {
		return len(prefix)+len(key) > maxFieldName
	})
	slices.SortFunc(keys, func(a, b string) int {
		if x, y := kubernetesKey(a), kubernetesKey(b); x != y {
			if x {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	return keys[:min(len(keys), maxKeys)]
}

func kubernetesKey(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return strings.HasSuffix(domain, ".k8s.io") || strings.HasSuffix(domain, ".kubernetes.io")
}

// joinList is a list as VictoriaLogs stores one, as JSON.
func joinList(list []string) string {
	if len(list) == 0 {
		return ""
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(list); err != nil {
		panic(err) // strings always marshal
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// splitList reads what joinList wrote; anything else is a list of that one.
func splitList(s string) []string {
	if s == "" {
		return nil
	}
	var list []string
	if err := jsonv2.Unmarshal([]byte(s), &list); err != nil {
		return []string{s}
	}
	return list
}

// fromRow reads an event, written by this package or by Cozystack's pipeline, which keeps the time of reception in
// _time only, and may do so as a number of seconds, whose last digits are off by less than half a microsecond.
func fromRow(r row) (event.Event, error) {
	received, err := readTime(r, fieldReceived, fieldTime)
	if err != nil {
		return event.Event{}, err
	}
	if r[fieldReceived] == "" {
		received = received.Round(time.Microsecond)
	}
	staged, err := readTime(r, fieldStaged, "")
	if err != nil {
		return event.Event{}, err
	}
	e := event.Event{
		AuditID:                  r[fieldAuditID],
		Stage:                    event.Stage(r["stage"]),
		Verb:                     r["verb"],
		RequestURI:               r[fieldMessage],
		User:                     r.user("user_"),
		SourceIPs:                splitList(r["sourceIPs"]),
		UserAgent:                r["userAgent"],
		Annotations:              under(r, "annotations.", func(s string) string { return s }),
		RequestReceivedTimestamp: received,
		StageTimestamp:           staged,
		Source:                   r["source"],
	}
	if e.RequestURI == noURI {
		e.RequestURI = ""
	}
	if r[fieldImpersonated] != "" || r[fieldEffective] != "" {
		u := r.user("impersonatedUser.")
		e.ImpersonatedUser = &u
	}
	object := event.ObjectRef{
		APIGroup: r[fieldGroup], APIVersion: r["objectRef.apiVersion"], UID: r["objectRef.uid"],
		Resource: r[fieldResource], Subresource: r[fieldSubresource], Namespace: r[fieldNamespace], Name: r[fieldName],
	}
	if object != (event.ObjectRef{}) {
		e.ObjectRef = &object
	}
	if e.ResponseStatus, err = r.status(); err != nil {
		return event.Event{}, err
	}
	return e, nil
}

func (r row) status() (*event.ResponseStatus, error) {
	s := event.ResponseStatus{
		Status: r["responseStatus.status"], Reason: r["responseStatus.reason"], Message: r["responseStatus.message"],
	}
	code, ok := r["responseStatus.code"]
	if ok {
		var err error
		if s.Code, err = strconv.Atoi(code); err != nil {
			return nil, errors.New("responseStatus.code is no number")
		}
	}
	if !ok && s == (event.ResponseStatus{}) {
		return nil, nil
	}
	return &s, nil
}

func (r row) user(prefix string) event.User {
	return event.User{
		Username: r[prefix+"username"],
		UID:      r[prefix+"uid"],
		Groups:   splitList(r[prefix+"groups"]),
		Extra:    under(r, prefix+"extra.", splitList),
	}
}

// under collects the fields whose names begin with prefix.
func under[V any](r row, prefix string, read func(string) V) map[string]V {
	var m map[string]V
	for name, value := range r {
		if key, ok := strings.CutPrefix(name, prefix); ok {
			if m == nil {
				m = map[string]V{}
			}
			m[key] = read(value)
		}
	}
	return m
}

func readTime(r row, name, instead string) (time.Time, error) {
	value := r[name]
	if value == "" {
		value = r[instead]
	}
	t, err := time.Parse(time.RFC3339Nano, value)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s is no time", name)
	}
	return t.UTC(), nil
}

// shrink cuts what may be cut of an event that is too long, always in the same way.
func shrink(e event.Event) event.Event {
	e.User = shrinkUser(e.User)
	if e.ImpersonatedUser != nil {
		u := shrinkUser(*e.ImpersonatedUser)
		e.ImpersonatedUser = &u
	}
	e.UserAgent = cut(e.UserAgent)
	e.RequestURI = shrinkURI(&e)
	e.Source = cut(e.Source)
	e.SourceIPs = shrinkList(e.SourceIPs[max(0, len(e.SourceIPs)-shrunkElements):]) // the last is the one to trust
	if e.ResponseStatus != nil {
		s := *e.ResponseStatus
		s.Status, s.Reason, s.Message = cut(s.Status), cut(s.Reason), cut(s.Message)
		e.ResponseStatus = &s
	}
	annotations := map[string]string{}
	for key, value := range e.Annotations {
		if key == event.DecisionAnnotation {
			annotations[key] = value
		} else {
			annotations[key] = cut(value)
		}
	}
	e.Annotations = annotations
	return e
}

func shrinkUser(u event.User) event.User {
	u.UID, u.Groups = cut(u.UID), shrinkList(u.Groups)
	extra := map[string][]string{}
	for key, values := range u.Extra {
		if kubernetesKey(key) {
			extra[key] = shrinkList(values[:min(len(values), 1)])
		}
	}
	u.Extra = extra
	return u
}

// shrinkURI keeps the beginning of the path, and whether a dry run is asked for: the event's identity rests on that.
func shrinkURI(e *event.Event) string {
	path, query, found := strings.Cut(e.RequestURI, "?")
	if len(path) <= shrunkField && len(query) <= shrunkField {
		return e.RequestURI
	}
	path = cut(path)
	switch {
	case e.DryRun():
		return path + "?dryRun"
	case found && len(query) <= shrunkField:
		return path + "?" + query
	}
	return path
}

func shrinkList(list []string) []string {
	short := make([]string, 0, shrunkElements)
	for _, s := range list[:min(len(list), shrunkElements)] {
		short = append(short, cut(s))
	}
	return short
}

// cut ends a string before the character with which it would pass shrunkField bytes.
func cut(s string) string {
	if len(s) <= shrunkField {
		return s
	}
	end := shrunkField
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}
