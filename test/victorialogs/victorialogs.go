// Package victorialogs starts a real VictoriaLogs for a test, and fills and asks one as others than mintlog do.
package victorialogs

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mintlog/mintlog/test/sandbox/process"
)

// CozystackInsert is the path and the query to which Cozystack's own pipeline posts its records, a JSON object a line.
const CozystackInsert = "/insert/jsonline?_stream_fields=log_source,stage,user_username,verb,requestUri&_msg_field=requestURI&_time_field=date"

// A Server is a VictoriaLogs in a process of its own, which a test may kill and restart.
type Server struct {
	*process.Process
	URL string // without a trailing slash
}

// Start starts one with an empty archive and more flags. It is killed when the test ends.
func Start(t testing.TB, flags ...string) *Server {
	t.Helper()
	path, err := process.Binary("victoria-logs")
	require.NoError(t, err)
	address, err := process.FreeAddress()
	require.NoError(t, err)
	directory := t.TempDir()
	s := &Server{URL: "http://" + address}
	s.Process, err = process.Start(t.Context(), process.Options{
		Name: "victoria-logs", Path: path, LogFile: filepath.Join(directory, "log"),
		Arguments: append([]string{"-httpListenAddr=" + address, "-storageDataPath=" + filepath.Join(directory, "data"), "-loggerLevel=ERROR"}, flags...),
		Ready:     process.Answers(http.DefaultClient, s.URL+"/health"),
	})
	require.NoError(t, err)
	t.Cleanup(s.Kill)
	return s
}

// InsertAsCozystack sends records as Cozystack's pipeline does, and makes them visible.
func InsertAsCozystack(t require.TestingT, server string, records ...map[string]any) {
	var body bytes.Buffer
	for _, record := range records {
		require.NoError(t, json.NewEncoder(&body).Encode(record))
	}
	answered(t)(http.Post(server+CozystackInsert, "application/stream+json", &body))
	Flush(t, server)
}

// Flush makes visible what was inserted.
func Flush(t require.TestingT, server string) {
	answered(t)(http.Get(server + "/internal/force_flush"))
}

// Ask is the answer to a LogsQL query: a JSON object a line, of all that was inserted by then.
func Ask(t require.TestingT, server, query string) string {
	Flush(t, server)
	return answered(t)(http.PostForm(server+"/select/logsql/query", url.Values{"query": {query}}))
}

// Rows is the answer to a LogsQL query, of all that was inserted by then.
func Rows(t require.TestingT, server, query string) []map[string]string {
	var rows []map[string]string
	for decoder := json.NewDecoder(bytes.NewReader([]byte(Ask(t, server, query)))); decoder.More(); {
		var row map[string]string
		require.NoError(t, decoder.Decode(&row))
		rows = append(rows, row)
	}
	return rows
}

// answered reads an answer, which must be a 200.
func answered(t require.TestingT) func(*http.Response, error) string {
	return func(answer *http.Response, err error) string {
		require.NoError(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, answer.StatusCode, "%s", text)
		return string(text)
	}
}
