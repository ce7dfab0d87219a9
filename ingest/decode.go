package ingest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	jsonv2 "github.com/go-json-experiment/json"
	kjson "sigs.k8s.io/json"

	"github.com/mintlog/mintlog/store/event"
)

// Why a line that could be ours could not be decoded.
const (
	// Malformed: it is not one JSON object, or a field has another type than kube-apiserver gives it.
	Malformed = "malformed"
	// DuplicateKey: a key stands twice in one object, so that two readers may read two events.
	DuplicateKey = "duplicate_key"
	// InvalidUTF8: kube-apiserver writes none, but for a patch that a client sent, which it writes as it came.
	InvalidUTF8 = "invalid_utf8"
	// Incomplete: an event of ours without audit id, stage or times.
	Incomplete = "incomplete"
)

// A DecodeError says why a line could not be decoded. It never quotes the line.
type DecodeError struct {
	Reason string // one of the constants above
	Detail string // for people; may be empty
}

func (e *DecodeError) Error() string {
	if e.Detail == "" {
		return "decoding an audit event: " + e.Reason
	}
	return "decoding an audit event: " + e.Reason + ": " + e.Detail
}

// eventStart is what every line of kube-apiserver's begins with. It cannot stand inside a JSON string.
var eventStart = []byte(`{"kind":"Event"`)

const reasonAnnotation = "authorization.k8s.io/reason"

// Decode decodes one audit event and reports whether it is ours: a request for a mint or revoke at any stage, or a
// write of an account Secret at a final stage. A line that cannot be ours is not decoded, so it gives no error whatever
// it holds; nor does an event with another object or verb. The event keeps nothing of the line. Its strings and lists are bounded: what is longer is cut and ends in
// its length and digest.
func Decode(line []byte) (event.Event, bool, error) {
	if !couldBeOurs(line) || !likely(line) && isOthers(line) {
		return event.Event{}, false, nil
	}
	return decode(line)
}

// Salvage decodes a line that may begin with what a crash of its writer left of earlier ones: there the next event
// follows without a line break. It calls found with every event of ours, and returns how many bytes belong to no whole
// event, and why the first of them could not be decoded.
//
// After the first unreadable byte only an event that fills the rest of the line counts: in the torn part something
// that looks like an event may be a body that a client sent.
func Salvage(line []byte, found func(event.Event)) (lost int, err error) {
	e, ours, err := Decode(line)
	if err == nil {
		if ours {
			found(e)
		}
		return 0, nil
	}
	rest := line
	for len(rest) > 0 {
		whole := firstValue(rest)
		e, ours, wholeErr := Decode(whole)
		if len(whole) == 0 || wholeErr != nil {
			break
		}
		if ours {
			found(e)
		}
		rest = rest[len(whole):]
	}
	return salvageTail(rest, found)
}

// firstValue is the JSON value that line begins with, empty if there is none.
func firstValue(line []byte) []byte {
	decoder := json.NewDecoder(bytes.NewReader(line))
	var value json.RawMessage
	if decoder.Decode(&value) != nil {
		return nil
	}
	return line[:decoder.InputOffset()]
}

// maxResynchronisations bounds the work that a hostile line can cause.
const maxResynchronisations = 64

// salvageTail looks for the event that fills the end of a line.
func salvageTail(line []byte, found func(event.Event)) (lost int, err error) {
	start := 0
	for range maxResynchronisations {
		e, ours, decodeErr := Decode(line[start:])
		if decodeErr == nil {
			if ours {
				found(e)
			}
			return start, err
		}
		if err == nil {
			err = decodeErr
		}
		next := bytes.Index(line[start+1:], eventStart)
		if next < 0 {
			break
		}
		start += 1 + next
	}
	return len(line), err
}

