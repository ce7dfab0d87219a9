package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/mint/format"
	"github.com/mintlog/mintlog/test/engines"
	"github.com/mintlog/mintlog/test/postgres"
	"github.com/mintlog/mintlog/test/sandbox/process"
)

// The engines of these tests are started once, at their first use, and end with the tests.
var (
	ending, end   = context.WithCancel(context.Background())
	realPostgres  = sync.OnceValues(func() (*postgres.Postgres, error) { return startPostgres(ending) })
	realMariaDB   = sync.OnceValues(func() (*engines.MariaDB, error) { return engines.StartMariaDB(ending, os.Stderr) })
	engineStopped []func() error
	certificate   = sync.OnceValues(newCertificate)
)

func TestMain(m *testing.M) {
	code := m.Run()
	for _, stop := range engineStopped {
		if err := stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	end()
	os.Exit(code)
}

// certified is the name in the certificate of the tests' PostgreSQL.
const certified = "orders-rw.tenant-acme.svc"

// A pair is a certificate that trusts itself, and its key, in PEM.
type pair struct{ certificate, key []byte }

func newCertificate() (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: certified}, DNSNames: []string{certified},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return pair{}, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return pair{}, err
	}
	return pair{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}, nil
}

// startPostgres starts PostgreSQL with TLS. It writes its certificate and key itself, as its own user.
func startPostgres(ctx context.Context) (*postgres.Postgres, error) {
	p, err := postgres.Start(ctx, "", os.Stderr)
	if err != nil {
		return nil, err
	}
	engineStopped = append(engineStopped, p.Stop)
	both, err := certificate()
	if err != nil {
		return nil, err
	}
	write := func(name string, text []byte) string {
		return fmt.Sprintf("COPY (SELECT unnest(string_to_array('%s', E'\\n'))) TO PROGRAM 'umask 077; cat > %s';\n", strings.TrimSpace(string(text)), name)
	}
	_, err = p.Query(ctx, write("tls.crt", both.certificate)+write("tls.key", both.key)+
		"ALTER SYSTEM SET ssl_cert_file = 'tls.crt';\nALTER SYSTEM SET ssl_key_file = 'tls.key';\nALTER SYSTEM SET ssl = on;\nSELECT pg_reload_conf();\n")
	return p, err
}

// running are both engines, and what each is called by its credential.
func running(t *testing.T) (*postgres.Postgres, *engines.MariaDB) {
	p, err := realPostgres()
	require.NoError(t, err)
	m, err := realMariaDB()
	require.NoError(t, err)
	return p, m
}

// stored is a password as an engine keeps it.
func stored(t *testing.T, name, username, password string) string {
	formatter, known := format.Built(name)
	require.True(t, known)
	text, err := formatter.Format(rand.Reader, username, password)
	require.NoError(t, err)
	return string(text)
}

// waits waits for a login of the user with a password on standard input.
func waits(t *testing.T, kind, username, password string, args ...string) <-chan result {
	done, _ := waitsAloud(t, kind, username, password, args...)
	return done
}

// waitsAloud is waits, with what it says meanwhile on standard error.
func waitsAloud(t *testing.T, kind, username, password string, args ...string) (<-chan result, *lockedBuffer) {
	s := newServer(t)
	c := credential()
	c.Spec.Application.Kind, c.Spec.Username = kind, username
	c.Status.Password.Waiting = "the HelmRelease is suspended"
	s.answers["GET "+app] = sends(200, c)
	s.login(t)
	done := make(chan result, 1)
	var out lockedBuffer
	errOut := &lockedBuffer{}
	where := terminal{in: strings.NewReader(password + "\n"), out: &out, err: io.MultiWriter(errOut, t.Output()), now: time.Now}
	go func() {
		code := run(context.WithoutCancel(t.Context()), append([]string{"wait", "postgres-orders.app", "--for=login"}, args...), where)
		done <- result{code, out.String(), errOut.String()}
	}()
	return done, errOut
}

func TestAWaitEndsWhenTheEngineHasAppliedThePassword(t *testing.T) {
	p, m := running(t)
	f := func(kind, address string, apply func(password string), args ...string) {
		t.Helper()
		apply("the-one-before-0123")
		done, said := waitsAloud(t, kind, "late", made, append(args, "--address", address)...)
		require.Eventually(t, func() bool { return strings.Contains(said.String(), "refuses the password") }, time.Minute, 5*time.Millisecond)
		apply(made)
		r := <-done
		assert.Equal(t, exitOK, r.code, r.err)
		assert.Equal(t, "postgres-orders.app: "+address+" lets late in\n", r.out)
		assert.Contains(t, r.err, "Waiting: the engine refuses the password: it has not applied it yet, or it is another one.\n")
		assert.NotContains(t, r.err, made)
	}
	f("Postgres", p.Address(), func(password string) {
		require.NoError(t, p.SetPassword(t.Context(), "late", stored(t, "scram-sha-256", "late", password)))
	}, "--tls=disable")
	f("MariaDB", m.Address(), func(password string) {
		require.NoError(t, m.Apply(t.Context(), "late", stored(t, "mysql-native", "late", password)))
	}, "--tls=disable")
}

