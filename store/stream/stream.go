// Package stream keeps audit events durably between ingest and those who read them, in three JetStream streams: one for
// events that can stand for an operation, which are never discarded silently; one for RequestReceived; one for refused
// attempts, which cannot push out the others. Buckets beside them keep the projector's evidence and the gaps that are
// known in audit logs.
//
// The server is embedded in the process, or an external NATS by URL. An embedded server fsyncs every message before it
// acknowledges it. An external one does so only if its own configuration says sync_interval: always.
package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
)

// ErrClosed is returned for what is asked of a Stream after Close.
var ErrClosed = errors.New("stream is closed")

// A kind is one of the three streams, as it stands in their subjects.
type kind string

const (
	events   kind = "events"   // final stages that can stand for an operation, and writes of account Secrets
	intents  kind = "intents"  // RequestReceived
	attempts kind = "attempts" // refused requests and dry runs
)

var streamNames = map[kind]string{
	events:   "MINTLOG_EVENTS",
	intents:  "MINTLOG_INTENTS",
	attempts: "MINTLOG_ATTEMPTS",
}

// A Consumer is a durable reader of one stream. What it has acknowledged it does not get again.
type Consumer string

const (
	ProjectorEvents  Consumer = "projector-events"
	ProjectorIntents Consumer = "projector-intents"
	ArchiverEvents   Consumer = "archiver-events"
	ArchiverIntents  Consumer = "archiver-intents"
	ArchiverAttempts Consumer = "archiver-attempts"
)

var ackWaits = map[Consumer]time.Duration{
	ProjectorEvents:  projectorAckWait,
	ProjectorIntents: projectorAckWait,
	ArchiverEvents:   archiverAckWait,
	ArchiverIntents:  archiverAckWait,
	ArchiverAttempts: archiverAckWait,
}

var consumerKinds = map[Consumer]kind{
	ProjectorEvents:  events,
	ArchiverEvents:   events,
	ProjectorIntents: intents,
	ArchiverIntents:  intents,
	ArchiverAttempts: attempts,
}

// Bounds of the streams and their consumers.
const (
	DefaultMaxBytes      = 1 << 30   // of the stream of events
	DefaultEvidenceBytes = 4 << 30   // of the evidence bucket
	sideBytes            = 256 << 20 // of intents and of attempts, each
	// DefaultEvidenceAge is longer than the year for which audit logs are commonly retained.
	DefaultEvidenceAge = 400 * 24 * time.Hour

	maxPayload      = 1 << 20 // of an embedded server's messages
	intentsAge      = time.Hour
	duplicateWindow = 10 * time.Minute
	maxAckPending   = 20_000
)

// How long a consumer waits for an acknowledgement before it hands an event out again. An acknowledgement that a server
// took with it when it died, or an event that went to a connection that was gone, costs as much. The projector asks for
// more time every 20 s; the archiver holds an event until it has read it back.
const (
	projectorAckWait = 30 * time.Second
	archiverAckWait  = time.Minute
)

// publishTimeout ends the wait for the answer to one event, though its stream goes on acknowledging others.
const publishTimeout = time.Minute

// checkInterval is how often streams and consumers are looked after.
const checkInterval = 15 * time.Second

// Options say where the streams are.
type Options struct {
	URL             string // external NATS ("nats://…"); empty: embedded, listening nowhere
	CredentialsFile string // external only, optional
	NKeyFile        string // external only, optional: a file with an nkey's seed; answers then come to _INBOX.<public key> alone
	Directory       string // of the embedded server's files; needed if URL is empty
	MaxBytes        int64  // of the stream of events; 0: DefaultMaxBytes
	EvidenceBytes   int64  // of the evidence bucket; 0: DefaultEvidenceBytes
	// EvidenceAge is the age after its last write at which evidence goes, so that accounts that are no more leave
	// nothing behind for ever; 0: DefaultEvidenceAge.
	EvidenceAge time.Duration
	Replicas    int // of streams on an external cluster; 0: 1
	// Existing is for those who use what another identity creates on an external server: Open succeeds though the server
	// is not there yet, nothing is created, and nothing is looked after. Publish and Fetch fail until others have created
	// streams and consumers.
	Existing bool

	Log        *slog.Logger          // nil: slog.Default()
	Registerer prometheus.Registerer // nil: metrics are not registered
}

