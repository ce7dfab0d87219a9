// Package postgres runs a real PostgreSQL server for the demo and the tests: on loopback, at a free port, with SCRAM
// as the only way in over TCP. It stores what it is given as a password, as a database operator does, so that a stored
// form is judged by PostgreSQL itself.
package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/mintlog/mintlog/test/debian"
	"github.com/mintlog/mintlog/test/sandbox/process"
)

const (
	host      = "127.0.0.1"
	superuser = "postgres"
	database  = "postgres"
)

// A Postgres is a running server.
type Postgres struct {
	programs   string // the folder of initdb, postgres and psql
	directory  string
	temporary  *process.Directory // nil: the directory was given
	port       string
	password   string              // of the superuser
	credential *syscall.Credential // of the user that owns the data; nil: ours
	server     *process.Process
	stop       sync.Once
}

// Start finds PostgreSQL on this machine, or on Debian as root installs Debian's, and starts it with its data in a new
// folder of the directory; empty: a temporary one, which Stop removes. As root the server runs as an unprivileged user:
// a directory that others cannot enter is passed over for a temporary one. Progress goes to progress, a line each; nil:
// nowhere. The server ends with Stop, with the context and with this process.
func Start(ctx context.Context, directory string, progress io.Writer) (*Postgres, error) {
	if progress == nil {
		progress = io.Discard
	}
	programs, err := find(ctx, progress)
	if err != nil {
		return nil, err
	}
	if os.Getuid() == 0 && !othersEnter(directory) {
		directory = ""
	}
	p := &Postgres{programs: programs}
	if directory == "" {
		if p.temporary, err = process.NewDirectory("mintlog-postgres-"); err != nil {
			return nil, err
		}
		p.directory = p.temporary.Path
	} else if p.directory, err = os.MkdirTemp(directory, "postgres-"); err != nil {
		return nil, err
	}
	if err := p.prepare(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("preparing PostgreSQL's data: %w", err), p.Stop())
	}
	if err := p.serve(ctx); err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	context.AfterFunc(ctx, func() { _ = p.Stop() })
	return p, nil
}

// othersEnter says whether any user may enter a folder.
func othersEnter(folder string) bool {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return false
	}
	for {
		info, err := os.Stat(folder)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if folder == filepath.Dir(folder) {
			return true
		}
		folder = filepath.Dir(folder)
	}
}

// prepare makes the data directory. PostgreSQL refuses to run as root: then it belongs to an unprivileged user.
func (p *Postgres) prepare(ctx context.Context) error {
	var err error
	if p.credential, err = debian.Unprivileged("postgres"); err != nil {
		return err
	}
	p.password = rand.Text()
	passwordFile := filepath.Join(p.directory, "password")
	if err := os.WriteFile(passwordFile, []byte(p.password+"\n"), 0o600); err != nil {
		return err
	}
	for _, path := range []string{p.directory, passwordFile} {
		if p.credential == nil {
			break
		}
		if err := os.Chown(path, int(p.credential.Uid), int(p.credential.Gid)); err != nil {
			return err
		}
	}
	initdb := exec.CommandContext(ctx, filepath.Join(p.programs, "initdb"), "--pgdata="+p.data(), "--username="+superuser,
		"--pwfile="+passwordFile, "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-instructions")
	initdb.Dir = "/"
	initdb.SysProcAttr = &syscall.SysProcAttr{Credential: p.credential}
	if output, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, lastLines(output))
	}
	return os.Remove(passwordFile)
}

func (p *Postgres) serve(ctx context.Context) error {
	address, err := process.FreeAddress()
	if err != nil {
		return err
	}
	if _, p.port, err = net.SplitHostPort(address); err != nil {
		return err
	}
	p.server, err = process.Start(ctx, process.Options{
		Name:      "PostgreSQL",
		Path:      filepath.Join(p.programs, "postgres"),
		Directory: "/",
		Arguments: []string{
			"-D", p.data(),
			"-c", "listen_addresses=" + host,
			"-c", "port=" + p.port,
			"-c", "unix_socket_directories=", // their paths may be no longer than 107 bytes
			"-c", "fsync=off",
			"-c", "log_min_error_statement=panic", // a statement may hold a password
		},
		LogFile: p.LogFile(),
		Ready: func(ctx context.Context) error {
			_, err := p.query(ctx, superuser, p.password, "SELECT 1")
			return err
		},
		StopSignal:  syscall.SIGINT,  // do not wait for clients
		DeathSignal: syscall.SIGQUIT, // at once, with its children
		Credential:  p.credential,
	})
	return err
}

