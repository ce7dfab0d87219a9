package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const auditLine = `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"1","stage":"ResponseComplete",` +
	`"requestURI":"/api/v1/pods","verb":"list","user":{"username":"jane"},"objectRef":{"resource":"pods","apiVersion":"v1"},` +
	`"responseStatus":{"metadata":{},"code":200},"requestReceivedTimestamp":"2026-08-21T10:00:00.000001Z",` +
	`"stageTimestamp":"2026-08-21T10:00:00.011002Z","annotations":{"authorization.k8s.io/decision":"allow"}}` + "\n"

// runCheck runs "mintlog ingest check" with the log on standard input.
func runCheck(t *testing.T, stdin string, arguments ...string) (out string, err error) {
	t.Helper()
	c := command()
	var stdout bytes.Buffer
	c.SetIn(strings.NewReader(stdin))
	c.SetOut(&stdout)
	c.SetErr(t.Output())
	c.SetArgs(append([]string{"ingest", "check"}, arguments...))
	err = c.ExecuteContext(t.Context())
	return stdout.String(), err
}

func TestACheckFailsExactlyWhenSomethingCouldNotBeRead(t *testing.T) {
	directory := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(directory, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, err := w.Write([]byte(auditLine))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	good := file("good.log", auditLine)
	f := func(places, stdin string, paths ...string) {
		t.Helper()
		out, err := runCheck(t, stdin, paths...)
		if places == "" {
			assert.NoError(t, err, "%v", paths)
		} else {
			assert.EqualError(t, err, "places that could not be read: "+places, "%v", paths)
		}
		assert.NotEmpty(t, out)
	}
	f("", auditLine)
	f("", auditLine, "-")
	f("", "", good, "-", good)
	f("", "", file("no-line-break.log", strings.TrimSpace(auditLine)))
	f("", "", file("good.log.gz", zipped.String()))
	f("1", auditLine[:40])
	f("2", "torn\ntorn\n", good, "-")
	f("1", "", filepath.Join(directory, "missing.log"), good)
	f("1", "", directory)
	f("1", "", file("truncated.log.gz", zipped.String()[:zipped.Len()-9]))
	f("1", "", file("plain.log.gz", auditLine))
	f("1", "", file("empty.log.gz", ""))
}

func TestACheckPrintsTwentyPlacesOfALogAndAllOnRequest(t *testing.T) {
	noise := strings.Repeat("noise\n", 50)
	f := func(want int, arguments ...string) {
		t.Helper()
		out, err := runCheck(t, noise, arguments...)
		require.EqualError(t, err, "places that could not be read: 50")
		assert.Equal(t, want, strings.Count(out, "could not read line"))
		assert.Equal(t, want < 50, strings.Contains(out, "could not read 30 more places; --all prints them"))
	}
	f(20)
	f(50, "--all")
	var document struct {
		Files []struct{ Problems []any }
		Total struct{ Unreadable int }
	}
	out, err := runCheck(t, noise, "-o", "json")
	require.Error(t, err)
	require.NoError(t, json.Unmarshal([]byte(out), &document))
	assert.Len(t, document.Files[0].Problems, 20)
	assert.Equal(t, 50, document.Total.Unreadable)
}

func TestACheckNamesAWrongFlag(t *testing.T) {
	_, err := runCheck(t, "", "-o", "yaml")
	assert.ErrorContains(t, err, "-o")
	_, err = runCheck(t, "", "-", "-")
	assert.ErrorContains(t, err, "standard input")
	_, err = runCheck(t, "", "--every")
	assert.ErrorContains(t, err, "unknown flag")
}
