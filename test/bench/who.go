package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	neturl "net/url"
	"os"
	"os/exec"
	"time"

	"github.com/mintlog/mintlog/store/archive"
	"github.com/mintlog/mintlog/test/sandbox/process"
)

const (
	whoRows   = 1_000_000
	whoMints  = 1000 // requests among them, each with its commit
	whoDays   = 29
	whoRounds = 9

	// bare is who's question, for requests and for what proves that they were done, as somebody puts it with curl.
	bare = `_time:30d _stream:{log_source="audit_log"} (` +
		`("objectRef.apiGroup":="credentials.cozystack.io" "objectRef.resource":=credentials "objectRef.subresource":in(mint,revoke)) or ` +
		`("objectRef.resource":=secrets "objectRef.name":~"[.]account$"))`

	// indexed is the bare question by somebody who knows that VictoriaLogs looks words up in an index, and no expressions.
	indexed = `_time:30d _stream:{log_source="audit_log"} (` +
		`("objectRef.apiGroup":="credentials.cozystack.io" "objectRef.resource":=credentials "objectRef.subresource":in(mint,revoke)) or ` +
		`("objectRef.resource":=secrets "objectRef.name":account "objectRef.name":~"[.]account$"))`
)

// who asks an archive of a platform's whole audit log who rotated what.
func (b *bencher) who(ctx context.Context) ([]figure, error) {
	address, err := process.FreeAddress()
	if err != nil {
		return nil, err
	}
	url := "http://" + address
	server, err := process.Start(ctx, process.Options{
		Name: "victoria-logs", Path: b.bin("victoria-logs"), LogFile: b.path("victoria-logs.log"),
		Arguments: []string{"-httpListenAddr=" + address, "-storageDataPath=" + b.path("victoria-logs"), "-retentionPeriod=60d"},
		Ready: func(ctx context.Context) error {
			_, err := fetch(ctx, url+"/health", nil)
			return err
		},
	})
	if err != nil {
		return nil, err
	}
	defer server.Kill()
	fmt.Fprintf(os.Stderr, "filling the archive with %d events\n", whoRows)
	if err := fillArchive(ctx, url); err != nil {
		return nil, err
	}
	var first, whole, joined, asked, curl, indexing []time.Duration
	for range whoRounds {
		f, w, err := b.askWho(ctx, url)
		if err != nil {
			return nil, err
		}
		first, whole = append(first, f), append(whole, w)
		var sent recorder
		begin := time.Now().Add(-30 * 24 * time.Hour)
		took, err := timed(func() error {
			return archive.New(url, &http.Client{Transport: &sent}).Requests(ctx, archive.Query{Start: begin}, nil, func(archive.Asked) error { return nil })
		})
		if err != nil {
			return nil, err
		}
		joined = append(joined, took)
		for _, query := range []struct {
			logsQL string
			into   *[]time.Duration
		}{{sent.query, &asked}, {bare, &curl}, {indexed, &indexing}} {
			took, err := timed(func() error { return askBare(ctx, url, query.logsQL) })
			if err != nil {
				return nil, err
			}
			*query.into = append(*query.into, took)
		}
	}
	beside := func(what string, took, bare []time.Duration, goal string) figure {
		return figure{what, ms(percentile(took, 50)), ms(percentile(bare, 50)), ratio(float64(percentile(took, 50)), float64(percentile(bare, 50))), goal}
	}
	return []figure{
		{"who --since 30d, 1,000 requests among a million events: the first row, median", ms(percentile(first, 50)), "-", "-", "≤ 300 ms"},
		{"the same, the whole command", ms(percentile(whole, 50)), "-", "-", "-"},
		beside("the same, its LogsQL / the bare query, both over HTTP", asked, curl, "≤ 1.2"),
		beside("the same, its query, rows read and joined / the bare query over HTTP", joined, curl, "≤ 1.2"),
		beside("the same / the bare query with a word for the index", joined, indexing, "-"),
	}, nil
}

// A recorder passes requests on and keeps the last one's LogsQL.
type recorder struct{ query string }

func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	body, err := request.GetBody()
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	form, err := neturl.ParseQuery(string(text))
	if err != nil {
		return nil, err
	}
	r.query = form.Get("query")
	return http.DefaultTransport.RoundTrip(request)
}

// askBare asks as curl does, for every request and its commit.
func askBare(ctx context.Context, url, query string) error {
	rows, err := fetch(ctx, url+"/select/logsql/query", neturl.Values{"query": {query}})
	if err != nil {
		return err
	}
	if n := bytes.Count(rows, []byte{'\n'}); n != 2*whoMints {
		return fmt.Errorf("%q finds %d of %d requests and commits", query, n, 2*whoMints)
	}
	return nil
}

