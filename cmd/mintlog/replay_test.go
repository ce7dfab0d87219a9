package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/gap"
	"github.com/mintlog/mintlog/store/stream"
	"github.com/mintlog/mintlog/test/natsserver"
	"github.com/mintlog/mintlog/test/victorialogs"
)

// noon is a time of which VictoriaLogs takes events.
var noon = time.Now().UTC().Add(-2 * time.Hour).Truncate(time.Second)

// theirs is an event as Cozystack's pipeline writes it, received so long after noon.
func theirs(after time.Duration, verb, resource, subresource, name string) map[string]any {
	at := noon.Add(after)
	return map[string]any{
		"date": float64(at.UnixMicro()) / 1e6, "log_source": "audit_log", "tenant": "tenant-root", "cluster": "root",
		"auditID": fmt.Sprintf("00000000-0000-4000-8000-%012d", after.Milliseconds()), "stage": "ResponseComplete", "verb": verb,
		"requestURI": "/apis", "user_username": "jane", "user_groups": []string{"tenant-acme-admin"},
		"objectRef": map[string]any{
			"apiGroup": event.Group, "apiVersion": "v1alpha1", "resource": resource, "subresource": subresource, "namespace": "tenant-acme", "name": name,
		},
		"responseStatus": map[string]any{"code": 201}, "annotations": map[string]any{event.DecisionAnnotation: "allow"},
		"stageTimestamp": at.Add(time.Millisecond).Format(time.RFC3339Nano),
	}
}

func openTestStream(t *testing.T, o stream.Options) *stream.Stream {
	t.Helper()
	if o.MaxBytes == 0 {
		o.MaxBytes = 64 << 20
	}
	o.EvidenceBytes = 64 << 20
	s, err := stream.Open(t.Context(), o)
	require.NoError(t, err)
	return s
}

