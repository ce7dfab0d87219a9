package format_test

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/xdg-go/scram"

	"github.com/mintlog/mintlog/mint/format"
	"github.com/mintlog/mintlog/test/debian"
)

const thousand = 1000

func newPasswords(t *testing.T) []string {
	t.Helper()
	passwords := make([]string, thousand)
	for i := range passwords {
		var err error
		passwords[i], err = format.NewPassword(rand.Reader)
		require.NoError(t, err)
	}
	return passwords
}

// stored formats every password with a built-in format.
func stored(t *testing.T, name string, passwords []string) []string {
	t.Helper()
	f, ok := format.Built(name)
	require.True(t, ok, name)
	forms := make([]string, len(passwords))
	for i, password := range passwords {
		form, err := f.Format(rand.Reader, "app", password)
		require.NoError(t, err)
		forms[i] = string(form)
	}
	return forms
}

// packages are Debian's that bring the programs other than PostgreSQL.
var packages = map[string]string{"openssl": "openssl", "sha256sum": "coreutils"}

// run returns the lines that a program prints. Where the program is not on the machine and cannot be installed, the
// test fails.
func run(t *testing.T, input string, program string, arguments ...string) []string {
	t.Helper()
	require.NoError(t, debian.Need(t.Context(), os.Stderr, packages[program], func() bool {
		_, err := exec.LookPath(program)
		return err == nil
	}), program)
	command := exec.Command(program, arguments...)
	command.Stdin = strings.NewReader(input)
	var failure bytes.Buffer
	command.Stderr = &failure
	out, err := command.Output()
	require.NoError(t, err, "%s: %s", program, failure.String())
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// digests are the digests in hex that a program prints as `<digest> <file>`, one a file, in one process for all.
func digests(t *testing.T, contents []string, program string, arguments ...string) []string {
	t.Helper()
	folder := t.TempDir()
	for i, content := range contents {
		file := filepath.Join(folder, fmt.Sprintf("%04d", i))
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		arguments = append(arguments, file)
	}
	lines := run(t, "", program, arguments...)
	for i := range lines {
		lines[i], _, _ = strings.Cut(lines[i], " ")
	}
	return lines
}

// agree compares without printing what is stored.
func agree(t *testing.T, want, got []string) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		if want[i] != got[i] {
			t.Fatalf("the stored form of password %d of %d is not what the other implementation makes of it", i, len(want))
		}
	}
}

func TestSHA256IsWhatSha256sumPrints(t *testing.T) {
	passwords := newPasswords(t)
	forms := stored(t, "sha256", passwords)
	agree(t, digests(t, passwords, "sha256sum"), forms)
	assert.Regexp(t, `^[0-9a-f]{64}$`, forms[0])
}

func TestMySQLNativeIsTheDoubleSHA1ThatOpensslComputes(t *testing.T) {
	passwords := newPasswords(t)
	once := digests(t, passwords, "openssl", "dgst", "-sha1", "-r")
	for i := range once {
		binary, err := hex.DecodeString(once[i])
		require.NoError(t, err)
		once[i] = string(binary)
	}
	twice := digests(t, once, "openssl", "dgst", "-sha1", "-r")
	for i := range twice {
		twice[i] = "*" + strings.ToUpper(twice[i])
	}
	forms := stored(t, "mysql-native", passwords)
	agree(t, twice, forms)
	assert.Regexp(t, `^\*[0-9A-F]{40}$`, forms[0])
}

