package auditlog

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"time"

	authnv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// A request is one of the mix: who asks for what.
type request struct {
	lines    int // in a thousand
	user     func(*Generator) caller
	verb     string
	api      string // group/version, or the core's version alone
	resource string // with its subresource
	query    string
	in       string // the kind of namespace: "node-lease", "system", "tenant", "mixed"; empty: the cluster
	unnamed  bool   // a collection: no object is named
	code     int32
}

// A caller is who asks, from where, and why he may.
type caller struct {
	user   authnv1.UserInfo
	agent  string
	ip     string
	reason string
}

const (
	watchQuery = "?allowWatchBookmarks=true&resourceVersion=%d&timeout=7m12s&timeoutSeconds=432&watch=true"
	listQuery  = "?limit=500&resourceVersion=0"
)

// mix adds up to 1,000 lines; the package's documentation says the same in words.
var mix = []request{
	{lines: 130, user: kubelet, verb: "update", api: "coordination.k8s.io/v1", resource: "leases", in: "node-lease", query: "?timeout=10s"},
	{lines: 140, user: operator, verb: "update", api: "coordination.k8s.io/v1", resource: "leases", in: "system", query: "?timeout=5s"},
	{lines: 15, user: controller, verb: "update", api: "discovery.k8s.io/v1", resource: "endpointslices", in: "mixed"},
	{lines: 15, user: operator, verb: "update", api: "apps/v1", resource: "deployments/status", in: "mixed"},

	{lines: 90, user: operator, verb: "get", api: "coordination.k8s.io/v1", resource: "leases", in: "system", query: "?timeout=5s"},
	{lines: 35, user: operator, verb: "get", api: "v1", resource: "secrets", in: "mixed"},
	{lines: 35, user: operator, verb: "get", api: "v1", resource: "configmaps", in: "mixed"},
	{lines: 25, user: operator, verb: "get", api: "helm.toolkit.fluxcd.io/v2", resource: "helmreleases", in: "tenant"},
	{lines: 20, user: kubelet, verb: "get", api: "v1", resource: "pods", in: "mixed"},
	{lines: 20, user: kubelet, verb: "get", api: "v1", resource: "nodes", query: "?resourceVersion=0&timeout=10s"},
	{lines: 30, user: probe, verb: "get"},

	{lines: 40, user: operator, verb: "list", api: "v1", resource: "pods", in: "mixed", unnamed: true, query: listQuery},
	{lines: 35, user: operator, verb: "list", api: "helm.toolkit.fluxcd.io/v2", resource: "helmreleases", in: "tenant", unnamed: true, query: "?labelSelector=apps.cozystack.io%2Fapplication.kind%3DPostgres%2Cinternal.cozystack.io%2Ftenantmodule%21%3Dtrue"},
	{lines: 20, user: operator, verb: "list", api: "v1", resource: "secrets", in: "mixed", unnamed: true, query: "?labelSelector=owner%3Dhelm%2Cstatus+in+%28deployed%2Cfailed%29"},
	{lines: 20, user: operator, verb: "list", api: "v1", resource: "configmaps", in: "mixed", unnamed: true, query: listQuery},
	{lines: 15, user: operator, verb: "list", api: "discovery.k8s.io/v1", resource: "endpointslices", in: "mixed", unnamed: true, query: listQuery},
	{lines: 40, user: person, verb: "list", api: "apps.cozystack.io/v1alpha1", resource: "postgreses", in: "tenant", unnamed: true, query: "?limit=500"},

	{lines: 50, user: kubelet, verb: "patch", api: "v1", resource: "pods/status", in: "mixed"},
	{lines: 20, user: kubelet, verb: "patch", api: "v1", resource: "nodes/status", query: "?timeout=10s"},
	{lines: 20, user: operator, verb: "patch", api: "helm.toolkit.fluxcd.io/v2", resource: "helmreleases/status", in: "tenant", query: "?fieldManager=helm-controller&fieldValidation=Strict"},
	{lines: 15, user: operator, verb: "patch", api: "apps/v1", resource: "statefulsets", in: "tenant", query: "?fieldManager=helm&force=true"},

	{lines: 35, user: kubelet, verb: "create", api: "v1", resource: "events", in: "mixed", unnamed: true, code: 201},
	{lines: 35, user: operator, verb: "create", api: "authorization.k8s.io/v1", resource: "subjectaccessreviews", unnamed: true, code: 201},
	{lines: 15, user: operator, verb: "create", api: "authentication.k8s.io/v1", resource: "tokenreviews", unnamed: true, code: 201},
	{lines: 20, user: kubelet, verb: "create", api: "v1", resource: "serviceaccounts/token", in: "mixed", code: 201},
	{lines: 10, user: controller, verb: "create", api: "v1", resource: "pods/binding", in: "mixed", code: 201},

	{lines: 15, user: operator, verb: "watch", api: "v1", resource: "secrets", unnamed: true, query: watchQuery},
	{lines: 15, user: operator, verb: "watch", api: "helm.toolkit.fluxcd.io/v2", resource: "helmreleases", unnamed: true, query: watchQuery},
	{lines: 15, user: kubelet, verb: "watch", api: "v1", resource: "configmaps", in: "mixed", unnamed: true, query: "?allowWatchBookmarks=true&fieldSelector=metadata.name%%3Dkube-root-ca.crt&resourceVersion=%d&timeoutSeconds=432&watch=true"},

	{lines: 6, user: controller, verb: "delete", api: "v1", resource: "pods", in: "mixed"},
	{lines: 4, user: operator, verb: "delete", api: "v1", resource: "configmaps", in: "mixed"},
}

