package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
)

// holding is a server whose credential is of an origin, with findings, and lets everybody mint.
func holding(t *testing.T, origin string, findings ...string) *server {
	s := newServer(t)
	c := credential()
	at := at(0)
	c.Status.Password = v1alpha1.PasswordStatus{Origin: origin, Revision: 6, At: &at}
	c.Status.Findings = nil
	for _, f := range findings {
		c.Status.Findings = append(c.Status.Findings, v1alpha1.Finding{Type: f})
	}
	s.answers["GET "+app] = sends(200, c)
	s.answers["POST "+app+"/mint"] = sends(201, minted())
	return s
}

// mints are the mints that were asked for and were no dry run.
func (s *server) mints() []asked {
	var all []asked
	for _, r := range s.requests() {
		if r.method == http.MethodPost && r.query.Get("dryRun") == "" {
			all = append(all, r)
		}
	}
	return all
}

func TestAScriptMintsWithoutBeingAskedWhereNobodyCanBeUsingThePassword(t *testing.T) {
	f := func(origin string, findings ...string) {
		t.Helper()
		s := holding(t, origin, findings...)
		r := s.command(t, "mint", "postgres-orders.app")
		assert.Equal(t, exitOK, r.code, r.err)
		assert.Equal(t, made+"\n", r.out)
		require.Len(t, s.mints(), 1)
		assert.Contains(t, s.mints()[0].body, `"spec":{"preconditions":{"id":"id-6","uid":"uid-1"}}`, "what was read is what is replaced")
	}
	f("NotIssued")
	f("Revoked")
	f("NotIssued", "Unattributed")
}

func TestAScriptThatWouldLockClientsOutIsRefusedUnlessItsFlagsSayWhatItReplaces(t *testing.T) {
	refused := func(origin string, findings ...string) {
		t.Helper()
		s := holding(t, origin, findings...)
		r := s.command(t, "mint", "postgres-orders.app")
		assert.Equal(t, exitUsage, r.code)
		assert.Empty(t, r.out)
		assert.Contains(t, r.err, "give --yes")
		assert.Contains(t, r.err, "locked out")
		assert.Contains(t, r.err, origin)
		assert.Empty(t, s.mints())
	}
	refused("Minted")
	refused("Migrated")
	refused("Unknown")
	refused("NotIssued", "OutOfBand")
	refused("Revoked", "Restored")
	refused("NotIssued", "BrokenLedger")
	allowed := func(args ...string) {
		t.Helper()
		s := holding(t, "Minted")
		r := s.command(t, append([]string{"mint", "postgres-orders.app"}, args...)...)
		assert.Equal(t, exitOK, r.code, r.err)
		assert.Len(t, s.mints(), 1)
	}
	allowed("--yes")
	allowed("-y")
	allowed("--if-id=id-6")
	allowed("--if-revision=6")
	allowed("--if-origin=Minted")
}

func TestWhoeverMayNotMintIsToldSoAndNotAsked(t *testing.T) {
	s := holding(t, "Minted")
	s.answers["POST "+app+"/mint"] = refuses(apierrors.NewForbidden(v1alpha1.Resource("credentials"), "postgres-orders.app", errors.New("no rule")))
	r := s.command(t, "mint", "postgres-orders.app")
	assert.Equal(t, exitRefused, r.code)
	assert.Contains(t, r.err, "--subresource=mint")
	assert.Empty(t, s.mints())
}

func TestWhoeverMayMintAndNotReadSaysThatItMayReplaceAPassword(t *testing.T) {
	s := holding(t, "NotIssued")
	s.answers["GET "+app] = refuses(apierrors.NewForbidden(v1alpha1.Resource("credentials"), "postgres-orders.app", errors.New("no rule")))
	assert.Equal(t, exitUsage, s.command(t, "mint", "postgres-orders.app").code)
	assert.Empty(t, s.mints())
	assert.Equal(t, exitOK, s.command(t, "mint", "postgres-orders.app", "--yes").code)
	assert.Len(t, s.mints(), 1)
}

