package projector

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/ledger"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheEvidenceFoldsToWhatAllEventsFoldTo(t *testing.T) {
	inRandomWorlds(t, func(t *testing.T, r *rand.Rand, w world) {
		kept, err := decode(encode(evidence(w.account, w.events, own)))
		require.NoError(t, err)
		require.Equal(t, Fold(w.account, w.events, own), Fold(w.account, kept, own))
	})
}

// TestAnEventOfATimeThatCannotBeWrittenDownIsNotRead is of what somebody publishes who took over a pipeline.
func TestAnEventOfATimeThatCannotBeWrittenDownIsNotRead(t *testing.T) {
	a := account("jane")
	for _, year := range []int{-1, 0, 1969, 10_000, 250_000} {
		for _, change := range []func(*event.Event){
			func(e *event.Event) { e.RequestReceivedTimestamp = e.RequestReceivedTimestamp.AddDate(year-2026, 0, 0) },
			func(e *event.Event) { e.StageTimestamp = e.StageTimestamp.AddDate(year-2026, 0, 0) },
		} {
			for _, e := range []event.Event{request(1, "jane", change), write(1, mintUser, change), write(1, "eve", change)} {
				_, ok := readable(e)
				assert.False(t, ok, year)
				assert.Equal(t, Fold(a, nil, own), Fold(a, []event.Event{e}, own), year)
			}
		}
	}
	var shifted event.Event // a year of its own zone, the next one in UTC
	text := strings.ReplaceAll(string(encode([]event.Event{request(1, "jane")})), "2026-03-01T12:01:00.1Z", "9999-12-31T23:59:59-01:00")
	require.NoError(t, json.Unmarshal([]byte(strings.Trim(text, "[]")), &shifted))
	require.Equal(t, 9999, shifted.StageTimestamp.Year())
	_, ok := readable(shifted)
	assert.False(t, ok)
}

func TestTheEvidenceIsTheSameInWhateverPortionsEventsCome(t *testing.T) {
	inRandomWorlds(t, func(t *testing.T, r *rand.Rand, w world) {
		want := string(encode(evidence(w.account, w.events, own)))
		var kept []event.Event
		for rest := shuffled(r, append(w.events, w.events...)); len(rest) > 0; {
			n := 1 + r.IntN(len(rest))
			kept = evidence(w.account, append(kept, rest[:n]...), own)
			rest = rest[n:]
		}
		require.Equal(t, want, string(encode(kept)))
	})
}

func TestTheEvidenceThatGrewWithTheLedgerFoldsToWhatAllEventsFoldTo(t *testing.T) {
	inRandomWorlds(t, func(t *testing.T, r *rand.Rand, w world) {
		var kept []event.Event
		whole := w.account.Ledger
		seen := make(map[string]bool)
		for i := len(whole.Entries) - 1; i >= 0; i-- {
			// The ledger as it stood: without the newer entries. Events come once their entry is there; all others when
			// the last is.
			w.account.Ledger = ledger.Ledger{Account: whole.Account, Entries: whole.Entries[i:]}
			var arrived []event.Event
			for _, e := range w.events {
				if id := e.Identity(); !seen[id] && (i == 0 || e.AuditID == whole.Entries[i].AuditID) {
					seen[id] = true
					arrived = append(arrived, e)
				}
			}
			kept = evidence(w.account, append(kept, shuffled(r, arrived)...), own)
		}
		w.account.Ledger = whole
		require.Equal(t, Fold(w.account, w.events, own).Entries, Fold(w.account, kept, own).Entries)
	})
}

