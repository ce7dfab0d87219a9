package projector

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/history"
	"github.com/mintlog/mintlog/store/ledger"
	"github.com/mintlog/mintlog/store/stream"
)

func TestWhatStandsInTheHistoryIsNeverBelieved(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	b.publish(a.operate("jane"))
	a.eventually("jane")
	a.update(b.admin, func(s *corev1.Secret) {
		s.Annotations[history.Annotation] = strings.ReplaceAll(s.Annotations[history.Annotation], "jane", "mallory")
	})
	require.Equal(t, []string{"mallory"}, a.names())
	b.publish(a.writeOf("mallory"))
	a.eventually("jane")
	right := a.secret().Annotations[history.Annotation]
	a.update(b.admin, func(s *corev1.Secret) { s.Annotations[history.Annotation] = "no JSON" })
	b.publish(a.writeOf("mallory"))
	assert.Eventually(t, func() bool { return a.secret().Annotations[history.Annotation] == right }, patience, 20*time.Millisecond)
}

func TestAnEmptyHistoryIsNoAnnotation(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	b.publish(a.requestOf(newAuditID(t), "jane", time.Now(), answered(503)), a.writeOf("ivan"))
	b.drained()
	assert.NotContains(t, a.secret().Annotations, history.Annotation)
	a.update(b.admin, func(s *corev1.Secret) { s.Annotations[history.Annotation] = `{"entries":[{"by":"mallory"}]}` })
	b.publish(a.writeOf("mallory"))
	require.Eventually(t, func() bool { _, ok := a.secret().Annotations[history.Annotation]; return !ok }, patience, 20*time.Millisecond)
}

func TestAHistoryIsWrittenThoughTheEvidenceBucketIsFull(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.stopLoop()
	require.NoError(t, b.stream.Close())
	b.evidence, b.directory = 50_000, t.TempDir()
	b.openStream()
	filled := 0
	for size := 8192; size >= 1; size /= 2 {
		for {
			_, err := b.stream.Evidence().Put(t.Context(), fmt.Sprintf("%02x", filled), make([]byte, size), 0)
			if err != nil {
				require.ErrorIs(t, err, stream.ErrFull)
				break
			}
			filled++
		}
	}
	b.start(stopped(time.Now())) // within one minute
	a := b.newAccount("postgres-orders.app")
	b.publish(a.operate("jane"))
	a.eventually("jane")
	b.publish(a.operate("olga"))
	require.Eventually(t, func() bool { return len(a.names()) > 0 && a.names()[0] == "olga" }, patience, 20*time.Millisecond)
	b.drained()
	assert.GreaterOrEqual(t, b.count("mintlog_projector_failures_total", "evidence_full"), 2.0)
	assert.Zero(t, b.count("mintlog_projector_failures_total", "evidence"))
	assert.Equal(t, 1, strings.Count(b.log.String(), "the evidence bucket is full"), "said once a minute")
}

func TestAnAccountMadeAgainUnderTheSameNameStartsWithAnEmptyHistory(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	first := a.operate("jane")
	b.publish(first)
	a.eventually("jane")
	require.NoError(t, b.admin.CoreV1().Secrets(b.namespace).Delete(t.Context(), a.secretName(), metav1.DeleteOptions{}))
	a.createSecret()
	late := first
	late.StageTimestamp = late.StageTimestamp.Add(time.Microsecond) // the log has it once more
	b.publish(late)
	b.publish(a.operate("olga"))
	a.eventually("olga")
	assert.Empty(t, a.history().Findings)
}

func TestAPasswordChangedByHandBearsItsAuthorsName(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	b.publish(a.operate("jane"))
	a.eventually("jane")
	a.update(b.admin, func(s *corev1.Secret) { s.Data["password"] = []byte("by hand") })
	b.publish(a.writeOf("ivan"))
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Equal(c, []string{"ivan"}, a.history().Writers) }, patience, 20*time.Millisecond)
	b.publish(a.operate("jane"))
	a.eventually("jane", "jane")
	assert.Empty(t, a.history().Writers)
}

func TestASuccessWithoutAnEntryIsReportedUnlessAnotherSecretHasIt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	later := func(e *event.Event) { e.RequestReceivedTimestamp = time.Now().Add(6 * time.Second) }
	elsewhere, nowhere := newAuditID(t), newAuditID(t)
	b.publish(
		a.writeOf(mintUser, later, func(e *event.Event) { e.AuditID, e.ObjectRef.UID = elsewhere, "another" }),
		a.requestOf(elsewhere, "jane", time.Now(), later), a.requestOf(nowhere, "jane", time.Now(), later),
	)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		findings := a.history().Findings
		if assert.Len(c, findings, 1) {
			assert.Equal(c, history.FindingUncommitted, findings[0].Type)
		}
	}, patience, 20*time.Millisecond)
	b.drained()
	assert.Len(t, a.history().Findings, 1)
}

