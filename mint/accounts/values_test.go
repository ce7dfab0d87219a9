package accounts_test

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"github.com/mintlog/mintlog/mint/account"
	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/store/ledger"
	"github.com/mintlog/mintlog/test/sandbox"
)

// valuesUsers is a block whose stored forms go into the values.
var valuesUsers = object{"format": users["format"], "accounts": users["accounts"], "valuesPath": "passwordHashes.{username}"}

var cozystackValues = object{"kind": "Secret", "name": "cozystack-values"}

// entry is the entry of an account's stored form.
func entry(release, segment, username string) object {
	return object{
		"kind": "Secret", "name": release + "." + segment + ".account", "valuesKey": "password",
		"targetPath": "passwordHashes." + strings.ReplaceAll(username, ".", `\.`),
	}
}

func releases(namespace string) dynamic.ResourceInterface {
	return dynamic.NewForConfigOrDie(servers().RESTConfig(sandbox.ClusterAdmin, 0)).Resource(sandbox.HelmReleases).Namespace(namespace)
}

func helmRelease(t *testing.T, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	u, err := releases(namespace).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return u
}

func valuesFrom(t *testing.T, namespace, name string) []any {
	t.Helper()
	list, _, err := unstructured.NestedSlice(helmRelease(t, namespace, name).Object, "spec", "valuesFrom")
	require.NoError(t, err)
	return list
}

func awaitValuesFrom(t *testing.T, namespace, name string, want ...any) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d entries in spec.valuesFrom of %s", len(want), name), func() bool {
		return assert.ObjectsAreEqual(want, valuesFrom(t, namespace, name))
	})
}

// requestedAt is when Flux was last asked to look at a HelmRelease.
func requestedAt(t *testing.T, namespace, name string) string {
	t.Helper()
	return helmRelease(t, namespace, name).GetAnnotations()["reconcile.fluxcd.io/requestedAt"]
}

// awaitRequest waits for a request other than the last, and that no other follows.
func awaitRequest(t *testing.T, namespace, name, last string) string {
	t.Helper()
	eventually(t, "a requested reconcile", func() bool { return requestedAt(t, namespace, name) != last })
	next := requestedAt(t, namespace, name)
	_, err := time.Parse(time.RFC3339Nano, next)
	require.NoError(t, err)
	never(t, "a second request for one operation", func() bool { return requestedAt(t, namespace, name) != next })
	return next
}

// operate changes a password as the mint server does: with an entry on top of the ledger.
func operate(t *testing.T, namespace, name string) {
	t.Helper()
	operateAt(t, namespace, name, ledger.Mint, time.Now())
}

func operateAt(t *testing.T, namespace, name string, operation ledger.Operation, at time.Time) {
	t.Helper()
	require.NoError(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		s := secret(t, namespace, name)
		book, err := ledger.Parse(s.Annotations[ledger.Annotation])
		require.NoError(t, err)
		id, err := ledger.NewID(rand.Reader)
		require.NoError(t, err)
		stored := []byte(id + id)
		s.Annotations[ledger.Annotation] = book.Append(ledger.Entry{
			ID: id, Operation: operation, At: at, AuditID: id, Caller: book.CallerDigest(id, "jane"), Stored: book.StoredDigest(id, stored),
		}).Encode()
		s.Annotations[ledger.OriginAnnotation] = operation.Origin()
		s.Data["password"] = stored
		_, err = admin().CoreV1().Secrets(namespace).Update(t.Context(), s, metav1.UpdateOptions{})
		return err
	}))
}

func (r *role) wrote(t *testing.T, object, verb string) int {
	t.Helper()
	families, err := r.gather.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != "mintlog_accounts_writes_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["object"] == object && labels["verb"] == verb {
				return int(m.GetCounter().GetValue())
			}
		}
	}
	return 0
}

