// Package archive keeps audit events in VictoriaLogs, in the flat shape that Cozystack's own pipeline writes, so that
// one query serves both, and reads them back as the events they were.
package archive

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/mintlog/mintlog/store/event"
)

const (
	maxBatch      = 3 << 20  // bytes of lines in one insert, before compression
	maxRow        = 16 << 20 // bytes of one line of an answer
	idsPerQuery   = 200      // a query may have 16 KiB
	sourceArchive = "archive"
)

// ErrLineTooLong is returned when the archive answers with a line that no row of it can be.
var ErrLineTooLong = errors.New("line of the archive's answer is too long")

// A StatusError is an answer of VictoriaLogs other than 2xx, or one of any status that is not VictoriaLogs'.
type StatusError struct {
	Doing   string
	Code    int
	Message string // the beginning of its text; empty for inserts, whose errors quote the lines sent
	strange string // what answered instead of VictoriaLogs
}

func (e *StatusError) Error() string {
	switch {
	case e.strange != "":
		return e.Doing + ": " + e.strange
	case e.Message == "":
		return fmt.Sprintf("%s: VictoriaLogs answered %d", e.Doing, e.Code)
	}
	return fmt.Sprintf("%s: VictoriaLogs answered %d: %q", e.Doing, e.Code, e.Message)
}

// errNoRow is part of the error where a line of an answer is no row that was asked for.
var errNoRow = errors.New("read the archive's answer")

// isStrange reports whether an answer is not VictoriaLogs': a page for people, or one to a question that a redirection
// turned into another.
func isStrange(request *http.Request, answer *http.Response) bool {
	return contentType(answer) == "text/html" || answer.Request.Method != request.Method
}

// strange says what an answer is that is not VictoriaLogs', and what to do.
func strange(request *http.Request, answer *http.Response) string {
	where, from := place(request.URL), place(answer.Request.URL)
	if where != from {
		where += " redirected to " + from + ", which"
	}
	return fmt.Sprintf("%s answered %d (%s), as VictoriaLogs does not: see that the URL leads to it, and to no login, other path or redirection",
		where, answer.StatusCode, cmp.Or(contentType(answer), "no content type"))
}

func contentType(answer *http.Response) string {
	kind, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type"))
	return kind
}

// place is a URL without what in it may be secret.
func place(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// An Archive is one VictoriaLogs. Its methods may be called concurrently.
type Archive struct {
	base   string
	client *http.Client
}

// New returns the archive at baseURL ("http://host:9428"). The client decides on TLS and timeouts; nil means
// http.DefaultClient, where only a context ends a call.
func New(baseURL string, client *http.Client) *Archive {
	if client == nil {
		client = http.DefaultClient
	}
	return &Archive{base: strings.TrimRight(baseURL, "/"), client: client}
}

// insertLines sends lines in bounded batches. VictoriaLogs answers success for what it drops, and shows what it takes
// after about a second: ask present.
func (a *Archive) insertLines(ctx context.Context, lines [][]byte) error {
	for first := 0; first < len(lines); {
		size, end := 0, first
		for end < len(lines) && (end == first || size+len(lines[end]) <= maxBatch) {
			size += len(lines[end])
			end++
		}
		if err := a.insertBatch(ctx, lines[first:end]); err != nil {
			return err
		}
		first = end
	}
	return nil
}

func (a *Archive) insertBatch(ctx context.Context, lines [][]byte) error {
	var body bytes.Buffer
	compressor := gzip.NewWriter(&body)
	for _, line := range lines {
		if _, err := compressor.Write(line); err != nil {
			return fmt.Errorf("compress a batch: %w", err)
		}
	}
	if err := compressor.Close(); err != nil {
		return fmt.Errorf("compress a batch: %w", err)
	}
	const path = "/insert/jsonline?_stream_fields=log_source,stage,verb&_msg_field=_msg&_time_field=_time"
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, a.base+path, &body)
	if err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	request.Header.Set("Content-Type", "application/stream+json")
	request.Header.Set("Content-Encoding", "gzip")
	answer, err := a.do(request, "insert")
	var status *StatusError
	if errors.As(err, &status) {
		status.Message = ""
	}
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

// do sends a request and returns the answer if that is a success.
func (a *Archive) do(request *http.Request, doing string) (*http.Response, error) {
	request.Header.Set("AccountID", "0")
	request.Header.Set("ProjectID", "0")
	answer, err := a.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	failure := &StatusError{Doing: doing, Code: answer.StatusCode}
	switch {
	case isStrange(request, answer):
		failure.strange = strange(request, answer)
	case answer.StatusCode/100 == 2:
		return answer, nil
	}
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 300))
	failure.Message = string(text)
	return nil, errors.Join(failure, answer.Body.Close())
}

