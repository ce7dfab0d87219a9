package archive

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/ledger"
)

func TestEventsComeBackFromVictoriaLogsAsTheyWere(t *testing.T) {
	t.Parallel()
	v := startVictoriaLogs(t)
	want := mints(0, 5)
	want[1].ImpersonatedUser = &event.User{Username: "olga"}
	want[2].ImpersonatedUser = &event.User{}
	want[3].Annotations, want[3].ResponseStatus = nil, nil
	require.NoError(t, insert(t, v.archive(), want))
	v.show()
	got := query(t, v.archive(), Query{})
	slices.Reverse(got)
	for i := range want {
		want[i].Source = "archive"
	}
	assert.Equal(t, want, got)
}

// insert sends events as the archiver does.
func insert(t testing.TB, a *Archive, list []event.Event) error {
	t.Helper()
	lines := make([][]byte, len(list))
	for i := range list {
		line, err := encode(&list[i])
		require.NoError(t, err)
		lines[i] = line
	}
	return a.insertLines(t.Context(), lines)
}

func references(list []event.Event) []reference {
	to := make([]reference, len(list))
	for i := range list {
		to[i] = referenceTo(&list[i])
	}
	return to
}

func TestAnyEventKeepsItsIdentityThroughVictoriaLogs(t *testing.T) {
	t.Parallel()
	v := startVictoriaLogs(t)
	r := rand.New(rand.NewPCG(3, 4))
	var list []event.Event
	want := map[string]bool{}
	for len(list) < 2000 {
		e := anyEvent(r)
		list = append(list, e)
		want[e.Identity()] = true
	}
	require.NoError(t, insert(t, v.archive(), list))
	v.show()
	present, err := v.archive().present(t.Context(), references(list))
	require.NoError(t, err)
	assert.Equal(t, want, present)
	got := map[string]bool{}
	err = v.archive().rows(t.Context(), `_stream:{log_source="audit_log"}`, func(r row) error {
		e, err := fromRow(r)
		if err == nil {
			require.Equal(t, r[fieldEventID], e.Identity())
			got[e.Identity()] = true
		}
		return err
	})
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

func TestAQueryFindsByAnyNameExactlyTheEventsThatBearIt(t *testing.T) {
	t.Parallel()
	v := startVictoriaLogs(t)
	names := slices.DeleteFunc(slices.Clone(hostile), func(s string) bool { return s == "" || len(s) > 1000 })
	var list []event.Event
	for i, name := range names {
		byUser, byNamespace, byName, byID := mintEvent(4*i), mintEvent(4*i+1), mintEvent(4*i+2), mintEvent(4*i+3)
		byUser.User.Username, byNamespace.ObjectRef.Namespace, byName.ObjectRef.Name, byID.AuditID = name, name, name, name
		list = append(list, byUser, byNamespace, byName, byID)
	}
	require.NoError(t, insert(t, v.archive(), list))
	v.show()
	for i, name := range names {
		extra := 0
		if name == "jane" { // everybody's name in this test
			extra = len(list) - len(names)
		}
		assert.Len(t, query(t, v.archive(), Query{User: name}), 1+extra, "user %q", name)
		assert.Equal(t, identities(list[4*i+1:4*i+2]), identities(query(t, v.archive(), Query{Namespace: name})), "namespace %q", name)
		assert.Equal(t, identities(list[4*i+2:4*i+3]), identities(query(t, v.archive(), Query{Credential: name})), "credential %q", name)
		assert.Equal(t, identities(list[4*i+3:4*i+4]), identities(query(t, v.archive(), Query{AuditID: name})), "audit id %q", name)
	}
}

func TestAQueryIsNarrowedByEachOfItsFields(t *testing.T) {
	t.Parallel()
	v := startVictoriaLogs(t)
	mint, revoke, write, impersonated, foreign := mintEvent(0), mintEvent(1), mintEvent(2), mintEvent(3), mintEvent(4)
	revoke.ObjectRef.Subresource = "revoke"
	write.Verb, write.ObjectRef = "update", &event.ObjectRef{Resource: "secrets", Namespace: "tenant-acme", Name: "postgres-orders.app.account", UID: "u1"}
	impersonated.User.Username, impersonated.ImpersonatedUser = "root", &event.User{Username: "olga"}
	foreign.ObjectRef = &event.ObjectRef{Resource: "secrets", Namespace: "tenant-acme", Name: "postgres-orders-app"}
	all := []event.Event{mint, revoke, write, impersonated, foreign}
	require.NoError(t, insert(t, v.archive(), all))
	v.show()
	f := func(q Query, want ...event.Event) {
		t.Helper()
		got := identities(query(t, v.archive(), q))
		slices.Reverse(got)
		assert.Equal(t, identities(want), got, "%+v", q)
	}
	f(Query{}, mint, revoke, write, impersonated)
	f(Query{Credential: "postgres-orders.app"}, mint, revoke, write, impersonated)
	f(Query{Credential: "postgres-orders"})
	f(Query{Namespace: "tenant"})
	f(Query{Operation: ledger.Mint}, mint, impersonated)
	f(Query{Operation: ledger.Revoke}, revoke)
	f(Query{User: "olga"}, impersonated)
	f(Query{User: "root"}, impersonated)
	f(Query{Start: revoke.RequestReceivedTimestamp, End: impersonated.RequestReceivedTimestamp}, revoke, write)
	f(Query{AuditID: write.AuditID}, write)
}

func TestAnEventInsertedTwiceOrWrittenByAnotherPipelineTooComesOnce(t *testing.T) {
	t.Parallel()
	v := startVictoriaLogs(t)
	list := mints(0, 50)
	for range 3 {
		require.NoError(t, insert(t, v.archive(), list))
	}
	v.insertForeign(list...)
	assert.Equal(t, 200, v.rows())
	got := identities(query(t, v.archive(), Query{}))
	slices.Reverse(got)
	assert.Equal(t, identities(list), got)
}

func TestAQueryPagesThroughTheNewestFirstAndStopsAtItsLimit(t *testing.T) {
	t.Parallel()
	v := startVictoriaLogs(t)
	list := mints(0, 12*pageSize)
	for i := range 3*pageSize + 7 { // more of one time than a page holds
		list[i+300].RequestReceivedTimestamp = list[300].RequestReceivedTimestamp
	}
	require.NoError(t, insert(t, v.archive(), list))
	v.show()
	got := query(t, v.archive(), Query{})
	assert.ElementsMatch(t, identities(list), identities(got))
	assert.True(t, slices.IsSortedFunc(got, func(a, b event.Event) int {
		return b.RequestReceivedTimestamp.Compare(a.RequestReceivedTimestamp)
	}))
	limited := query(t, v.archive(), Query{Limit: 3})
	assert.Equal(t, identities(got[:3]), identities(limited))
	assert.Len(t, query(t, v.archive(), Query{Limit: 7}), 7)
}

func TestAQueryEndsWithItsHandlersErrorOrItsContext(t *testing.T) {
	t.Parallel()
	v := startVictoriaLogs(t)
	require.NoError(t, insert(t, v.archive(), mints(0, 10)))
	v.show()
	full := errors.New("full")
	assert.ErrorIs(t, v.archive().Query(t.Context(), Query{}, func(event.Event) error { return full }), full)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.ErrorIs(t, v.archive().Query(ctx, Query{}, func(event.Event) error { return nil }), context.Canceled)
}

func TestALongEventAmongOthersIsStoredAndSoAreTheOthers(t *testing.T) {
	t.Parallel()
	v := startVictoriaLogs(t)
	list := mints(0, 1002)
	list[1].UserAgent = strings.Repeat("a", 400<<10)
	list[2].ObjectRef.Name = strings.Repeat("n", 220<<10)
	require.NoError(t, insert(t, v.archive(), list))
	v.show()
	present, err := v.archive().present(t.Context(), references(list))
	require.NoError(t, err)
	assert.Len(t, present, 1002)
}

// record answers every request as VictoriaLogs does an insert and keeps the uncompressed bodies.
func record(t *testing.T, status int) (*Archive, *[][]byte) {
	t.Helper()
	var bodies [][]byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "gzip", r.Header.Get("Content-Encoding"))
		assert.Equal(t, "0", r.Header.Get("AccountID"))
		assert.Equal(t, "0", r.Header.Get("ProjectID"))
		uncompressed, err := gzip.NewReader(r.Body)
		if assert.NoError(t, err) {
			body, err := io.ReadAll(uncompressed)
			assert.NoError(t, err)
			bodies = append(bodies, body)
		}
		w.WriteHeader(status)
		_, _ = fmt.Fprint(w, "line contents: jane")
	}))
	t.Cleanup(server.Close)
	return New(server.URL+"/", nil), &bodies
}

