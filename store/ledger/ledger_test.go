package ledger_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/ledger"
)

const account = "00112233445566778899aabbccddeeff"

var at = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)

func id(n int) string { return fmt.Sprintf("%032x", n) }

func mint(l ledger.Ledger, n int) ledger.Ledger {
	auditID := fmt.Sprint("audit-", n)
	return l.Append(ledger.Entry{
		ID: id(n), Operation: ledger.Mint, At: at.Add(time.Duration(n) * time.Second), AuditID: auditID,
		Caller: l.CallerDigest(auditID, "jane"), Stored: l.StoredDigest(auditID, []byte("stored")),
	})
}

func ledgerOf(entries int) ledger.Ledger {
	l := ledger.Ledger{Account: account}
	for n := range entries {
		l = mint(l, n+1)
	}
	return l
}

func TestALedgerKeepsTheNewestTwentyEntriesNewestFirst(t *testing.T) {
	l := ledgerOf(25)
	require.Len(t, l.Entries, ledger.MaxEntries)
	for i, e := range l.Entries {
		assert.Equal(t, int64(25-i), e.Revision)
	}
}

func TestOnlyTheNewestEntryHasAStoredDigest(t *testing.T) {
	for i, e := range ledgerOf(3).Entries {
		assert.Equal(t, i == 0, e.Stored != "", "entry %d", i)
	}
}

func TestAppendLeavesTheLedgerItAppendsToAsItWas(t *testing.T) {
	before := ledgerOf(3)
	encoded := before.Encode()
	mint(before, 4)
	assert.Equal(t, encoded, before.Encode())
}

func TestParseReadsWhatEncodeWrote(t *testing.T) {
	for entries := 1; entries <= 22; entries++ {
		want := ledgerOf(entries)
		got, err := ledger.Parse(want.Encode())
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
}

func TestABrokenLedgerIsAnErrorThatQuotesNothingOfIt(t *testing.T) {
	good := ledgerOf(2).Encode()
	f := func(name, annotation string) {
		t.Helper()
		_, err := ledger.Parse(annotation)
		require.ErrorIs(t, err, ledger.ErrBroken, name)
		assert.NotContains(t, err.Error(), "hunter2", name)
	}
	f("empty", "")
	f("no JSON", "hunter2")
	f("null", "null")
	f("no entries", `{"account":"`+account+`","entries":[]}`)
	f("no account", strings.Replace(good, account, "", 1))
	f("short account", strings.Replace(good, account, account[2:], 1))
	f("trailing text", good+"hunter2")
	f("truncated", good[:len(good)-2])
	f("unknown operation", strings.Replace(good, `"Mint"`, `"hunter2"`, 1))
	f("gap in the revisions", strings.Replace(good, `"revision":2`, `"revision":3`, 1))
	f("revision zero", strings.Replace(good, `"revision":1`, `"revision":0`, 1))
	f("revision no number", strings.Replace(good, `"revision":2`, `"revision":"hunter2"`, 1))
	f("requested without audit id", strings.Replace(good, `"auditID":"audit-2",`, ``, 1))
	f("no stored digest on the newest", strings.Replace(good, `"stored":`, `"hunter2":`, 1))
	f("too many entries", tooMany())
}

func TestAFieldOfALaterVersionBreaksNoLedger(t *testing.T) {
	want := ledgerOf(2)
	got, err := ledger.Parse(strings.Replace(want.Encode(), `"account"`, `"later":1,"account"`, 1))
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

func tooMany() string {
	l := ledgerOf(20)
	oldest := l.Entries[19]
	oldest.Revision, oldest.ID = 0, id(99)
	for i := range l.Entries {
		l.Entries[i].Revision++
	}
	oldest.Revision = 1
	l.Entries = append(l.Entries, oldest)
	return l.Encode()
}

func TestTheCallerDigestTellsUsersAuditIDsAndAccountsApart(t *testing.T) {
	l, other := ledger.Ledger{Account: account}, ledger.Ledger{Account: id(7)}
	digests := []string{
		l.CallerDigest("a", "jane"), l.CallerDigest("a", "ivan"), l.CallerDigest("b", "jane"), other.CallerDigest("a", "jane"),
		l.CallerDigest("aj", "ane"), l.CallerDigest("", "ajane"), l.StoredDigest("a", []byte("jane")),
	}
	seen := map[string]bool{}
	for _, d := range digests {
		assert.False(t, seen[d])
		seen[d] = true
	}
	assert.Equal(t, l.CallerDigest("a", "jane"), l.CallerDigest("a", "jane"))
}

func TestNewIDReportsARandomSourceThatFails(t *testing.T) {
	_, err := ledger.NewID(strings.NewReader("short"))
	require.Error(t, err)
	got, err := ledger.NewID(rand.NewChaCha8([32]byte{1}))
	require.NoError(t, err)
	assert.Len(t, got, 32)
}

func FuzzParseNeverPanicsAndReadsBackWhatItAccepts(f *testing.F) {
	f.Add(ledgerOf(1).Encode())
	f.Add(ledgerOf(20).Encode())
	f.Add("{}")
	f.Fuzz(func(t *testing.T, annotation string) {
		l, err := ledger.Parse(annotation)
		if err != nil {
			return
		}
		again, err := ledger.Parse(l.Encode())
		require.NoError(t, err)
		assert.Equal(t, l.Encode(), again.Encode())
	})
}