func TestOnATerminalTheQuestionSaysWhatBreaksAndTheAnswerHoldsForWhatWasShown(t *testing.T) {
	f := func(answer string, confirmed bool) {
		t.Helper()
		s := holding(t, "Minted")
		r := s.onTerminal(t, terminal{in: strings.NewReader(answer), interactive: true}, "mint", "postgres-orders.app")
		assert.Contains(t, r.err, "Its present password (Minted, 0s ago) may be in use. Clients that use it are locked out once the engine has applied a new one.\n"+
			"Mint a new password for postgres-orders.app in tenant-acme? [y/N] ")
		if confirmed {
			assert.Equal(t, made+"\n", r.out)
			require.Len(t, s.mints(), 1)
			assert.Contains(t, s.mints()[0].body, `{"id":"id-6","uid":"uid-1"}`)
		} else {
			assert.Equal(t, exitOther, r.code)
			assert.Empty(t, r.out)
			assert.Empty(t, s.mints())
		}
	}
	f("y\n", true)
	f("\n", false)
	f("", false)
}

func TestAMintSaysOfThePasswordBeforeWhatIsTrue(t *testing.T) {
	const none, one = "and none was issued here before it.", "the one before, if one was issued, is valid."
	f := func(origin, says, not string, arguments ...string) {
		t.Helper()
		s := holding(t, origin)
		if origin == "" {
			s.answers["GET "+app] = refuses(apierrors.NewNotFound(v1alpha1.Resource("credentials"), "postgres-orders.app"))
		}
		r := s.command(t, append([]string{"mint", "postgres-orders.app"}, arguments...)...)
		assert.Equal(t, exitOK, r.code, r.err)
		assert.Contains(t, r.err, says, "%s %v", origin, arguments)
		assert.NotContains(t, r.err, not, "%s %v", origin, arguments)
	}
	f("NotIssued", none, one)
	f("NotIssued", none, one, "--if-origin=NotIssued")
	f("", none, one) // no account Secret yet
	f("", none, one, "--if-origin=NotIssued")
	f("Revoked", one, none)
	f("Minted", one, none, "--if-origin=Minted")
	f("NotIssued", one, none, "--yes") // nothing was read
}

// seeded is a server on which an account is seeded between the first read and the first mint.
func seeded(t *testing.T, then string) *server {
	s := holding(t, then)
	present, mint := s.answers["GET "+app], s.answers["POST "+app+"/mint"]
	s.answers["GET "+app] = refuses(apierrors.NewNotFound(v1alpha1.Resource("credentials"), "postgres-orders.app"))
	s.answers["POST "+app+"/mint"] = func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.answers["GET "+app], s.answers["POST "+app+"/mint"] = present, mint
		s.mu.Unlock()
		refuses(apierrors.NewConflict(v1alpha1.Resource("credentials"), "postgres-orders.app", errors.New("revision")))(w, r)
	}
	return s
}

func TestAFirstMintOutlastsTheSeedingOfTheAccountAndNothingElse(t *testing.T) {
	for _, more := range [][]string{nil, {"--if-origin=NotIssued"}} {
		s := seeded(t, "NotIssued")
		r := s.command(t, append([]string{"mint", "postgres-orders.app"}, more...)...)
		assert.Equal(t, exitOK, r.code, r.err)
		require.Len(t, s.mints(), 2)
		assert.Contains(t, s.mints()[0].body, `{"preconditions":{"revision":0}}`)
		assert.Contains(t, s.mints()[1].body, `"id":"id-6"`)

		s = seeded(t, "Minted")
		r = s.command(t, append([]string{"mint", "postgres-orders.app"}, more...)...)
		assert.NotEqual(t, exitOK, r.code)
		assert.Empty(t, r.out)
		assert.Contains(t, r.err, "Minted")
		require.GreaterOrEqual(t, len(s.mints()), 1)
		assert.Contains(t, s.mints()[0].body, `{"preconditions":{"revision":0}}`)
		assert.Len(t, s.mints(), 1)
	}
}