// decode is Decode without the look beforehand.
func decode(line []byte) (event.Event, bool, error) {
	e, ambiguous, err := unmarshal(line)
	if err != nil {
		return event.Event{}, false, err
	}
	if !matches(&e) {
		return event.Event{}, false, nil
	}
	if ambiguous {
		return event.Event{}, false, &DecodeError{Reason: DuplicateKey}
	}
	if missing := missingField(&e); missing != "" {
		return event.Event{}, false, &DecodeError{Reason: Incomplete, Detail: "no " + missing}
	}
	reduce(&e)
	return e, true, nil
}

// unmarshal reads a line's JSON, and reports whether a key that an event has stands twice in one object.
//
// The first reader is three times faster than the second and takes less: no key twice anywhere, only valid UTF-8. What
// it refuses is for the second to judge, which reads a key twice where an event has none, in a body that a client sent,
// and tells what is wrong. What both take they read alike.
func unmarshal(line []byte) (e event.Event, ambiguous bool, err error) {
	if jsonv2.Unmarshal(line, &e) == nil {
		return e, false, nil
	}
	if !utf8.Valid(line) && !validButForBodies(line) {
		return event.Event{}, false, &DecodeError{Reason: InvalidUTF8}
	}
	e = event.Event{} // of what the first reader had read
	strict, err := kjson.UnmarshalStrict(line, &e, kjson.DisallowDuplicateFields)
	if err != nil {
		return event.Event{}, false, &DecodeError{Reason: Malformed, Detail: shape(err)}
	}
	return e, len(strict) > 0, nil
}

// validButForBodies reports whether all that is no UTF-8 in a line stands in bodies, which nothing here reads: whoever
// may patch anything could otherwise have a line count for lost by naming the group in it.
func validButForBodies(line []byte) bool {
	var bodies struct {
		Request  json.RawMessage `json:"requestObject"`
		Response json.RawMessage `json:"responseObject"`
	}
	err := kjson.UnmarshalCaseSensitivePreserveInts(line, &bodies)
	return err == nil && invalid(line) == invalid(bodies.Request)+invalid(bodies.Response)
}

// invalid is how many bytes of b are no UTF-8.
func invalid(b []byte) (n int) {
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		if r == utf8.RuneError && size == 1 {
			n++
		}
		b = b[size:]
	}
	return n
}

// shape says what is wrong with a line's JSON without quoting it.
func shape(err error) string {
	if syntax, offset := kjson.SyntaxErrorOffset(err); syntax {
		return fmt.Sprintf("no JSON at byte %d", offset)
	}
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) {
		return fmt.Sprintf("%s is no %s", mismatch.Field, mismatch.Type)
	}
	return "a field does not parse"
}

// matches reports whether the event is ours, by its decoded object and never by its URI.
func matches(e *event.Event) bool {
	if _, request := e.Operation(); request {
		return true
	}
	return e.IsWrite() && (e.Stage == event.ResponseComplete || e.Stage == event.Panic)
}

func missingField(e *event.Event) string {
	switch {
	case e.AuditID == "":
		return "auditID"
	case e.Stage == "":
		return "stage"
	case !event.Plausible(e.RequestReceivedTimestamp):
		return "requestReceivedTimestamp"
	case !event.Plausible(e.StageTimestamp):
		return "stageTimestamp"
	}
	return ""
}

// reduce drops what nothing needs, and bounds the rest. Annotations other than the authorizer's may hold patches of
// objects, and the message of a refused write of a Secret may quote what is stored in it.
func reduce(e *event.Event) {
	e.Source = ""
	e.RequestReceivedTimestamp = e.RequestReceivedTimestamp.UTC()
	e.StageTimestamp = e.StageTimestamp.UTC()
	for key := range e.Annotations {
		if key != event.DecisionAnnotation && key != reasonAnnotation {
			delete(e.Annotations, key)
		}
	}
	if e.IsWrite() && e.ResponseStatus != nil && e.ResponseStatus.Message != event.ClosedEarly {
		e.ResponseStatus.Message = ""
	}
	bound(e)
}
