package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/store/history"
)

// hostile is a user name that clears the screen, feigns a row and turns the direction of writing.
const hostile = "mallory\x1b[2J\nroot \u202e\u009b31m"

func credentials() v1alpha1.CredentialList {
	list := v1alpha1.CredentialList{TypeMeta: metav1.TypeMeta{APIVersion: "credentials.cozystack.io/v1alpha1", Kind: "CredentialList"}}
	for _, n := range []string{"postgres-orders.app", "postgres-orders.report-reader"} {
		c := v1alpha1.Credential{}
		c.Name, c.Namespace = n, "tenant-acme"
		list.Items = append(list.Items, c)
	}
	return list
}

func table() metav1.Table {
	return metav1.Table{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "Table"},
		ColumnDefinitions: []metav1.TableColumnDefinition{
			{Name: "Name", Type: "string"}, {Name: "Username", Type: "string"}, {Name: "By", Type: "string"},
			{Name: "Revision", Type: "integer", Priority: 1},
		},
		Rows: []metav1.TableRow{
			{Cells: []any{"postgres-orders.app", "app", "jane (through root)", int64(12345678)}},
			{Cells: []any{"postgres-orders.report-reader", "Report.Reader", "<pending>", int64(1)}},
			{Cells: []any{"postgres-orders.x", hostile, hostile, int64(2)}},
			{Cells: []any{"postgres-orders.y", "<\x1b[31m>", "", nil}},
		},
	}
}

func credential() v1alpha1.Credential {
	c := v1alpha1.Credential{TypeMeta: metav1.TypeMeta{APIVersion: "credentials.cozystack.io/v1alpha1", Kind: "Credential"}}
	c.Name, c.Namespace, c.UID, c.ResourceVersion = "postgres-orders.app", "tenant-acme", "uid-1", "700"
	c.Spec = v1alpha1.CredentialSpec{
		Application: v1alpha1.ApplicationReference{Kind: "Postgres", Name: "orders"}, Username: "app", Format: "scram-sha-256",
	}
	c.Status.Password = v1alpha1.PasswordStatus{Origin: v1alpha1.OriginMinted, Revision: 6}
	c.Status.History = []v1alpha1.Operation{
		{ID: "id-6", Revision: 6, Operation: "Mint", At: at(3 * time.Second), Attribution: "Pending"},
		{ID: "id-5", Revision: 5, Operation: "Mint", At: at(150 * time.Second), By: "jane", ImpersonatedBy: "root", Attribution: "AuditLog", Response: "Success"},
		{ID: "id-4", Revision: 4, Operation: "Revoke", At: at(5 * time.Hour), By: hostile, Attribution: "AuditLog", Response: "Unknown"},
		{ID: "id-3", Revision: 3, Operation: "Mint", At: at(26 * time.Hour), Attribution: "Unattributed"},
		{ID: "id-2", Revision: 2, Operation: "Mint", At: at(40 * 24 * time.Hour), By: "<none>", Attribution: "Expired", Response: "Unknown"},
		{ID: "id-1", Revision: 1, Operation: "Create", At: at(-time.Hour), Attribution: "Platform"},
	}
	c.Status.Findings = []v1alpha1.Finding{
		{Type: "Unattributed", Revision: 3, Message: "no event within 2 minutes"},
		{Type: "OutOfBand", Message: "written by " + hostile},
		{Type: "Novel", Message: "something that this version does not know"},
	}
	return c
}

func TestTheHistoryIsNewestFirstWithFindingsInPlainWordsAndNothingActsOnTheTerminal(t *testing.T) {
	s := newServer(t)
	s.answers["GET "+app] = sends(200, credential())
	r := s.command(t, "history", "postgres-orders.app")
	assert.Equal(t, exitOK, r.code)
	assert.Empty(t, r.err)
	assertSafe(t, r.out)
	golden(t, "history.txt", r.out)
}

func TestAHistoryWithoutOperationsSaysSo(t *testing.T) {
	s := newServer(t)
	c := credential()
	c.Status = v1alpha1.CredentialStatus{Password: v1alpha1.PasswordStatus{Origin: v1alpha1.OriginNotIssued}}
	s.answers["GET "+app] = sends(200, c)
	r := s.command(t, "history", "postgres-orders.app")
	assert.Equal(t, exitOK, r.code)
	golden(t, "history-empty.txt", r.out)
}

func TestAPasswordThatWaitsIsToldWithItsReason(t *testing.T) {
	c := v1alpha1.Credential{}
	c.Status.Password.Origin = v1alpha1.OriginMinted
	assert.NotContains(t, describe(c, time.Now(), 0), "It waits")
	c.Status.Password.Waiting = "the HelmRelease clickhouse-orders is suspended\x1b[2J"
	assert.Contains(t, describe(c, time.Now(), 0), "whoever asked.\nIt waits: the HelmRelease clickhouse-orders is suspended\\x1b[2J.\n\nThere is no operation")
}

