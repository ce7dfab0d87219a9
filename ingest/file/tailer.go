// Package file follows audit log files as kube-apiserver writes them, through rotation, compression, truncation and
// crashes on either side, and publishes the events of ours in them.
//
// What it promises: every event whose line was in a file when the Tailer looked is published at least once, whatever
// is killed in between. Events come twice only where the process died between a publication and the checkpoint behind
// it, or where a checkpoint was lost. Where a part of a log is gone before it could be read, or where bytes that could
// have been an event of ours give none, a gap is recorded.
//
// A gap is recorded before the checkpoint moves past it. Its bounds are times that the log itself tells, those of the
// lines around it: nothing is missing outside.
//
// What it cannot see: a file that came and went between two looks while the one before it stayed, as one of two
// rotations in one millisecond does that was not there yet at the last look; what is missing since a checkpoint that
// somebody deleted; and lines that a writer other than kube-apiserver adds to a rotated file when it is compressed.
package file

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
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
	// measureInterval is how far apart two measurements of what is left are while a log is read at a stretch.
	measureInterval = 100 * time.Millisecond
	// publishGrace is for how long a publication may go on when the Tailer has been told to stop.
	publishGrace = 5 * time.Second
)

// Options say what a Tailer follows. Paths, Checkpoint and Publisher are needed.
type Options struct {
	// Paths of the logs. They need not exist yet. Each is a source of its own, named after its path's base where that
	// is unique. One with *, ? or [ in it is a pattern as of filepath.Match: every regular file that it matches, now or
	// later, is a log named after its whole path, but for those that are called like what a log was rotated to.
	Paths []string
	// Names overrides sources' names, by path.
	Names map[string]string
	// Checkpoint is the path of the file that holds how far all the logs have been published. Its directory exists,
	// and no other process uses it.
	Checkpoint string
	Publisher  ingest.Publisher
	// Gaps records what is known to be missing of the logs; without it that is counted and logged alone.
	Gaps ingest.GapRecorder

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
	patterns    []string      // absolute
	changed     chan struct{} // holds one element when files may match that did not

	mu        sync.Mutex
	followers []*follower
}

// New reads the checkpoint. One that cannot be understood is reported in the log and taken for none.
func New(o Options) (*Tailer, error) {
	o.setDefaults()
	if len(o.Paths) == 0 {
		return nil, errors.New("no audit log to follow")
	}
	var paths, patterns []string
	for _, path := range o.Paths {
		absolute, err := filepath.Abs(path)
		if err != nil {
			return nil, fmt.Errorf("finding the audit log %s: %w", path, err)
		}
		if !isPattern(path) {
			paths = append(paths, path)
		} else if _, err := matches(absolute); err != nil {
			return nil, fmt.Errorf("the pattern of audit logs %s: %w", path, err)
		} else {
			patterns = append(patterns, absolute)
		}
	}
	names, err := sourceNames(paths, o.Names)
	if err != nil {
		return nil, err
	}
	checkpoints, err := loadCheckpoints(o.Checkpoint, o.Now)
	if errors.Is(err, errForeign) {
		o.Log.Error("The checkpoint cannot be used: all audit logs are read from their beginning", "error", err)
	} else if err != nil {
		return nil, err
	}
	t := &Tailer{
		options: o, checkpoints: checkpoints, metrics: newMetrics(o.Registerer, checkpoints.age),
		patterns: patterns, changed: make(chan struct{}, 1),
	}
	for i, path := range paths {
		absolute, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		t.add(absolute, names[i])
	}
	t.discover()
	if len(t.followers) == 0 {
		o.Log.Warn("No audit log matches yet", "patterns", patterns)
	}
	for _, f := range t.followers { // one that comes later has nothing of before
		f.unknownSince = checkpoints.damaged
	}
	return t, nil
}

// add makes a follower of the log, unless there is one, and returns it.
func (t *Tailer) add(path, name string) *follower {
	t.mu.Lock()
	defer t.mu.Unlock()
	if slices.ContainsFunc(t.followers, func(f *follower) bool { return f.path == path }) {
		return nil
	}
	f := newFollower(t, path, name)
	t.followers = append(t.followers, f)
	return f
}

// discover makes followers of the logs that match a pattern and have none, and returns them.
func (t *Tailer) discover() []*follower {
	var added []*follower
	for _, pattern := range t.patterns {
		paths, err := matches(pattern)
		if err != nil { // it was none at the start
			t.options.Log.Error("A pattern of audit logs cannot be matched", "pattern", pattern, "error", err)
		}
		for _, path := range paths {
			if path == t.checkpoints.path {
				continue
			}
			if f := t.add(path, path); f != nil {
				added = append(added, f)
			}
		}
	}
	return added
}

// all are the followers that there are now.
func (t *Tailer) all() []*follower {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.followers)
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
	for _, f := range t.all() {
		followers.Go(func() { f.run(ctx) })
	}
	followers.Go(func() {
		t.discoverMore(ctx, func(f *follower) { followers.Go(func() { f.run(ctx) }) })
	})
	helpers.Go(func() { t.notify(ctx) })
	helpers.Go(func() { t.saveCheckpoints(ctx) })
	followers.Wait()
	helpers.Wait()
	return t.checkpoints.save()
}

// discoverMore calls found with each log that comes to match a pattern.
func (t *Tailer) discoverMore(ctx context.Context, found func(*follower)) {
	if len(t.patterns) == 0 {
		return
	}
	poll := time.NewTicker(t.options.Poll)
	defer poll.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		case <-t.changed:
		}
		for _, f := range t.discover() {
			f.log.Info("Another audit log is followed")
			found(f)
		}
	}
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
			mark(t.checkpoints.dirty)
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
	t.wakeAll()
	for {
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
			t.watch(watcher) // a directory may be new, or another than it was
		case <-watcher.Errors: // notifications were lost
			t.wakeAll()
		case event := <-watcher.Events:
			t.wake(event)
		}
	}
}

// watch has the watcher watch the directories of all logs. One that does not exist is tried again at the next poll.
func (t *Tailer) watch(watcher *fsnotify.Watcher) {
	for _, f := range t.all() {
		_ = watcher.Add(filepath.Dir(f.path))
	}
	for _, pattern := range t.patterns {
		_ = watcher.Add(above(pattern))
	}
}

// wake has the logs looked at that an event is about.
func (t *Tailer) wake(event fsnotify.Event) {
	directory, name := filepath.Split(event.Name)
	changed := event.Op.Has(fsnotify.Create) || event.Op.Has(fsnotify.Rename) || event.Op.Has(fsnotify.Remove)
	known := false
	for _, f := range t.all() {
		if filepath.Clean(directory) != filepath.Dir(f.path) {
			continue
		}
		if name == filepath.Base(f.path) || isBackup(f.path, strings.TrimSuffix(name, compressed)) {
			known = true
			if changed {
				f.changed.Store(true)
			}
			f.wake()
		}
	}
	if changed && !known {
		mark(t.changed)
	}
}

// wakeAll has all logs looked at.
func (t *Tailer) wakeAll() {
	for _, f := range t.all() {
		f.changed.Store(true)
		f.wake()
	}
	mark(t.changed)
}

// mark puts the one element into a channel that is not there yet.
func mark(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
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