func TestAPR1IsWhatOpensslComputesWithTheSameSalt(t *testing.T) {
	odd := []string{"a", strings.Repeat("x", 15), strings.Repeat("x", 16), strings.Repeat("y", 17), strings.Repeat("z", 99), "pässwörd €"}
	f, _ := format.Built("apr1")
	const salts = 20
	for range salts {
		seed := make([]byte, 8)
		_, err := rand.Read(seed)
		require.NoError(t, err)
		passwords := append(newPasswords(t)[:thousand/salts], odd...)
		var forms []string
		for _, password := range passwords {
			form, err := f.Format(bytes.NewReader(seed), "app", password)
			require.NoError(t, err)
			forms = append(forms, string(form))
		}
		salt := strings.Split(forms[0], "$")[2]
		require.Regexp(t, `^[./0-9A-Za-z]{8}$`, salt)
		agree(t, run(t, strings.Join(passwords, "\n")+"\n", "openssl", "passwd", "-apr1", "-salt", salt, "-stdin"), forms)
	}
}

func TestASaltIsDrawnForEveryPassword(t *testing.T) {
	for _, name := range []string{"apr1", "bcrypt", "scram-sha-256"} {
		forms := stored(t, name, slices.Repeat([]string{"the same"}, 20))
		slices.Sort(forms)
		assert.Len(t, slices.Compact(forms), 20, name)
	}
}

var scramForm = regexp.MustCompile(`^SCRAM-SHA-256\$4096:([^$]+)\$([^:]+):(.+)$`)

// login runs the exchange of RFC 7677 between a client with the password and a server with the stored form.
func login(t *testing.T, password, form string) error {
	t.Helper()
	parts := scramForm.FindStringSubmatch(form)
	require.Len(t, parts, 4)
	raw := make([][]byte, 3)
	for i := range raw {
		var err error
		raw[i], err = base64.StdEncoding.DecodeString(parts[i+1])
		require.NoError(t, err)
	}
	require.Len(t, raw[0], 16)
	server, err := scram.SHA256.NewServer(func(string) (scram.StoredCredentials, error) {
		return scram.StoredCredentials{
			KeyFactors: scram.KeyFactors{Salt: string(raw[0]), Iters: 4096}, StoredKey: raw[1], ServerKey: raw[2],
		}, nil
	})
	require.NoError(t, err)
	client, err := scram.SHA256.NewClient("app", password, "")
	require.NoError(t, err)
	here, there := client.NewConversation(), server.NewConversation()
	message := ""
	for !here.Done() {
		if message, err = here.Step(message); err != nil {
			return err
		}
		if here.Done() {
			break
		}
		if message, err = there.Step(message); err != nil {
			return err
		}
	}
	if !there.Valid() || !here.Valid() {
		return errors.New("the exchange did not end well")
	}
	return nil
}

func TestASCRAMFormLetsItsPasswordInAndNoOther(t *testing.T) {
	passwords := newPasswords(t)[:100]
	for i, form := range stored(t, "scram-sha-256", passwords) {
		require.NoError(t, login(t, passwords[i], form))
		require.Error(t, login(t, passwords[(i+1)%len(passwords)], form))
	}
}

func TestASCRAMFormIsTheOneOfRFC7677(t *testing.T) {
	salt, err := base64.StdEncoding.DecodeString("W22ZaJ0SNY7soEsUEjb6gQ==")
	require.NoError(t, err)
	f, _ := format.Built("scram-sha-256")
	form, err := f.Format(bytes.NewReader(salt), "user", "pencil")
	require.NoError(t, err)
	assert.Equal(t, "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=", string(form))
}

func TestSCRAMPreparesAPasswordAsTheStandardSaysAndTakesWhatItForbidsAsItIs(t *testing.T) {
	f, _ := format.Built("scram-sha-256")
	same := func(a, b string, want bool) {
		t.Helper()
		var forms []string
		for _, p := range []string{a, b} {
			form, err := f.Format(bytes.NewReader(make([]byte, 16)), "app", p)
			require.NoError(t, err)
			forms = append(forms, string(form))
		}
		assert.Equal(t, want, forms[0] == forms[1])
	}
	same("\u00aa", "a", true)
	same("a\u00adb", "ab", true)
	same("a\u00a0b", "a b", true)
	same("\u2168", "IX", true)
	same("u\u0308", "\u00fc", true)
	same("a\u200bb", "a b", true)
	same("a", "A", false)
	same("a\u0007", "a", false)
	same("a\xff", "a", false)
}