// A Stream publishes and consumes events. Its methods may be called concurrently.
type Stream struct {
	options  Options
	log      *slog.Logger
	metrics  *metrics
	embedded *embedded // nil with an external server
	conn     *nats.Conn
	js       jetstream.JetStream
	repeats  repeats
	heights  heights
	paces    map[kind]*pace

	created bool            // guarded by lookup: streams, consumers and buckets have stood once
	missing map[string]bool // guarded by lookup: of these, what was found to be gone and has not been counted
	lookup  sync.Mutex      // one ensure at a time

	evidence, gaps bucket

	consumers sync.Map // Consumer → *handle

	readyOn       atomic.Uint64 // the connection, counted from 1, on which ready found everything
	leadersHidden atomic.Uint64 // the connection, counted from 1, on which leaderSince may not ask

	complained   string // the connection's last complaint that was logged
	complainedAt time.Time

	use    sync.RWMutex // held for reading by what Close has to wait for
	closed bool         // guarded by use
	stop   context.CancelFunc
	done   sync.WaitGroup
}

// Open connects to the server, or starts the embedded one, and creates or updates the streams, the durable consumers
// and the buckets. It may be repeated by any number of processes; a directory takes one Stream at a time (ErrLocked).
//
// Every process ensures the consumers before it publishes: the stream of events keeps a message for those consumers
// that exist when it arrives.
func Open(ctx context.Context, o Options) (*Stream, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	o.MaxBytes = cmp.Or(o.MaxBytes, DefaultMaxBytes)
	o.EvidenceBytes = cmp.Or(o.EvidenceBytes, DefaultEvidenceBytes)
	o.EvidenceAge = cmp.Or(o.EvidenceAge, DefaultEvidenceAge)
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("register the stream's metrics: %w", err)
	}
	s := &Stream{options: o, log: o.Log, metrics: m, missing: map[string]bool{}}
	s.paces = s.newPaces()
	s.evidence.stream, s.evidence.name = s, evidenceBucket
	s.gaps.stream, s.gaps.name = s, gapsBucket
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.release())
	}
	background, stop := context.WithCancel(context.Background())
	s.stop = stop
	if !o.Existing {
		s.done.Go(func() { s.watch(background) })
	}
	return s, nil
}

func (s *Stream) open(ctx context.Context) error {
	if err := s.connect(); err != nil {
		return err
	}
	var err error
	if s.js, err = jetstream.New(s.conn, jetstream.WithPublishAsyncTimeout(publishTimeout), jetstream.WithDefaultTimeout(requestTimeout)); err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	if s.options.Existing {
		return nil
	}
	if err := s.ensureAtStart(ctx); err != nil {
		return err
	}
	if s.embedded != nil {
		return s.redeliver(ctx)
	}
	return nil
}

func (s *Stream) connect() error {
	options := []nats.Option{
		nats.Name("mintlog"),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(500 * time.Millisecond),
		nats.ReconnectBufSize(-1), // a publish without a connection fails at once instead of waiting unseen
		nats.PingInterval(10 * time.Second),
		nats.RetryOnFailedConnect(s.options.Existing),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				s.log.Warn("connection to the stream lost", "error", err)
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { s.log.Info("connection to the stream is back") }),
		nats.ErrorHandler(func(conn *nats.Conn, _ *nats.Subscription, err error) { s.complaint(conn, err) }),
	}
	if s.options.URL == "" {
		e, err := startEmbedded(s.options.Directory, s.options.MaxBytes+2*sideBytes+s.options.EvidenceBytes+gapsBytes, s.log)
		if err != nil {
			return err
		}
		s.embedded = e
		options = append(options, nats.InProcessServer(e.server))
	} else if s.options.CredentialsFile != "" {
		options = append(options, nats.UserCredentials(s.options.CredentialsFile))
	} else if s.options.NKeyFile != "" {
		nkey, err := nats.NkeyOptionFromSeed(s.options.NKeyFile)
		if err != nil {
			return fmt.Errorf("read the nkey's seed in %s: %w", s.options.NKeyFile, err)
		}
		options = append(options, nkey, ownInbox)
	}
	conn, err := nats.Connect(s.options.URL, options...)
	if err != nil {
		return fmt.Errorf("connect to the stream: %w", err)
	}
	s.conn = conn
	return nil
}

// complaintInterval is how often the same complaint of a connection is logged.
const complaintInterval = time.Minute

// complaint takes what went wrong on the connection, one call after the other. A question that the server does not allow
// is asked again and again, for no answer comes.
func (s *Stream) complaint(conn *nats.Conn, err error) {
	text := err.Error()
	if text != s.complained || time.Since(s.complainedAt) >= complaintInterval {
		s.complained, s.complainedAt = text, time.Now()
		s.log.Warn("stream connection", "error", err)
	}
	if errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(text, "$JS.API.STREAM.INFO.") {
		s.leadersHidden.Store(conn.Stats().Reconnects + 1)
	}
}

