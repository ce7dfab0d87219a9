package sandbox_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/test/sandbox/process"
)

func TestEveryServerAndMintlogListenOnLoopbackOnly(t *testing.T) {
	_, err := startNATS()
	require.NoError(t, err)
	mintlog, err := cluster.RunAll(t.Context())
	require.NoError(t, err)
	defer func() {
		removeAPI(t)
		require.NoError(t, mintlog.Stop())
	}()
	seen := map[string]bool{}
	for _, server := range cluster.Processes() {
		if !server.Running() {
			continue
		}
		seen[server.Name()] = true
		addresses := listeners(t, server)
		require.NotEmpty(t, addresses, "%s listens nowhere", server.Name())
		for _, address := range addresses {
			require.True(t, address.Addr().IsLoopback(), "%s listens on %s", server.Name(), address)
		}
	}
	for _, name := range []string{
		"etcd", "victoria-logs", "kube-apiserver-0", "kube-apiserver-1", "kube-controller-manager", "nats-server", "mintlog",
	} {
		require.True(t, seen[name], "%s was not looked at", name)
	}
}

func TestListenersOfAnyAddressAreSeen(t *testing.T) {
	f := func(line string, want string) {
		t.Helper()
		address, inode, listens := listener(line)
		require.Equal(t, want != "", listens)
		if listens {
			require.Equal(t, netip.MustParseAddrPort(want), address)
			require.Equal(t, "4242", inode)
		}
	}
	const rest = " 00000000:00000000 00:00000000 00000000     0        0 4242 1 0000000000000000 100 0 0 10 0"
	hex := func(address string) string { // as the kernel prints it
		var text string
		bytes := netip.MustParseAddr(address).AsSlice()
		for ; len(bytes) > 0; bytes = bytes[4:] {
			text += fmt.Sprintf("%08X", binary.NativeEndian.Uint32(bytes))
		}
		return text
	}
	f("   0: "+hex("0.0.0.0")+":3039 00000000:0000 0A"+rest, "0.0.0.0:12345")
	f("   0: "+hex("127.0.0.1")+":3039 00000000:0000 0A"+rest, "127.0.0.1:12345")
	f("   0: "+hex("::")+":3039 00000000000000000000000000000000:0000 0A"+rest, "[::]:12345")
	f("   0: "+hex("2001:db8::7")+":3039 00000000000000000000000000000000:0000 0A"+rest, "[2001:db8::7]:12345")
	f("   0: "+hex("::ffff:127.0.0.1")+":3039 00000000000000000000000000000000:0000 0A"+rest, "127.0.0.1:12345")
	f("   0: "+hex("0.0.0.0")+":3039 00000000:0000 01"+rest, "")
	f("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode", "")
}

// listeners are the TCP addresses that a running process listens on.
func listeners(t *testing.T, server *process.Process) []netip.AddrPort {
	t.Helper()
	folder := filepath.Join("/proc", strconv.Itoa(server.PID()))
	entries, err := os.ReadDir(filepath.Join(folder, "fd"))
	require.NoError(t, err)
	open := map[string]bool{}
	for _, entry := range entries {
		target, _ := os.Readlink(filepath.Join(folder, "fd", entry.Name())) // a file that was closed meanwhile
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			open[strings.TrimSuffix(inode, "]")] = true
		}
	}
	var found []netip.AddrPort
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(filepath.Join(folder, "net", table))
		if os.IsNotExist(err) && table == "tcp6" {
			continue // a kernel without IPv6
		}
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			if address, inode, listens := listener(line); listens && open[inode] {
				found = append(found, address)
			}
		}
	}
	return found
}

// listener reads a line of /proc/net/tcp or tcp6: an address is in words of the machine's byte order.
func listener(line string) (address netip.AddrPort, inode string, listens bool) {
	const listening = "0A"
	fields := strings.Fields(line)
	if len(fields) < 10 || fields[3] != listening {
		return netip.AddrPort{}, "", false
	}
	words, port, _ := strings.Cut(fields[1], ":")
	var bytes []byte
	for ; len(words) >= 8; words = words[8:] {
		word, err := strconv.ParseUint(words[:8], 16, 32)
		if err != nil {
			return netip.AddrPort{}, "", false
		}
		bytes = binary.NativeEndian.AppendUint32(bytes, uint32(word))
	}
	ip, ok := netip.AddrFromSlice(bytes)
	number, err := strconv.ParseUint(port, 16, 16)
	return netip.AddrPortFrom(ip.Unmap(), uint16(number)), fields[9], ok && err == nil
}