// awaitWrote waits until exactly so many writes are counted: the count follows the answer, and what was written may be
// seen before.
func (r *role) awaitWrote(t *testing.T, object, verb string, count int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s of a %s, %d times", verb, object, count), func() bool { return r.wrote(t, object, verb) >= count })
	assert.Equal(t, count, r.wrote(t, object, verb))
}

func TestStoredFormsComeIntoTheValuesWithTheirAccountsAndFluxIsAskedOncePerOperation(t *testing.T) {
	r := run(t)
	ns := tenant(t, "tenant-delivered")
	serve(t, "Delivered", valuesUsers)
	install(t, ns, "Delivered", "app", "Report.Reader")
	const release = "delivered-orders"
	app, reader := entry(release, "app", "app"), entry(release, "report-reader", "Report.Reader")
	awaitValuesFrom(t, ns, release, cozystackValues, app, reader)
	assert.Equal(t, "Enabled", secret(t, ns, release+".app.account").Labels["reconcile.fluxcd.io/watch"])
	first := awaitRequest(t, ns, release, "")
	r.awaitWrote(t, "helmrelease", "write", 1) // both entries and the request

	// An operation is passed on, and its history is not.
	operate(t, ns, release+".app.account")
	second := awaitRequest(t, ns, release, first)
	_, err := admin().CoreV1().Secrets(ns).Patch(t.Context(), release+".app.account", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"credentials.cozystack.io/history":"{}"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	never(t, "a request for a history", func() bool { return requestedAt(t, ns, release) != second })
	r.awaitWrote(t, "helmrelease", "write", 2)
	assert.Equal(t, []any{cozystackValues, app, reader}, valuesFrom(t, ns, release))

	// What came while nobody looked is passed on after a restart, and then no more.
	r.stop()
	operate(t, ns, release+".report-reader.account")
	r = run(t)
	third := awaitRequest(t, ns, release, second)
	r.stop()
	r = run(t)
	never(t, "a request for nothing", func() bool { return requestedAt(t, ns, release) != third })
	assert.Zero(t, r.writes(t))
}

func TestAnAccountThatIsNotWrittenYetHasNoEntryAndGetsItWithItsFirstMint(t *testing.T) {
	ns := tenant(t, "tenant-unwritten")
	define(t, "Unwritten", nil)
	uid := install(t, ns, "Unwritten", "new")
	run(t)
	define(t, "Unwritten", valuesUsers)
	assert.Equal(t, []string{"new"}, found(t, ns, "unwritten-orders"))
	never(t, "an entry without a Secret", func() bool { return len(valuesFrom(t, ns, "unwritten-orders")) != 1 })
	assert.Empty(t, requestedAt(t, ns, "unwritten-orders"))

	firstMint(t, ns, "Unwritten", uid)
	awaitValuesFrom(t, ns, "unwritten-orders", cozystackValues, entry("unwritten-orders", "new", "new"))
	awaitRequest(t, ns, "unwritten-orders", "")
}

func TestTheEntryOfARemovedAccountGoesBeforeItsSecretDoes(t *testing.T) {
	var refuse atomic.Bool
	var mu sync.Mutex
	var order []string
	config := as(t, "accounts")
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			patches := r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/helmreleases/ordered-orders")
			if patches && refuse.Load() {
				return nil, errors.New("the connection is lost")
			}
			if patches || r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/secrets/ordered-orders.old.account") {
				mu.Lock()
				order = append(order, r.Method)
				mu.Unlock()
			}
			return next.RoundTrip(r)
		})
	})
	r := runWith(t, config)
	ns := tenant(t, "tenant-ordered")
	serve(t, "Ordered", valuesUsers)
	install(t, ns, "Ordered", "app", "old")
	app, old := entry("ordered-orders", "app", "app"), entry("ordered-orders", "old", "old")
	awaitValuesFrom(t, ns, "ordered-orders", cozystackValues, app, old)
	mu.Lock()
	order = nil
	mu.Unlock()

	refuse.Store(true)
	patchRelease(t, ns, "ordered-orders", `[{"op":"remove","path":"/spec/values/users/old"}]`)
	eventually(t, "the log says so", func() bool { return strings.Contains(r.log.String(), "write spec.valuesFrom of the HelmRelease") })
	never(t, "the Secret goes", func() bool { return secret(t, ns, "ordered-orders.old.account") == nil })
	refuse.Store(false)
	awaitNoSecret(t, ns, "ordered-orders.old.account")
	assert.Equal(t, []any{cozystackValues, app}, valuesFrom(t, ns, "ordered-orders"))
	mu.Lock()
	defer mu.Unlock()
	require.NotEmpty(t, order)
	assert.Equal(t, http.MethodDelete, order[len(order)-1])
	assert.Contains(t, order, http.MethodPatch)
}

