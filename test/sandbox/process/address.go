package process

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

var (
	heldMutex sync.Mutex
	held      []net.PacketConn // for as long as this process lives: see FreeAddress
)

// FreeAddress finds a port of 127.0.0.1 that nobody listens on and that no other living process got from here. It lies
// below the ports that the kernel gives to outgoing connections, so that none of those takes it before the server does.
//
// Between two tests' processes the UDP port of the same number is the token: who has bound it may listen on the TCP
// port, now or at a server's restart. No server of the tests speaks UDP.
func FreeAddress() (string, error) {
	heldMutex.Lock()
	defer heldMutex.Unlock()
	for range 100 {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(15000+rand.IntN(17000)))
		token, err := net.ListenPacket("udp", address)
		if err != nil {
			continue
		}
		listener, err := net.Listen("tcp", address)
		if err != nil {
			_ = token.Close()
			continue
		}
		held = append(held, token)
		return address, listener.Close()
	}
	return "", errors.New("finding a free port of 127.0.0.1: 100 tries failed")
}