// ownInbox has answers come below the public key, so that a server can keep who has another from listening.
func ownInbox(o *nats.Options) error { return nats.CustomInboxPrefix("_INBOX." + o.Nkey)(o) }

// Close lets publishes under way finish, flushes acknowledgements, and stops the embedded server.
func (s *Stream) Close() error {
	s.stop() // who looks after the streams may hold what a publish waits for
	s.use.Lock()
	if s.closed {
		s.use.Unlock()
		return nil
	}
	s.closed = true
	s.use.Unlock()
	s.done.Wait()
	return s.release()
}

func (s *Stream) release() error {
	var err error
	if s.conn != nil {
		if s.conn.IsConnected() { // else there is nobody to wait for
			if flushErr := s.conn.FlushTimeout(requestTimeout); flushErr != nil && s.conn.IsConnected() {
				err = fmt.Errorf("flush the stream's connection: %w", flushErr)
			}
		}
		s.conn.Close()
	}
	if s.embedded != nil {
		err = errors.Join(err, s.embedded.stop())
	}
	return err
}

// enter holds off Close until leave is called.
func (s *Stream) enter() (leave func(), err error) {
	s.use.RLock()
	if s.closed {
		s.use.RUnlock()
		return nil, ErrClosed
	}
	return s.use.RUnlock, nil
}

// ensure creates what is missing of streams, consumers and buckets, and brings the rest to this version's configuration.
// What is missing after it stood once was lost: that is logged and counted.
func (s *Stream) ensure(ctx context.Context) error {
	s.lookup.Lock()
	defer s.lookup.Unlock()
	var toOpen []jetstream.StreamConfig
	for _, c := range append(s.streamConfigs(), s.evidenceConfig(), s.gapsConfig()) {
		isShut, err := s.ensureStream(ctx, c)
		if err != nil {
			return err
		}
		if isShut {
			toOpen = append(toOpen, c)
		}
	}
	for consumer := range consumerKinds {
		if err := s.ensureConsumer(ctx, consumer); err != nil {
			return err
		}
	}
	for _, c := range toOpen {
		if _, err := s.js.UpdateStream(ctx, c); err != nil {
			return fmt.Errorf("open stream %s: %w", c.Name, err)
		}
	}
	s.created = true
	return nil
}

// ensureAtStart bears with a cluster that is not ready yet: one that starts or elects leaders, or one that many processes
// ask at once for the same.
func (s *Stream) ensureAtStart(ctx context.Context) error {
	deadline := time.Now().Add(startTimeout)
	for attempt := 1; ; attempt++ {
		err := s.ensure(ctx)
		if err == nil || ctx.Err() != nil || !isBusy(err) || time.Now().After(deadline) {
			return err
		}
		s.log.Warn("the stream is not ready; trying again", "error", err)
		pause(ctx, attempt)
	}
}

// codeNoLeader and codeUnavailable are what a cluster says that has not settled.
const (
	codeUnavailable jetstream.ErrorCode = 10008
	codeNoLeader    jetstream.ErrorCode = 10009
)

// isBusy reports whether an error says that nobody answers, or not yet.
func isBusy(err error) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api.ErrorCode == codeUnavailable || api.ErrorCode == codeNoLeader
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrNoResponders)
}

func (s *Stream) streamConfigs() []jetstream.StreamConfig {
	base := jetstream.StreamConfig{
		Storage:    jetstream.FileStorage,
		Replicas:   max(s.options.Replicas, 1),
		Duplicates: duplicateWindow,
		DenyDelete: true,
		DenyPurge:  true,
	}
	full := base
	full.Name, full.Subjects = streamNames[events], []string{subjectRoot + string(events) + ".>"}
	full.Description = "audit events that can stand for an operation, until projector and archiver have acknowledged them"
	full.Retention, full.Discard, full.MaxBytes = jetstream.InterestPolicy, jetstream.DiscardNew, s.options.MaxBytes

	received := base
	received.Name, received.Subjects = streamNames[intents], []string{subjectRoot + string(intents) + ".>"}
	received.Description = "requests received, for an hour"
	received.Retention, received.Discard = jetstream.LimitsPolicy, jetstream.DiscardOld
	received.MaxBytes, received.MaxAge = sideBytes, intentsAge

	refused := base
	refused.Name, refused.Subjects = streamNames[attempts], []string{subjectRoot + string(attempts) + ".>"}
	refused.Description = "refused requests and dry runs, the newest that fit"
	refused.Retention, refused.Discard, refused.MaxBytes = jetstream.LimitsPolicy, jetstream.DiscardOld, sideBytes

	return []jetstream.StreamConfig{full, received, refused}
}

