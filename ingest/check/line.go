package check

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	kjson "sigs.k8s.io/json"

	"github.com/mintlog/mintlog/ingest"
	"github.com/mintlog/mintlog/store/event"
)

// What every line of kube-apiserver's has, in this form; none of it can stand inside a JSON string.
var (
	eventStart = []byte(`{"kind":"Event"`)
	auditStart = []byte(`{"kind":"Event","apiVersion":"audit.k8s.io/`)
	userField  = []byte(`"user":{`)
	timeField  = []byte(`"requestReceivedTimestamp":"`)
	ends       = [2][]byte{[]byte(`}}`), []byte(`Z"}`)} // with annotations, without
)

// plain reports whether a line looks like one whole event of kube-apiserver's, without decoding it. Of a line that
// does not, nothing is known.
func plain(line []byte) bool {
	line = bytes.TrimSuffix(line, []byte{'\r'})
	return bytes.HasPrefix(line, auditStart) && (bytes.HasSuffix(line, ends[0]) || bytes.HasSuffix(line, ends[1])) &&
		bytes.Contains(line, userField) && bytes.Contains(line, timeField) &&
		!bytes.Contains(line[1:], eventStart) && bytes.IndexByte(line, 0) < 0 && utf8.Valid(line)
}

// maxResynchronisations bounds the work that a hostile line can cause, as in ingest.
const maxResynchronisations = 64

// examine decodes a line in full and counts the events in it: several whole ones, and after a torn part the one that
// fills the rest of the line, as ingest.Salvage has them. It returns the first place that could not be read, with its
// offset in the line, if there is one, and with the bytes of all of them.
func (r *reader) examine(line []byte) (problem Problem, found bool) {
	lost := func(at, length int, err *ingest.DecodeError) {
		if !found {
			problem = Problem{Offset: int64(at), Reason: err.Reason, Detail: err.Detail}
		}
		found, problem.Bytes = true, problem.Bytes+int64(length)
	}
	events := r.counts.Events
	at := 0
	for {
		at += len(line[at:]) - len(bytes.TrimLeft(line[at:], " \t\r"))
		if at == len(line) {
			return problem, found
		}
		value := firstValue(line[at:])
		if len(value) == 0 {
			break
		}
		e, ours, err := decode(value)
		if err == nil {
			r.event(e, ours)
		} else if _, _, refused := ingest.Decode(value); refused == nil { // ingest reads on behind it as well
			lost(at, len(value), err)
		} else {
			break
		}
		at += len(value)
	}
	r.examineTail(line, at, lost)
	if problem.Reason == ingest.Malformed && r.counts.Events > events {
		problem.Reason = Torn
	}
	return problem, found
}

// examineTail looks for the event that fills the end of a line, which cannot be read at at.
func (r *reader) examineTail(line []byte, at int, lost func(at, length int, err *ingest.DecodeError)) {
	var first *ingest.DecodeError
	start := at
	for range maxResynchronisations {
		e, ours, err := decode(line[start:])
		if err == nil {
			r.event(e, ours)
			if first != nil {
				lost(at, start-at, first)
			}
			return
		}
		if first == nil {
			first = err
		}
		next := bytes.Index(line[start+1:], eventStart)
		if next < 0 {
			break
		}
		start += 1 + next
	}
	lost(at, len(line)-at, first)
}

// firstValue is the JSON value that text begins with, empty if there is none.
func firstValue(text []byte) []byte {
	decoder := json.NewDecoder(bytes.NewReader(text))
	var value json.RawMessage
	if decoder.Decode(&value) != nil {
		return nil
	}
	return text[:decoder.InputOffset()]
}

// decode decodes one event, in full also if it is not ours.
func decode(text []byte) (event.Event, bool, *ingest.DecodeError) {
	e, ours, err := ingest.Decode(text)
	if ours {
		return e, true, nil
	}
	if wrong := wrongShape(text); wrong != nil {
		return e, false, wrong
	}
	var decodeErr *ingest.DecodeError
	if err != nil && !errors.As(err, &decodeErr) {
		decodeErr = &ingest.DecodeError{Reason: ingest.Malformed}
	}
	return e, false, decodeErr
}

// wrongShape says what text lacks to be an audit event. It quotes nothing.
func wrongShape(text []byte) *ingest.DecodeError {
	var shape struct {
		Kind       json.RawMessage `json:"kind"`
		APIVersion json.RawMessage `json:"apiVersion"`
		User       json.RawMessage `json:"user"`
		Received   json.RawMessage `json:"requestReceivedTimestamp"`
	}
	err := kjson.UnmarshalCaseSensitivePreserveInts(text, &shape)
	if syntax, offset := kjson.SyntaxErrorOffset(err); syntax {
		return &ingest.DecodeError{Reason: ingest.Malformed, Detail: syntaxDetail(text, offset, err)}
	}
	if !utf8.Valid(text) {
		return &ingest.DecodeError{Reason: ingest.InvalidUTF8, Detail: fmt.Sprintf("after %d bytes", validUTF8(text))}
	}
	if trimmed := bytes.TrimLeft(text, " \t\r"); err != nil || trimmed[0] != '{' {
		return &ingest.DecodeError{Reason: ingest.Malformed, Detail: "no JSON object"}
	}
	for _, field := range []struct {
		value json.RawMessage
		start string
		wrong string
	}{
		{shape.Kind, `"Event"`, "kind is not Event"},
		{shape.APIVersion, `"audit.k8s.io/`, "apiVersion is not of audit.k8s.io"},
		{shape.User, `{`, "no user"},
		{shape.Received, `"`, "no requestReceivedTimestamp"},
	} {
		if !bytes.HasPrefix(field.value, []byte(field.start)) {
			return &ingest.DecodeError{Reason: NotAnEvent, Detail: field.wrong}
		}
	}
	return nil
}

// syntaxDetail says what is wrong. The offset is the number of bytes up to the one that is, that one included.
func syntaxDetail(text []byte, offset int64, err error) string {
	if err.Error() == endOfInput {
		return "cut off"
	}
	good := min(max(1, offset), int64(len(text))) - 1
	what := "no JSON"
	if text[good] == 0 {
		what = "NUL bytes"
	}
	if good == 0 {
		return what
	}
	return fmt.Sprintf("%s after %d bytes", what, good)
}

// endOfInput is the one error of the JSON decoder that is not about a byte.
const endOfInput = "unexpected end of JSON input"

// validUTF8 is how many bytes of text are valid before the first that is not.
func validUTF8(text []byte) int {
	at := 0
	for at < len(text) {
		r, width := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && width == 1 {
			break
		}
		at += width
	}
	return at
}
