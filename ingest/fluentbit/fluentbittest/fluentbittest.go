// Package fluentbittest makes the records that Fluent Bit makes of lines of an audit log, for tests.
package fluentbittest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/tinylib/msgp/msgp"
)

// A Shape is what parser and filters make of an event.
type Shape int

const (
	// Plain is the event as the JSON parser leaves it with Time_Keep.
	Plain Shape = iota
	// Parsed is the event less the time of reception, which is the record's time only.
	Parsed
	// Lifted is Parsed with user lifted to the prefix user_ and three fields added: Cozystack's pipeline.
	Lifted
	// Flat is Lifted with every object flattened by dots.
	Flat
	// Strings is Flat with every value a string, lists as JSON: as VictoriaLogs stores Lifted.
	Strings
	// Unparsed is the line as one string, under the time at which it was read.
	Unparsed
)

// Shapes are all of them, and how a test calls them.
var Shapes = map[string]Shape{
	"plain": Plain, "parsed": Parsed, "lifted": Lifted, "flat": Flat, "strings": Strings, "unparsed": Unparsed,
}

// A Format is how Fluent Bit puts a record's time.
type Format int

const (
	// V2 is [[EventTime, metadata], map], since Fluent Bit 2.1.
	V2 Format = iota
	// Legacy is [EventTime, map].
	Legacy
	// Seconds is [whole seconds, map].
	Seconds
)

const received = "requestReceivedTimestamp"

// Record is the record of a line in msgpack.
func Record(line []byte, shape Shape, format Format) ([]byte, error) {
	if shape == Unparsed {
		return Pack(time.Now(), map[string]any{"log": string(line)}, format)
	}
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.UseNumber()
	var members map[string]any
	if err := decoder.Decode(&members); err != nil {
		return nil, fmt.Errorf("reading an audit event: %w", err)
	}
	at, err := parserTime(members)
	if err != nil {
		return nil, err
	}
	if shape != Plain {
		delete(members, received)
	}
	if shape >= Lifted {
		user, _ := members["user"].(map[string]any)
		delete(members, "user")
		for name, value := range user {
			members["user_"+name] = value
		}
		maps.Copy(members, map[string]any{"log_source": "audit_log", "tenant": "tenant-root", "cluster": "root"})
	}
	if shape >= Flat {
		flat := map[string]any{}
		flatten(flat, "", members)
		members = flat
	}
	if shape == Strings {
		for name, value := range members {
			if members[name], err = asString(value); err != nil {
				return nil, err
			}
		}
	}
	return Pack(at, plain(members).(map[string]any), format)
}

// Pack is a record in msgpack.
func Pack(at time.Time, members map[string]any, format Format) ([]byte, error) {
	var b []byte
	switch format {
	case V2:
		b = msgp.AppendMapHeader(appendEventTime(msgp.AppendArrayHeader(msgp.AppendArrayHeader(b, 2), 2), at), 0)
	case Legacy:
		b = appendEventTime(msgp.AppendArrayHeader(b, 2), at)
	case Seconds:
		b = msgp.AppendUint64(msgp.AppendArrayHeader(b, 2), uint64(at.Unix()))
	}
	return msgp.AppendIntf(b, members)
}

func appendEventTime(b []byte, at time.Time) []byte {
	b = append(b, 0xd7, 0x00)
	b = binary.BigEndian.AppendUint32(b, uint32(at.Unix()))
	return binary.BigEndian.AppendUint32(b, uint32(at.Nanosecond()))
}

// parserTime is what Fluent Bit's parser takes for the time: the fraction is a floating-point number on its way to
// nanoseconds, and what is behind those is cut off.
func parserTime(members map[string]any) (time.Time, error) {
	s, _ := members[received].(string)
	at, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}, fmt.Errorf("reading %s: %w", received, err)
	}
	return Fraction(at), nil
}

// Fraction passes a time's fraction through floating point as Fluent Bit does.
func Fraction(at time.Time) time.Time {
	fraction, err := strconv.ParseFloat(fmt.Sprintf("0.%09d", at.Nanosecond()), 64)
	if err != nil {
		panic(err) // nine digits are a number
	}
	return time.Unix(at.Unix(), int64(fraction*1e9))
}

func flatten(into map[string]any, prefix string, members map[string]any) {
	for name, value := range members {
		if within, ok := value.(map[string]any); ok {
			flatten(into, prefix+name+".", within)
			continue
		}
		into[prefix+name] = value
	}
}

func asString(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case json.Number:
		return v.String(), nil
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return string(bytes.TrimSuffix(b.Bytes(), []byte{'\n'})), err
}

// plain makes integers of numbers.
func plain(value any) any {
	switch v := value.(type) {
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i
		}
		f, _ := v.Float64()
		return f
	case map[string]any:
		for name := range v {
			v[name] = plain(v[name])
		}
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	}
	return value
}
