// Package output keeps what is logged in a test, to be read while it is still being written.
package output

import (
	"bytes"
	"sync"
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
