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

// A world is an account with events of every kind around it.
type world struct {
	account Account
	events  []event.Event
	callers map[string]bool // whose digest is in the ledger
}

var people = []string{"jane", "ivan", "olga", "root", "*", "a\nb", "Ж>", mintUser}

// randomWorld draws a ledger and, for each of its operations and some that never were, what may be in the log.
func randomWorld(r *rand.Rand) world {
	w := world{callers: make(map[string]bool)}
	w.account = account()
	w.account.StoredMatches = r.IntN(2) == 0
	pick := func() string { return people[r.IntN(len(people))] }
	operations := r.IntN(24)
	for n := 1; n <= operations; n++ {
		caller := pick()
		operation := []ledger.Operation{ledger.Mint, ledger.Revoke, ledger.Migrate}[min(r.IntN(8), 2)]
		entry := ledger.Entry{ID: hexID(n), Operation: operation, At: at(n).Add(time.Duration(r.IntN(3000)) * time.Millisecond), Stored: "s"}
		if !operation.ByPlatform() {
			entry.AuditID = auditID(n)
			entry.Caller = w.account.Ledger.CallerDigest(entry.AuditID, caller)
			w.callers[caller] = true
			w.events = append(w.events, randomEvent(r, n, caller, operation))
			if r.IntN(4) == 0 {
				commit := write(n, mintUser)
				commit.ObjectRef.UID = []string{"", secretUID, "another"}[r.IntN(3)]
				w.events = append(w.events, commit)
			}
		}
		w.account.Ledger = w.account.Ledger.Append(entry)
	}
	for range r.IntN(60) {
		if len(w.events) > 0 && r.IntN(3) > 0 { // one that resembles another
			e := w.events[r.IntN(len(w.events))]
			object := *e.ObjectRef
			e.ObjectRef = &object
			randomly(r, &e)
			w.events = append(w.events, e)
			continue
		}
		w.events = append(w.events, randomEvent(r, 1+r.IntN(30), pick(), []ledger.Operation{ledger.Mint, ledger.Revoke}[r.IntN(2)]))
	}
	for range r.IntN(30) {
		e := write(1+r.IntN(30), pick())
		e.Verb = []string{"create", "update", "update", "patch", "delete"}[r.IntN(5)]
		e.ObjectRef.UID = []string{"", secretUID, "another"}[r.IntN(3)]
		randomly(r, &e)
		w.events = append(w.events, e)
	}
	return w
}

func randomEvent(r *rand.Rand, n int, user string, operation ledger.Operation) event.Event {
	e := request(n, user)
	e.ObjectRef.Subresource = strings.ToLower(string(operation))
	randomly(r, &e)
	return e
}

// randomly changes what makes one event differ from another in its meaning.
func randomly(r *rand.Rand, e *event.Event) {
	shift := []time.Duration{0, 0, 0, time.Second, -20 * time.Second, 20 * time.Second, time.Hour}[r.IntN(7)]
	e.RequestReceivedTimestamp = e.RequestReceivedTimestamp.Add(shift)
	e.StageTimestamp = e.StageTimestamp.Add(shift)
	for _, change := range []func(*event.Event){
		onBehalfOf(e.User.Username),
		func(e *event.Event) { e.User.Username = people[r.IntN(len(people))] },
		func(e *event.Event) {
			e.ImpersonatedUser = &event.User{Username: e.EffectiveUser()}
			e.User.Username = people[r.IntN(len(people))]
		},
		answered([]int{100, 200, 404, 409, 500, 503, 504}[r.IntN(7)]), panicked, received, denied, dryRun,
		func(e *event.Event) { e.ObjectRef.Namespace = "tenant-beta" },
		func(e *event.Event) { e.ObjectRef.Name = "x." + e.ObjectRef.Name },
		func(e *event.Event) { e.Source, e.UserAgent = "archive", "curl" },
	} {
		if r.IntN(16) == 0 {
			change(e)
		}
	}
}

// inRandomWorlds calls check with many worlds, each from a seed of its own that is named when it fails.
func inRandomWorlds(t *testing.T, check func(t *testing.T, r *rand.Rand, w world)) {
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := randomWorld(r)
		if !t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { check(t, r, w) }) {
			return
		}
	}
}

func shuffled(r *rand.Rand, events []event.Event) []event.Event {
	out := make([]event.Event, len(events))
	for to, from := range r.Perm(len(events)) {
		out[to] = events[from]
	}
	return out
}

func TestRandomWorldsHoldEveryKindOfHistory(t *testing.T) {
	seen := make(map[any]int)
	inRandomWorlds(t, func(t *testing.T, r *rand.Rand, w world) {
		h := Fold(w.account, w.events, own)
		for _, e := range h.Entries {
			seen[e.Response]++
		}
		for _, f := range h.Findings {
			seen[f.Type]++
		}
		seen["writers"] += len(h.Writers)
	})
	for _, kind := range []any{history.Success, history.Unknown, history.FindingMismatch, history.FindingConflict, history.FindingSkewed, history.FindingUncommitted, history.FindingRestored, "writers"} {
		assert.Greater(t, seen[kind], 10, kind)
	}
}