// Query calls handle with every event that the query asks for, newest first by time of reception (which of two of the
// same microsecond comes first is left open), each once however often it was inserted, marked with Source "archive". It
// stops at handle's first error and returns that.
//
// It asks for page after page, each read before its events are handled: a handler may take its time, and VictoriaLogs
// ends what takes longer than 30 s.
func (a *Archive) Query(ctx context.Context, q Query, handle func(event.Event) error) error {
	return a.query(ctx, q, 1, handle, func() {})
}

// query asks for each page so many times, and tells of each row that is what was asked for and cannot be read; of one
// that stands on the edge of two pages it may do so twice.
func (a *Archive) query(ctx context.Context, q Query, tries int, handle func(event.Event) error, unreadable func()) error {
	found := &results{query: q, handle: handle, unreadable: unreadable}
	size := cmp.Or(q.page, pageSize)
	for {
		page, err := a.patiently(ctx, q, size, tries)
		if err != nil {
			return err
		}
		for _, r := range page {
			if err := found.take(r); errors.Is(err, errEnough) {
				return nil
			} else if err != nil {
				return err
			}
		}
		if len(page) < size {
			return nil
		}
		end := page[len(page)-1].at.Add(time.Nanosecond) // rows of that very time may be on both sides of the page's end
		if end.Equal(q.End) {
			size *= 2
		}
		q.End = end
	}
}

// pageSize is how many rows are asked for at a time; a row has at most maxLine bytes. A page whose rows are all of one
// time is asked for again twice as long.
const pageSize = 200

// A filed is a row of a page, read.
type filed struct {
	at    time.Time // that it is filed under
	event event.Event
	err   error // why it gives no event
}

// page reads the newest rows of a query, newest first. A large page is asked for unsorted first: it may hold all rows,
// which VictoriaLogs finds in half the time that it takes to sort them.
func (a *Archive) page(ctx context.Context, q Query, size int) ([]*filed, error) {
	limit := " | limit " + strconv.Itoa(size) + withoutOthers
	if q.page > 0 {
		all, err := a.collect(ctx, q.filter()+limit)
		if err != nil || len(all) < size {
			slices.SortStableFunc(all, func(a, b *filed) int { return b.at.Compare(a.at) })
			return all, err
		}
	}
	return a.collect(ctx, q.filter()+" | sort by (_time) desc"+limit)
}

// withoutOthers leaves out what no event is read from, a third of each row.
const withoutOthers = " | delete _stream, _stream_id, log_source, kind, level, cluster, tenant, operation, " + fieldEventID

func (a *Archive) collect(ctx context.Context, logsQL string) ([]*filed, error) {
	var page []*filed
	err := a.rows(ctx, logsQL, func(r row) error {
		at, err := readTime(r, fieldTime, "")
		if err != nil {
			return err
		}
		e, err := fromRow(r)
		page = append(page, &filed{at, e, err})
		return nil
	})
	return page, err
}

// errEnough ends a query at its limit.
var errEnough = errors.New("enough")

// results passes events on, each once, until the query's limit.
type results struct {
	query      Query
	handle     func(event.Event) error
	unreadable func()
	count      int
	at         time.Time           // of the events seen last
	seen       map[string]struct{} // identities of the events of that time: equal events are filed under equal times
}

func (f *results) take(r *filed) error {
	if r.err != nil {
		f.unreadable()
		return nil
	}
	e := r.event
	if !f.query.matches(&e) {
		return nil // a read of a Secret, and what else the filter lets through
	}
	if t := rowTime(&e); f.seen == nil || !t.Equal(f.at) {
		f.at, f.seen = t, map[string]struct{}{}
	}
	id := e.Identity()
	if _, ok := f.seen[id]; ok {
		return nil
	}
	f.seen[id] = struct{}{}
	e.Source = sourceArchive
	if err := f.handle(e); err != nil {
		return err
	}
	if f.count++; f.count == f.query.Limit {
		return errEnough
	}
	return nil
}

