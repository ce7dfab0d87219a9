package fluentbit

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tinylib/msgp/msgp"

	"github.com/mintlog/mintlog/ingest"
	"github.com/mintlog/mintlog/ingest/fluentbit/fluentbittest"
	"github.com/mintlog/mintlog/store/event"
)

// mint is a request as kube-apiserver records it.
const mint = `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata",` +
	`"auditID":"6f7f9c66-16d5-4c4b-8b43-7cf2a5f0a1de","stage":"ResponseComplete",` +
	`"requestURI":"/apis/credentials.cozystack.io/v1alpha1/namespaces/tenant-acme/credentials/postgres-orders.app/mint?x=%3C1&y=\u003c\u0026ü",` +
	`"verb":"create","user":{"username":"jane","uid":"u1","groups":["tenant-acme-admin","system:authenticated"],` +
	`"extra":{"authentication.kubernetes.io/credential-id":["X509SHA256=0c1d5f0a"]}},` +
	`"impersonatedUser":{"username":"olga","groups":["a"],"extra":{"example.org/x":["1","2"]}},"sourceIPs":["192.0.2.7","10.0.0.1"],` +
	`"userAgent":"kubectl/v1.37.2","objectRef":{"resource":"credentials","namespace":"tenant-acme",` +
	`"name":"postgres-orders.app","apiGroup":"credentials.cozystack.io","apiVersion":"v1alpha1","subresource":"mint"},` +
	`"responseStatus":{"metadata":{},"code":201},"requestReceivedTimestamp":"2026-08-21T10:00:00.000123Z",` +
	`"stageTimestamp":"2026-08-21T10:00:00.011002Z","annotations":{"authorization.k8s.io/decision":"allow",` +
	`"authorization.k8s.io/reason":"RBAC: allowed by RoleBinding \"x/y\""}}`

// write is an update of an account Secret as kube-apiserver records it.
const write = `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"1b","stage":"ResponseComplete",` +
	`"requestURI":"/api/v1/namespaces/tenant-acme/secrets/postgres-orders.app.account","verb":"update",` +
	`"user":{"username":"system:serviceaccount:cozy-mintlog:mint"},"sourceIPs":["10.0.0.2"],` +
	`"objectRef":{"resource":"secrets","namespace":"tenant-acme","name":"postgres-orders.app.account",` +
	`"uid":"9c0f1a7e-2f3a-4d6b-9d0e-0c2b6a1f4e57","apiVersion":"v1","resourceVersion":"42"},` +
	`"responseStatus":{"metadata":{},"status":"Failure","reason":"Conflict","message":"quotes a Secret","code":409},` +
	`"requestReceivedTimestamp":"2026-08-21T10:00:00.003001Z","stageTimestamp":"2026-08-21T10:00:00.006001Z",` +
	`"annotations":{"authorization.k8s.io/decision":"allow","mutation.webhook.admission.k8s.io/round_0_index_0":"secret"}}`

// received is the first event of a request.
const received = `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"2c","stage":"RequestReceived",` +
	`"requestURI":"/apis/credentials.cozystack.io/v1alpha1/namespaces/n/credentials/redis-a.default/revoke","verb":"create",` +
	`"user":{"username":"jane"},"sourceIPs":["10.0.0.1"],"objectRef":{"resource":"credentials","namespace":"n",` +
	`"name":"redis-a.default","apiGroup":"credentials.cozystack.io","apiVersion":"v1alpha1","subresource":"revoke"},` +
	`"requestReceivedTimestamp":"2026-08-21T10:00:00.999999Z","stageTimestamp":"2026-08-21T10:00:00.999999Z"}`

// other is an event that is nothing to us.
const other = `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"3d","stage":"ResponseComplete",` +
	`"requestURI":"/api/v1/pods","verb":"list","user":{"username":"jane"},"objectRef":{"resource":"pods","apiVersion":"v1"},` +
	`"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-08-21T10:00:00.1Z","stageTimestamp":"2026-08-21T10:00:00.2Z"}`

func record(t testing.TB, line string, shape fluentbittest.Shape, format fluentbittest.Format) []byte {
	t.Helper()
	b, err := fluentbittest.Record([]byte(line), shape, format)
	require.NoError(t, err)
	return b
}

// pack is a record of the given members at a time that is ours to choose.
func pack(t testing.TB, members map[string]any) []byte {
	t.Helper()
	b, err := fluentbittest.Pack(time.Date(2026, 8, 21, 10, 0, 0, 0, time.UTC), members, fluentbittest.V2)
	require.NoError(t, err)
	return b
}

