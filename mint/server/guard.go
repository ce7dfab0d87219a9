package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mintlog/mintlog/mint/request"
)

// Limits of a request, in bytes. With --audit-log-truncate-enabled, kube-apiserver drops an audit event that grows too
// large, and the URI, the user's name, UID, groups and extras, and the addresses stand in it, escaped. What kube-apiserver takes off a request
// before it calls (parameters of the query that do not parse, headers named in Connection) stands in the event as well
// and cannot be seen here: where events are truncated, such a request can be done without one.
const (
	maxURI       = 8 << 10
	maxUsername  = 1024
	maxIdentity  = 32 << 10 // of UID, groups and extras in JSON, as the event holds them
	maxForwarded = 1 << 10
	maxBody      = 64 << 10
)

// Where kube-apiserver, as the front proxy, names the user on whose behalf it calls, the user's UID and groups, and what
// else its authenticator knows.
const (
	remoteUserHeader  = "X-Remote-User"
	remoteUIDHeader   = "X-Remote-Uid"
	remoteGroupHeader = "X-Remote-Group"
	remoteExtraPrefix = "X-Remote-Extra-"
)

// bodyTimeout is for how long the guard waits for a body. kube-apiserver hands bodies on as they come, and one that
// comes drop by drop must not hold a place that others need.
const bodyTimeout = 5 * time.Second

// A guard stands before everything else in the server and refuses, with nothing read of the body and nothing written,
// what would be done without an audit event that says so: what lets a client take its request off kube-apiserver's log
// or falsify what the log says of it. It also refuses what would do a write and lose the answer, and hands a request on
// only when all of its body is there.
type guard struct {
	next        http.Handler
	now         func() time.Time
	log         *slog.Logger
	refused     *prometheus.CounterVec // by reason
	bodyTimeout time.Duration
}

func newGuard(next http.Handler, now func() time.Time, log *slog.Logger, registerer prometheus.Registerer) (*guard, error) {
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "mintlog_api_refused_requests_total",
		Help: "Requests refused before anything was done, because they would have escaped or falsified the audit log.",
	}, []string{"reason"})
	if err := registerer.Register(refused); err != nil {
		return nil, fmt.Errorf("register the metrics of refused requests: %w", err)
	}
	return &guard{next: next, now: now, log: log, refused: refused, bodyTimeout: bodyTimeout}, nil
}

// A refusal is an answer to a request that goes no further.
type refusal struct {
	code    int
	label   string // of the metric
	message string // what is wrong and what to do
}

// ServeHTTP answers the request if it is refused, and hands it on with the request's origin in its context if not.
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	received := g.now()
	if no := g.admit(w, r); no != nil {
		g.refused.WithLabelValues(no.label).Inc()
		g.log.Debug("refused a request", "reason", no.label, "method", r.Method)
		no.write(w)
		return
	}
	auditID := ""
	if !isRead(r) {
		auditID = r.Header.Get(auditIDHeader)
		w.Header().Set("Cache-Control", "no-store")
	}
	g.next.ServeHTTP(w, r.WithContext(request.With(r.Context(), auditID, received)))
}

// admit says why the request is refused, or nil. Of one that is not, the body is in memory.
//
// While it refuses, the deadline stays: the HTTP server looks for the rest of a body before it answers, and closes the
// connection if there is no end of it.
func (g *guard) admit(w http.ResponseWriter, r *http.Request) *refusal {
	if r.Body == http.NoBody {
		return check(r)
	}
	if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(g.bodyTimeout)); err != nil {
		return &refusal{http.StatusInternalServerError, "deadline", "the connection takes no deadline, so the body is not read: send the request again"}
	}
	if no := check(r); no != nil {
		return no
	}
	return g.readBody(w, r)
}

