package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/mintlog/mintlog/ingest"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/test/auditlog"
	"github.com/mintlog/mintlog/test/sandbox/process"
)

const (
	decodeLines   = 80_000
	decodeRounds  = 5
	publishLines  = 15_000
	publishRounds = 3
	rawWindow     = 512 // messages that are not acknowledged at a time
)

// ours reads logs in which every line is ours: decoded alone, and published.
func (b *bencher) ours(ctx context.Context) ([]figure, error) {
	decoded, err := b.decoded(ctx)
	if err != nil {
		return nil, err
	}
	published, err := b.published(ctx)
	return append(decoded, published...), err
}

// decoded counts events per CPU second of processes that do nothing else.
func (b *bencher) decoded(ctx context.Context) ([]figure, error) {
	tail, err := b.build(ctx, "tail")
	if err != nil {
		return nil, err
	}
	whole, _, err := b.makeLog("ours.log", decodeLines, 1)
	if err != nil {
		return nil, err
	}
	var ours, plain []ran
	for range decodeRounds {
		r, _, err := b.follow(ctx, tail, whole)
		if err != nil {
			return nil, err
		}
		ours = append(ours, r)
		if r, err = onOneCore(ctx, nil, tail, "json", whole.path); err != nil {
			return nil, err
		}
		plain = append(plain, r)
	}
	rate := func(r ran) float64 { return decodeLines / r.cpu.Seconds() }
	mine, theirs := median(ours, rate), median(plain, rate)
	return []figure{{
		what: fmt.Sprintf("%d events, every line ours: read, decoded and identified on one core, median of %d; beside encoding/json into the same struct",
			decodeLines, decodeRounds),
		measured: perSecond(mine), beside: perSecond(theirs), ratio: ratio(mine, theirs), goal: "≥ 50,000/s",
	}}, nil
}

func perSecond(rate float64) string { return fmt.Sprintf("%.0f/s", rate) }

// published compares "mintlog ingest" on a file with a bare client that publishes the same messages to the same server,
// into streams that keep as much: each message synced, and known by its id for ten minutes. That is less than mintlog's
// streams do, which keep an event until all their consumers have acknowledged it, so the client is set beside it in such
// streams as well.
func (b *bencher) published(ctx context.Context) ([]figure, error) {
	server, url, err := b.startNATS(ctx, "nats-publish")
	if err != nil {
		return nil, err
	}
	defer server.Kill()
	var ours, raw, alike []float64
	for round := range publishRounds {
		l, messages, err := b.publishable(uint64(round))
		if err != nil {
			return nil, err
		}
		rate, err := b.ingested(ctx, url, l)
		if err != nil {
			return nil, err
		}
		ours = append(ours, rate)
		if rate, err = publishRaw(ctx, url, messages, plainStream); err != nil {
			return nil, err
		}
		raw = append(raw, rate)
		if rate, err = publishRaw(ctx, url, messages, streamLikeOurs); err != nil {
			return nil, err
		}
		alike = append(alike, rate)
	}
	same := func(v float64) float64 { return v }
	mine, theirs, theirsAlike := median(ours, same), median(raw, same), median(alike, same)
	return []figure{{
		what: fmt.Sprintf("the same from a file into a stream that syncs each write, %d events, median of %d; beside the bare JetStream client",
			publishLines, publishRounds),
		measured: perSecond(mine), beside: perSecond(theirs), ratio: ratio(mine, theirs), goal: "≥ 0.80",
	}, {
		what:     "the same; beside the bare JetStream client into streams with the retention and the consumers of mintlog's",
		measured: perSecond(mine), beside: perSecond(theirsAlike), ratio: ratio(mine, theirsAlike), goal: "≥ 0.80",
	}}, nil
}

// publishable is a log in which every line is ours, and the messages that its events become.
func (b *bencher) publishable(seed uint64) (log, []*nats.Msg, error) {
	l := log{path: b.path(fmt.Sprintf("publish-%d.log", seed))}
	var text bytes.Buffer
	var err error
	if l.written, err = auditlog.New(auditlog.Options{Seed: 1000 + seed, OursEvery: 1}).Write(&text, publishLines); err != nil {
		return l, nil, err
	}
	if err := os.WriteFile(l.path, text.Bytes(), 0o600); err != nil {
		return l, nil, err
	}
	var messages []*nats.Msg
	for line := range bytes.Lines(text.Bytes()) {
		e, ours, err := ingest.Decode(bytes.TrimSuffix(line, []byte("\n")))
		if err != nil || !ours {
			return l, nil, errors.Join(errors.New("a line of ours is none"), err)
		}
		payload, err := json.Marshal(&e)
		if err != nil {
			return l, nil, err
		}
		messages = append(messages, &nats.Msg{
			Subject: "bare." + kindOf(&e), Data: payload, Header: nats.Header{nats.MsgIdHdr: {e.Identity()}},
		})
	}
	return l, messages, nil
}