// read is what each makes of a chunk.
func read(chunk []byte) (events []event.Event, reasons []string, records int) {
	records, _ = each(chunk, func(e event.Event) error { events = append(events, e); return nil },
		func(u unused) { reasons = append(reasons, u.reason) })
	return events, reasons, records
}

func fromFile(t testing.TB, line string) event.Event {
	t.Helper()
	e, ours, err := ingest.Decode([]byte(line))
	require.NoError(t, err)
	require.True(t, ours)
	return e
}

func TestAnEventIsTheSameThroughFluentBitAsThroughItsFile(t *testing.T) {
	for kind, line := range map[string]string{"mint": mint, "write": write, "received": received} {
		want := fromFile(t, line)
		for name, shape := range fluentbittest.Shapes {
			for _, format := range []fluentbittest.Format{fluentbittest.V2, fluentbittest.Legacy} {
				events, unused, records := read(record(t, line, shape, format))
				assert.Empty(t, unused, "%s, %s", kind, name)
				assert.Equal(t, 1, records)
				if assert.Len(t, events, 1, "%s, %s, format %d", kind, name, format) {
					assert.Equal(t, want, events[0], "%s, %s", kind, name)
					assert.Equal(t, want.Identity(), events[0].Identity())
				}
			}
		}
	}
}

func TestEveryMicrosecondSurvivesFluentBitsFloatingPoint(t *testing.T) {
	second := time.Date(2026, 8, 21, 10, 0, 0, 0, time.UTC)
	cut := 0
	for i := range 1_000_000 {
		want := second.Add(time.Duration(i) * time.Microsecond)
		at := fluentbittest.Fraction(want)
		if !at.Equal(want) {
			cut++
		}
		if got := microseconds(at); !got.Equal(want) {
			t.Fatalf("%s became %s", want, got)
		}
	}
	assert.Positive(t, cut, "none was cut, so this test shows nothing")
}

func TestATimeWithoutItsFractionGivesAnotherIdentityOnlyWhereTheRecordHasNoOther(t *testing.T) {
	identity := func(shape fluentbittest.Shape) string {
		events, _, _ := read(record(t, mint, shape, fluentbittest.Seconds))
		require.Len(t, events, 1)
		return events[0].Identity()
	}
	want := fromFile(t, mint)
	assert.Equal(t, want.Identity(), identity(fluentbittest.Plain))
	want.RequestReceivedTimestamp = want.RequestReceivedTimestamp.Truncate(time.Second)
	assert.Equal(t, want.Identity(), identity(fluentbittest.Parsed))
	assert.Equal(t, want.Identity(), identity(fluentbittest.Lifted))
}

func TestATimeInFloatingPointKeepsItsMicroseconds(t *testing.T) {
	b := msgp.AppendFloat64(nil, 1787306400.000123)
	assert.Equal(t, "2026-08-21T10:00:00.000123Z", recordTime(b).UTC().Format(time.RFC3339Nano))
}

func TestALineBehindATornOneIsFound(t *testing.T) {
	events, unused, _ := read(record(t, mint[:200]+mint, fluentbittest.Unparsed, fluentbittest.V2))
	require.Len(t, events, 1)
	assert.Equal(t, fromFile(t, mint), events[0])
	assert.Equal(t, []string{ingest.Malformed}, unused)
}

// edited is mint's members, changed.
func edited(t testing.TB, line string, edit func(map[string]any)) []byte {
	t.Helper()
	var members map[string]any
	require.NoError(t, json.Unmarshal([]byte(line), &members))
	edit(members)
	return pack(t, members)
}

// doubled is a record in which the given member is followed by another of a name that may be its own.
func doubled(t testing.TB, line, name string, value any) []byte {
	t.Helper()
	b := record(t, line, fluentbittest.Plain, fluentbittest.Legacy)
	const head = 1 + 10 // the pair, the time
	size, members, err := msgp.ReadMapHeaderBytes(b[head:])
	require.NoError(t, err)
	grown := msgp.AppendMapHeader(bytes.Clone(b[:head]), size+1)
	grown, err = msgp.AppendIntf(msgp.AppendString(append(grown, members...), name), value)
	require.NoError(t, err)
	return grown
}

