// Package docs tests what the documents say that can be run.
package docs

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/archive"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/stream"
	"github.com/mintlog/mintlog/test/victorialogs"
)

// begun is the beginning of the hour in which all the events below lie: on one day, and within every query's range.
var begun = time.Now().UTC().Add(-2 * time.Hour).Truncate(time.Hour)

// request is the i-th minute's request for an operation on a credential of tenant-acme.
func request(i int, user, credential, subresource string, code int) event.Event {
	at := begun.Add(time.Duration(i)*time.Minute + 123456*time.Microsecond)
	return event.Event{
		AuditID: fmt.Sprintf("00000000-0000-4000-8000-%012d", i), Stage: event.ResponseComplete, Verb: "create",
		RequestURI: "/apis/credentials.cozystack.io/v1alpha1/namespaces/tenant-acme/credentials/" + credential + "/" + subresource,
		User:       event.User{Username: user, Groups: []string{"system:authenticated"}},
		ObjectRef: &event.ObjectRef{
			APIGroup: event.Group, APIVersion: "v1alpha1", Resource: event.Resource, Subresource: subresource,
			Namespace: "tenant-acme", Name: credential,
		},
		ResponseStatus:           &event.ResponseStatus{Code: code},
		Annotations:              map[string]string{event.DecisionAnnotation: "allow"},
		RequestReceivedTimestamp: at, StageTimestamp: at.Add(8 * time.Millisecond),
	}
}

// write is a write of the request's account Secret, three milliseconds after it was received.
func write(of event.Event, user, verb string) event.Event {
	w := of
	namespace, credential := of.Account()
	w.Verb, w.RequestURI = verb, "/api/v1/namespaces/"+namespace+"/secrets/"+credential+".account"
	w.User, w.ImpersonatedUser = event.User{Username: user}, nil
	w.ObjectRef = &event.ObjectRef{APIVersion: "v1", Resource: "secrets", Namespace: namespace, Name: credential + ".account", UID: "uid-" + credential}
	w.ResponseStatus = &event.ResponseStatus{Code: 200}
	w.RequestReceivedTimestamp = of.RequestReceivedTimestamp.Add(3 * time.Millisecond)
	return w
}

const (
	app, reader = "postgres-orders.app", "postgres-orders.report-reader"
	mintServer  = "system:serviceaccount:mintlog:mint"
)

// known are the events that the archive holds.
func known() []event.Event {
	minted := request(1, "jane", app, "mint", 201)
	received := minted
	received.Stage, received.ResponseStatus, received.Annotations = event.RequestReceived, nil, nil
	through := request(2, "root", reader, "mint", 201)
	through.ImpersonatedUser = &event.User{Username: "olga"}
	refused := request(3, "ivan", app, "mint", 403)
	refused.Annotations = map[string]string{event.DecisionAnnotation: "forbid"}
	skewed := request(4, "jane", app, "revoke", 503)
	robot := request(5, "system:serviceaccount:tenant-acme:tenant-acme", reader, "mint", 201)
	robot.User.Extra = map[string][]string{
		"authentication.kubernetes.io/pod-name": {"ci-1"}, "authentication.kubernetes.io/credential-id": {"JTI=7"},
	}
	conflict := request(6, "jane", reader, "mint", 409)
	elsewhere := request(7, "pete", app, "mint", 201)
	elsewhere.ObjectRef.Namespace = "tenant-other"
	return []event.Event{
		received, minted, write(minted, mintServer, "update"), through, write(through, mintServer, "update"), refused,
		skewed, write(skewed, mintServer, "update"), robot, write(robot, mintServer, "update"), conflict,
		elsewhere, write(elsewhere, mintServer, "update"), write(request(8, "", app, "mint", 200), "mallory", "patch"),
	}
}

// minute is the minute of begun that a time of an answer lies in.
func minute(t *testing.T, text string) string {
	at, err := time.Parse(time.RFC3339Nano, text)
	require.NoError(t, err)
	return fmt.Sprint(int(at.Sub(begun).Minutes()))
}

