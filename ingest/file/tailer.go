// Package file follows audit log files as kube-apiserver writes them, through rotation, compression, truncation and
// crashes on either side, and publishes the events of ours in them.
//
// What it promises: every event whose line was in a file when the Tailer looked is published at least once, whatever
// is killed in between. Events come twice only where the process died between a publication and the checkpoint behind
// it, or where a checkpoint was lost. Where a part of a log is gone before it could be read, that is counted as a gap.
//
// What it cannot see: lines that were written and truncated away, or rotated and deleted, between two looks.
package file

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/mintlog/mintlog/ingest"
)

const (
	defaultPoll       = time.Second
	defaultRetryFirst = 100 * time.Millisecond
	defaultRetryLast  = 10 * time.Second

	// checkpointInterval is how far apart two writes of the checkpoint are at least.
	checkpointInterval = 200 * time.Millisecond
	// lookInterval is how far apart two looks at a file are at least that is written to all the time.
	lookInterval = 2 * time.Millisecond
	// publishGrace is for how long a publication may go on when the Tailer has been told to stop.
	publishGrace = 5 * time.Second
)

// Options say what a Tailer follows. Paths, Checkpoint and Publisher are needed.
type Options struct {
	// Paths of the logs. They need not exist yet. Each is a source of its own, named after its path's base where that
	// is unique.
	Paths []string
	// Names overrides sources' names, by path.
	Names map[string]string
	// Checkpoint is the path of the file that holds how far all the logs have been published. Its directory exists,
	// and no other process uses it.
	Checkpoint string
	Publisher  ingest.Publisher

	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Poll is how often a log is looked at of which no notification came; a second by default.
	Poll time.Duration
	// RetryFirst and RetryLast are the shortest and longest wait before a failed publication is repeated; 100 ms and
	// 10 s by default.
	RetryFirst, RetryLast time.Duration
	// Now is the clock; time.Now by default.
	Now func() time.Time
}

// A Tailer follows audit log files.
type Tailer struct {
	options     Options
	checkpoints *checkpoints
	metrics     *metrics
	followers   []*follower
}

// New reads the checkpoint. One that cannot be understood is reported in the log and taken for none.
func New(o Options) (*Tailer, error) {
	o.setDefaults()
	names, err := sourceNames(o.Paths, o.Names)
	if err != nil {
		return nil, err
	}
	checkpoints, err := loadCheckpoints(o.Checkpoint, o.Now)
	if errors.Is(err, errForeign) {
		o.Log.Error("The checkpoint cannot be used: all audit logs are read from their beginning", "error", err)
	} else if err != nil {
		return nil, err
	}
	t := &Tailer{options: o, checkpoints: checkpoints, metrics: newMetrics(o.Registerer, checkpoints.age)}
	for _, path := range o.Paths {
		path, err := filepath.Abs(path)
		if err != nil {
			return nil, fmt.Errorf("finding the audit log %s: %w", path, err)
		}
		t.followers = append(t.followers, newFollower(t, path, names[len(t.followers)]))
	}
	return t, nil
}

func (o *Options) setDefaults() {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Poll <= 0 {
		o.Poll = defaultPoll
	}
	if o.RetryFirst <= 0 {
		o.RetryFirst = defaultRetryFirst
	}
	if o.RetryLast <= 0 {
		o.RetryLast = max(defaultRetryLast, o.RetryFirst)
	}
}

// sourceNames gives each path its configured name, else its base if no other needs the same, else itself.
func sourceNames(paths []string, configured map[string]string) ([]string, error) {
	if len(paths) == 0 {
		return nil, errors.New("no audit log to follow")
	}
	bases := map[string]int{}
	for _, path := range paths {
		if configured[path] == "" {
			bases[filepath.Base(path)]++
		}
	}
	names := make([]string, len(paths))
	seen := map[string]bool{}
	for i, path := range paths {
		switch base := filepath.Base(path); {
		case configured[path] != "":
			names[i] = configured[path]
		case bases[base] == 1:
			names[i] = base
		default:
			names[i] = path
		}
		if seen[names[i]] {
			return nil, fmt.Errorf("two audit logs are named %q", names[i])
		}
		seen[names[i]] = true
	}
	return names, nil
}

// Run follows the logs until ctx is done. It then waits for publications under way, up to five seconds, writes the
// checkpoint, and returns nil unless that failed.
func (t *Tailer) Run(ctx context.Context) error {
	var followers, helpers sync.WaitGroup
	for _, f := range t.followers {
		followers.Go(func() { f.run(ctx) })
	}
	helpers.Go(func() { t.notify(ctx) })
	helpers.Go(func() { t.saveCheckpoints(ctx) })
	followers.Wait()
	helpers.Wait()
	return t.checkpoints.save()
}

// saveCheckpoints writes the checkpoint when there is something new.
func (t *Tailer) saveCheckpoints(ctx context.Context) {
	failing := false
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-t.checkpoints.dirty:
		}
		err := t.checkpoints.save()
		if err != nil {
			t.metrics.checkpointFailures.Inc()
			t.checkpoints.mark()
		}
		if failed := err != nil; failed != failing {
			failing = failed
			if failed {
				t.options.Log.Error("The checkpoint cannot be written: after a restart events are read again", "error", err)
			} else {
				t.options.Log.Info("The checkpoint is written again")
			}
		}
		sleep(ctx, checkpointInterval)
	}
}

// notify wakes the logs when something changes in their directories. It does so on polling alone where the system
// gives no notifications.
func (t *Tailer) notify(ctx context.Context) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		t.options.Log.Warn("No notifications of changes: audit logs are polled", "interval", t.options.Poll, "error", err)
		return
	}
	defer watcher.Close()
	poll := time.NewTicker(t.options.Poll)
	defer poll.Stop()
	t.watch(watcher)
	t.wake("")
	for {
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
			t.watch(watcher) // a directory may be new, or another than it was
		case <-watcher.Errors: // notifications were lost
			t.wake("")
		case event := <-watcher.Events:
			t.wake(filepath.Dir(event.Name))
		}
	}
}

// watch has the watcher watch the directories of all logs. One that does not exist is tried again at the next poll.
func (t *Tailer) watch(watcher *fsnotify.Watcher) {
	for _, f := range t.followers {
		_ = watcher.Add(filepath.Dir(f.path))
	}
}

// wake has the logs in a directory looked at, or all of them.
func (t *Tailer) wake(directory string) {
	for _, f := range t.followers {
		if directory == "" || directory == filepath.Dir(f.path) {
			f.wake()
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
