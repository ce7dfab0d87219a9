package accounts

import (
	"bytes"
	"encoding/json"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/quick"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/store/ledger"
)

// throughValues is a situation whose stored forms go into the values.
func (s situation) throughValues(there ...cluster.ValuesEntry) situation {
	s.block.ValuesPath = "users.{username}.password_sha256_hex"
	s.release.ValuesFrom = there
	return s
}

func users(values any) map[string]any { return map[string]any{"users": values} }

func withPassword(stored string) func(*corev1.Secret) {
	return func(s *corev1.Secret) {
		s.Data[corev1.BasicAuthPasswordKey] = []byte(stored)
	}
}

var stored = withPassword(strings.Repeat("ab", 32))

func entry(segment, path string) cluster.ValuesEntry {
	return cluster.ValuesEntry{Secret: "pg-orders." + segment + ".account", TargetPath: path}
}

// wanted are the entries that a situation wants, and why others cannot be had.
func wanted(t *testing.T, s situation) ([]cluster.ValuesEntry, []problem) {
	t.Helper()
	return s.wantedEntries(decide(t.Context(), s, nil))
}

var (
	appEntry    = entry("app", "users.app.password_sha256_hex")
	readerEntry = entry("report-reader", `users.Report\.Reader.password_sha256_hex`)
)

func TestEachAccountWithASecretHasAnEntryUnderItsEscapedUsername(t *testing.T) {
	s := application(-time.Hour, "app", "Report.Reader", "unwritten").recorded("app", "Report.Reader", "unwritten")
	s.release.Values = users(map[string]any{"app": map[string]any{}, "Report.Reader": map[string]any{"grants": "x"}, "unwritten": map[string]any{}})
	s = s.throughValues().withSecret("app", stored).withSecret("Report.Reader", stored)
	got, problems := wanted(t, s)
	assert.Equal(t, []cluster.ValuesEntry{appEntry, readerEntry}, got)
	assert.Empty(t, problems)
	for _, e := range got {
		assert.Equal(t, map[string]any{"kind": "Secret", "name": e.Secret, "valuesKey": "password", "targetPath": e.TargetPath}, e.Raw())
		read, ok := cluster.AsValuesEntry(e.Raw(), "pg-orders")
		assert.True(t, ok)
		assert.Equal(t, e, read)
	}
}

func TestASecretThatFluxCouldNotReadHasNoEntry(t *testing.T) {
	f := func(change func(*corev1.Secret)) {
		t.Helper()
		s := application(time.Hour).recorded().throughValues(appEntry)
		s.release.Values = users(map[string]any{"app": map[string]any{}})
		got, _ := wanted(t, s.withSecret("app", stored, change))
		assert.Empty(t, got)
	}
	f(func(s *corev1.Secret) { delete(s.Data, "password") })
	f(func(s *corev1.Secret) { s.Data["password"] = nil })
	f(func(s *corev1.Secret) { s.DeletionTimestamp = &metav1.Time{Time: sight} })
	f(func(s *corev1.Secret) { s.OwnerReferences[0].UID = "the earlier" })
	f(func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque })
	f(func(s *corev1.Secret) { s.OwnerReferences, s.CreationTimestamp = nil, metav1.NewTime(sight) })
}

func TestTheEntryOfAnAccountThatIsAboutToBeSeededIsKeptAndAnticipated(t *testing.T) {
	s := application(time.Hour).recorded().throughValues(appEntry)
	s.release.Values = users(map[string]any{"app": map[string]any{}, "new": map[string]any{}})
	got, _ := wanted(t, s)
	assert.Equal(t, []cluster.ValuesEntry{appEntry, entry("new", "users.new.password_sha256_hex")}, got)
}

func TestTheEntryOfAnAccountThatIsNoLongerDeclaredGoesAndOneThatIsRefusedStays(t *testing.T) {
	s := application(time.Hour).recorded().throughValues(appEntry, entry("old", "users.old.password_sha256_hex"))
	s.release.Values = users(map[string]any{"app": map[string]any{}})
	got, _ := wanted(t, s.withSecret("app", stored).withSecret("old", stored))
	assert.Equal(t, []cluster.ValuesEntry{appEntry}, got)

	tampered := func(s *corev1.Secret) { s.Data["username"] = []byte("other") }
	got, _ = wanted(t, s.withSecret("app", stored, tampered))
	assert.Equal(t, []cluster.ValuesEntry{appEntry}, got, "its Secret stays too")
}