func output(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	c := command()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(t.Output())
	c.SetArgs(arguments)
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

func at(after time.Duration) string { return noon.Add(after).Format(time.RFC3339) }

func lost(from, until time.Duration) gap.Gap {
	return gap.Gap{Source: "file:audit.log", Reason: "rotated file is gone", From: noon.Add(from), Until: noon.Add(until), FoundAt: noon.Add(time.Hour)}
}

func TestAReplayClosesTheGapsThatItCoversAndSaysOfTheOthersWhyNot(t *testing.T) {
	t.Setenv("MINTLOG_VICTORIALOGS", victorialogs.Start(t).URL)
	nats := natsserver.Run(t, natsserver.Options(t)).ClientURL()
	s := openTestStream(t, stream.Options{URL: nats})
	defer s.Close()
	covered, silent, outside, beginless := lost(10*time.Minute, 20*time.Minute), lost(30*time.Minute, 40*time.Minute), lost(50*time.Minute, 60*time.Minute), lost(0, time.Hour)
	beginless.From, beginless.Source = time.Time{}, "file:\x1b[2Jother.log"
	for _, g := range []gap.Gap{covered, silent, outside, beginless} {
		require.NoError(t, s.RecordGap(t.Context(), g))
	}
	replay := []string{"replay", "--nats=" + nats, "--stream-max-bytes=67108864", "--evidence-max-bytes=67108864",
		"--since=" + at(0), "--until=" + at(45*time.Minute)}
	said, err := output(t, replay...)
	require.NoError(t, err)
	assert.Contains(t, said, "replayed 0 events")
	assert.Contains(t, said, "left open the gap of file:audit.log from "+at(10*time.Minute)+" until "+at(20*time.Minute)+
		": the archive has no other pipeline's events there, and what mintlog archived proves nothing\n")

	var records []map[string]any
	for minute := range 65 {
		if minute != 35 {
			records = append(records, theirs(time.Duration(minute)*time.Minute, "get", "configmaps", "", "x"))
		}
	}
	mint := theirs(15*time.Minute+123*time.Microsecond, "create", "credentials", "mint", "postgres-orders.app")
	refused := theirs(16*time.Minute, "create", "credentials", "mint", "postgres-orders.app")
	refused["annotations"] = map[string]any{event.DecisionAnnotation: "forbid"}
	victorialogs.InsertAsCozystack(t, os.Getenv("MINTLOG_VICTORIALOGS"), append(records, mint, refused)...)

	said, err = output(t, append(replay, "--of-namespace=tenant-acme")...)
	require.NoError(t, err)
	assert.Equal(t, 4, strings.Count(said, ": the events of one namespace alone do not fill it\n"))
	said, err = output(t, replay...)
	require.NoError(t, err)
	for _, line := range []string{
		"replayed 1 events from " + at(0) + " until " + at(45*time.Minute),
		"left out 1 refused attempts and dry runs, which change no history",
		"closed the gap of file:audit.log from " + at(10*time.Minute) + " until " + at(20*time.Minute) + ": the archive has 14 events of other pipelines around it",
		"left open the gap of file:audit.log from " + at(30*time.Minute) + " until " + at(40*time.Minute) + ": other pipelines have nothing from " +
			at(34*time.Minute) + " until " + at(36*time.Minute) + ", which is longer than --silence 1m0s",
		"left open the gap of file:audit.log from " + at(50*time.Minute) + " until " + at(60*time.Minute) + ": the range does not cover it: that takes --since " +
			at(49*time.Minute-5*time.Second) + " and an --until after " + at(60*time.Minute),
		`left open the gap of "file:\x1b[2Jother.log" until ` + at(60*time.Minute) + ": nobody knows when it begins: say with --nothing-before if it can be no earlier than --since",
	} {
		assert.Contains(t, said, line+"\n")
	}
	said, err = output(t, append(replay, "--silence=2m")...)
	require.NoError(t, err)
	assert.Equal(t, 1, strings.Count(said, "closed the gap of"))

	messages, err := s.Fetch(t.Context(), stream.ProjectorEvents, 1, time.Minute)
	require.NoError(t, err)
	require.Len(t, messages, 1)
	more, err := s.Fetch(t.Context(), stream.ProjectorEvents, 1, 300*time.Millisecond)
	require.NoError(t, err)
	require.Empty(t, more, "replayed three times, and stored once")
	assert.Equal(t, "archive", messages[0].Event.Source)
	assert.Equal(t, noon.Add(15*time.Minute+123*time.Microsecond), messages[0].Event.RequestReceivedTimestamp)

	listed, err := output(t, "gaps", "--nats="+nats)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(listed), "\n")
	require.Len(t, lines, 9)
	assert.Regexp(t, `^STATE +SOURCE +FROM +UNTIL +BYTES +FOUND +REASON$`, lines[0])
	assert.Equal(t, 2, strings.Count(listed, "\nClosed "))
	assert.NotContains(t, listed, "\x1b")
	assert.Contains(t, listed, "cover the 2 that are open, this fills and closes them:\n  mintlog replay --since "+
		at(49*time.Minute-5*time.Second)+" --until "+at(60*time.Minute+time.Second)+" --nothing-before\n")
	listed, err = output(t, "gaps", "--nats="+nats, "--open", "-o", "json")
	require.NoError(t, err)
	assert.Equal(t, 2, strings.Count(listed, `"source"`))
	assert.NotContains(t, listed, "closedAt")
}

func TestAGapWithoutABeginningIsClosedOnlyFromWhereTheOperatorSaysThatNothingIsMissing(t *testing.T) {
	t.Setenv("MINTLOG_VICTORIALOGS", victorialogs.Start(t).URL)
	nats := natsserver.Run(t, natsserver.Options(t)).ClientURL()
	s := openTestStream(t, stream.Options{URL: nats})
	defer s.Close()
	beginless := lost(0, 20*time.Minute)
	beginless.From = time.Time{}
	require.NoError(t, s.RecordGap(t.Context(), beginless))
	var records []map[string]any
	for minute := range 30 {
		records = append(records, theirs(time.Duration(minute)*time.Minute, "get", "configmaps", "", "x"))
	}
	victorialogs.InsertAsCozystack(t, os.Getenv("MINTLOG_VICTORIALOGS"), records...)
	f := func(want, since string, more ...string) {
		t.Helper()
		said, err := output(t, append([]string{"replay", "--nats=" + nats, "--stream-max-bytes=67108864", "--evidence-max-bytes=67108864",
			"--since=" + since, "--until=" + at(29*time.Minute)}, more...)...)
		require.NoError(t, err)
		require.Contains(t, said, want)
	}
	f("left open the gap of file:audit.log until "+at(20*time.Minute)+": nobody knows when it begins", at(5*time.Minute))
	f("left open the gap of file:audit.log until "+at(20*time.Minute)+": other pipelines have nothing from ", at(-time.Hour), "--nothing-before")
	f("left open the gap of file:audit.log until "+at(20*time.Minute)+": it ends before --since", at(25*time.Minute), "--nothing-before")
	listed, err := output(t, "gaps", "--nats="+nats)
	require.NoError(t, err)
	require.Contains(t, listed, "  mintlog replay --since TIME --until "+at(20*time.Minute+time.Second)+" --nothing-before\n")
	f("closed the gap of file:audit.log until "+at(20*time.Minute)+": the archive has ", at(5*time.Minute), "--nothing-before")
	listed, err = output(t, "gaps", "--nats="+nats)
	require.NoError(t, err)
	require.NotContains(t, listed, "mintlog replay")
}

