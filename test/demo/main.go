// Command demo runs the main job on real servers and tells it step by step: a tenant's admin mints a password, logs in
// to a real PostgreSQL with it, and reads in the credential view that she did it; and what is done past it is found.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/mintlog/mintlog/test/debian"
	"github.com/mintlog/mintlog/test/postgres"
	"github.com/mintlog/mintlog/test/sandbox"
)

const credential = "postgres-orders.app"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := tell(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "\nthe demo failed:", err)
		os.Exit(1)
	}
}

// tell tells the story and stops everything, however it ends.
func tell(ctx context.Context) (err error) {
	s := &story{out: os.Stdout}
	defer func() { err = errors.Join(err, s.close()) }()
	s.introduce()
	for _, step := range []struct {
		title string
		tell  func(context.Context) error
	}{
		{"The servers: etcd, two kube-apiservers with an audit log each, VictoriaLogs, PostgreSQL, mintlog", s.start},
		{"The accounts of the application orders: nobody has a password yet", s.notIssued},
		{"Jane, admin of tenant-acme, asks for a password and sees it once", s.janeMints},
		{"She logs in to PostgreSQL with it", s.janeLogsIn},
		{"The credential view names her, out of kube-apiserver's audit log and from nowhere else", s.viewNamesJane},
		{"Root, admin of the parent tenant, mints on her behalf: both are shown", s.rootMints},
		{"Ivan may look, and not mint", s.ivanIsRefused},
		{"Jane revokes: the password that worked a moment ago does not", s.janeRevokes},
		{"An administrator cannot write a password past all this, and who breaks the glass for it is found", s.byHand},
		{"The archive answers an SRE: who rotated what?", s.whoRotated},
	} {
		if err := s.step(ctx, step.title, step.tell); err != nil {
			return fmt.Errorf("%s: %w", step.title, err)
		}
	}
	s.times()
	s.goOn()
	return nil
}

func (s *story) start(ctx context.Context) error {
	var err error
	if s.sandbox, err = sandbox.Start(ctx, sandbox.Options{Log: s.out}); err != nil {
		return err
	}
	s.postgres, err = postgres.Start(ctx, "", s.out)
	switch {
	case errors.Is(err, debian.ErrMissing):
		s.note("no PostgreSQL here (%v): the SCRAM exchange is done in its stead", err)
		s.login = scramLogin
	case err != nil:
		return err
	default:
		version, err := s.postgres.Version(ctx)
		if err != nil {
			return err
		}
		s.note("PostgreSQL %s stands at %s", version, s.postgres.Address())
		s.login = s.postgres.Login
	}
	if err := s.startMintlog(ctx); err != nil {
		return err
	}
	s.operator = operate(ctx, s.sandbox, s.apply)
	return nil
}

func (s *story) startMintlog(ctx context.Context) error {
	if _, err := s.sandbox.RunAll(ctx); err != nil {
		return err
	}
	if err := s.sandbox.LayDefinition(ctx); err != nil {
		return err
	}
	if err := s.sandbox.AwaitFirstSight(ctx, "Postgres"); err != nil {
		return err
	}
	s.note("mintlog all serves credentials.cozystack.io, and has seen that the kind Postgres has accounts")
	_, err := s.sandbox.LayRelease(ctx)
	return err
}

func (s *story) notIssued(ctx context.Context) error {
	return s.until(ctx, func() error {
		out, err := s.quiet(ctx, sandbox.Jane, "get", "credentials", "-n", sandbox.TenantAcme)
		if err == nil && strings.Count(out, "NotIssued") != 2 {
			err = errors.New("the two accounts are not there")
		}
		return err
	}, func() error {
		if err := s.sandbox.AwaitServed(ctx, sandbox.TenantAcme, []string{credential}); err != nil {
			return err
		}
		return s.show(ctx, sandbox.Jane, "credentials", "list", "-n", sandbox.TenantAcme)
	})
}

func (s *story) janeMints(ctx context.Context) error {
	var err error
	s.password, err = s.capture(ctx, sandbox.Jane, "password", "credentials", "mint", credential, "-n", sandbox.TenantAcme)
	if err != nil {
		return err
	}
	s.note("the password has %d characters and is in jane's shell alone", len(s.password))
	stored, err := s.storedForm(ctx)
	if err != nil {
		return err
	}
	verifier, _, _ := strings.Cut(stored, ":")
	s.note("what is stored begins with %s: a verifier, from which nobody gets back to the password", verifier)
	return nil
}

func (s *story) janeLogsIn(ctx context.Context) error {
	s.typeLogin()
	if err := s.until(ctx, func() error { return s.login(ctx, "app", s.password) }, nil); err != nil {
		return err
	}
	s.note("she is in: the database's operator had applied the stored form")
	return nil
}

