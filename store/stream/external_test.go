package stream

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/test/natsserver"
)

func TestAnExternalServerServesSeveralProcessesAlike(t *testing.T) {
	t.Parallel()
	n := natsserver.Start(t)
	o := testOptions(t)
	o.URL = n.URL()
	publisher := open(t, o)
	reader := open(t, reopened(o))
	require.NoError(t, publisher.Publish(t.Context(), mints(0, 700)))
	assert.Equal(t, identities(mints(0, 700)), identities(drain(t, reader, ProjectorEvents)))
	assert.Len(t, drain(t, publisher, ArchiverEvents), 700)
	revision, err := publisher.Evidence().Put(t.Context(), "ab", []byte("1"), 0)
	require.NoError(t, err)
	_, err = reader.Evidence().Put(t.Context(), "ab", []byte("2"), revision)
	require.NoError(t, err)
	_, err = publisher.Evidence().Put(t.Context(), "ab", []byte("3"), revision)
	assert.ErrorIs(t, err, ErrConflict)
}

func TestPublishingFailsWhileTheExternalServerIsDownAndAllResumesWhenItIsBack(t *testing.T) {
	t.Parallel()
	n := natsserver.Start(t)
	o := testOptions(t)
	o.URL = n.URL()
	s := open(t, o)
	got := consumeAll(t, s, ProjectorEvents)
	require.NoError(t, s.Publish(t.Context(), mints(0, 1)))
	receive(t, got)
	n.Kill()
	require.Error(t, s.Publish(t.Context(), mints(1, 3)))
	require.NoError(t, n.Restart(t.Context()))
	require.Eventually(t, func() bool { return s.Publish(t.Context(), mints(1, 3)) == nil }, time.Minute, 100*time.Millisecond)
	for wanted := identities(mints(1, 3)); len(wanted) > 0; { // the first may come again: its acknowledgement was not synced
		id := identity(receive(t, got).Event)
		wanted = slices.DeleteFunc(wanted, func(w string) bool { return w == id })
	}
}

func TestAnExternalServerWithoutOurStreamsGetsThemAgain(t *testing.T) {
	t.Parallel()
	n := natsserver.Start(t)
	o := testOptions(t)
	o.URL = n.URL()
	s := open(t, o)
	got := consumeAll(t, s, ProjectorEvents)
	require.NoError(t, s.Publish(t.Context(), mints(0, 1)))
	receive(t, got)
	n.Kill()
	require.NoError(t, os.RemoveAll(filepath.Join(n.Store, "jetstream")))
	require.NoError(t, n.Restart(t.Context()))
	require.Eventually(t, func() bool { return s.Publish(t.Context(), mints(1, 2)) == nil }, time.Minute, 100*time.Millisecond)
	assert.Equal(t, identity(mintEvent(1, 201)), identity(receive(t, got).Event))
	_, err := s.Evidence().Put(t.Context(), "ab", []byte("1"), 0)
	assert.NoError(t, err)
}

func TestAServerThatLostWhatItHadAcknowledgedInAPowerCutIsReportedAndTakesItAgain(t *testing.T) {
	t.Parallel()
	n := natsserver.Start(t)
	o := testOptions(t)
	o.URL = n.URL()
	s := open(t, o)
	publish := func(from, to int) {
		t.Helper()
		require.Eventually(t, func() bool { return s.Publish(t.Context(), mints(from, to)) == nil }, time.Minute, 100*time.Millisecond)
	}
	reported := func() float64 { return testutil.ToFloat64(s.metrics.recreated.WithLabelValues(streamNames[events])) }
	files, synced := filepath.Join(n.Store, "jetstream"), t.TempDir()
	publish(0, 5)
	n.Kill()
	require.NoError(t, os.CopyFS(synced, os.DirFS(files)))
	require.NoError(t, n.Restart(t.Context()))
	publish(5, 10)
	assert.Zero(t, reported(), "nothing is lost by a kill")
	n.Kill()
	require.NoError(t, os.RemoveAll(files))
	require.NoError(t, os.CopyFS(files, os.DirFS(synced)))
	require.NoError(t, n.Restart(t.Context()))
	publish(10, 12)
	publish(12, 14)
	assert.Equal(t, 1.0, reported())
	publish(0, 10) // as ingest does that reads its files from the beginning
	assert.ElementsMatch(t, identities(mints(0, 14)), identities(drain(t, s, ProjectorEvents)))
}

func TestAnExternalServerThatIsNotThereIsAnError(t *testing.T) {
	o := testOptions(t)
	o.URL = "nats://127.0.0.1:1"
	_, err := Open(t.Context(), o)
	assert.ErrorIs(t, err, nats.ErrNoServers)
}

// directoryOfChild makes the test binary a process that publishes until it is killed.
const directoryOfChild = "MINTLOG_TEST_STREAM_DIRECTORY"

// TestMain runs the tests, or the child of one of them.
func TestMain(m *testing.M) {
	if directory := os.Getenv(directoryOfChild); directory != "" {
		publishUntilKilled(directory)
	}
	os.Exit(m.Run())
}

// publishUntilKilled prints the number of each event whose publish was acknowledged.
func publishUntilKilled(directory string) {
	background := context.Background()
	s, err := Open(background, Options{Directory: directory})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for i := 0; ; i += 10 {
		if err := s.Publish(background, mints(i, i+10)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(i + 10)
	}
}

func TestWhatWasAcknowledgedSurvivesTheKillingOfItsProcess(t *testing.T) {
	t.Parallel()
	o := testOptions(t)
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), directoryOfChild+"="+o.Directory)
	child.Stderr = os.Stderr
	output, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	published := 0
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		require.NoError(t, json.Unmarshal(lines.Bytes(), &published))
		if published == 300 {
			require.NoError(t, child.Process.Kill())
		}
	}
	require.Error(t, child.Wait())
	require.GreaterOrEqual(t, published, 300)

	s := open(t, o)
	got := identities(drain(t, s, ProjectorEvents))
	require.GreaterOrEqual(t, len(got), published)
	assert.Equal(t, identities(mints(0, published)), got[:published])
	require.NoError(t, s.Publish(t.Context(), mints(published, published+10)))
}
