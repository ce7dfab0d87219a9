// Package ha holds the tests of what happens while nodes, brokers and processes come and go: mintlog with two replicas of
// each part, around a JetStream cluster of three servers. What they start, the benchmark starts too.
package ha

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/mintlog/mintlog/test/sandbox/process"
)

// Servers are how many NATS servers a cluster has, and Replicas how many of them keep each stream.
const (
	Servers  = 3
	Replicas = 3
)

// patience is how long something that has to come may take, on a machine that is busy with much else.
const patience = 3 * time.Minute

// A NATS is a JetStream cluster on loopback whose servers sync every write.
type NATS struct {
	directory string
	servers   []*process.Process
	addresses []string
}

// StartNATS starts the servers, with their files and logs below directory, and waits until they have elected a leader.
// Close ends them.
func StartNATS(ctx context.Context, directory string) (*NATS, error) {
	binary, err := process.Binary("nats-server")
	if err != nil {
		return nil, err
	}
	n := &NATS{directory: directory}
	var routes []string
	for range Servers {
		for _, list := range []*[]string{&n.addresses, &routes} {
			address, err := process.FreeAddress()
			if err != nil {
				return nil, err
			}
			*list = append(*list, address)
		}
	}
	for i := range Servers {
		if err := os.MkdirAll(directory, 0o700); err != nil {
			return nil, err
		}
		configuration := filepath.Join(directory, serverName(i)+".conf")
		text := fmt.Sprintf("server_name: %s\nlisten: %q\njetstream { store_dir: %q, sync_interval: always }\ncluster { name: mintlog, listen: %q, routes: [%s] }\n",
			serverName(i), n.addresses[i], n.store(i), routes[i], "nats://"+strings.Join(routes, ", nats://"))
		if err := os.WriteFile(configuration, []byte(text), 0o600); err != nil {
			return nil, err
		}
		server, err := process.Start(ctx, process.Options{
			Name: serverName(i), Path: binary, Arguments: []string{"--config", configuration}, LogFile: filepath.Join(directory, serverName(i)+".log"),
			Ready: process.Listens(n.addresses[i]),
		})
		if err != nil {
			return nil, errors.Join(err, n.Close())
		}
		n.servers = append(n.servers, server)
	}
	if err := n.awaitLeader(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func serverName(i int) string { return fmt.Sprintf("nats-%d", i) }

// store is where a server keeps its streams.
func (n *NATS) store(i int) string { return filepath.Join(n.directory, serverName(i)) }

// URL names all servers.
func (n *NATS) URL() string { return "nats://" + strings.Join(n.addresses, ",nats://") }

// Server is one of the processes.
func (n *NATS) Server(i int) *process.Process { return n.servers[i] }

// Close ends all servers.
func (n *NATS) Close() error {
	for _, server := range n.servers {
		server.Kill()
	}
	return nil
}

// ask calls f with a connection of its own to those servers that run.
func (n *NATS) ask(ctx context.Context, f func(context.Context, *nats.Conn, jetstream.JetStream) error) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	conn, err := nats.Connect(n.URL(), nats.Timeout(5*time.Second))
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	return f(ctx, conn, js)
}

// awaitLeader waits until the cluster answers for its streams.
func (n *NATS) awaitLeader(ctx context.Context) error {
	return eventually(ctx, patience, func(ctx context.Context) error {
		return n.ask(ctx, func(ctx context.Context, _ *nats.Conn, js jetstream.JetStream) error {
			_, err := js.AccountInfo(ctx)
			return err
		})
	})
}

// Leader is the number of the server that leads a stream.
func (n *NATS) Leader(ctx context.Context, stream string) (int, error) {
	leader := -1
	err := eventually(ctx, patience, func(ctx context.Context) error {
		return n.ask(ctx, func(ctx context.Context, _ *nats.Conn, js jetstream.JetStream) error {
			s, err := js.Stream(ctx, stream)
			if err != nil {
				return err
			}
			for i := range n.servers {
				if s.CachedInfo().Cluster != nil && s.CachedInfo().Cluster.Leader == serverName(i) {
					leader = i
					return nil
				}
			}
			return fmt.Errorf("the stream %s has no leader", stream)
		})
	})
	return leader, err
}

// AwaitReplicas waits until every replica of a stream is up and has what its leader has.
func (n *NATS) AwaitReplicas(ctx context.Context, stream string) error {
	return eventually(ctx, patience, func(ctx context.Context) error {
		return n.ask(ctx, func(ctx context.Context, _ *nats.Conn, js jetstream.JetStream) error {
			s, err := js.Stream(ctx, stream)
			if err != nil {
				return err
			}
			cluster := s.CachedInfo().Cluster
			if cluster == nil || len(cluster.Replicas) != Replicas-1 {
				return fmt.Errorf("the stream %s has not %d replicas", stream, Replicas)
			}
			for _, r := range cluster.Replicas {
				if r.Offline || !r.Current {
					return fmt.Errorf("the replica of %s on %s is behind", stream, r.Name)
				}
			}
			return nil
		})
	})
}

// DeleteStream deletes a stream, as somebody with too many rights would.
func (n *NATS) DeleteStream(ctx context.Context, stream string) error {
	return eventually(ctx, patience, func(ctx context.Context) error {
		return n.ask(ctx, func(ctx context.Context, _ *nats.Conn, js jetstream.JetStream) error {
			err := js.DeleteStream(ctx, stream)
			if errors.Is(err, jetstream.ErrStreamNotFound) { // an answer before was lost
				return nil
			}
			return err
		})
	})
}

// Lose takes all servers and all that they keep away, and starts them empty.
func (n *NATS) Lose(ctx context.Context) error {
	for i, server := range n.servers {
		server.Kill()
		if err := os.RemoveAll(n.store(i)); err != nil {
			return err
		}
	}
	for _, server := range n.servers {
		if err := server.Restart(ctx); err != nil {
			return err
		}
	}
	return n.awaitLeader(ctx)
}

// eventually repeats a step until it succeeds, for at most limit, and returns its last error.
func eventually(ctx context.Context, limit time.Duration, step func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := step(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", limit, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