func TestWhenASourceFailsTheEntriesStayAsTheyAre(t *testing.T) {
	s := application(time.Hour).throughValues(appEntry).withSecret("app", stored)
	s.release.Values = users([]any{})
	got, _ := wanted(t, s)
	assert.Equal(t, []cluster.ValuesEntry{appEntry}, got)
}

func TestWithoutAValuesPathNoEntryIsWanted(t *testing.T) {
	s := application(time.Hour, "app").throughValues(appEntry).withSecret("app", stored)
	s.block.ValuesPath = ""
	got, _ := wanted(t, s)
	assert.Empty(t, got)
}

func TestAPathThatIsTooLongOrCoveredByTheInlineValuesIsReportedAndHasNoEntry(t *testing.T) {
	f := func(username string, values any, want string) {
		t.Helper()
		s := application(time.Hour).recorded().throughValues()
		s.release.Values = users(map[string]any{username: values})
		got, problems := wanted(t, s.withSecret(username, stored))
		assert.Empty(t, got)
		require.Len(t, problems, 1)
		assert.Equal(t, reasonNotInValues, problems[0].reason)
		assert.Contains(t, problems[0].message, want)
	}
	f("app", nil, "something other than an object at users.app (it may be {})")
	f("app", "x", "something other than an object at users.app")
	f("app", []any{}, "something other than an object at users.app")
	f("app", map[string]any{"password_sha256_hex": "x"}, "a value of its own at users.app.password_sha256_hex")
	f("app", map[string]any{"password_sha256_hex": nil}, "a value of its own at users.app.password_sha256_hex")

	s := application(time.Hour).recorded().throughValues()
	s.block.ValuesPath = definition.ValuesPath("users.{username}." + strings.Repeat("x", 241))
	s.release.Values = users(map[string]any{"app": map[string]any{}})
	got, problems := wanted(t, s)
	assert.Empty(t, got)
	require.Len(t, problems, 1)
	assert.Contains(t, problems[0].message, "more than the 250 that are allowed")
}

func TestAStoredFormThatHelmWouldReadAsSomethingElseHasNoEntry(t *testing.T) {
	for _, form := range []string{"a,b=c", `a\b`, "{a}", "true", "FALSE", "null", "0", "42", "-1", `"a"`, "'a'"} {
		s := application(time.Hour).recorded().throughValues()
		s.release.Values = users(map[string]any{"app": map[string]any{}})
		got, problems := wanted(t, s.withSecret("app", withPassword(form)))
		assert.Empty(t, got, form)
		require.Len(t, problems, 1, form)
		assert.NotContains(t, problems[0].message, form+" ", "the stored form itself")
	}
}

