package projector

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/history"
	"github.com/mintlog/mintlog/store/ledger"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	namespace     = "tenant-acme"
	credential    = "postgres-orders.app"
	secretUID     = "8a2b6f0e-0000-4000-8000-000000000001"
	mintUser      = "system:serviceaccount:mintlog:mint"
	projectorUser = "system:serviceaccount:mintlog:projector"
)

var (
	own   = []string{mintUser, "system:serviceaccount:mintlog:accounts", projectorUser}
	start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

// hexID is a well-formed random id of the ledger, told apart by n.
func hexID(n int) string { return fmt.Sprintf("%032x", n) }

// auditID is a well-formed audit id, told apart by n.
func auditID(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012x", n) }

// account is one with a Create at the start and an operation by each caller, a minute apart, under auditID(1), (2), ….
func account(callers ...string) Account {
	l := ledger.Ledger{Account: hexID(0xacc)}
	l = l.Append(ledger.Entry{ID: hexID(0), Operation: ledger.Create, At: start, Stored: "s"})
	for i, caller := range callers {
		l = l.Append(ledger.Entry{
			ID:        hexID(i + 1),
			Operation: ledger.Mint,
			At:        at(i + 1),
			AuditID:   auditID(i + 1),
			Caller:    l.CallerDigest(auditID(i+1), caller),
			Stored:    "s",
		})
	}
	return Account{Namespace: namespace, Credential: credential, UID: secretUID, Ledger: l, StoredMatches: true}
}

// at is the time of the n-th operation of account.
func at(n int) time.Time { return start.Add(time.Duration(n) * time.Minute) }

// request is the event of a mint that succeeded, received 100 ms before the n-th operation and over 100 ms after it.
func request(n int, user string, changes ...func(*event.Event)) event.Event {
	e := event.Event{
		AuditID:    auditID(n),
		Stage:      event.ResponseComplete,
		Verb:       "create",
		RequestURI: "/apis/credentials.cozystack.io/v1alpha1/namespaces/" + namespace + "/credentials/" + credential + "/mint?fieldManager=x",
		User:       event.User{Username: user, Groups: []string{"system:authenticated"}},
		ObjectRef: &event.ObjectRef{
			APIGroup: event.Group, APIVersion: "v1alpha1", Resource: event.Resource, Subresource: "mint", Namespace: namespace, Name: credential,
		},
		ResponseStatus:           &event.ResponseStatus{Code: 201},
		Annotations:              map[string]string{"authorization.k8s.io/decision": "allow"},
		RequestReceivedTimestamp: at(n).Add(-100 * time.Millisecond),
		StageTimestamp:           at(n).Add(100 * time.Millisecond),
		Source:                   "file:audit.log",
	}
	for _, change := range changes {
		change(&e)
	}
	return e
}

// write is the event of an update of the account Secret, received right after the n-th operation.
func write(n int, user string, changes ...func(*event.Event)) event.Event {
	e := request(n, user)
	e.Verb = "update"
	e.RequestURI = "/api/v1/namespaces/" + namespace + "/secrets/" + credential + ".account"
	e.ObjectRef = &event.ObjectRef{APIVersion: "v1", Resource: "secrets", Namespace: namespace, Name: credential + ".account", UID: secretUID}
	e.ResponseStatus = &event.ResponseStatus{Code: 200}
	e.RequestReceivedTimestamp, e.StageTimestamp = at(n).Add(time.Second), at(n).Add(2*time.Second)
	for _, change := range changes {
		change(&e)
	}
	return e
}

func onBehalfOf(user string) func(*event.Event) {
	return func(e *event.Event) { e.ImpersonatedUser = &event.User{Username: user} }
}

func answered(code int) func(*event.Event) {
	return func(e *event.Event) { e.ResponseStatus = &event.ResponseStatus{Code: code} }
}

func received(e *event.Event) {
	e.Stage, e.ResponseStatus, e.Annotations, e.ImpersonatedUser = event.RequestReceived, nil, nil, nil
	e.StageTimestamp = e.RequestReceivedTimestamp
}

func panicked(e *event.Event) {
	e.Stage, e.ResponseStatus = event.Panic, &event.ResponseStatus{Code: 500}
}

func denied(e *event.Event) {
	e.Annotations = map[string]string{"authorization.k8s.io/decision": "forbid"}
	e.ResponseStatus = &event.ResponseStatus{Code: 403}
}

func dryRun(e *event.Event) { e.RequestURI += "&dryRun=All" }

// between moves reception and end to these distances from the n-th operation.
func between(n int, received, end time.Duration) func(*event.Event) {
	return func(e *event.Event) {
		e.RequestReceivedTimestamp, e.StageTimestamp = at(n).Add(received), at(n).Add(end)
	}
}

func TestTheFoldOfOneOperationFollowsTheJoin(t *testing.T) {
	none := history.History{}
	by := func(user, impersonator string, response history.Response) history.History {
		return history.History{Entries: []history.Entry{{ID: hexID(1), Revision: 2, By: user, ImpersonatedBy: impersonator, Response: response}}}
	}
	found := func(h history.History, types ...history.FindingType) history.History {
		for _, t := range types {
			h.Findings = append(h.Findings, history.Finding{Type: t, Revision: 2})
		}
		return h
	}
	for name, c := range map[string]struct {
		events []event.Event
		want   history.History
	}{
		"without events nobody is named":   {nil, none},
		"a success names the caller":       {[]event.Event{request(1, "jane")}, by("jane", "", history.Success)},
		"a success on another's behalf":    {[]event.Event{request(1, "root", onBehalfOf("jane"))}, by("jane", "root", history.Success)},
		"a success on one's own behalf":    {[]event.Event{request(1, "jane", onBehalfOf("jane"))}, by("jane", "", history.Success)},
		"a caller whose request timed out": {[]event.Event{request(1, "jane", answered(504))}, by("jane", "", history.Unknown)},
		"a caller who sent Expect":         {[]event.Event{request(1, "jane", answered(100))}, by("jane", "", history.Unknown)},
		"a caller who left":                {[]event.Event{request(1, "jane", answered(503))}, by("jane", "", history.Unknown)},
		"a panic":                          {[]event.Event{request(1, "jane", panicked)}, by("jane", "", history.Unknown)},
		"nothing was written": {[]event.Event{request(1, "jane", answered(200), func(e *event.Event) {
			e.ResponseStatus.Message = "Connection closed early"
		})}, by("jane", "", history.Unknown)},
		"a success with some other message": {[]event.Event{request(1, "jane", func(e *event.Event) {
			e.ResponseStatus.Message = strings.Repeat("m", 100_000)
		})}, by("jane", "", history.Success)},
		"an apiserver that died":                      {[]event.Event{request(1, "jane", received)}, by("jane", "", history.Unknown)},
		"an apiserver that died under impersonation":  {[]event.Event{request(1, "root", received)}, none},
		"a reception beside another's success":        {[]event.Event{request(1, "root", received), request(1, "root", onBehalfOf("jane"))}, by("jane", "root", history.Success)},
		"a reception beside a success":                {[]event.Event{request(1, "jane", received), request(1, "jane")}, by("jane", "", history.Success)},
		"a reception beside a timeout on behalf":      {[]event.Event{request(1, "jane", received), request(1, "root", onBehalfOf("jane"), answered(504))}, by("jane", "root", history.Unknown)},
		"a denial":                                    {[]event.Event{request(1, "jane", denied)}, none},
		"a denial on behalf":                          {[]event.Event{request(1, "root", onBehalfOf("jane"), denied)}, none},
		"a refusal":                                   {[]event.Event{request(1, "jane", answered(409))}, none},
		"a dry run":                                   {[]event.Event{request(1, "jane", dryRun)}, none},
		"another's denial":                            {[]event.Event{request(1, "ivan", denied)}, none},
		"another's refusal":                           {[]event.Event{request(1, "ivan", answered(404))}, none},
		"another's dry run":                           {[]event.Event{request(1, "ivan", dryRun)}, none},
		"another user's success":                      {[]event.Event{request(1, "ivan")}, found(none, history.FindingMismatch)},
		"another user's timeout":                      {[]event.Event{request(1, "ivan", answered(503))}, found(none, history.FindingMismatch)},
		"the caller as impersonator of another":       {[]event.Event{request(1, "jane", onBehalfOf("ivan"))}, found(none, history.FindingMismatch)},
		"another user beside the caller":              {[]event.Event{request(1, "ivan"), request(1, "jane", answered(503))}, by("jane", "", history.Unknown)},
		"another user beside the caller's reception":  {[]event.Event{request(1, "ivan"), request(1, "jane", received)}, by("jane", "", history.Unknown)},
		"another user long ago":                       {[]event.Event{request(1, "ivan", between(1, -time.Hour, -time.Hour))}, found(none, history.FindingMismatch)},
		"another operation under the audit id":        {[]event.Event{request(1, "jane", func(e *event.Event) { e.ObjectRef.Subresource = "revoke" })}, none},
		"another user's other operation":              {[]event.Event{request(1, "ivan", func(e *event.Event) { e.ObjectRef.Subresource = "revoke" })}, none},
		"another verb":                                {[]event.Event{request(1, "jane", func(e *event.Event) { e.Verb = "get" })}, none},
		"another group":                               {[]event.Event{request(1, "jane", func(e *event.Event) { e.ObjectRef.APIGroup = "example.org" })}, none},
		"another credential under the audit id":       {[]event.Event{request(1, "jane", func(e *event.Event) { e.ObjectRef.Name = "postgres-orders.app2" })}, none},
		"another credential and user":                 {[]event.Event{request(1, "ivan", func(e *event.Event) { e.ObjectRef.Name = "postgres-orders.app2" })}, none},
		"another namespace under the audit id":        {[]event.Event{request(1, "jane", func(e *event.Event) { e.ObjectRef.Namespace = "tenant-beta" })}, none},
		"another namespace and user":                  {[]event.Event{request(1, "ivan", func(e *event.Event) { e.ObjectRef.Namespace = "tenant-beta" })}, none},
		"a refusal under another audit id":            {[]event.Event{request(1, "jane", answered(409), func(e *event.Event) { e.AuditID = auditID(7) })}, none},
		"an event without an object":                  {[]event.Event{request(1, "jane", func(e *event.Event) { e.ObjectRef = nil })}, none},
		"two impersonators":                           {[]event.Event{request(1, "root", onBehalfOf("jane")), request(1, "olga", onBehalfOf("jane"))}, found(by("jane", "", history.Success), history.FindingConflict)},
		"three impersonators":                         {[]event.Event{request(1, "root", onBehalfOf("jane")), request(1, "olga", onBehalfOf("jane")), request(1, "anna", onBehalfOf("jane"))}, found(by("jane", "", history.Success), history.FindingConflict)},
		"the caller and an impersonator":              {[]event.Event{request(1, "jane"), request(1, "olga", onBehalfOf("jane"))}, found(by("jane", "", history.Success), history.FindingConflict)},
		"two impersonators of indeterminate requests": {[]event.Event{request(1, "root", onBehalfOf("jane"), panicked), request(1, "olga", onBehalfOf("jane"), answered(503))}, found(by("jane", "", history.Unknown), history.FindingConflict)},
		"an impersonator of lesser rank":              {[]event.Event{request(1, "jane"), request(1, "olga", onBehalfOf("jane"), answered(503))}, by("jane", "", history.Success)},
		"the same twice with other times":             {[]event.Event{request(1, "jane"), request(1, "jane", between(1, -time.Second, time.Second))}, by("jane", "", history.Success)},

		"received 5 s after the operation":               {[]event.Event{request(1, "jane", between(1, 5*time.Second, 6*time.Second))}, by("jane", "", history.Success)},
		"received more than 5 s after the operation":     {[]event.Event{request(1, "jane", between(1, 5*time.Second+time.Microsecond, 6*time.Second))}, found(none, history.FindingSkewed)},
		"received long before, ended 15 s before it":     {[]event.Event{request(1, "jane", between(1, -70*time.Second, -15*time.Second))}, by("jane", "", history.Success)},
		"ended more than 15 s before the operation":      {[]event.Event{request(1, "jane", between(1, -70*time.Second, -15*time.Second-time.Microsecond))}, found(none, history.FindingSkewed)},
		"a panic that ended 15 s before the operation":   {[]event.Event{request(1, "jane", panicked, between(1, -40*time.Second, -15*time.Second))}, by("jane", "", history.Unknown)},
		"a client that left 12 s before the operation":   {[]event.Event{request(1, "jane", answered(503), between(1, -20*time.Second, -12*time.Second))}, by("jane", "", history.Unknown)},
		"an end before the reception":                    {[]event.Event{request(1, "jane", between(1, -15*time.Second, -time.Hour))}, by("jane", "", history.Success)},
		"a reception 75 s before the operation":          {[]event.Event{request(1, "jane", received, between(1, -75*time.Second, 0))}, by("jane", "", history.Unknown)},
		"a reception more than 75 s before it":           {[]event.Event{request(1, "jane", received, between(1, -75*time.Second-time.Microsecond, 0))}, found(none, history.FindingSkewed)},
		"a skewed event beside a matching one":           {[]event.Event{request(1, "jane", between(1, -time.Hour, -time.Hour)), request(1, "jane", answered(503))}, by("jane", "", history.Unknown)},
		"a skewed event and another user's":              {[]event.Event{request(1, "jane", between(1, -time.Hour, -time.Hour)), request(1, "ivan")}, found(none, history.FindingMismatch, history.FindingSkewed)},
		"a skewed impersonator beside a matching caller": {[]event.Event{request(1, "root", onBehalfOf("jane"), between(1, -time.Hour, -time.Hour)), request(1, "jane")}, by("jane", "", history.Success)},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, c.want, withoutMessages(Fold(account("jane"), c.events, own)))
		})
	}
}

