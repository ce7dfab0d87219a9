package archive

import (
	"strconv"
	"strings"
	"time"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/ledger"
)

// A Query says which events are asked for. Empty fields ask for any.
type Query struct {
	Start, End time.Time // of reception: from Start on, before End

	Namespace  string
	Credential string           // <release>.<account>: requests for it and writes of its Secret
	Operation  ledger.Operation // Mint or Revoke: requests alone, no writes of Secrets
	User       string           // the effective user or the authenticated one
	AuditID    string

	// Limit is how many events are wanted at most; 0: all.
	Limit int

	page int // how many rows are asked for at a time; 0: pageSize
}

// quote makes a LogsQL string of any value. LogsQL reads strings as Go does.
func quote(s string) string { return strconv.Quote(s) }

func exactly(field, value string) string { return quote(field) + ":=" + quote(value) }

// filter is the query's LogsQL, without pipes.
func (q Query) filter() string {
	parts := []string{timeFilter(q.Start, q.End), `_stream:{log_source=` + quote(logSource) + `}`, q.objects()}
	if q.Namespace != "" {
		parts = append(parts, exactly(fieldNamespace, q.Namespace))
	}
	if q.User != "" {
		parts = append(parts, "("+exactly(fieldUser, q.User)+" or "+exactly(fieldEffective, q.User)+")")
	}
	if q.AuditID != "" {
		parts = append(parts, exactly(fieldAuditID, q.AuditID))
	}
	return strings.TrimSpace(strings.Join(parts, " "))
}

// objects narrows the audit log to requests for operations and writes of account Secrets.
func (q Query) objects() string {
	subresources := `in("mint","revoke")`
	if q.Operation != "" {
		subresources = "=" + quote(strings.ToLower(string(q.Operation)))
	}
	requests := exactly(fieldGroup, event.Group) + " " + exactly(fieldResource, event.Resource) + " " +
		quote(fieldSubresource) + ":" + subresources
	writes := exactly(fieldResource, "secrets") + " "
	if q.Credential != "" {
		requests += " " + exactly(fieldName, q.Credential)
		writes += exactly(fieldName, q.Credential+event.AccountSecretSuffix)
	} else {
		// The word is looked up in an index; the expression alone would read the name of every Secret.
		writes += quote(fieldName) + ":" + quote("account") + " " + quote(fieldName) + ":~" + quote(`\.account$`)
	}
	if q.Operation != "" {
		return requests
	}
	return "((" + requests + ") or (" + writes + "))"
}

// matches repeats in Go what the filter asked for, so that nothing foreign comes out whatever a filter lets through.
func (q Query) matches(e *event.Event) bool {
	operation, isRequest := e.Operation()
	namespace, credential := e.Account()
	received := e.RequestReceivedTimestamp
	return (isRequest || e.IsWrite()) &&
		(q.Operation == "" || isRequest && operation == q.Operation) &&
		(q.Namespace == "" || namespace == q.Namespace) &&
		(q.Credential == "" || credential == q.Credential) &&
		(q.User == "" || e.User.Username == q.User || e.EffectiveUser() == q.User) &&
		(q.AuditID == "" || e.AuditID == q.AuditID) &&
		(q.Start.IsZero() || !received.Before(q.Start)) &&
		(q.End.IsZero() || received.Before(q.End))
}

// The widest range of times that the archive is asked for: what its nanoseconds in 64 bits can hold.
var (
	firstTime = time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)
	lastTime  = time.Date(2262, 1, 1, 0, 0, 0, 0, time.UTC)
)

// timeFilter covers what is filed from start on and before end. Rows are filed under whole microseconds.
func timeFilter(start, end time.Time) string {
	from, to := start.UTC().Truncate(time.Microsecond), end.UTC()
	if start.IsZero() || from.Before(firstTime) {
		from = firstTime
	}
	if end.IsZero() || to.After(lastTime) {
		to = lastTime
	}
	if to.Before(firstTime) {
		to = firstTime
	}
	const layout = "2006-01-02T15:04:05.000000000Z"
	return "_time:[" + from.Format(layout) + ", " + to.Format(layout) + ")"
}
