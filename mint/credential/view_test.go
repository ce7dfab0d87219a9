package credential

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/store/gap"
	"github.com/mintlog/mintlog/store/history"
	"github.com/mintlog/mintlog/store/ledger"
)

var (
	minted  = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	stored  = []byte("stored form")
	entryID = strings.Repeat("ab", 16)
)

// mintedSecret is the account Secret after jane's mint upon a creation, changed by change.
func mintedSecret(change func(*corev1.Secret)) *corev1.Secret {
	book := ledger.Ledger{Account: strings.Repeat("0f", 16)}
	book = book.Append(ledger.Entry{ID: strings.Repeat("cd", 16), Operation: ledger.Create, At: minted.Add(-time.Hour), Stored: "x"})
	book = book.Append(ledger.Entry{
		ID: entryID, Operation: ledger.Mint, At: minted, AuditID: "a1",
		Caller: book.CallerDigest("a1", "jane"), Stored: book.StoredDigest("a1", stored),
	})
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: "postgres-orders.app.account", Namespace: "tenant-acme", UID: "u1", ResourceVersion: "7",
			Labels: map[string]string{cluster.AccountLabel: "true", cluster.KindLabel: "Postgres", cluster.NameLabel: "orders"},
			Annotations: map[string]string{
				ledger.Annotation:  book.Encode(),
				history.Annotation: history.History{Entries: []history.Entry{{ID: entryID, Revision: 2, By: "jane", Response: history.Success}}}.Encode(),
			},
		},
		Type: corev1.SecretTypeBasicAuth,
		Data: map[string][]byte{"username": []byte("app"), "password": stored},
	}
	if change != nil {
		change(secret)
	}
	return secret
}

func viewAt(age time.Duration, change func(*corev1.Secret)) *v1alpha1.Credential {
	v := viewer{now: func() time.Time { return minted.Add(age) }, retention: 24 * time.Hour}
	return v.view(mintedSecret(change), "scram-sha-256")
}

func withHistory(h history.History) func(*corev1.Secret) {
	return func(s *corev1.Secret) { s.Annotations[history.Annotation] = h.Encode() }
}

func withoutHistory(s *corev1.Secret) { delete(s.Annotations, history.Annotation) }

func TestTheViewJoinsWhatTheProjectorWroteWithTheLedger(t *testing.T) {
	c := viewAt(time.Hour, nil)
	assert.Equal(t, "postgres-orders.app", c.Name)
	assert.Equal(t, "u1", string(c.UID))
	assert.Equal(t, "7", c.ResourceVersion)
	assert.Equal(t, v1alpha1.CredentialSpec{
		Application: v1alpha1.ApplicationReference{Kind: "Postgres", Name: "orders"}, Username: "app", Format: "scram-sha-256",
	}, c.Spec)
	assert.Equal(t, "Minted", c.Status.Password.Origin)
	assert.Equal(t, int64(2), c.Status.Password.Revision)
	require.Len(t, c.Status.History, 2)
	assert.Equal(t, v1alpha1.Operation{
		ID: entryID, Revision: 2, Operation: "Mint", At: metav1.NewMicroTime(minted), By: "jane", Attribution: "AuditLog", Response: "Success",
	}, c.Status.History[0])
	assert.Equal(t, "Platform", c.Status.History[1].Attribution)
	assert.Empty(t, c.Status.Findings)
}

func TestTheViewHoldsNoStoredFormNoDigestAndNoAuditID(t *testing.T) {
	c := viewAt(time.Hour, nil)
	book, err := ledger.Parse(mintedSecret(nil).Annotations[ledger.Annotation])
	require.NoError(t, err)
	printed, err := json.Marshal(c)
	require.NoError(t, err)
	for _, secret := range []string{string(stored), book.Account, book.Newest().Caller, book.Newest().Stored, "a1"} {
		assert.NotContains(t, string(printed), `"`+secret+`"`)
	}
	assert.Empty(t, c.Annotations)
}

func TestAnOperationWithoutAnEventIsAttributedByItsAge(t *testing.T) {
	f := func(age time.Duration, want string, finding bool) {
		t.Helper()
		c := viewAt(age, withoutHistory)
		assert.Equal(t, want, c.Status.History[0].Attribution)
		assert.Empty(t, c.Status.History[0].By)
		assert.Equal(t, finding, len(c.Status.Findings) == 1 && c.Status.Findings[0].Type == "Unattributed" && c.Status.Findings[0].Revision == 2)
	}
	f(0, "Pending", false)
	f(Settling-time.Second, "Pending", false)
	f(Settling, "Unattributed", true)
	f(24*time.Hour, "Unattributed", true)
	f(25*time.Hour, "Expired", false)
	f(-time.Minute, "Pending", false)
}

type openGaps []gap.Gap