// withoutMessages takes the prose away, after it was seen to be there and to name nobody.
func withoutMessages(h history.History) history.History {
	for i := range h.Findings {
		for _, name := range []string{"jane", "ivan", "root", "olga", "anna"} {
			if strings.Contains(h.Findings[i].Message, name) {
				panic("a finding names " + name)
			}
		}
		if h.Findings[i].Message == "" {
			panic("a finding without a message")
		}
		h.Findings[i].Message = ""
	}
	return h
}

func TestARequestIsSettledOnceNoEntryOfItCanCome(t *testing.T) {
	for _, e := range []event.Event{
		request(1, "jane", answered(503), between(1, -70*time.Second, -15*time.Second)),
		request(1, "jane", received, between(1, -75*time.Second, 0)),
	} {
		a := account("jane")
		entry := a.Ledger.Newest()
		require.Equal(t, matching, a.relate(entry, e))
		entry.At = entry.At.Add(time.Microsecond)
		require.Equal(t, skewed, a.relate(entry, e))
		assert.True(t, settled(e).After(entry.At))
	}
	assert.Greater(t, defaultSettleIntents, 75*time.Second)
}

func TestTheHistoryStandsInTheOrderOfTheLedgerAndHoldsItsNewestTen(t *testing.T) {
	var callers []string
	var events []event.Event
	for n := 1; n <= 25; n++ {
		callers = append(callers, fmt.Sprintf("user-%d", n))
		events = append(events, request(n, callers[n-1]))
	}
	events = append(events, request(12, "ivan")) // of an entry that is no longer shown
	h := Fold(account(callers...), events, own)
	require.Len(t, h.Entries, history.MaxEntries)
	for i, e := range h.Entries {
		assert.Equal(t, history.Entry{ID: hexID(25 - i), Revision: int64(26 - i), By: callers[24-i], Response: history.Success}, e)
	}
	assert.Empty(t, h.Findings)
}

