package credential

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/mint/format"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/ledger"
)

// writeReserve is what is left of the budget for the write, and to read it back, when the webhooks have been asked.
const writeReserve = 2 * time.Second

// A minter changes passwords: one conditional write per operation that holds the stored form and its ledger entry.
type minter struct {
	cluster  *cluster.Cluster
	client   corev1client.CoreV1Interface
	webhooks definition.Webhooks
	random   io.Reader
	now      func() time.Time
	log      *slog.Logger
	total    *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

func newMinter(o Options) *minter {
	m := &minter{
		cluster: o.Cluster, client: o.Client, webhooks: o.Webhooks, random: o.Random, now: o.Now, log: cmp.Or(o.Log, slog.Default()),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mintlog_operations_total", Help: "Requested operations by answer; a dry run is none.",
		}, []string{"operation", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mintlog_operation_duration_seconds", Help: "Time from a request's reception to its answer.",
			Buckets: prometheus.ExponentialBuckets(0.002, 2, 13),
		}, []string{"operation"}),
	}
	o.Registerer.MustRegister(m.total, m.seconds)
	return m
}

// A request is what a caller asked for, and as whom.
type request struct {
	operation     ledger.Operation
	namespace     string
	credential    string
	caller        string // the effective user that the front proxy named
	auditID       string
	received      time.Time
	preconditions v1alpha1.Preconditions
	dryRun        bool
}

// A result is an operation that took effect, or in a dry run would have.
type result struct {
	entry    ledger.Entry
	username string
	password string
}

// do runs an operation to its end, whether or not its caller stays to hear of it.
func (m *minter) do(ctx context.Context, r request) (result, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.WriteBudget-m.now().Sub(r.received))
	defer cancel()
	done, err := m.run(ctx, r)
	code := code(err)
	if code >= http.StatusInternalServerError { // the words of these errors are ours: none quotes a Secret or a webhook
		m.log.Warn("an operation failed", "operation", r.operation, "namespace", r.namespace, "credential", r.credential,
			"dry run", r.dryRun, "code", code, "audit id", r.auditID, "error", err)
	}
	if !r.dryRun {
		m.total.WithLabelValues(string(r.operation), strconv.Itoa(code)).Inc()
		m.seconds.WithLabelValues(string(r.operation)).Observe(m.now().Sub(r.received).Seconds())
	}
	return done, err
}

// code is the status of the answer.
func code(err error) int {
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return http.StatusCreated
	case errors.As(err, &status):
		return int(status.Status().Code)
	default:
		return http.StatusInternalServerError
	}
}

// A draft is an operation on its way into an account Secret.
type draft struct {
	request
	target   target
	id       string // of its ledger entry
	stored   []byte
	password string
}

func (m *minter) run(ctx context.Context, r request) (result, error) {
	asking, cancel := untilReserve(ctx)
	defer cancel()
	t, err := m.target(asking, r)
	if err != nil {
		return result{}, err
	}
	base, err := m.cluster.AccountSecret(ctx, r.namespace, secretName(r.credential))
	if err != nil && !apierrors.IsNotFound(err) {
		return result{}, err
	}
	if apierrors.IsNotFound(err) {
		base = nil
	}
	d, err := m.draft(asking, r, t)
	if err != nil {
		return result{}, err
	}
	return m.commit(ctx, d, base)
}

// untilReserve ends while there is still time to write.
func untilReserve(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-writeReserve))
}

// A target is the declared account that an operation is about.
type target struct {
	release    *cluster.Release
	definition *cluster.Definition
	account    definition.Account
}

// target finds the declared account of a credential's name; what is not declared is not found, whatever Secret exists.
func (m *minter) target(ctx context.Context, r request) (target, error) {
	release, segment, ok := m.release(r)
	if !ok {
		return target{}, notFound(r.credential, "there is no such application, or it has no accounts")
	}
	if release.Deleting {
		return target{}, conflict(r.credential, "its application is being deleted")
	}
	served, err := servedDefinition(m.cluster, release.Kind)
	if err != nil {
		return target{}, notFound(r.credential, err.Error())
	}
	accounts, refused, err := release.Accounts(ctx, served.Block, m.webhooks, m.recorded(ctx, release))
	if err != nil {
		why := fmt.Sprintf("the accounts of %s are not known: %v", release.Name, err)
		if failed(err) {
			return target{}, tryAgain(r.credential, why+"; nothing was written")
		}
		return target{}, notFound(r.credential, why)
	}
	for _, a := range accounts {
		if a.Segment == segment {
			return target{release: release, definition: served, account: a}, nil
		}
	}
	for _, a := range refused {
		if a.Segment != segment {
			continue
		}
		if a.Platform {
			return target{}, notFound(r.credential, a.Reason)
		}
		return target{}, conflict(r.credential, a.Reason)
	}
	return target{}, notFound(r.credential, fmt.Sprintf("%s declares no such account", release.Name))
}

// release splits <release>.<account> at the last dot: an account's part has none.
func (m *minter) release(r request) (*cluster.Release, string, bool) {
	dot := strings.LastIndex(r.credential, ".")
	if dot < 0 {
		return nil, "", false
	}
	release, ok := m.cluster.Release(r.namespace, r.credential[:dot])
	return release, r.credential[dot+1:], ok
}

// recorded is the username that the existing account Secret of a name holds: where two names meet in one, it keeps it.
func (m *minter) recorded(ctx context.Context, release *cluster.Release) func(string) (string, bool) {
	return func(segment string) (string, bool) {
		secret, err := m.cluster.AccountSecret(ctx, release.Namespace, secretName(release.Name+"."+segment))
		if err != nil {
			return "", false
		}
		return string(secret.Data[corev1.BasicAuthUsernameKey]), true
	}
}

// draft generates the password and its stored form. Of a revoke the plaintext ends here.
func (m *minter) draft(ctx context.Context, r request, t target) (draft, error) {
	password, err := format.NewPassword(m.random)
	if err != nil {
		return draft{}, fmt.Errorf("generate a password: %w", err)
	}
	stored, err := t.definition.Block.Stored(ctx, t.release.Kind, m.webhooks, m.random, t.account, password)
	if failed(err) {
		return draft{}, tryAgain(r.credential, fmt.Sprintf("%v; nothing was written", err))
	}
	if err != nil {
		return draft{}, err
	}
	id, err := ledger.NewID(m.random)
	if err != nil {
		return draft{}, err
	}
	if r.operation == ledger.Revoke {
		password = ""
	}
	return draft{request: r, target: t, id: id, stored: stored, password: password}, nil
}

// failed reports whether an error is a webhook's, and may not come again.
func failed(err error) bool {
	var w *definition.WebhookError
	return errors.As(err, &w)
}

func conflict(credential, why string) error {
	return apierrors.NewConflict(v1alpha1.Resource(event.Resource), credential, errors.New(why))
}

// tryAgain is a 503 that a client may repeat after a second.
func tryAgain(credential, why string) error {
	err := apierrors.NewServiceUnavailable(fmt.Sprintf("credentials %q: %s", credential, why))
	err.ErrStatus.Details = &metav1.StatusDetails{Name: credential, RetryAfterSeconds: 1}
	return err
}
