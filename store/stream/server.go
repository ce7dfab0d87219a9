package stream

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// ErrLocked is returned by Open when another process, or another Stream of this one, holds the directory.
var ErrLocked = errors.New("stream directory is in use")

// embedded is a NATS server within the process that listens nowhere.
type embedded struct {
	server *server.Server
	lock   *os.File
}

// startTimeout is how long an embedded server may take to read its store.
const startTimeout = 2 * time.Minute

// startEmbedded starts a server on directory, which it holds alone until stop. maxStore bounds what its streams may
// reserve and use together, in bytes.
func startEmbedded(directory string, maxStore int64, log *slog.Logger) (*embedded, error) {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, fmt.Errorf("make the stream directory: %w", err)
	}
	lock, err := lockDirectory(directory)
	if err != nil {
		return nil, err
	}
	s, err := server.NewServer(&server.Options{
		ServerName:         "mintlog",
		DontListen:         true,
		NoSigs:             true,
		JetStream:          true,
		StoreDir:           directory,
		SyncAlways:         true,
		JetStreamMaxStore:  maxStore,
		JetStreamMaxMemory: 16 << 20, // nothing is kept in memory
		MaxPayload:         maxPayload,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("configure the embedded server: %w", err), lock.Close())
	}
	s.SetLoggerV2(serverLog{log}, false, false, false)
	s.Start()
	e := &embedded{server: s, lock: lock}
	if !s.ReadyForConnections(startTimeout) || !s.JetStreamEnabled() {
		return nil, errors.Join(errors.New("the embedded server did not start; its log says why"), e.stop())
	}
	return e, nil
}

func lockDirectory(directory string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(directory, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the stream directory: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %s: %w", ErrLocked, directory, err), lock.Close())
	}
	return lock, nil
}

func (e *embedded) stop() error {
	e.server.Shutdown()
	e.server.WaitForShutdown()
	return e.lock.Close()
}

// serverLog passes on what the embedded server warns of. It never traces, so no message's contents are in it.
type serverLog struct{ log *slog.Logger }

func (l serverLog) Noticef(string, ...any) {}
func (l serverLog) Debugf(string, ...any)  {}
func (l serverLog) Tracef(string, ...any)  {}

func (l serverLog) Warnf(format string, v ...any) {
	l.log.Warn("embedded NATS server", "message", strings.TrimSpace(fmt.Sprintf(format, v...)))
}

func (l serverLog) Errorf(format string, v ...any) {
	l.log.Error("embedded NATS server", "message", strings.TrimSpace(fmt.Sprintf(format, v...)))
}

func (l serverLog) Fatalf(format string, v ...any) { l.Errorf(format, v...) }