func TestAConflictIsNotRepeatedForeverNorWhereSomebodySaidWhatToReplace(t *testing.T) {
	f := func(want int, args ...string) {
		t.Helper()
		s := holding(t, "NotIssued")
		s.answers["POST "+app+"/mint"] = refuses(apierrors.NewConflict(v1alpha1.Resource("credentials"), "postgres-orders.app", errors.New("id")))
		r := s.command(t, append([]string{"mint", "postgres-orders.app"}, args...)...)
		assert.Equal(t, exitConflict, r.code)
		assert.Contains(t, r.err, "Nothing was done")
		assert.Len(t, s.mints(), want)
	}
	f(firstMints)
	f(1, "--yes")
	f(1, "--if-id=id-6")
	f(1, "--if-id=id-6", "--if-origin=NotIssued")
}

func TestAnOriginThatIsAnotherIsAConflictAndNothingIsAsked(t *testing.T) {
	f := func(origin, wanted string) {
		t.Helper()
		s := holding(t, origin)
		r := s.command(t, "mint", "postgres-orders.app", "--yes", "--if-origin", wanted)
		assert.Equal(t, exitConflict, r.code)
		assert.Contains(t, r.err, "is "+origin+", not "+wanted)
		assert.Empty(t, s.mints())
	}
	f("Minted", "NotIssued")
	f("NotIssued", "Minted")
	f("Revoked", "NotIssued")

	s := newServer(t)
	s.answers["GET "+app] = refuses(apierrors.NewNotFound(v1alpha1.Resource("credentials"), "postgres-orders.app"))
	assert.Equal(t, exitNotFound, s.command(t, "mint", "postgres-orders.app", "--if-origin=Minted").code)
	assert.Empty(t, s.mints())
}

func TestAnOriginIsHeldByTheRecordThatWasReadEvenWhereNoneCanBeRead(t *testing.T) {
	s := holding(t, "NotIssued")
	c := credential()
	c.Status = v1alpha1.CredentialStatus{Password: v1alpha1.PasswordStatus{Origin: "NotIssued"}, Findings: []v1alpha1.Finding{{Type: "BrokenLedger"}}}
	s.answers["GET "+app] = sends(200, c)
	assert.Equal(t, exitOK, s.command(t, "mint", "postgres-orders.app", "--if-origin=NotIssued").code)
	assert.Contains(t, s.mints()[0].body, `{"preconditions":{"resourceVersion":"700","uid":"uid-1"}}`)
}

func TestFlagsOfAMintThatCannotStandTogetherAreToldBeforeAnythingIsAsked(t *testing.T) {
	s := newServer(t)
	f := func(want string, args ...string) {
		t.Helper()
		r := s.command(t, append([]string{"mint", "x", "--yes"}, args...)...)
		assert.Equal(t, exitUsage, r.code, args)
		assert.Empty(t, r.out)
		assert.Contains(t, r.err, want)
	}
	f("no output format", "-o", "yaml")
	f("./-", "--to-file=-")
	f("needs --host", "-o", "uri")
	f("needs --host", "-o", "netrc")
	f("only", "--host", "h")
	f("only", "-o", "json", "--database", "d")
	f("only", "-o", "netrc", "--host", "h", "--port", "1")
	f("not a host", "-o", "uri", "--host", "a@b")
	f("not a host", "-o", "netrc", "--host", "a login b")
	f("not the scheme", "-o", "uri", "--host", "h", "--scheme", "a/b")
	f("variable", "-o", "env", "--env-prefix", "1X")
	f("variable", "-o", "env", "--env-prefix", "X;rm ")
	f("cannot be written down", "-o", "pgpass", "--database", "a\nb")
	f("invalid argument", "-o", "uri", "--host", "h", "--port", "65536")
	f("--to-file is empty", "--to-file=")
	f("--if-origin", "--if-origin=Issued")
	f("--if-origin", "--if-origin=")
	assert.Empty(t, s.requests())
}

