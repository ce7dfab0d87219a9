package format

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"

	"github.com/xdg-go/scram"
)

const scramSaltBytes = 16

// scramIterations defaults to PostgreSQL's own, which is also the least that RFC 7677 allows. A client does as many at
// each login.
var scramIterations = Limit{
	Field: "iterations", Least: 4096, Most: 600_000, Default: 4096,
	of: func(p *Parameters) *int { return &p.Iterations },
}

// scramSHA256 is the form of a role's password in PostgreSQL, which takes it unchanged:
// SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey> (RFC 5803, as PostgreSQL writes it).
func scramSHA256(p Parameters) Formatter {
	return func(random io.Reader, _, password string) ([]byte, error) {
		salt := make([]byte, scramSaltBytes)
		if _, err := io.ReadFull(random, salt); err != nil {
			return nil, fmt.Errorf("draw a salt: %w", err)
		}
		client, err := scram.SHA256.NewClientUnprepped("", prepared(password), "")
		if err != nil {
			return nil, errors.New("prepare SCRAM-SHA-256")
		}
		stored, err := client.GetStoredCredentialsWithError(scram.KeyFactors{Salt: string(salt), Iters: p.Iterations})
		if err != nil {
			return nil, errors.New("derive SCRAM-SHA-256 keys")
		}
		return scramText(p, salt, stored.StoredKey, stored.ServerKey), nil
	}
}

func scramText(p Parameters, salt, storedKey, serverKey []byte) []byte {
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, "SCRAM-SHA-256$%d:%s$%s:%s", p.Iterations, b64(salt), b64(storedKey), b64(serverKey))
}

// scramUnissued draws the keys themselves. Who wants to log in must show a key of which StoredKey is the SHA-256, and no
// password leads to one any sooner than guessing that key does. Deriving them from a password that is thrown away would
// cost thousands of hashes for each account and make nothing safer.
func scramUnissued(p Parameters, random io.Reader) ([]byte, error) {
	drawn := make([]byte, scramSaltBytes+2*sha256.Size)
	if _, err := io.ReadFull(random, drawn); err != nil {
		return nil, fmt.Errorf("draw keys: %w", err)
	}
	salt, keys := drawn[:scramSaltBytes], drawn[scramSaltBytes:]
	return scramText(p, salt, keys[:sha256.Size], keys[sha256.Size:]), nil
}

func scramShape(p Parameters) string {
	return fmt.Sprintf("SCRAM-SHA-256$%d:<salt>$<StoredKey>:<ServerKey>", p.Iterations)
}
