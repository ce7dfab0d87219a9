package format

import (
	"fmt"
	"io"
)

// PasswordLength is the number of characters of a new password: 190 bits.
const PasswordLength = 32

// alphabet is safe in shells, URLs and every engine's configuration.
const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// NewPassword draws a password of PasswordLength characters of [A-Za-z0-9], each as likely as any other. random must be
// a cryptographically secure source.
func NewPassword(random io.Reader) (string, error) {
	const fair = 256 / len(alphabet) * len(alphabet) // bytes from here on would favour the first letters
	password := make([]byte, 0, PasswordLength)
	buffer := make([]byte, PasswordLength)
	for {
		if _, err := io.ReadFull(random, buffer); err != nil {
			return "", fmt.Errorf("draw a password: %w", err)
		}
		for _, b := range buffer {
			if int(b) >= fair {
				continue
			}
			password = append(password, alphabet[int(b)%len(alphabet)])
			if len(password) == PasswordLength {
				return string(password), nil
			}
		}
	}
}
