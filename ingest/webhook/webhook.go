// Package webhook receives audit events as kube-apiserver sends them with --audit-webhook-config-file, and publishes
// those of ours.
//
// What it promises: 200 is answered only when every event of ours in the batch is durably published. No item fails the
// batch that it came in: one that cannot be used is set aside, counted, and kept for people to look at.
//
// What it cannot promise is more than kube-apiserver does. A batch that gets another answer than 200 is repeated there:
// five times within a minute and a half, or for about four minutes if the answer is 429 or 503 with a Retry-After, and
// then dropped. Longer outages than that are survived by the audit log's files only. Each is recorded as a gap, whether
// nothing could be published or no receiver was there. What kube-apiserver itself drops, because its buffer is full or
// it is killed, nobody tells the receiver.
package webhook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mintlog/mintlog/ingest"
)

// Defaults of Options.
const (
	DefaultMaxBody        = 32 << 20
	DefaultSetAsideBytes  = 64 << 20
	DefaultInFlight       = 8
	DefaultWait           = 2 * time.Second
	DefaultPublishTimeout = 5 * time.Second
	// DefaultRetryAfter has kube-apiserver try six times within the thirty seconds that it gives a request with all
	// its repetitions. From three seconds on they are used up by waiting, which is what makes it hold on longest.
	DefaultRetryAfter = 5 * time.Second
)

const (
	headerTimeout = 10 * time.Second // for the handshake as well
	bodyTimeout   = 30 * time.Second // after which kube-apiserver gives up
	idleTimeout   = 3 * time.Minute  // longer than a batch may wait
	stopTimeout   = 15 * time.Second // longer than a request that has begun to be published
	maxHeader     = 64 << 10

	// Over HTTP/2 a kube-apiserver sends all its batches over one connection. Its buffer holds that of all its streams:
	// otherwise batches that wait for a slot would leave no room for those that have one to be read.
	maxStreams   = 64
	streamBuffer = 128 << 10
)

// Options say how to listen, whom to believe, and where events go. Address, the three files, Publisher and SetAside
// are needed.
type Options struct {
	Address string // to listen on: "host:port"

	// CertFile and KeyFile are what the receiver shows, ClientCAFile who signs the callers' certificates; PEM. A changed
	// file is taken over without a restart.
	CertFile, KeyFile, ClientCAFile string
	// ClientNames are the common names of the certificates that are let in. None: each that the client CA has signed,
	// so that CA must sign for kube-apiservers alone. Whoever is let in can make up events.
	ClientNames []string

	Publisher ingest.Publisher
	// Gaps records the times in which events could not be published for longer than kube-apiserver holds on to them;
	// nil: nobody does.
	Gaps ingest.GapRecorder
	// Attendant tells a receiver when one was there before it: where none was for longer than kube-apiserver repeats a
	// batch that nobody answers, that is a gap; nil: nobody does.
	Attendant Attendant

	SetAside      string // directory for what could not be used; made if it is missing
	SetAsideBytes int64  // that are kept there, the newest; DefaultSetAsideBytes if 0

	MaxBody        int64         // bytes of a body, both as sent and decompressed; DefaultMaxBody if 0
	InFlight       int           // bodies read at a time; DefaultInFlight if 0
	Wait           time.Duration // for which a request waits for one of these; DefaultWait if 0
	PublishTimeout time.Duration // for all events of a request; DefaultPublishTimeout if 0
	RetryAfter     time.Duration // that callers are told to wait, in whole seconds; DefaultRetryAfter if 0

	Log        *slog.Logger
	Registerer prometheus.Registerer
	Now        func() time.Time // time.Now if nil
}

func (o *Options) setDefaults() {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.SetAsideBytes = cmp.Or(o.SetAsideBytes, DefaultSetAsideBytes)
	o.MaxBody = cmp.Or(o.MaxBody, DefaultMaxBody)
	o.InFlight = cmp.Or(o.InFlight, DefaultInFlight)
	o.Wait = cmp.Or(o.Wait, DefaultWait)
	o.PublishTimeout = cmp.Or(o.PublishTimeout, DefaultPublishTimeout)
	o.RetryAfter = cmp.Or(o.RetryAfter, DefaultRetryAfter)
}

func (o *Options) validate() error {
	switch {
	case o.ClientCAFile == "":
		return errors.New("no client CA: anybody could make up audit events")
	case o.CertFile == "" || o.KeyFile == "":
		return errors.New("no serving certificate: kube-apiserver must know whom it tells of every request")
	case o.SetAside == "":
		return errors.New("no directory for items that are set aside")
	case o.Publisher == nil:
		return errors.New("no publisher")
	case o.SetAsideBytes < 0 || o.MaxBody < 0 || o.InFlight < 0 || o.Wait < 0 || o.PublishTimeout < 0:
		return errors.New("a limit is negative")
	case o.RetryAfter < time.Second:
		return fmt.Errorf("retry after %s: it is a second at least", o.RetryAfter)
	}
	return nil
}

// A Receiver takes audit events over HTTPS.
type Receiver struct {
	options  Options
	metrics  *metrics
	aside    *aside
	identity *identity
	listener net.Listener
	server   *http.Server

	slots   chan struct{} // holds one element for each body that is being read
	waiting atomic.Int32  // requests that wait for a slot
	failing atomic.Bool   // the last publication failed
	outage  outage

	started  time.Time
	attended atomic.Bool // it is known when a receiver was there before
}

// New reads the certificates and begins to listen. Run serves.
func New(o Options) (*Receiver, error) {
	o.setDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("audit webhook: %w", err)
	}
	aside, err := openAside(o.SetAside, o.SetAsideBytes, o.Now)
	if err != nil {
		return nil, err
	}
	m := newMetrics(o.Registerer)
	identity, err := loadIdentity(&o, m)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", o.Address)
	if err != nil {
		return nil, fmt.Errorf("listening for audit events on %s: %w", o.Address, err)
	}
	r := &Receiver{
		options: o, metrics: m, aside: aside, identity: identity, listener: listener, slots: make(chan struct{}, o.InFlight),
		started: o.Now(),
	}
	r.server = &http.Server{
		Handler: r, TLSConfig: identity.config(), MaxHeaderBytes: maxHeader,
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams,
			MaxReceiveBufferPerStream: streamBuffer, MaxReceiveBufferPerConnection: maxStreams * streamBuffer},
		ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelInfo), // strangers cause these: no more than information
	}
	return r, nil
}

// Address is where the Receiver listens.
func (r *Receiver) Address() net.Addr { return r.listener.Addr() }

// Run serves until ctx is done, answers the requests that have begun, and returns nil.
func (r *Receiver) Run(ctx context.Context) error {
	attending, leave := context.WithCancel(ctx)
	var attendance sync.WaitGroup
	attendance.Go(func() { r.attend(attending) })
	defer attendance.Wait()
	defer leave()
	served := make(chan error, 1)
	go func() { served <- r.server.ServeTLS(r.listener, "", "") }()
	select {
	case err := <-served:
		return fmt.Errorf("serving the audit webhook: %w", err)
	case <-ctx.Done():
	}
	patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := r.server.Shutdown(patient); err != nil {
		return errors.Join(fmt.Errorf("finishing requests of the audit webhook: %w", err), r.server.Close())
	}
	return nil
}

const pathPrefix = "/audit/"

// Path is where a kube-apiserver of that name sends its events.
func Path(name string) string { return pathPrefix + name }

var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// CheckName tells what is wrong with the name of a kube-apiserver.
func CheckName(name string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("kube-apiserver name %q: it is 1 to 63 lower-case letters, digits and dashes", name)
	}
	return nil
}