// readBody takes the body into memory, and the deadline off the connection: kube-apiserver sends other requests on it.
func (g *guard) readBody(w http.ResponseWriter, r *http.Request) *refusal {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return &refusal{http.StatusRequestEntityTooLarge, "body", fmt.Sprintf("the body is too large: send at most %d bytes", maxBody)}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &refusal{http.StatusRequestTimeout, "slow-body", fmt.Sprintf("the body did not come within %s: send it at once", g.bodyTimeout)}
	case err != nil:
		return &refusal{http.StatusBadRequest, "body", "the body broke off: send the request again"}
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

const auditIDHeader = "Audit-Id" // as net/http spells it

func isRead(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// check says why the request is refused, or nil. Of one that is not, it has made the parts unambiguous that decide how
// the body is read and the answer is written.
func check(r *http.Request) *refusal {
	checks := []func(*http.Request) *refusal{checkURI, checkUser, checkImpersonation}
	if !isRead(r) {
		// Expect goes first: its body must stay unread.
		checks = append([]func(*http.Request) *refusal{checkExpect}, checks...)
		checks = append(checks, checkConnection, checkIdentity, checkForwarded, checkAuditID)
	}
	if r.Method == http.MethodPost {
		checks = append(checks, checkDryRun, checkBody, checkAccept, forceStrictFields)
	}
	for _, check := range checks {
		if no := check(r); no != nil {
			return no
		}
	}
	return nil
}

// checkExpect refuses what makes kube-apiserver record code 100 in place of the answer's.
func checkExpect(r *http.Request) *refusal {
	if len(r.Header.Values("Expect")) > 0 {
		return &refusal{http.StatusExpectationFailed, "expect",
			"the Expect header is not served, because the audit log would not show the answer: send the request without it"}
	}
	return nil
}

// checkURI refuses a URI that may push the audit event over its limit, or whose query the log's readers could take for
// something else than the server does.
func checkURI(r *http.Request) *refusal {
	if len(r.RequestURI) > maxURI {
		return &refusal{http.StatusRequestURITooLong, "uri",
			fmt.Sprintf("the URI has %d bytes, and its audit event could be dropped for it: send at most %d", len(r.RequestURI), maxURI)}
	}
	if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
		return &refusal{http.StatusBadRequest, "query",
			"the query string of the URI does not parse: percent-encode it, and separate its parameters with &"}
	}
	return nil
}

// checkUser refuses a user name that the audit log would not show as it is. A request without one did not come through
// kube-apiserver: a read goes on to be authenticated, because health checks come straight from the kubelet.
func checkUser(r *http.Request) *refusal {
	users := r.Header.Values(remoteUserHeader)
	switch {
	case len(users) == 0 && isRead(r):
		return nil
	case len(users) == 0 || users[0] == "":
		return &refusal{http.StatusUnauthorized, "user",
			"this server is reached through kube-apiserver only: send the request there, to the same path"}
	case len(users) > 1:
		return &refusal{http.StatusBadRequest, "user", "the request names more than one user"}
	case !utf8.ValidString(users[0]):
		return &refusal{http.StatusBadRequest, "user",
			"the user name is not UTF-8, so the audit log would show another: log in under another name"}
	case len(users[0]) > maxUsername:
		return &refusal{http.StatusBadRequest, "user",
			fmt.Sprintf("the user name has %d bytes: log in under one of at most %d", len(users[0]), maxUsername)}
	}
	return nil
}

// checkImpersonation refuses what kube-apiserver has always acted upon and taken off: here it would change the user
// after the log named one.
func checkImpersonation(r *http.Request) *refusal {
	for name := range r.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			return &refusal{http.StatusBadRequest, "impersonation",
				"impersonation is for kube-apiserver to decide: the header " + name + " must have a value that it acts upon"}
		}
	}
	return nil
}

// checkConnection refuses what makes kube-apiserver record 101 or 503 in place of the answer's code, and hop-by-hop
// names that would take headers off the request.
func checkConnection(r *http.Request) *refusal {
	no := &refusal{http.StatusBadRequest, "connection",
		"the Connection header may say close or keep-alive, and nothing may ask for an upgrade, because the audit log would not show the answer"}
	if len(r.Header.Values("Upgrade")) > 0 {
		return no
	}
	for _, value := range r.Header.Values("Connection") {
		for token := range strings.SplitSeq(value, ",") {
			switch strings.ToLower(strings.TrimSpace(token)) {
			case "", "close", "keep-alive":
			default:
				return no
			}
		}
	}
	return nil
}

// checkIdentity refuses a UID, groups and extras that may push the audit event over its limit. Of an impersonated request
// these are the impersonated user's; the impersonator's own cannot be seen here.
func checkIdentity(r *http.Request) *refusal {
	identity := map[string][]string{}
	for name, values := range r.Header {
		if name == remoteUIDHeader || name == remoteGroupHeader || strings.HasPrefix(name, remoteExtraPrefix) {
			identity[name] = values
		}
	}
	encoded, err := json.Marshal(identity)
	if err != nil || len(encoded) > maxIdentity {
		return &refusal{http.StatusBadRequest, "identity",
			fmt.Sprintf("the user's UID, groups and extras take %d bytes, and the audit event could be dropped for them: "+
				"log in with, or impersonate, fewer groups, of at most %d bytes in all", len(encoded), maxIdentity)}
	}
	return nil
}

// checkForwarded refuses a list of addresses that may push the audit event over its limit.
func checkForwarded(r *http.Request) *refusal {
	if n := len(strings.Join(r.Header.Values("X-Forwarded-For"), ",")); n > maxForwarded {
		return &refusal{http.StatusBadRequest, "forwarded",
			fmt.Sprintf("the X-Forwarded-For header has %d bytes, and the audit event could be dropped for it: send at most %d", n, maxForwarded)}
	}
	return nil
}

