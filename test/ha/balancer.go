package ha

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mintlog/mintlog/test/sandbox/process"
)

// A balancer stands in for kube-proxy or a load balancer: it hands each new connection to the next server that says it is
// ready, and what is connected stays connected. It asks as the kubelet does, more often.
type balancer struct {
	listener net.Listener
	backends []*backend
	next     atomic.Uint64
	stop     context.CancelFunc
	done     sync.WaitGroup
}

// A backend is a server behind it. ready says by nil that new connections may go there.
type backend struct {
	address string
	ready   func(context.Context) error
	isReady atomic.Bool
}

const readyInterval = 200 * time.Millisecond

// newBalancer listens on address, or on a free one if that is empty.
func newBalancer(address string, backends ...*backend) (*balancer, error) {
	if address == "" {
		var err error
		if address, err = process.FreeAddress(); err != nil {
			return nil, err
		}
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	b := &balancer{listener: listener, backends: backends, stop: stop}
	for _, one := range backends {
		b.done.Go(func() { one.look(ctx) })
	}
	b.done.Go(func() { b.accept(ctx) })
	return b, nil
}

func (b *balancer) address() string { return b.listener.Addr().String() }

func (b *balancer) close() {
	b.stop()
	_ = b.listener.Close()
	b.done.Wait()
}

func (b *backend) look(ctx context.Context) {
	for ctx.Err() == nil {
		asking, cancel := context.WithTimeout(ctx, 5*time.Second)
		b.isReady.Store(b.ready(asking) == nil)
		cancel()
		select {
		case <-ctx.Done():
		case <-time.After(readyInterval):
		}
	}
}

func (b *balancer) accept(ctx context.Context) {
	for {
		client, err := b.listener.Accept()
		if err != nil {
			return
		}
		b.done.Go(func() { b.connect(ctx, client) })
	}
}

// connect hands a connection on. One that nobody takes is tried elsewhere: those that are ready first.
func (b *balancer) connect(ctx context.Context, client net.Conn) {
	defer client.Close()
	start := b.next.Add(1)
	for _, wantReady := range []bool{true, false} {
		for i := range b.backends {
			one := b.backends[(start+uint64(i))%uint64(len(b.backends))]
			if one.isReady.Load() != wantReady {
				continue
			}
			server, err := new(net.Dialer).DialContext(ctx, "tcp", one.address)
			if err != nil {
				continue
			}
			carry(ctx, client, server)
			return
		}
	}
}

func carry(ctx context.Context, client, server net.Conn) {
	defer server.Close()
	defer context.AfterFunc(ctx, func() { _ = client.Close(); _ = server.Close() })()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		both.Go(func() {
			_, _ = io.Copy(way[1], way[0])
			_ = way[1].(*net.TCPConn).CloseWrite()
		})
	}
	both.Wait()
}