func TestAReplayClosesNoGapUponTheLogOfAnotherClusterOrWhereARowCannotBeRead(t *testing.T) {
	t.Setenv("MINTLOG_VICTORIALOGS", victorialogs.Start(t).URL)
	nats := natsserver.Run(t, natsserver.Options(t)).ClientURL()
	s := openTestStream(t, stream.Options{URL: nats})
	defer s.Close()
	require.NoError(t, s.RecordGap(t.Context(), lost(10*time.Minute, 20*time.Minute)))
	var records []map[string]any
	for minute := range 40 {
		record := theirs(time.Duration(minute)*time.Minute, "get", "configmaps", "", "x")
		if minute%2 > 0 {
			record["cluster"] = "other\x1b[2J"
		}
		records = append(records, record)
	}
	victorialogs.InsertAsCozystack(t, os.Getenv("MINTLOG_VICTORIALOGS"), records...)
	replay := func(more ...string) (string, error) {
		return output(t, append([]string{"replay", "--nats=" + nats, "--stream-max-bytes=67108864", "--evidence-max-bytes=67108864",
			"--since=" + at(0), "--until=" + at(45*time.Minute), "--silence=2m"}, more...)...)
	}
	said, err := replay()
	require.NoError(t, err)
	assert.Contains(t, said, `: other pipelines' events there are of the clusters ["other\x1b[2J" "root"]: say with --cluster which is this one`)
	said, err = replay("--cluster=third")
	require.NoError(t, err)
	assert.Contains(t, said, `: the archive has no other pipeline's events of the cluster "third" there`)
	said, err = replay("--cluster=root", "--silence=1m")
	require.NoError(t, err)
	assert.Contains(t, said, ": other pipelines have nothing from ")

	timeless := theirs(12*time.Minute, "create", "credentials", "mint", "postgres-orders.app")
	delete(timeless, "stageTimestamp")
	victorialogs.InsertAsCozystack(t, os.Getenv("MINTLOG_VICTORIALOGS"), timeless)
	_, err = replay("--cluster=root")
	require.EqualError(t, err, "1 rows of the archive look like events of ours and cannot be read; no gap is closed")
	gaps, err := s.Gaps(t.Context())
	require.NoError(t, err)
	require.Len(t, gaps, 1)
	assert.True(t, gaps[0].Open())

	// Without that row.
	t.Setenv("MINTLOG_VICTORIALOGS", victorialogs.Start(t).URL)
	victorialogs.InsertAsCozystack(t, os.Getenv("MINTLOG_VICTORIALOGS"), records...)
	said, err = replay("--cluster=root")
	require.NoError(t, err)
	assert.Contains(t, said, "closed the gap of file:audit.log")
}