func (g openGaps) OpenGaps() []gap.Gap { return g }

func TestAnUnattributedOperationThatLiesInAnOpenGapSaysSo(t *testing.T) {
	missing := gap.Gap{
		Source: "file:audit.log", Reason: "rotated file is gone", From: minted.Add(-time.Minute), Until: minted.Add(time.Minute), FoundAt: minted.Add(time.Hour),
	}
	elsewhere, closed, endless := missing, missing, missing
	elsewhere.From, elsewhere.Until = minted.Add(2*time.Minute), minted.Add(3*time.Minute)
	closed.ClosedAt = minted
	endless.From, endless.Until = time.Time{}, time.Time{}
	f := func(age time.Duration, want []string, change func(*corev1.Secret), gaps ...gap.Gap) v1alpha1.CredentialStatus {
		t.Helper()
		v := viewer{now: func() time.Time { return minted.Add(age) }, retention: 24 * time.Hour, gaps: openGaps(gaps)}
		c := v.view(mintedSecret(change), "scram-sha-256")
		types := []string{}
		for _, f := range c.Status.Findings {
			types = append(types, f.Type)
			assert.Equal(t, int64(2), f.Revision)
		}
		assert.Equal(t, want, types)
		return c.Status
	}
	status := f(time.Hour, []string{"Unattributed", "Gap"}, withoutHistory, elsewhere, closed, missing, endless)
	assert.Equal(t, "Unattributed", status.History[0].Attribution)
	assert.Empty(t, status.History[0].By)
	assert.Equal(t, `the audit log "file:audit.log" is missing from 2026-03-01T11:59:00Z until 2026-03-01T12:01:00Z (rotated file is gone), `+
		`and the audit event may lie there; a replay of the archive may close this gap`, status.Findings[1].Message)
	status = f(time.Hour, []string{"Unattributed", "Gap"}, withoutHistory, endless)
	assert.Contains(t, status.Findings[1].Message, "is missing until 2026-03-01T13:00:00Z (")

	f(time.Hour, []string{"Unattributed"}, withoutHistory)
	f(time.Hour, []string{"Unattributed"}, withoutHistory, elsewhere, closed)
	f(time.Minute, []string{}, withoutHistory, missing) // it is pending yet
	status = f(time.Hour, []string{}, nil, missing)     // and an attributed one stays as it is
	assert.Equal(t, "jane", status.History[0].By)
	f(48*time.Hour, []string{}, withoutHistory, missing) // as does one whose evidence has expired
}

func TestTheViewShowsNoNameThatTheLedgerDidNotCommitTo(t *testing.T) {
	f := func(name string, e history.Entry) {
		t.Helper()
		c := viewAt(time.Hour, withHistory(history.History{Entries: []history.Entry{e}}))
		assert.Equal(t, "Unattributed", c.Status.History[0].Attribution, name)
		assert.Empty(t, c.Status.History[0].By, name)
		assert.Empty(t, c.Status.History[0].ImpersonatedBy, name)
		assert.Equal(t, "Platform", c.Status.History[1].Attribution, name)
	}
	f("another user", history.Entry{ID: entryID, Revision: 2, By: "ivan"})
	f("nobody", history.Entry{ID: entryID, Revision: 2})
	f("another revision", history.Entry{ID: entryID, Revision: 3, By: "jane"})
	f("another entry", history.Entry{ID: strings.Repeat("ee", 16), Revision: 2, By: "jane"})
	f("the platform's entry", history.Entry{ID: strings.Repeat("cd", 16), Revision: 1, By: "jane"})
}

func TestAHistoryThatCannotBeReadAttributesNothing(t *testing.T) {
	c := viewAt(time.Hour, func(s *corev1.Secret) { s.Annotations[history.Annotation] = "{" })
	assert.Equal(t, "Unattributed", c.Status.History[0].Attribution)
}

func TestAnEntryWhoseEventsConflictIsAttributedWithoutWhatConflicts(t *testing.T) {
	c := viewAt(time.Hour, withHistory(history.History{
		Entries:  []history.Entry{{ID: entryID, Revision: 2, By: "jane"}},
		Findings: []history.Finding{{Type: history.FindingConflict, Revision: 2, Message: "m"}},
	}))
	assert.Equal(t, "AuditLog", c.Status.History[0].Attribution)
	assert.Equal(t, []v1alpha1.Finding{{Type: "Conflict", Revision: 2, Message: "m"}}, c.Status.Findings)
}

func TestOnlyTheProjectorsFindingsAreTakenFromTheAnnotation(t *testing.T) {
	c := viewAt(time.Hour, withHistory(history.History{
		Entries:  []history.Entry{{ID: entryID, Revision: 2, By: "jane"}},
		Findings: []history.Finding{{Type: history.FindingOutOfBand}, {Type: history.FindingUnattributed}, {Type: "Invented"}},
	}))
	assert.Empty(t, c.Status.Findings)
}