func TestInsertsAreSplitIntoBatchesBelowFourMegabytes(t *testing.T) {
	archive, bodies := record(t, http.StatusOK)
	list := mints(0, 60)
	for i := range list {
		list[i].ObjectRef.Name = strings.Repeat("n", 200<<10)
	}
	require.NoError(t, insert(t, archive, list))
	lines := 0
	for _, body := range *bodies {
		assert.Less(t, len(body), 4<<20)
		lines += bytes.Count(body, []byte("\n"))
	}
	assert.Equal(t, 60, lines)
	assert.Len(t, *bodies, 4)

	require.NoError(t, insert(t, archive, nil))
	assert.Len(t, *bodies, 4, "nothing to send is not sent")
}

func TestAnInsertThatIsRefusedIsATypedErrorWithoutWhatWasSent(t *testing.T) {
	archive, _ := record(t, http.StatusBadRequest)
	err := insert(t, archive, mints(0, 1))
	var status *StatusError
	require.ErrorAs(t, err, &status)
	assert.Equal(t, http.StatusBadRequest, status.Code)
	assert.NotContains(t, err.Error(), "jane")
}

func TestAnAnswerThatIsNotVictoriaLogsSaysFromWhereItComesAndWhatToLookAt(t *testing.T) {
	answers := func(code int, kind, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(code)
			_, _ = fmt.Fprint(w, body)
		}
	}
	login := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/login" {
				answers(http.StatusOK, "text/plain", "who are you?")(w, r)
				return
			}
			http.Redirect(w, r, "/login?state=hunter2", code)
		}
	}
	f := func(handler http.HandlerFunc, inserts bool, words ...string) {
		t.Helper()
		server := httptest.NewServer(handler)
		defer server.Close()
		host := server.Listener.Addr().String()
		archive := New("http://sre:hunter2@"+host+"/logs", nil)
		asked := map[string]func() error{
			"/select/logsql/query": func() error {
				return archive.Query(t.Context(), Query{}, func(event.Event) error { return nil })
			},
		}
		if !inserts {
			asked["/insert/jsonline"] = func() error { return insert(t, archive, mints(0, 1)) }
		}
		for path, ask := range asked {
			err := ask()
			require.Error(t, err, path)
			for _, word := range append(words, "http://"+host+"/logs"+path, "see that the URL leads to it") {
				assert.Contains(t, err.Error(), strings.ReplaceAll(word, "HOST", host), path)
			}
			assert.NotContains(t, err.Error(), "hunter2", "no secret of the URL")
			assert.NotContains(t, err.Error(), "line contents", "nothing of what was sent")
		}
		_, err := archive.State(t.Context())
		require.ErrorContains(t, err, "see that the URL leads to it", "what the doctor asks")
		_, err = archive.present(t.Context(), references(mints(0, 1)))
		require.ErrorContains(t, err, "see that the URL leads to it", "what the archiver asks")
	}
	page := "<!DOCTYPE html><title>line contents</title>"
	f(answers(http.StatusOK, "text/html; charset=utf-8", page), false, "answered 200 (text/html)")
	f(answers(http.StatusUnauthorized, "text/html", page), false, "answered 401 (text/html)")
	f(answers(http.StatusBadGateway, "text/html", page), false, "answered 502 (text/html)")
	f(login(http.StatusFound), false, "redirected to http://HOST/login, which answered 200 (text/plain)")
	f(login(http.StatusTemporaryRedirect), true, "redirected to http://HOST/login, which answered 200 (text/plain)")
	f(answers(http.StatusOK, "text/plain", "ok"), true, "answered 200 (text/plain)")
	f(answers(http.StatusOK, "application/json", `{"status":"error"}`), true, "answered 200 (application/json)")
}