func TestARecordThatIsNoEventOfOursOrCannotBeUsedSpoilsNoOther(t *testing.T) {
	ours := func(name string, value any) []byte {
		return edited(t, mint, func(m map[string]any) { m[name] = value })
	}
	mark := event.Group
	deep := append(append([]byte{0x92, 0x00, 0x81}, msgp.AppendString(nil, mark)...), bytes.Repeat([]byte{0x91}, 300_000)...)
	deep = append(deep, 0xc0)
	for name, c := range map[string]struct {
		record []byte
		want   []string
	}{
		"another event":                {record(t, other, fluentbittest.Lifted, fluentbittest.V2), nil},
		"a map":                        {msgp.AppendMapHeader(nil, 0), nil},
		"a map that names us":          {mustAppend(t, map[string]any{"objectRef": mark}), []string{ingest.Malformed}},
		"a string that names us":       {msgp.AppendString(nil, mark), []string{ingest.Malformed}},
		"bytes that name us":           {msgp.AppendBytes(nil, []byte(mark)), []string{ingest.Malformed}},
		"nil":                          {[]byte{0xc0}, nil},
		"a triple":                     {mustAppend(t, []any{1, 2, mark}), []string{ingest.Malformed}},
		"a pair without a map":         {mustAppend(t, []any{1, mark}), []string{ingest.Malformed}},
		"an empty head":                {mustAppend(t, []any{[]any{}, map[string]any{"x": mark}}), []string{ingest.Malformed}},
		"nested 300,000 deep":          {deep, nil},
		"user is a string":             {ours("user", "jane"), []string{ingest.Malformed}},
		"user is a number":             {ours("user", 1), []string{ingest.Malformed}},
		"objectRef is a list":          {ours("objectRef", []any{mark}), []string{ingest.Malformed}},
		"audit id is a number":         {ours("auditID", 7), []string{ingest.Malformed}},
		"audit id is bytes":            {ours("auditID", []byte("x")), []string{ingest.Malformed}},
		"audit id is empty":            {ours("auditID", ""), []string{ingest.Incomplete}},
		"audit id is nil":              {ours("auditID", nil), []string{ingest.Incomplete}},
		"no stage time":                {ours("stageTimestamp", nil), []string{ingest.Incomplete}},
		"stage time is no time":        {ours("stageTimestamp", "yesterday"), []string{ingest.Malformed}},
		"stage time is a number":       {ours("stageTimestamp", 1.5), []string{ingest.Malformed}},
		"code is a word":               {ours("responseStatus", map[string]any{"code": "many"}), []string{ingest.Malformed}},
		"code is a fraction":           {ours("responseStatus", map[string]any{"code": 200.5}), []string{ingest.Malformed}},
		"groups are numbers":           {ours("user", map[string]any{"username": "jane", "groups": []any{1}}), []string{ingest.Malformed}},
		"extra is a list":              {ours("user", map[string]any{"extra": []any{"x"}}), []string{ingest.Malformed}},
		"annotation is a map":          {ours("annotations", map[string]any{"x": map[string]any{}}), []string{ingest.Malformed}},
		"no UTF-8":                     {ours("userAgent", "\xff"), []string{ingest.InvalidUTF8}},
		"an annotation's key no UTF-8": {ours("annotations", map[string]any{"\xff": "x"}), []string{ingest.InvalidUTF8}},
		"user twice":                   {doubled(t, mint, "user", map[string]any{"username": "eve"}), []string{ingest.DuplicateKey}},
		"user and a lifted one":        {doubled(t, mint, "user_username", "eve"), []string{ingest.DuplicateKey}},
		"user and a flat one":          {doubled(t, mint, "user.username", "eve"), []string{ingest.DuplicateKey}},
		"verb twice":                   {doubled(t, mint, "verb", "create"), []string{ingest.DuplicateKey}},
		"objectRef and a flat one":     {doubled(t, mint, "objectRef.name", "x.y"), []string{ingest.DuplicateKey}},
		"no verb":                      {edited(t, mint, func(m map[string]any) { delete(m, "verb") }), nil},
		"an oversized one":             {ours("requestObject", strings.Repeat("x", ingest.DefaultMaxLine)), []string{oversized}},
		"a line that is no JSON":       {pack(t, map[string]any{"log": mark + " {"}), []string{ingest.Malformed}},
		"a line that is a number":      {pack(t, map[string]any{"log": 7, "x": mark}), nil},
		"a group's begin":              {mustAppend(t, []any{[]any{-1, map[string]any{"x": mark}}, map[string]any{}}), nil},
		"a pod's output":               {pack(t, map[string]any{"stream": "stdout", "message": mark}), nil},
	} {
		good := record(t, mint, fluentbittest.Lifted, fluentbittest.V2)
		events, unused, records := read(append(append(bytes.Clone(good), c.record...), good...))
		assert.Len(t, events, 2, name)
		assert.Equal(t, c.want, unused, name)
		assert.Equal(t, 3, records, name)
	}
}

