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
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/mintlog/mintlog/test/bench/cost"
)

// seed waits until the role has written everything.
func (h *herd) seed(ctx context.Context, role *roleProcess) error {
	want := h.count * objectsOfEach
	for told := time.Now(); ; {
		s, err := role.state()
		if err != nil {
			return err
		}
		if s.Written >= want {
			return nil
		}
		if time.Since(told) > 10*time.Second {
			fmt.Fprintf(os.Stderr, "%d of %d objects are written\n", s.Written, want)
			told = time.Now()
		}
		if time.Since(role.began) > 15*time.Minute {
			return fmt.Errorf("%d of %d objects were written in 15 minutes", s.Written, want)
		}
		if err := pause(ctx, 250*time.Millisecond); err != nil {
			return err
		}
	}
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

// informers measures what the caches hold alone, when so many Secrets are in them.
func (h *herd) informers(ctx context.Context, secrets int) (cost.Memory, error) {
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
		if s.Cached >= secrets {
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
