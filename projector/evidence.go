package projector

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/ledger"
)

// What is kept of an account's events stays below 512 KiB for a key, whatever comes in. Each list is the top of a set by
// a total order, so that it does not depend on the order in which events arrived.
const (
	// maxEventBytes is the size of an event, reduced and in JSON, above which it is not read. Names of 1,024 bytes, the
	// most that the mint server accepts, fit even if every byte of them has to be escaped.
	maxEventBytes = 16 << 10
	maxSuccesses  = 16
	maxCommits    = 32
	// maxCommitBytes is lower, for the user and the audit id of a commit are the mint server's.
	maxCommitBytes = 2 << 10
	maxOutOfBand   = 5
	// maxAuditIDBytes is more than an audit id has that the mint server takes, which is a UUID.
	maxAuditIDBytes = 64
)

// readable returns those events that can bear on the account, as readable has them, each once, in the order of their
// identities.
func (a Account) readable(events []event.Event) []event.Event {
	distinct := make(map[string]event.Event)
	for _, e := range events {
		if namespace, credential := e.Account(); namespace != a.Namespace || credential != a.Credential {
			continue
		}
		if e, ok := readable(e); ok {
			distinct[e.Identity()] = e
		}
	}
	dropBlurred(distinct)
	ordered := make([]event.Event, 0, len(distinct))
	for _, identity := range slices.Sorted(maps.Keys(distinct)) {
		ordered = append(ordered, distinct[identity])
	}
	return ordered
}

// dropBlurred drops the copies of events that came through a pipeline which keeps of the time of reception the second
// only, by identity. Their other fields, the time of the end to the microsecond among them, are those of an event that
// is there as a whole, of which a finding would be made twice.
func dropBlurred(distinct map[string]event.Event) {
	for identity, e := range distinct {
		blurred := e
		blurred.RequestReceivedTimestamp = e.RequestReceivedTimestamp.Truncate(time.Second)
		if copied := blurred.Identity(); copied != identity {
			delete(distinct, copied)
		}
	}
}

// readable reduces an event to what the fold reads of it, if it reads it: an eligible request, or a write at a final
// stage, of a time that can be written down, not larger than maxEventBytes then. Whoever may publish may publish anything:
// what cannot be kept must not end this part. A request under an audit id that no ledger has says something only if it
// succeeded all the same; of others, whose audit ids clients could make long, none has to be held.
func readable(e event.Event) (event.Event, bool) {
	_, isRequest := e.Operation()
	if !isRequest && (!e.IsWrite() || e.Stage == event.RequestReceived) || !e.Eligible() {
		return event.Event{}, false
	}
	if !event.Plausible(e.RequestReceivedTimestamp) || !event.Plausible(e.StageTimestamp) {
		return event.Event{}, false
	}
	if isRequest && len(e.AuditID) > maxAuditIDBytes && e.Outcome() != event.Succeeded {
		return event.Event{}, false
	}
	e = reduce(e)
	return e, size(e) <= maxEventBytes
}

// reduce returns what the fold reads of an eligible event. Its URI says nothing any more, as it asks for no dry run.
func reduce(e event.Event) event.Event {
	reduced := event.Event{
		AuditID:                  e.AuditID,
		Stage:                    e.Stage,
		Verb:                     e.Verb,
		User:                     event.User{Username: e.User.Username},
		RequestReceivedTimestamp: e.RequestReceivedTimestamp.UTC().Truncate(time.Microsecond),
		StageTimestamp:           e.StageTimestamp.UTC().Truncate(time.Microsecond),
	}
	if e.ImpersonatedUser != nil {
		reduced.ImpersonatedUser = &event.User{Username: e.ImpersonatedUser.Username}
	}
	if o := e.ObjectRef; o != nil {
		reduced.ObjectRef = &event.ObjectRef{
			APIGroup: o.APIGroup, Resource: o.Resource, Subresource: o.Subresource, Namespace: o.Namespace, Name: o.Name, UID: o.UID,
		}
	}
	if decision := e.Annotations[event.DecisionAnnotation]; decision != "" {
		reduced.Annotations = map[string]string{event.DecisionAnnotation: decision}
	}
	if s := e.ResponseStatus; s != nil && s.Code != 0 {
		reduced.ResponseStatus = &event.ResponseStatus{Code: s.Code}
		if reduced.Outcome() != e.Outcome() {
			reduced.ResponseStatus.Message = s.Message // the one that says that nothing was written
		}
	}
	return reduced
}

func size(e event.Event) int { return len(encode([]event.Event{e})) - len("[]") }

// encode is the value under which events are kept.
func encode(events []event.Event) []byte {
	if events == nil {
		events = []event.Event{}
	}
	b, err := json.Marshal(events)
	if err != nil {
		panic(err) // strings, numbers and times of this century always marshal
	}
	return b
}

func decode(value []byte) ([]event.Event, error) {
	var events []event.Event
	if err := json.Unmarshal(value, &events); err != nil {
		return nil, errors.New("evidence is not a JSON list of events")
	}
	return events, nil
}

// A bearing is what events say about one entry, and no more of them than it takes to say it: the fold of a bearing is
// the fold of all. No number of other events displaces a matching one.
type bearing struct {
	matching  []event.Event // of the best rank; one, or two that differ in the impersonator
	differing []event.Event // one at most, and none where an event matches
	skewed    []event.Event // likewise
}