func (s *story) viewNamesJane(ctx context.Context) error {
	if err := s.awaitBy(ctx, "jane"); err != nil {
		return err
	}
	if err := s.show(ctx, sandbox.Jane, "get", "credentials", "-n", sandbox.TenantAcme); err != nil {
		return err
	}
	return s.show(ctx, sandbox.Jane, "credentials", "history", credential, "-n", sandbox.TenantAcme)
}

func (s *story) rootMints(ctx context.Context) error {
	password, err := s.capture(ctx, sandbox.TenantRoot, "password", "credentials", "mint", credential, "-n", sandbox.TenantAcme, "--yes",
		"--as", "jane", "--as-group", "tenant-acme-admin")
	if err != nil {
		return err
	}
	s.password = password
	if err := s.awaitBy(ctx, "through root"); err != nil {
		return err
	}
	return s.show(ctx, sandbox.Jane, "get", "credential", credential, "-n", sandbox.TenantAcme)
}

func (s *story) ivanIsRefused(ctx context.Context) error {
	if err := s.show(ctx, sandbox.Ivan, "credentials", "list", "-n", sandbox.TenantAcme); err != nil {
		return err
	}
	if err := s.show(ctx, sandbox.Ivan, "credentials", "mint", credential, "-n", sandbox.TenantAcme); err == nil {
		return errors.New("ivan was not refused")
	}
	return nil
}

func (s *story) janeRevokes(ctx context.Context) error {
	if err := s.until(ctx, func() error { return s.login(ctx, "app", s.password) }, nil); err != nil {
		return fmt.Errorf("the password that root got does not log in: %w", err)
	}
	if err := s.show(ctx, sandbox.Jane, "credentials", "revoke", credential, "-n", sandbox.TenantAcme, "--yes"); err != nil {
		return err
	}
	s.typeLogin()
	err := s.until(ctx, func() error {
		if s.login(ctx, "app", s.password) == nil {
			return errors.New("the revoked password still logs in")
		}
		return nil
	}, nil)
	if err != nil {
		return err
	}
	s.note("the password is refused")
	return nil
}

// byHand writes the stored password with kubectl: as an administrator, and as one in the break-glass group, which is empty
// where mintlog is installed.
func (s *story) byHand(ctx context.Context) error {
	patch := []string{"patch", "secret", credential + ".account", "-n", sandbox.TenantAcme, "--type", "merge", "-p", `{"stringData": {"password": "chosen-by-hand"}}`}
	if err := s.show(ctx, sandbox.ClusterAdmin, append(patch, "--as", "root-of-all", "--as-group", "system:masters")...); err == nil {
		return errors.New("an administrator was let write a password")
	}
	s.note("cluster-admin himself is in the break-glass group of the admission policies:")
	if err := s.show(ctx, sandbox.ClusterAdmin, patch...); err != nil {
		return err
	}
	return s.until(ctx, func() error {
		out, err := s.quiet(ctx, sandbox.Jane, "credentials", "history", credential, "-n", sandbox.TenantAcme)
		if err == nil && (!strings.Contains(out, "OutOfBand") || !strings.Contains(out, sandbox.ClusterAdmin)) {
			err = errors.New("the view does not say that the password was written past mintlog, and by whom")
		}
		return err
	}, func() error {
		return s.show(ctx, sandbox.Jane, "credentials", "history", credential, "-n", sandbox.TenantAcme)
	})
}

// whoRotated asks what was done, and what was refused.
func (s *story) whoRotated(ctx context.Context) error {
	for _, question := range []struct {
		arguments []string
		answer    []string // the table is whole when it holds these
	}{
		{[]string{"who", "--since", "1h"}, []string{"Mint", "Revoke", "Done", "root"}},
		{[]string{"who", "--since", "1h", "--denied"}, []string{"ivan"}},
	} {
		s.type_("sre", "mintlog "+strings.Join(question.arguments, " "))
		var answer string
		err := s.until(ctx, func() error {
			var err error
			if answer, err = s.ask(ctx, question.arguments...); err != nil {
				return err
			}
			for _, word := range question.answer {
				if !strings.Contains(answer, word) {
					return fmt.Errorf("the archive says nothing of %q", word)
				}
			}
			if question.answer[0] == "Mint" && strings.Count(answer, "Done") != 3 {
				return errors.New("the two mints and the revoke are not all in the archive")
			}
			return nil
		}, nil)
		fmt.Fprintln(s.out, answer)
		if err != nil {
			return err
		}
	}
	return nil
}
