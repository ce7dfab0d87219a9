package archive

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/test/victorialogs"
)

// victoriaLogs is a real VictoriaLogs, which the test can kill and start again.
type victoriaLogs struct {
	*victorialogs.Server
	t testing.TB
}

func startVictoriaLogs(t testing.TB, flags ...string) *victoriaLogs {
	t.Helper()
	return &victoriaLogs{victorialogs.Start(t, flags...), t}
}

func (v *victoriaLogs) archive() *Archive { return New(v.URL, &http.Client{Transport: flushing{}}) }

// flushing has VictoriaLogs show what it took before an insert is answered, instead of about a second later: what a test
// finds then depends on no clock.
type flushing struct{}

func (flushing) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil || !strings.HasPrefix(r.URL.Path, "/insert/") {
		return answer, err
	}
	shown, err := http.Get("http://" + r.URL.Host + "/internal/force_flush")
	if err != nil {
		return nil, errors.Join(err, answer.Body.Close())
	}
	return answer, shown.Body.Close()
}

// show makes what was inserted visible.
func (v *victoriaLogs) show() {
	v.t.Helper()
	require.NoError(v.t, v.archive().show(context.Background()))
}

// rows counts the rows of the audit log, duplicates included.
func (v *victoriaLogs) rows() int {
	v.t.Helper()
	v.show()
	total := -1
	err := v.archive().rows(context.Background(), `_stream:{log_source="audit_log"} | stats count() n`, func(r row) error {
		var err error
		total, err = strconv.Atoi(r["n"])
		return err
	})
	require.NoError(v.t, err)
	return total
}

// insertForeign sends events as Cozystack's pipeline does, with its time as a number of seconds.
func (v *victoriaLogs) insertForeign(list ...event.Event) {
	v.t.Helper()
	var records []map[string]any
	for i := range list {
		r := map[string]any{}
		for name, value := range toRow(&list[i]) {
			r[name] = value
		}
		for _, ours := range []string{"_time", "_msg", "eventID", "operation", "source", "impersonated", "requestReceivedTimestamp"} {
			delete(r, ours)
		}
		r["date"] = float64(list[i].RequestReceivedTimestamp.UnixMicro()) / 1e6
		r["requestURI"], r["tenant"], r["cluster"] = list[i].RequestURI, "tenant-root", "root"
		records = append(records, r)
	}
	victorialogs.InsertAsCozystack(v.t, v.URL, records...)
}

// epoch is recent enough for VictoriaLogs to take it.
var epoch = time.Now().UTC().Add(-time.Hour).Truncate(time.Second)

// mintEvent is the i-th mint of an account, received in the i-th millisecond of an hour ago.
func mintEvent(i int) event.Event {
	at := epoch.Add(time.Duration(i)*time.Millisecond + 123*time.Microsecond)
	return event.Event{
		AuditID:    fmt.Sprintf("00000000-0000-4000-8000-%012d", i),
		Stage:      event.ResponseComplete,
		Verb:       "create",
		RequestURI: "/apis/credentials.cozystack.io/v1alpha1/namespaces/tenant-acme/credentials/postgres-orders.app/mint?timeout=30s",
		User: event.User{
			Username: "jane", UID: "7", Groups: []string{"tenant-acme-admin", "system:authenticated"},
			Extra: map[string][]string{"authentication.kubernetes.io/credential-id": {"X509SHA256=0f"}},
		},
		SourceIPs: []string{"10.0.0.7", "127.0.0.1"},
		UserAgent: "kubectl-credentials/1",
		ObjectRef: &event.ObjectRef{
			APIGroup: event.Group, APIVersion: "v1alpha1", Resource: event.Resource, Subresource: "mint",
			Namespace: "tenant-acme", Name: "postgres-orders.app",
		},
		ResponseStatus: &event.ResponseStatus{Code: 201},
		Annotations: map[string]string{
			"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": `RBAC: allowed by RoleBinding "x"`,
		},
		RequestReceivedTimestamp: at,
		StageTimestamp:           at.Add(8 * time.Millisecond),
		Source:                   "file:audit.log",
	}
}

func mints(from, to int) []event.Event {
	var list []event.Event
	for i := from; i < to; i++ {
		list = append(list, mintEvent(i))
	}
	return list
}

func identities(list []event.Event) []string {
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = list[i].Identity()
	}
	return ids
}

func query(t testing.TB, a *Archive, q Query) []event.Event {
	t.Helper()
	var got []event.Event
	require.NoError(t, a.Query(context.Background(), q, func(e event.Event) error {
		got = append(got, e)
		return nil
	}))
	return got
}
