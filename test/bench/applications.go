package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/mintlog/mintlog/test/bench/cost"
	"github.com/mintlog/mintlog/test/sandbox"
)

const (
	inNamespaces    = 500
	accountsOfEach  = 3
	objectsOfEach   = accountsOfEach + 2 // their Secrets, a Role and a RoleBinding
	roleWorkers     = 64                 // as mintlog's default is
	steadyFor       = 30 * time.Second
	accountsAccount = "system:serviceaccount:mintlog:accounts"
)

// applicationsPolicy records what the role and the bare programs ask, alike.
const applicationsPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
  - level: Metadata
    users: ["` + accountsAccount + `", "cluster-admin"]
  - level: None
`

// A herd is many applications in a sandbox of their own.
type herd struct {
	sandbox *sandbox.Sandbox
	admin   kubernetes.Interface
	objects dynamic.Interface // the admin's
	program string            // the role's
	count   int               // applications
	profile string            // directory; empty: none
}

// applications has the accounts role find applications that came while it was away, between two runs each of bare
// programs that make the same objects for the same owners.
func (b *bencher) applications(ctx context.Context) (_ []figure, err error) {
	h := &herd{count: b.count, profile: b.profile}
	if h.program, err = b.build(ctx, "role"); err != nil {
		return nil, err
	}
	h.sandbox, err = sandbox.Start(ctx, sandbox.Options{
		Apiservers: 1, AuditPolicy: applicationsPolicy, AuditLogMaxMegabytes: 4000, Log: os.Stderr, Synced: true,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.sandbox.Stop()) }()
	if h.objects, err = dynamic.NewForConfig(h.sandbox.RESTConfig(sandbox.ClusterAdmin, 0)); err != nil {
		return nil, err
	}
	if h.admin, err = kubernetes.NewForConfig(protobuf(h.sandbox.RESTConfig(sandbox.ClusterAdmin, 0))); err != nil {
		return nil, err
	}
	if err := h.lay(ctx); err != nil {
		return nil, err
	}
	return h.measure(ctx)
}

// lay has the role see the kind, and lays the applications when it is gone again.
func (h *herd) lay(ctx context.Context) error {
	if err := h.sandbox.LayDefinition(ctx); err != nil {
		return err
	}
	role, err := h.start(ctx, "", "accounts", fmt.Sprint(roleWorkers))
	if err != nil {
		return err
	}
	if err := errors.Join(h.sandbox.AwaitFirstSight(ctx, "Postgres"), role.stop()); err != nil {
		return err
	}
	began := time.Now()
	if err := h.each(inNamespaces, 8, func(n int) error {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespaceOf(n)}}
		if _, err := h.admin.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
			return err
		}
		return h.sandbox.Enrol(ctx, namespaceOf(n))
	}); err != nil {
		return err
	}
	if err := h.each(h.count, 8, func(n int) error { return h.install(ctx, n, accountsOfEach) }); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%d applications are laid in %s\n", h.count, time.Since(began).Round(time.Second))
	return nil
}

func namespaceOf(n int) string { return fmt.Sprintf("tenant-herd-%03d", n%inNamespaces) }

func applicationOf(n int) string { return fmt.Sprintf("db%05d", n) }

func releaseOf(n int) string { return "postgres-" + applicationOf(n) }

func (h *herd) install(ctx context.Context, n, accounts int) error {
	_, err := h.sandbox.InstallRelease(ctx, namespaceOf(n), "Postgres", applicationOf(n), users(accounts))
	return err
}

// each calls do with 0 to count-1, by some workers.
func (h *herd) each(count, workers int, do func(n int) error) error {
	var group errgroup.Group
	var next atomic.Int64
	for range workers {
		group.Go(func() error {
			for n := int(next.Add(1)) - 1; n < count; n = int(next.Add(1)) - 1 {
				if err := do(n); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// spent is what writing objects took.
type spent struct {
	objects int
	wall    time.Duration
	cpu     time.Duration // of the cluster's servers
}

func (s spent) plus(more spent) spent {
	return spent{s.objects + more.objects, s.wall + more.wall, s.cpu + more.cpu}
}

// rate is in objects a second.
func (s spent) rate() float64 { return float64(s.objects) / s.wall.Seconds() }

// each is the CPU time of the servers an object, in milliseconds.
func (s spent) each() float64 { return s.cpu.Seconds() * 1000 / float64(s.objects) }

// timed is what it takes to do what writes so many objects.
func (h *herd) timed(objects int, do func() error) (spent, error) {
	before, err := h.serversCPU()
	if err != nil {
		return spent{}, err
	}
	began := time.Now()
	if err := do(); err != nil {
		return spent{}, err
	}
	s := spent{objects: objects, wall: time.Since(began)}
	after, err := h.serversCPU()
	s.cpu = after - before
	return s, err
}

// serversCPU is the CPU time that the sandbox's servers have used.
func (h *herd) serversCPU() (time.Duration, error) {
	var sum time.Duration
	for _, p := range h.sandbox.Processes() {
		spent, err := cost.CPU(p.PID())
		if err != nil {
			return 0, err
		}
		sum += spent
	}
	return sum, nil
}

// A measurement is what the scenario came to.
type measurement struct {
	role           spent
	admin, peer    *bareProgram
	steady         asked
	whole, alone   cost.Memory
	added, removed []time.Duration
}

// measure has each bare program make a quarter of the objects before the role and a quarter behind it, in the reverse
// order: what a fuller cluster makes slower, it makes slower for all alike.
func (h *herd) measure(ctx context.Context) ([]figure, error) {
	m := measurement{admin: h.bareAsAdmin()}
	var err error
	if m.peer, err = h.bareAsRole(ctx); err != nil {
		return nil, err
	}
	quarter := max(h.count/4, 1)
	for _, p := range []*bareProgram{m.admin, m.peer} {
		if err := h.runBare(ctx, p, 0, quarter); err != nil {
			return nil, err
		}
	}
	if err := h.measureRole(ctx, &m); err != nil {
		return nil, err
	}
	for _, p := range []*bareProgram{m.peer, m.admin} {
		if err := h.runBare(ctx, p, quarter, min(2*quarter, h.count)); err != nil {
			return nil, err
		}
	}
	return append(h.seedingFigures(m), h.restFigures(m)...), nil
}

// measureRole measures the role from its start to its end, and then what it keeps without what works on it.
func (h *herd) measureRole(ctx context.Context, m *measurement) error {
	var role *roleProcess
	var err error
	m.role, err = h.timed(h.count*objectsOfEach, func() (err error) {
		if role, err = h.start(ctx, "accounts", "accounts", fmt.Sprint(roleWorkers)); err != nil {
			return err
		}
		return h.seed(ctx, role)
	})
	if role != nil {
		defer role.kill()
	}
	if err != nil {
		return err
	}
	if m.steady, err = h.steady(ctx); err != nil {
		return err
	}
	if m.whole, err = role.memory(); err != nil {
		return err
	}
	if m.added, m.removed, err = h.change(ctx); err != nil {
		return err
	}
	if err := role.stop(); err != nil {
		return err
	}
	m.alone, err = h.informers(ctx, (h.count*objectsOfEach+m.peer.objects)/objectsOfEach*accountsOfEach)
	return err
}

// seedingFigures set the role beside both bare programs. The goal is beside the first.
func (h *herd) seedingFigures(m measurement) []figure {
	what := fmt.Sprintf("%d applications of %d accounts in %d namespaces: Secrets, Roles and RoleBindings written, from the role's start to the last", h.count, accountsOfEach, inNamespaces)
	const (
		admin = "; beside bare client-go as cluster-admin, which kube-apiserver does not ask whether it holds what it grants"
		peer  = "; beside bare client-go with the role's identity, rights and admission policies"
	)
	rates := func(beside spent) figure {
		return figure{what: what, measured: perSecond(m.role.rate()), beside: perSecond(beside.rate()), ratio: ratio(m.role.rate(), beside.rate()), goal: "≥ 0.80"}
	}
	cpu := func(beside spent) figure {
		return figure{
			what:     "the same: CPU time of the cluster's servers an object",
			measured: fmt.Sprintf("%.1f ms", m.role.each()), beside: fmt.Sprintf("%.1f ms", beside.each()), ratio: ratio(m.role.each(), beside.each()), goal: "-",
		}
	}
	figures := []figure{rates(m.admin.spent), rates(m.peer.spent), cpu(m.admin.spent), cpu(m.peer.spent)}
	for i, program := range []string{admin, peer, admin, peer} {
		figures[i].what += program
	}
	return figures
}

func (h *herd) restFigures(m measurement) []figure {
	accounts := float64(h.count * accountsOfEach)
	perAccount := func(whole, alone float64) string {
		return fmt.Sprintf("%.2f KiB an account", (whole-alone)/accounts/1024)
	}
	times := func(what string, took []time.Duration) figure {
		return figure{
			what:     fmt.Sprintf("%s, p50 and most of %d", what, len(took)),
			measured: ms(percentile(took, 50)) + ", " + ms(percentile(took, 100)), beside: "-", ratio: "-", goal: "≤ 200 ms",
		}
	}
	return []figure{
		{
			what:     fmt.Sprintf("the same, in step: writes and lists in %s (gets and watches: %d)", steadyFor, m.steady.others),
			measured: fmt.Sprint(m.steady.writes + m.steady.lists), beside: "-", ratio: "-", goal: "0",
		},
		{
			what:     "the same: live heap above that of the informers alone; beside what these hold",
			measured: perAccount(float64(m.whole.HeapAlloc), float64(m.alone.HeapAlloc)), beside: mib(float64(m.alone.HeapAlloc)), ratio: "-", goal: "≤ 3 KiB",
		},
		{
			what:     "the same: resident memory above that of the informers alone; beside what these hold",
			measured: perAccount(float64(m.whole.Resident), float64(m.alone.Resident)), beside: mib(float64(m.alone.Resident)), ratio: "-", goal: "≤ 3 KiB",
		},
		times("an account added to one of them, until its Secret is there", m.added),
		times("an account removed from one of them, until its Secret is gone", m.removed),
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