func TestAPasswordInAFileIsItsOwnersAloneAndNowhereElse(t *testing.T) {
	s := holding(t, "NotIssued")
	file := filepath.Join(t.TempDir(), "password")
	r := s.command(t, "mint", "postgres-orders.app", "--to-file", file)
	assert.Equal(t, exitOK, r.code, r.err)
	assert.Empty(t, r.out)
	assert.NotContains(t, r.err, made)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, made+"\n", string(text))
	info, err := os.Stat(file)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
}

func TestAFileThatCannotBeMadeFailsBeforeAnythingIsAskedAndStaysAsItIs(t *testing.T) {
	folder := t.TempDir()
	target := filepath.Join(folder, "target")
	require.NoError(t, os.WriteFile(target, []byte("theirs"), 0o644))
	link := filepath.Join(folder, "link")
	require.NoError(t, os.Symlink(filepath.Join(folder, "nowhere"), link))
	f := func(want, file string) {
		t.Helper()
		s := holding(t, "NotIssued")
		r := s.command(t, "mint", "postgres-orders.app", "--yes", "--to-file", file)
		assert.Equal(t, exitOther, r.code)
		assert.Contains(t, r.err, want)
		assert.Empty(t, s.requests())
	}
	f("is there already", target)
	f("is there already", link)
	f("is there already", folder)
	f("no such file or directory", filepath.Join(folder, "no", "file"))
	text, err := os.ReadFile(target)
	require.NoError(t, err)
	assert.Equal(t, "theirs", string(text))
	assert.NoFileExists(t, filepath.Join(folder, "nowhere"))
}

func TestAMintThatFailsLeavesNoFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	f := func(answer http.HandlerFunc, args ...string) {
		t.Helper()
		s := holding(t, "Minted")
		s.answers["POST "+app+"/mint"] = answer
		s.command(t, append([]string{"mint", "postgres-orders.app", "--to-file", file}, args...)...)
		assert.NoFileExists(t, file)
	}
	f(refuses(apierrors.NewServiceUnavailable("no")), "--yes")
	f(sends(201, made), "--yes")
	f(sends(201, without(minted(), "password")), "--yes")
	f(sends(201, minted())) // nobody to ask
	f(sends(201, without(minted(), "password", "id")), "--dry-run=server")
}

func TestSomebodyElsesFileIsNotRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "password")
	r, err := reserve(path)
	require.NoError(t, err)
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.WriteFile(path, []byte("theirs"), 0o600))
	r.drop()
	assert.FileExists(t, path)
}

func TestAtNoLevelIsAPasswordOrATokenTold(t *testing.T) {
	s := holding(t, "Minted")
	for _, level := range []string{"-v=10", "--v=99", "-v=6", "-v9"} {
		for _, args := range [][]string{
			{"mint", "postgres-orders.app", "--yes"}, {"mint", "postgres-orders.app", "--yes", "-o", "pgpass"},
			{"mint", "postgres-orders.app", "--yes", "--to-file", filepath.Join(t.TempDir(), "f")},
		} {
			r := s.command(t, append(args, level)...)
			require.Equal(t, exitOK, r.code, r.err)
			assert.NotContains(t, r.err, "Zq8w")
			assert.NotContains(t, r.err, "Bearer")
			assert.Contains(t, r.err, "POST "+s.URL+app+"/mint?fieldValidation=Strict: 201 Created in ")
		}
	}
	assert.NotContains(t, s.command(t, "mint", "postgres-orders.app", "--yes", "-v=5").err, "POST")
}

func TestTheAnswerAsJSONHasAllThatAScriptNeeds(t *testing.T) {
	s := holding(t, "NotIssued")
	r := s.command(t, "mint", "postgres-orders.app", "-o", "json")
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.out), &got))
	assert.Equal(t, map[string]any{
		"namespace": "tenant-acme", "name": "postgres-orders.app", "username": "app", "password": made, "id": id, "revision": float64(4),
		"at": "2026-08-21T11:59:58.123456Z",
	}, got)
}