func TestOthersWhoWriteTheSameHelmReleaseMeanwhileLoseNothing(t *testing.T) {
	ns := tenant(t, "tenant-shared-list")
	const release = "listed-orders"
	added := 0
	add := func() { // an entry of somebody else's, and an account
		added++
		require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			u := helmRelease(t, ns, release)
			list, _, _ := unstructured.NestedSlice(u.Object, "spec", "valuesFrom")
			require.NoError(t, unstructured.SetNestedSlice(u.Object, append(list, object{"kind": "ConfigMap", "name": fmt.Sprint("theirs-", added)}), "spec", "valuesFrom"))
			require.NoError(t, unstructured.SetNestedMap(u.Object, object{}, "spec", "values", "users", fmt.Sprint("u", added)))
			_, err := releases(ns).Update(t.Context(), u, metav1.UpdateOptions{FieldManager: "somebody"})
			return err
		}))
	}
	// Each of the role's first writes meets another's that came since it has read.
	const meets = 5
	config := as(t, "accounts")
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/helmreleases/"+release) && added < meets {
				add()
			}
			return next.RoundTrip(r)
		})
	})
	r := runWith(t, config)
	serve(t, "Listed", valuesUsers)
	install(t, ns, "Listed", "a")
	eventually(t, "every entry", func() bool {
		var theirs []string
		ours := map[string]bool{}
		for _, raw := range valuesFrom(t, ns, release) {
			name := raw.(object)["name"].(string)
			if strings.HasPrefix(name, "theirs-") {
				theirs = append(theirs, name)
			} else {
				ours[name] = true
			}
		}
		return slices.Equal([]string{"theirs-1", "theirs-2", "theirs-3", "theirs-4", "theirs-5"}, theirs) &&
			len(ours) == 2+meets && ours["cozystack-values"] && ours[release+".a.account"] && ours[release+".u5.account"]
	})
	assert.NotContains(t, r.log.String(), "WARN", "whoever has just written is waited for")
}

// reset does to a HelmRelease's valuesFrom what cozystack-controller does.
func reset(t *testing.T, namespace, name string) {
	t.Helper()
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		u := helmRelease(t, namespace, name)
		require.NoError(t, unstructured.SetNestedSlice(u.Object, []any{cozystackValues}, "spec", "valuesFrom"))
		_, err := releases(namespace).Update(t.Context(), u, metav1.UpdateOptions{FieldManager: "cozystack-controller"})
		return err
	}))
}