// Stop ends the server and removes its directory if Start made a temporary one. A second call does nothing.
func (p *Postgres) Stop() error {
	var err error
	p.stop.Do(func() {
		if p.server != nil {
			err = p.server.Stop()
		}
		if p.temporary != nil {
			err = errors.Join(err, p.temporary.Remove())
		}
	})
	return err
}

// A Role is a role with its password, or with what is stored for it.
type Role struct{ Name, Password string }

// SetPassword stores a password as a database operator does: as it is, whatever form it has. PostgreSQL takes what it
// knows as a verifier for one, and hashes anything else. The role is made at its first use.
func (p *Postgres) SetPassword(ctx context.Context, role, stored string) error {
	if err := p.SetPasswords(ctx, []Role{{role, stored}}); err != nil {
		return fmt.Errorf("setting the password of the role %s: %w", role, err)
	}
	return nil
}

// SetPasswords is SetPassword for many roles, all sent at once, in one transaction.
func (p *Postgres) SetPasswords(ctx context.Context, roles []Role) error {
	var names []string
	var alter strings.Builder
	for _, role := range roles {
		if strings.ContainsRune(role.Name+role.Password, 0) {
			return errors.New("neither a role nor a password may hold a NUL")
		}
		names = append(names, literal(role.Name))
		fmt.Fprintf(&alter, "ALTER ROLE %s PASSWORD %s\\;\n", identifier(role.Name), literal(role.Password))
	}
	_, err := p.query(ctx, superuser, p.password, fmt.Sprintf(`BEGIN;
SELECT format('CREATE ROLE %%I LOGIN', name) FROM unnest(ARRAY[%s]) AS name EXCEPT SELECT format('CREATE ROLE %%I LOGIN', rolname) FROM pg_roles \gexec
%sCOMMIT;
`, strings.Join(names, ", "), alter.String()))
	return err
}

// Query runs statements as the superuser and returns what they print: a line each row, columns separated by "|". Of an
// error only its message is shown, which may quote a name, never the statement.
func (p *Postgres) Query(ctx context.Context, statements string) (string, error) {
	return p.query(ctx, superuser, p.password, statements)
}

// ErrRefused is returned by Login where PostgreSQL says that the password is wrong.
var ErrRefused = errors.New("password authentication failed")

// Login logs in with libpq, over TCP, and returns nil if PostgreSQL let the role in.
func (p *Postgres) Login(ctx context.Context, role, password string) error {
	who, err := p.query(ctx, role, password, "SELECT current_user;\n")
	if err != nil && strings.Contains(err.Error(), ErrRefused.Error()) {
		return fmt.Errorf("logging in as %s: %w", role, ErrRefused)
	}
	if err != nil {
		return fmt.Errorf("logging in as %s: %w", role, err)
	}
	if who != role {
		return fmt.Errorf("logged in as %s, and PostgreSQL says it is %s", role, who)
	}
	return nil
}

// Logins is Login for many roles, one after the other. It tells for each whether it was let in; the error is one of
// another kind than a wrong password.
func (p *Postgres) Logins(ctx context.Context, roles []Role) ([]bool, error) {
	let := make([]bool, len(roles))
	for next := 0; next < len(roles); {
		in, err := p.loginsUntilOneFails(ctx, roles[next:min(len(roles), next+100)])
		if err != nil {
			return nil, err
		}
		for range in {
			let[next] = true
			next++
		}
		if in == 0 { // its first is the one that fails
			if err := p.Login(ctx, roles[next].Name, roles[next].Password); !errors.Is(err, ErrRefused) {
				return nil, fmt.Errorf("a login that failed and is tried again: %w", err)
			}
			next++
		}
	}
	return let, nil
}

