package archive

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/ledger"
)

const mintServer = "system:serviceaccount:mintlog:mint"

// at moves an event in time.
func at(e event.Event, received time.Time) event.Event {
	e.StageTimestamp = received.Add(e.StageTimestamp.Sub(e.RequestReceivedTimestamp))
	e.RequestReceivedTimestamp = received
	return e
}

// commitOf is the mint server's write of the Secret for a request.
func commitOf(e event.Event, after time.Duration) event.Event {
	namespace, credential := e.Account()
	c := at(e, e.RequestReceivedTimestamp.Add(after))
	c.Verb, c.RequestURI = "update", "/api/v1/namespaces/"+namespace+"/secrets/"+credential+".account"
	c.User, c.ImpersonatedUser = event.User{Username: mintServer}, nil
	c.ObjectRef = &event.ObjectRef{APIVersion: "v1", Resource: "secrets", Namespace: namespace, Name: credential + ".account", UID: "u-1"}
	c.Stage, c.ResponseStatus = event.ResponseComplete, &event.ResponseStatus{Code: 200}
	c.Annotations = map[string]string{event.DecisionAnnotation: "allow"}
	return c
}

func received(e event.Event) event.Event {
	e.Stage, e.Annotations, e.ResponseStatus, e.ImpersonatedUser = event.RequestReceived, nil, nil, nil
	e.StageTimestamp = e.RequestReceivedTimestamp
	return e
}

// requests are the lines "<user> <operation> <effect>" of what a query finds, newest first.
func requests(t *testing.T, a *Archive, q Query) []string {
	t.Helper()
	var lines []string
	require.NoError(t, a.Requests(t.Context(), q, []string{mintServer}, func(asked Asked) error {
		operation, _ := asked.Event.Operation()
		lines = append(lines, fmt.Sprint(asked.Event.EffectiveUser(), " ", operation, " ", asked.Effect()))
		return nil
	}))
	return lines
}

func TestARequestIsJoinedWithItsCommitAndSaysWhatBecameOfIt(t *testing.T) {
	t.Parallel()
	v := startVictoriaLogs(t)
	second := func(i int) time.Time { return epoch.Add(time.Duration(i) * time.Minute) }
	user := func(i int, name string) event.Event {
		e := at(mintEvent(i), second(i))
		e.User.Username = name
		return e
	}
	done := user(0, "done")
	skewed := user(1, "skewed")
	skewed.ResponseStatus.Code = 503
	reported := user(2, "reported")
	unknown := user(3, "unknown")
	unknown.ResponseStatus.Code = 100
	crashed := received(user(4, "crashed"))
	refused := user(5, "refused")
	refused.ResponseStatus.Code, refused.Annotations = 403, map[string]string{event.DecisionAnnotation: "forbid"}
	dry := user(6, "dry")
	dry.RequestURI += "&dryRun=All"
	forged := user(7, "forged") // somebody wrote the Secret under the audit id of a mint that was answered
	forgery := commitOf(forged, time.Millisecond)
	forgery.User.Username = "mallory"
	slow := user(8, "slow")
	hurried := user(9, "hurried") // by the clock of another kube-apiserver its commit came before it
	elsewhere := user(10, "elsewhere")
	foreign := commitOf(elsewhere, time.Millisecond)
	foreign.ObjectRef.Namespace = "tenant-other"
	reused := user(12, "reused") // and under its audit id an attempt that is denied, and a dry run
	denied := at(reused, second(12).Add(time.Second))
	denied.User.Username, denied.ResponseStatus, denied.Annotations = "denied", refused.ResponseStatus, refused.Annotations
	rehearsed := at(reused, second(12).Add(-time.Second))
	rehearsed.User.Username, rehearsed.RequestURI = "rehearsed", dry.RequestURI
	revoked := user(11, "revoked")
	revoked.ObjectRef.Subresource = "revoke"
	events := []event.Event{
		done, received(done), commitOf(done, 3*time.Millisecond), skewed, commitOf(skewed, 2*time.Second), reported, unknown,
		crashed, commitOf(crashed, 9*time.Second), refused, dry, forged, forgery, slow, commitOf(slow, 69*time.Second),
		hurried, commitOf(hurried, -4*time.Second), elsewhere, foreign, revoked, commitOf(revoked, time.Millisecond),
		rehearsed, reused, commitOf(reused, time.Millisecond), denied,
	}
	require.NoError(t, insert(t, v.archive(), events))
	require.NoError(t, insert(t, v.archive(), events[:4])) // as two pipelines, or one twice, write them
	v.show()
	assert.Equal(t, []string{
		"denied Mint Refused", "reused Mint Done", "rehearsed Mint DryRun", "revoked Revoke Done", "elsewhere Mint Reported", "hurried Mint Done", "slow Mint Done", "forged Mint Reported",
		"dry Mint DryRun", "refused Mint Refused", "crashed Mint Done", "unknown Mint Unknown", "reported Mint Reported",
		"skewed Mint Done", "done Mint Done",
	}, requests(t, v.archive(), Query{}))
	assert.Equal(t, []string{"revoked Revoke Done"}, requests(t, v.archive(), Query{Operation: ledger.Revoke}))
	assert.Equal(t, []string{"slow Mint Done"}, requests(t, v.archive(), Query{User: "slow"}))
	assert.Equal(t, []string{"slow Mint Done"}, requests(t, v.archive(), Query{Start: second(8), End: second(9)}),
		"its commit lies behind the end of what was asked for")
	assert.Equal(t, []string{"hurried Mint Done"}, requests(t, v.archive(), Query{Start: second(9), End: second(10)}),
		"its commit lies before the beginning")
	assert.Empty(t, requests(t, v.archive(), Query{Namespace: "tenant-other"}))

	enough := errors.New("enough")
	assert.ErrorIs(t, v.archive().Requests(t.Context(), Query{}, nil, func(Asked) error { return enough }), enough)
}

func TestManyRequestsAreEachJoinedWithTheirOwnCommit(t *testing.T) {
	t.Parallel()
	v := startVictoriaLogs(t)
	var events []event.Event
	for i := range 2 * askedPage {
		e := mintEvent(i)
		events = append(events, received(e), e)
		if i%2 == 0 {
			events = append(events, commitOf(e, 5*time.Millisecond))
		}
	}
	require.NoError(t, insert(t, v.archive(), events))
	v.show()
	count := 0
	require.NoError(t, v.archive().Requests(t.Context(), Query{}, []string{mintServer}, func(asked Asked) error {
		i := 2*askedPage - 1 - count
		require.Equal(t, mintEvent(i).AuditID, asked.Event.AuditID)
		require.Equal(t, event.ResponseComplete, asked.Event.Stage)
		require.Equal(t, i%2 == 0, asked.Effect() == Done, i)
		count++
		return nil
	}))
	assert.Equal(t, 2*askedPage, count)
}