// lookalikes hold what lines of ours hold, and are none.
var lookalikes = []request{
	{user: person, verb: "list", api: "credentials.cozystack.io/v1alpha1", resource: "credentials", in: "tenant", unnamed: true},
	{user: operator, verb: "get", api: "v1", resource: "secrets", in: "tenant"},
	{user: operator, verb: "create", api: "rbac.authorization.k8s.io/v1", resource: "roles", in: "tenant", unnamed: true, code: 201},
}

// In lines of other things: one in so many looks like ours, and one holds a body.
const (
	lookalikeEvery = 1000
	bodyEvery      = 250
	smallestBody   = 2 << 10
	largestBody    = 96 << 10
)

// drawn has each request of the mix as often as it comes in a thousand lines.
var drawn = func() []request {
	var all []request
	for _, r := range mix {
		for range r.lines {
			all = append(all, r)
		}
	}
	return all
}()

// other is an event of somebody else's.
func (g *Generator) other() auditv1.Event {
	if g.random.IntN(lookalikeEvery) == 0 {
		return g.lookalike()
	}
	e := g.event(pick(g, drawn))
	if e.ObjectRef != nil && e.ObjectRef.Resource != "secrets" && g.random.IntN(bodyEvery) == 0 {
		e.Level = auditv1.LevelRequestResponse
		size := smallestBody * math.Exp(g.random.Float64()*math.Log(largestBody/smallestBody))
		e.ResponseObject = &runtime.Unknown{Raw: g.body(int(size)), ContentType: runtime.ContentTypeJSON}
	}
	return e
}

func (g *Generator) lookalike() auditv1.Event {
	e := g.event(pick(g, lookalikes))
	switch e.ObjectRef.Resource {
	case "secrets":
		e.ObjectRef.Name = pick(g, releases) + "." + pick(g, logins) + ".account"
		e.RequestURI = "/api/v1/namespaces/" + e.ObjectRef.Namespace + "/secrets/" + e.ObjectRef.Name
	case "roles":
		release := pick(g, releases)
		e.ObjectRef.Name = "credentials-" + release
		e.Level = auditv1.LevelRequest
		e.RequestObject = &runtime.Unknown{ContentType: runtime.ContentTypeJSON, Raw: fmt.Appendf(nil,
			`{"kind":"Role","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":%q},"rules":[{"verbs":["get","patch"],"apiGroups":[""],"resources":["secrets"],"resourceNames":["%s.%s.account"]}]}`,
			e.ObjectRef.Name, release, pick(g, logins))}
	}
	return e
}

