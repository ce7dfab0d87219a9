package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/mintlog/mintlog/cmd/printable"
	"github.com/mintlog/mintlog/mint/api/v1alpha1"
)

// The engines that can be logged in to.
const (
	postgresql = "postgresql"
	mariadb    = "mariadb"
)

// The ways to use TLS.
const (
	tlsVerify  = "verify-full" // the certificate is trusted and names the engine
	tlsRequire = "require"     // whoever answers: it keeps out who only listens
	tlsDisable = "disable"
)

var (
	tlsModes     = []string{tlsVerify, tlsRequire, tlsDisable}
	defaultPorts = map[string]string{postgresql: "5432", mariadb: "3306"}
	databases    = map[string]string{postgresql: "postgres", mariadb: ""}
)

// A target is where to log in, as the flags say.
type target struct {
	engine, address, database string
	tlsMode, tlsCA, tlsName   string
}

func (g *target) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&g.address, "address", "", "Where the engine listens, as HOST or HOST:PORT, for --for login.")
	flags.StringVar(&g.engine, "engine", "", "What it is: postgresql or mariadb; told from the credential if absent.")
	flags.StringVar(&g.database, "database", "", "The database to log in to; postgres if absent. One that is not there is no obstacle.")
	flags.StringVar(&g.tlsMode, "tls", tlsVerify, "verify-full: the certificate must be trusted and name the engine; require: any certificate; disable: no TLS.")
	flags.StringVar(&g.tlsCA, "tls-ca", "", "File with the certificates to trust, in PEM; the system's if absent.")
	flags.StringVar(&g.tlsName, "tls-name", "", "The name in the certificate, where it is not the host of --address.")
	_ = cmd.RegisterFlagCompletionFunc("engine", cobra.FixedCompletions([]string{postgresql, mariadb}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("tls", cobra.FixedCompletions(tlsModes, cobra.ShellCompDirectiveNoFileComp))
}

func (g *target) check(cmd *cobra.Command, wanted bool) error {
	if !wanted {
		for _, flag := range []string{"address", "engine", "database", "tls", "tls-ca", "tls-name"} {
			if cmd.Flags().Changed(flag) {
				return usage("--%s means something to --for login only", flag)
			}
		}
		return nil
	}
	switch {
	case g.address == "":
		return usage("--for login needs --address")
	case g.engine != "" && defaultPorts[g.engine] == "":
		return usage("--engine is %q: it is postgresql or mariadb", g.engine)
	case !slices.Contains(tlsModes, g.tlsMode):
		return usage("--tls is %q: it is one of %s", g.tlsMode, strings.Join(tlsModes, ", "))
	case g.tlsMode != tlsVerify && (g.tlsCA != "" || g.tlsName != ""):
		return usage("--tls-ca and --tls-name mean something to --tls verify-full only")
	}
	return nil
}

// An account is one login at one engine.
type account struct {
	engine, host, port, address  string
	username, password, database string
	tls                          *tls.Config // nil: none
}

func (g *target) account(c v1alpha1.Credential, password string) (*account, error) {
	a := &account{engine: g.engine, username: c.Spec.Username, password: password, database: g.database}
	if a.engine == "" {
		a.engine = engineOf(c.Spec)
	}
	if a.engine == "" {
		return nil, usage("%s %s is neither PostgreSQL nor MariaDB by its looks: give --engine",
			printable.Name(c.Spec.Application.Kind), printable.Name(c.Spec.Application.Name))
	}
	if a.database == "" {
		a.database = databases[a.engine]
	}
	var err error
	if a.host, a.port, err = net.SplitHostPort(g.address); err != nil {
		a.host, a.port = g.address, defaultPorts[a.engine]
		if bare, ok := strings.CutPrefix(a.host, "["); ok && strings.HasSuffix(bare, "]") {
			a.host = strings.TrimSuffix(bare, "]")
		}
	}
	if _, err := strconv.ParseUint(a.port, 10, 16); err != nil || a.host == "" || strings.ContainsAny(a.host, "[]/ ") {
		return nil, usage("--address %q is neither HOST nor HOST:PORT", g.address)
	}
	a.address = net.JoinHostPort(a.host, a.port)
	a.tls, err = g.tls(a.host)
	return a, err
}

// engineOf tells an engine from the kind of its application, or from how it stores passwords.
func engineOf(spec v1alpha1.CredentialSpec) string {
	switch strings.ToLower(spec.Application.Kind) {
	case "postgres", "postgresql":
		return postgresql
	case "mariadb", "mysql":
		return mariadb
	}
	return map[string]string{"scram-sha-256": postgresql, "mysql-native": mariadb}[spec.Format]
}

func (g *target) tls(host string) (*tls.Config, error) {
	switch g.tlsMode {
	case tlsDisable:
		return nil, nil
	case tlsRequire:
		return &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}, nil //nolint:gosec // it was asked for
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if g.tlsName != "" {
		config.ServerName = g.tlsName
	}
	if g.tlsCA == "" {
		return config, nil
	}
	text, err := os.ReadFile(g.tlsCA)
	if err != nil {
		return nil, other("", "reading --tls-ca: %w", err)
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(text) {
		return nil, usage("--tls-ca %s holds no certificate in PEM", g.tlsCA)
	}
	return config, nil
}

// A verdict is what an attempt to log in came to.
type verdict int

const (
	letIn    verdict = iota
	notYet           // it may go well the next time
	hopeless         // no time mends it
)

// An outcome is a verdict with its reason, which is safe to print.
type outcome struct {
	verdict verdict
	why     string
}

// login tries once.
func (a *account) login(ctx context.Context) outcome {
	var err error
	if a.engine == postgresql {
		err = a.postgresql(ctx)
	} else {
		err = a.mariadb(ctx)
	}
	return a.judge(err)
}

func (a *account) postgresql(ctx context.Context) error {
	// What the environment's variables for PostgreSQL say is overwritten below.
	config, err := pgconn.ParseConfig("host=localhost sslmode=disable")
	if err != nil {
		return err
	}
	port, _ := strconv.ParseUint(a.port, 10, 16)
	config.Host, config.Port, config.User, config.Password, config.Database = a.host, uint16(port), a.username, a.password, a.database
	config.TLSConfig, config.Fallbacks, config.SSLCertMode, config.SSLNegotiation = a.tls, nil, "disable", "postgres"
	config.RuntimeParams = map[string]string{"application_name": "kubectl-credentials"}
	config.ValidateConnect, config.AfterConnect = nil, nil
	config.RequireAuth, config.ChannelBinding = "scram-sha-256", "prefer"
	connection, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	return connection.Close(ctx)
}

func (a *account) mariadb(ctx context.Context) error {
	config := mysql.NewConfig()
	config.Net, config.Addr, config.User, config.Passwd, config.DBName = "tcp", a.address, a.username, a.password, a.database
	config.TLS, config.Timeout, config.ReadTimeout, config.WriteTimeout = a.tls, attempt, attempt, attempt
	config.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return err
	}
	connection, err := connector.Connect(ctx)
	if err != nil {
		return err
	}
	return connection.Close()
}

// What PostgreSQL and MariaDB answer after they looked at the password and found it right.
var (
	insideSQLStates = []string{"3D000", "42501"} // no such database; no right to connect to it
	insideNumbers   = []uint16{1044, 1049}
)

func (a *account) judge(err error) outcome {
	var server *pgconn.PgError
	var maria *mysql.MySQLError
	switch {
	case err == nil:
		return outcome{letIn, ""}
	case errors.As(err, &server):
		return judgeSQLState(server.Code, server.Message)
	case errors.As(err, &maria):
		return judgeNumber(maria.Number, maria.Message)
	case isTLS(err):
		return outcome{hopeless, "TLS with " + printable.Name(a.address) + " fails: " + innermost(err)}
	case errors.Is(err, mysql.ErrCleartextPassword), errors.Is(err, mysql.ErrOldPassword), errors.Is(err, mysql.ErrUnknownPlugin),
		errors.Is(err, mysql.ErrOldProtocol), strings.Contains(err.Error(), "require_auth"):
		return outcome{hopeless, printable.Name(a.address) + " wants to be logged in to in a way that is not safe, or not known: " + innermost(err)}
	case errors.Is(err, syscall.ECONNREFUSED):
		return outcome{notYet, printable.Name(a.address) + " refuses connections"}
	case errors.Is(err, context.DeadlineExceeded), os.IsTimeout(err):
		return outcome{notYet, printable.Name(a.address) + " does not answer"}
	default:
		return outcome{notYet, printable.Name(a.address) + " cannot be reached: " + innermost(err)}
	}
}

func judgeSQLState(code, message string) outcome {
	switch {
	case slices.Contains(insideSQLStates, code):
		return outcome{letIn, ""}
	case code == "28P01":
		return outcome{notYet, "the engine refuses the password: it has not applied it yet, or it is another one"}
	default:
		return outcome{notYet, fmt.Sprintf("the engine says: %s (SQLSTATE %s)", printable.Escape(message), printable.Escape(code))}
	}
}

func judgeNumber(number uint16, message string) outcome {
	switch {
	case slices.Contains(insideNumbers, number):
		return outcome{letIn, ""}
	case number == 3159: // the engine wants TLS
		return outcome{hopeless, "the engine says: " + printable.Escape(message)}
	case number == 1045:
		return outcome{notYet, "the engine refuses the password: it has not applied it yet, or it is another one"}
	default:
		return outcome{notYet, fmt.Sprintf("the engine says: %s (error %d)", printable.Escape(message), number)}
	}
}

// isTLS reports whether the two could not agree on TLS. A connection that merely ended was cut off, which passes.
func isTLS(err error) bool {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || os.IsTimeout(err) {
		return false
	}
	var untrusted *tls.CertificateVerificationError
	var foreign tls.RecordHeaderError
	var alert tls.AlertError
	return errors.As(err, &untrusted) || errors.As(err, &foreign) || errors.As(err, &alert) || errors.Is(err, mysql.ErrNoTLS) ||
		strings.Contains(err.Error(), "server refused TLS connection") || strings.Contains(err.Error(), "tls error") || strings.Contains(err.Error(), "tls: ")
}

// innermost is what went wrong, without the ways it was reached; of several attempts, the last. No driver puts a password
// in an error.
func innermost(err error) string {
	for {
		next := errors.Unwrap(err)
		if several, ok := err.(interface{ Unwrap() []error }); ok && len(several.Unwrap()) > 0 {
			next = several.Unwrap()[len(several.Unwrap())-1]
		}
		if next == nil {
			return printable.Escape(err.Error())
		}
		err = next
	}
}
