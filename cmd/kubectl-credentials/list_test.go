package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mintlog/mintlog/cmd/printable"
	"github.com/mintlog/mintlog/mint/api/v1alpha1"
)

func namespaceList(names ...string) map[string]any {
	var items []any
	for _, n := range names {
		items = append(items, map[string]any{"metadata": map[string]any{"name": n}})
	}
	return map[string]any{"items": items}
}

func listOf(namespace string) string { return strings.Replace(collection, "tenant-acme", namespace, 1) }

// many is a server of four namespaces: two with credentials, one that is not enrolled, one that may not be read.
func many(t *testing.T, path string, as any) *server {
	s := newServer(t)
	forbidden := func(why string) http.HandlerFunc {
		return refuses(apierrors.NewForbidden(v1alpha1.Resource("credentials"), "", errors.New(why)))
	}
	s.answers["GET "+path] = sends(200, namespaceList("tenant-beta", "kube-system", "tenant-acme", "default"))
	s.answers["GET "+listOf("tenant-acme")] = sends(200, as)
	s.answers["GET "+listOf("tenant-beta")] = sends(200, as)
	s.answers["GET "+listOf("default")] = forbidden("namespace default is not enrolled")
	s.answers["GET "+listOf("kube-system")] = forbidden("no rule allows it")
	return s
}

func TestAllNamespacesAreListedAndThoseThatCannotBeAreToldOnce(t *testing.T) {
	s := many(t, "/api/v1/namespaces", table())
	r := s.command(t, "list", "-A")
	assert.Equal(t, exitOK, r.code, r.err)
	assert.Equal(t, "Passed over, not enrolled: default.\nPassed over, where you may not list credentials: kube-system.\n", r.err)
	assertSafe(t, r.out)
	golden(t, "list-all.txt", r.out)
}

func TestATenantThatMayNotListNamespacesIsAskedOfCozystackWhichAreItsOwn(t *testing.T) {
	s := many(t, "/apis/core.cozystack.io/v1alpha1/tenantnamespaces", table())
	s.answers["GET /api/v1/namespaces"] = refuses(apierrors.NewForbidden(v1alpha1.Resource("namespaces"), "", errors.New("no rule")))
	r := s.command(t, "list", "-A")
	assert.Equal(t, exitOK, r.code, r.err)
	assert.Contains(t, r.out, "tenant-beta")
}

func TestWhoeverMayNotListNamespacesAtAllIsToldWhatToDo(t *testing.T) {
	s := newServer(t)
	s.answers["GET /api/v1/namespaces"] = refuses(apierrors.NewForbidden(v1alpha1.Resource("namespaces"), "", errors.New("no rule")))
	r := s.command(t, "list", "-A")
	assert.Equal(t, result{exitRefused, "", "error: you may not list namespaces, so that nobody can say which ones you mean\nName each of yours: kubectl credentials list -n NAMESPACE\n"}, r)
}

func TestANamespaceThatFailsOtherwiseFailsTheList(t *testing.T) {
	s := many(t, "/api/v1/namespaces", table())
	s.answers["GET "+listOf("tenant-beta")] = refuses(apierrors.NewInternalError(errors.New("broken")))
	r := s.command(t, "list", "-A")
	assert.Equal(t, exitOther, r.code)
	assert.Empty(t, r.out)
	assert.Contains(t, r.err, "broken")
}

func TestTheListsOfAllNamespacesAreOne(t *testing.T) {
	list := credentials()
	s := many(t, "/api/v1/namespaces", list)
	r := s.command(t, "list", "-A", "-o", "json")
	var got v1alpha1.CredentialList
	require.NoError(t, json.Unmarshal([]byte(r.out), &got))
	assert.Equal(t, "CredentialList", got.Kind)
	assert.Equal(t, "credentials.cozystack.io/v1alpha1", got.APIVersion)
	assert.Equal(t, append(list.Items, list.Items...), got.Items)
	assert.Equal(t, 4, strings.Count(s.command(t, "list", "-A", "-o", "name").out, "credential.credentials.cozystack.io/"))

	s = newServer(t)
	s.answers["GET /api/v1/namespaces"] = sends(200, namespaceList())
	assert.Equal(t, result{exitOK, "", "No credentials in any namespace that could be read.\n"}, s.command(t, "list", "-A"))
	assert.JSONEq(t, `{"apiVersion":"credentials.cozystack.io/v1alpha1","kind":"CredentialList","metadata":{},"items":[]}`, s.command(t, "list", "-A", "-o", "json").out)
}

func TestNoMoreThanAFewNamespacesAreAskedAtOnceAndALongListShowsHowFarItIs(t *testing.T) {
	s := newServer(t)
	var names []string
	var now, most atomic.Int64
	release := make(chan struct{})
	for i := range 20 {
		n := fmt.Sprintf("tenant-%02d", i)
		names = append(names, n)
		s.answers["GET "+listOf(n)] = func(w http.ResponseWriter, r *http.Request) {
			here := now.Add(1)
			for seen := most.Load(); here > seen && !most.CompareAndSwap(seen, here); seen = most.Load() {
			}
			<-release
			now.Add(-1)
			sends(200, table())(w, r)
		}
	}
	s.answers["GET /api/v1/namespaces"] = sends(200, namespaceList(names...))
	s.login(t)
	var out, errOut lockedBuffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(t.Context(), []string{"list", "-A"}, terminal{in: strings.NewReader(""), out: &out, err: &errOut, now: time.Now})
	}()
	assert.Eventually(t, func() bool {
		return most.Load() == atOnce && strings.Contains(errOut.String(), "0 of 20 namespaces read\n")
	}, time.Minute, 10*time.Millisecond)
	close(release)
	assert.Equal(t, exitOK, <-ended, errOut.String())
	assert.Equal(t, int64(atOnce), most.Load())
	assert.Equal(t, 1+20*len(table().Rows), strings.Count(out.String(), "\n"))
}

