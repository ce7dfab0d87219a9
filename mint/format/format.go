// Package format turns a password into the form in which an engine stores it: a verifier wherever the engine takes one.
package format

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// A Formatter returns the stored form of an account's password. What it draws by chance, it draws from random. Its
// errors quote neither the password nor the stored form.
type Formatter func(random io.Reader, username, password string) ([]byte, error)

// Format calls f for a password that an engine can tell from none: it is not empty and holds no NUL, where C's strings
// end.
func (f Formatter) Format(random io.Reader, username, password string) ([]byte, error) {
	if password == "" || strings.ContainsRune(password, 0) {
		return nil, errors.New("a password must not be empty nor hold a NUL")
	}
	return f(random, username, password)
}

// A form makes the Formatter for parameters that are within its limits, the defaults filled in.
type form struct {
	limits   []Limit
	make     func(Parameters) Formatter
	shape    func(Parameters) string
	unissued func(p Parameters, random io.Reader) ([]byte, error) // nil where a password is formed as well
}

var builtIn = map[string]form{
	"apr1":          without(apr1, "$apr1$<8 characters of salt>$<22 characters>"),
	"bcrypt":        {limits: []Limit{bcryptCost}, make: bcryptForm, shape: bcryptShape},
	"mysql-native":  without(mysqlNative, "*<40 upper-case hex digits>"),
	"plaintext":     without(plaintext, "<the password itself>"),
	"scram-sha-256": {limits: []Limit{scramIterations}, make: scramSHA256, shape: scramShape, unissued: scramUnissued},
	"sha256":        without(sha256Hex, "<64 lower-case hex digits>"),
}

// without is a form that has no parameters.
func without(f Formatter, shape string) form {
	return form{make: func(Parameters) Formatter { return f }, shape: func(Parameters) string { return shape }}
}

// Shape is what a stored form looks like, what differs from one to the next in angle brackets; empty, if New would fail.
func Shape(name string, p Parameters) string {
	f, p, err := find(name, p)
	if err != nil {
		return ""
	}
	return f.shape(p)
}

// Built returns the built-in format of that name with its defaults, and whether there is one.
func Built(name string) (Formatter, bool) {
	f, err := New(name, Parameters{})
	return f, err == nil
}

// New returns the built-in format of that name. It is an error if there is none, or a parameter is not one of its own
// or out of its limits.
func New(name string, p Parameters) (Formatter, error) {
	f, p, err := find(name, p)
	if err != nil {
		return nil, err
	}
	return f.make(p), nil
}

// Unissued returns what an account stores for which no password was ever issued: a form of the built-in format of that
// name that no password opens, or the form of one that nobody sees. The errors are those of New, and of drawing.
func Unissued(name string, p Parameters, random io.Reader, username string) ([]byte, error) {
	f, p, err := find(name, p)
	if err != nil {
		return nil, err
	}
	if f.unissued != nil {
		return f.unissued(p, random)
	}
	password, err := NewPassword(random)
	if err != nil {
		return nil, err
	}
	return f.make(p).Format(random, username, password)
}

// find is the built-in format of that name, and its parameters with the defaults filled in.
func find(name string, p Parameters) (form, Parameters, error) {
	f, ok := builtIn[name]
	if !ok {
		return form{}, Parameters{}, fmt.Errorf("the format %q is not known to this version", name)
	}
	p, err := p.within(f.limits)
	return f, p, err
}

// Names are the names of the built-in formats, sorted.
func Names() []string { return slices.Sorted(maps.Keys(builtIn)) }

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