func TestAnAnswerThatIsCutShortIsNotTakenForAnothers(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = fmt.Fprint(w, `{"_time":"2026-0`)
	}))
	defer server.Close()
	err := New(server.URL, nil).Query(t.Context(), Query{}, func(event.Event) error { return nil })
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	assert.NotContains(t, err.Error(), "leads to it")
}

func TestAQueryThatVictoriaLogsDoesNotUnderstandIsAnErrorThatSaysWhy(t *testing.T) {
	t.Parallel()
	v := startVictoriaLogs(t)
	err := v.archive().rows(t.Context(), "a | nosuchpipe", func(row) error { return nil })
	assert.ErrorContains(t, err, "nosuchpipe")
}

func TestTheArchiveSaysWhichTimesItTakes(t *testing.T) {
	t.Parallel()
	v := startVictoriaLogs(t, "-retentionPeriod=2w", "-futureRetention=3d", "-maxBackfillAge=36h")
	r, err := v.archive().retention(t.Context())
	require.NoError(t, err)
	const day = 24 * time.Hour
	assert.Equal(t, retention{past: 14 * day, backfill: 36 * time.Hour, future: 3 * day}, r)
}

func TestAgesAreReadAsVictoriaLogsWritesThem(t *testing.T) {
	const day = 24 * time.Hour
	f := func(in string, want time.Duration) {
		t.Helper()
		assert.Equal(t, want, parseAge(in))
	}
	f("0", 0)
	f("7d", 7*day)
	f("1.5d", 36*time.Hour)
	f("1", 31*day)
	f("1y", 365*day)
	f("100y", 36500*day)
	f("1000y", 0)
	f("", 0)
	f("7dd", 0)
	f("-1d", 0)
	f("soon", 0)
}

func TestAnEventOutsideTheRetentionIsNotTaken(t *testing.T) {
	now := time.Date(2026, 11, 10, 15, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	f := func(r retention, age time.Duration, want bool) {
		t.Helper()
		assert.Equal(t, want, r.takes(now.Add(-age), now), "%v at age %v", r, age)
	}
	f(retention{}, 100*365*day, false) // before 1970
	f(retention{}, 365*day, true)
	f(retention{past: 7 * day}, 7*day+15*time.Hour, true)
	f(retention{past: 7 * day}, 7*day+15*time.Hour+time.Microsecond, false)
	f(retention{backfill: day}, day+time.Microsecond, false)
	f(retention{backfill: day}, day, true)
	f(retention{future: 2 * day}, -2*day, true)
	f(retention{future: 2 * day}, -3*day, false)
	assert.False(t, retention{}.takes(time.Time{}, now))
}