func TestWhatThePlatformDidTakesNoEvent(t *testing.T) {
	for _, operation := range []ledger.Operation{ledger.Create, ledger.Migrate} {
		a := account()
		a.Ledger.Entries[0].Operation = operation
		a.Ledger.Entries[0].Caller = a.Ledger.CallerDigest("", "jane") // as no ledger that parses has it
		e := request(0, "jane", func(e *event.Event) { e.AuditID = "" })
		assert.Equal(t, history.History{}, Fold(a, []event.Event{e}, own))
	}
}

func TestALedgerWithoutEntriesFoldsToNothing(t *testing.T) {
	assert.Equal(t, history.History{}, Fold(Account{Namespace: namespace, Credential: credential}, []event.Event{request(1, "jane"), write(1, "jane")}, own))
}

func TestASuccessThatTheLedgerDoesNotHaveIsUncommitted(t *testing.T) {
	commitTo := func(uid string) func(*event.Event) {
		return func(e *event.Event) { e.AuditID, e.ObjectRef.UID = auditID(9), uid }
	}
	f := func(name string, want int, events ...event.Event) {
		t.Run(name, func(t *testing.T) {
			h := Fold(account("jane"), events, own) // operations at minutes 0 and 1
			assert.Empty(t, h.Entries)
			require.Len(t, h.Findings, want)
			for _, finding := range h.Findings {
				assert.Equal(t, history.FindingUncommitted, finding.Type)
				assert.Zero(t, finding.Revision)
				assert.Contains(t, finding.Message, "2026-03-01T12:0")
			}
		})
	}
	f("a success after the last entry", 1, request(9, "jane"))
	f("and a revoke", 1, request(9, "jane", func(e *event.Event) { e.ObjectRef.Subresource = "revoke" }))
	f("a success on another's behalf", 1, request(9, "root", onBehalfOf("jane")))
	f("the same twice", 1, request(9, "jane"), request(9, "jane"))
	f("two", 2, request(8, "jane"), request(9, "jane"))
	f("two under one audit id", 2, request(9, "jane"), request(9, "ivan"))
	f("an indeterminate one", 0, request(9, "jane", answered(503)))
	f("a panic", 0, request(9, "jane", panicked))
	f("a reception", 0, request(9, "jane", received))
	f("a refused one", 0, request(9, "jane", answered(409)))
	f("a denied one", 0, request(9, "jane", denied))
	f("a dry run", 0, request(9, "jane", dryRun))
	f("of another account", 0, request(9, "jane", func(e *event.Event) { e.ObjectRef.Name = "postgres-orders.other" }))
	f("of another namespace", 0, request(9, "jane", func(e *event.Event) { e.ObjectRef.Namespace = "tenant-beta" }))
	f("before the oldest entry", 0, request(9, "jane", between(0, -time.Second, time.Second)))
	f("within the skew after the oldest entry", 0, request(9, "jane", between(0, 5*time.Second, 6*time.Second)))
	f("beyond the skew after the oldest entry", 1, request(9, "jane", between(0, 5*time.Second+time.Microsecond, 6*time.Second)))
	f("committed to another Secret", 0, request(9, "jane"), write(9, mintUser, commitTo("another")))
	f("committed to this Secret", 1, request(9, "jane"), write(9, mintUser, commitTo(secretUID)))
	f("committed to an unknown Secret", 1, request(9, "jane"), write(9, mintUser, commitTo("")))
	f("a commit to another Secret under another audit id", 1, request(9, "jane"), write(8, mintUser, func(e *event.Event) { e.ObjectRef.UID = "another" }))
	f("another's write of another Secret", 1, request(9, "jane"), write(9, "ivan", commitTo("another")))
	f("somebody in the mint server's name", 1, request(9, "jane"), write(9, "ivan", onBehalfOf(mintUser), commitTo("another")))
	f("a refused commit to another Secret", 1, request(9, "jane"), write(9, mintUser, commitTo("another"), answered(409)))
	f("a dry commit to another Secret", 1, request(9, "jane"), write(9, mintUser, commitTo("another"), func(e *event.Event) { e.RequestURI += "?dryRun=All" }))
	f("a commit to a Secret of another name", 1, request(9, "jane"), write(9, mintUser, commitTo("another"), func(e *event.Event) { e.ObjectRef.Name = "x.account" }))

	var many []event.Event
	for n := 2; n < 9; n++ {
		many = append(many, request(n, "jane"))
	}
	f("only the newest five are reported", maxUncommitted, many...)
	newest := Fold(account("jane"), many, own).Findings
	assert.Contains(t, newest[0].Message, "12:07:59.9")
	assert.Contains(t, newest[4].Message, "12:03:59.9")
}