// checkAuditID refuses a request whose audit event could not be found again, or could not be told from others.
func checkAuditID(r *http.Request) *refusal {
	ids := r.Header.Values(auditIDHeader)
	switch {
	case len(ids) == 0:
		return &refusal{http.StatusBadRequest, "audit-id",
			"the Audit-ID header was lost on the way: do not name it in the Connection header"}
	case len(ids) > 1:
		return &refusal{http.StatusBadRequest, "audit-id", "the Audit-ID header was sent more than once: send it once, or not at all"}
	case len(ids[0]) != len(uuid.Nil.String()) || uuid.Validate(ids[0]) != nil:
		return &refusal{http.StatusBadRequest, "audit-id",
			"the Audit-ID header is not a UUID: send a new random one with each request, or none"}
	}
	return nil
}

// checkDryRun refuses a parameter that was meant for dryRun and is not: it would be passed over, and the password be
// changed after all.
func checkDryRun(r *http.Request) *refusal {
	for name := range r.URL.Query() {
		if name != "dryRun" && strings.EqualFold(strings.NewReplacer("-", "", "_", "").Replace(name), "dryRun") {
			return &refusal{http.StatusBadRequest, "query", fmt.Sprintf("the parameter %q of the URI is none: it is dryRun=All; nothing was written", name)}
		}
	}
	return nil
}

// checkBody refuses a body that is too large to be one of ours, or is no plain JSON. The limit holds for one of unknown
// length where it is read. One without a type is JSON: kubectl create --raw names none.
func checkBody(r *http.Request) *refusal {
	if r.ContentLength > maxBody {
		return &refusal{http.StatusRequestEntityTooLarge, "body",
			fmt.Sprintf("the body has %d bytes: send at most %d", r.ContentLength, maxBody)}
	}
	if len(r.Header.Values("Content-Encoding")) > 0 {
		return &refusal{http.StatusUnsupportedMediaType, "content-type", "the body is encoded: send it as it is, without Content-Encoding"}
	}
	for _, value := range r.Header.Values("Content-Type") {
		if mediaType, _, err := mime.ParseMediaType(value); err != nil || mediaType != "application/json" {
			return &refusal{http.StatusUnsupportedMediaType, "content-type", "the body must be JSON: send it with Content-Type: application/json"}
		}
	}
	r.Header.Set("Content-Type", "application/json")
	return nil
}

// checkAccept refuses an answer in a form that would lose the password after it was stored, and leaves the one form
// that is answered in.
func checkAccept(r *http.Request) *refusal {
	no := &refusal{http.StatusNotAcceptable, "accept",
		"the answer is the whole object, in JSON or YAML: send Accept: application/json, without as, g or v"}
	chosen := ""
	for element := range strings.SplitSeq(strings.Join(r.Header.Values("Accept"), ","), ",") {
		if element = strings.TrimSpace(element); element == "" {
			continue
		}
		mediaType, parameters, err := mime.ParseMediaType(element)
		if err != nil {
			return no
		}
		for _, transformation := range []string{"as", "g", "v"} {
			if _, ok := parameters[transformation]; ok {
				return no
			}
		}
		if form := answered(mediaType); chosen == "" {
			chosen = form
		}
	}
	if chosen == "" && strings.TrimSpace(strings.Join(r.Header.Values("Accept"), "")) != "" {
		return no
	}
	if chosen == "" {
		chosen = "application/json"
	}
	r.Header.Set("Accept", chosen)
	return nil
}

// answered is the media type in which a request for mediaType is answered, "" if it is not.
func answered(mediaType string) string {
	switch mediaType {
	case "application/json", "application/*", "*/*":
		return "application/json"
	case "application/yaml":
		return "application/yaml"
	}
	return ""
}

// forceStrictFields makes unknown and duplicate fields of the body an error: a misspelt precondition must not mint.
func forceStrictFields(r *http.Request) *refusal {
	query := r.URL.Query()
	query.Set("fieldValidation", metav1.FieldValidationStrict)
	r.URL.RawQuery = query.Encode()
	return nil
}

var reasons = map[int]metav1.StatusReason{
	http.StatusBadRequest:            metav1.StatusReasonBadRequest,
	http.StatusUnauthorized:          metav1.StatusReasonUnauthorized,
	http.StatusNotAcceptable:         metav1.StatusReasonNotAcceptable,
	http.StatusRequestEntityTooLarge: metav1.StatusReasonRequestEntityTooLarge,
	http.StatusUnsupportedMediaType:  metav1.StatusReasonUnsupportedMediaType,
}

func (no *refusal) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(no.code)
	// A client that has gone away gets no answer, and there is nothing else to tell it.
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Message:  no.message,
		Reason:   reasons[no.code],
		Code:     int32(no.code),
	})
}