func TestPlaintextIsThePasswordItself(t *testing.T) {
	passwords := newPasswords(t)[:10]
	agree(t, passwords, stored(t, "plaintext", passwords))
}

func TestTheBuiltInFormatsAreTheOnesOfThisVersion(t *testing.T) {
	assert.Equal(t, []string{"apr1", "bcrypt", "mysql-native", "plaintext", "scram-sha-256", "sha256"}, format.Names())
	_, ok := format.Built("rot13")
	assert.False(t, ok)
}

func TestAFormatFailsWhenItCannotDrawASalt(t *testing.T) {
	broken := errors.New("no more randomness")
	for _, name := range []string{"apr1", "scram-sha-256"} {
		f, _ := format.Built(name)
		for _, random := range []io.Reader{iotest.ErrReader(broken), iotest.TimeoutReader(iotest.OneByteReader(rand.Reader)), strings.NewReader("short")} {
			form, err := f.Format(random, "app", "some password")
			require.Error(t, err, name)
			assert.Nil(t, form)
			assert.NotContains(t, err.Error(), "some password")
		}
	}
}

func TestANewPasswordIsDrawnWithoutBias(t *testing.T) {
	seen := map[string]bool{}
	counts := map[rune]int{}
	const draws = 20_000
	for range draws {
		p, err := format.NewPassword(rand.Reader)
		require.NoError(t, err)
		require.Regexp(t, `^[A-Za-z0-9]{32}$`, p)
		seen[p] = true
		for _, r := range p {
			counts[r]++
		}
	}
	assert.Len(t, seen, draws)
	require.Len(t, counts, 62)
	// Chi-squared with 61 degrees of freedom is above 140 once in ten million runs; drawing bytes modulo 62 gives about 13,000.
	expected, chi := float64(draws*32)/62, 0.0
	for _, n := range counts {
		chi += (float64(n) - expected) * (float64(n) - expected) / expected
	}
	assert.Less(t, chi, 140.0)
}

func TestBytesThatWouldFavourSomeLettersAreThrownAway(t *testing.T) {
	p, err := format.NewPassword(io.MultiReader(bytes.NewReader(bytes.Repeat([]byte{248, 249, 255, 0}, 32)), rand.Reader))
	require.NoError(t, err)
	assert.Equal(t, strings.Repeat("A", 32), p)
}

func TestNoPasswordComesFromABrokenSource(t *testing.T) {
	for _, random := range []io.Reader{strings.NewReader("too short"), iotest.ErrReader(errors.New("gone")), bytes.NewReader(bytes.Repeat([]byte{255}, 640))} {
		p, err := format.NewPassword(random)
		require.Error(t, err)
		assert.Empty(t, p)
	}
}

func FuzzAStoredFormHasItsShapeWhateverThePassword(f *testing.F) {
	for _, seed := range []string{"", "a", "pässwörd", "\xff\x00", "$apr1$:\n", strings.Repeat("long", 64)} {
		f.Add(seed)
	}
	shapes := map[string]*regexp.Regexp{
		"apr1":         regexp.MustCompile(`^\$apr1\$[./0-9A-Za-z]{8}\$[./0-9A-Za-z]{22}$`),
		"mysql-native": regexp.MustCompile(`^\*[0-9A-F]{40}$`), "sha256": regexp.MustCompile(`^[0-9a-f]{64}$`),
		"scram-sha-256": scramForm,
	}
	f.Fuzz(func(t *testing.T, password string) {
		for name, shape := range shapes {
			format, _ := format.Built(name)
			form, err := format.Format(rand.Reader, "app", password)
			if password == "" || strings.Contains(password, "\x00") {
				require.Error(t, err)
				continue
			}
			require.NoError(t, err)
			if !shape.Match(form) {
				t.Errorf("the stored form as %s of %s has another shape", name, strconv.QuoteToASCII(hex.EncodeToString([]byte(password))))
			}
		}
	})
}