func TestAReplayWaitsForAFullStreamThatIsReadAndSaysHowToContinueWhereNobodyReadsIt(t *testing.T) {
	url := victorialogs.Start(t).URL
	t.Setenv("MINTLOG_VICTORIALOGS", url)
	var records []map[string]any
	const count = 3000
	for i := range count {
		records = append(records, theirs(time.Duration(i)*time.Second, "create", "credentials", "mint", "postgres-orders.app"))
	}
	victorialogs.InsertAsCozystack(t, url, records...)
	const room = 1 << 20 // for fewer than half of them

	state := t.TempDir()
	embedded := []string{"replay", "--state=" + state, "--since=3h", fmt.Sprintf("--stream-max-bytes=%d", room), "--evidence-max-bytes=67108864"}
	_, err := output(t, embedded...)
	require.ErrorIs(t, err, stream.ErrFull)
	require.ErrorContains(t, err, "mintlog all")
	_, onwards, found := strings.Cut(err.Error(), "repeat it with ")
	require.True(t, found, err)
	read := map[string]bool{}
	drain := func(s *stream.Stream) int {
		before := len(read)
		for _, consumer := range []stream.Consumer{stream.ProjectorEvents, stream.ArchiverEvents} {
			for {
				messages, err := s.Fetch(t.Context(), consumer, 500, 300*time.Millisecond)
				require.NoError(t, err)
				if len(messages) == 0 {
					break
				}
				for _, m := range messages {
					read[m.Event.AuditID] = true
					require.NoError(t, m.Ack())
				}
			}
		}
		return len(read) - before
	}
	for range 30 { // a slow machine may hand out less within the time
		s := openTestStream(t, stream.Options{Directory: filepath.Join(state, "stream"), MaxBytes: room})
		drain(s)
		require.NoError(t, s.Close())
		_, err = output(t, append(embedded, strings.Fields(onwards)...)...)
		if err == nil {
			break
		}
		require.ErrorIs(t, err, stream.ErrFull)
		if _, next, found := strings.Cut(err.Error(), "repeat it with "); found {
			onwards = next
		}
	}
	require.NoError(t, err)
	s := openTestStream(t, stream.Options{Directory: filepath.Join(state, "stream"), MaxBytes: room})
	require.Eventually(t, func() bool { drain(s); return len(read) == count }, 3*time.Minute, 10*time.Millisecond)
	require.NoError(t, s.Close())

	nats := natsserver.Run(t, natsserver.Options(t)).ClientURL()
	s = openTestStream(t, stream.Options{URL: nats, MaxBytes: room})
	defer s.Close()
	done := make(chan error, 1)
	go func() {
		_, err := output(t, append([]string{"replay", "--nats=" + nats}, embedded[2:]...)...)
		done <- err
	}()
	clear(read)
	require.Eventually(t, func() bool {
		drain(s)
		return len(read) == count
	}, 3*time.Minute, 10*time.Millisecond)
	require.NoError(t, <-done)
}

func TestWhatTakesLongIsTold(t *testing.T) {
	r := &replay{}
	read, write := io.Pipe()
	stop := r.tell(write)
	r.say("7 events so far")
	line := make([]byte, 100)
	n, err := read.Read(line)
	require.NoError(t, err)
	assert.Equal(t, "7 events so far\n", string(line[:n]))
	go io.Copy(io.Discard, read)
	stop()
}

func TestGapsAreReadWhereTheyAreAndNothingIsMadeForThat(t *testing.T) {
	directory := t.TempDir()
	_, err := output(t, "gaps", "--state="+directory)
	require.ErrorContains(t, err, "--state")
	entries, err := os.ReadDir(directory)
	require.NoError(t, err)
	assert.Empty(t, entries)
	_, err = output(t, "gaps", "--state="+directory, "-o", "yaml")
	require.ErrorContains(t, err, "--output")

	s := openTestStream(t, stream.Options{Directory: filepath.Join(directory, "stream")})
	_, err = output(t, "gaps", "--state="+directory)
	require.ErrorIs(t, err, stream.ErrLocked)
	require.ErrorContains(t, err, "mintlog all")
	require.NoError(t, s.Close())
	said, err := output(t, "gaps", "--state="+directory)
	require.NoError(t, err)
	assert.Equal(t, "No gaps are known.\n", said)
}

func TestTheOpenGapsAreKnownWhileTheStreamIsDown(t *testing.T) {
	s := openTestStream(t, stream.Options{Directory: t.TempDir()})
	open, closed := lost(0, time.Minute), lost(2*time.Minute, 3*time.Minute)
	require.NoError(t, s.RecordGap(t.Context(), open))
	require.NoError(t, s.RecordGap(t.Context(), closed))
	require.NoError(t, s.CloseGap(t.Context(), closed, noon))
	known := &knownGaps{}
	assert.Empty(t, known.OpenGaps())
	stopping, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- known.follow(s)(stopping) }()
	require.Eventually(t, func() bool { return len(known.OpenGaps()) == 1 }, time.Minute, 10*time.Millisecond)
	assert.Equal(t, []gap.Gap{open}, known.OpenGaps())
	require.NoError(t, s.Close())
	stop()
	require.NoError(t, <-done)
	assert.Len(t, known.OpenGaps(), 1)
}