func TestWhatIsTakenForAStringIsOneToHelm(t *testing.T) {
	chart := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(chart, "templates"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(chart, "Chart.yaml"), []byte("apiVersion: v2\nname: x\nversion: 1.0.0\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(chart, "templates", "x.yaml"), []byte(`apiVersion: {{ .Values | toJson | quote }}`), 0o600))
	helm, err := filepath.Abs("../../bin/helm")
	require.NoError(t, err)
	require.FileExists(t, helm, `run "make tools"`)
	f := func(form string, want bool) {
		t.Helper()
		assert.Equal(t, want, definition.Literal(form), form)
		command := exec.CommandContext(t.Context(), helm, "template", chart, "--set", `users.Report\.Reader.p=`+form)
		command.Env = append(os.Environ(), "HELM_CACHE_HOME="+chart, "HELM_CONFIG_HOME="+chart, "HELM_DATA_HOME="+chart)
		out, err := command.Output()
		require.NoError(t, err, form)
		_, text, _ := bytes.Cut(out, []byte("apiVersion: "))
		var values string
		require.NoError(t, json.Unmarshal(text, &values))
		var got map[string]any
		require.NoError(t, json.Unmarshal([]byte(values), &got))
		assert.Equal(t, want, assert.ObjectsAreEqual(users(map[string]any{"Report.Reader": map[string]any{"p": form}}), got), "%s is %v", form, got)
	}
	for _, form := range []string{
		strings.Repeat("0a", 32), strings.Repeat("1", 64), "*94BDCEBE19083CE2A1F959FD02F964C7AF4CFC29", "$apr1$WvVcKDhn$mpUtdCTGWCMVCSjpXWBGC.",
		"$2a$10$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy", "SCRAM-SHA-256$4096:c2FsdA==$c3RvcmVk:c2VydmVy", "0123", "1e9", "a=b", "a[0]", "~", "yes", "a}",
	} {
		f(form, true)
	}
	for _, form := range []string{"true", "Null", "0", "42", "{a}", "a,b=c", `a\b`} {
		f(form, false)
	}
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestEntriesThatAreTakenAwayArePutBackABoundedNumberOfTimesAnHour(t *testing.T) {
	want := []cluster.ValuesEntry{appEntry}
	first := settle(nil, want, valuesRecord{}, noon)
	assert.Equal(t, want, first.entries)
	assert.False(t, first.putBack, "it was never there")
	record := first.record
	for i := range putBacks {
		s := settle(nil, want, record, noon.Add(time.Duration(i)*time.Minute))
		require.True(t, s.putBack)
		require.Equal(t, want, s.entries)
		require.Empty(t, s.withheld)
		record = s.record
	}
	s := settle(nil, want, record, noon.Add(time.Hour-time.Second))
	assert.False(t, s.putBack)
	assert.Empty(t, s.entries)
	assert.Equal(t, []string{appEntry.Secret}, s.withheld)
	assert.Equal(t, noon.Add(time.Hour), s.until)
	assert.Equal(t, record, s.record, "waiting is nothing to write down")

	added := settle(nil, []cluster.ValuesEntry{appEntry, readerEntry}, record, noon.Add(time.Hour-time.Second))
	assert.Equal(t, []cluster.ValuesEntry{readerEntry}, added.entries, "an account that is new is not waited with")
	assert.Equal(t, []string{appEntry.Secret}, added.withheld)

	again := settle(nil, want, record, noon.Add(time.Hour))
	assert.True(t, again.putBack)
	assert.Len(t, again.record.Back, putBacks, "the oldest no longer counts")
}

func TestInNoHourAreEntriesPutBackMoreOftenWhateverHappens(t *testing.T) {
	property := func(seed int64) bool {
		random := rand.New(rand.NewSource(seed))
		var record valuesRecord
		var back []time.Time
		now, is := noon, []cluster.ValuesEntry(nil)
		for range 200 {
			now = now.Add(time.Duration(random.Intn(120)) * time.Second)
			want := []cluster.ValuesEntry{appEntry, readerEntry}[:1+random.Intn(2)]
			s := settle(is, want, record, now)
			text, err := json.Marshal(s.record) // a restart
			if err != nil || json.Unmarshal(text, &record) != nil {
				return false
			}
			if s.putBack {
				back = append(back, now)
			}
			if is = s.entries; random.Intn(2) == 0 {
				is = nil // taken away
			}
		}
		for i := putBacks; i < len(back); i++ {
			if back[i].Sub(back[i-putBacks]) < putBackWindow-time.Second {
				return false
			}
		}
		return len(back) > putBacks
	}
	require.NoError(t, quick.Check(property, &quick.Config{MaxCount: 100}))
}

func TestOthersEntriesStayWhereTheyAreInTheOrderTheyHave(t *testing.T) {
	theirs := func(name string) map[string]any {
		return map[string]any{"kind": "Secret", "name": name, "optional": true}
	}
	username := map[string]any{"kind": "Secret", "name": appEntry.Secret, "valuesKey": "username", "targetPath": "login"}
	another := map[string]any{"kind": "Secret", "name": "pg-billing.app.account", "valuesKey": "password", "targetPath": "billing"}
	config := map[string]any{"kind": "ConfigMap", "name": appEntry.Secret, "valuesKey": "password"}
	old, moved := entry("old", "users.old"), entry("app", "elsewhere.app")
	u := func(list ...any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "pg-orders"}, "spec": map[string]any{"valuesFrom": list}}}
	}
	is := u(theirs("first"), old.Raw(), username, moved.Raw(), theirs("middle"), another, config, appEntry.Raw(), theirs("last"))
	entries := []cluster.ValuesEntry{appEntry, readerEntry}
	want := []any{theirs("first"), username, appEntry.Raw(), theirs("middle"), another, config, theirs("last"), readerEntry.Raw()}
	assert.Equal(t, want, replaceEntries(is, entries))
	assert.Equal(t, want, replaceEntries(u(want...), entries), "once more changes nothing")
	assert.Equal(t, []any{appEntry.Raw(), readerEntry.Raw()}, replaceEntries(u(), entries))
	assert.Equal(t, []any{}, replaceEntries(u(appEntry.Raw()), nil), "the empty list, where null would leave a doubt")
}

