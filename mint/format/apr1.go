package format

import (
	"crypto/md5"
	"fmt"
	"io"
	"strings"
)

const (
	apr1Magic  = "$apr1$"
	apr1Rounds = 1000
	apr1Salt   = 8 // characters
	// crypt64 is the alphabet of crypt(3), least significant digit first.
	crypt64 = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// apr1 is the form of a password in a file of Apache's htpasswd, which nginx's auth_basic reads as well.
func apr1(random io.Reader, _, password string) ([]byte, error) {
	var salt [apr1Salt]byte
	if _, err := io.ReadFull(random, salt[:]); err != nil {
		return nil, fmt.Errorf("draw a salt: %w", err)
	}
	for i := range salt {
		salt[i] = crypt64[salt[i]&0x3f]
	}
	return []byte(apr1Crypt(password, string(salt[:]))), nil
}

// apr1Crypt follows the MD5 crypt of FreeBSD (Poul-Henning Kamp), with Apache's magic, as Apache's "Password Formats"
// page and the manual of openssl-passwd describe it.
func apr1Crypt(password, salt string) string {
	inner := md5.Sum([]byte(password + salt + password))
	h := md5.New()
	io.WriteString(h, password+apr1Magic+salt)
	for left := len(password); left > 0; left -= md5.Size {
		h.Write(inner[:min(left, md5.Size)])
	}
	for bits := len(password); bits > 0; bits >>= 1 {
		if bits&1 == 1 {
			h.Write([]byte{0})
		} else {
			io.WriteString(h, password[:1])
		}
	}
	sum := h.Sum(nil)
	for round := range apr1Rounds {
		sum = apr1Round(round, sum, password, salt)
	}
	return apr1Magic + salt + "$" + apr1Encode(sum)
}

// apr1Round hashes the last sum once more, with password and salt mixed in by the round's number.
func apr1Round(round int, sum []byte, password, salt string) []byte {
	first, last := string(sum), password
	if round%2 == 1 {
		first, last = password, string(sum)
	}
	h := md5.New()
	io.WriteString(h, first)
	if round%3 != 0 {
		io.WriteString(h, salt)
	}
	if round%7 != 0 {
		io.WriteString(h, password)
	}
	io.WriteString(h, last)
	return h.Sum(nil)
}

// apr1Encode writes the 16 bytes in the order and alphabet of crypt(3): five groups of three bytes, and the last byte.
func apr1Encode(sum []byte) string {
	var b strings.Builder
	digits := func(v uint, n int) {
		for ; n > 0; n-- {
			b.WriteByte(crypt64[v&0x3f])
			v >>= 6
		}
	}
	for i := range 5 {
		last := i + 12
		if i == 4 {
			last = 5
		}
		digits(uint(sum[i])<<16|uint(sum[i+6])<<8|uint(sum[last]), 4)
	}
	digits(uint(sum[11]), 2)
	return b.String()
}
