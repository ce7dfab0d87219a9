package webhook

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mintlog/mintlog/ingest"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/stream"
)

// A chunk is how many events, and bytes of their items, are collected before they are published: what bounds a
// request's memory, beside its longest item.
const (
	chunkEvents = 512
	chunkBytes  = 2 << 20
)

// drainTimeout is for how long the rest of a refused body is read.
const drainTimeout = 5 * time.Second

// keptOfNoList is how much of a body that is no list is kept, in bytes.
const keptOfNoList = 1 << 20

// A refusal is an answer other than 200.
type refusal struct {
	status int
	reason string // one of the constants
	err    error  // never quotes a body
}

func (e *refusal) Error() string { return e.err.Error() }
func (e *refusal) Unwrap() error { return e.err }

// ServeHTTP takes one batch.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	err := r.identity.check(request.TLS)
	if err != nil {
		w.Header().Set("Connection", "close") // a new one may show a certificate that is let in
		r.refuse(w, request, &refusal{http.StatusUnauthorized, stranger, err})
		return
	}
	began := time.Now()
	defer func() { r.metrics.duration.Observe(time.Since(began).Seconds()) }()
	if err := r.serve(w, request); err != nil {
		var refused *refusal
		if !errors.As(err, &refused) {
			refused = &refusal{http.StatusServiceUnavailable, unpublished, err}
		}
		r.refuse(w, request, refused)
		return
	}
	r.metrics.done.Inc()
	name, now := strings.TrimPrefix(strings.TrimSuffix(request.URL.Path, "/"), pathPrefix), r.options.Now()
	r.metrics.arrived(name, now)
	r.outage.sent(name, now)
}

func (r *Receiver) serve(w http.ResponseWriter, request *http.Request) error {
	name, found := strings.CutPrefix(strings.TrimSuffix(request.URL.Path, "/"), pathPrefix)
	if !found || CheckName(name) != nil {
		return &refusal{http.StatusNotFound, wrongPath, errors.New("the path is " + Path("NAME"))}
	}
	if request.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return &refusal{http.StatusMethodNotAllowed, wrongMethod, errors.New("the method is POST")}
	}
	if err := r.enter(request.Context()); err != nil {
		return err
	}
	defer r.leave()
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout)) // both versions of HTTP have one
	body, err := r.body(w, request)
	if err != nil {
		return err
	}
	b := &batch{receiver: r, name: name, patience: r.options.PublishTimeout, setAside: map[string]int{},
		ctx: context.WithoutCancel(request.Context())} // a caller that went comes back: half a publication helps nobody
	err = b.take(body)
	if len(b.setAside) > 0 {
		r.options.Log.Warn("Audit events cannot be used and were set aside", "source", b.source(), "reasons", b.setAside,
			"directory", r.options.SetAside)
	}
	if b.keepErr != nil {
		r.options.Log.Error("Audit events that cannot be used cannot be kept either", "error", b.keepErr)
	}
	return err
}

// enter waits for a slot. More than a few requests do not even wait.
func (r *Receiver) enter(ctx context.Context) error {
	full := &refusal{http.StatusTooManyRequests, overloaded, errors.New("too many batches at once")}
	defer r.waiting.Add(-1)
	if int(r.waiting.Add(1)) > 8*r.options.InFlight {
		return full
	}
	timer := time.NewTimer(r.options.Wait)
	defer timer.Stop()
	select {
	case r.slots <- struct{}{}:
		r.metrics.inFlight.Inc()
		return nil
	case <-timer.C:
		return full
	case <-ctx.Done():
		return full
	}
}

func (r *Receiver) leave() {
	r.metrics.inFlight.Dec()
	<-r.slots
}

// body is the request's, decompressed. What is sent is limited as well: compressed nothing can be as long as one likes.
func (r *Receiver) body(w http.ResponseWriter, request *http.Request) (io.Reader, error) {
	sent := http.MaxBytesReader(w, request.Body, r.options.MaxBody)
	switch strings.ToLower(request.Header.Get("Content-Encoding")) {
	case "", "identity":
		return sent, nil
	case "gzip":
		unzipped, err := gzip.NewReader(sent)
		if err != nil {
			return nil, bodyError(err)
		}
		return http.MaxBytesReader(w, unzipped, r.options.MaxBody), nil
	}
	return nil, &refusal{http.StatusUnsupportedMediaType, encoding, errors.New("the only compression is gzip")}
}

// bodyError says how to answer a body that cannot be read to its end.
func bodyError(err error) error {
	var big *http.MaxBytesError
	if errors.As(err, &big) {
		return &refusal{http.StatusRequestEntityTooLarge, bodyTooBig, fmt.Errorf("the body is longer than %d bytes", big.Limit)}
	}
	return &refusal{http.StatusBadRequest, unreadable, fmt.Errorf("reading the body: %w", err)}
}

