package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
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