func timed(do func() error) (time.Duration, error) {
	began := time.Now()
	err := do()
	return time.Since(began), err
}

// askWho runs the command and returns when its first row came and when it ended.
func (b *bencher) askWho(ctx context.Context, url string) (first, whole time.Duration, err error) {
	command := exec.CommandContext(ctx, b.bin("mintlog"), "who", "--victorialogs", url, "--since", "30d", "-o", "json")
	out, err := command.StdoutPipe()
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := command.Start(); err != nil {
		return 0, 0, err
	}
	rows := 0
	for lines := bufio.NewScanner(out); lines.Scan(); rows++ {
		if rows == 0 {
			first = time.Since(began)
		}
	}
	if err := command.Wait(); err != nil {
		return 0, 0, err
	}
	if rows != whoMints {
		return 0, 0, fmt.Errorf("who finds %d of %d requests", rows, whoMints)
	}
	return first, time.Since(began), nil
}

// fillArchive inserts a platform's audit log of a month in the shape of Cozystack's pipeline: what it reads and writes of
// pods, and a request with its commit once in a thousand.
func fillArchive(ctx context.Context, url string) error {
	begin := time.Now().UTC().Add(-whoDays * 24 * time.Hour)
	step := whoDays * 24 * time.Hour / whoRows
	var batch bytes.Buffer
	for i := range whoRows {
		at := begin.Add(time.Duration(i) * step)
		switch i % (whoRows / whoMints) {
		case 0:
			writeRow(&batch, at, i, "create", "jane", 201, "credentials.cozystack.io", "credentials", "mint", "postgres-orders.app")
		case 1:
			writeRow(&batch, at.Add(-step+5*time.Millisecond), i-1, "update", "system:serviceaccount:mintlog:mint", 200, "", "secrets", "", "postgres-orders.app.account")
		default:
			writeRow(&batch, at, i, []string{"get", "update", "patch"}[i%3], fmt.Sprintf("system:serviceaccount:kube-system:controller-%d", i%20),
				200, "", []string{"pods", "secrets", "configmaps"}[i%3], "", fmt.Sprintf("object-%d", i%5000))
		}
		if batch.Len() > 4<<20 || i == whoRows-1 {
			const path = "/insert/jsonline?_stream_fields=log_source,stage,user_username,verb,requestUri&_msg_field=requestURI&_time_field=date"
			if err := post(ctx, url+path, &batch); err != nil {
				return err
			}
			batch.Reset()
		}
	}
	_, err := fetch(ctx, url+"/internal/force_flush", nil)
	return err
}

func writeRow(w io.Writer, at time.Time, i int, verb, user string, code int, group, resource, subresource, name string) {
	fmt.Fprintf(w, `{"date":%q,"log_source":"audit_log","cluster":"c1","tenant":"root","kind":"Event","level":"Metadata","auditID":"00000000-0000-4000-8000-%012d",`+
		`"stage":"ResponseComplete","requestURI":"/apis/%s/v1/namespaces/tenant-acme/%s/%s","verb":%q,"user_username":%q,"user_groups":["system:authenticated"],`+
		`"sourceIPs":["10.0.0.7"],"userAgent":"client/v1","objectRef":{"apiGroup":%q,"resource":%q,"subresource":%q,"namespace":"tenant-acme","name":%q},`+
		`"responseStatus":{"code":%d},"stageTimestamp":%q,"annotations":{"authorization.k8s.io/decision":"allow","authorization.k8s.io/reason":""}}`+"\n",
		at.Format(time.RFC3339Nano), i, group, resource, name, verb, user, group, resource, subresource, name, code,
		at.Add(8*time.Millisecond).Format(time.RFC3339Nano))
}

func post(ctx context.Context, to string, body io.Reader) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to, body)
	if err != nil {
		return err
	}
	_, err = answerOf(request)
	return err
}

// fetch gets, or posts a form.
func fetch(ctx context.Context, from string, form neturl.Values) ([]byte, error) {
	method, body := http.MethodGet, ""
	if form != nil {
		method, body = http.MethodPost, form.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, method, from, bytes.NewReader([]byte(body)))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return answerOf(request)
}

func answerOf(request *http.Request) ([]byte, error) {
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %s", request.URL.Path, answer.Status)
	}
	return text, err
}
