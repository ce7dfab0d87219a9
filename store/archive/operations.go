package archive

import (
	"context"
	"slices"
	"time"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/ledger"
)

// An Effect is what the archive knows of what became of a request.
type Effect string

const (
	// Done: the mint server's write of the account Secret stands under the request's audit id.
	Done Effect = "Done"
	// Reported: the mint server answered with success, and the archive has no write.
	Reported Effect = "Reported"
	// Unknown: no answer that proves anything, and no write; the account's ledger can tell.
	Unknown Effect = "Unknown"
	// Refused: it was not allowed, or the mint server refused it.
	Refused Effect = "Refused"
	// DryRun: nothing was to be done.
	DryRun Effect = "DryRun"
)

// An Asked is one request for a mint or a revoke.
type Asked struct {
	// Event is its final event, or its reception where the archive has no more of it.
	Event event.Event
	// Commit is the mint server's write of the account Secret under the same audit id; nil if the archive has none.
	Commit *event.Event
}

// Effect is what became of it. A client can skew the answer that the log has of a request, and not the commit. What was
// refused or a dry run has none: one under its audit id is that of another request, for the id is the client's to choose.
func (a *Asked) Effect() Effect {
	switch outcome := a.Event.Outcome(); {
	case outcome == event.Refused:
		return Refused
	case a.Event.DryRun():
		return DryRun
	case a.Commit != nil:
		return Done
	case outcome == event.Succeeded:
		return Reported
	}
	return Unknown
}

// How far a commit's reception may lie before its request's (the clocks of two kube-apiservers), and behind it:
// kube-apiserver's own deadline and what the mint server takes to write.
const (
	commitBefore = 5 * time.Second
	commitBehind = time.Minute + ledger.WriteBudget + commitBefore
)

// askedPage is how many rows of requests and writes are read at a time.
const askedPage = 5000

// Requests calls handle with each request for an operation that the query asks for, newest first, joined with its
// commit: the write of its account's Secret under its audit id by one of writers, the user names of the mint server.
// A request is one, however many events of it there are. It stops at handle's first error and returns that. The query's
// Limit is not looked at.
func (a *Archive) Requests(ctx context.Context, q Query, writers []string, handle func(Asked) error) error {
	events := Query{Start: q.Start, End: q.End, Namespace: q.Namespace, Credential: q.Credential, AuditID: q.AuditID, page: askedPage}
	if !q.End.IsZero() {
		events.End = q.End.Add(commitBehind)
	}
	if !q.Start.IsZero() {
		events.Start = q.Start.Add(-commitBefore)
	}
	j := &joiner{query: q, writers: writers, handle: handle, commits: map[request]event.Event{}}
	if err := a.Query(ctx, events, j.take); err != nil {
		return err
	}
	return j.settle(time.Time{})
}

// A request is what its events and its commit have in common. An audit id alone is the client's to choose.
type request struct{ auditID, namespace, credential string }

func requestOf(e *event.Event) request {
	namespace, credential := e.Account()
	return request{e.AuditID, namespace, credential}
}

// A joiner puts requests and commits together that come newest first. It holds what lies within commitBehind.
type joiner struct {
	query   Query
	writers []string
	handle  func(Asked) error
	waiting []Asked                 // requests, newest first
	commits map[request]event.Event // what the requests to come may belong to
	order   []event.Event           // of the commits, newest first
}

func (j *joiner) take(e event.Event) error {
	if err := j.settle(e.RequestReceivedTimestamp); err != nil {
		return err
	}
	switch {
	case !e.IsWrite():
		j.ask(e)
	case e.Outcome() == event.Succeeded && !e.DryRun() && e.ImpersonatedUser == nil && slices.Contains(j.writers, e.User.Username):
		j.commit(e)
	}
	return nil
}

// ask adds an event of a request to what is known of it. All events of one have the same time of reception, so they
// come one after the other, with no more than others of that time between them.
func (j *joiner) ask(e event.Event) {
	id := requestOf(&e)
	for i := len(j.waiting) - 1; i >= 0; i-- {
		known := &j.waiting[i].Event
		if !known.RequestReceivedTimestamp.Equal(e.RequestReceivedTimestamp) {
			break
		}
		if requestOf(known) == id {
			if known.Stage == event.RequestReceived {
				*known = e
			}
			return
		}
	}
	asked := Asked{Event: e}
	if commit, ok := j.commits[id]; ok {
		asked.Commit = &commit
	}
	j.waiting = append(j.waiting, asked)
}

// commit adds a commit to the requests that wait for it, and keeps it for those to come.
func (j *joiner) commit(e event.Event) {
	id := requestOf(&e)
	for i := range j.waiting {
		if requestOf(&j.waiting[i].Event) == id {
			j.waiting[i].Commit = &e
		}
	}
	j.commits[id] = e
	j.order = append(j.order, e)
}

// settle passes on the requests to which nothing received until now can belong, and forgets the commits that belong to
// nothing received until now. The zero time settles all.
func (j *joiner) settle(now time.Time) error {
	for len(j.waiting) > 0 && (now.IsZero() || now.Before(j.waiting[0].Event.RequestReceivedTimestamp.Add(-commitBefore))) {
		asked := j.waiting[0]
		j.waiting = j.waiting[1:]
		if !j.query.matches(&asked.Event) {
			continue // the events were asked for without what only requests have
		}
		if err := j.handle(asked); err != nil {
			return err
		}
	}
	for len(j.order) > 0 && now.Before(j.order[0].RequestReceivedTimestamp.Add(-commitBehind)) {
		forgotten := j.order[0]
		j.order = j.order[1:]
		if id := requestOf(&forgotten); j.commits[id].RequestReceivedTimestamp.Equal(forgotten.RequestReceivedTimestamp) {
			delete(j.commits, id)
		}
	}
	return nil
}
