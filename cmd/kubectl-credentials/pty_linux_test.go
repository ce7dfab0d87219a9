package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A pty is a terminal of this machine's kernel: keys are pressed on the screen's side, and what is shown comes out there.
type pty struct {
	screen   *os.File // what somebody sits at
	terminal *os.File // what a program is given
	shown    lockedBuffer
}

func openPTY(t *testing.T, columns uint16) *pty {
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	fd := int(screen.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}))
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	p := &pty{screen: screen, terminal: terminal}
	read := make(chan struct{})
	go func() {
		defer close(read)
		text := make([]byte, 4096)
		for {
			n, err := screen.Read(text)
			if err != nil {
				return
			}
			_, _ = p.shown.Write(text[:n])
		}
	}()
	t.Cleanup(func() { terminal.Close(); <-read; screen.Close() })
	return p
}

// awaits waits until something is shown.
func (p *pty) awaits(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(p.shown.String(), text) }, time.Minute, 5*time.Millisecond, "%q is not shown", text)
}

func (p *pty) press(t *testing.T, keys string) {
	t.Helper()
	_, err := p.screen.WriteString(keys)
	require.NoError(t, err)
}

// sitting runs a command line with all three on the terminal; the channel gives its exit code.
func (p *pty) sitting(t *testing.T, s *server, variables map[string]string, args ...string) <-chan int {
	s.login(t)
	where := newTerminal(p.terminal, p.terminal, p.terminal, func(name string) string { return variables[name] })
	where.now = func() time.Time { return now }
	code := make(chan int, 1)
	go func() { code <- run(t.Context(), args, where) }()
	return code
}

func TestOnARealTerminalAPasswordIsShownBetweenTwoKeysOnTheAlternateScreen(t *testing.T) {
	p, s := openPTY(t, 80), holding(t, "Minted")
	code := p.sitting(t, s, map[string]string{"TERM": "xterm"}, "mint", "postgres-orders.app")
	p.awaits(t, "[y/N] ")
	p.press(t, "y\n")
	p.awaits(t, "Press any key to make it")
	require.Eventually(t, func() bool { return isRaw(t, p.terminal) }, time.Minute, 5*time.Millisecond)
	assert.Empty(t, s.mints(), "a key is awaited before anything is changed")
	p.press(t, "q")
	p.awaits(t, "Press any key to clear it.")
	require.Eventually(t, func() bool { return isRaw(t, p.terminal) }, time.Minute, 5*time.Millisecond)
	assert.Contains(t, p.shown.String(), enterAlternate+made+"\r\n")
	p.press(t, "\x1b[A") // an arrow is one key
	assert.Equal(t, exitOK, <-code)
	p.awaits(t, "Who asked")
	_, after, left := strings.Cut(p.shown.String(), leaveAlternate)
	assert.True(t, left)
	assert.NotContains(t, after, made)
	before, _, _ := strings.Cut(p.shown.String(), enterAlternate)
	assert.NotContains(t, before, made)
	assert.NotContains(t, p.shown.String(), "q\r\n", "the key is not echoed")
}

func TestOnARealTerminalCtrlCBeforeTheKeyChangesNothing(t *testing.T) {
	p, s := openPTY(t, 80), holding(t, "NotIssued")
	code := p.sitting(t, s, map[string]string{"TERM": "xterm"}, "mint", "postgres-orders.app")
	p.awaits(t, "Press any key to make it")
	require.Eventually(t, func() bool { return isRaw(t, p.terminal) }, time.Minute, 5*time.Millisecond)
	p.press(t, "\x03")
	assert.Equal(t, exitOther, <-code)
	assert.Empty(t, s.mints())
	assert.False(t, isRaw(t, p.terminal), "the terminal is as it was")
	assert.NotContains(t, p.shown.String(), "\x1b")
}

func isRaw(t *testing.T, terminal *os.File) bool {
	settings, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
	require.NoError(t, err)
	return settings.Lflag&unix.ECHO == 0
}

func TestARealTerminalThatIsDumbGetsNoEscapesAndSaysThatItCannotBeCleared(t *testing.T) {
	p, s := openPTY(t, 80), holding(t, "NotIssued")
	code := p.sitting(t, s, map[string]string{"TERM": "dumb"}, "mint", "postgres-orders.app")
	p.awaits(t, "cannot clear it")
	require.Eventually(t, func() bool { return isRaw(t, p.terminal) }, time.Minute, 5*time.Millisecond)
	p.press(t, " ")
	assert.Equal(t, exitOK, <-code)
	p.awaits(t, made)
	assert.NotContains(t, p.shown.String(), "\x1b")
}

func TestThePasswordToWaitWithIsNotEchoed(t *testing.T) {
	p, s := openPTY(t, 80), holding(t, "Minted")
	code := p.sitting(t, s, nil, "wait", "postgres-orders.app", "--for=login", "--address=127.0.0.1:1", "--timeout=2s", "--tls=disable")
	p.awaits(t, "Password: ")
	require.Eventually(t, func() bool { return isRaw(t, p.terminal) }, time.Minute, 5*time.Millisecond)
	p.press(t, "hunter-two\n")
	assert.Equal(t, exitTime, <-code)
	assert.NotContains(t, p.shown.String(), "hunter")
}

func TestNothingButAPasswordSendsAnEscapeToATerminalWithOrWithoutNoColor(t *testing.T) {
	for _, variables := range []map[string]string{{"TERM": "xterm-256color"}, {"TERM": "xterm-256color", "NO_COLOR": "1"}} {
		for _, args := range [][]string{{"list"}, {"history", "postgres-orders.app"}, {"--help"}, {"mint"}} {
			p, s := openPTY(t, 200), holding(t, "Minted", "OutOfBand")
			s.answers["GET "+collection] = sends(200, table())
			<-p.sitting(t, s, variables, args...)
			fmt.Fprint(p.terminal, "the end")
			p.awaits(t, "the end")
			assert.NotContains(t, p.shown.String(), "\x1b", args)
		}
	}
}