func TestTheEvidenceAloneKeepsTheHistory(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	for _, user := range []string{"jane", "olga"} {
		b.publish(a.operate(user))
	}
	a.eventually("olga", "jane")
	b.stopLoop()
	require.NoError(t, b.stream.Close())
	b.openStream() // as after a restart
	b.start()
	a.update(b.admin, func(s *corev1.Secret) { delete(s.Annotations, history.Annotation) })
	b.publish(a.operate("ivan"))
	a.eventually("ivan", "olga", "jane")
}

func TestAHistoryThatDoesNotFitBesideOtherAnnotationsIsCutShort(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	a.update(b.admin, func(s *corev1.Secret) {
		s.Annotations["padding"] = ""
		room := history.MaxAnnotationBytes - history.AnnotationBytes(s.Annotations) - len(history.Annotation)
		s.Annotations["padding"] = strings.Repeat("p", room-4000) // for four ledger entries and two operations by such a name
	})
	long := strings.Repeat("l", 1000)
	for _, user := range []string{"jane", long, long, long} {
		b.publish(a.operate(user))
	}
	require.Eventually(t, func() bool { return strings.Contains(b.log.String(), "cut short") }, patience, 10*time.Millisecond)
	b.drained()
	assert.Equal(t, []string{long, long}, a.names())
	assert.NotContains(t, b.log.String(), long)
}

// TestOurOwnPatchDoesNotComeBackAsWork reads what the real audit log holds of the commits and of the histories written,
// and lets the loop have it.
func TestOurOwnPatchDoesNotComeBackAsWork(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	b.publish(a.operate("jane"))
	a.eventually("jane")
	b.drained()
	var commits, patches []event.Event
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		commits, patches = nil, nil
		for _, e := range b.logged(a.secretName()) {
			switch {
			case e.User.Username == mintUser && e.Verb == "update":
				commits = append(commits, e)
			case e.User.Username == projectorUser && e.Verb == "patch":
				patches = append(patches, e)
			}
		}
		assert.NotEmpty(c, commits)
		assert.NotEmpty(c, patches)
	}, patience, 50*time.Millisecond)
	assert.Equal(t, string(a.secret().UID), commits[0].ObjectRef.UID, "a commit tells its Secret from another")
	folds, taken := b.count("mintlog_projector_folds_total"), int(b.count("mintlog_projector_events_total"))
	b.publish(patches...)
	b.taken(taken + len(patches))
	b.drained()
	assert.Equal(t, folds, b.count("mintlog_projector_folds_total"))
	b.publish(commits...)
	require.Eventually(t, func() bool { return b.count("mintlog_projector_folds_total") == folds+1 }, patience, 10*time.Millisecond)
	b.drained()
	assert.Equal(t, 1.0, b.count("mintlog_projector_patches_total"))
}

// logged are the events of a Secret in the kube-apiserver's audit log.
func (b *bench) logged(name string) []event.Event {
	file, err := os.Open(startedCluster.AuditLog(0))
	require.NoError(b.t, err)
	defer func() { _ = file.Close() }()
	var events []event.Event
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e event.Event
		if json.Unmarshal(lines.Bytes(), &e) == nil && e.IsWrite() && e.ObjectRef.Namespace == b.namespace && e.ObjectRef.Name == name {
			events = append(events, e)
		}
	}
	return events
}

func TestAnEntryUnderARevisionThatAnEtcdRestoreUsesAgainFindsNothingOfTheFormer(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	a := b.newAccount("postgres-orders.app")
	backup := a.secret()
	b.publish(a.operate("jane"))
	a.eventually("jane")
	a.update(b.admin, func(s *corev1.Secret) { s.Annotations, s.Data = backup.Annotations, backup.Data })
	late := a.operate("olga") // at the revision that jane's mint had
	b.publish(a.operate("ivan"))
	a.eventually("ivan")
	b.publish(late)
	a.eventually("ivan", "olga")
}

func TestUnreadableEvidenceIsReplaced(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.newAccount("postgres-orders.app")
	minted := a.operate("jane")
	book, err := ledger.Parse(a.secret().Annotations[ledger.Annotation])
	require.NoError(t, err)
	_, err = b.stream.Evidence().Put(t.Context(), entryKey(book, book.Newest()), []byte("no JSON"), 0)
	require.NoError(t, err)
	b.start()
	b.publish(minted)
	a.eventually("jane")
	value, _, err := b.stream.Evidence().Get(t.Context(), entryKey(book, book.Newest()))
	require.NoError(t, err)
	kept, err := decode(value)
	require.NoError(t, err)
	assert.Len(t, kept, 1)
	assert.Equal(t, 1.0, b.count("mintlog_projector_failures_total", "broken_evidence"))
}