func TestEntriesThatAnotherTakesAwayArePutBackAFewTimesAndThenTheFieldsManagerIsNamed(t *testing.T) {
	r := run(t)
	ns := tenant(t, "tenant-fought")
	serve(t, "Fought", valuesUsers)
	install(t, ns, "Fought", "app")
	const release = "fought-orders"
	app := entry(release, "app", "app")
	awaitValuesFrom(t, ns, release, cozystackValues, app)
	request := awaitRequest(t, ns, release, "")
	const putBacks = 12
	for i := range putBacks {
		if i == putBacks/2 { // what was put back before a restart counts after it
			r.stop()
			r = run(t)
		}
		reset(t, ns, release)
		awaitValuesFrom(t, ns, release, cozystackValues, app)
	}
	assert.Equal(t, request, requestedAt(t, ns, release), "the spec's change is request enough")
	reset(t, ns, release)
	eventually(t, "an Event", func() bool { return len(events(t, ns, "ValuesTakenAway")) == 1 })
	assert.Contains(t, events(t, ns, "ValuesTakenAway")[0].Message, `the entries of fought-orders.app.account out of spec.valuesFrom, and the field is managed by ["cozystack-controller"]`)
	assert.Equal(t, 1.0, r.counted(t, "mintlog_accounts_problems_total"))

	r.stop()
	r = run(t)
	operate(t, ns, release+".app.account")
	never(t, "it is put back after all", func() bool { return len(valuesFrom(t, ns, release)) != 1 })
	assert.Zero(t, r.wrote(t, "helmrelease", "put back"))

	// A new account is no fight of old, and an hour later there may be another try.
	install(t, ns, "Fought", "app", "new")
	awaitValuesFrom(t, ns, release, cozystackValues, entry(release, "new", "new"))
	r.stop()
	longAgo := time.Now().Add(-2 * time.Hour).UTC().Format(time.RFC3339)
	record, err := json.Marshal(object{"put": []string{release + ".app.account", release + ".new.account"}, "back": slices.Repeat([]string{longAgo}, putBacks)})
	require.NoError(t, err)
	patch, err := json.Marshal(object{"metadata": object{"annotations": object{"credentials.cozystack.io/values": string(record)}}})
	require.NoError(t, err)
	_, err = admin().RbacV1().Roles(ns).Patch(t.Context(), "credentials-"+release, types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(t, err)
	r = run(t)
	awaitValuesFrom(t, ns, release, cozystackValues, entry(release, "new", "new"), app)
	r.awaitWrote(t, "helmrelease", "put back", 1)
}

func TestASuspendedReleaseGetsItsEntriesAndRequestsForWhenItIsResumed(t *testing.T) {
	run(t)
	ns := tenant(t, "tenant-suspended")
	serve(t, "Suspended", valuesUsers)
	install(t, ns, "Suspended", "app")
	const release = "suspended-orders"
	awaitValuesFrom(t, ns, release, cozystackValues, entry(release, "app", "app"))
	first := awaitRequest(t, ns, release, "")
	patchRelease(t, ns, release, `[{"op":"add","path":"/spec/suspend","value":true}]`)
	before := secret(t, ns, release+".app.account")
	never(t, "an account changes with it", func() bool { return !assert.ObjectsAreEqual(before, secret(t, ns, before.Name)) })
	operate(t, ns, before.Name)
	awaitRequest(t, ns, release, first)
	install(t, ns, "Suspended", "app", "new")
	awaitValuesFrom(t, ns, release, cozystackValues, entry(release, "app", "app"), entry(release, "new", "new"))
}

func TestAValuesPathThatChangesMovesTheEntriesAndOneThatGoesTakesThemAlong(t *testing.T) {
	run(t)
	ns := tenant(t, "tenant-moved")
	serve(t, "Moved", valuesUsers)
	install(t, ns, "Moved", "Report.Reader")
	const release = "moved-orders"
	at := entry(release, "report-reader", "Report.Reader")
	awaitValuesFrom(t, ns, release, cozystackValues, at)

	define(t, "Moved", object{"format": users["format"], "accounts": users["accounts"], "valuesPath": "hashes.{account}.sha256"})
	at["targetPath"] = "hashes.report-reader.sha256"
	awaitValuesFrom(t, ns, release, cozystackValues, at)

	// Of a block that goes nothing is known, so nothing is taken away.
	define(t, "Moved", nil)
	never(t, "a change", func() bool { return !assert.ObjectsAreEqual([]any{cozystackValues, at}, valuesFrom(t, ns, release)) })

	serve(t, "Moved", users)
	awaitValuesFrom(t, ns, release, cozystackValues)
	assert.NotNil(t, secret(t, ns, release+".report-reader.account"))
}

func TestAHelmReleaseThatTakesNoMoreAnnotationsIsReportedAndDoneWhenItDoes(t *testing.T) {
	run(t)
	ns := tenant(t, "tenant-full")
	serve(t, "Full", valuesUsers)
	const last = "kubectl.kubernetes.io/last-applied-configuration"
	const release = "full-orders"
	_, err := servers().Apply(t.Context(), ns, object{
		"apiVersion": "helm.toolkit.fluxcd.io/v2", "kind": "HelmRelease",
		"metadata": object{
			"name": release, "annotations": object{last: strings.Repeat("x", 262144-len(last))},
			"labels": object{"apps.cozystack.io/application.kind": "Full", "apps.cozystack.io/application.group": "apps.cozystack.io", "apps.cozystack.io/application.name": "orders"},
		},
		"spec": object{"interval": "5m", "values": object{"users": object{"app": object{}}}},
	})
	require.NoError(t, err)
	awaitSecret(t, ns, release+".app.account")
	eventually(t, "an Event", func() bool { return len(events(t, ns, "PasswordNotInValues")) == 1 })
	assert.Contains(t, events(t, ns, "PasswordNotInValues")[0].Message, "the API server answered Invalid")
	require.NotContains(t, events(t, ns, "PasswordNotInValues")[0].Message, "xxx")
	assert.Equal(t, []string{release + ".app.account"}, granted(t, ns, release), "what else there is to do is done")
	patchRelease(t, ns, release, `[{"op":"remove","path":"/metadata/annotations"}]`)
	awaitValuesFrom(t, ns, release, entry(release, "app", "app"))
}

func TestAnAccountWhosePlaceInTheValuesIsTakenIsReportedAndTheOthersAreServed(t *testing.T) {
	run(t)
	ns := tenant(t, "tenant-covered")
	serve(t, "Covered", object{"format": users["format"], "accounts": users["accounts"], "valuesPath": "users.{username}.hash"})
	_, err := servers().InstallRelease(t.Context(), ns, "Covered", "orders", object{"users": object{"app": object{}, "bad": nil}})
	require.NoError(t, err)
	app := entry("covered-orders", "app", "app")
	app["targetPath"] = "users.app.hash"
	awaitValuesFrom(t, ns, "covered-orders", cozystackValues, app)
	eventually(t, "an Event", func() bool { return len(events(t, ns, "PasswordNotInValues")) == 1 })
	assert.Contains(t, events(t, ns, "PasswordNotInValues")[0].Message, `the account "bad": spec.values of the HelmRelease has something other than an object at users.bad`)
	assert.NotNil(t, secret(t, ns, "covered-orders.bad.account"), "its account is served all the same")
}

// firstMint creates the Secret of the account "new" of the application orders as a mint does.
func firstMint(t *testing.T, namespace, kind string, release types.UID) {
	t.Helper()
	name := strings.ToLower(kind) + "-orders"
	id, err := ledger.NewID(rand.Reader)
	require.NoError(t, err)
	book := ledger.Ledger{Account: id}
	s := account.NewSecret(&cluster.Release{Namespace: namespace, Name: name, UID: release, Kind: kind, Application: "orders"},
		definition.Account{Username: "new", SecretName: name + ".new.account"}, definition.Block{ValuesPath: "passwordHashes.{username}"})
	s.Data["password"] = []byte(strings.Repeat("ab", 32))
	s.Annotations = map[string]string{
		ledger.OriginAnnotation: "Minted",
		ledger.Annotation: book.Append(ledger.Entry{
			ID: id, Operation: ledger.Mint, At: time.Now(), AuditID: id, Caller: book.CallerDigest(id, "jane"), Stored: book.StoredDigest(id, s.Data["password"]),
		}).Encode(),
	}
	_, err = admin().CoreV1().Secrets(namespace).Create(t.Context(), s, metav1.CreateOptions{})
	require.NoError(t, err)
}
