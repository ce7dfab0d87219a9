package format

import (
	"errors"
	"fmt"
)

// Parameters are what a definition may say of its format; what is 0 is the format's default.
type Parameters struct {
	Iterations int // scram-sha-256: rounds of PBKDF2
	Cost       int // bcrypt: the binary logarithm of its rounds
}

// A Limit bounds one parameter of a format.
type Limit struct {
	Field                string // its name in a definition
	Least, Most, Default int
	of                   func(*Parameters) *int
}

// Set sets the parameter.
func (l Limit) Set(p *Parameters, value int) { *l.of(p) = value }

// Limits are those of a built-in format's parameters; none, if it has none or is not built in.
func Limits(name string) []Limit { return builtIn[name].limits }

// within are the parameters with the defaults filled in. It is an error if one is out of its limits or nobody's.
func (p Parameters) within(limits []Limit) (Parameters, error) {
	rest, full := p, p
	for _, limit := range limits {
		value := limit.of(&full)
		if *value == 0 {
			*value = limit.Default
		}
		if *value < limit.Least || *value > limit.Most {
			return Parameters{}, fmt.Errorf("%s must be from %d to %d", limit.Field, limit.Least, limit.Most)
		}
		limit.Set(&rest, 0)
	}
	if rest != (Parameters{}) {
		return Parameters{}, errors.New("a parameter is set that the format does not have")
	}
	return full, nil
}
