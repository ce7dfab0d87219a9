package fluentbit

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/tinylib/msgp/msgp"
)

// A reader makes the audit event out of a record's members that kube-apiserver wrote, as JSON for ingest.Decode: what
// holds for a line of the log holds for a record then. A member that stands twice is there twice.
//
// It reads the record as kube-apiserver nests it, with user lifted to user_username and so on, with any object
// flattened to objectRef.name and so on, and with values made strings: a list is JSON then.
type reader struct {
	at     time.Time // of the record
	fields object
	line   []byte // that Fluent Bit could not parse
	known  bool   // a member of an audit event was there
	timed  bool   // the time of reception was among them

	user, impersonated, ref, status, annotations nested
	userExtra, impersonatedExtra                 nested
}

// An object is the inside of a JSON object.
type object []byte

func (o *object) put(name string, value []byte) {
	if len(*o) > 0 {
		*o = append(*o, ',')
	}
	*o = append(append(append(*o, quote(name)...), ':'), value...)
}

// quote makes JSON of a string that is UTF-8.
func quote(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings always marshal
	}
	return b
}

// nested is an object in the event. It comes as one map or as several members of the record, never both: of two, one
// could hide the other.
type nested struct {
	object
	whole, flat bool
}

// whole takes the map.
func (n *nested) takeWhole(name string, value []byte, member func(string, []byte) error) error {
	if n.whole || n.flat {
		return duplicate(name)
	}
	if msgp.IsNil(value) {
		return nil
	}
	n.whole = true
	if msgp.NextType(value) != msgp.MapType {
		return malformed("%s is no map", name)
	}
	return eachMember(value, member)
}

// takeFlat takes one member of the object.
func (n *nested) takeFlat(name, key string, value []byte, member func(string, []byte) error) error {
	if n.whole {
		return duplicate(name)
	}
	n.flat = true
	return member(key, value)
}

const (
	lineKey     = "log" // where Fluent Bit's tail puts a line that it could not parse
	receivedKey = "requestReceivedTimestamp"
)

// member takes a member of the record. What is none of an audit event's is let be.
func (r *reader) member(name string, value []byte) error {
	switch name {
	case lineKey:
		if line, _, err := msgp.ReadStringZC(value); err == nil {
			r.line = line
		}
		return nil
	case "auditID", "stage", "verb", "requestURI", "userAgent", "stageTimestamp", receivedKey:
		r.known = true
		r.timed = r.timed || name == receivedKey
		return put(&r.fields, name, value, text)
	case "sourceIPs":
		return put(&r.fields, name, value, list)
	}
	for _, n := range []struct {
		name     string
		prefixes []string
		object   *nested
		member   func(string, []byte) error
	}{
		{"user", []string{"user_", "user."}, &r.user, r.userMember(&r.user, &r.userExtra)},
		{"impersonatedUser", []string{"impersonatedUser."}, &r.impersonated, r.userMember(&r.impersonated, &r.impersonatedExtra)},
		{"objectRef", []string{"objectRef."}, &r.ref, r.refMember},
		{"responseStatus", []string{"responseStatus."}, &r.status, r.statusMember},
		{"annotations", []string{"annotations."}, &r.annotations, r.annotationMember},
	} {
		if name == n.name {
			r.known = true
			return n.object.takeWhole(name, value, n.member)
		}
		for _, prefix := range n.prefixes {
			if key, ok := strings.CutPrefix(name, prefix); ok {
				return n.object.takeFlat(name, key, value, n.member)
			}
		}
	}
	return nil
}

func (r *reader) userMember(user, extra *nested) func(string, []byte) error {
	extraMember := func(key string, value []byte) error { return put(&extra.object, key, value, list) }
	return func(key string, value []byte) error {
		switch key {
		case "username", "uid":
			return put(&user.object, key, value, text)
		case "groups":
			return put(&user.object, key, value, list)
		case "extra":
			return extra.takeWhole(key, value, extraMember)
		}
		if within, ok := strings.CutPrefix(key, "extra."); ok {
			return extra.takeFlat(key, within, value, extraMember)
		}
		return nil
	}
}

func (r *reader) refMember(key string, value []byte) error {
	switch key {
	case "apiGroup", "apiVersion", "resource", "subresource", "namespace", "name", "uid":
		return put(&r.ref.object, key, value, text)
	}
	return nil
}

func (r *reader) statusMember(key string, value []byte) error {
	switch key {
	case "code":
		return put(&r.status.object, key, value, number)
	case "status", "reason", "message":
		return put(&r.status.object, key, value, text)
	}
	return nil
}

func (r *reader) annotationMember(key string, value []byte) error {
	return put(&r.annotations.object, key, value, text)
}

// json is the event.
func (r *reader) json() []byte {
	r.user.close("extra", r.userExtra)
	r.impersonated.close("extra", r.impersonatedExtra)
	root := nested{object: r.fields}
	root.close("user", r.user)
	root.close("impersonatedUser", r.impersonated)
	root.close("objectRef", r.ref)
	root.close("responseStatus", r.status)
	root.close("annotations", r.annotations)
	if !r.timed && !r.at.IsZero() {
		root.put(receivedKey, quote(r.at.UTC().Format(time.RFC3339Nano)))
	}
	return root.braced()
}

// close puts an object that was there into the one around it.
func (n *nested) close(name string, within nested) {
	if within.whole || within.flat {
		n.put(name, within.braced())
	}
}

func (n *nested) braced() []byte { return append(append([]byte{'{'}, n.object...), '}') }