// rows streams the rows of a LogsQL query. The next row overwrites the one before.
func (a *Archive) rows(ctx context.Context, logsQL string, handle func(row) error) error {
	body := strings.NewReader(url.Values{"query": {logsQL}}.Encode())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, a.base+"/select/logsql/query", body)
	if err != nil {
		return fmt.Errorf("query: %w", err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer, err := a.do(request, "query")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if err := readRows(answer.Body, handle); errors.Is(err, errNoRow) {
		return fmt.Errorf("query: %s: %w", strange(request, answer), err)
	} else if err != nil {
		return err
	}
	return nil
}

func readRows(answer io.Reader, handle func(row) error) error {
	lines := bufio.NewScanner(answer)
	lines.Buffer(make([]byte, 0, 64<<10), maxRow)
	r := row{}
	for lines.Scan() && lines.Err() == nil { // the last line of an answer that was cut short is none
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		clear(r)
		err := jsonv2.Unmarshal(lines.Bytes(), &r, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
		if err == nil {
			err = handle(r)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errNoRow, err)
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return ErrLineTooLong
	case err != nil:
		return fmt.Errorf("read the archive's answer: %w", err)
	}
	return nil
}

// A reference is what finds an event in the archive.
type reference struct {
	identity string
	time     time.Time // that it is filed under
}

func referenceTo(e *event.Event) reference { return reference{e.Identity(), rowTime(e)} }

// present returns the identities of those events that the archive shows. What was inserted within about a second may
// not be shown yet.
func (a *Archive) present(ctx context.Context, list []reference) (map[string]bool, error) {
	present := map[string]bool{}
	for first := 0; first < len(list); first += idsPerQuery {
		part := list[first:min(len(list), first+idsPerQuery)]
		err := a.rows(ctx, presentQuery(part), func(r row) error {
			if r[fieldEventID] == "" {
				return errors.New("it names no event")
			}
			present[r[fieldEventID]] = true
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return present, nil
}

func presentQuery(list []reference) string {
	first, last := list[0].time, list[0].time
	ids := make([]string, len(list))
	for i, r := range list {
		ids[i] = quote(r.identity)
		if r.time.Before(first) {
			first = r.time
		} else if r.time.After(last) {
			last = r.time
		}
	}
	return timeFilter(first, last.Add(time.Microsecond)) + " _stream:{log_source=" + quote(logSource) + "} " +
		fieldEventID + ":in(" + strings.Join(ids, ",") + ") | uniq by (" + fieldEventID + ")"
}

// idBytesPerQuery is how long the audit ids of one query may be together, which clients choose.
const idBytesPerQuery = 6 << 10

// foreign returns the identities of those events that another pipeline has put into the archive.
func (a *Archive) foreign(ctx context.Context, list []event.Event) (map[string]bool, error) {
	found := map[string]bool{}
	for len(list) > 0 {
		wanted := map[string]bool{}
		first, last, bytes := rowTime(&list[0]), rowTime(&list[0]), 0
		var ids []string
		for len(list) > 0 && len(ids) < idsPerQuery && bytes < idBytesPerQuery {
			e := &list[0]
			list = list[1:]
			id := quote(e.AuditID)
			if len(id) > idBytesPerQuery {
				continue // and is inserted, at worst for the second time
			}
			wanted[e.Identity()] = true
			ids, bytes = append(ids, id), bytes+len(id)
			first, last = minTime(first, rowTime(e)), maxTime(last, rowTime(e))
		}
		if len(ids) == 0 {
			continue
		}
		query := timeFilter(first.Add(-time.Microsecond), last.Add(2*time.Microsecond)) + " _stream:{log_source=" + quote(logSource) + "} " +
			fieldEventID + ":=" + quote("") + " " + fieldAuditID + ":in(" + strings.Join(ids, ",") + ")"
		err := a.rows(ctx, query, func(r row) error {
			if e, err := fromRow(r); err == nil && wanted[e.Identity()] {
				found[e.Identity()] = true
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func maxTime(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// show makes VictoriaLogs show at once what it took. It may not be allowed to.
func (a *Archive) show(ctx context.Context) error {
	const doing = "make the archive show what it has"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+"/internal/force_flush", nil)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	answer, err := a.do(request, doing)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}
