package ingest

import (
	"bytes"
	"sync"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/mintlog/mintlog/store/event"
)

// What an event of ours holds as strings, and in what others can hold the same without being ours.
var (
	operations = [][]byte{[]byte(`"mint"`), []byte(`"revoke"`)}
	secrets    = []byte(`"secrets"`)
	writes     = [][]byte{[]byte(`"create"`), []byte(`"update"`), []byte(`"patch"`), []byte(`"delete"`)}
	bodies     = []byte(`Object":{`)
)

// likely reports whether a line that could be ours probably is. It is a guess, from strings alone.
func likely(line []byte) bool {
	asks := containsAny(line, operations) || bytes.Contains(line, secrets) && containsAny(line, writes)
	return asks && !bytes.Contains(line, bodies)
}

func containsAny(line []byte, needles [][]byte) bool {
	for _, needle := range needles {
		if bytes.Contains(line, needle) {
			return true
		}
	}
	return false
}

// A likeness is of an event what makes it ours, as it stands in the line. It can be used again, so that a line of
// others costs no memory: a log has many more lines that look like ours than lines of ours.
type likeness struct {
	Verb      jsontext.Value `json:"verb"`
	ObjectRef struct {
		APIGroup jsontext.Value `json:"apiGroup"`
		Resource jsontext.Value `json:"resource"`
	} `json:"objectRef"`
}

var likenesses = sync.Pool{New: func() any { return new(likeness) }}

// isOthers reports whether a line is an event that is certainly not ours: one that is whole, has no key twice, and has
// another object or verb. Of what it does not understand it says no.
func isOthers(line []byte) bool {
	l := likenesses.Get().(*likeness)
	defer likenesses.Put(l)
	o := &l.ObjectRef
	for _, v := range []*jsontext.Value{&l.Verb, &o.APIGroup, &o.Resource} {
		*v = (*v)[:0]
	}
	if jsonv2.Unmarshal(line, l) != nil {
		return false
	}
	for _, v := range []jsontext.Value{l.Verb, o.APIGroup, o.Resource} {
		if len(v) > 0 && v[0] != '"' || bytes.IndexByte(v, '\\') >= 0 {
			return false
		}
	}
	request := is(o.APIGroup, event.Group) && is(o.Resource, event.Resource) && is(l.Verb, "create")
	write := (len(o.APIGroup) == 0 || is(o.APIGroup, "")) && is(o.Resource, "secrets") && containsAny(l.Verb, writes)
	return !request && !write
}

// is reports whether v is a string without escapes.
func is(v jsontext.Value, s string) bool { return len(v) == len(s)+2 && string(v[1:len(v)-1]) == s }