// refuse answers. kube-apiserver repeats whatever the status is; with a Retry-After it holds on longer.
//
// Over HTTP/1.1 a caller that is still sending may not see the answer, but a broken connection: its body is read to the
// end, within limits.
func (r *Receiver) refuse(w http.ResponseWriter, request *http.Request, refused *refusal) {
	r.metrics.rejected.WithLabelValues(refused.reason).Inc()
	switch refused.status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", strconv.Itoa(int((r.options.RetryAfter+time.Second-1)/time.Second)))
	default:
		r.options.Log.Warn("A batch of audit events was not taken", "caller", request.RemoteAddr, "status", refused.status,
			"error", refused.err)
	}
	if request.ProtoMajor < 2 && refused.reason != stranger {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTimeout))
		_, _ = io.CopyN(io.Discard, request.Body, r.options.MaxBody) // whether it ends does not matter
	}
	http.Error(w, refused.err.Error(), refused.status)
}

// A batch is one request's events.
type batch struct {
	receiver *Receiver
	ctx      context.Context
	name     string        // of the kube-apiserver
	patience time.Duration // left for publishing
	events   []event.Event // to be published
	size     int64         // of their items
	setAside map[string]int
	keepErr  error // why something could not be kept
}

func (b *batch) source() string { return ingest.Source("webhook", b.name) }

// take publishes every event of ours in the body.
//
// A body that is no list cannot be told from one that was spoilt on its way. It is answered with 400, not 200:
// kube-apiserver repeats the bytes it means, so the repetition may be whole, and if it never is, kube-apiserver counts
// and logs the batch as lost, which after a 200 it could not. What came before the spoilt place is published by then,
// and what follows it is set aside. The same holds for a body beyond the limit, of which the rest is not read.
func (b *batch) take(body io.Reader) error {
	m := b.receiver.metrics
	counted := &countingReader{reader: body, count: func(n int) { m.bodyBytes.Add(float64(n)) }}
	list := newItems(counted, ingest.DefaultMaxLine)
	readErr := list.each(b.item)
	if err := b.publish(); err != nil {
		return err
	}
	var framing *framingError
	var refused *refusal
	switch {
	case readErr == nil:
		return nil
	case errors.As(readErr, &framing):
		b.keep(noList, list.rest(keptOfNoList))
		return &refusal{http.StatusBadRequest, malformed, framing}
	case errors.As(readErr, &refused):
		return refused
	case errors.Is(readErr, errNotPublished):
		return readErr
	}
	return bodyError(readErr)
}

// item takes one element of the list. The only error is that of publishing.
func (b *batch) item(item []byte, length int64) error {
	b.receiver.metrics.items.Inc()
	if length > int64(len(item)) {
		b.keep(oversized, item)
		return nil
	}
	e, ours, err := ingest.Decode(item)
	var undecoded *ingest.DecodeError
	if errors.As(err, &undecoded) {
		b.keep(undecoded.Reason, item)
		return nil
	}
	if !ours {
		return nil
	}
	b.receiver.metrics.matched.Inc()
	e.Source = b.source()
	b.events = append(b.events, e)
	b.size += length
	if len(b.events) < chunkEvents && b.size < chunkBytes {
		return nil
	}
	return b.publish()
}

// keep sets something aside. Where that fails the batch goes on: the loss of what could not be used is counted.
func (b *batch) keep(reason string, item []byte) {
	b.setAside[reason]++
	b.receiver.metrics.setAside.WithLabelValues(reason).Inc()
	if err := b.receiver.aside.keep(b.name, reason, item); err != nil {
		b.receiver.metrics.setAsideFailures.Inc()
		b.keepErr = err
	}
}

// errNotPublished is answered with 503: the stream is away, full or too slow.
var errNotPublished = errors.New("events cannot be published now")

// publish publishes the events collected, but for those that the stream never takes.
func (b *batch) publish() error {
	r := b.receiver
	for len(b.events) > 0 {
		began := time.Now()
		ctx, cancel := context.WithTimeout(b.ctx, b.patience)
		err := r.options.Publisher.Publish(ctx, b.events)
		cancel()
		b.patience -= time.Since(began)
		if err == nil {
			break
		}
		if b.dropTooLarge(err) {
			continue
		}
		if !r.failing.Swap(true) {
			r.options.Log.Error("Events cannot be published; kube-apiservers are told to come again", "error", err)
		}
		r.outage.refuse(b.name, r.options.Now())
		b.events = nil
		return errNotPublished
	}
	if len(b.events) > 0 && r.failing.Swap(false) {
		r.options.Log.Info("Events are published again")
	}
	if len(b.events) > 0 {
		r.outage.published(r.options.Now())
		if err := r.outage.record(b.ctx, r.options.Gaps); err != nil {
			r.options.Log.Error("A gap cannot be recorded; it is tried again", "error", err)
		}
	}
	r.metrics.published.Add(float64(len(b.events)))
	b.events, b.size = b.events[:0], 0
	return nil
}

// dropTooLarge sets the event aside that err says can never be published, and reports whether it does.
func (b *batch) dropTooLarge(err error) bool {
	var large *stream.TooLargeError
	if !errors.As(err, &large) || large.Index < 0 || large.Index >= len(b.events) {
		return false
	}
	text, err := json.Marshal(&b.events[large.Index])
	if err != nil {
		text = []byte(err.Error())
	}
	b.keep(tooLarge, text)
	b.events = slices.Delete(b.events, large.Index, large.Index+1)
	return true
}

type countingReader struct {
	reader io.Reader
	count  func(n int)
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.reader.Read(p)
	c.count(n)
	return n, err
}
