package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/archive"
	"github.com/mintlog/mintlog/store/event"
)

var update = flag.Bool("update", false, "write the golden files anew")

// asked are requests of all sorts, newest first.
func asked() []archive.Asked {
	at := time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)
	request := func(i int, credential, subresource, user string) archive.Asked {
		received := at.Add(-time.Duration(i) * time.Minute)
		return archive.Asked{Event: event.Event{
			AuditID: "00000000-0000-4000-8000-00000000000" + string(rune('0'+i)), Stage: event.ResponseComplete, Verb: "create",
			User: event.User{Username: user}, SourceIPs: []string{"1.2.3.4", "10.0.0.7"}, UserAgent: "kubectl/v1.37",
			ObjectRef: &event.ObjectRef{
				APIGroup: event.Group, Resource: event.Resource, Subresource: subresource, Namespace: "tenant-acme", Name: credential,
			},
			ResponseStatus: &event.ResponseStatus{Code: 201}, Annotations: map[string]string{event.DecisionAnnotation: "allow"},
			RequestReceivedTimestamp: received, StageTimestamp: received.Add(time.Millisecond),
		}}
	}
	certified := request(0, "postgres-orders.app", "mint", "jane")
	certified.Event.User.Extra = map[string][]string{"authentication.kubernetes.io/credential-id": {"X509SHA256=" + strings.Repeat("0f", 32)}}
	certified.Commit = &event.Event{ObjectRef: &event.ObjectRef{UID: "u-1"}}
	robot := request(1, "postgres-orders.report-reader", "revoke", "system:serviceaccount:tenant-acme:tenant-acme")
	robot.Event.User.Extra = map[string][]string{
		"authentication.kubernetes.io/credential-id": {"JTI=7"}, "authentication.kubernetes.io/pod-name": {"ci-1"},
		"authentication.kubernetes.io/node-name": {"node-a"},
	}
	through := request(2, "postgres-orders.app", "mint", "root")
	through.Event.ImpersonatedUser = &event.User{Username: "olga", Extra: map[string][]string{"authentication.kubernetes.io/credential-id": {"of nobody"}}}
	through.Event.ResponseStatus.Code = 503
	received := request(3, "postgres-orders.app", "mint", "jane")
	received.Event.Stage, received.Event.ResponseStatus, received.Event.Annotations = event.RequestReceived, nil, nil
	refused := request(4, "postgres-orders.app", "mint", "ivan")
	refused.Event.ResponseStatus.Code, refused.Event.Annotations = 403, nil
	hostile := request(5, "postgres-orders.app", "mint", "=cmd|'/c calc'!A1\x1b[2J\nroot \u202e")
	return []archive.Asked{certified, robot, through, received, refused, hostile}
}

func answered(t *testing.T, output string) string { return answeredAt(t, output, 0) }

func answeredAt(t *testing.T, output string, width int) string {
	t.Helper()
	var out bytes.Buffer
	print, err := newAnswers(output, &out, width)
	require.NoError(t, err)
	for _, a := range asked() {
		require.NoError(t, print.add(&a))
	}
	require.NoError(t, print.flush())
	for _, r := range out.String() {
		require.True(t, r == '\n' || unicode.IsPrint(r), "%q", r)
	}
	return out.String()
}

func TestWhoIsPrintedAsATableAsJSONAndAsCSVAndNothingActsOnTheTerminal(t *testing.T) {
	f := func(name, output string, width int) {
		t.Helper()
		path := filepath.Join("testdata", name)
		got := answeredAt(t, output, width)
		if *update {
			require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
		}
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, string(want), got, path)
	}
	f("who.table", "table", 0)
	f("who-200.table", "table", 200)
	f("who-80.table", "table", 80)
	f("who.json", "json", 0)
	f("who.csv", "csv", 0)
}

