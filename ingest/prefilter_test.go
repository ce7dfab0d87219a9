package ingest

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// slowIndexOurs is what indexOurs finds, found plainly.
func slowIndexOurs(b []byte) int {
	first := len(b)
	for _, needle := range [][]byte{[]byte("credentials.cozystack.io"), []byte(`.account"`)} {
		if i := bytes.Index(b, needle); i >= 0 {
			first = min(first, i)
		}
	}
	return first
}

func TestWhatMakesALineOursIsFoundWhereverItLies(t *testing.T) {
	for _, needle := range []string{"credentials.cozystack.io", `.account"`} {
		for size := len(needle); size < 4*stride; size++ {
			for at := range size - len(needle) + 1 {
				b := bytes.Repeat([]byte("x"), size)
				copy(b[at:], needle)
				require.Equal(t, at, indexOurs(b), "%s in %d bytes", needle, size)
			}
		}
	}
}

func TestTheFirstOfWhatMakesALineOursIsFoundAmongPartsOfIt(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	parts := []string{
		"credentials.cozystack.io", `.account"`, "credentials.cozystack.", "apps.cozystack.io", "ls.cozystack.io", ".account", `account"`, `serviceaccount"`,
		".acc", "acco", `unt"`, "s.co", "zyst", "x", "\n", `{"`, "credentials", ".io", "",
	}
	found := 0
	for range 100_000 {
		var b []byte
		for range random.IntN(40) {
			b = append(b, parts[random.IntN(len(parts))*random.IntN(2)]...)
			b = append(b, parts[2+random.IntN(len(parts)-2)]...)
		}
		if random.IntN(2) == 0 {
			b = bytes.ReplaceAll(b, []byte("credentials.cozystack.io"), []byte("credentials.cozystack-io"))
		}
		want := slowIndexOurs(b)
		require.Equal(t, want, indexOurs(b), "%s", b)
		if want < len(b) {
			found++
		}
	}
	require.Greater(t, found, 10_000)
}

// FuzzIndexOurs holds that samples find what a plain search finds.
func FuzzIndexOurs(f *testing.F) {
	f.Add([]byte(mint))
	f.Add([]byte(write))
	f.Fuzz(func(t *testing.T, b []byte) { require.Equal(t, slowIndexOurs(b), indexOurs(b)) })
}
