// Package output keeps what is logged in a test, to be read while it is still being written.
package output

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"
)

// A Buffer may be written and read by several goroutines.
type Buffer struct {
	mutex sync.Mutex
	bytes bytes.Buffer
}

// Write appends p.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.bytes.Write(p)
}

// String is all that was written.
func (b *Buffer) String() string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.bytes.String()
}

// Logger is a logger whose lines are shown if the test fails. Unlike what writes to the test itself, it may be used when
// the test has ended, as by what a closed connection still calls.
func Logger(t testing.TB) *slog.Logger {
	var lines Buffer
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(lines.String())
		}
	})
	return slog.New(slog.NewTextHandler(&lines, nil))
}