func TestASecretThatWasPutBackWithItsLedgerIsRestoredUntilTheNextOperation(t *testing.T) {
	committed := func(n int, uid string, changes ...func(*event.Event)) event.Event {
		e := write(n, mintUser, append([]func(*event.Event){func(e *event.Event) {
			e.ObjectRef.UID = uid
			e.RequestReceivedTimestamp = at(n)
		}}, changes...)...)
		return e
	}
	f := func(name string, want int64, events ...event.Event) {
		t.Run(name, func(t *testing.T) {
			a := account("jane", "jane") // operations at minutes 0, 1 and 2
			newest := a.Ledger.Newest().Revision
			var got int64
			for _, finding := range Fold(a, events, own).Findings {
				if finding.Type == history.FindingRestored {
					require.Zero(t, got)
					got = newest - finding.Revision + 1
				}
			}
			assert.Equal(t, want, got, "counted from the newest, 0 for none")
		})
	}
	f("committed to this Secret", 0, committed(1, secretUID), committed(2, secretUID))
	f("committed to another", 1, committed(1, "another"), committed(2, "another"))
	f("committed to another, and then to this one", 0, committed(1, "another"), committed(2, secretUID))
	f("committed to another, and then to nobody knows which", 2, committed(1, "another"))
	f("committed to both under one audit id", 0, committed(2, "another"), committed(2, secretUID))
	f("by no part of ours", 0, committed(2, "another", func(e *event.Event) { e.User.Username = "ivan" }))
	f("in the mint server's name", 0, committed(2, "another", onBehalfOf(mintUser), func(e *event.Event) { e.User.Username = "ivan" }))
	f("under another audit id", 0, committed(2, "another", func(e *event.Event) { e.AuditID = auditID(9) }))
	f("at another time under its audit id", 0, committed(2, "another", func(e *event.Event) {
		e.RequestReceivedTimestamp = e.RequestReceivedTimestamp.Add(time.Minute)
	}))
	f("a refused one", 0, committed(2, "another", answered(409)))
	f("created, when the UID is not known yet", 0, committed(2, ""))
}

