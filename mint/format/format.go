// Package format turns a password into the form in which an engine stores it: a verifier wherever the engine takes one.
package format

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/xdg-go/scram"
)

// A Formatter returns the stored form of an account's password. What it draws by chance, it draws from random. Its
// errors quote neither the password nor the stored form.
type Formatter func(random io.Reader, username, password string) ([]byte, error)

// Format calls f.
func (f Formatter) Format(random io.Reader, username, password string) ([]byte, error) {
	return f(random, username, password)
}

var builtIn = map[string]Formatter{
	"apr1":          apr1,
	"mysql-native":  mysqlNative,
	"plaintext":     plaintext,
	"scram-sha-256": scramSHA256,
	"sha256":        sha256Hex,
}

// Built returns the built-in format of that name, and whether there is one.
func Built(name string) (Formatter, bool) {
	f, ok := builtIn[name]
	return f, ok
}

// Names are the names of the built-in formats, sorted.
func Names() []string { return slices.Sorted(maps.Keys(builtIn)) }

const (
	scramIterations = 4096 // PostgreSQL's default
	scramSaltBytes  = 16
)

// scramSHA256 is the form of a role's password in PostgreSQL, which takes it unchanged:
// SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey> (RFC 5803, as PostgreSQL writes it).
func scramSHA256(random io.Reader, _, password string) ([]byte, error) {
	salt := make([]byte, scramSaltBytes)
	if _, err := io.ReadFull(random, salt); err != nil {
		return nil, fmt.Errorf("draw a salt: %w", err)
	}
	client, err := scram.SHA256.NewClient("", password, "")
	if err != nil {
		// Like PostgreSQL and libpq: what SASLprep forbids is taken as it is.
		if client, err = scram.SHA256.NewClientUnprepped("", password, ""); err != nil {
			return nil, fmt.Errorf("prepare SCRAM-SHA-256")
		}
	}
	stored, err := client.GetStoredCredentialsWithError(scram.KeyFactors{Salt: string(salt), Iters: scramIterations})
	if err != nil {
		return nil, fmt.Errorf("derive SCRAM-SHA-256 keys")
	}
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, "SCRAM-SHA-256$%d:%s$%s:%s", scramIterations, b64(salt), b64(stored.StoredKey), b64(stored.ServerKey)), nil
}

// mysqlNative is what mysql_native_password stores: `*` and 40 upper-case hex digits of SHA-1(SHA-1(password)). MySQL
// 8.4 has that plugin off and 9.0 has it no more; MariaDB has it.
func mysqlNative(_ io.Reader, _, password string) ([]byte, error) {
	once := sha1.Sum([]byte(password))
	twice := sha1.Sum(once[:])
	return []byte("*" + strings.ToUpper(hex.EncodeToString(twice[:]))), nil
}

// sha256Hex is ClickHouse's password_sha256_hex: 64 lower-case hex digits, of the password without any line end.
func sha256Hex(_ io.Reader, _, password string) ([]byte, error) {
	sum := sha256.Sum256([]byte(password))
	return []byte(hex.EncodeToString(sum[:])), nil
}

// plaintext is for engines that compare the password itself.
func plaintext(_ io.Reader, _, password string) ([]byte, error) { return []byte(password), nil }
