package webhook

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"time"

	kjson "sigs.k8s.io/json"
)

const contentType = "application/json"

// A failure is why a webhook gave no answer that can be used. Its words are ours alone: neither request nor answer, nor
// what a library makes of them, is quoted, for passwords stand in both.
type failure struct {
	result string // for the metrics
	text   string
}

func (f *failure) Error() string { return "the webhook " + f.text }

func malformed(text string) error { return &failure{"malformed", "answered what " + text} }

// A question is a request and what reads the answer to it.
type question struct {
	kind, purpose         string
	to                    Config
	request               any
	maxRequest, maxAnswer int
	read                  func(body []byte) error
}

// ask asks once, for no longer than the webhook's timeout and until ctx is done.
func (c *Clients) ask(ctx context.Context, q question) (err error) {
	began := time.Now()
	defer func() { c.metrics.observe(q, began, err) }()
	body, err := json.Marshal(q.request)
	if err != nil {
		return &failure{"malformed", "cannot be asked: the request is no JSON"}
	}
	if len(body) > q.maxRequest {
		return &failure{"oversized", fmt.Sprintf("cannot be asked: the request has %d bytes, more than the %d that are allowed", len(body), q.maxRequest)}
	}
	client, err := c.client(q.kind, q.to)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, q.to.Timeout)
	defer cancel()
	answer, err := client.post(ctx, q.to.URL, body, q.maxAnswer)
	if err != nil {
		return err
	}
	return q.read(answer)
}

// post sends a body and returns the one that came back.
func (c *client) post(ctx context.Context, url string, body []byte, limit int) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, &failure{"unreachable", "has no address"}
	}
	request.GetBody = nil // nothing is sent twice
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Accept", contentType)
	request.Header.Set("User-Agent", "mintlog")
	request.Close = !c.multiplexed.Load()
	response, err := c.http.Do(request)
	if err != nil {
		return nil, explain(ctx, err)
	}
	defer response.Body.Close()
	c.multiplexed.Store(response.ProtoMajor == 2)
	if response.StatusCode != http.StatusOK {
		return nil, &failure{"status", fmt.Sprintf("answered with status %d, not 200", response.StatusCode)}
	}
	if media, _, err := mime.ParseMediaType(response.Header.Get("Content-Type")); err != nil || media != contentType {
		return nil, malformed("is not of Content-Type " + contentType)
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, int64(limit)+1))
	if err != nil {
		return nil, explain(ctx, err)
	}
	if len(answer) > limit {
		return nil, &failure{"oversized", fmt.Sprintf("answered more than the %d bytes that are allowed", limit)}
	}
	return answer, nil
}

// decode reads an answer in which nothing is unknown, there twice or of another kind, and that belongs to the request.
// head is the answer's.
func decode(body []byte, answer any, head *Head, asked Head, kind string) error {
	strict, err := kjson.UnmarshalStrict(body, answer)
	switch {
	case err != nil:
		return malformed("is no JSON object of the kind " + kind)
	case len(strict) > 0:
		return malformed("has fields that a " + kind + " does not have, or has one twice")
	case head.APIVersion != APIVersion || head.Kind != kind:
		return malformed("is not of the kind " + kind + " of " + APIVersion)
	case head.UID != asked.UID:
		return malformed("does not repeat the uid of the request")
	}
	return nil
}

// explain says why there is no answer, by the kind of the error alone.
func explain(ctx context.Context, err error) error {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var lookup *net.DNSError
	var network *net.OpError
	var timeout net.Error
	switch {
	case ctx.Err() != nil, errors.As(err, &timeout) && timeout.Timeout():
		return &failure{"timeout", "did not answer in time"}
	case errors.As(err, &authority):
		return &failure{"untrusted", "has a certificate that none of the authorities it may be signed by has signed"}
	case errors.As(err, &name):
		return &failure{"untrusted", "has a certificate for another name than its own"}
	case errors.As(err, &invalid):
		return &failure{"untrusted", "has a certificate that is not valid, or not now"}
	case errors.As(err, &lookup):
		return &failure{"unreachable", "cannot be reached: its name does not resolve"}
	case errors.As(err, &network) && network.Op == "dial":
		return &failure{"unreachable", "cannot be reached"}
	}
	return &failure{"broken", "broke off, or does not speak HTTPS"}
}