// loginsUntilOneFails logs in with one psql, which ends at the first connection that fails, and counts the logins.
func (p *Postgres) loginsUntilOneFails(ctx context.Context, roles []Role) (int, error) {
	var script strings.Builder
	for i, role := range roles {
		if strings.ContainsAny(role.Name+role.Password, "\x00\n\r") {
			return 0, errors.New("neither a role nor a password may hold a NUL or a line end here")
		}
		fmt.Fprintf(&script, `\setenv PGUSER %s
\setenv PGPASSWORD %s
\connect -reuse-previous=off "host=%s"
SELECT '%d of ' || current_user;
`, argument(role.Name), argument(role.Password), host, i)
	}
	psql := p.psql(ctx, roles[0].Name, roles[0].Password, script.String())
	var output strings.Builder
	psql.Stdout = &output
	var exit *exec.ExitError
	if err := psql.Run(); ctx.Err() != nil || err != nil && !errors.As(err, &exit) {
		return 0, fmt.Errorf("psql: %w", errors.Join(ctx.Err(), err))
	}
	in := 0
	for line := range strings.Lines(output.String()) {
		if want := fmt.Sprintf("%d of %s\n", in, roles[in].Name); line != want {
			return 0, fmt.Errorf("PostgreSQL says it let in %q where %q logged in", line, want)
		}
		in++
	}
	return in, nil
}

// Version is what PostgreSQL calls itself, such as "15.13".
func (p *Postgres) Version(ctx context.Context) (string, error) {
	return p.query(ctx, superuser, p.password, "SHOW server_version;\n")
}

// LogFile is the path of the server's log.
func (p *Postgres) LogFile() string { return filepath.Join(p.directory, "postgres.log") }

// Programs is the folder of PostgreSQL's programs: initdb, postgres, psql.
func (p *Postgres) Programs() string { return p.programs }

// Address is the host and port.
func (p *Postgres) Address() string { return net.JoinHostPort(host, p.port) }

// query runs statements with psql. They go in at standard input and the password through the environment, which
// nobody else on the machine sees, as they would a command line.
func (p *Postgres) query(ctx context.Context, role, password, statements string) (string, error) {
	psql := p.psql(ctx, role, password, statements)
	var output, complaint strings.Builder
	psql.Stdout, psql.Stderr = &output, &complaint
	if err := psql.Run(); err != nil {
		return "", fmt.Errorf("psql: %w: %s", err, strings.TrimSpace(complaint.String()))
	}
	return strings.TrimSpace(output.String()), nil
}

func (p *Postgres) psql(ctx context.Context, role, password, script string) *exec.Cmd {
	psql := exec.CommandContext(ctx, filepath.Join(p.programs, "psql"), "--no-psqlrc", "--no-password", "--tuples-only",
		"--no-align", "--quiet", "--set=ON_ERROR_STOP=1", "--set=VERBOSITY=terse")
	psql.Dir = "/"
	psql.Env = append(p.environment(role, password), "PATH="+os.Getenv("PATH"))
	psql.Stdin = strings.NewReader(script)
	return psql
}

// Environment makes libpq connect as the superuser.
func (p *Postgres) Environment() []string { return p.environment(superuser, p.password) }

func (p *Postgres) environment(role, password string) []string {
	return []string{
		"LC_ALL=C", "PGCONNECT_TIMEOUT=60", "PGSSLMODE=disable",
		"PGHOST=" + host, "PGPORT=" + p.port, "PGDATABASE=" + database, "PGUSER=" + role, "PGPASSWORD=" + password,
	}
}

func (p *Postgres) data() string { return filepath.Join(p.directory, "data") }

func identifier(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func literal(text string) string { return `'` + strings.ReplaceAll(text, `'`, `''`) + `'` }

// argument quotes an argument of a command of psql.
func argument(text string) string {
	return `'` + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(text) + `'`
}

func lastLines(output []byte) string {
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}
