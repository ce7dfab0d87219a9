package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mintlog/mintlog/test/postgres"
	"github.com/mintlog/mintlog/test/sandbox"
)

// A story is a demo under way.
type story struct {
	out      io.Writer
	sandbox  *sandbox.Sandbox
	postgres *postgres.Postgres // nil where there is none
	operator *operator
	login    func(ctx context.Context, role, password string) error
	password string // the one that jane's shell holds
	took     []timed
}

type timed struct {
	title string
	time.Duration
}

func (s *story) close() error {
	var err error
	if s.operator != nil {
		s.operator.stop()
	}
	if s.postgres != nil {
		err = s.postgres.Stop()
	}
	if s.sandbox != nil {
		err = errors.Join(err, s.sandbox.Stop())
	}
	return err
}

func (s *story) introduce() {
	fmt.Fprint(s.out, `
A tenant's admin gets a password for a database, once. Who asked for it is read from kube-apiserver's audit log. What
follows happens on servers of its own on this machine, as the people that the prompts name, and is gone when it ends.
`)
}

func (s *story) goOn() {
	fmt.Fprint(s.out, `
To try things yourself: make sandbox. To have it on a cluster: docs/quickstart.md. For tenants: docs/tenants.md; for
operators: docs/operators.md; for authors of kinds: docs/kinds.md; for reviewers: docs/reviewers.md.
`)
}

// step tells one step under its heading and keeps its time.
func (s *story) step(ctx context.Context, title string, tell func(context.Context) error) error {
	fmt.Fprintf(s.out, "\n── %d. %s\n\n", len(s.took)+1, title)
	start := time.Now()
	err := tell(ctx)
	s.took = append(s.took, timed{title, time.Since(start)})
	return err
}

func (s *story) times() {
	fmt.Fprint(s.out, "\n── How long each step took\n\n")
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for i, t := range s.took {
		fmt.Fprintf(w, "%d.\t%.2f s\t %s\n", i+1, t.Seconds(), t.title)
	}
	_ = w.Flush()
}

func (s *story) note(format string, arguments ...any) {
	fmt.Fprintf(s.out, "   %s\n", fmt.Sprintf(format, arguments...))
}

// type_ shows what a person types.
func (s *story) type_(person, command string) { fmt.Fprintf(s.out, "%s$ %s\n", person, command) }

// typeLogin shows what logs in, or that the exchange stands in for it.
func (s *story) typeLogin() {
	if s.postgres == nil {
		s.note("the SCRAM exchange between a client and the stored form, in place of psql:")
		return
	}
	host, port, _ := net.SplitHostPort(s.postgres.Address()) // it is one of ours
	s.type_("jane", fmt.Sprintf("PGPASSWORD=$password psql -h %s -p %s -U app -d postgres -c 'SELECT 1'", host, port))
}

// typed are arguments as one types them in a shell.
func typed(arguments []string) string {
	words := slices.Clone(arguments)
	for i, word := range words {
		if strings.Contains(word, " ") {
			words[i] = "'" + word + "'"
		}
	}
	return strings.Join(words, " ")
}

// show runs kubectl as a person, with what she types and what she sees.
func (s *story) show(ctx context.Context, person string, arguments ...string) error {
	s.type_(person, "kubectl "+typed(arguments))
	command := s.kubectl(ctx, person, arguments...)
	command.Stdout, command.Stderr = s.out, s.out
	err := command.Run()
	fmt.Fprintln(s.out)
	return err
}

// capture runs kubectl with its standard output in a variable of the person's shell.
func (s *story) capture(ctx context.Context, person, variable string, arguments ...string) (string, error) {
	s.type_(person, fmt.Sprintf("%s=$(kubectl %s)", variable, strings.Join(arguments, " ")))
	command := s.kubectl(ctx, person, arguments...)
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, s.out
	err := command.Run()
	fmt.Fprintln(s.out)
	return strings.TrimSpace(out.String()), err
}

// quiet runs kubectl and returns what it prints.
func (s *story) quiet(ctx context.Context, person string, arguments ...string) (string, error) {
	out, err := s.kubectl(ctx, person, arguments...).Output()
	return string(out), err
}

func (s *story) kubectl(ctx context.Context, person string, arguments ...string) *exec.Cmd {
	bin := filepath.Join(s.sandbox.Root(), "bin")
	command := exec.CommandContext(ctx, filepath.Join(bin, "kubectl"), arguments...)
	command.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "KUBE") }),
		"PATH="+bin+string(filepath.ListSeparator)+os.Getenv("PATH"), "KUBECONFIG="+s.sandbox.Kubeconfig(person, 0))
	return command
}

// until repeats what should hold, for at most two minutes, and then does what follows.
func (s *story) until(ctx context.Context, holds func() error, then func() error) error {
	deadline := time.Now().Add(2 * time.Minute)
	for {
		err := holds()
		if err == nil {
			break
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	if then == nil {
		return nil
	}
	return then()
}

// awaitBy waits until the view says who asked for the newest operation.
func (s *story) awaitBy(ctx context.Context, name string) error {
	return s.until(ctx, func() error {
		out, err := s.quiet(ctx, sandbox.Jane, "get", "credential", credential, "-n", sandbox.TenantAcme)
		if err == nil && !strings.Contains(out, name) {
			err = fmt.Errorf("the view does not say %q", name)
		}
		return err
	}, nil)
}

// storedForm is what the account Secret holds, as only the platform sees it.
func (s *story) storedForm(ctx context.Context) (string, error) {
	secret, err := s.sandbox.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().Secrets(sandbox.TenantAcme).
		Get(ctx, credential+".account", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return string(secret.Data["password"]), nil
}

// ask runs mintlog, which asks the archive.
func (s *story) ask(ctx context.Context, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, s.sandbox.Binary(), arguments...)
	command.Env = append(os.Environ(), "MINTLOG_VICTORIALOGS="+s.sandbox.VictoriaLogsURL())
	out, err := command.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("mintlog %s: %w: %s", strings.Join(arguments, " "), err, out)
	}
	return string(out), err
}
