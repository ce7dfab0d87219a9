package engines

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/mintlog/mintlog/test/sandbox/process"
)

// MariaDB is a running MariaDB.
type MariaDB struct {
	*server
	client   string // the path of its client
	port     string
	password string // of root
}

// StartMariaDB starts it. Progress goes to progress, a line each; nil: nowhere.
func StartMariaDB(ctx context.Context, progress io.Writer) (*MariaDB, error) {
	s, programs, err := newServer(ctx, "MariaDB", progress, program{"mariadbd", "mariadb-server-core"},
		program{"mariadb-install-db", "mariadb-server-core"}, program{"mariadb", "mariadb-client-core"})
	if err != nil {
		return nil, err
	}
	m := &MariaDB{server: s, client: programs[2], password: rand.Text()}
	if err := m.install(ctx, programs[1]); err != nil {
		return nil, errors.Join(fmt.Errorf("preparing MariaDB's data: %w", err), m.Stop())
	}
	if err := m.serve(ctx, programs[0]); err != nil {
		return nil, errors.Join(err, m.Stop())
	}
	return m, nil
}

func (m *MariaDB) install(ctx context.Context, program string) error {
	install := exec.CommandContext(ctx, program, "--no-defaults", "--datadir="+m.path("data"),
		"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve")
	install.Dir = m.path()
	install.SysProcAttr = &syscall.SysProcAttr{Credential: m.owner}
	if output, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, output)
	}
	// It is read before the server listens, so root never has an empty password there.
	return m.write("init.sql", "FLUSH PRIVILEGES;\nALTER USER root@localhost IDENTIFIED BY "+quote(m.password)+";\n"+
		"CREATE OR REPLACE USER root@'"+host+"' IDENTIFIED BY "+quote(m.password)+";\nGRANT ALL ON *.* TO root@'"+host+"' WITH GRANT OPTION;\n")
}

func (m *MariaDB) serve(ctx context.Context, program string) error {
	address, err := process.FreeAddress()
	if err != nil {
		return err
	}
	if _, m.port, err = net.SplitHostPort(address); err != nil {
		return err
	}
	return m.start(ctx, process.Options{
		Name: "MariaDB",
		Path: program,
		Arguments: []string{
			"--no-defaults", "--datadir=" + m.path("data"), "--bind-address=" + host, "--port=" + m.port, "--skip-name-resolve",
			"--socket=s", // below the data: a path may have no more than 107 bytes
			"--pid-file=" + m.path("pid"), "--init-file=" + m.path("init.sql"),
			"--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=16M",
		},
		Ready: func(ctx context.Context) error {
			_, err := m.query(ctx, "root", m.password, "SELECT 1;")
			return err
		},
	})
}

// Address is the host and port.
func (m *MariaDB) Address() string { return net.JoinHostPort(host, m.port) }

// Version is what MariaDB calls itself.
func (m *MariaDB) Version(ctx context.Context) (string, error) {
	return m.query(ctx, "root", m.password, "SELECT VERSION();")
}

// Apply sets a user's password as mariadb-operator does for a User with a passwordHashSecretKeyRef.
func (m *MariaDB) Apply(ctx context.Context, username, stored string) error {
	user, identified := quote(username)+"@'%'", " IDENTIFIED BY PASSWORD "+quote(stored)+" WITH MAX_USER_CONNECTIONS 10;\n"
	_, err := m.query(ctx, "root", m.password, "CREATE USER IF NOT EXISTS "+user+identified+"ALTER USER "+user+identified)
	return err
}

// Lock makes a user that nobody can log in as, as mariadb-operator does for a User that refers to no Secret.
func (m *MariaDB) Lock(ctx context.Context, username string) error {
	_, err := m.query(ctx, "root", m.password, "CREATE USER IF NOT EXISTS "+quote(username)+"@'%' WITH MAX_USER_CONNECTIONS 10 ACCOUNT LOCK PASSWORD EXPIRE;")
	return err
}

// Login logs in with MariaDB's own client.
func (m *MariaDB) Login(ctx context.Context, username, password string) error {
	who, err := m.query(ctx, username, password, "SELECT CURRENT_USER();")
	if err != nil {
		return err
	}
	if who != username+"@%" {
		return fmt.Errorf("logged in as %s, and MariaDB says it is %s", username, who)
	}
	return nil
}

// query runs statements. They go in at standard input and the password through the environment.
func (m *MariaDB) query(ctx context.Context, user, password, statements string) (string, error) {
	client := exec.CommandContext(ctx, m.client, "--no-defaults", "--protocol=tcp", "--host="+host, "--port="+m.port,
		"--user="+user, "--batch", "--skip-column-names", "--connect-timeout=60")
	client.Env = []string{"PATH=" + os.Getenv("PATH"), "MYSQL_PWD=" + password}
	client.Stdin = strings.NewReader(statements)
	var output, complaint strings.Builder
	client.Stdout, client.Stderr = &output, &complaint
	err := client.Run()
	if err == nil {
		return strings.TrimSpace(output.String()), nil
	}
	for _, refusal := range []string{"ERROR 1045 ", "ERROR 4151 "} { // the password is wrong; the account is locked
		if strings.HasPrefix(complaint.String(), refusal) {
			return "", fmt.Errorf("%w: MariaDB says %s", ErrRefused, strings.TrimSpace(refusal))
		}
	}
	return "", fmt.Errorf("MariaDB's client: %w: %s", err, lastLine(complaint.String())) // those before quote the statement
}

// quote is text as a literal of SQL.
func quote(text string) string {
	return `'` + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(text) + `'`
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