// A fakeScreen is a terminal on which keys are pressed by the test.
func fakeScreen(out *lockedBuffer, clearable bool, keys ...error) *screen {
	return &screen{out: out, err: &lockedBuffer{}, clearable: clearable, key: func(context.Context) error {
		key := keys[0]
		keys = keys[1:]
		return key
	}}
}

func TestOnATerminalNothingIsMadeBeforeAKeyAndNothingIsLeftAfterAnother(t *testing.T) {
	var out lockedBuffer
	s := holding(t, "NotIssued")
	r := s.onTerminal(t, terminal{in: strings.NewReader(""), out: &out, interactive: true, screen: fakeScreen(&out, true, nil, nil)}, "mint", "postgres-orders.app")
	assert.Equal(t, exitOK, r.code)
	assert.Equal(t, enterAlternate+made+"\n"+leaveAlternate, out.String())

	s, out = holding(t, "NotIssued"), lockedBuffer{}
	r = s.onTerminal(t, terminal{in: strings.NewReader(""), out: &out, interactive: true, screen: fakeScreen(&out, true, errNoKey)}, "mint", "postgres-orders.app")
	assert.Equal(t, exitOther, r.code)
	assert.Contains(t, r.err, "nothing was changed")
	assert.Empty(t, out.String())
	assert.Empty(t, s.mints())

	s, out = holding(t, "NotIssued"), lockedBuffer{}
	r = s.onTerminal(t, terminal{in: strings.NewReader(""), out: &out, interactive: true, screen: fakeScreen(&out, true, nil, errNoKey)}, "mint", "postgres-orders.app")
	assert.Equal(t, exitOK, r.code, "it was seen")
	assert.True(t, strings.HasSuffix(out.String(), leaveAlternate))
}

func TestATerminalThatKnowsNoEscapesGetsNone(t *testing.T) {
	var out lockedBuffer
	s := holding(t, "NotIssued")
	s.onTerminal(t, terminal{in: strings.NewReader(""), out: &out, interactive: true, screen: fakeScreen(&out, false, nil)}, "mint", "postgres-orders.app")
	assert.Equal(t, made+"\n", out.String())
	f := func(want bool, variables map[string]string) {
		t.Helper()
		assert.Equal(t, want, clearable(func(name string) string { return variables[name] }))
	}
	f(true, map[string]string{"TERM": "xterm-256color"})
	f(false, map[string]string{"TERM": "dumb"})
	f(false, nil)
	f(true, map[string]string{"WT_SESSION": "1"})
}

func TestNoPasswordIsMadeThatNobodyCouldRead(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	require.NoError(t, err)
	defer null.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer file.Close()
	closed := newTerminal(null, null, file, os.Getenv)
	assert.False(t, newTerminal(null, file, file, os.Getenv).nowhere)
	s := newServer(t)
	s.answers["POST "+app+"/mint"] = sends(201, minted())
	r := s.onTerminal(t, closed, "mint", "postgres-orders.app", "--yes")
	assert.Equal(t, exitUsage, r.code)
	assert.Contains(t, r.err, "would be lost")
	assert.Empty(t, s.requests())
	r = s.onTerminal(t, closed, "mint", "postgres-orders.app", "--yes", "--to-file", filepath.Join(t.TempDir(), "password"))
	assert.Equal(t, exitOK, r.code, r.err)
	assert.NotEmpty(t, s.requests())
}

func TestNoPasswordGoesToATerminalWhereNobodyCanPressAKey(t *testing.T) {
	var out lockedBuffer
	s := holding(t, "NotIssued")
	r := s.onTerminal(t, terminal{in: strings.NewReader(""), out: &out, screen: fakeScreen(&out, true)}, "mint", "postgres-orders.app", "--yes")
	assert.Equal(t, exitUsage, r.code)
	assert.Empty(t, s.requests())
}