func TestAHistoryAsJSONOrYAMLIsTheWholeCredentialAndSafeToPrint(t *testing.T) {
	s := newServer(t)
	s.answers["GET "+app] = sends(200, credential())
	f := func(format string, unmarshal func([]byte, any) error) {
		t.Helper()
		r := s.command(t, "history", "postgres-orders.app", "-o", format)
		assert.Equal(t, exitOK, r.code)
		assertSafe(t, r.out)
		var got v1alpha1.Credential
		require.NoError(t, unmarshal([]byte(r.out), &got))
		assert.Equal(t, hostile, got.Status.History[2].By, "the name comes out as it is")
		assert.Equal(t, "id-6", got.Status.History[0].ID)
	}
	f("json", json.Unmarshal)
	f("yaml", func(text []byte, v any) error { return yaml.Unmarshal(text, v) })
}

func TestAMarkThatYAMLWouldShowAsItIsIsEscapedInYAMLToo(t *testing.T) {
	s := newServer(t)
	c := credential()
	c.Status.History = []v1alpha1.Operation{{ID: "id-1", By: "jane\u202e"}}
	c.Status.Findings = nil
	s.answers["GET "+app] = sends(200, c)
	r := s.command(t, "history", "postgres-orders.app", "-o", "yaml")
	assertSafe(t, r.out)
	var got v1alpha1.Credential
	require.NoError(t, yaml.Unmarshal([]byte(r.out), &got))
	assert.Equal(t, "jane\u202e", got.Status.History[0].By)
}

func TestWhatTheServerSaysInAnErrorDoesNotActOnTheTerminal(t *testing.T) {
	s := newServer(t)
	s.answers["GET "+app] = refuses(apierrors.NewConflict(v1alpha1.Resource("credentials"), hostile, errors.New(hostile)))
	r := s.command(t, "history", "postgres-orders.app")
	assert.Equal(t, exitConflict, r.code)
	assertSafe(t, r.err)
	assert.Contains(t, r.err, `mallory\x1b[2J\nroot \u202e\u009b31m`)
	assert.True(t, strings.HasPrefix(r.err, "Error from server (Conflict): "), r.err)
}

func TestYAMLIsYAMLWhereNothingNeedsHiding(t *testing.T) {
	s := newServer(t)
	s.answers["GET "+collection] = sends(200, credentials())
	r := s.command(t, "list", "-o", "yaml")
	assert.Equal(t, exitOK, r.code)
	assert.True(t, strings.HasPrefix(r.out, "apiVersion: credentials.cozystack.io/v1alpha1\nitems:\n"), r.out)
}

func TestTheListIsTheServersTableMadeSafe(t *testing.T) {
	s := newServer(t)
	s.answers["GET "+collection] = sends(200, table())
	r := s.command(t, "list")
	assert.Equal(t, exitOK, r.code)
	assert.Empty(t, r.err)
	assertSafe(t, r.out)
	golden(t, "list.txt", r.out)
	assert.Equal(t, "application/json;as=Table;v=v1;g=meta.k8s.io", s.requests()[0].header.Get("Accept"))
	assert.Equal(t, "None", s.requests()[0].query.Get("includeObject"))

	wide := s.command(t, "list", "-o", "wide")
	assertSafe(t, wide.out)
	golden(t, "list-wide.txt", wide.out)

	bare := s.command(t, "list", "--no-headers")
	assert.NotContains(t, bare.out, "USERNAME")
	assert.Equal(t, strings.Count(r.out, "\n")-1, strings.Count(bare.out, "\n"))
}

func TestTheListAsNamesCanBeGivenBackToTheCommands(t *testing.T) {
	s := newServer(t)
	s.answers["GET "+collection] = sends(200, credentials())
	s.answers["GET "+app] = sends(200, credential())
	r := s.command(t, "list", "-o", "name")
	assert.Equal(t, "credential.credentials.cozystack.io/postgres-orders.app\ncredential.credentials.cozystack.io/postgres-orders.report-reader\n", r.out)
	first, _, _ := strings.Cut(r.out, "\n")
	assert.Equal(t, exitOK, s.command(t, "history", first).code)
}

func TestTheListAsJSONIsWhatTheServerSent(t *testing.T) {
	s := newServer(t)
	s.answers["GET "+collection] = sends(200, credentials())
	r := s.command(t, "list", "-o", "json")
	want, err := json.Marshal(credentials())
	require.NoError(t, err)
	assert.JSONEq(t, string(want), r.out)
	assert.Equal(t, "application/json", s.requests()[0].header.Get("Accept"))
}

func TestAnEmptyListPrintsNothingOnStandardOutput(t *testing.T) {
	s := newServer(t)
	empty := table()
	empty.Rows = nil
	s.answers["GET "+collection] = sends(200, empty)
	r := s.command(t, "list")
	assert.Equal(t, result{exitOK, "", "No credentials in tenant-acme.\n"}, r)
}

func TestEveryKindOfFindingIsToldInPlainWords(t *testing.T) {
	for _, f := range []history.FindingType{
		history.FindingUnattributed, history.FindingMismatch, history.FindingConflict, history.FindingSkewed, history.FindingUncommitted,
		history.FindingOutOfBand, history.FindingRestored, history.FindingBrokenLedger, history.FindingGap,
	} {
		assert.NotEmpty(t, meanings[string(f)], f)
	}
}

// assertSafe holds that text has nothing but printable characters and line breaks.
func assertSafe(t *testing.T, text string) {
	t.Helper()
	for _, r := range text {
		if r != '\n' && !unicode.IsPrint(r) {
			assert.Failf(t, "unsafe to print", "%q in %q", r, text)
			return
		}
	}
}
