package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// An alternate screen has no scrollback, and what was on the screen before comes back when it is left.
const (
	enterAlternate = "\x1b[?1049h\x1b[2J\x1b[H"
	leaveAlternate = "\x1b[2J\x1b[H\x1b[?1049l"
)

// errNoKey is for a key that somebody does not want to press.
var errNoKey = errors.New("interrupted")

// A screen is the terminal that standard output is.
type screen struct {
	out       io.Writer
	err       io.Writer
	clearable bool                        // it knows an alternate screen
	key       func(context.Context) error // waits for a key, which is not echoed; errNoKey at Ctrl-C and Ctrl-D
}

// ready waits until somebody wants to see a password here.
func (s *screen) ready(ctx context.Context) error {
	if s.clearable {
		fmt.Fprintln(s.err, "The password will be shown here until you press a key, and then be cleared. Press any key to make it, Ctrl-C not to.")
	} else {
		fmt.Fprintln(s.err, "The password will be shown here, and this terminal cannot clear it. Press any key to make it, Ctrl-C not to.")
	}
	return s.key(ctx)
}

// show shows a text until a key is pressed or the context ends, and leaves nothing of it where the terminal can.
func (s *screen) show(ctx context.Context, text string) error {
	if !s.clearable {
		_, err := io.WriteString(s.out, text)
		return err
	}
	_, err := io.WriteString(s.out, enterAlternate+text)
	if err == nil {
		fmt.Fprint(s.err, "\nPress any key to clear it. ")
		_ = s.key(ctx) // whichever way it ends, the password goes
	}
	_, cleared := io.WriteString(s.out, leaveAlternate)
	return errors.Join(err, cleared)
}

// keys waits for a key on a terminal.
func keys(in *os.File) func(context.Context) error {
	return func(ctx context.Context) error {
		before, err := term.MakeRaw(int(in.Fd()))
		if err != nil {
			return fmt.Errorf("reading a key: %w", err)
		}
		defer func() { _ = term.Restore(int(in.Fd()), before) }()
		pressed := make(chan error, 1)
		go func() {
			key := make([]byte, 64) // an arrow is several bytes
			n, err := in.Read(key)
			if err == nil && n > 0 && (key[0] == 3 || key[0] == 4) {
				err = errNoKey
			}
			pressed <- err
		}()
		select {
		case err := <-pressed:
			return err
		case <-ctx.Done():
			return errNoKey
		}
	}
}
