package format

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/xdg-go/scram"
)

func TestWhatIsStoredForAnAccountThatWasNeverIssuedIsOfItsFormat(t *testing.T) {
	for _, name := range Names() {
		formatter, ok := Built(name)
		require.True(t, ok)
		formed, err := formatter.Format(rand.Reader, "app", strings.Repeat("x", 32))
		require.NoError(t, err)
		first, err := Unissued(name, Parameters{}, rand.Reader, "app")
		require.NoError(t, err)
		second, err := Unissued(name, Parameters{}, rand.Reader, "app")
		require.NoError(t, err)
		assert.Len(t, first, len(formed), name)
		assert.NotEqual(t, first, second, name)
	}
}

func TestAnUnissuedScramVerifierHasItsIterationsAndKeysOfTheirOwn(t *testing.T) {
	stored, err := Unissued("scram-sha-256", Parameters{Iterations: 5000}, rand.Reader, "app")
	require.NoError(t, err)
	parts := strings.FieldsFunc(string(stored), func(r rune) bool { return r == '$' || r == ':' })
	require.Len(t, parts, 5)
	assert.Equal(t, []string{"SCRAM-SHA-256", "5000"}, parts[:2])
	var decoded []string
	for i, size := range []int{scramSaltBytes, 32, 32} {
		bytes, err := base64.StdEncoding.DecodeString(parts[2+i])
		require.NoError(t, err)
		require.Len(t, bytes, size)
		assert.NotContains(t, decoded, string(bytes))
		assert.NotEqual(t, make([]byte, size), bytes)
		decoded = append(decoded, string(bytes))
	}
}

func TestNobodyLogsInWithAnUnissuedScramVerifier(t *testing.T) {
	stored, err := Unissued("scram-sha-256", Parameters{}, rand.Reader, "app")
	require.NoError(t, err)
	parts := strings.FieldsFunc(string(stored), func(r rune) bool { return r == '$' || r == ':' })
	key := func(i int) []byte {
		bytes, err := base64.StdEncoding.DecodeString(parts[i])
		require.NoError(t, err)
		return bytes
	}
	server, err := scram.SHA256.NewServer(func(string) (scram.StoredCredentials, error) {
		return scram.StoredCredentials{KeyFactors: scram.KeyFactors{Salt: string(key(2)), Iters: 4096}, StoredKey: key(3), ServerKey: key(4)}, nil
	})
	require.NoError(t, err)
	for _, password := range []string{"", "app", string(stored), parts[3], string(key(3)), string(key(4))} {
		client, err := scram.SHA256.NewClientUnprepped("app", password, "")
		require.NoError(t, err)
		from, to := client.NewConversation(), server.NewConversation()
		text := ""
		for range 2 {
			text, err = from.Step(text)
			require.NoError(t, err)
			if text, err = to.Step(text); err != nil {
				break
			}
		}
		require.Error(t, err)
		require.False(t, to.Valid())
	}
}

func TestAnUnissuedFormNeedsChanceAndAFormatThatExists(t *testing.T) {
	for _, name := range Names() {
		_, err := Unissued(name, Parameters{}, iotest.ErrReader(errors.New("no chance")), "app")
		require.Error(t, err, name)
	}
	_, err := Unissued("rot13", Parameters{}, rand.Reader, "app")
	require.Error(t, err)
	_, err = Unissued("scram-sha-256", Parameters{Iterations: 1}, rand.Reader, "app")
	require.Error(t, err)
}
