package process

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

var (
	takenMutex sync.Mutex
	taken      = map[int]bool{} // ports this process has given away
)

// FreeAddress finds a port of 127.0.0.1 that nobody listens on. It lies below the ports that the kernel gives to
// outgoing connections, so that none of those takes it before the server does.
func FreeAddress() (string, error) {
	takenMutex.Lock()
	defer takenMutex.Unlock()
	for range 100 {
		port := 15000 + rand.IntN(17000)
		if taken[port] {
			continue
		}
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		listener, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		if err := listener.Close(); err != nil {
			return "", err
		}
		taken[port] = true
		return address, nil
	}
	return "", errors.New("finding a free port of 127.0.0.1: 100 tries failed")
}