// event is one request's event at a final stage, or of a watch at its beginning.
func (g *Generator) event(r request) auditv1.Event {
	by := r.user(g)
	e := auditv1.Event{
		Level: auditv1.LevelMetadata, AuditID: g.uuid(), Stage: auditv1.StageResponseComplete, Verb: r.verb,
		User: by.user, SourceIPs: []string{by.ip}, UserAgent: by.agent,
		ResponseStatus: &metav1.Status{Code: r.code},
		Annotations:    map[string]string{"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": by.reason},
	}
	took := time.Duration(g.random.ExpFloat64() * float64(3*time.Millisecond))
	if r.verb == "watch" {
		took = 7 * time.Minute
		if g.random.IntN(2) == 0 {
			e.Stage, took = auditv1.StageResponseStarted, time.Millisecond
		}
	}
	e.StageTimestamp = metav1.NewMicroTime(g.now)
	e.RequestReceivedTimestamp = metav1.NewMicroTime(g.now.Add(-took))
	if e.ResponseStatus.Code == 0 {
		e.ResponseStatus.Code = 200
	}
	if r.api == "" {
		e.RequestURI = pick(g, probed)
		return e
	}
	g.address(&e, r)
	return e
}

// address says which object an event is about.
func (g *Generator) address(e *auditv1.Event, r request) {
	group, version, grouped := strings.Cut(r.api, "/")
	if !grouped {
		group, version = "", r.api
	}
	resource, subresource, _ := strings.Cut(r.resource, "/")
	ref := &auditv1.ObjectReference{APIGroup: group, APIVersion: version, Resource: resource, Subresource: subresource}
	ref.Namespace = g.namespace(r.in)
	if !r.unnamed {
		ref.Name = g.name(r)
	}
	if e.Verb == "update" {
		ref.UID, ref.ResourceVersion = g.uuid(), fmt.Sprint(g.random.IntN(1<<30))
	}
	var uri strings.Builder
	if grouped {
		uri.WriteString("/apis/" + r.api)
	} else {
		uri.WriteString("/api/" + r.api)
	}
	if ref.Namespace != "" {
		uri.WriteString("/namespaces/" + ref.Namespace)
	}
	uri.WriteString("/" + resource)
	for _, part := range []string{ref.Name, subresource} {
		if part != "" {
			uri.WriteString("/" + part)
		}
	}
	if strings.Contains(r.query, "%d") {
		fmt.Fprintf(&uri, r.query, g.random.IntN(1<<30))
	} else {
		uri.WriteString(r.query)
	}
	e.RequestURI, e.ObjectRef = uri.String(), ref
}

func (g *Generator) namespace(of string) string {
	switch of {
	case "node-lease":
		return "kube-node-lease"
	case "system":
		return pick(g, systemNamespaces)
	case "tenant":
		return g.tenant()
	case "mixed":
		if g.random.IntN(2) == 0 {
			return pick(g, systemNamespaces)
		}
		return g.tenant()
	}
	return ""
}

func (g *Generator) name(r request) string {
	switch {
	case r.in == "node-lease" || strings.HasPrefix(r.resource, "nodes"):
		return g.node()
	case r.resource == "leases":
		return pick(g, operators) + "-leader-election"
	case strings.HasPrefix(r.resource, "helmreleases"):
		return pick(g, releases)
	case strings.HasPrefix(r.resource, "pods"):
		return fmt.Sprintf("%s-%08x-%05x", pick(g, releases), g.random.Uint32(), g.random.IntN(1<<20))
	}
	return pick(g, releases) + "-" + pick(g, []string{"config", "auth", "values", "headless", "metrics"})
}

// body is the JSON of an object of about that size.
func (g *Generator) body(size int) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"kind":"Object","apiVersion":"v1","metadata":{"name":%q,"namespace":%q,"uid":"%s","resourceVersion":"%d"},"status":{"conditions":[`,
		pick(g, releases), g.tenant(), g.uuid(), g.random.IntN(1<<30))
	for n := 0; n == 0 || b.Len() < size; n++ {
		if n > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"type":"Ready","status":"True","lastTransitionTime":%q,"reason":"ReconcileSucceeded","message":"Helm upgrade succeeded for release %s/%s.v%d with chart %s@%d.%d.%d"}`,
			g.now.Format(time.RFC3339), g.tenant(), pick(g, releases), n+1, pick(g, operators), n%7, n%5, n%3)
	}
	b.WriteString(`]}}`)
	return b.Bytes()
}
