package format

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/crypto/bcrypt"
)

// maxBcrypt is how many bytes of a password bcrypt reads. A longer one would be checked by its beginning alone.
const maxBcrypt = 72

// bcryptCost: at 10 a check takes about 50 ms, and an engine like nginx does it at each request. A password of ours has
// 190 bits and is as safe at the least.
var bcryptCost = Limit{
	Field: "cost", Least: bcrypt.MinCost, Most: 14, Default: bcrypt.DefaultCost,
	of: func(p *Parameters) *int { return &p.Cost },
}

// bcryptForm is $2a$<cost>$ and 53 characters. Its salt is the operating system's, not drawn from random: the library
// leaves no choice.
func bcryptForm(p Parameters) Formatter {
	return func(_ io.Reader, _, password string) ([]byte, error) {
		if len(password) > maxBcrypt {
			return nil, fmt.Errorf("the password has %d bytes, and bcrypt reads %d", len(password), maxBcrypt)
		}
		stored, err := bcrypt.GenerateFromPassword([]byte(password), p.Cost)
		if err != nil {
			return nil, errors.New("hash the password with bcrypt")
		}
		return stored, nil
	}
}

func bcryptShape(p Parameters) string { return fmt.Sprintf("$2a$%02d$<53 characters>", p.Cost) }
