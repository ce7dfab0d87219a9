package printable

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// in sets the locale for the rest of a test.
func in(t *testing.T, variables map[string]string) {
	t.Helper()
	SetLocale(func(name string) string { return variables[name] })
	t.Cleanup(func() { SetLocale(func(string) string { return "" }) })
}

func TestALocaleThatNamesAnotherCharacterSetThanUTF8GetsASCII(t *testing.T) {
	f := func(want string, variables map[string]string) {
		t.Helper()
		in(t, variables)
		assert.Equal(t, want, Name("Jörg"), variables)
	}
	const escaped = `"J\u00f6rg"`
	f(escaped, map[string]string{"LC_ALL": "C"})
	f(escaped, map[string]string{"LANG": "POSIX"})
	f(escaped, map[string]string{"LANG": "de_DE.ISO-8859-1"})
	f(escaped, map[string]string{"LANG": "de_DE"})
	f(escaped, map[string]string{"LC_ALL": "C", "LANG": "de_DE.UTF-8"})
	f(escaped, map[string]string{"LC_CTYPE": "C", "LANG": "de_DE.UTF-8"})
	f("Jörg", map[string]string{"LC_ALL": "C.UTF-8", "LANG": "C"})
	f("Jörg", map[string]string{"LANG": "en_US.utf8"})
	f("Jörg", nil)
}

func TestInASCIINamesAreStillToldApartAndJSONIsStillEqual(t *testing.T) {
	in(t, map[string]string{"LC_ALL": "C"})
	assert.Equal(t, "jane", Name("jane"))
	assert.NotEqual(t, Name("Jörg"), Name(`J\u00f6rg`))
	assert.Equal(t, `J\u00f6rg \U0001d4a5`, Escape("Jörg 𝒥"))
	text, err := json.Marshal(map[string]string{"Jörg": "𝒥 \u202e"})
	require.NoError(t, err)
	escaped := JSON(text)
	assert.JSONEq(t, string(text), string(escaped))
	for _, b := range escaped {
		assert.Less(t, b, byte(0x80))
	}
}
