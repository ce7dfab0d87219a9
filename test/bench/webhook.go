package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/mintlog/mintlog/test/auditlog"
	"github.com/mintlog/mintlog/test/bench/cost"
	"github.com/mintlog/mintlog/test/sandbox"
	"github.com/mintlog/mintlog/test/sandbox/process"
)

// What kube-apiserver's webhook backend sends at most, by its defaults: ten batches of 400 events a second.
const (
	batchEvents   = 400
	batchesSecond = 10
	webhookFor    = time.Minute
	webhookEvery  = 100 // events of which one is ours

	floodFor     = 15 * time.Second
	floodSenders = 4
)

// webhook drives "mintlog ingest webhook" as a kube-apiserver does, into a stream that syncs each write.
func (b *bencher) webhook(ctx context.Context) ([]figure, error) {
	server, url, err := b.startNATS(ctx, "nats-webhook")
	if err != nil {
		return nil, err
	}
	defer server.Kill()
	receiver, client, err := b.startReceiver(ctx, url)
	if err != nil {
		return nil, err
	}
	defer receiver.Kill()
	steady, err := sendSteadily(ctx, client)
	if err != nil {
		return nil, err
	}
	memory, err := cost.Status(receiver.PID(), "VmHWM")
	if err != nil {
		return nil, err
	}
	rate, flood, err := sendAll(ctx, client)
	if err != nil {
		return nil, err
	}
	floodMemory, err := cost.Status(receiver.PID(), "VmHWM")
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("webhook, %d events/s, 1 in %d ours, batches of %d for %s", batchEvents*batchesSecond, webhookEvery, batchEvents, webhookFor)
	count := fmt.Sprintf("%d of %d", steady.refused, len(steady.took))
	return []figure{
		{what: what + ": answers other than 200", measured: count, beside: "-", ratio: "-", goal: "0"},
		{what: what + ": p50", measured: ms(percentile(steady.took, 50)), beside: "-", ratio: "-", goal: "-"},
		{what: what + ": p99", measured: ms(percentile(steady.took, 99)), beside: "-", ratio: "-", goal: "≤ 250 ms"},
		{what: what + ": most resident memory", measured: mib(float64(memory)), beside: "-", ratio: "-", goal: "< 256 MiB"},
		{
			what: fmt.Sprintf("webhook, all ours, %d senders without a pause for %s: events durably published (%d answers other than 200, p99 %s, %s resident)",
				floodSenders, floodFor, flood.refused, ms(percentile(flood.took, 99)), mib(float64(floodMemory))),
			measured: perSecond(rate), beside: "-", ratio: "-", goal: "-",
		},
	}, receiver.Stop()
}

// A sender posts batches with a kube-apiserver's certificate.
type sender struct {
	client *http.Client
	url    string
}

func (b *bencher) startReceiver(ctx context.Context, nats string) (*process.Process, *sender, error) {
	authority, err := sandbox.NewAuthority("bench")
	if err != nil {
		return nil, nil, err
	}
	files := map[string][]byte{"ca.crt": authority.PEM()}
	if files["tls.crt"], files["tls.key"], err = authority.Issue(sandbox.Identity{Name: "receiver", Hosts: []string{"127.0.0.1"}}); err != nil {
		return nil, nil, err
	}
	for name, content := range files {
		if err := os.WriteFile(b.path(name), content, 0o600); err != nil {
			return nil, nil, err
		}
	}
	certificate, key, err := authority.Issue(sandbox.Identity{Name: "kube-apiserver"})
	if err != nil {
		return nil, nil, err
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, nil, err
	}
	address, err := process.FreeAddress()
	if err != nil {
		return nil, nil, err
	}
	started, err := process.Start(ctx, process.Options{
		Name: "mintlog-webhook", Path: b.bin("mintlog"), LogFile: b.path("webhook.out"),
		Arguments: []string{
			"ingest", "webhook", "--address", address, "--nats", nats, "--metrics-address=",
			"--tls-cert-file", b.path("tls.crt"), "--tls-private-key-file", b.path("tls.key"), "--client-ca-file", b.path("ca.crt"),
			"--set-aside", b.path("set-aside"),
		},
		Ready: process.Listens(address),
	})
	if err != nil {
		return nil, nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.PEM())
	return started, &sender{
		client: &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}, ForceAttemptHTTP2: true,
		}},
		url: "https://" + address + "/audit/bench",
	}, nil
}

// post sends one batch and reports whether it was answered with 200.
func (s *sender) post(ctx context.Context, batch []byte) (bool, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(batch))
	if err != nil {
		return false, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := s.client.Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return false, err
	}
	if response.StatusCode != http.StatusOK {
		fmt.Fprintf(os.Stderr, "a batch was answered %s: %s\n", response.Status, strings.TrimSpace(string(text)))
	}
	return response.StatusCode == http.StatusOK, nil
}

// Answers are what became of batches.
type answers struct {
	mutex   sync.Mutex
	took    []time.Duration
	refused int
	failure error
}

func (a *answers) note(took time.Duration, ok bool, err error) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.took = append(a.took, took)
	a.failure = errors.Join(a.failure, err)
	if !ok {
		a.refused++
	}
}

// sendSteadily sends batches when their time has come, whether earlier ones have been answered or not.
func sendSteadily(ctx context.Context, s *sender) (*answers, error) {
	generator := auditlog.New(auditlog.Options{Seed: 2, OursEvery: webhookEvery})
	var a answers
	var waiting sync.WaitGroup
	ticker := time.NewTicker(time.Second / batchesSecond)
	defer ticker.Stop()
	for range int(webhookFor.Seconds()) * batchesSecond {
		batch, _, err := generator.Batch(batchEvents)
		if err != nil {
			return nil, err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		waiting.Go(func() {
			began := time.Now()
			ok, err := s.post(ctx, batch)
			a.note(time.Since(began), ok, err)
		})
	}
	waiting.Wait()
	return &a, a.failure
}

// sendAll has some senders send batches in which all is ours, each the next when the last is answered, and returns how
// many events were acknowledged a second.
func sendAll(ctx context.Context, s *sender) (float64, *answers, error) {
	var a answers
	var waiting sync.WaitGroup
	began := time.Now()
	for n := range floodSenders {
		waiting.Go(func() {
			generator := auditlog.New(auditlog.Options{Seed: 100 + uint64(n), OursEvery: 1})
			for time.Since(began) < floodFor && ctx.Err() == nil {
				batch, _, err := generator.Batch(batchEvents)
				if err != nil {
					a.note(0, false, err)
					return
				}
				sent := time.Now()
				ok, err := s.post(ctx, batch)
				a.note(time.Since(sent), ok, err)
			}
		})
	}
	waiting.Wait()
	return float64((len(a.took)-a.refused)*batchEvents) / time.Since(began).Seconds(), &a, errors.Join(a.failure, ctx.Err())
}