// expected are the rows of each query by its heading, as "minute field field …" of the fields named first.
var expected = map[string]struct {
	fields []string
	rows   []string
}{
	"Who asked for passwords in the last week?": {
		[]string{"_time", "user_username", "impersonatedUser.username", "objectRef.subresource", "objectRef.namespace"},
		[]string{
			"7 pete  mint tenant-other", "6 jane  mint tenant-acme", "5 system:serviceaccount:tenant-acme:tenant-acme  mint tenant-acme",
			"4 jane  revoke tenant-acme", "3 ivan  mint tenant-acme", "2 root olga mint tenant-acme", "1 jane  mint tenant-acme",
		},
	},
	"Who changed the password of one credential?": {
		[]string{"_time", "user_username", "objectRef.subresource", "responseStatus.code"}, []string{"4 jane revoke 503", "1 jane mint 201"},
	},
	"What did one person ask for, also on behalf of others?": {
		[]string{"_time", "objectRef.name", "objectRef.subresource"}, []string{"6 " + reader + " mint", "4 " + app + " revoke", "1 " + app + " mint"},
	},
	"Who acted for somebody else?": {[]string{"_time", "user_username", "impersonatedUser.username"}, []string{"2 root olga"}},
	"What was refused?":            {[]string{"_time", "user_username", "responseStatus.code"}, []string{"6 jane 409", "3 ivan 403"}},
	"With which token, and from which pod?": {
		[]string{"_time", "user_extra.authentication.kubernetes.io/pod-name", "user_extra.authentication.kubernetes.io/credential-id"},
		[]string{`5 ["ci-1"] ["JTI=7"]`},
	},
	"Which passwords really changed?": {
		[]string{"_time", "objectRef.namespace", "objectRef.name", "objectRef.uid"},
		[]string{
			"7 tenant-other " + app + ".account uid-" + app, "5 tenant-acme " + reader + ".account uid-" + reader,
			"4 tenant-acme " + app + ".account uid-" + app, "2 tenant-acme " + reader + ".account uid-" + reader,
			"1 tenant-acme " + app + ".account uid-" + app,
		},
	},
	"Who else wrote account Secrets?": {[]string{"_time", "user_username", "verb", "objectRef.name"}, []string{"8 mallory patch " + app + ".account"}},
	"When did each password last change?": {
		[]string{"last_change", "objectRef.namespace", "objectRef.name"},
		[]string{"4 tenant-acme " + app + ".account", "5 tenant-acme " + reader + ".account", "7 tenant-other " + app + ".account"},
	},
	"How many a day?": {[]string{"objectRef.subresource", "requests"}, []string{"mint 4"}},
}

// queries are the LogsQL of docs/queries.md by the heading above it.
func queries(t *testing.T) map[string]string {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "queries.md"))
	require.NoError(t, err)
	found := map[string]string{}
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		heading, body, _ := strings.Cut(section, "\n")
		for _, block := range regexp.MustCompile("(?s)```logsql\n(.*?)```").FindAllStringSubmatch(body, -1) {
			require.NotContains(t, found, heading, "one query a heading")
			found[heading] = block[1]
		}
	}
	return found
}

func TestEveryQueryOfTheDocumentsAnswersItsQuestionInBothShapesOfRecord(t *testing.T) {
	all := queries(t)
	for heading := range expected {
		require.Contains(t, all, heading)
	}
	f := func(shape string, fill ...func(*testing.T, string)) {
		t.Run(shape, func(t *testing.T) {
			t.Parallel() // most of it is waiting until VictoriaLogs shows what it took
			victoriaLogs := victorialogs.Start(t).URL
			for _, fill := range fill {
				fill(t, victoriaLogs)
			}
			for heading, query := range all {
				want, ok := expected[heading]
				require.True(t, ok, "nothing is expected of %q", heading)
				var got []string
				for _, row := range victorialogs.Rows(t, victoriaLogs, query) {
					cells := make([]string, len(want.fields))
					for i, field := range want.fields {
						if cells[i] = row[field]; field == "_time" || field == "last_change" {
							cells[i] = minute(t, row[field])
						}
					}
					got = append(got, strings.Join(cells, " "))
				}
				assert.Equal(t, want.rows, got, "%s: %s", shape, heading)
			}
		})
	}
	f("mintlog's", throughTheArchiver)
	f("Cozystack's", asCozystackWritesIt)
	f("both at once", throughTheArchiver, asCozystackWritesIt)
}

// throughTheArchiver brings the events into the archive as mintlog does.
func throughTheArchiver(t *testing.T, victoriaLogs string) {
	s, err := stream.Open(t.Context(), stream.Options{Directory: t.TempDir(), MaxBytes: 64 << 20, EvidenceBytes: 64 << 20})
	require.NoError(t, err)
	defer func() { assert.NoError(t, s.Close()) }()
	require.NoError(t, s.Publish(t.Context(), known()))
	archiver, err := archive.NewArchiver(archive.ArchiverOptions{Archive: archive.New(victoriaLogs, nil), Stream: s})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- archiver.Run(ctx) }()
	require.Eventually(t, func() bool { return len(victorialogs.Rows(t, victoriaLogs, "eventID:!=''")) == len(known()) }, 5*time.Minute, 100*time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
}

// asCozystackWritesIt sends them as Cozystack's Fluent Bit does: user lifted to the prefix user_, the time of reception
// become the record's.
func asCozystackWritesIt(t *testing.T, victoriaLogs string) {
	var records []map[string]any
	for _, e := range known() {
		text, err := json.Marshal(e)
		require.NoError(t, err)
		var record map[string]any
		require.NoError(t, json.Unmarshal(text, &record))
		for key, value := range record["user"].(map[string]any) {
			record["user_"+key] = value
		}
		record["date"], record["log_source"], record["tenant"], record["cluster"] = record["requestReceivedTimestamp"], "audit_log", "root", "c1"
		delete(record, "user")
		delete(record, "requestReceivedTimestamp")
		records = append(records, record)
	}
	victorialogs.InsertAsCozystack(t, victoriaLogs, records...)
}
