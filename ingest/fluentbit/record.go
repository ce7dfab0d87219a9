package fluentbit

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/mintlog/mintlog/ingest"
	"github.com/mintlog/mintlog/store/event"
)

// decode returns the events of ours in one record, [time, map] or [[time, metadata], map]. There is more than one only
// in a line that Fluent Bit could not parse.
func decode(record []byte) (events []event.Event, err error) {
	defer func() {
		if p := recover(); p != nil {
			events, err = nil, fmt.Errorf("decoding a record: panic of type %T", p) // its value could quote the record
		}
	}()
	at, members, err := open(record)
	if err != nil {
		return nil, err
	}
	r := reader{at: at}
	if err := eachMember(members, r.member); err != nil {
		return nil, err
	}
	if r.line != nil && !r.known {
		_, err := ingest.Salvage(r.line, func(e event.Event) { events = append(events, e) })
		return events, err
	}
	e, ours, err := ingest.Decode(r.json())
	if err != nil || !ours {
		return nil, err
	}
	return []event.Event{e}, nil
}

func malformed(format string, arguments ...any) error {
	return &ingest.DecodeError{Reason: ingest.Malformed, Detail: fmt.Sprintf(format, arguments...)}
}

func duplicate(name string) error {
	return &ingest.DecodeError{Reason: ingest.DuplicateKey, Detail: name}
}

// open takes a record apart: its time, zero if it has none that is known, and its map.
func open(record []byte) (time.Time, []byte, error) {
	parts, rest, err := msgp.ReadArrayHeaderBytes(record)
	if err != nil || parts != 2 {
		return time.Time{}, nil, malformed("a record is no pair")
	}
	head := rest
	members, err := skip(head)
	if err != nil {
		return time.Time{}, nil, malformed("a record is no pair")
	}
	if msgp.NextType(head) == msgp.ArrayType {
		size, within, err := msgp.ReadArrayHeaderBytes(head)
		if err != nil || size == 0 {
			return time.Time{}, nil, malformed("a record has no time")
		}
		head = within
	}
	return recordTime(head), members, nil
}

// recordTime reads the time that b begins with: Fluent Bit's EventTime, or seconds.
func recordTime(b []byte) time.Time {
	const eventTimeType, eventTimeSize = 0, 8
	if kind, data, ok := extension(b); ok {
		if kind != eventTimeType || len(data) != eventTimeSize {
			return time.Time{}
		}
		return microseconds(time.Unix(int64(binary.BigEndian.Uint32(data)), int64(binary.BigEndian.Uint32(data[4:]))))
	}
	if seconds, _, err := msgp.ReadInt64Bytes(b); err == nil {
		return time.Unix(seconds, 0)
	}
	if seconds, _, err := msgp.ReadFloat64Bytes(b); err == nil && math.Abs(seconds) < math.MaxInt32*1e3 {
		whole, fraction := math.Modf(seconds)
		return microseconds(time.Unix(int64(whole), int64(fraction*1e9)))
	}
	return time.Time{}
}

// microseconds undoes what Fluent Bit does to kube-apiserver's microseconds: it has them as a fraction in floating point
// on the way, and cuts that to nanoseconds, so that .000123 can become .000122999.
func microseconds(t time.Time) time.Time { return t.Round(time.Microsecond) }

// extension reads the extension that b begins with.
func extension(b []byte) (kind int8, data []byte, ok bool) {
	if msgp.NextType(b) != msgp.ExtensionType {
		return 0, nil, false
	}
	rest, err := skip(b)
	if err != nil {
		return 0, nil, false
	}
	b = b[:len(b)-len(rest)]
	switch b[0] { // a fixed length of 1 to 16, or a length of 1, 2 or 4 bytes
	case 0xc7:
		b = b[2:]
	case 0xc8:
		b = b[3:]
	case 0xc9:
		b = b[5:]
	default:
		b = b[1:]
	}
	return int8(b[0]), b[1:], true
}

// eachMember calls member with the name of each member of a map, and with its value, which is msgpack. Members whose
// name is no string are nobody's.
func eachMember(b []byte, member func(name string, value []byte) error) error {
	size, b, err := msgp.ReadMapHeaderBytes(b)
	if err != nil {
		return malformed("a record is no map")
	}
	for range size {
		key := b
		value, err := skip(key)
		if err != nil {
			return malformed("a map ends too early")
		}
		if b, err = skip(value); err != nil {
			return malformed("a map ends too early")
		}
		name, _, err := msgp.ReadStringZC(key)
		if err != nil {
			continue
		}
		if err := member(string(name), value[:len(value)-len(b)]); err != nil {
			return err
		}
	}
	return nil
}
