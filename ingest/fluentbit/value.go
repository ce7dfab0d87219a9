package fluentbit

import (
	"encoding/json"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/tinylib/msgp/msgp"

	"github.com/mintlog/mintlog/ingest"
)

// put adds a member whose value is of the given kind, or nil.
func put(o *object, name string, value []byte, kind func([]byte) ([]byte, error)) error {
	if !utf8.ValidString(name) {
		return &ingest.DecodeError{Reason: ingest.InvalidUTF8}
	}
	if msgp.IsNil(value) {
		o.put(name, []byte("null"))
		return nil
	}
	b, err := kind(value)
	if err != nil {
		return err
	}
	o.put(name, b)
	return nil
}

func text(value []byte) ([]byte, error) {
	s, err := str(value)
	if err != nil {
		return nil, err
	}
	return quote(s), nil
}

func str(value []byte) (string, error) {
	s, _, err := msgp.ReadStringZC(value)
	if err != nil {
		return "", malformed("a field is no string")
	}
	if !utf8.Valid(s) {
		return "", &ingest.DecodeError{Reason: ingest.InvalidUTF8}
	}
	return string(s), nil
}

// number takes whole numbers, and strings of their digits.
func number(value []byte) ([]byte, error) {
	if i, _, err := msgp.ReadInt64Bytes(value); err == nil {
		return strconv.AppendInt(nil, i, 10), nil
	}
	if f, _, err := msgp.ReadFloat64Bytes(value); err == nil && f == math.Trunc(f) && math.Abs(f) < math.MaxInt32 {
		return strconv.AppendInt(nil, int64(f), 10), nil
	}
	if s, _, err := msgp.ReadStringZC(value); err == nil {
		if i, err := strconv.ParseInt(string(s), 10, 64); err == nil {
			return strconv.AppendInt(nil, i, 10), nil
		}
	}
	return nil, malformed("a field is no number")
}

// list takes a list of strings, or one string, which is such a list in JSON or the only element.
func list(value []byte) ([]byte, error) {
	if msgp.NextType(value) != msgp.ArrayType {
		s, err := str(value)
		if err != nil {
			return nil, err
		}
		return listOf(s)
	}
	size, value, err := msgp.ReadArrayHeaderBytes(value)
	if err != nil {
		return nil, malformed("a field is no list")
	}
	b := []byte{'['}
	for i := range size {
		rest, err := skip(value)
		if err != nil {
			return nil, malformed("a field is no list")
		}
		element, err := text(value[:len(value)-len(rest)])
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b = append(b, ',')
		}
		b, value = append(b, element...), rest
	}
	return append(b, ']'), nil
}

func listOf(s string) ([]byte, error) {
	elements := []string{s}
	if s == "" || json.Unmarshal([]byte(s), &elements) != nil {
		elements = nil
		if s != "" {
			elements = []string{s}
		}
	}
	return json.Marshal(elements)
}