// bearing weighs readable events against an entry.
func (a Account) bearing(entry ledger.Entry, events []event.Event) bearing {
	byRelation := make(map[relation][]event.Event)
	for _, e := range events {
		r := a.relate(entry, e)
		byRelation[r] = append(byRelation[r], e)
	}
	if all := byRelation[matching]; len(all) > 0 {
		return bearing{matching: best(all)}
	}
	return bearing{differing: first(byRelation[differing]), skewed: first(byRelation[skewed])}
}

// best returns those of the highest rank, the first of each impersonator, of the first two impersonators.
func best(events []event.Event) []event.Event {
	rank := event.Refused
	for _, e := range events {
		rank = max(rank, e.Outcome())
	}
	ofRank := slices.DeleteFunc(slices.Clone(events), func(e event.Event) bool { return e.Outcome() != rank })
	slices.SortStableFunc(ofRank, func(a, b event.Event) int { return cmp.Compare(impersonator(a), impersonator(b)) })
	ofRank = slices.CompactFunc(ofRank, func(a, b event.Event) bool { return impersonator(a) == impersonator(b) })
	return ofRank[:min(len(ofRank), 2)]
}

func first(events []event.Event) []event.Event { return events[:min(len(events), 1)] }

func (b bearing) events() []event.Event { return slices.Concat(b.matching, b.differing, b.skewed) }

// surroundings are the events around an account that concern no single entry of its ledger.
type surroundings struct {
	// successes are requests that were answered with success after the oldest entry; those that the ledger does not
	// have first, then those it has, for an etcd restore may take their entries away; the newest first in each.
	successes []event.Event
	// commits are updates by our own parts that name the Secret's UID; those of another Secret first, the newest first
	// in each.
	commits []event.Event
	// outOfBand are writes by others after the newest entry: the newest of each pair of effective and authenticated
	// user, the newest first.
	outOfBand []event.Event
}

// surroundings picks them from readable events.
func (a Account) surroundings(events []event.Event, own []string) surroundings {
	var s surroundings
	if len(a.Ledger.Entries) == 0 {
		return s
	}
	oldest := a.Ledger.Entries[len(a.Ledger.Entries)-1].At
	newest := a.Ledger.Newest().At
	for _, e := range events {
		received := e.RequestReceivedTimestamp
		switch {
		case !e.IsWrite():
			if e.Outcome() == event.Succeeded && received.After(oldest.Add(clockSkew)) {
				s.successes = append(s.successes, e)
			}
		case isOwn(e, own):
			if isCommit(e) && received.After(oldest.Add(-clockSkew)) && size(e) <= maxCommitBytes {
				s.commits = append(s.commits, e)
			}
		case e.Verb != "delete" && received.After(newest.Add(-clockSkew)) && (e.ObjectRef.UID == "" || e.ObjectRef.UID == a.UID):
			s.outOfBand = append(s.outOfBand, e)
		}
	}
	newestFirst(s.outOfBand)
	s.outOfBand = firstOfEachWriter(s.outOfBand, maxOutOfBand)
	newestFirst(s.successes)
	s.successes = top(s.successes, maxSuccesses, func(e event.Event) bool { return !a.Ledger.HasAuditID(e.AuditID) })
	newestFirst(s.commits)
	s.commits = top(s.commits, maxCommits, func(e event.Event) bool { return e.ObjectRef.UID != a.UID })
	return s
}

func (s surroundings) events() []event.Event {
	return slices.Concat(s.successes, s.commits, s.outOfBand)
}

// isOwn reports whether one of our own parts made the request, and nobody in its name.
func isOwn(e event.Event, own []string) bool {
	return e.ImpersonatedUser == nil && slices.Contains(own, e.User.Username)
}

// isCommit reports whether a write by our own parts can be that of an operation and tell its Secret from another: the
// mint server updates; a create does not know the UID yet, and the projector patches.
func isCommit(e event.Event) bool { return e.Verb == "update" && e.ObjectRef.UID != "" }

// newestFirst sorts by reception; equals keep the order of their identities.
func newestFirst(events []event.Event) {
	slices.SortStableFunc(events, func(a, b event.Event) int {
		return b.RequestReceivedTimestamp.Compare(a.RequestReceivedTimestamp)
	})
}

// top returns the first limit events when those preferred come before the others.
func top(events []event.Event, limit int, preferred func(event.Event) bool) []event.Event {
	var front, back []event.Event
	for _, e := range events {
		if preferred(e) {
			front = append(front, e)
		} else {
			back = append(back, e)
		}
	}
	events = append(front, back...)
	return events[:min(len(events), limit)]
}

func firstOfEachWriter(writes []event.Event, limit int) []event.Event {
	seen := make(map[[2]string]bool)
	var kept []event.Event
	for _, e := range writes {
		writer := [2]string{e.EffectiveUser(), impersonator(e)}
		if !seen[writer] && len(kept) < limit {
			seen[writer] = true
			kept = append(kept, e)
		}
	}
	return kept
}

// entryKey is the key of an entry's evidence: one of a fixed number for each account, more than a ledger has entries, so
// that operations without end do not fill the bucket. What the key holds of another entry, be it one that an etcd
// restore took away or brought back, stands under its own audit id and caller: it does not match, and is replaced.
func entryKey(l ledger.Ledger, e ledger.Entry) string {
	return key("entry", l.Account, fmt.Sprint(e.Revision%entryKeys))
}

const entryKeys = 32

// surroundingsKey is the key of an account's surroundings.
func surroundingsKey(l ledger.Ledger) string { return key("surroundings", l.Account) }

func key(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "/")))
	return hex.EncodeToString(sum[:])
}
