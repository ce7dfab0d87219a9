package format

import (
	"unicode/utf8"

	"github.com/xdg-go/stringprep"
	"golang.org/x/text/unicode/norm"
)

// saslprep is SASLprep (RFC 4013) up to the normalization, in the order in which PostgreSQL goes: it maps a zero width
// space to a space and not to nothing, for both tables have it, and looks for what is prohibited or unassigned before it
// normalizes, not after. In either case one password in a few would not log in.
var saslprep = stringprep.Profile{
	Mappings: []stringprep.Mapping{spaces(), stringprep.TableB1},
	Prohibits: []stringprep.Set{
		stringprep.TableA1, stringprep.TableC1_2, stringprep.TableC2_1, stringprep.TableC2_2, stringprep.TableC3,
		stringprep.TableC4, stringprep.TableC5, stringprep.TableC6, stringprep.TableC7, stringprep.TableC8, stringprep.TableC9,
	},
	CheckBiDi: true,
}

// spaces maps all that is a space outside ASCII to the one inside.
func spaces() stringprep.Mapping {
	m := stringprep.Mapping{}
	for _, between := range stringprep.TableC1_2 {
		for r := between[0]; r <= between[1]; r++ {
			m[r] = []rune{' '}
		}
	}
	return m
}

// prepared is a password as SCRAM hashes it: by SASLprep where that allows it, else as it is. PostgreSQL and libpq both
// do so, and an account whose password one of them prepared otherwise could not log in.
func prepared(password string) string {
	if !utf8.ValidString(password) {
		return password
	}
	mapped, err := saslprep.Prepare(password)
	if err != nil || mapped == "" {
		return password
	}
	return norm.NFKC.String(mapped)
}
