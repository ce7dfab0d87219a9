package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/rest"

	"github.com/mintlog/mintlog/test/bench/cost"
	"github.com/mintlog/mintlog/test/ha"
	"github.com/mintlog/mintlog/test/sandbox"
)

const (
	rollingMints    = 1000
	rollingAccounts = 20
	brokerRounds    = 3
	brokerLimit     = 2 * time.Minute
	eventsStream    = "MINTLOG_EVENTS"

	idleSettling = 45 * time.Second
	idleTime     = 60 * time.Second
)

// availability runs two of each part around a JetStream cluster of three, restarts all of them under mints, and takes the
// stream's leader away.
func (b *bencher) availability(ctx context.Context) (figures []figure, err error) {
	s, err := sandbox.Start(ctx, ha.SandboxOptions(sandbox.Options{Log: os.Stderr, Synced: true}))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	house, err := ha.Open(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, house.Close()) }()
	credentials, err := house.Application(ctx, "rolling", rollingAccounts)
	if err != nil {
		return nil, err
	}
	rolling, err := house.RollingRestart(ctx, rollingMints, credentials)
	if err != nil {
		return nil, err
	}
	for _, failure := range rolling.Failures {
		fmt.Fprintln(os.Stderr, failure)
	}
	figures = append(figures, figure{
		what: fmt.Sprintf("mints that failed while each of %d processes was restarted, of %d in %s; beside those that a client repeated on 503 or 429",
			len(rolling.Restarts), rolling.Mints, rolling.Took.Round(time.Second)),
		measured: fmt.Sprint(rolling.Failed), beside: fmt.Sprint(rolling.Repeats), ratio: "-", goal: "0",
	})
	for _, way := range []struct {
		what, goal string
		end        func(leader int) error
	}{
		{"SIGKILL", "≤ 15 s", func(leader int) error { house.NATS.Server(leader).Kill(); return nil }},
		{"graceful stop", "≤ 3 s", func(leader int) error { return house.NATS.Server(leader).Stop() }},
	} {
		var longest time.Duration
		for round := range brokerRounds {
			took, err := untilAttributed(ctx, house, credentials[round], way.end)
			if err != nil {
				return figures, fmt.Errorf("after a %s of the stream's leader: %w", way.what, err)
			}
			longest = max(longest, took)
		}
		figures = append(figures, figure{
			what:     fmt.Sprintf("from a stream leader's %s to the next attributed mint, the longest of %d", way.what, brokerRounds),
			measured: fmt.Sprintf("%.1f s", longest.Seconds()), beside: "-", ratio: "-", goal: way.goal,
		})
	}
	return figures, nil
}

// untilAttributed ends the server that leads the stream of events and mints at once. It returns the time from the end
// until the view says who minted, and has the server back.
func untilAttributed(ctx context.Context, house *ha.House, credential string, end func(leader int) error) (time.Duration, error) {
	client, err := rest.HTTPClientFor(house.Config(sandbox.Jane))
	if err != nil {
		return 0, err
	}
	leader, err := house.NATS.Leader(ctx, eventsStream)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := end(leader); err != nil {
		return 0, err
	}
	id, _, err := house.Mint(ctx, client, credential)
	if err != nil {
		return 0, err
	}
	if err := house.AwaitAttributed(ctx, client, brokerLimit, credential, id, "jane"); err != nil {
		return 0, err
	}
	took := time.Since(began)
	if err := house.NATS.Server(leader).Restart(ctx); err != nil {
		return 0, err
	}
	return took, house.NATS.AwaitReplicas(ctx, eventsStream)
}

// idle measures "mintlog all" with a thousand accounts while nothing happens.
func (b *bencher) idle(ctx context.Context) (figures []figure, err error) {
	s, err := sandbox.Start(ctx, sandbox.Options{Log: os.Stderr, Synced: true})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	all, err := s.RunAll(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.LayDefinition(ctx); err != nil {
		return nil, err
	}
	if err := s.AwaitFirstSight(ctx, "Postgres"); err != nil {
		return nil, err
	}
	const applications = 20
	for n := range applications {
		if _, err := s.InstallRelease(ctx, sandbox.TenantAcme, "Postgres", fmt.Sprintf("idle%d", n), users(accounts/applications)); err != nil {
			return nil, err
		}
	}
	b = &bencher{admin: s.Kubernetes(sandbox.ClusterAdmin, 0)}
	if err := b.seeded(ctx, sandbox.TenantAcme, accounts); err != nil {
		return nil, err
	}
	pause := func(d time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	pause(idleSettling)
	before, err := cost.CPU(all.PID())
	if err != nil {
		return nil, err
	}
	began := time.Now()
	pause(idleTime)
	after, err := cost.CPU(all.PID())
	if err != nil {
		return nil, err
	}
	share := 100 * float64(after-before) / float64(time.Since(began))
	resident, err := cost.Status(all.PID(), "VmRSS")
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("mintlog all with %d accounts, idle for %s", accounts, idleTime)
	return []figure{
		{what: what + ": resident memory", measured: mib(float64(resident)), beside: "-", ratio: "-", goal: "≤ 150 MiB"},
		{what: what + ": of one core", measured: fmt.Sprintf("%.2f %%", share), beside: "-", ratio: "-", goal: "≤ 2 %"},
	}, ctx.Err()
}
