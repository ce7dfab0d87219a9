package ingest

import (
	"encoding/json"
	"testing"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"
	kjson "sigs.k8s.io/json"

	"github.com/mintlog/mintlog/store/event"
)

// requireAlike holds that the two readers of JSON take a line for the same event, if both take it.
func requireAlike(t *testing.T, line []byte) {
	t.Helper()
	var first, second event.Event
	if jsonv2.Unmarshal(line, &first) != nil {
		return
	}
	strict, err := kjson.UnmarshalStrict(line, &second, kjson.DisallowDuplicateFields)
	if err != nil {
		return // a time with an escaped character
	}
	require.Empty(t, strict, "the first reader takes no key twice: %s", line)
	one, err := json.Marshal(first)
	require.NoError(t, err)
	other, err := json.Marshal(second)
	require.NoError(t, err)
	require.Equal(t, string(other), string(one), "%s", line)
	require.Equal(t, second.Identity(), first.Identity(), "%s", line)
}

func TestTheTwoReadersOfJSONReadAlike(t *testing.T) {
	for name, parts := range map[string][]string{
		"as kube-apiserver writes it": nil,
		"another case of a key":       {`"verb":`, `"Verb":`},
		"null for a user":             {`"user":{"username":"jane","groups":["tenant-acme-admin","system:authenticated"],`, `"user":null,"other":{`},
		"null in a list":              {`"10.0.0.1"]`, `null]`},
		"null for a list":             {`["192.0.2.7","10.0.0.1"]`, `null`},
		"an empty list":               {`["192.0.2.7","10.0.0.1"]`, `[]`},
		"null for a time":             {`"2026-08-21T10:00:00.000001Z"`, `null`},
		"a time of another zone":      {`10:00:00.000001Z`, `12:00:00.000001+02:00`},
		"null for a code":             {`"code":201`, `"code":null`},
		"null in annotations":         {`"authorization.k8s.io/decision":"allow"`, `"authorization.k8s.io/decision":null`},
		"an escaped key":              {`"verb":`, `"v\u0065rb":`},
		"white space":                 {`"verb":"create"`, "\"verb\" :\t\"create\" "},
		"a surrogate pair":            {`"jane"`, `"\ud83d\ude00"`},
		"a body":                      {`"verb"`, `"requestObject":{"a":[1e400,-0,{"b":null}]},"verb"`},
	} {
		t.Run(name, func(t *testing.T) {
			line := []byte(with(t, mint, parts...))
			var e event.Event
			require.NoError(t, jsonv2.Unmarshal(line, &e), "or nothing is compared")
			requireAlike(t, line)
		})
	}
}

func TestWhatTheFirstReaderRefusesIsReadByTheSecondAsBefore(t *testing.T) {
	f := func(name, wantReason string, parts ...string) {
		t.Run(name, func(t *testing.T) {
			line := []byte(with(t, write, parts...))
			require.Error(t, jsonv2.Unmarshal(line, new(event.Event)), "or the second reader is not asked")
			e, ours, err := Decode(line)
			if wantReason != "" {
				require.Equal(t, wantReason, err.(*DecodeError).Reason)
				return
			}
			require.NoError(t, err)
			require.True(t, ours)
			require.Equal(t, "postgres-orders.app.account", e.ObjectRef.Name)
		})
	}
	f("a key twice in a body that a client sent", "", `"responseStatus"`, `"requestObject":{"data":{"a":"1","a":"2"}},"responseStatus"`)
	f("a key twice that an event does not have", "", `"level":"Metadata"`, `"level":"Metadata","level":"Request"`)
	f("half a surrogate pair", "", `"1b"`, `"\ud800"`)
	f("a key twice that an event has", DuplicateKey, `"verb":"update"`, `"verb":"get","verb":"update"`)
	f("a key twice, once escaped", DuplicateKey, `"verb":"update"`, `"verb":"get","v\u0065rb":"update"`)
	f("bytes that are no UTF-8 in a body", "", `"responseStatus"`, "\"requestObject\":{\"a\":\"\xff\"},\"responseObject\":{\"b\":\"\xc3\"},\"responseStatus\"")
	f("bytes that are no UTF-8", InvalidUTF8, `"1b"`, "\"\xff\"")
	f("such bytes in a body and elsewhere", InvalidUTF8, `"1b"`, "\"\xff\",\"requestObject\":{\"a\":\"\xff\"}")
	f("such bytes in what is no body", InvalidUTF8, `"1b"`, "\"1b\",\"RequestObject\":{\"a\":\"\xff\"}")
	f("a number for a name", Malformed, `"1b"`, `1`)
	f("something behind the event", Malformed, `"secret"}}`, `"secret"}}{}`)
}

func TestAPatchOfSomethingElseIsNeitherOursNorLostWhateverItsClientSent(t *testing.T) {
	for name, body := range map[string]string{
		"bytes that are no UTF-8":    "{\"a\":\"" + event.Group + "\xff\"}",
		"a key twice":                `{"a":"` + event.Group + `","a":1}`,
		"half a surrogate pair":      `{"a":"` + event.Group + `\ud800"}`,
		"what looks like a decision": `{"objectRef":{"apiGroup":"` + event.Group + `","apiGroup":"x"},"b":"\u0061"}`,
	} {
		t.Run(name, func(t *testing.T) {
			line := []byte(with(t, write, `"name":"postgres-orders.app.account"`, `"name":"x"`, `"update"`, `"patch"`, `"responseStatus"`, `"requestObject":`+body+`,"responseStatus"`))
			require.True(t, couldBeOurs(line))
			_, ours, err := Decode(line)
			require.NoError(t, err)
			require.False(t, ours)
		})
	}
}

// FuzzReaders holds that whichever reader of JSON takes a line, it is the same event.
func FuzzReaders(f *testing.F) {
	f.Add([]byte(mint))
	f.Add([]byte(write))
	f.Add([]byte(`{"user":null,"objectRef":null,"sourceIPs":[null],"annotations":{"a":null},"responseStatus":{"code":-0}}`))
	f.Add([]byte(`{"AuditID":"a","auditID":"b","stageTimestamp":"2026-08-21T12:00:00.1+02:00"}`))
	f.Fuzz(func(t *testing.T, line []byte) { requireAlike(t, line) })
}