func TestAWrongPasswordARefusedConnectionAndTLSAreToldApart(t *testing.T) {
	p, m := running(t)
	require.NoError(t, p.SetPassword(t.Context(), "app", stored(t, "scram-sha-256", "app", made)))
	require.NoError(t, m.Apply(t.Context(), "app", stored(t, "mysql-native", "app", made)))
	both, err := certificate()
	require.NoError(t, err)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(ca, both.certificate, 0o600))
	noCA := filepath.Join(t.TempDir(), "no.crt")
	require.NoError(t, os.WriteFile(noCA, []byte("no"), 0o600))
	f := func(code int, want, kind, address, password string, args ...string) {
		t.Helper()
		limit := "--timeout=1m"
		if code == exitTime {
			limit = "--timeout=3s"
		}
		r := <-waits(t, kind, "app", password, append(args, "--address", address, limit)...)
		assert.Equal(t, code, r.code, r.err)
		assert.Contains(t, r.err+r.out, want)
		assert.NotContains(t, r.err+r.out, password)
		if code != exitOK {
			assert.Empty(t, r.out)
		}
	}
	f(exitOK, "lets app in", "Postgres", p.Address(), made, "--tls=require")
	f(exitOK, "lets app in", "Postgres", p.Address(), made, "--tls-ca", ca, "--tls-name", certified)
	f(exitOK, "lets app in", "Postgres", p.Address(), made, "--tls=disable", "--database=none")
	f(exitOther, "valid for "+certified+", not elsewhere", "Postgres", p.Address(), made, "--tls-ca", ca, "--tls-name", "elsewhere")
	f(exitOther, "TLS with "+p.Address()+" fails", "Postgres", p.Address(), made, "--tls-ca", ca)
	f(exitOther, "unknown authority", "Postgres", p.Address(), made, "--tls-name", certified)
	f(exitUsage, "holds no certificate", "Postgres", p.Address(), made, "--tls-ca", noCA)
	f(exitTime, "the engine refuses the password", "Postgres", p.Address(), "wrong-one", "--tls=require")
	f(exitTime, "The password waits: the HelmRelease is suspended.\nIf somebody has minted", "Postgres", p.Address(), "wrong-one", "--tls=disable")
	f(exitTime, "refuses connections", "Postgres", closed(t), made)
	for _, address := range []string{"h:port", "[::1", "::1]", "[]", "tcp://h"} {
		f(exitUsage, "neither HOST nor HOST:PORT", "Postgres", address, made)
	}

	f(exitOK, "lets app in", "MariaDB", m.Address(), made, "--tls=disable", "--database=none")
	f(exitTime, "the engine refuses the password", "MariaDB", m.Address(), "wrong-one", "--tls=disable")
	f(exitOther, "TLS with "+m.Address()+" fails", "MariaDB", m.Address(), made)
	f(exitTime, "refuses connections", "MariaDB", closed(t), made)
	require.NoError(t, m.Lock(t.Context(), "locked"))
	r := <-waits(t, "MariaDB", "locked", made, "--address", m.Address(), "--tls=disable", "--timeout=1s")
	assert.Equal(t, exitTime, r.code)
}

// closed is an address at which nobody listens.
func closed(t *testing.T) string {
	address, err := process.FreeAddress()
	require.NoError(t, err)
	return address
}

// An engine that asks for the password in clear text could be anybody, and one that lets everybody in says nothing of the
// password.
func TestAnEngineThatWantsThePasswordItselfOrNoneIsNotLoggedInTo(t *testing.T) {
	f := func(request string) {
		t.Helper()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer listener.Close()
		var told lockedBuffer
		go func() {
			for {
				connection, err := listener.Accept()
				if err != nil {
					return
				}
				startup := make([]byte, 1024)
				_, _ = connection.Read(startup)
				_, _ = io.WriteString(connection, request)
				_ = connection.SetReadDeadline(time.Now().Add(time.Second))
				_, _ = io.Copy(&told, connection)
				connection.Close()
			}
		}()
		r := <-waits(t, "Postgres", "app", made, "--address", listener.Addr().String(), "--tls=disable", "--timeout=1m")
		assert.Equal(t, exitOther, r.code, r.err)
		assert.Contains(t, r.err, "not safe")
		assert.NotContains(t, told.String(), made)
	}
	f("R\x00\x00\x00\x08\x00\x00\x00\x03")                                                                    // clear text
	f("R\x00\x00\x00\x0c\x00\x00\x00\x05salt")                                                                // MD5
	f("R\x00\x00\x00\x08\x00\x00\x00\x00K\x00\x00\x00\x0c\x00\x00\x00\x01\x00\x00\x00\x01Z\x00\x00\x00\x05I") // let in
}

func TestPsqlReadsBackWhatPgpassAndURIWrite(t *testing.T) {
	p, _ := running(t)
	host, port, err := net.SplitHostPort(p.Address())
	require.NoError(t, err)
	number, err := net.LookupPort("tcp", port)
	require.NoError(t, err)
	for _, name := range difficult {
		require.NoError(t, p.SetPassword(t.Context(), name, "p"+name))
		f := form{host: host, port: uint16(number), database: "postgres", scheme: "postgresql"}
		says := func(environment []string, arguments ...string) {
			t.Helper()
			psql := exec.CommandContext(t.Context(), filepath.Join(p.Programs(), "psql"), append([]string{"-XAtwc", "SELECT current_user"}, arguments...)...)
			psql.Env = append(environment, "PATH="+os.Getenv("PATH"), "PGSSLMODE=disable", "LC_ALL=C.UTF-8")
			out, err := psql.CombinedOutput()
			require.NoError(t, err, "%s: %s", name, out)
			assert.Equal(t, name, strings.TrimSuffix(string(out), "\n"))
		}
		f.name = "pgpass"
		text, err := f.write(call{}, answered(name, "p"+name))
		require.NoError(t, err)
		file := filepath.Join(t.TempDir(), "pgpass")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		says([]string{"PGPASSFILE=" + file, "PGHOST=" + host, "PGPORT=" + port, "PGDATABASE=postgres", "PGUSER=" + name})
		f.name = "uri"
		text, err = f.write(call{}, answered(name, "p"+name))
		require.NoError(t, err)
		says([]string{"PGPASSFILE=/dev/null"}, "-d", strings.TrimSpace(text))
	}
}
