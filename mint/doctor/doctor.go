// Package doctor looks at a running installation from the outside, with an administrator's own rights, and says check by
// check what it saw and what to mend. It writes nothing: the one mint that it asks for is a dry run, which changes nothing
// and stands in the audit log.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/mintlog/mintlog/mint/enrolment"
	"github.com/mintlog/mintlog/store/archive"
	"github.com/mintlog/mintlog/store/stream"
)

// A Verdict is what a check came to.
type Verdict string

// The verdicts, from best to worst.
const (
	OK   Verdict = "OK"
	Warn Verdict = "WARN" // it works, or could not be looked at
	Fail Verdict = "FAIL" // it does not work, or does not hold what it promises
)

func (v Verdict) weight() int { return map[Verdict]int{OK: 0, Warn: 1, Fail: 2}[v] }

// A Finding is one thing that was seen.
type Finding struct {
	Verdict Verdict `json:"verdict"`
	Seen    string  `json:"seen"`
	Mend    string  `json:"mend,omitempty"` // what to do; empty where nothing is to be done
}

// A Result is what one check found. Its verdict is the worst of its findings.
type Result struct {
	Check    string    `json:"check"`
	Verdict  Verdict   `json:"verdict"`
	Findings []Finding `json:"findings"`
	Seconds  float64   `json:"seconds"`
}

// Options say what is looked at.
type Options struct {
	Config     *rest.Config // the administrator's
	Identities enrolment.Identities
	Archive    *archive.Archive // nil: it is not asked
	Stream     *stream.Stream   // nil: it is not asked
	Retention  time.Duration    // the mint server's
	// Credential is what the dry run is asked of; empty: of one that is there.
	Credential types.NamespacedName
	// MintAddress is where the mint server's certificate can be seen, host:port; empty: where the Service leads to.
	MintAddress string
	// ServingSecret is looked at for the certificate where the mint server cannot be reached from here.
	ServingSecret string
	Metrics       []string      // URLs of the parts' metrics
	Version       string        // of this program
	Wait          time.Duration // for the audit events of the dry run
	CheckTimeout  time.Duration // for each of the other checks
	Now           func() time.Time
	NewAuditID    func() string
}

// A Doctor looks once.
type Doctor struct {
	Options
	client   kubernetes.Interface
	objects  dynamic.Interface
	metadata metadata.Interface
	http     *http.Client

	apiService  func() (apiServiceFacts, error)
	definitions func() ([]definitionFacts, error)
	releases    func() ([]releaseFacts, error)
	enrolled    func() ([]enrolment.Enrolment, error)
	secrets     func() ([]secretFacts, error)
	newest      func() (*operationFacts, error)
	telling     sync.Mutex
	background  context.Context // of what several checks share
}

// New prepares to look.
func New(o Options) (*Doctor, error) {
	d := &Doctor{Options: o}
	var problems [4]error
	d.client, problems[0] = kubernetes.NewForConfig(o.Config)
	d.objects, problems[1] = dynamic.NewForConfig(o.Config)
	d.metadata, problems[2] = metadata.NewForConfig(o.Config)
	d.http, problems[3] = rest.HTTPClientFor(o.Config)
	if err := errors.Join(problems[:]...); err != nil {
		return nil, fmt.Errorf("build the clients of kube-apiserver: %w", err)
	}
	d.apiService = shared(d, d.readAPIService)
	d.definitions = shared(d, d.readDefinitions)
	d.releases = shared(d, d.readReleases)
	d.secrets = shared(d, d.readSecrets)
	d.newest = shared(d, d.readNewest)
	d.enrolled = shared(d, (&enrolment.Enroller{Client: d.client, Identities: o.Identities}).Enrolled)
	return d, nil
}

// shared reads once what several checks look at, for as long as one check may take.
func shared[T any](d *Doctor, read func(context.Context) (T, error)) func() (T, error) {
	return sync.OnceValues(func() (T, error) {
		ctx, cancel := context.WithTimeout(d.background, d.CheckTimeout)
		defer cancel()
		return read(ctx)
	})
}

// A check looks at one thing.
type check struct {
	name    string
	timeout time.Duration // 0: CheckTimeout
	look    func(context.Context) []Finding
}

func (d *Doctor) checks() []check {
	all := []check{
		{name: "api-service", look: d.lookAtAPIService},
		{name: "serving-certificate", look: d.lookAtCertificate},
		{name: "front-proxy", look: d.lookAtFrontProxy},
		{name: "api", look: d.lookAtAPI},
		{name: "policies", look: d.lookAtPolicies},
		{name: "definitions", look: d.lookAtDefinitions},
		{name: "enrolments", look: d.lookAtEnrolments},
		{name: "grants", look: d.lookAtGrants},
		{name: "events", look: d.lookAtEvents, timeout: d.Wait + d.CheckTimeout},
		{name: "stream", look: d.lookAtStream},
		{name: "archive", look: d.lookAtArchive},
		{name: "histories", look: d.lookAtHistories},
		{name: "clocks", look: d.lookAtClocks},
	}
	if len(d.Metrics) > 0 {
		all = append(all, check{name: "versions", look: d.lookAtVersions})
	}
	return all
}

// Run makes all checks at once, each by itself, and returns their results in a fixed order when all are done or ctx is.
// It tells done of each result as it comes, one at a time.
func (d *Doctor) Run(ctx context.Context, done func(result Result, finished, of int)) []Result {
	d.background = ctx
	checks := d.checks()
	results := make([]Result, len(checks))
	var running sync.WaitGroup
	finished := 0
	for i, c := range checks {
		running.Go(func() {
			results[i] = d.run(ctx, c)
			d.telling.Lock()
			defer d.telling.Unlock()
			finished++
			done(results[i], finished, len(checks))
		})
	}
	running.Wait()
	return results
}

func (d *Doctor) run(ctx context.Context, c check) Result {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.timeout, d.CheckTimeout))
	defer cancel()
	began := d.Now()
	result := Result{Check: c.name, Verdict: OK, Findings: c.look(ctx)}
	result.Seconds = d.Now().Sub(began).Round(time.Millisecond).Seconds()
	for _, f := range result.Findings {
		if f.Verdict.weight() > result.Verdict.weight() {
			result.Verdict = f.Verdict
		}
	}
	return result
}

func good(format string, a ...any) Finding {
	return Finding{Verdict: OK, Seen: fmt.Sprintf(format, a...)}
}

// warn and fail say what was seen and what to mend; the format is what was seen.
func warn(mend, format string, a ...any) Finding {
	return Finding{Verdict: Warn, Seen: fmt.Sprintf(format, a...), Mend: mend}
}

func fail(mend, format string, a ...any) Finding {
	return Finding{Verdict: Fail, Seen: fmt.Sprintf(format, a...), Mend: mend}
}

// unseen is what a check comes to that could not look. right is what it takes, as in "list secrets in all namespaces".
func unseen(err error, right string) Finding {
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return warn("look with an identity that may "+right, "not looked at: the right to %s is missing", right)
	}
	return fail("see that kube-apiserver can be reached with this kubeconfig and that what is asked for is installed", "cannot %s: %s", right, words(err))
}

// words are an error without what an API server says, which may quote what is stored.
func words(err error) string {
	var status apierrors.APIStatus
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	case errors.As(err, &status):
		return fmt.Sprintf("kube-apiserver answered %d %s", status.Status().Code, status.Status().Reason)
	}
	return err.Error()
}

// shown is how many objects are named where many are alike.
const shown = 5

// some are the first of a list in words.
func some(list []string) string {
	slices.Sort(list)
	if len(list) <= shown {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:shown], ", "), len(list)-shown)
}
