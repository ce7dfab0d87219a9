package archive

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/store/event"
)

// victoriaLogs is a real VictoriaLogs on a port of its own, which the test can kill and start again.
type victoriaLogs struct {
	t       testing.TB
	address string
	data    string
	flags   []string
	process *exec.Cmd
}

func startVictoriaLogs(t testing.TB, flags ...string) *victoriaLogs {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	v := &victoriaLogs{t: t, address: listener.Addr().String(), data: t.TempDir(), flags: flags}
	require.NoError(t, listener.Close())
	v.start()
	t.Cleanup(v.kill)
	return v
}

func binary(t testing.TB, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "bin", name))
	require.NoError(t, err)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s is missing: run `make tools`", path)
	}
	return path
}

func (v *victoriaLogs) start() {
	v.t.Helper()
	arguments := append([]string{"-httpListenAddr=" + v.address, "-storageDataPath=" + v.data, "-loggerLevel=ERROR"}, v.flags...)
	v.process = exec.Command(binary(v.t, "victoria-logs"), arguments...)
	require.NoError(v.t, v.process.Start())
	require.Eventually(v.t, func() bool {
		answer, err := http.Get(v.url() + "/health")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	}, 30*time.Second, 50*time.Millisecond, "VictoriaLogs did not start")
}

// kill ends it as a crash would.
func (v *victoriaLogs) kill() {
	if v.process != nil {
		_ = v.process.Process.Kill()
		_ = v.process.Wait()
		v.process = nil
	}
}

func (v *victoriaLogs) url() string { return "http://" + v.address }

func (v *victoriaLogs) archive() *Archive { return New(v.url(), nil) }

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
	var body bytes.Buffer
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
		line, err := json.Marshal(r)
		require.NoError(v.t, err)
		body.Write(append(line, '\n'))
	}
	const path = "/insert/jsonline?_stream_fields=log_source,stage,user_username,verb,requestUri&_msg_field=requestURI&_time_field=date"
	answer, err := http.Post(v.url()+path, "application/stream+json", &body)
	require.NoError(v.t, err)
	require.NoError(v.t, answer.Body.Close())
	require.Equal(v.t, http.StatusOK, answer.StatusCode)
	v.show()
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
