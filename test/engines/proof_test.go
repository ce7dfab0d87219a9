package engines_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/mint/format"
	"github.com/mintlog/mintlog/test/engines"
)

// A proof says what a format's stored forms are for in an engine.
type proof struct {
	engine   engines.Engine
	format   string
	username string
	shape    *regexp.Regexp // of every stored form, whole
	salted   bool           // two stored forms of one password differ
	verifier bool           // what is stored logs nobody in
	rounds   int            // minted passwords
	mutants  map[string]mutant
}

// A mutant is a format that is wrong in one way.
type mutant func(format.Formatter) format.Formatter

// run proves the format, and then that the same proof fails with each of its mutants.
func (p proof) run(t *testing.T) {
	formatter, ok := format.Built(p.format)
	require.True(t, ok, p.format)
	require.NoError(t, p.holds(t.Context(), formatter, p.rounds))
	require.NotEmpty(t, p.mutants)
	for name, mutate := range p.mutants {
		err := p.holds(t.Context(), mutate(formatter), 1)
		assert.Error(t, err, "the proof holds for a format with %s", name)
		t.Logf("caught: %s (%v)", name, err)
	}
}

// holds mints passwords, one in the place of the other, and revokes the last. Its errors quote neither a password nor a
// stored form.
func (p proof) holds(ctx context.Context, formatter format.Formatter, rounds int) error {
	previous := "never set"
	for range rounds {
		password, err := format.NewPassword(rand.Reader)
		if err != nil {
			return err
		}
		stored, err := p.apply(ctx, formatter, password)
		if err != nil {
			return err
		}
		if err := p.engine.Login(ctx, p.username, password); err != nil {
			return fmt.Errorf("the new password: %w", err)
		}
		refused := []string{password + "x", password[:len(password)-1], previous}
		if p.verifier {
			refused = append(refused, stored)
		}
		if err := p.refuses(ctx, refused...); err != nil {
			return err
		}
		previous = password
	}
	nobodys, err := format.NewPassword(rand.Reader)
	if err != nil {
		return err
	}
	if _, err := p.apply(ctx, formatter, nobodys); err != nil {
		return err
	}
	return p.refuses(ctx, previous)
}

// apply gives a password's stored form to the engine.
func (p proof) apply(ctx context.Context, formatter format.Formatter, password string) (string, error) {
	stored, err := formatter.Format(rand.Reader, p.username, password)
	if err != nil {
		return "", err
	}
	again, err := formatter.Format(rand.Reader, p.username, password)
	switch {
	case err != nil:
		return "", err
	case !p.shape.Match(stored):
		return "", fmt.Errorf("the stored form does not have the shape %s", p.shape)
	case p.salted == (string(stored) == string(again)):
		return "", fmt.Errorf("that two stored forms of a password differ is %t", !p.salted)
	}
	return string(stored), p.engine.Apply(ctx, p.username, string(stored))
}

func (p proof) refuses(ctx context.Context, passwords ...string) error {
	for i, password := range passwords {
		if err := p.engine.Login(ctx, p.username, password); !errors.Is(err, engines.ErrRefused) {
			return fmt.Errorf("the wrong password %d is not refused: %w", i, err)
		}
	}
	return nil
}

// of is a mutant that stores what change makes of the stored form.
func of(change func(string) string) mutant {
	return func(f format.Formatter) format.Formatter {
		return func(random io.Reader, username, password string) ([]byte, error) {
			stored, err := f(random, username, password)
			return []byte(change(string(stored))), err
		}
	}
}

// from is a mutant that stores the form of what change makes of the password.
func from(change func(string) string) mutant {
	return func(f format.Formatter) format.Formatter {
		return func(random io.Reader, username, password string) ([]byte, error) {
			return f(random, username, change(password))
		}
	}
}

var (
	aTrailingNewline = of(func(stored string) string { return stored + "\n" })
	aHashedNewline   = from(func(password string) string { return password + "\n" })
	lowerCase        = of(strings.ToLower)
	upperCase        = of(strings.ToUpper)
	theLastCutOff    = of(func(stored string) string { return stored[:len(stored)-1] })
	theFirstCutOff   = of(func(stored string) string { return stored[1:] })
)

// replaced puts one text in another's place.
func replaced(old, new string) mutant {
	return of(func(stored string) string { return strings.Replace(stored, old, new, 1) })
}

// sameSalt draws the same bytes each time.
func sameSalt(f format.Formatter) format.Formatter {
	return func(_ io.Reader, username, password string) ([]byte, error) {
		return f(strings.NewReader(strings.Repeat("salt", 64)), username, password)
	}
}

// twice stores the form of the stored form.
func twice(f format.Formatter) format.Formatter {
	return func(random io.Reader, username, password string) ([]byte, error) {
		once, err := f(random, username, password)
		if err != nil {
			return nil, err
		}
		return f(random, username, string(once))
	}
}
