// Package admission finds out whether the admission policies are in force that narrow what RBAC cannot. A policy that is
// missing, not bound, or made for other identities, denies nothing and says nothing: so a part of mintlog tries what must
// be denied to it.
package admission

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// The policies, by the names of their objects.
const (
	AccountSecrets = "mintlog-account-secrets" // tried by the mint server, the accounts role and the projector
	Grants         = "mintlog-grants"          // by the accounts role, as those that follow
	Records        = "mintlog-records"
	Applications   = "mintlog-applications"
)

// All are the policies. The accounts role can try each of them.
func All() []string { return []string{AccountSecrets, Grants, Records, Applications} }

// What nobody of mintlog may change: a Secret, a Role and a ConfigMap of the one name, and another ConfigMap. The accounts
// role may neither create a HelmRelease nor is there one that it could be tried with, so the policy about HelmReleases
// is about that ConfigMap too.
const (
	probe             = "mintlog-policy-probe"
	applicationsProbe = "mintlog-policy-probe-applications"
)

const (
	// defaultPatience: kube-apiserver takes a second for a new policy.
	defaultPatience = 5 * time.Second
	pause           = 500 * time.Millisecond
	interval        = 5 * time.Minute
	callTimeout     = 10 * time.Second
)

// Options say what is tried, and as whom.
type Options struct {
	// Client is of the part's own identity, which may patch the Secret mintlog-policy-probe of Namespace, and for the
	// other policies the Role and the ConfigMaps that they are tried with.
	Client    kubernetes.Interface
	Namespace string // mintlog's own
	Part      string // for log and metric
	Policies  []string
	// WarnOnly has Await return though a policy is not in force.
	WarnOnly bool
	Patience time.Duration // how long Await gives a policy to come into force; default 5 s
	Log      *slog.Logger

	Registerer prometheus.Registerer
}

// A Check looks whether the policies are in force for one part.
type Check struct {
	Options
	inForce *prometheus.GaugeVec
	open    map[string]bool // what was found the last time
}

// New prepares a check.
func New(o Options) (*Check, error) {
	o.Patience = cmp.Or(o.Patience, defaultPatience)
	c := &Check{Options: o, open: map[string]bool{}, inForce: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name:        "mintlog_admission_policy_in_force",
		Help:        "Whether the last try of what an admission policy must deny to a part was denied: 1, or 0.",
		ConstLabels: prometheus.Labels{"part": o.Part},
	}, []string{"policy"})}
	if err := o.Registerer.Register(c.inForce); err != nil {
		return nil, fmt.Errorf("register the metric of the admission policies: %w", err)
	}
	return c, nil
}

// ErrOpen is part of the error where a policy is not in force.
var ErrOpen = errors.New("an admission policy is not in force")

// Await returns when every policy has denied what it must, or with ErrOpen when one has not for its patience. As long as
// kube-apiserver cannot be asked it waits, until ctx is done.
func (c *Check) Await(ctx context.Context) error {
	for _, policy := range c.Policies {
		err := c.await(ctx, policy)
		if errors.Is(err, ErrOpen) && c.WarnOnly {
			c.Log.Warn("going on without an admission policy", "policy", policy, "error", err)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Check) await(ctx context.Context, policy string) error {
	var openSince time.Time
	told := false
	for {
		err := c.Try(ctx, policy)
		switch {
		case err == nil:
			c.found(policy, true)
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.Is(err, ErrOpen):
			openSince = time.Time{}
			if !told {
				c.Log.Warn("cannot ask yet whether an admission policy is in force; waiting", "policy", policy, "error", err)
				told = true
			}
		case openSince.IsZero():
			openSince = time.Now()
		case time.Since(openSince) >= c.Patience:
			c.found(policy, false)
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause + rand.N(pause)):
		}
	}
}

// Run looks again every five minutes until ctx is done, for the log and the metric: what runs goes on running.
func (c *Check) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval + rand.N(interval/10)):
		}
		c.Look(ctx)
	}
}

// Look asks once for each policy, and tells log and metric.
func (c *Check) Look(ctx context.Context) {
	for _, policy := range c.Policies {
		err := c.Try(ctx, policy)
		switch {
		case err == nil:
			c.found(policy, true)
		case errors.Is(err, ErrOpen):
			if !c.open[policy] {
				c.Log.Error("an admission policy was taken out of force", "policy", policy, "error", err)
			}
			c.found(policy, false)
		default: // not known
		}
	}
}

func (c *Check) found(policy string, inForce bool) {
	c.open[policy] = !inForce
	value := 0.0
	if inForce {
		value = 1
	}
	c.inForce.WithLabelValues(policy).Set(value)
}

// Try asks once: nil if the policy denied, ErrOpen if what it must deny came through or got stuck before it, another error
// if that is not known.
func (c *Check) Try(ctx context.Context, policy string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := c.change(ctx, policy)
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return fmt.Errorf("%w: %s lets %s change what it must not", ErrOpen, policy, c.Part)
	// The server's words are not passed on: they may quote what is stored.
	case errors.As(err, &status) && strings.Contains(status.Status().Message, "ValidatingAdmissionPolicy '"+policy+"'"):
		return nil
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w, as far as can be seen: what %s is tried with is not in the namespace %s; install %s with the policies",
			ErrOpen, policy, c.Namespace, probe)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w, as far as can be seen: %s has no right to try %s; install the Role %s with the policies, for this identity",
			ErrOpen, c.Part, policy, probe)
	case errors.As(err, &status):
		return fmt.Errorf("try the admission policy %s: the API server answered %d %s", policy, status.Status().Code, status.Status().Reason)
	default:
		return fmt.Errorf("try the admission policy %s: %w", policy, err)
	}
}

// change is a dry run of a change that the policy must deny.
func (c *Check) change(ctx context.Context, policy string) error {
	other := strconv.FormatInt(time.Now().UnixNano(), 10) // than it is: what changes nothing is denied to nobody
	note, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{"credentials.cozystack.io/probe": other}}})
	if err != nil {
		return err
	}
	data, err := json.Marshal(map[string]any{"data": map[string]string{"probe": other}})
	if err != nil {
		return err
	}
	dryRun := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	switch policy {
	case AccountSecrets:
		_, err = c.Client.CoreV1().Secrets(c.Namespace).Patch(ctx, probe, types.MergePatchType, note, dryRun)
	case Grants:
		_, err = c.Client.RbacV1().Roles(c.Namespace).Patch(ctx, probe, types.MergePatchType, note, dryRun)
	case Records:
		_, err = c.Client.CoreV1().ConfigMaps(c.Namespace).Patch(ctx, probe, types.MergePatchType, data, dryRun)
	case Applications:
		_, err = c.Client.CoreV1().ConfigMaps(c.Namespace).Patch(ctx, applicationsProbe, types.MergePatchType, data, dryRun)
	default:
		err = fmt.Errorf("there is no way to try %q", policy)
	}
	return err
}