// ensureStream creates the stream or updates it. A stream that keeps a message for those consumers only that exist when
// it arrives is created shut: nobody's message is taken, and acknowledged, before its consumers are there.
func (s *Stream) ensureStream(ctx context.Context, c jetstream.StreamConfig) (isShut bool, err error) {
	known, err := s.lookUpStream(ctx, c.Name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		isShut, err = s.createStream(ctx, c)
	case err != nil:
		return false, fmt.Errorf("look up stream %s: %w", c.Name, err)
	case slices.Equal(known.CachedInfo().Config.Subjects, shut(c).Subjects):
		isShut = true // by a process that did not come to opening it
	case !s.created:
		if _, err = s.js.UpdateStream(ctx, c); err != nil {
			err = fmt.Errorf("update stream %s: %w", c.Name, err)
		}
	}
	if err != nil {
		return false, err
	}
	s.stands(c.Name)
	return isShut, nil
}

func (s *Stream) createStream(ctx context.Context, c jetstream.StreamConfig) (isShut bool, err error) {
	s.missing[c.Name] = s.created
	isShut = c.Retention == jetstream.InterestPolicy
	if isShut {
		c = shut(c)
	}
	_, err = s.js.CreateStream(ctx, c)
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return true, nil // another process came first; it may not have opened it yet
	}
	if err != nil {
		s.refused(c.Name, err)
		return false, fmt.Errorf("create stream %s: %w", c.Name, err)
	}
	return isShut, nil
}

// shut is the stream on a subject that nobody publishes on.
func shut(c jetstream.StreamConfig) jetstream.StreamConfig {
	c.Subjects = []string{subjectRoot + "shut." + c.Name}
	return c
}

func (s *Stream) ensureConsumer(ctx context.Context, consumer Consumer) error {
	name := streamNames[consumerKinds[consumer]]
	if s.created {
		_, err := s.lookUpConsumer(ctx, consumer)
		if err == nil {
			s.stands(string(consumer))
			return nil
		}
		if !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return fmt.Errorf("look up consumer %s: %w", consumer, err)
		}
		s.missing[string(consumer)] = true
	}
	_, err := s.js.CreateOrUpdateConsumer(ctx, name, jetstream.ConsumerConfig{
		Durable:       string(consumer),
		DeliverPolicy: jetstream.DeliverAllPolicy,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       ackWaits[consumer],
		MaxDeliver:    -1,
		MaxAckPending: maxAckPending,
	})
	if err != nil {
		s.refused(string(consumer), err)
		return fmt.Errorf("create consumer %s: %w", consumer, err)
	}
	s.stands(string(consumer))
	return nil
}

// refused lets go of what was certainly not created: if it stands at the next look it was never gone. Where no answer
// came it may have been.
func (s *Stream) refused(object string, err error) {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		delete(s.missing, object)
	}
}

// stands reports what was gone and has been created again, once.
func (s *Stream) stands(object string) {
	if !s.missing[object] {
		return
	}
	delete(s.missing, object)
	s.log.Error("part of the stream was lost and has been created again; replay the audit log to fill it", "object", object)
	s.metrics.recreated.WithLabelValues(object).Inc()
	s.heights.forget()
}

func (s *Stream) shrunk(name string) {
	s.log.Error("the stream's server has lost what it had acknowledged; read the log's files again and replay the audit log to fill it. It has to sync every write", "object", name)
	s.metrics.recreated.WithLabelValues(name).Inc()
}

// redeliver takes back what an earlier process was handed and did not acknowledge: nobody else reads an embedded
// server's consumers, so nothing needs to wait for an acknowledgement.
func (s *Stream) redeliver(ctx context.Context) error {
	for consumer := range consumerKinds {
		if err := s.reset(ctx, consumer); err != nil {
			return err
		}
	}
	return nil
}

// reset makes the consumer start again behind the last message below which all are acknowledged.
func (s *Stream) reset(ctx context.Context, consumer Consumer) error {
	stream, err := s.lookUpStream(ctx, streamNames[consumerKinds[consumer]])
	if err == nil {
		_, err = stream.ResetConsumer(ctx, string(consumer))
	}
	if err != nil {
		return fmt.Errorf("reset consumer %s: %w", consumer, err)
	}
	return nil
}
