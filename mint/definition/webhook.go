package definition

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/mintlog/mintlog/mint/webhook"
)

const (
	defaultTimeout = 5  // seconds
	maxTimeout     = 10 // seconds: no mint takes longer
	defaultPort    = 443
)

// webhook reads whom to ask, as Kubernetes' own webhooks have it: a URL, or a Service of the cluster.
func (p *parser) webhook(path string, raw any) webhook.Config {
	if raw == nil {
		p.refuse(path, "is required")
		return webhook.Config{}
	}
	fields := p.object(path, raw, "clientConfig", "timeoutSeconds")
	if fields == nil {
		return webhook.Config{}
	}
	c := p.clientConfig(path+".clientConfig", fields["clientConfig"])
	c.Timeout = time.Duration(p.number(path, fields, "timeoutSeconds", defaultTimeout, 1, maxTimeout)) * time.Second
	return c
}

func (p *parser) clientConfig(path string, raw any) webhook.Config {
	if raw == nil {
		p.refuse(path, "is required")
		return webhook.Config{}
	}
	fields := p.object(path, raw, "url", "service", "caBundle")
	if fields == nil {
		return webhook.Config{}
	}
	c := webhook.Config{CABundle: p.caBundle(path, fields)}
	_, byURL := fields["url"]
	_, byService := fields["service"]
	switch {
	case byURL == byService:
		p.refuse(path, "must have either url or service")
	case byURL:
		c.URL = p.url(path, fields)
	default:
		c.URL = p.service(path+".service", fields["service"])
	}
	return c
}

// url is an address that says what it is and holds no secret: neither user nor query.
func (p *parser) url(path string, fields map[string]any) string {
	text := p.text(path, fields, "url", "")
	if text == "" {
		return ""
	}
	path += ".url"
	u, err := url.Parse(text)
	switch {
	case err != nil:
		p.refuse(path, "is no URL")
	case u.Scheme != "https":
		p.refuse(path, "must begin with https://")
	case u.Hostname() == "":
		p.refuse(path, "must name a host")
	case u.User != nil, u.RawQuery != "", u.ForceQuery, u.Fragment != "":
		p.refuse(path, "must have neither user nor query nor fragment")
	}
	return text
}

// service is the URL of a Service, by the name that every pod of the cluster resolves.
func (p *parser) service(path string, raw any) string {
	fields := p.object(path, raw, "namespace", "name", "port", "path")
	if fields == nil {
		return ""
	}
	namespace, name := p.required(path, fields, "namespace"), p.required(path, fields, "name")
	port := p.number(path, fields, "port", defaultPort, 1, 65535)
	for _, field := range []string{"namespace", "name"} {
		value, _ := fields[field].(string)
		if problems := validation.IsDNS1123Label(value); value != "" && len(problems) > 0 {
			p.refuse(path+"."+field, "%s", problems[0])
		}
	}
	at := p.text(path, fields, "path", "/")
	if !strings.HasPrefix(at, "/") || strings.ContainsAny(at, "?#") {
		p.refuse(path+".path", "must begin with a slash and have neither query nor fragment")
	}
	u := url.URL{Scheme: "https", Host: fmt.Sprintf("%s.%s.svc:%d", name, namespace, port), Path: at}
	return u.String()
}

// caBundle is PEM in base64, as JSON has bytes; every block of it must be a certificate.
func (p *parser) caBundle(path string, fields map[string]any) string {
	text := p.text(path, fields, "caBundle", "")
	if text == "" {
		return ""
	}
	path += ".caBundle"
	bundle, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		p.refuse(path, "must be base64")
		return ""
	}
	count := 0
	for rest := bundle; ; count++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if _, err := x509.ParseCertificate(block.Bytes); block.Type != "CERTIFICATE" || err != nil {
			p.refuse(path, "must hold certificates and nothing else")
			return ""
		}
	}
	if count == 0 {
		p.refuse(path, "must hold certificates in PEM")
	}
	return string(bundle)
}

// number is the whole number in a field, or fallback where the field is absent.
func (p *parser) number(path string, fields map[string]any, name string, fallback, least, most int64) int64 {
	raw, present := fields[name]
	if !present {
		return fallback
	}
	n, ok := wholeNumber(raw)
	if !ok || n < least || n > most {
		p.refuse(path+"."+name, "must be a whole number from %d to %d", least, most)
	}
	return n
}