func TestWhoWroteTheSecretOutOfBandIsNamed(t *testing.T) {
	f := func(name string, want []string, events ...event.Event) {
		t.Run(name, func(t *testing.T) {
			a := account("jane", "jane")
			a.StoredMatches = false
			assert.Equal(t, history.History{Writers: want}, Fold(a, events, own))
			a.StoredMatches = true
			assert.Equal(t, history.History{}, Fold(a, events, own))
		})
	}
	verb := func(v string) func(*event.Event) { return func(e *event.Event) { e.Verb = v } }
	uid := func(u string) func(*event.Event) { return func(e *event.Event) { e.ObjectRef.UID = u } }
	f("nobody", nil)
	f("an update", []string{"ivan"}, write(2, "ivan"))
	f("a patch", []string{"ivan"}, write(2, "ivan", verb("patch")))
	f("a create", []string{"ivan"}, write(2, "ivan", verb("create"), uid("")))
	f("a delete", nil, write(2, "ivan", verb("delete")))
	f("a timeout", []string{"ivan"}, write(2, "ivan", answered(504)))
	f("a reception, which may yet be refused", nil, write(2, "ivan", received))
	f("a refused write", nil, write(2, "ivan", answered(422)))
	f("a denied write", nil, write(2, "ivan", denied))
	f("a dry run", nil, write(2, "ivan", func(e *event.Event) { e.RequestURI += "?dryRun=All" }))
	f("several, sorted, each once", []string{"anna", "ivan", "olga"}, write(2, "olga"), write(3, "ivan"), write(4, "anna"), write(5, "olga", verb("patch")))
	f("our own parts", nil, write(2, own[0]), write(2, own[1]), write(2, own[2], verb("patch")))
	f("on another's behalf", []string{"ivan", "root"}, write(2, "root", onBehalfOf("ivan")))
	f("the same person in two ways, named once", []string{"ivan", "root"}, write(2, "root"), write(3, "root", onBehalfOf("ivan")), write(4, "ivan"))
	f("in the mint server's name", []string{"root"}, write(2, "root", onBehalfOf(mintUser)))
	f("the mint server in somebody's name", []string{"ivan"}, write(2, own[0], onBehalfOf("ivan")))
	f("another Secret of this name", nil, write(2, "ivan", uid("another")))
	f("a Secret of another name", nil, write(2, "ivan", func(e *event.Event) { e.ObjectRef.Name = "other.account" }))
	f("a Secret elsewhere", nil, write(2, "ivan", func(e *event.Event) { e.ObjectRef.Namespace = "tenant-beta" }))
	f("before the newest operation", nil, write(1, "ivan"))
	f("within the skew before the newest operation", []string{"ivan"}, write(2, "ivan", between(2, -5*time.Second+time.Microsecond, 0)))
	f("beyond the skew before the newest operation", nil, write(2, "ivan", between(2, -5*time.Second, 0)))
	f("the last five", []string{"w3", "w4", "w5", "w6", "w7"},
		write(2, "w2"), write(3, "w3"), write(4, "w4"), write(5, "w5"), write(6, "w6"), write(7, "w7"))
	f("one who writes again and again", []string{"anna", "ivan"},
		write(2, "anna"), write(3, "ivan"), write(4, "ivan"), write(5, "ivan"), write(6, "ivan"), write(7, "ivan"))
	long := strings.Repeat("l", maxWriterBytes-3)
	f("no more names than fit", []string{"anna", "ivan"}, write(4, "anna"), write(3, long), write(2, "ivan"))
	f("long names that fit", []string{"leo", long}, write(4, "leo"), write(3, long), write(2, "ivan"))
}

