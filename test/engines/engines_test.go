package engines_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/mint/format"
	"github.com/mintlog/mintlog/test/engines"
)

// running are the engines that tests share, each started by the first that needs it.
var running struct {
	postgresql shared[*engines.PostgreSQL]
	mariadb    shared[*engines.MariaDB]
	clickhouse shared[*engines.ClickHouse]
	redis      shared[*engines.Redis]
	nginx      shared[*engines.Nginx]
}

func TestMain(m *testing.M) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	running.postgresql.start = func() (*engines.PostgreSQL, error) { return engines.StartPostgreSQL(ctx, os.Stderr) }
	running.mariadb.start = func() (*engines.MariaDB, error) { return engines.StartMariaDB(ctx, os.Stderr) }
	running.clickhouse.start = func() (*engines.ClickHouse, error) { return engines.StartClickHouse(ctx, os.Stderr) }
	running.redis.start = func() (*engines.Redis, error) { return engines.StartRedis(ctx, os.Stderr) }
	running.nginx.start = func() (*engines.Nginx, error) { return startGallery(ctx, os.Stderr) }
	code := m.Run()
	for _, stop := range []func() error{
		running.postgresql.stop, running.mariadb.stop, running.clickhouse.stop, running.redis.stop, running.nginx.stop,
	} {
		if err := stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// A shared engine is started once.
type shared[E engines.Engine] struct {
	once   sync.Once
	start  func() (E, error)
	engine E
	err    error
}

// get starts the engine if it does not run yet, and says its version.
func (s *shared[E]) get(t *testing.T) E {
	t.Helper()
	s.once.Do(func() { s.engine, s.err = s.start() })
	require.NoError(t, s.err)
	version, err := s.engine.Version(t.Context())
	require.NoError(t, err)
	t.Logf("%T %s", s.engine, version)
	return s.engine
}

func (s *shared[E]) stop() error {
	idle := false
	s.once.Do(func() { idle = true })
	if idle || s.err != nil {
		return nil
	}
	return s.engine.Stop()
}

func startGallery(ctx context.Context, progress io.Writer) (*engines.Nginx, error) {
	server, err := os.ReadFile(kinds + "gallery/chart/files/site.conf")
	if err != nil {
		return nil, err
	}
	compose, err := os.ReadFile(kinds + "gallery/chart/files/compose.sh")
	if err != nil {
		return nil, err
	}
	return engines.StartNginx(ctx, progress, engines.Site{Server: string(server), Compose: string(compose)})
}

// kinds is where the manifests are that page and tests share.
const kinds = "../../deploy/kinds/"

func TestMariaDBLetsInWhoHasTheNewestPasswordAlone(t *testing.T) {
	proof{
		engine: running.mariadb.get(t), format: "mysql-native", username: "Report.Reader",
		shape: regexp.MustCompile(`^\*[0-9A-F]{40}\z`), verifier: true, rounds: 50,
		mutants: map[string]mutant{
			"a trailing newline": aTrailingNewline, "a hashed newline": aHashedNewline, "lower case": lowerCase,
			"no asterisk": theFirstCutOff, "a digit too few": theLastCutOff, "the hash of the stored form": twice,
			"no hash": func(format.Formatter) format.Formatter { plain, _ := format.Built("plaintext"); return plain },
		},
	}.run(t)
}

// The hash has 41 characters and begins with an asterisk; without it MariaDB refuses the statement, and an operator that
// takes the refusal for a passing failure tries for ever.
func TestAMySQLNativeHashWithoutItsAsteriskIsRefusedByMariaDB(t *testing.T) {
	mariadb := running.mariadb.get(t)
	formatter, ok := format.Built("mysql-native")
	require.True(t, ok)
	stored, err := formatter.Format(rand.Reader, "app", "right")
	require.NoError(t, err)
	require.Regexp(t, `^\*[0-9A-F]{40}\z`, string(stored))
	require.Error(t, mariadb.Apply(t.Context(), "app", string(stored[1:])))
	require.NoError(t, mariadb.Apply(t.Context(), "app", string(stored)))
	require.NoError(t, mariadb.Login(t.Context(), "app", "right"))
}

func TestAUserOfMariaDBThatRefersToNoSecretIsLocked(t *testing.T) {
	mariadb := running.mariadb.get(t)
	require.NoError(t, mariadb.Lock(t.Context(), "locked"))
	for _, password := range []string{"", "any"} {
		require.ErrorIs(t, mariadb.Login(t.Context(), "locked", password), engines.ErrRefused)
	}
}

func TestClickHouseLetsInWhoHasTheNewestPasswordAlone(t *testing.T) {
	proof{
		engine: running.clickhouse.get(t), format: "sha256", username: "report-reader",
		shape: regexp.MustCompile(`^[0-9a-f]{64}\z`), verifier: true, rounds: 20,
		mutants: map[string]mutant{
			"a trailing newline": aTrailingNewline, "a hashed newline": aHashedNewline, "upper case": upperCase,
			"a digit too few": theLastCutOff, "the hash of the stored form": twice,
		},
	}.run(t)
}

// A trailing newline that is hashed makes a password that nobody can type, and hex that is none has crashed servers:
// this one passes such a file over and goes on with what it knew, so that a revoked password would go on working.
func TestAUsersFileHoldsSixtyFourLowerCaseHexDigitsAndNoLineEnd(t *testing.T) {
	clickhouse := running.clickhouse.get(t)
	formatter, ok := format.Built("sha256")
	require.True(t, ok)
	for range 10_000 {
		password, err := format.NewPassword(rand.Reader)
		require.NoError(t, err)
		stored, err := formatter.Format(rand.Reader, "app", password)
		require.NoError(t, err)
		require.True(t, regexp.MustCompile(`^[0-9a-f]{64}\z`).Match(stored))
	}
	for _, password := range []string{"right", "right\n", " right", "ª"} {
		stored, err := formatter.Format(rand.Reader, "app", password)
		require.NoError(t, err)
		require.NoError(t, clickhouse.Apply(t.Context(), "app", string(stored)))
		require.NoError(t, clickhouse.Login(t.Context(), "app", password), "%q", password)
		require.ErrorIs(t, clickhouse.Login(t.Context(), "app", strings.TrimSpace(password)+"\n\n"), engines.ErrRefused)
	}
	_ = clickhouse.Apply(t.Context(), "app", strings.Repeat("z", 64))
	require.ErrorIs(t, clickhouse.Login(t.Context(), "app", strings.Repeat("z", 64)), engines.ErrRefused)
	require.NoError(t, clickhouse.Apply(t.Context(), "other", fmt.Sprintf("%x", bytes.Repeat([]byte{1}, 32))), "the server still runs")
}

func TestRedisLetsInWhoHasTheNewestPasswordAlone(t *testing.T) {
	proof{
		engine: running.redis.get(t), format: "plaintext", username: "default",
		shape: regexp.MustCompile(`^[A-Za-z0-9]{32}\z`), rounds: 5,
		mutants: map[string]mutant{
			"a trailing newline": aTrailingNewline, "a character too few": theLastCutOff, "another case": upperCase,
			"a hash": func(format.Formatter) format.Formatter { sha256, _ := format.Built("sha256"); return sha256 },
		},
	}.run(t)
}

func TestNginxLetsInWhoHasTheNewestPasswordAloneWithAPR1(t *testing.T) {
	proof{
		engine: running.nginx.get(t), format: "apr1", username: "Report.Reader",
		shape: regexp.MustCompile(`^\$apr1\$[./0-9A-Za-z]{8}\$[./0-9A-Za-z]{22}\z`), salted: true, verifier: true, rounds: 50,
		mutants: map[string]mutant{
			"a trailing newline": aTrailingNewline, "a hashed newline": aHashedNewline, "the same salt": sameSalt,
			"the magic of crypt": replaced("$apr1$", "$1$"), "another salt than was hashed": of(func(stored string) string {
				return stored[:6] + "abcdefgh" + stored[14:]
			}), "no magic": replaced("$apr1$", ""), "the hash of the stored form": twice,
		},
	}.run(t)
}

// Debian's nginx asks crypt(3), which here is libxcrypt's and knows bcrypt under all three of its names.
func TestNginxLetsInWhoHasTheNewestPasswordAloneWithBcrypt(t *testing.T) {
	proof{
		engine: running.nginx.get(t), format: "bcrypt", username: "Report.Reader",
		shape: regexp.MustCompile(`^\$2a\$10\$[./0-9A-Za-z]{53}\z`), salted: true, verifier: true, rounds: 2,
		mutants: map[string]mutant{
			"a trailing newline": aTrailingNewline, "a hashed newline": aHashedNewline,
			"another cost than was hashed": replaced("$10$", "$09$"), "the last character cut off": theLastCutOff,
		},
	}.run(t)
}

func TestNginxOfDebianTakesBcryptUnderEachOfItsNames(t *testing.T) {
	nginx := running.nginx.get(t)
	formatter, ok := format.Built("bcrypt")
	require.True(t, ok)
	stored, err := formatter.Format(rand.Reader, "app", "right")
	require.NoError(t, err)
	require.True(t, bytes.HasPrefix(stored, []byte("$2a$")))
	for _, name := range []string{"$2a$", "$2b$", "$2y$"} {
		require.NoError(t, nginx.Apply(t.Context(), "app", name+string(stored[4:])))
		require.NoError(t, nginx.Login(t.Context(), "app", "right"), name)
		require.ErrorIs(t, nginx.Login(t.Context(), "app", "wrong"), engines.ErrRefused, name)
	}
}

// bcrypt reads 72 bytes: of a longer password the rest would be checked by nobody, so the format refuses it.
func TestAPasswordThatBcryptWouldCutOffIsRefused(t *testing.T) {
	nginx := running.nginx.get(t)
	formatter, ok := format.Built("bcrypt")
	require.True(t, ok)
	longest := strings.Repeat("é", 36)
	stored, err := formatter.Format(rand.Reader, "app", longest)
	require.NoError(t, err)
	require.NoError(t, nginx.Apply(t.Context(), "app", string(stored)))
	require.NoError(t, nginx.Login(t.Context(), "app", longest))
	require.ErrorIs(t, nginx.Login(t.Context(), "app", longest[:70]), engines.ErrRefused)
	require.NoError(t, nginx.Login(t.Context(), "app", longest+"and more"), "what the refusal is for")
	_, err = formatter.Format(rand.Reader, "app", longest+"x")
	require.Error(t, err)
	require.NotContains(t, err.Error(), "é")
}

func TestAVisitorWhoseSecretIsGoneIsNotLetIn(t *testing.T) {
	nginx := running.nginx.get(t)
	formatter, ok := format.Built("apr1")
	require.True(t, ok)
	for _, username := range []string{"app", "other"} {
		stored, err := formatter.Format(rand.Reader, username, "right")
		require.NoError(t, err)
		require.NoError(t, nginx.Apply(t.Context(), username, string(stored)))
	}
	require.NoError(t, nginx.Login(t.Context(), "app", "right"))
	require.NoError(t, nginx.Apply(t.Context(), "app", ""), "an empty Secret")
	for _, password := range []string{"", "right"} {
		require.ErrorIs(t, nginx.Login(t.Context(), "app", password), engines.ErrRefused)
	}
	require.NoError(t, nginx.Login(t.Context(), "other", "right"), "another")
	require.NoError(t, nginx.Mount(t.Context(), nil))
	require.ErrorIs(t, nginx.Login(t.Context(), "other", "right"), engines.ErrRefused)
}

func TestAnEngineThatIsStoppedLeavesNothing(t *testing.T) {
	redis, err := engines.StartRedis(t.Context(), os.Stderr)
	require.NoError(t, err)
	require.NoError(t, redis.Stop())
	require.NoError(t, redis.Stop(), "a second time")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = redis.Login(ctx, "default", "any")
	require.Error(t, err)
	require.NotErrorIs(t, err, engines.ErrRefused, "a server that is gone refuses nobody")
}
