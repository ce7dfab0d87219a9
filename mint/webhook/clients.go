package webhook

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	maxAccountsRequest = 2 << 20 // bytes: more than a HelmRelease can hold
	maxAccountsAnswer  = 1 << 20
	maxFormatRequest   = 16 << 10
	maxFormatAnswer    = 16 << 10
	maxStored          = 4 << 10 // characters
	maxHeader          = 16 << 10

	maxConnections = 64 // to one webhook
	idle           = 90 * time.Second
)

// Options of the clients.
type Options struct {
	// Registerer counts what is asked; nil: nobody.
	Registerer prometheus.Registerer
	// Dial opens a connection to a webhook; nil: the system's.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Clients asks webhooks, by one client for each that a definition names. Its connections are kept for the next question
// where the webhook talks HTTP/2.
type Clients struct {
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	metrics *metrics

	mu     sync.Mutex
	byKind map[string]map[Config]*client
}

// New returns clients that have asked nobody yet.
func New(o Options) *Clients {
	dial := o.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	return &Clients{dial: dial, metrics: newMetrics(o.Registerer), byKind: map[string]map[Config]*client{}}
}

// Accounts asks which accounts an application has. kind is the kind whose definition names the webhook.
func (c *Clients) Accounts(ctx context.Context, kind string, to Config, app Application) ([]Account, error) {
	head := newHead(KindAccountsRequest)
	if app.Values == nil {
		app.Values = map[string]any{}
	}
	var answer AccountsAnswer
	err := c.ask(ctx, question{
		kind: kind, purpose: "accounts", to: to,
		request: AccountsRequest{Head: head, Application: app}, maxRequest: maxAccountsRequest, maxAnswer: maxAccountsAnswer,
		read: func(body []byte) error {
			if err := decode(body, &answer, &answer.Head, head, KindAccountsAnswer); err != nil {
				return err
			}
			if answer.Accounts == nil { // no word is no word that there are none
				return malformed("has no accounts: an empty list means none")
			}
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	return answer.Accounts, nil
}

// Format asks for the stored form of a password. kind is the kind whose definition names the webhook, format the name it
// has there.
func (c *Clients) Format(ctx context.Context, kind string, to Config, format, username, password string) (string, error) {
	head := newHead(KindFormatRequest)
	if password == "" || !utf8.ValidString(password) { // JSON would make another password of it
		return "", &failure{"malformed", "cannot be asked: the password is empty or not UTF-8"}
	}
	var answer FormatAnswer
	err := c.ask(ctx, question{
		kind: kind, purpose: "format", to: to,
		request:    FormatRequest{Head: head, Format: format, Username: username, Password: password},
		maxRequest: maxFormatRequest, maxAnswer: maxFormatAnswer,
		read: func(body []byte) error {
			if err := decode(body, &answer, &answer.Head, head, KindFormatAnswer); err != nil {
				return err
			}
			return checkStored(answer.Stored)
		},
	})
	if err != nil {
		return "", err
	}
	return answer.Stored, nil
}

func newHead(kind string) Head {
	return Head{APIVersion: APIVersion, Kind: kind, UID: uuid.NewString()}
}

func checkStored(stored string) error {
	switch {
	case stored == "":
		return malformed("has no stored form")
	case len(stored) > maxStored:
		return malformed(fmt.Sprintf("has a stored form of %d characters, more than the %d that are allowed", len(stored), maxStored))
	case strings.ContainsFunc(stored, func(r rune) bool { return r < ' ' || r > '~' }), stored != strings.TrimSpace(stored):
		return malformed("has a stored form with characters other than printable ASCII, or blanks about it")
	}
	return nil
}

// Forget closes the connections to the webhooks of a kind: its definition has changed. What is being asked is answered.
func (c *Clients) Forget(kind string) {
	c.mu.Lock()
	clients := c.byKind[kind]
	delete(c.byKind, kind)
	c.mu.Unlock()
	for _, client := range clients {
		client.http.CloseIdleConnections()
	}
}

// client is the client of a webhook, made at its first question.
func (c *Clients) client(kind string, to Config) (*client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.byKind[kind][to]; ok {
		return known, nil
	}
	made, err := newClient(to, c.dial)
	if err != nil {
		return nil, err
	}
	if c.byKind[kind] == nil {
		c.byKind[kind] = map[Config]*client{}
	}
	c.byKind[kind][to] = made
	return made, nil
}

// A client talks to one webhook.
type client struct {
	http *http.Client
	// multiplexed: it last answered by HTTP/2, and a connection to it can be kept. One of HTTP/1.1 is not: should the
	// answer go on after its end, which may be the password, net/http would print that to the log.
	multiplexed atomic.Bool
}

func newClient(to Config, dial func(context.Context, string, string) (net.Conn, error)) (*client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if to.CABundle != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(to.CABundle)) {
			return nil, &failure{"untrusted", "has a caBundle without a certificate"}
		}
	}
	return &client{http: &http.Client{
		Transport: &http.Transport{
			// Proxy is nobody: the environment has no say in where passwords go.
			DialContext: within(to.Timeout, dial), TLSHandshakeTimeout: to.Timeout, TLSClientConfig: config, ForceAttemptHTTP2: true,
			HTTP2:              &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 5 * time.Second},
			DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
			MaxConnsPerHost: maxConnections, MaxIdleConnsPerHost: maxConnections, IdleConnTimeout: idle,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// within dials for no longer than a time. net/http goes on dialling for a question that was given up, and what hangs there
// takes the place of a connection.
func within(timeout time.Duration, dial func(context.Context, string, string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return dial(ctx, network, address)
	}
}

type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mintlog_webhook_requests_total",
			Help: "Questions to webhooks of definitions, by the definition's kind, purpose (accounts, format) and result: ok, timeout, unreachable, untrusted, broken, status, malformed, oversized.",
		}, []string{"kind", "purpose", "result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mintlog_webhook_request_duration_seconds", Help: "Time that webhooks of definitions took to answer, or to fail.",
			Buckets: prometheus.ExponentialBuckets(0.002, 2, 13),
		}, []string{"kind", "purpose"}),
	}
	if r != nil {
		r.MustRegister(m.requests, m.seconds)
	}
	return m
}

func (m *metrics) observe(q question, began time.Time, err error) {
	result := "ok"
	if f, ok := err.(*failure); ok {
		result = cmp.Or(f.result, "broken")
	}
	m.requests.WithLabelValues(q.kind, q.purpose, result).Inc()
	m.seconds.WithLabelValues(q.kind, q.purpose).Observe(time.Since(began).Seconds())
}