func TestATableKeepsToItsTerminalAndToTheFormOfItsFirstRows(t *testing.T) {
	whole := answered(t, "table")
	assert.Equal(t, whole, answeredAt(t, "table", widest([]byte(whole))))
	assert.LessOrEqual(t, widest([]byte(answeredAt(t, "table", 200))), 200)
	inTwoParts := func(width int) []string {
		var out bytes.Buffer
		print, err := newAnswers("table", &out, width)
		require.NoError(t, err)
		for _, a := range asked()[1:3] {
			require.NoError(t, print.add(&a))
			require.NoError(t, print.flush())
		}
		return strings.Split(strings.TrimSpace(out.String()), "\n")
	}
	assert.Len(t, inTwoParts(80), 4, "two lines each, and no header")
	wide := inTwoParts(0)
	require.Len(t, wide, 3)
	for _, line := range wide[1:] {
		assert.Equal(t, strings.Index(wide[0], "ANSWER"), max(strings.Index(line, "   201"), strings.Index(line, "   503"))+3, "below its header")
	}
}

func TestNamesComeOutOfJSONAsTheyAre(t *testing.T) {
	want := asked()
	for i, line := range strings.Split(strings.TrimSpace(answered(t, "json")), "\n") {
		var got answer
		require.NoError(t, json.Unmarshal([]byte(line), &got))
		assert.Equal(t, want[i].Event.EffectiveUser(), got.Who)
		assert.True(t, want[i].Event.RequestReceivedTimestamp.Equal(got.Time))
	}
}

func TestASpreadsheetTakesNoNameForAFormula(t *testing.T) {
	rows, err := csv.NewReader(strings.NewReader(answered(t, "csv"))).ReadAll()
	require.NoError(t, err)
	assert.Equal(t, answerColumns, rows[0])
	assert.Len(t, rows, len(asked())+1)
	for _, row := range rows {
		for _, cell := range row {
			assert.False(t, cell != "" && strings.ContainsAny(cell[:1], "=+-@"), cell)
		}
	}
}

func TestWhatChangedNothingIsLeftOutUnlessAskedFor(t *testing.T) {
	f := func(denied bool, want ...archive.Effect) {
		t.Helper()
		var got []archive.Effect
		for _, a := range append(asked(), func() archive.Asked {
			dry := asked()[0]
			dry.Commit, dry.Event.RequestURI = nil, "/x?dryRun=All"
			return dry
		}()) {
			if (&whoFlags{denied: denied}).wanted(&a) {
				got = append(got, a.Effect())
			}
		}
		assert.Equal(t, want, got)
	}
	f(false, archive.Done, archive.Reported, archive.Unknown, archive.Unknown, archive.Reported)
	f(true, archive.Refused)
}

func TestFollowOutlivesAnArchiveThatFailsForAWhile(t *testing.T) {
	row := func(i int) string {
		at := asked()[0].Event.RequestReceivedTimestamp.Add(time.Duration(i) * time.Second).Format(time.RFC3339Nano)
		return fmt.Sprintf(`{"_time":%[1]q,"stage":"ResponseComplete","verb":"create","auditID":"%[2]d","user_username":"jane","stageTimestamp":%[1]q,`+
			`"objectRef.apiGroup":"credentials.cozystack.io","objectRef.resource":"credentials","objectRef.subresource":"mint",`+
			`"objectRef.namespace":"tenant-acme","objectRef.name":"postgres-orders.app","responseStatus.code":"201",`+
			`"annotations.authorization.k8s.io/decision":"allow"}`, at, i) + "\n"
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var calls atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch calls.Add(1) {
		case 1:
			_, _ = io.WriteString(w, row(1))
		case 2:
			http.Error(w, "restarting", http.StatusServiceUnavailable)
		case 3:
			_, _ = io.WriteString(w, row(2)+row(1))
		default:
			cancel()
		}
	}))
	defer server.Close()
	var out, progress bytes.Buffer
	print, err := newAnswers("csv", &out, 0)
	require.NoError(t, err)
	now := func() time.Time { return asked()[0].Event.RequestReceivedTimestamp.Add(time.Minute) }
	q := archive.Query{Start: now().Add(-time.Hour)}
	require.NoError(t, new(whoFlags).watch(ctx, archive.New(server.URL, nil), q, print, &progress, now))
	assert.Equal(t, 3, strings.Count(out.String(), "\n"), "the header, and each request once: %s", out.String())
	assert.Equal(t, 1, strings.Count(progress.String(), "\n"))
	assert.Contains(t, progress.String(), "503")

	calls.Store(1) // the first answer is the failure
	assert.ErrorContains(t, new(whoFlags).watch(t.Context(), archive.New(server.URL, nil), q, print, &progress, now), "503")
}