func TestNoOrderAndNoRepetitionChangesTheHistory(t *testing.T) {
	inRandomWorlds(t, func(t *testing.T, r *rand.Rand, w world) {
		want := Fold(w.account, w.events, own)
		for range 3 {
			events := append(shuffled(r, w.events), shuffled(r, w.events)[:r.IntN(len(w.events)+1)]...)
			require.Equal(t, want, Fold(w.account, shuffled(r, events), own))
		}
	})
}

// A log shipper may keep the second of an event's reception only: that gives it another identity.
func TestCopiesThatHaveLostTheFractionOfTheirSecondChangeNothing(t *testing.T) {
	inRandomWorlds(t, func(t *testing.T, r *rand.Rand, w world) {
		want := Fold(w.account, w.events, own)
		blurred := append([]event.Event(nil), w.events...)
		for i := range blurred {
			blurred[i].RequestReceivedTimestamp = blurred[i].RequestReceivedTimestamp.Truncate(time.Second)
		}
		require.Equal(t, want, Fold(w.account, shuffled(r, append(blurred, w.events...)), own), "beside the events")
		require.Equal(t, want, Fold(w.account, append(evidence(w.account, blurred, own), w.events...), own), "as evidence, before the events")
		require.Equal(t, want, Fold(w.account, append(evidence(w.account, w.events, own), blurred...), own), "after the events")
		require.Equal(t, withoutMessages(want), withoutMessages(Fold(w.account, blurred, own)), "instead of the events")
	})
}

func TestEventsThatCannotConcernTheAccountChangeNothing(t *testing.T) {
	inRandomWorlds(t, func(t *testing.T, r *rand.Rand, w world) {
		want := Fold(w.account, w.events, own)
		events := w.events
		for _, e := range w.events {
			foreign := *e.ObjectRef
			foreign.Name, foreign.Namespace = "other.account", []string{namespace, "tenant-beta"}[r.IntN(2)]
			refused, dry, elsewhere := e, e, e
			denied(&refused)
			dry.RequestURI += "?&dryRun=All"
			elsewhere.ObjectRef = &foreign
			if e.Stage != event.RequestReceived {
				events = append(events, refused)
			}
			events = append(events, dry, elsewhere)
		}
		require.Equal(t, want, Fold(w.account, shuffled(r, events), own))
	})
}

func TestForgedEventsChangeNoAttribution(t *testing.T) {
	inRandomWorlds(t, func(t *testing.T, r *rand.Rand, w world) {
		honest := w.events[:0:0]
		for _, entry := range w.account.Ledger.Entries {
			for caller := range w.callers {
				if w.account.Ledger.CallerDigest(entry.AuditID, caller) == entry.Caller {
					honest = append(honest, randomHonest(entry, caller))
				}
			}
		}
		want := Fold(w.account, honest, own)
		events := honest
		for _, e := range honest {
			for _, user := range []string{"mallory", "system:admin"} {
				forged := e
				forged.User.Username = user
				events = append(events, forged)
				forged.AuditID = auditID(1000 + r.IntN(1000))
				events = append(events, forged)
			}
		}
		got := Fold(w.account, shuffled(r, events), own)
		require.Equal(t, want.Entries, got.Entries)
		for _, finding := range got.Findings {
			require.Equal(t, history.FindingUncommitted, finding.Type)
		}
	})
}

// randomHonest is the event of an entry as the log holds it when nothing went wrong.
func randomHonest(entry ledger.Entry, caller string) event.Event {
	e := request(0, caller)
	e.AuditID = entry.AuditID
	e.ObjectRef.Subresource = strings.ToLower(string(entry.Operation))
	e.RequestReceivedTimestamp, e.StageTimestamp = entry.At.Add(-time.Second), entry.At.Add(time.Second)
	return e
}

func TestNobodyIsNamedWhoseDigestIsNotInTheLedger(t *testing.T) {
	inRandomWorlds(t, func(t *testing.T, r *rand.Rand, w world) {
		for i, e := range Fold(w.account, w.events, own).Entries {
			var entry ledger.Entry
			for _, candidate := range w.account.Ledger.Entries {
				if candidate.ID == e.ID {
					entry = candidate
				}
			}
			require.Equal(t, w.account.Ledger.CallerDigest(entry.AuditID, e.By), entry.Caller, "entry %d", i)
			require.Equal(t, entry.Revision, e.Revision)
			if e.ImpersonatedBy != "" {
				require.True(t, hasImpersonation(w.events, entry.AuditID, e.By, e.ImpersonatedBy))
			}
		}
	})
}

func hasImpersonation(events []event.Event, auditID, effective, authenticated string) bool {
	for _, e := range events {
		if e.AuditID == auditID && e.ImpersonatedUser != nil && e.ImpersonatedUser.Username == effective && e.User.Username == authenticated {
			return true
		}
	}
	return false
}