var strangeNames = []string{
	"*", ">", "a.>", "\"jane\"", "'; --", "jane\nolga", "jane\r\n", "\x00", "\u2028", "\u202ejane", "Ж", "日本語", "👩‍🚀", "é", "e\u0301",
	"<script>", "&amp;", "{\"a\":1}", "\\", "\ufffd", " jane ", "oidc:jane@example.org", "system:serviceaccount:a:b", strings.Repeat("ы", 512),
	strings.Repeat("\x01", 1024),
}

func TestAnyUserNameComesOutAsItWas(t *testing.T) {
	for i, name := range strangeNames {
		impersonating := strangeNames[(i+1)%len(strangeNames)]
		a := account(name, name)
		a.StoredMatches = false
		events := []event.Event{request(1, name), request(2, impersonating, onBehalfOf(name)), write(3, name)}
		kept, err := decode(encode(evidence(a, events, own)))
		require.NoError(t, err)
		for _, events := range [][]event.Event{events, kept} {
			h, err := history.Parse(Fold(a, events, own).Encode())
			require.NoError(t, err)
			require.Equal(t, history.History{
				Entries: []history.Entry{
					{ID: hexID(2), Revision: 3, By: name, ImpersonatedBy: impersonating, Response: history.Success},
					{ID: hexID(1), Revision: 2, By: name, Response: history.Success},
				},
				Writers: []string{name},
			}, h)
		}
	}
}