func TestWhatIsNoFieldOfAnAuditEventIsLetBe(t *testing.T) {
	unnamed := record(t, mint, fluentbittest.Plain, fluentbittest.Legacy)
	at := bytes.Index(unnamed, msgp.AppendString(nil, "level")) // a name that becomes a number
	unnamed = append(append(bytes.Clone(unnamed[:at]), 7), unnamed[at+len("level")+1:]...)
	for name, b := range map[string][]byte{
		"nested deep":              edited(t, mint, func(m map[string]any) { m["requestObject"] = nest(50_000) }),
		"a name that is no string": unnamed,
		"twice":                    doubled(t, mint, "level", "Request"),
		"of another shape":         edited(t, mint, func(m map[string]any) { m["responseStatus"].(map[string]any)["metadata"] = 7 }),
	} {
		events, unused, _ := read(b)
		assert.Empty(t, unused, name)
		if assert.Len(t, events, 1, name) {
			assert.Equal(t, fromFile(t, mint).AuditID, events[0].AuditID)
		}
	}
}

func mustAppend(t testing.TB, value any) []byte {
	t.Helper()
	b, err := msgp.AppendIntf(nil, value)
	require.NoError(t, err)
	return b
}

func nest(depth int) any {
	var value any
	for range depth {
		value = []any{value}
	}
	return value
}

func TestAChunkThatStopsBeingMsgpackGivesWhatStandsBefore(t *testing.T) {
	good := record(t, mint, fluentbittest.Lifted, fluentbittest.V2)
	for name, rest := range map[string][]byte{
		"truncated":                        good[:len(good)/2],
		"one byte":                         {0x92},
		"a byte that begins nothing":       {0xc1},
		"a string of 4 GiB":                {0xdb, 0xff, 0xff, 0xff, 0xff, 'x'},
		"a map of 4 billion":               {0xdf, 0xff, 0xff, 0xff, 0xff, 0x01},
		"a list of 4 billion":              {0xdd, 0xff, 0xff, 0xff, 0xff, 0x01, 0x02},
		"lists of 4 billion in each other": bytes.Repeat([]byte{0xdd, 0xff, 0xff, 0xff, 0xff}, 10_000),
	} {
		events, unused, records := read(append(bytes.Clone(good), rest...))
		assert.Len(t, events, 1, name)
		assert.Equal(t, []string{unreadable}, unused, name)
		assert.Equal(t, 1, records, name)
	}
}

func TestNoErrorQuotesTheRecord(t *testing.T) {
	const secret = "hunter2"
	for _, name := range []string{"user", "auditID", "stageTimestamp", "objectRef", "annotations", "sourceIPs", "responseStatus"} {
		for _, value := range []any{secret, []any{secret}, map[string]any{secret: []any{secret}, "code": secret, "name": 1}, "\xff" + secret} {
			_, _ = each(edited(t, mint, func(m map[string]any) { m[name] = value }), func(event.Event) error { return nil },
				func(u unused) { assert.NotContains(t, u.reason+u.detail, secret) })
		}
	}
}

func FuzzChunk(f *testing.F) {
	for _, line := range []string{mint, write, received, other} {
		for _, shape := range fluentbittest.Shapes {
			f.Add(record(f, line, shape, fluentbittest.V2))
		}
	}
	f.Add(doubled(f, mint, "user", map[string]any{"username": "eve"}))
	f.Add(record(f, mint, fluentbittest.Lifted, fluentbittest.Seconds))
	good := record(f, mint, fluentbittest.Lifted, fluentbittest.V2)
	want := fromFile(f, mint)
	f.Fuzz(func(t *testing.T, chunk []byte) {
		events, unused, records := read(append(bytes.Clone(good), chunk...))
		require.NotEmpty(t, events)
		require.Equal(t, want.Identity(), events[0].Identity(), "what follows changed what stands before")
		require.LessOrEqual(t, len(unused), records, "one reason for each record at most, and one for the rest")
		for _, e := range events {
			text, err := json.Marshal(&e)
			require.NoError(t, err)
			again, ours, err := ingest.Decode(text)
			require.NoError(t, err)
			require.True(t, ours)
			require.Equal(t, e.Identity(), again.Identity(), "an event that a file of the same contents gives another identity")
		}
	})
}