func TestAPasswordThatTheNewestEntryDidNotWriteIsOutOfBandAndNamesItsWriters(t *testing.T) {
	f := func(writers []string, want string) {
		t.Helper()
		c := viewAt(time.Hour, func(s *corev1.Secret) {
			s.Data["password"] = []byte("another")
			withHistory(history.History{Entries: []history.Entry{{ID: entryID, Revision: 2, By: "jane"}}, Writers: writers})(s)
		})
		require.Len(t, c.Status.Findings, 1)
		assert.Equal(t, "OutOfBand", c.Status.Findings[0].Type)
		assert.Contains(t, c.Status.Findings[0].Message, want)
	}
	f(nil, "names nobody")
	f([]string{"ivan"}, `"ivan"`)
	f([]string{"ivan", "olga\n"}, `"ivan", "olga\n"`)

	c := viewAt(time.Hour, withHistory(history.History{
		Entries: []history.Entry{{ID: entryID, Revision: 2, By: "jane"}}, Writers: []string{"ivan"},
	}))
	assert.Empty(t, c.Status.Findings, "the password is what it should be, whoever wrote the Secret")
}

func TestABrokenLedgerIsShownAsOne(t *testing.T) {
	f := func(change func(*corev1.Secret), origin string) {
		t.Helper()
		c := viewAt(time.Hour, change)
		require.Len(t, c.Status.Findings, 1)
		assert.Equal(t, "BrokenLedger", c.Status.Findings[0].Type)
		assert.Equal(t, origin, c.Status.Password.Origin)
		assert.Empty(t, c.Status.History)
	}
	f(func(s *corev1.Secret) { s.Annotations[ledger.Annotation] = "{" }, "Unknown")
	f(func(s *corev1.Secret) {
		s.Annotations = map[string]string{ledger.OriginAnnotation: "Minted"}
	}, "Minted")
	f(func(s *corev1.Secret) {
		s.Annotations = map[string]string{ledger.OriginAnnotation: "\x1b[31m"}
	}, "Unknown")
	f(func(s *corev1.Secret) { s.Annotations, s.Data = nil, nil }, "Unknown")
}

func TestTheTableSaysWhoOrWhyNobody(t *testing.T) {
	f := func(change func(*corev1.Secret), age time.Duration, wantBy, wantFindings string) {
		t.Helper()
		s := &Storage{viewer: viewer{now: func() time.Time { return minted.Add(age) }, retention: 24 * time.Hour}}
		table, err := s.ConvertToTable(t.Context(), viewAt(age, change), nil)
		require.NoError(t, err)
		require.Len(t, table.Rows, 1)
		require.Len(t, table.Rows[0].Cells, len(table.ColumnDefinitions))
		assert.Equal(t, wantBy, table.Rows[0].Cells[4])
		assert.Equal(t, wantFindings, table.Rows[0].Cells[5])
	}
	entry := history.Entry{ID: entryID, Revision: 2, By: "jane"}
	f(nil, time.Hour, "jane", "<none>")
	f(withHistory(history.History{Entries: []history.Entry{{ID: entryID, Revision: 2, By: "jane", ImpersonatedBy: "root"}}}), time.Hour, "jane (through root)", "<none>")
	f(withoutHistory, 0, "<pending>", "<none>")
	f(withoutHistory, time.Hour, "<unattributed>", "Unattributed")
	f(func(s *corev1.Secret) { delete(s.Annotations, ledger.Annotation) }, 0, "<unknown>", "BrokenLedger")
	f(withHistory(history.History{Entries: []history.Entry{entry}, Findings: []history.Finding{
		{Type: history.FindingMismatch, Revision: 1}, {Type: history.FindingMismatch, Revision: 2}, {Type: history.FindingUncommitted},
	}}), time.Hour, "jane", "Mismatch,Uncommitted")
}

func TestNoUserLooksLikeTheTablesOwnWords(t *testing.T) {
	f := func(user, impersonator, want string) {
		t.Helper()
		o := v1alpha1.Operation{By: user, ImpersonatedBy: impersonator, Attribution: "AuditLog"}
		assert.Equal(t, want, by(&v1alpha1.Credential{Status: v1alpha1.CredentialStatus{History: []v1alpha1.Operation{o}}}))
	}
	f("jane", "", "jane")
	f("oidc:jane <jane@example.com>", "", "oidc:jane <jane@example.com>")
	f("<platform>", "", `"<platform>"`)
	f(`"<platform>"`, "", `"\"<platform>\""`)
	f("jane (through root)", "", `"jane (through root)"`)
	f("jane", "<pending>", `jane (through "<pending>")`)
}
