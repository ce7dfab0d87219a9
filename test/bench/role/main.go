// Command role is mintlog's accounts role, or its informers alone, in a process with nothing else in it, which answers
// what the benchmark asks.
//
//	role accounts   KUBECONFIG WORKERS   the role, with as many workers
//	role informers  KUBECONFIG           what it keeps of the cluster, and nothing that works on it
//
// Each line of standard input is a question, answered with one line of JSON: "state" with what has been written and how
// many account Secrets are in the caches, "memory" with what the process holds when what is no more needed has gone. It
// ends when standard input does. With CPU_PROFILE it writes a profile to that path.
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/pprof"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mintlog/mintlog/mint/accounts"
	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/test/bench/cost"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "role:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	whole := len(arguments) == 3 && arguments[0] == "accounts"
	if !whole && (len(arguments) != 2 || arguments[0] != "informers") {
		return errors.New("usage: role accounts KUBECONFIG WORKERS | role informers KUBECONFIG")
	}
	stop, err := profile(os.Getenv("CPU_PROFILE"))
	if err != nil {
		return err
	}
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", arguments[1])
	if err != nil {
		return err
	}
	config.QPS = -1 // as mintlog has it
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	caches, err := cluster.New(cluster.Options{Config: config, Log: log})
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	parts := []func(context.Context) error{caches.Run}
	if whole {
		workers, err := strconv.Atoi(arguments[2])
		if err != nil {
			return err
		}
		role, err := newRole(config, caches, workers, log, registry)
		if err != nil {
			return err
		}
		parts = append(parts, role.Run)
	}
	ctx, cancel := context.WithCancel(context.Background())
	group, ctx := errgroup.WithContext(ctx)
	for _, part := range parts {
		group.Go(func() error { return part(ctx) })
	}
	err = answer(registry, caches)
	cancel()
	return errors.Join(err, group.Wait())
}

func profile(path string) (stop func(), err error) {
	if path == "" {
		return func() {}, nil
	}
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return func() { pprof.StopCPUProfile(); _ = file.Close() }, pprof.StartCPUProfile(file)
}

// newRole is the role as "mintlog accounts" makes it.
func newRole(config *rest.Config, caches *cluster.Cluster, workers int, log *slog.Logger, registry *prometheus.Registry) (*accounts.Accounts, error) {
	config = rest.CopyConfig(config)
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return accounts.New(accounts.Options{
		Cluster: caches, Client: client, Namespace: "mintlog", Projector: "projector", Workers: workers,
		Random: rand.Reader, Log: log, Registerer: registry,
	})
}

// answer answers questions until there are no more.
func answer(registry *prometheus.Registry, caches *cluster.Cluster) error {
	questions := bufio.NewScanner(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	for questions.Scan() {
		var said any
		var err error
		switch questions.Text() {
		case "state":
			said, err = state(registry, caches)
		case "memory":
			said, err = cost.Now(true)
		default:
			err = fmt.Errorf("nobody knows %q", questions.Text())
		}
		if err = errors.Join(err, answers.Encode(said)); err != nil {
			return err
		}
	}
	return questions.Err()
}

func state(registry *prometheus.Registry, caches *cluster.Cluster) (cost.Role, error) {
	s := cost.Role{Cached: len(caches.AllAccountSecrets())}
	families, err := registry.Gather()
	for _, family := range families {
		if family.GetName() == "mintlog_accounts_writes_total" {
			for _, m := range family.GetMetric() {
				s.Written += int(m.GetCounter().GetValue())
			}
		}
	}
	return s, err
}