func TestAFloodDisplacesNoEvidence(t *testing.T) {
	a := account("jane", "olga")
	events := []event.Event{request(1, "jane", answered(503)), request(9, "jane"), write(3, "ivan")}
	for n := range 3000 {
		mallory := fmt.Sprint("mallory-", n)
		events = append(events,
			request(1, mallory), request(2, mallory),
			request(1, mallory, answered(503)), request(1, mallory, received),
			request(1, mallory, onBehalfOf("olga")),
			request(1, "jane", between(1, time.Hour+time.Duration(n)*time.Second, 2*time.Hour)),
			request(10+n, mallory, answered(409)), request(10+n, mallory, denied), request(10+n, mallory, dryRun),
			request(10+n, mallory, answered(503)), request(10+n, mallory, received),
			write(4+n, mallory, denied), write(4+n, "ivan"),
		)
	}
	a.StoredMatches = false
	want := Fold(a, events, own)
	require.Len(t, want.Entries, 1)
	assert.Equal(t, "jane", want.Entries[0].By)
	assert.Equal(t, []string{"ivan"}, want.Writers)
	kept := evidence(a, events, own)
	assert.Less(t, len(kept), 25)
	assert.Equal(t, want, Fold(a, kept, own))
}

func TestOperationsInTheLedgerDoNotDisplaceASuccessThatIsNot(t *testing.T) {
	a := account(make([]string, 19)...)
	events := []event.Event{request(1, "", func(e *event.Event) { e.AuditID = auditID(99) })}
	for n := 1; n < 20; n++ {
		events = append(events, request(n, ""))
	}
	kept := a.surroundings(a.readable(events), own).events()
	require.Len(t, kept, maxSuccesses)
	assert.Equal(t, auditID(99), kept[0].AuditID)
	assert.Equal(t, auditID(19), kept[1].AuditID)
}

func TestOfManyImpersonatorsTwoAreKept(t *testing.T) {
	a := account("jane")
	var events []event.Event
	for n := range 100 {
		events = append(events, request(1, fmt.Sprint("root-", n), onBehalfOf("jane")))
	}
	kept := a.bearing(a.Ledger.Newest(), a.readable(events)).events()
	require.Len(t, kept, 2)
	assert.Equal(t, "root-0", kept[0].User.Username)
	assert.Equal(t, "root-1", kept[1].User.Username)
}

func TestCommitsOfAnEarlierAccountAreNotKept(t *testing.T) {
	a := account("jane")
	commit := func(after time.Duration) event.Event {
		return write(0, mintUser, between(0, after, after), func(e *event.Event) { e.ObjectRef.UID = "another" })
	}
	assert.Empty(t, a.surroundings(a.readable([]event.Event{commit(-clockSkew)}), own).events())
	assert.Len(t, a.surroundings(a.readable([]event.Event{commit(-clockSkew + time.Microsecond)}), own).events(), 1)
}

func TestTheNewestCommitsAreKeptAndThoseToAnotherSecretFirst(t *testing.T) {
	a := account("jane")
	var events []event.Event
	for n := 1; n <= 2*maxCommits; n++ {
		events = append(events, write(n, mintUser))
	}
	events = append(events, write(1, mintUser, func(e *event.Event) { e.ObjectRef.UID = "another" }))
	commits := a.surroundings(a.readable(events), own).commits
	require.Len(t, commits, maxCommits)
	assert.Equal(t, "another", commits[0].ObjectRef.UID)
	for i, commit := range commits[1:] {
		assert.Equal(t, auditID(2*maxCommits-i), commit.AuditID)
	}
}

func TestALedgerThatWentBackFindsTheSuccessesThatItLost(t *testing.T) {
	a := account("jane", "jane", "jane")
	events := []event.Event{request(1, "jane"), request(2, "jane"), request(3, "jane")}
	kept := a.surroundings(a.readable(events), own).events()
	a.Ledger.Entries = a.Ledger.Entries[2:] // the last two mints are gone
	assert.Len(t, Fold(a, kept, own).Findings, 2)
}

