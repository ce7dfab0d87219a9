package natsserver

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/test/sandbox/process"
)

// A Guarded server has the account file that is shipped, with keys of its own.
type Guarded struct {
	*Server
	Public map[string]string // the public key of each identity, by its name in the account file, such as "INGEST"

	keys string // folder with the seeds
}

// placeholder is what the account file has in the place of an identity's public key.
var placeholder = regexp.MustCompile(`@([A-Z]+)@`)

// StartGuarded starts a server with deploy/nats/accounts.conf. It is killed when the test ends.
func StartGuarded(t testing.TB) *Guarded {
	t.Helper()
	root, err := process.Root()
	require.NoError(t, err)
	accounts, err := os.ReadFile(filepath.Join(root, "deploy", "nats", "accounts.conf"))
	require.NoError(t, err)
	g := &Guarded{Server: Start(t), Public: map[string]string{}, keys: t.TempDir()}
	text := string(accounts)
	for _, found := range placeholder.FindAllStringSubmatch(text, -1) {
		who := found[1]
		if who == "NAME" || g.Public[who] != "" { // NAME stands in a comment
			continue
		}
		pair, err := nkeys.CreateUser()
		require.NoError(t, err)
		seed, err := pair.Seed()
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(g.Seed(who), seed, 0o600))
		g.Public[who], err = pair.PublicKey()
		require.NoError(t, err)
		text = strings.ReplaceAll(text, "@"+who+"@", g.Public[who])
	}
	require.NoError(t, os.WriteFile(filepath.Join(g.Store, "accounts.conf"), []byte(text), 0o600))
	g.Configure(t, "include accounts.conf")
	require.NoError(t, g.Restart(t.Context()))
	return g
}

// Seed is the path of the seed of an identity's nkey.
func (g *Guarded) Seed(who string) string { return filepath.Join(g.keys, who+".nk") }