// kindOf parts events as the stream does.
func kindOf(e *event.Event) string {
	switch {
	case e.Stage == event.RequestReceived:
		return "received"
	case e.Eligible():
		return "done"
	}
	return "refused"
}

// ingested has a process of mintlog publish a log and returns its events a second, from the first it has published.
func (b *bencher) ingested(ctx context.Context, url string, l log) (float64, error) {
	address, err := process.FreeAddress()
	if err != nil {
		return 0, err
	}
	state := l.path + ".state"
	started, err := process.Start(ctx, process.Options{
		Name: "mintlog-ingest", Path: b.bin("mintlog"), LogFile: l.path + ".out",
		Arguments: []string{"ingest", "--audit-log", l.path, "--nats", url, "--state", state, "--metrics-address", address},
	})
	if err != nil {
		return 0, err
	}
	defer started.Kill()
	deadline := time.Now().Add(time.Minute)
	var first time.Time
	var before float64
	for time.Now().Before(deadline) && started.Running() {
		time.Sleep(10 * time.Millisecond)
		count, err := metric(ctx, address, "mintlog_ingest_published_events_total")
		switch {
		case err != nil || count == 0:
			continue // it does not listen yet
		case first.IsZero():
			first, before = time.Now(), count
		case count >= float64(l.written.Ours):
			return (count - before) / time.Since(first).Seconds(), started.Stop()
		}
	}
	return 0, errors.New("mintlog ingest did not publish the log within a minute")
}

// metric is the sum of a metric's values over its labels.
func metric(ctx context.Context, address, name string) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	sum := 0.0
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		value, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			return 0, err
		}
		sum += value
	}
	return sum, lines.Err()
}

// ourStreams are mintlog's, by what the bare client's are called.
var ourStreams = map[string]string{"received": "MINTLOG_INTENTS", "done": "MINTLOG_EVENTS", "refused": "MINTLOG_ATTEMPTS"}

// plainStream keeps messages, and nothing more.
func plainStream(ctx context.Context, js jetstream.JetStream, kind string) error {
	_, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: "BARE-" + kind, Subjects: []string{"bare." + kind}, Storage: jetstream.FileStorage, Duplicates: 10 * time.Minute,
	})
	return err
}

// streamLikeOurs is configured as mintlog's is, and so are its consumers.
func streamLikeOurs(ctx context.Context, js jetstream.JetStream, kind string) error {
	ours, err := js.Stream(ctx, ourStreams[kind])
	if err != nil {
		return err
	}
	configuration := ours.CachedInfo().Config
	configuration.Name, configuration.Subjects = "BARE-"+kind, []string{"bare." + kind}
	made, err := js.CreateStream(ctx, configuration)
	if err != nil {
		return err
	}
	consumers := ours.ListConsumers(ctx)
	for consumer := range consumers.Info() {
		if _, err := made.CreateConsumer(ctx, consumer.Config); err != nil {
			return err
		}
	}
	return consumers.Err()
}

// publishRaw publishes messages into streams that are made for them, as fast as the client does with a window of
// unacknowledged ones, and returns how many a second.
func publishRaw(ctx context.Context, url string, messages []*nats.Msg, makeStream func(context.Context, jetstream.JetStream, string) error) (float64, error) {
	connection, err := nats.Connect(url)
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	js, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(rawWindow))
	if err != nil {
		return 0, err
	}
	for kind := range ourStreams {
		if err := makeStream(ctx, js, kind); err != nil {
			return 0, fmt.Errorf("making a stream for the bare client: %w", err)
		}
	}
	rate, err := publishAll(js, messages)
	for kind := range ourStreams {
		err = errors.Join(err, js.DeleteStream(ctx, "BARE-"+kind))
	}
	return rate, err
}

// publishAll returns when all messages are acknowledged.
func publishAll(js jetstream.JetStream, messages []*nats.Msg) (float64, error) {
	began := time.Now()
	var futures []jetstream.PubAckFuture
	for _, m := range messages {
		future, err := js.PublishMsgAsync(m, jetstream.WithStallWait(10*time.Second))
		if err != nil {
			return 0, err
		}
		futures = append(futures, future)
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(time.Minute):
		return 0, errors.New("the bare client's messages were not acknowledged within a minute")
	}
	took := time.Since(began)
	for _, future := range futures {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			return 0, err
		}
	}
	return float64(len(messages)) / took.Seconds(), nil
}