func TestTheStateIsAnotherAfterEachOperationAndAfterNothingElse(t *testing.T) {
	book := func(id string) func(*corev1.Secret) {
		return func(s *corev1.Secret) {
			l := ledger.Ledger{Account: strings.Repeat("a", 32)}
			s.Annotations = map[string]string{ledger.Annotation: l.Append(ledger.Entry{ID: strings.Repeat(id, 32), Operation: ledger.Create, At: noon, Stored: "x"}).Encode()}
		}
	}
	state := func(app, reader string, entries ...cluster.ValuesEntry) string {
		s := application(time.Hour).withSecret("app", book(app)).withSecret("Report.Reader", book(reader))
		return stateOf(entries, s.ofRelease())
	}
	first := state("1", "2", appEntry, readerEntry)
	assert.Len(t, first, 32)
	assert.Equal(t, first, state("1", "2", readerEntry, appEntry))
	assert.NotEqual(t, first, state("3", "2", appEntry, readerEntry))
	assert.NotEqual(t, first, state("1", "3", appEntry, readerEntry))
	assert.NotEqual(t, first, state("2", "1", appEntry, readerEntry))
	assert.NotEqual(t, first, state("1", "2", appEntry))
	assert.Equal(t, state("1", "2", appEntry), state("1", "3", appEntry), "what has no entry")
	assert.Empty(t, state("1", "2"))
}

func TestTheManagersOfTheFieldAreNamedAndNotOurselves(t *testing.T) {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	field := func(manager, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields)}
	}
	u.SetManagedFields([]metav1.ManagedFieldsEntry{
		field("cozystack-controller", `{"f:spec":{"f:valuesFrom":{}}}`), field(fieldManager, `{"f:spec":{"f:valuesFrom":{}}}`),
		field("cozystack-controller", `{"f:spec":{"f:valuesFrom":{},"f:values":{}}}`), field("helm-controller", `{"f:status":{"f:history":{}}}`),
		field("applier", `{"f:spec":{"f:valuesFrom":{},"f:interval":{}}}`), {Manager: "empty"},
	})
	assert.Equal(t, []string{"applier", "cozystack-controller"}, managersOf(u))
	text := takenAway([]string{"a", "b", "c", "d", "e", "f", "g"}, managersOf(u)).message
	assert.Contains(t, text, `managed by ["applier" "cozystack-controller"]`)
	assert.Contains(t, text, "a, b, c, d, e and 2 more")
	assert.Contains(t, takenAway([]string{"a"}, nil).message, "whom its managedFields do not name")
}

func TestAnAccountSecretThatARestoreBroughtBackBeforeItsHelmReleaseIsTakenForItsOwn(t *testing.T) {
	restored := func(change func(*corev1.Secret)) situation {
		return application(time.Hour, "app").recorded().withSecret("app", stored, func(s *corev1.Secret) {
			l := ledger.Ledger{Account: strings.Repeat("a", 32)}
			entry := ledger.Entry{ID: strings.Repeat("b", 32), Operation: ledger.Create, At: noon, Stored: l.StoredDigest("", s.Data["password"])}
			s.Annotations = map[string]string{ledger.Annotation: l.Append(entry).Encode()}
			s.OwnerReferences, s.CreationTimestamp = nil, metav1.NewTime(sight)
		}, change)
	}
	p := decide(t.Context(), restored(func(*corev1.Secret) {}), nil)
	assert.Equal(t, []string{"pg-orders.app.account"}, namesOf(p.repair))
	assert.Empty(t, p.problems)
	assert.Empty(t, p.seed)
	for _, change := range []func(*corev1.Secret){
		withPassword("theirs"),
		func(s *corev1.Secret) { delete(s.Annotations, ledger.Annotation) },
		func(s *corev1.Secret) { s.OwnerReferences = []metav1.OwnerReference{{Kind: "Deployment", Name: "x"}} },
	} {
		p := decide(t.Context(), restored(change), nil)
		assert.Equal(t, []string{reasonForeignSecret}, reasons(p))
		assert.Empty(t, p.repair)
	}
}

func TestOfAnApplicationThatCameOutOfABackupNothingIsSeeded(t *testing.T) {
	s := application(time.Hour, "app")
	s.release.Restored = true
	p := decide(t.Context(), s, nil)
	assert.Empty(t, p.seed)
	assert.Equal(t, []string{"app"}, p.record.found)
	assert.True(t, slices.Contains(p.secretNames(), "pg-orders.app.account"))
}
