package main

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/test/debian"
)

// difficult are user names and passwords that each format has to escape something of.
var difficult = []string{
	"app", "it's", `back\slash`, "co:lon", `quo"te`, "sp ace", "$(reboot)`id`", "pl+us", "per%41cent", "@/?#&=;", "*", "#hash", "Jörg", "'", `\`, `\'`, "a'b'c",
}

func answered(username, password string) v1alpha1.MintStatus {
	return v1alpha1.MintStatus{Username: username, Password: password}
}

func TestAShellReadsBackWhatEnvWrites(t *testing.T) {
	for _, name := range difficult {
		f := form{name: "env", envPrefix: "DB_", host: "h", port: 5432, database: name}
		text, err := f.write(call{}, answered(name, "p"+name))
		require.NoError(t, err)
		shell := exec.CommandContext(t.Context(), "sh", "-uc", text+`printf '%s\n' "$DB_USERNAME" "$DB_PASSWORD" "$DB_HOST" "$DB_PORT" "$DB_DATABASE"`)
		out, err := shell.CombinedOutput()
		require.NoError(t, err, string(out))
		assert.Equal(t, strings.Join([]string{name, "p" + name, "h", "5432", name}, "\n")+"\n", string(out))
	}
}

func TestCurlReadsBackWhatNetrcWrites(t *testing.T) {
	curl, err := debian.NeedProgram(t.Context(), os.Stderr, "curl", "curl")
	require.NoError(t, err)
	var username, password string
	site := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { username, password, _ = r.BasicAuth() }))
	defer site.Close()
	for _, name := range difficult {
		if strings.Contains(name, ":") {
			continue // HTTP's own way to log in cannot have it in a name
		}
		f := form{name: "netrc", host: "127.0.0.1"}
		text, err := f.write(call{}, answered(name, "p"+name))
		require.NoError(t, err)
		file := filepath.Join(t.TempDir(), "netrc")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		out, err := exec.CommandContext(t.Context(), curl, "-sS", "--noproxy", "*", "--netrc-file", file, site.URL).CombinedOutput()
		require.NoError(t, err, string(out))
		assert.Equal(t, []string{name, "p" + name}, []string{username, password})
	}
}

func TestAURIIsReadBackAndHoldsNothingThatItsReadersDisagreeOn(t *testing.T) {
	for _, name := range difficult {
		f := form{name: "uri", scheme: "postgresql", host: "db.example", port: 5432, database: name}
		text, err := f.write(call{}, answered(name, "p"+name))
		require.NoError(t, err)
		assert.Regexp(t, `^postgresql://[A-Za-z0-9._~%-]*:[A-Za-z0-9._~%-]*@db\.example:5432/[A-Za-z0-9._~%-]*\n$`, text)
		got, err := url.Parse(strings.TrimSpace(text))
		require.NoError(t, err)
		password, _ := got.User.Password()
		assert.Equal(t, []string{name, "p" + name, "/" + name}, []string{got.User.Username(), password, got.Path})
	}
	f := func(want string, form form) {
		t.Helper()
		form.name = "uri"
		text, err := form.write(call{}, answered("u", "p"))
		require.NoError(t, err)
		assert.Equal(t, want+"\n", text)
	}
	f("mysql://u:p@h", form{scheme: "mysql", host: "h"})
	f("mysql://u:p@h:3306", form{scheme: "mysql", host: "h", port: 3306})
	f("mysql://u:p@h/d", form{scheme: "mysql", host: "h", database: "d"})
	f("redis://u:p@[::1]", form{scheme: "redis", host: "::1"})
	f("redis://u:p@[::1]:6379", form{scheme: "redis", host: "::1", port: 6379})
	f("redis://u:p@[fe80::1%25eth0]:6379", form{scheme: "redis", host: "fe80::1%eth0", port: 6379})
}

func TestALineOfPgpassSaysAnyForWhatIsNotSaid(t *testing.T) {
	f := func(want string, form form, username string) {
		t.Helper()
		form.name = "pgpass"
		text, err := form.write(call{}, answered(username, "p:w"))
		require.NoError(t, err)
		assert.Equal(t, want+"\n", text)
	}
	f(`*:*:*:app:p\:w`, form{}, "app")
	f(`\:\:1:5432:o\\rders:a\:p:p\:w`, form{host: "::1", port: 5432, database: `o\rders`}, "a:p")
	f(`*:*:\*:\*:p\:w`, form{database: "*"}, "*")
}

func TestAUserNameThatAFormatCannotHoldIsToldBeforeAnythingIsChanged(t *testing.T) {
	f := func(username string, args ...string) {
		t.Helper()
		s := holding(t, "Minted")
		answer := minted()
		answer["status"].(map[string]any)["username"] = username
		s.answers["POST "+app+"/mint"] = sends(201, answer)
		for _, more := range [][]string{{"--yes"}, {"--if-origin=Minted"}, {"--if-id=id-6"}} {
			r := s.command(t, append(append([]string{"mint", "postgres-orders.app"}, args...), more...)...)
			assert.Equal(t, exitOther, r.code)
			assert.Empty(t, r.out)
			assertSafe(t, r.err)
			assert.Contains(t, r.err, "Nothing was changed")
			assert.NotContains(t, r.err, made)
			assert.Empty(t, s.mints())
		}
	}
	f("a\nb", "-o", "pgpass")
	f("a\rb", "-o", "pgpass")
	f("a\nb", "-o", "netrc", "--host=h")
	f("a\tb", "-o", "netrc", "--host=h")
	f("a\x00b", "-o", "env")
	f("a\x00b", "-o", "pgpass")
}

func FuzzAURIHoldsAnyNameAndIsReadBack(f *testing.F) {
	for _, name := range difficult {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		form := form{name: "uri", scheme: "postgresql", host: "h"}
		text, err := form.write(call{}, answered("u"+name, name))
		require.NoError(t, err)
		got, err := url.Parse(strings.TrimSuffix(text, "\n"))
		require.NoError(t, err)
		password, _ := got.User.Password()
		assert.Equal(t, []string{"u" + name, name}, []string{got.User.Username(), password})
	})
}
