package format_test

import (
	"crypto/rand"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"

	"github.com/mintlog/mintlog/mint/format"
)

// formed is the stored form of a password under parameters.
func formed(t *testing.T, name string, p format.Parameters, password string) string {
	t.Helper()
	f, err := format.New(name, p)
	require.NoError(t, err)
	form, err := f.Format(rand.Reader, "app", password)
	require.NoError(t, err)
	return string(form)
}

func TestABcryptFormLetsItsPasswordInAndNoOther(t *testing.T) {
	shape := regexp.MustCompile(`^\$2a\$04\$[./0-9A-Za-z]{53}$`)
	for _, password := range append(newPasswords(t)[:20], "a", "pässwörd €", strings.Repeat("x", 72)) {
		form := formed(t, "bcrypt", format.Parameters{Cost: 4}, password)
		assert.True(t, shape.MatchString(form))
		assert.NoError(t, bcrypt.CompareHashAndPassword([]byte(form), []byte(password)))
		assert.Error(t, bcrypt.CompareHashAndPassword([]byte(form), []byte("?"+password[1:])))
	}
	assert.Contains(t, formed(t, "bcrypt", format.Parameters{}, "x"), "$2a$10$")
}

func TestAPasswordThatBcryptWouldCutIsRefusedAndNotCut(t *testing.T) {
	f, err := format.New("bcrypt", format.Parameters{Cost: 4})
	require.NoError(t, err)
	for _, password := range []string{strings.Repeat("x", 73), strings.Repeat("€", 25), strings.Repeat("x", 1000)} {
		form, err := f.Format(rand.Reader, "app", password)
		require.ErrorContains(t, err, "bcrypt reads 72")
		assert.Nil(t, form)
		assert.NotContains(t, err.Error(), password[:10])
	}
	// What is within the bound counts to its last byte.
	long := strings.Repeat("x", 71)
	form := formed(t, "bcrypt", format.Parameters{Cost: 4}, long+"a")
	assert.Error(t, bcrypt.CompareHashAndPassword([]byte(form), []byte(long+"b")))
}

func TestASCRAMFormHasTheIterationsThatTheDefinitionNames(t *testing.T) {
	assert.Regexp(t, `^SCRAM-SHA-256\$8192:`, formed(t, "scram-sha-256", format.Parameters{Iterations: 8192}, "x"))
	assert.Regexp(t, `^SCRAM-SHA-256\$4096:`, formed(t, "scram-sha-256", format.Parameters{}, "x"))
}

func TestAParameterOutOfItsLimitsOrOfAnotherFormatIsRefused(t *testing.T) {
	f := func(name string, p format.Parameters, want string) {
		t.Helper()
		_, err := format.New(name, p)
		require.ErrorContains(t, err, want)
	}
	f("scram-sha-256", format.Parameters{Iterations: 4095}, "iterations must be from 4096 to 600000")
	f("scram-sha-256", format.Parameters{Iterations: 600_001}, "iterations must be from 4096 to 600000")
	f("scram-sha-256", format.Parameters{Iterations: -1}, "iterations must be from 4096 to 600000")
	f("bcrypt", format.Parameters{Cost: 3}, "cost must be from 4 to 14")
	f("bcrypt", format.Parameters{Cost: 15}, "cost must be from 4 to 14")
	f("scram-sha-256", format.Parameters{Cost: 10}, "a parameter is set that the format does not have")
	f("sha256", format.Parameters{Iterations: 4096}, "a parameter is set that the format does not have")
	f("rot13", format.Parameters{}, "is not known")
}

func TestNoFormatTakesAnEmptyPasswordOrOneThatEndsEarlyInC(t *testing.T) {
	for _, name := range format.Names() {
		f, ok := format.Built(name)
		require.True(t, ok)
		for _, password := range []string{"", "\x00", "half\x00hidden"} {
			form, err := f.Format(rand.Reader, "app", password)
			require.Error(t, err, name)
			assert.Nil(t, form)
			assert.NotContains(t, err.Error(), "half")
		}
	}
}

// The faults that users of other systems reported, by their symptom.

func TestSHA256HashesNoTrailingNewlineAndIsExactly64LowerCaseHexDigits(t *testing.T) {
	// sha256 of "secret", not of "secret\n".
	const want = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
	assert.Equal(t, want, formed(t, "sha256", format.Parameters{}, "secret"))
	for _, form := range stored(t, "sha256", newPasswords(t)) {
		require.Regexp(t, `^[0-9a-f]{64}$`, form)
	}
}

func TestMySQLNativeIs41CharactersWithALeadingStar(t *testing.T) {
	// What MariaDB's PASSWORD('secret') yields.
	assert.Equal(t, "*14E65567ABDB5135D0CFD9A70B3032C179A49EE7", formed(t, "mysql-native", format.Parameters{}, "secret"))
	for _, form := range stored(t, "mysql-native", newPasswords(t)) {
		require.Len(t, form, 41)
		require.Regexp(t, `^\*[0-9A-F]{40}$`, form)
	}
}

func TestAStoredFormHasTheShapeThatIsShownOfIt(t *testing.T) {
	placeholder := regexp.MustCompile(`<[^>]*>`)
	f := func(name string, p format.Parameters, want string) {
		t.Helper()
		assert.Equal(t, want, format.Shape(name, p))
		shape := "^"
		for i, part := range placeholder.Split(want, -1) {
			if i > 0 {
				shape += ".+"
			}
			shape += regexp.QuoteMeta(part)
		}
		assert.True(t, regexp.MustCompile(shape+"$").MatchString(formed(t, name, p, "x")), name)
	}
	f("apr1", format.Parameters{}, "$apr1$<8 characters of salt>$<22 characters>")
	f("bcrypt", format.Parameters{Cost: 5}, "$2a$05$<53 characters>")
	f("mysql-native", format.Parameters{}, "*<40 upper-case hex digits>")
	f("plaintext", format.Parameters{}, "<the password itself>")
	f("scram-sha-256", format.Parameters{}, "SCRAM-SHA-256$4096:<salt>$<StoredKey>:<ServerKey>")
	f("scram-sha-256", format.Parameters{Iterations: 5000}, "SCRAM-SHA-256$5000:<salt>$<StoredKey>:<ServerKey>")
	f("sha256", format.Parameters{}, "<64 lower-case hex digits>")
	for _, name := range format.Names() {
		assert.NotEmpty(t, format.Shape(name, format.Parameters{}))
	}
	assert.Empty(t, format.Shape("rot13", format.Parameters{}))
	assert.Empty(t, format.Shape("sha256", format.Parameters{Cost: 5}))
}
