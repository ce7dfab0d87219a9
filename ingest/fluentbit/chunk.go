package fluentbit

import (
	"bytes"
	"errors"

	"github.com/tinylib/msgp/msgp"

	"github.com/mintlog/mintlog/ingest"
	"github.com/mintlog/mintlog/store/event"
)

// Why something in a chunk was not used, beside the reasons of ingest.DecodeError.
const (
	oversized  = "oversized"  // a record of more than ingest.DefaultMaxLine bytes
	unreadable = "unreadable" // what follows the place in a chunk at which it stops being msgpack
	panicked   = "panic"      // a record on which the decoder failed in an unforeseen way
	tooLarge   = "too_large"  // an event that the stream's server does not take
)

var reasons = []string{
	ingest.Malformed, ingest.DuplicateKey, ingest.InvalidUTF8, ingest.Incomplete, oversized, unreadable, panicked, tooLarge,
}

// unused is something in a chunk that could have been an event of ours. It never quotes it.
type unused struct {
	reason string
	detail string // for people; may be empty
	bytes  int
}

// each calls take with every event of ours in a chunk, and report with everything that could have been one and is not
// usable. It returns how many records it has seen, and the first error of take, which ends it.
//
// It finds the end of each record by itself, since a decoder that says the same at the end and at a record it cannot
// read would lose what follows unseen. What is in a record that cannot be ours is not looked at.
func each(chunk []byte, take func(event.Event) error, report func(unused)) (records int, err error) {
	for len(chunk) > 0 {
		rest, err := skip(chunk)
		if err != nil {
			report(unused{unreadable, "no msgpack", len(chunk)})
			return records, nil
		}
		record := chunk[:len(chunk)-len(rest)]
		chunk = rest
		records++
		if !couldBeOurs(record) {
			continue
		}
		if len(record) > ingest.DefaultMaxLine {
			report(unused{oversized, "", len(record)})
			continue
		}
		events, err := decode(record)
		if err != nil {
			report(why(err, len(record)))
		}
		for _, e := range events {
			if err := take(e); err != nil {
				return records, err
			}
		}
	}
	return records, nil
}

// skip returns what follows the first value. It takes no stack, however deeply that value is nested.
func skip(b []byte) ([]byte, error) {
	for due := uint64(1); due > 0; due-- {
		var children uint32
		var err error
		switch msgp.NextType(b) {
		case msgp.MapType:
			children, b, err = msgp.ReadMapHeaderBytes(b)
			due += 2 * uint64(children)
		case msgp.ArrayType:
			children, b, err = msgp.ReadArrayHeaderBytes(b)
			due += uint64(children)
		default:
			b, err = msgp.Skip(b)
		}
		if err != nil {
			return nil, err
		}
	}
	return b, nil
}

// A record is looked at closer if it holds one of these. Strings stand in msgpack as they are; only a line that
// Fluent Bit could not parse, which it passes on as one string, may have escapes.
var marks = [][]byte{[]byte(event.Group), []byte(event.AccountSecretSuffix), []byte(`\u00`)}

func couldBeOurs(record []byte) bool {
	for _, mark := range marks {
		if bytes.Contains(record, mark) {
			return true
		}
	}
	return false
}

func why(err error, size int) unused {
	var undecoded *ingest.DecodeError
	if errors.As(err, &undecoded) {
		return unused{undecoded.Reason, undecoded.Detail, size}
	}
	return unused{panicked, err.Error(), size}
}