func TestTheEvidenceOfAKeyStaysBelow512KiB(t *testing.T) {
	name := func(n int) string { return fmt.Sprint(n) + strings.Repeat("\x01", 1020) }
	a := account("jane")
	a.StoredMatches = false
	var events []event.Event
	for n := 2; n < 100; n++ {
		commit := write(n, mintUser, func(e *event.Event) { e.ObjectRef.UID = strings.Repeat("u", 1500) })
		events = append(events, request(n, name(n), onBehalfOf(name(n+100))), write(n, name(n), onBehalfOf(name(n+200))), commit,
			write(n, mintUser, func(e *event.Event) { e.ObjectRef.UID = strings.Repeat("u", maxCommitBytes) }))
	}
	s := a.surroundings(a.readable(events), own)
	assert.Len(t, s.successes, maxSuccesses)
	assert.Len(t, s.commits, maxCommits)
	assert.Len(t, s.outOfBand, maxOutOfBand)
	for _, commit := range s.commits {
		assert.LessOrEqual(t, size(commit), maxCommitBytes)
	}
	assert.Less(t, len(encode(s.events())), 512<<10)
	assert.Greater(t, len(encode(s.events())), 200<<10, "the names were meant to be as long as they may be")
	assert.LessOrEqual(t, maxSuccesses*maxEventBytes+maxOutOfBand*maxEventBytes+maxCommits*maxCommitBytes, 512<<10)
}

func TestEvidenceHoldsNothingThatTheFoldDoesNotRead(t *testing.T) {
	e := request(1, "jane", func(e *event.Event) {
		e.SourceIPs, e.UserAgent = []string{"192.0.2.1"}, "agent-secret"
		e.RequestURI += "&token=uri-secret"
		e.User.Extra, e.User.UID = map[string][]string{"k": {"extra-secret"}}, "uid-secret"
		e.Annotations["x"] = "annotation-secret"
		e.ResponseStatus.Message, e.ResponseStatus.Reason = "message-secret", "reason-secret"
	})
	a := account("jane")
	value := string(encode(a.bearing(a.Ledger.Entries[0], a.readable([]event.Event{e})).events()))
	assert.NotContains(t, value, "secret")
	assert.NotContains(t, value, "192.0.2.1")
	assert.NotContains(t, value, "audit.log")
	assert.Contains(t, value, "jane")
}

func TestAReducedEventIsTheSameEvent(t *testing.T) {
	inRandomWorlds(t, func(t *testing.T, r *rand.Rand, w world) {
		for _, e := range w.events {
			if !e.Eligible() {
				continue
			}
			reduced := reduce(e)
			require.Equal(t, e.Identity(), reduced.Identity())
			require.Equal(t, e.Outcome(), reduced.Outcome())
		}
	})
}

func TestEvidenceThatIsNoListOfEventsIsAnErrorThatQuotesNothing(t *testing.T) {
	for _, value := range []string{"", "{", "\"hunter2\"", `{"auditID":"hunter2"}`, `[1]`} {
		_, err := decode([]byte(value))
		require.Error(t, err, value)
		assert.NotContains(t, err.Error(), "hunter2")
	}
	assert.True(t, json.Valid(encode(nil)))
	kept, err := decode(encode(nil))
	require.NoError(t, err)
	assert.Empty(t, kept)
}

func TestOfRequestsUnderAnAuditIDThatNoLedgerHasOnlySuccessesAreRead(t *testing.T) {
	long := func(e *event.Event) { e.AuditID = strings.Repeat("a", maxAuditIDBytes+1) }
	for _, unread := range []event.Event{request(9, "jane", long, answered(101)), request(9, "jane", long, received)} {
		_, ok := readable(unread)
		assert.False(t, ok)
	}
	assert.Len(t, Fold(account("jane"), []event.Event{request(9, "jane", long)}, own).Findings, 1)
	_, ok := readable(request(9, "jane", answered(101)))
	assert.True(t, ok)
}

func TestTheKeysOfAnAccountAreItsOwnAndBounded(t *testing.T) {
	keys := make(map[string]bool)
	for _, id := range []string{hexID(0xacc), hexID(0xbcc)} {
		l := ledger.Ledger{Account: id}
		keys[surroundingsKey(l)] = true
		for n := range 500 {
			l = l.Append(ledger.Entry{ID: hexID(n), Operation: ledger.Mint, At: at(n), AuditID: auditID(n), Caller: "c", Stored: "s"})
			together := make(map[string]bool)
			for _, entry := range l.Entries {
				together[entryKey(l, entry)] = true
				keys[entryKey(l, entry)] = true
			}
			require.Len(t, together, len(l.Entries), "entries that stand together share no key")
		}
	}
	assert.Len(t, keys, 2*(entryKeys+1))
}
