package accounts

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/mintlog/mintlog/mint/account"
	"github.com/mintlog/mintlog/mint/cluster"
)

// The reasons of Events on a HelmRelease.
const (
	reasonSourceFailed  = "AccountsUnknown"
	reasonRefused       = "AccountRefused"
	reasonForeignSecret = "ForeignSecret"
	reasonForeignRole   = "ForeignRole"
	reasonGrantRefused  = "GrantRefused"
	reasonFormatFailed  = "FormatFailed"
	reasonNotInValues   = "PasswordNotInValues"
	reasonTakenAway     = "ValuesTakenAway"
)

// A problem is what an application's owner should know.
type problem struct{ reason, message string }

// inTheWay reports whether it is something foreign, which nobody tells of when it goes.
func (p problem) inTheWay() bool {
	return p.reason == reasonForeignSecret || p.reason == reasonForeignRole
}

func foreignSecret(name string) problem {
	return problem{reasonForeignSecret, fmt.Sprintf("the Secret %s is not this application's account Secret and is left alone: its account is not served before it goes", name)}
}

func foreignRole(name string) problem {
	return problem{reasonForeignRole, fmt.Sprintf("the Role %s is not this application's, or not as mintlog wrote it, and is left alone: "+
		"accounts are minted but not seeded, and their histories stay Unattributed, until it is removed with every RoleBinding to it", name)}
}

// grantRefused is why a grant cannot be written as long as the application is as it is.
func grantRefused(name, why string) problem {
	return problem{reasonGrantRefused, fmt.Sprintf("the Role %s is not written: %s; accounts are minted but not seeded, and their histories stay Unattributed", name, why)}
}

func formatFailed(account string, err error) problem {
	return problem{reasonFormatFailed, fmt.Sprintf("the account %q has no password yet, for none could be stored: %v", account, err)}
}

// valuesProblem is why a stored form does not reach the application.
func valuesProblem(why string) problem {
	return problem{reasonNotInValues, "a password does not reach the application through its values: " + why}
}

// takenAway says whose the field spec.valuesFrom is, from which these Secrets' entries were taken too often.
func takenAway(secrets, managers []string) problem {
	named := strings.Join(secrets[:min(len(secrets), namedInEvent)], ", ")
	if more := len(secrets) - namedInEvent; more > 0 {
		named += fmt.Sprintf(" and %d more", more)
	}
	who := "whom its managedFields do not name"
	if len(managers) > 0 {
		who = fmt.Sprintf("and the field is managed by %q", managers)
	}
	return problem{reasonTakenAway, fmt.Sprintf("somebody takes the entries of %s out of spec.valuesFrom, %s: they were put back %d times within an hour and are left out for now; "+
		"new passwords do not reach the application meanwhile", named, who, putBacks)}
}

// reports tells of each problem once, until it has gone and come back.
type reports struct {
	broadcaster eventrecord.EventBroadcaster
	recorder    eventrecord.EventRecorder
	sink        typedcorev1.EventsGetter
	metrics     *metrics

	mu   sync.Mutex
	told map[types.NamespacedName][]problem
}

func newReports(client kubernetes.Interface, m *metrics) *reports {
	broadcaster := eventrecord.NewBroadcaster()
	return &reports{
		broadcaster: broadcaster,
		recorder:    broadcaster.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: eventSource}),
		sink:        client.CoreV1(),
		metrics:     m,
		told:        map[types.NamespacedName][]problem{},
	}
}

// start sends Events until the returned function is called.
func (r *reports) start() (stop func()) {
	r.broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: r.sink.Events("")})
	return r.broadcaster.Shutdown
}

func (r *reports) tell(release *cluster.Release, problems []problem) {
	name := types.NamespacedName{Namespace: release.Namespace, Name: release.Name}
	r.mu.Lock()
	before := r.told[name]
	if len(problems) == 0 {
		delete(r.told, name)
	} else {
		r.told[name] = problems
	}
	r.mu.Unlock()
	owner := account.Owner(release)
	for _, p := range problems {
		if slices.Contains(before, p) {
			continue
		}
		r.metrics.problems.WithLabelValues(p.reason).Inc()
		r.recorder.Event(&corev1.ObjectReference{
			APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: release.Namespace, Name: release.Name, UID: release.UID,
		}, corev1.EventTypeWarning, p.reason, p.message)
	}
}

func (r *reports) forget(name types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.told, name)
}

type metrics struct {
	reconciles *prometheus.CounterVec
	duration   prometheus.Histogram
	writes     *prometheus.CounterVec
	problems   *prometheus.CounterVec
}

func newMetrics() *metrics {
	return &metrics{
		reconciles: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mintlog_accounts_reconciles_total",
			Help: "Times that an application or a kind was looked at, by result: ok, waiting, reported (a source or a format failed), error.",
		}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "mintlog_accounts_reconcile_duration_seconds",
			Help:    "How long looking at one application or kind took.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mintlog_accounts_writes_total",
			Help: "Writes that were done, by object (secret, role, rolebinding, configmap, helmrelease) and verb (create, write, repair, delete, put back).",
		}, []string{"object", "verb"}),
		problems: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mintlog_accounts_problems_total",
			Help: "Problems of applications that came up, each counted once until it has gone and come back, by reason.",
		}, []string{"reason"}),
	}
}

func (m *metrics) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	for _, c := range []prometheus.Collector{m.reconciles, m.duration, m.writes, m.problems} {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}

func (m *metrics) wrote(object, verb string) { m.writes.WithLabelValues(object, verb).Inc() }