func TestAnOversizedEventIsNotRead(t *testing.T) {
	big := strings.Repeat("b", maxEventBytes)
	assert.Equal(t, history.History{}, Fold(account(big), []event.Event{request(1, big)}, own))
	assert.Equal(t, history.History{}, Fold(account("jane"), []event.Event{request(1, big, onBehalfOf("jane"))}, own))
	assert.Equal(t, history.History{}, Fold(account("jane"), []event.Event{request(1, "jane", func(e *event.Event) { e.AuditID = big })}, own))
	// What the fold does not read does not count.
	assert.NotEmpty(t, Fold(account("jane"), []event.Event{request(1, "jane", func(e *event.Event) {
		e.UserAgent, e.RequestURI, e.User.Groups = big, e.RequestURI+"&pad="+big, []string{big}
	})}, own).Entries)
}

// evidence is all that is kept of events under the account's keys.
func evidence(a Account, events []event.Event, own []string) []event.Event {
	events = a.readable(events)
	kept := a.surroundings(events, own).events()
	for _, entry := range a.Ledger.Entries {
		kept = append(kept, a.bearing(entry, events).events()...)
	}
	return kept
}

func FuzzFold(f *testing.F) {
	for seed, name := range strangeNames {
		f.Add(name, strangeNames[(seed+3)%len(strangeNames)], auditID(1), uint64(seed), 201, "Connection closed early")
	}
	f.Fuzz(func(t *testing.T, user, other, id string, seed uint64, code int, message string) {
		user, other, id = strings.ToValidUTF8(user, "?"), strings.ToValidUTF8(other, "?"), strings.ToValidUTF8(id, "?")
		r := rand.New(rand.NewPCG(seed, 2))
		w := randomWorld(r)
		for i := range w.events {
			e := &w.events[i]
			switch r.IntN(4) {
			case 0:
				e.User.Username = user
			case 1:
				e.ImpersonatedUser = &event.User{Username: other}
			case 2:
				e.AuditID = id
			case 3:
				e.ResponseStatus = &event.ResponseStatus{Code: code, Message: message}
			}
		}
		want := Fold(w.account, w.events, own)
		require.Equal(t, want, Fold(w.account, shuffled(r, append(w.events, w.events...)), own))
		kept, err := decode(encode(evidence(w.account, w.events, own)))
		require.NoError(t, err)
		require.Equal(t, want, Fold(w.account, kept, own))
		parsed, err := history.Parse(want.Encode())
		require.NoError(t, err)
		require.Equal(t, want, parsed)
		for _, e := range want.Entries {
			digest := false
			for _, entry := range w.account.Ledger.Entries {
				digest = digest || entry.ID == e.ID && w.account.Ledger.CallerDigest(entry.AuditID, e.By) == entry.Caller
			}
			require.True(t, digest)
		}
	})
}