func TestManyNamespacesThatArePassedOverAreCounted(t *testing.T) {
	s := newServer(t)
	var names []string
	for i := range 13 {
		names = append(names, fmt.Sprintf("n-%02d", i))
		s.answers["GET "+listOf(names[i])] = refuses(apierrors.NewForbidden(v1alpha1.Resource("credentials"), "", errors.New("no rule")))
	}
	s.answers["GET /api/v1/namespaces"] = sends(200, namespaceList(names...))
	assert.Contains(t, s.command(t, "list", "-A").err, "n-08, n-09 and 3 more.\n")
}

func TestLabelsGoToTheServerAndMalformedOnesDoNot(t *testing.T) {
	s := newServer(t)
	s.answers["GET "+collection] = sends(200, table())
	assert.Equal(t, exitOK, s.command(t, "list", "-l", "apps.cozystack.io/application.name=orders").code)
	assert.Equal(t, "apps.cozystack.io/application.name=orders", s.requests()[0].query.Get("labelSelector"))
	assert.Equal(t, exitUsage, s.command(t, "list", "-l", "a=b=c").code)
	assert.Len(t, s.requests(), 1)
}

// wide is a table as the mint server sends it.
func wide() metav1.Table {
	return metav1.Table{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "Table"},
		ColumnDefinitions: []metav1.TableColumnDefinition{
			{Name: "Name"}, {Name: "Username"}, {Name: "Origin"}, {Name: "Last Change"}, {Name: "By"}, {Name: "Findings"}, {Name: "Age"},
			{Name: "Revision", Priority: 1}, {Name: "Format", Priority: 1},
		},
		Rows: []metav1.TableRow{
			{Cells: []any{"postgres-orders.app", "app", "Minted", "3s", "system:serviceaccount:tenant-acme:ci", "<none>", "2m", int64(4), "scram-sha-256"}},
			{Cells: []any{"postgres-orders.report-reader", "Report.Reader", "NotIssued", "2m", "<platform>", "Unattributed,Gap", "2m", int64(1), "scram-sha-256"}},
			{Cells: []any{"postgres-orders.joerg", "Jörg Groß", "Minted", "5d", "Jörg", "<none>", "9d", int64(2), "scram-sha-256"}},
		},
	}
}

func TestATableLeavesOutWhatItsTerminalHasNoRoomForAndSaysSo(t *testing.T) {
	s := newServer(t)
	s.answers["GET "+collection] = sends(200, wide())
	s.answers["GET "+app] = sends(200, credential())
	for _, width := range []int{80, 200} {
		for _, command := range [][]string{{"list"}, {"history", "postgres-orders.app"}} {
			r := s.onTerminal(t, terminal{in: strings.NewReader(""), width: width}, command...)
			assert.Equal(t, exitOK, r.code)
			golden(t, fmt.Sprintf("%s-%d.txt", command[0], width), r.out+r.err)
		}
	}
	r := s.onTerminal(t, terminal{in: strings.NewReader(""), width: 80}, "list", "-o", "wide")
	assert.Contains(t, r.out, "FORMAT", "who asks for all gets all")
}

func TestALocaleWithoutUTF8GetsASCIIAlone(t *testing.T) {
	printable.SetLocale(func(name string) string { return map[string]string{"LC_ALL": "C", "LANG": "de_DE.UTF-8"}[name] })
	t.Cleanup(func() { printable.SetLocale(func(string) string { return "" }) })
	s := newServer(t)
	s.answers["GET "+collection] = sends(200, wide())
	c := credential()
	c.Spec.Username = "Jörg Groß"
	c.Status.History[1].By = "Jürgen 𝒥"
	s.answers["GET "+app] = sends(200, c)
	for _, command := range [][]string{{"list"}, {"history", "postgres-orders.app"}, {"history", "postgres-orders.app", "-o", "json"}, {"history", "postgres-orders.app", "-o", "yaml"}} {
		r := s.command(t, command...)
		for _, b := range []byte(r.out + r.err) {
			assert.Less(t, b, byte(0x80), command)
		}
		if len(command) < 3 {
			golden(t, command[0]+"-c.txt", r.out)
		}
	}
	r := s.command(t, "history", "postgres-orders.app", "-o", "json")
	var got v1alpha1.Credential
	require.NoError(t, json.Unmarshal([]byte(r.out), &got))
	assert.Equal(t, "Jürgen 𝒥", got.Status.History[1].By)
	for _, command := range [][]string{{"--help"}, {"mint", "--help"}, {"wait", "--help"}, {"list", "--help"}} {
		for _, b := range []byte(s.command(t, command...).out) {
			assert.Less(t, b, byte(0x80), command)
		}
	}
}
