package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
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

// applicationsPolicy records what the role and the bare program ask, alike.
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
	program string // the role's
	count   int    // applications
	profile string // directory; empty: none
}

// applications has the accounts role find applications that came while it was away, between two halves of a bare
// program's run that makes the same objects for the same owners.
func (b *bencher) applications(ctx context.Context) (_ []figure, err error) {
	h := &herd{count: b.count, profile: b.profile}
	if h.program, err = b.build(ctx, "role"); err != nil {
		return nil, err
	}
	h.sandbox, err = sandbox.Start(ctx, sandbox.Options{
		Apiservers: 1, AuditPolicy: applicationsPolicy, AuditLogMaxMegabytes: 4000, Log: os.Stderr,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.sandbox.Stop()) }()
	config := h.sandbox.RESTConfig(sandbox.ClusterAdmin, 0)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	if h.admin, err = kubernetes.NewForConfig(config); err != nil {
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

func (h *herd) measure(ctx context.Context) ([]figure, error) {
	idle, err := h.serversCPU()
	if err != nil {
		return nil, err
	}
	first, err := h.bare(ctx, 0, h.count/2)
	if err != nil {
		return nil, err
	}
	half, err := h.serversCPU()
	if err != nil {
		return nil, err
	}
	role, err := h.start(ctx, "accounts", "accounts", fmt.Sprint(roleWorkers))
	if err != nil {
		return nil, err
	}
	defer role.kill()
	took, err := h.seed(ctx, role)
	if err != nil {
		return nil, err
	}
	seeded, err := h.serversCPU()
	if err != nil {
		return nil, err
	}
	steady, err := h.steady(ctx)
	if err != nil {
		return nil, err
	}
	whole, err := role.memory()
	if err != nil {
		return nil, err
	}
	added, removed, err := h.change(ctx)
	if err != nil {
		return nil, err
	}
	if err := role.stop(); err != nil {
		return nil, err
	}
	alone, err := h.informers(ctx)
	if err != nil {
		return nil, err
	}
	second, err := h.bare(ctx, h.count/2, h.count)
	if err != nil {
		return nil, err
	}
	objects := float64(h.count * objectsOfEach)
	mine, theirs := objects/took.Seconds(), objects/(first+second).Seconds()
	accounts := float64(h.count * accountsOfEach)
	perAccount := func(whole, alone float64) string {
		return fmt.Sprintf("%.2f KiB an account", (whole-alone)/accounts/1024)
	}
	what := fmt.Sprintf("%d applications of %d accounts in %d namespaces", h.count, accountsOfEach, inNamespaces)
	perObject := func(spent time.Duration, objects float64) float64 { return spent.Seconds() * 1000 / objects }
	cpu, bareCPU := perObject(seeded-half, objects), perObject(half-idle, objects/2)
	return []figure{
		{
			what:     what + ": Secrets, Roles and RoleBindings written, from the role's start to the last; beside bare client-go",
			measured: perSecond(mine), beside: perSecond(theirs), ratio: ratio(mine, theirs), goal: "≥ 0.80",
		},
		{
			what:     "the same: CPU time of the cluster's servers an object; beside that of the bare program's first half",
			measured: fmt.Sprintf("%.1f ms", cpu), beside: fmt.Sprintf("%.1f ms", bareCPU), ratio: ratio(cpu, bareCPU), goal: "-",
		},
		{
			what:     fmt.Sprintf("the same, in step: writes and lists in %s (gets and watches: %d)", steadyFor, steady.others),
			measured: fmt.Sprint(steady.writes + steady.lists), beside: "-", ratio: "-", goal: "0",
		},
		{
			what:     "the same: live heap above that of the informers alone; beside what these hold",
			measured: perAccount(float64(whole.HeapAlloc), float64(alone.HeapAlloc)), beside: mib(float64(alone.HeapAlloc)), ratio: "-", goal: "≤ 3 KiB",
		},
		{
			what:     "the same: resident memory above that of the informers alone; beside what these hold",
			measured: perAccount(float64(whole.Resident), float64(alone.Resident)), beside: mib(float64(alone.Resident)), ratio: "-", goal: "≤ 3 KiB",
		},
		{
			what:     fmt.Sprintf("an account added to one of them, until its Secret is there, p50 and most of %d", len(added)),
			measured: ms(percentile(added, 50)) + ", " + ms(percentile(added, 100)), beside: "-", ratio: "-", goal: "≤ 200 ms",
		},
		{
			what:     fmt.Sprintf("an account removed from one of them, until its Secret is gone, p50 and most of %d", len(removed)),
			measured: ms(percentile(removed, 50)) + ", " + ms(percentile(removed, 100)), beside: "-", ratio: "-", goal: "≤ 200 ms",
		},
	}, nil
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

// seed waits until the role has written everything.
func (h *herd) seed(ctx context.Context, role *roleProcess) (time.Duration, error) {
	want := h.count * objectsOfEach
	for told := time.Now(); ; {
		s, err := role.state()
		if err != nil {
			return 0, err
		}
		if s.Written >= want {
			return time.Since(role.began), nil
		}
		if time.Since(told) > 10*time.Second {
			fmt.Fprintf(os.Stderr, "%d of %d objects are written\n", s.Written, want)
			told = time.Now()
		}
		if time.Since(role.began) > 15*time.Minute {
			return 0, fmt.Errorf("%d of %d objects were written in 15 minutes", s.Written, want)
		}
		if err := pause(ctx, 250*time.Millisecond); err != nil {
			return 0, err
		}
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

// bare makes the objects of some applications as the role does, with nothing but client-go: as many workers, the same
// contents and owners. Their names are others, as the role's are the role's alone.
func (h *herd) bare(ctx context.Context, from, to int) (time.Duration, error) {
	owners := map[string]metav1.OwnerReference{}
	objects, err := dynamic.NewForConfig(h.sandbox.RESTConfig(sandbox.ClusterAdmin, 0))
	if err != nil {
		return 0, err
	}
	releases, err := objects.Resource(sandbox.HelmReleases).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	for _, r := range releases.Items {
		owners[r.GetName()] = *metav1.NewControllerRef(&r, r.GroupVersionKind())
	}
	began := time.Now()
	err = h.each(to-from, roleWorkers, func(n int) error { return h.bareObjects(ctx, from+n, owners[releaseOf(from+n)]) })
	return time.Since(began), err
}

func (h *herd) bareObjects(ctx context.Context, n int, owner metav1.OwnerReference) error {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespaceOf(n), Name: name, OwnerReferences: []metav1.OwnerReference{owner}}
	}
	name := "bare-" + releaseOf(n)
	role := &rbacv1.Role{ObjectMeta: meta(name)}
	role.Annotations = map[string]string{"credentials.cozystack.io/found": "[]", "credentials.cozystack.io/first-sight": "2026-01-01T00:00:00Z"}
	rule := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "patch"}}
	for a := range accountsOfEach {
		rule.ResourceNames = append(rule.ResourceNames, bareSecret(n, a))
	}
	role.Rules = []rbacv1.PolicyRule{rule}
	if _, err := h.admin.RbacV1().Roles(role.Namespace).Create(ctx, role, metav1.CreateOptions{}); err != nil {
		return err
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: meta(name),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "projector", Namespace: sandbox.Namespace}},
	}
	if _, err := h.admin.RbacV1().RoleBindings(binding.Namespace).Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return err
	}
	for a := range accountsOfEach {
		secret := &corev1.Secret{ObjectMeta: meta(bareSecret(n, a)), Type: corev1.SecretTypeBasicAuth}
		secret.Labels = map[string]string{
			"credentials.cozystack.io/account": "false", "internal.cozystack.io/tenantresource": "false", "cnpg.io/reload": "true",
			"apps.cozystack.io/application.kind": "Postgres", "apps.cozystack.io/application.group": "apps.cozystack.io",
			"apps.cozystack.io/application.name": applicationOf(n),
		}
		secret.Annotations = map[string]string{
			"credentials.cozystack.io/origin": "NotIssued",
			"credentials.cozystack.io/ledger": strings.Repeat("l", 300),
		}
		secret.Data = map[string][]byte{"username": fmt.Appendf(nil, "u%d", a), "password": []byte(strings.Repeat("s", 133))}
		if _, err := h.admin.CoreV1().Secrets(secret.Namespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// bareSecret ends otherwise than an account Secret.
func bareSecret(n, account int) string {
	return fmt.Sprintf("bare-%s.u%d-account", releaseOf(n), account)
}

// asked is what the role asked of kube-apiserver.
type asked struct{ writes, lists, others int }

// steady counts the role's requests by the audit log, when it has come to rest.
func (h *herd) steady(ctx context.Context) (asked, error) {
	if err := pause(ctx, 5*time.Second); err != nil {
		return asked{}, err
	}
	log, err := os.Open(h.sandbox.AuditLog(0))
	if err != nil {
		return asked{}, err
	}
	defer log.Close()
	if _, err := log.Seek(0, io.SeekEnd); err != nil {
		return asked{}, err
	}
	if err := pause(ctx, steadyFor); err != nil {
		return asked{}, err
	}
	var a asked
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		var e struct {
			Verb string
			User struct{ Username string }
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return a, fmt.Errorf("reading the audit log: %w", err)
		}
		switch {
		case e.User.Username != accountsAccount:
		case e.Verb == "get" || e.Verb == "watch":
			a.others++
		case e.Verb == "list":
			a.lists++
		default:
			a.writes++
		}
	}
	return a, lines.Err()
}

// change adds an account to each application of one namespace, and takes it away again, one at a time.
func (h *herd) change(ctx context.Context) (added, removed []time.Duration, err error) {
	secrets, err := h.admin.CoreV1().Secrets(namespaceOf(0)).Watch(ctx, metav1.ListOptions{LabelSelector: accountSecrets})
	if err != nil {
		return nil, nil, err
	}
	defer secrets.Stop()
	timed := func(n, accounts int, want watch.EventType) (time.Duration, error) {
		if err := h.install(ctx, n, accounts); err != nil {
			return 0, err
		}
		began := time.Now()
		name := fmt.Sprintf("%s.u%d.account", releaseOf(n), accountsOfEach)
		deadline := time.After(30 * time.Second)
		for {
			select {
			case event := <-secrets.ResultChan():
				if secret, ok := event.Object.(*corev1.Secret); ok && event.Type == want && secret.Name == name {
					return time.Since(began), nil
				}
			case <-deadline:
				return 0, fmt.Errorf("the account Secret %s was not %s within 30 s", name, want)
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}
	}
	for n := 0; n < h.count; n += inNamespaces {
		took, err := timed(n, accountsOfEach+1, watch.Added)
		if err != nil {
			return nil, nil, err
		}
		added = append(added, took)
		if took, err = timed(n, accountsOfEach, watch.Deleted); err != nil {
			return nil, nil, err
		}
		removed = append(removed, took)
	}
	return added, removed, nil
}

// informers measures what the caches hold alone.
func (h *herd) informers(ctx context.Context) (cost.Memory, error) {
	alone, err := h.start(ctx, "", "informers")
	if err != nil {
		return cost.Memory{}, err
	}
	defer alone.kill()
	for {
		s, err := alone.state()
		if err != nil {
			return cost.Memory{}, err
		}
		if s.Cached >= h.count*accountsOfEach {
			break
		}
		if time.Since(alone.began) > 2*time.Minute {
			return cost.Memory{}, fmt.Errorf("%d account Secrets are in the informers' caches after two minutes", s.Cached)
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return cost.Memory{}, err
		}
	}
	m, err := alone.memory()
	return m, errors.Join(err, alone.stop())
}

// A roleProcess is the program of test/bench/role.
type roleProcess struct {
	command *exec.Cmd
	asks    io.WriteCloser
	answers *bufio.Reader
	began   time.Time
}

// start starts it as the accounts role's service account. Its profile, if one is wanted, has the given name.
func (h *herd) start(ctx context.Context, profile, mode string, more ...string) (*roleProcess, error) {
	kubeconfig, err := h.sandbox.ServiceAccountKubeconfig(ctx, "accounts", 0)
	if err != nil {
		return nil, err
	}
	command := exec.Command(h.program, append([]string{mode, kubeconfig}, more...)...)
	command.Stderr = os.Stderr
	if h.profile != "" && profile != "" {
		command.Env = append(os.Environ(), "CPU_PROFILE="+filepath.Join(h.profile, profile))
	}
	p := &roleProcess{command: command, began: time.Now()}
	if p.asks, err = command.StdinPipe(); err != nil {
		return nil, err
	}
	answers, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.answers = bufio.NewReader(answers)
	return p, command.Start()
}

func (p *roleProcess) ask(question string, into any) error {
	if _, err := fmt.Fprintln(p.asks, question); err != nil {
		return err
	}
	line, err := p.answers.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("the role does not answer: %w", err)
	}
	return json.Unmarshal(line, into)
}

func (p *roleProcess) state() (s cost.Role, err error) { err = p.ask("state", &s); return s, err }

func (p *roleProcess) memory() (m cost.Memory, err error) { err = p.ask("memory", &m); return m, err }

func (p *roleProcess) stop() error { return errors.Join(p.asks.Close(), p.command.Wait()) }

// kill ends it where something went wrong; after stop it does nothing.
func (p *roleProcess) kill() {
	if p.command.ProcessState == nil {
		_ = p.command.Process.Kill()
		_ = p.command.Wait()
	}
}
