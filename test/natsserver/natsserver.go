// Package natsserver starts real NATS servers with JetStream for a test: in a process of its own, which the test may
// kill and restart, or in the test's process.
package natsserver

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/test/sandbox/process"
)

// A Server is a NATS server in a process of its own that syncs every write. It may be killed and restarted.
type Server struct {
	*process.Process
	Address       string // host and port
	Store         string // the folder of JetStream, in which it keeps a folder "jetstream"
	Configuration string // the path of its configuration, which it reads anew when it is restarted
}

// Start starts one, with more lines of configuration if there are any. It is killed when the test ends.
func Start(t testing.TB, more ...string) *Server {
	t.Helper()
	path, err := process.Binary("nats-server")
	require.NoError(t, err)
	directory := t.TempDir()
	s := &Server{Store: directory, Configuration: filepath.Join(directory, "server.conf")}
	s.Address, err = process.FreeAddress()
	require.NoError(t, err)
	s.Configure(t, more...)
	s.Process, err = process.Start(t.Context(), process.Options{
		Name: "nats-server", Path: path, Arguments: []string{"--config", s.Configuration}, LogFile: filepath.Join(directory, "log"),
		Ready: process.Listens(s.Address),
	})
	require.NoError(t, err)
	t.Cleanup(s.Kill)
	return s
}

// Configure writes its configuration for the next start, with more lines if there are any.
func (s *Server) Configure(t testing.TB, more ...string) {
	t.Helper()
	text := fmt.Sprintf("listen: %q\njetstream { store_dir: %q, sync_interval: always }\n", s.Address, s.Store)
	for _, line := range more {
		text += line + "\n"
	}
	require.NoError(t, os.WriteFile(s.Configuration, []byte(text), 0o600))
}

// URL is where its clients find it.
func (s *Server) URL() string { return "nats://" + s.Address }

// Options of a server in the test's process, at an address that stays its own while it is down.
func Options(t testing.TB) *server.Options {
	t.Helper()
	address, err := process.FreeAddress()
	require.NoError(t, err)
	host, text, err := net.SplitHostPort(address)
	require.NoError(t, err)
	port, err := strconv.Atoi(text)
	require.NoError(t, err)
	return &server.Options{Host: host, Port: port, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir()}
}

// Run starts a server in the test's process. It ends with the test at the latest.
func Run(t testing.TB, options *server.Options) *server.Server {
	t.Helper()
	s, err := server.NewServer(options)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(time.Minute), "the NATS server does not start")
	return s
}

// Cluster starts three servers in the test's process, as Run does, and waits until they can keep streams together. Change
// may change the options of each.
func Cluster(t testing.TB, change func(*server.Options)) []*server.Server {
	t.Helper()
	options := make([]*server.Options, 3)
	var routes []string
	for i := range options {
		options[i] = Options(t)
		listen := Options(t)
		options[i].ServerName = fmt.Sprintf("server-%d", i)
		options[i].Cluster = server.ClusterOpts{Name: "test", Host: listen.Host, Port: listen.Port}
		routes = append(routes, fmt.Sprintf("nats://%s:%d", listen.Host, listen.Port))
	}
	var servers []*server.Server
	for _, o := range options {
		o.Routes = server.RoutesFromStr(strings.Join(routes, ","))
		change(o)
		servers = append(servers, Run(t, o))
	}
	leads := func(s *server.Server) bool {
		return s.JetStreamIsLeader() && len(s.JetStreamClusterPeers()) == len(servers)
	}
	require.Eventually(t, func() bool { return slices.ContainsFunc(servers, leads) }, 2*time.Minute, 20*time.Millisecond, "no leader knows all")
	return servers
}
