package accounts_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/util/retry"

	"github.com/mintlog/mintlog/mint/account"
	"github.com/mintlog/mintlog/mint/accounts"
	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/mint/webhook"
	"github.com/mintlog/mintlog/store/ledger"
)

func TestARenamedAccountIsAnotherAccountAlsoUnderTheSameSecretName(t *testing.T) {
	run(t)
	ns := tenant(t, "tenant-renamed")
	serve(t, "Renamed", users)
	install(t, ns, "Renamed", "a")
	before := awaitSecret(t, ns, "renamed-orders.a.account")
	install(t, ns, "Renamed", "Bob.Smith")
	awaitNoSecret(t, ns, before.Name)
	bob := awaitSecret(t, ns, "renamed-orders.bob-smith.account")
	assert.Equal(t, "Bob.Smith", string(bob.Data["username"]))
	assert.NotEqual(t, before.Data["password"], bob.Data["password"])

	install(t, ns, "Renamed", "bob-smith")
	eventually(t, "the Secret of the other name", func() bool {
		s := secret(t, ns, bob.Name)
		return s != nil && s.UID != bob.UID
	})
	other := secret(t, ns, bob.Name)
	assert.Equal(t, "bob-smith", string(other.Data["username"]))
	assert.NotEqual(t, bob.Data["password"], other.Data["password"])
	was, err := ledger.Parse(bob.Annotations[ledger.Annotation])
	require.NoError(t, err)
	is, err := ledger.Parse(other.Annotations[ledger.Annotation])
	require.NoError(t, err)
	assert.NotEqual(t, was.Account, is.Account, "its past does not go along")
	require.Len(t, is.Entries, 1)
}

func TestAnApplicationThatIsDeletedTakesItsAccountsAndItsGrantAlong(t *testing.T) {
	run(t)
	ns := tenant(t, "tenant-deleted")
	serve(t, "Deleted", users)
	install(t, ns, "Deleted", "app")
	awaitSecret(t, ns, "deleted-orders.app.account")
	require.NoError(t, servers().DeleteRelease(t.Context(), ns, "deleted-orders"))
	awaitNoSecret(t, ns, "deleted-orders.app.account")
	eventually(t, "the grant goes", func() bool {
		_, err := admin().RbacV1().Roles(ns).Get(t.Context(), "credentials-deleted-orders", metav1.GetOptions{})
		_, errBinding := admin().RbacV1().RoleBindings(ns).Get(t.Context(), "credentials-deleted-orders", metav1.GetOptions{})
		return apierrors.IsNotFound(err) && apierrors.IsNotFound(errBinding)
	})
	never(t, "a Secret comes back", func() bool { return secret(t, ns, "deleted-orders.app.account") != nil })
}

// A verifier that were made anew would have another salt, and break whoever has a copy of it.
func TestAVerifierStaysByteForByteWhateverBecomesOfItsDefinition(t *testing.T) {
	r := run(t)
	ns := tenant(t, "tenant-edited")
	block := func(format object, sources ...any) object { return object{"format": format, "accounts": sources} }
	fromMap, fromList := object{"kind": "ValuesMap", "path": "users"}, object{"kind": "ValuesList", "path": "accounts", "nameField": "name"}
	scram := object{"name": "scram-sha-256"}
	serve(t, "Edited", block(scram, fromMap))
	lay := func(values object) {
		_, err := servers().InstallRelease(t.Context(), ns, "Edited", "orders", values)
		require.NoError(t, err)
	}
	lay(object{"users": object{"app": object{}}})
	before := awaitSecret(t, ns, "edited-orders.app.account")
	require.True(t, strings.HasPrefix(string(before.Data["password"]), "SCRAM-SHA-256$"))
	same := func() bool {
		s := secret(t, ns, before.Name)
		return s != nil && s.UID == before.UID && string(s.Data["password"]) == string(before.Data["password"]) &&
			s.Annotations[ledger.Annotation] == before.Annotations[ledger.Annotation]
	}

	// Another format is for passwords to come.
	define(t, "Edited", block(object{"name": "apr1"}, fromMap))
	r.knowsKind(t, "Edited")
	lay(object{"users": object{"app": object{}, "later": object{}}})
	assert.True(t, strings.HasPrefix(string(awaitSecret(t, ns, "edited-orders.later.account").Data["password"]), "$apr1$"))
	assert.True(t, same())

	// A source is added, the kind moves from one to the other, and the first goes: no flag day, and nobody is seeded anew.
	define(t, "Edited", block(scram, fromMap, fromList))
	lay(object{"users": object{"app": object{}, "later": object{}}, "accounts": []any{object{"name": "app"}, object{"name": "listed"}}})
	awaitSecret(t, ns, "edited-orders.listed.account")
	lay(object{"accounts": []any{object{"name": "app"}, object{"name": "listed"}}})
	awaitNoSecret(t, ns, "edited-orders.later.account")
	define(t, "Edited", block(scram, fromList))
	lay(object{"accounts": []any{object{"name": "app"}}})
	awaitNoSecret(t, ns, "edited-orders.listed.account")
	assert.True(t, same())

	// Nor does a restart, or labels that are put right.
	r.stop()
	run(t)
	define(t, "Edited", object{"format": scram, "accounts": []any{fromList}, "secretLabels": object{"k8s.mariadb.com/watch": ""}})
	eventually(t, "the label", func() bool { _, ok := secret(t, ns, before.Name).Labels["k8s.mariadb.com/watch"]; return ok })
	never(t, "the verifier changes", func() bool { return !same() })
}

// A hook is a webhook of a kind, which does as it is told.
type hook struct {
	*httptest.Server
	mu       sync.Mutex
	mode     string
	accounts []webhook.Account
	asked    []time.Time
}

func serveHook(t *testing.T) *hook {
	t.Helper()
	h := &hook{}
	h.Server = httptest.NewUnstartedServer(h)
	h.Config.ErrorLog = log.New(io.Discard, "", 0)
	h.StartTLS()
	t.Cleanup(h.Close)
	return h
}

func (h *hook) will(mode string, accounts ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mode, h.accounts, h.asked = mode, []webhook.Account{}, nil
	for _, name := range accounts {
		h.accounts = append(h.accounts, webhook.Account{Name: name})
	}
}

func (h *hook) times() []time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.asked)
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.asked = append(h.asked, time.Now())
	mode, accounts := h.mode, h.accounts
	h.mu.Unlock()
	var head webhook.Head
	if json.NewDecoder(r.Body).Decode(&head) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	switch mode {
	case "fails":
		w.WriteHeader(http.StatusInternalServerError)
	case "hangs":
		<-r.Context().Done()
	case "breaks off":
		panic(http.ErrAbortHandler)
	case "answers nothing of it":
		_, _ = io.WriteString(w, `{"accounts": []}`)
	case "answers too much":
		_, _ = io.WriteString(w, `{"accounts": [`+strings.Repeat(" ", 2<<20)+`]}`)
	case "formats":
		head.Kind = webhook.KindFormatAnswer
		_ = json.NewEncoder(w).Encode(webhook.FormatAnswer{Head: head, Stored: "stored-elsewhere"})
	default:
		head.Kind = webhook.KindAccountsAnswer
		_ = json.NewEncoder(w).Encode(webhook.AccountsAnswer{Head: head, Accounts: accounts})
	}
}

// config is where the webhook is, as a block has it, and that it may take as long as any.
func (h *hook) config() object { return h.configFor(10) }

func (h *hook) configFor(seconds int64) object {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw})
	return object{"clientConfig": object{"url": h.URL + "/", "caBundle": base64.StdEncoding.EncodeToString(ca)}, "timeoutSeconds": seconds}
}

func TestAWebhookThatFailsDeletesNothingIsReportedOnceAndAskedAgainWithGrowingPauses(t *testing.T) {
	r := run(t)
	hook := serveHook(t)
	hook.will("answers", "app", "reader")
	ns := tenant(t, "tenant-webhook")
	block := func(config object) object {
		return object{"format": users["format"], "accounts": []any{object{"kind": "Webhook", "webhook": config}}}
	}
	serve(t, "Hooked", block(hook.config()))
	install(t, ns, "Hooked")
	app, reader := awaitSecret(t, ns, "hooked-orders.app.account"), awaitSecret(t, ns, "hooked-orders.reader.account")

	// What hangs comes last: from there on the webhook has a second to answer, and might fail in its own way.
	for i, mode := range []string{"fails", "breaks off", "answers nothing of it", "answers too much", "hangs"} {
		before := r.counted(t, "mintlog_accounts_problems_total")
		reported := len(events(t, ns, "AccountsUnknown"))
		hook.will(mode, "app")
		if mode == "hangs" {
			define(t, "Hooked", block(hook.configFor(1)))
		}
		_, err := servers().InstallRelease(t.Context(), ns, "Hooked", "orders", object{"change": int64(i)})
		require.NoError(t, err)
		eventually(t, "the webhook is asked again when it "+mode, func() bool { return len(hook.times()) > 1 })
		if i == 0 {
			eventually(t, "the pauses grow", func() bool { return longestPause(hook.times()) >= 800*time.Millisecond })
		}
		eventually(t, "an Event when it "+mode, func() bool { return len(events(t, ns, "AccountsUnknown")) == reported+1 })
		assert.Equal(t, before+1, r.counted(t, "mintlog_accounts_problems_total"), mode)
		assert.Equal(t, app, secret(t, ns, app.Name), mode)
		assert.Equal(t, reader, secret(t, ns, reader.Name), mode)
		done := r.reconciled(t, "ok")
		hook.will("answers", "app", "reader")
		eventually(t, "it is asked once more, and answers", func() bool { return len(hook.times()) > 0 })
		eventually(t, "that is noticed", func() bool { return r.reconciled(t, "ok") > done })
	}

	hook.Close() // and is down
	never(t, "a Secret goes", func() bool { return secret(t, ns, app.Name) == nil || secret(t, ns, reader.Name) == nil })
	assert.NotContains(t, r.log.String(), "WARN", "what an Event says is not logged at each try")
}

func longestPause(times []time.Time) time.Duration {
	var longest time.Duration
	for i := range len(times) - 1 {
		longest = max(longest, times[i+1].Sub(times[i]))
	}
	return longest
}

// A stuckWebhook does not answer for a kind before the test is over, whatever its timeout.
type stuckWebhook struct {
	definition.Webhooks
	kind  string
	over  chan struct{}
	asked atomic.Int64
}

func (s *stuckWebhook) Accounts(ctx context.Context, kind string, c webhook.Config, app webhook.Application) ([]webhook.Account, error) {
	if kind != s.kind {
		return s.Webhooks.Accounts(ctx, kind, c, app)
	}
	s.asked.Add(1)
	<-s.over
	return nil, errors.New("it is over")
}

func TestAWebhookThatHangsDelaysNoOtherKind(t *testing.T) {
	const workers = 3
	stuck := &stuckWebhook{kind: "Hanging", over: make(chan struct{})}
	runWith(t, as(t, "accounts"), func(o *accounts.Options) {
		stuck.Webhooks, o.Webhooks, o.Workers = o.Webhooks, stuck, workers
	})
	t.Cleanup(func() { close(stuck.over) })
	hook := serveHook(t)
	hook.will("answers", "app")
	ns := tenant(t, "tenant-hanging")
	asking := object{"format": users["format"], "accounts": []any{object{"kind": "Webhook", "webhook": hook.config()}}}
	serve(t, "Hanging", asking)
	serve(t, "Answering", asking)
	serve(t, "Unhooked", users)
	for i := range 2 * workers {
		_, err := servers().InstallRelease(t.Context(), ns, "Hanging", fmt.Sprint("app", i), nil)
		require.NoError(t, err)
	}
	eventually(t, "all that may ask it are asking", func() bool { return stuck.asked.Load() == workers })
	install(t, ns, "Unhooked", "app")
	install(t, ns, "Answering")
	awaitSecret(t, ns, "unhooked-orders.app.account")
	awaitSecret(t, ns, "answering-orders.app.account")
	assert.EqualValues(t, workers, stuck.asked.Load())
}

func (r *role) reconciled(t *testing.T, result string) float64 {
	t.Helper()
	families, err := r.gather.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == "mintlog_accounts_reconciles_total" && m.GetLabel()[0].GetValue() == result {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func TestAnAccountWhoseFormatsWebhookFailsIsSeededWhenItAnswers(t *testing.T) {
	r := run(t)
	hook := serveHook(t)
	hook.will("fails")
	ns := tenant(t, "tenant-format")
	serve(t, "Formatted", object{"format": object{"kind": "Webhook", "name": "ours", "webhook": hook.config()}, "accounts": users["accounts"]})
	install(t, ns, "Formatted", "app")
	eventually(t, "an Event", func() bool { return len(events(t, ns, "FormatFailed")) == 1 })
	eventually(t, "it is asked again", func() bool { return len(hook.times()) >= 3 })
	assert.Contains(t, events(t, ns, "FormatFailed")[0].Message, `the account "app" has no password yet, for none could be stored: `)
	assert.Len(t, events(t, ns, "FormatFailed"), 1)
	assert.Nil(t, secret(t, ns, "formatted-orders.app.account"))
	assert.Equal(t, []string{"formatted-orders.app.account"}, granted(t, ns, "formatted-orders"), "for a mint")
	hook.will("formats")
	assert.Equal(t, "stored-elsewhere", string(awaitSecret(t, ns, "formatted-orders.app.account").Data["password"]))
	assert.NotContains(t, r.log.String(), "WARN")
}

func TestTwoRolesAtOnceDoNoHarm(t *testing.T) {
	one, other := run(t), run(t)
	ns := tenant(t, "tenant-twice")
	serve(t, "Twin", valuesUsers)
	const applications = 12
	lay := func(i int, names ...string) {
		declared := object{}
		for _, n := range names {
			declared[n] = object{}
		}
		_, err := servers().InstallRelease(t.Context(), ns, "Twin", fmt.Sprint("app", i), object{"users": declared})
		require.NoError(t, err)
	}
	name := func(i int, account string) string { return fmt.Sprintf("twin-app%d.%s.account", i, account) }
	seen := observe(t, ns)
	for i := range applications {
		lay(i, "kept", "goes")
	}
	kept := map[string]types.UID{}
	for i := range applications {
		kept[name(i, "kept")] = awaitSecret(t, ns, name(i, "kept")).UID
		awaitSecret(t, ns, name(i, "goes"))
	}
	for i := range applications {
		lay(i, "kept", "comes")
	}
	for i := range applications {
		awaitSecret(t, ns, name(i, "comes"))
		awaitNoSecret(t, ns, name(i, "goes"))
		release := fmt.Sprint("twin-app", i)
		awaitEntries(t, ns, release, release+".comes.account", release+".kept.account")
	}
	for secretName, uid := range kept {
		assert.Equal(t, uid, secret(t, ns, secretName).UID)
	}
	versions := func() (all []string) {
		for i := range applications {
			all = append(all, helmRelease(t, ns, fmt.Sprint("twin-app", i)).GetResourceVersion())
		}
		return all
	}
	before := versions()
	both := func(verb string) int { return one.wrote(t, "secret", verb) + other.wrote(t, "secret", verb) }
	never(t, "they write against each other", func() bool { return !slices.Equal(before, versions()) })
	eventually(t, "what was written is counted, and seen", func() bool {
		came, went := seen()
		return both("create") == sum(came) && both("delete") == sum(went) && sum(came) == sum(went)+2*applications
	})
	// One whose watch of the HelmReleases is behind may seed what the other has just removed; then it goes as well.
	came, went := seen()
	for i := range applications {
		for _, account := range []string{"kept", "comes"} {
			assert.Equal(t, 1, came[name(i, account)], "each is created once")
			assert.Zero(t, went[name(i, account)])
		}
		assert.Equal(t, came[name(i, "goes")], went[name(i, "goes")])
	}
	for _, r := range []*role{one, other} {
		assert.NotContains(t, r.log.String(), "WARN")
		assert.Zero(t, r.counted(t, "mintlog_accounts_problems_total"))
	}
}

// observe tells how often each account Secret of a namespace has come since, and how often it has gone.
func observe(t *testing.T, namespace string) func() (came, went map[string]int) {
	t.Helper()
	list := metav1.ListOptions{LabelSelector: cluster.AccountLabel + "=true"}
	changes, err := admin().CoreV1().Secrets(namespace).Watch(t.Context(), list)
	require.NoError(t, err)
	t.Cleanup(changes.Stop)
	var mu sync.Mutex
	came, went := map[string]int{}, map[string]int{}
	go func() {
		for change := range changes.ResultChan() {
			s, ok := change.Object.(*corev1.Secret)
			if !ok {
				continue
			}
			mu.Lock()
			switch change.Type {
			case watch.Added:
				came[s.Name]++
			case watch.Deleted:
				went[s.Name]++
			}
			mu.Unlock()
		}
	}()
	return func() (map[string]int, map[string]int) {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(came), maps.Clone(went)
	}
}

func sum(counts map[string]int) int {
	total := 0
	for _, n := range counts {
		total += n
	}
	return total
}

// awaitEntries waits until a HelmRelease has exactly these account Secrets in its valuesFrom, in any order.
func awaitEntries(t *testing.T, namespace, release string, want ...string) {
	t.Helper()
	eventually(t, "the entries of "+release, func() bool {
		var names []string
		for _, raw := range valuesFrom(t, namespace, release) {
			if name := raw.(object)["name"].(string); strings.HasSuffix(name, ".account") {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return slices.Equal(want, names)
	})
}

// backup is what a backup holds of an application, in a form that a restore creates: without owners, as Velero leaves
// them out, and with Velero's label on the HelmRelease.
type backup struct {
	kind    string
	secret  *corev1.Secret
	role    *rbacv1.Role
	release object
}

func newBackup(t *testing.T, namespace, kind string) backup {
	t.Helper()
	name := strings.ToLower(kind) + "-orders"
	s := account.NewSecret(&cluster.Release{Namespace: namespace, Name: name, Kind: kind, Application: "orders"},
		definition.Account{Username: "app", SecretName: name + ".app.account"}, definition.Block{})
	s.OwnerReferences = nil
	id, err := ledger.NewID(rand.Reader)
	require.NoError(t, err)
	s.Data["password"] = []byte(strings.Repeat("ab", 32))
	book := ledger.Ledger{Account: id}
	s.Annotations = map[string]string{ledger.OriginAnnotation: "Minted", ledger.Annotation: book.Append(ledger.Entry{
		ID: id, Operation: ledger.Mint, At: time.Now(), AuditID: id, Caller: book.CallerDigest(id, "jane"), Stored: book.StoredDigest(id, s.Data["password"]),
	}).Encode()}
	return backup{
		kind: kind, secret: s,
		role: &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Name: "credentials-" + name, Annotations: map[string]string{"credentials.cozystack.io/found": "[]"}},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{s.Name}, Verbs: []string{"get", "patch"}}},
		},
		release: object{
			"apiVersion": "helm.toolkit.fluxcd.io/v2", "kind": "HelmRelease",
			"metadata": object{"name": name, "labels": object{
				"velero.io/restore-name": "nightly", "apps.cozystack.io/application.kind": kind,
				"apps.cozystack.io/application.group": "apps.cozystack.io", "apps.cozystack.io/application.name": "orders",
			}},
			"spec": object{"interval": "5m", "values": object{"users": object{"app": object{}}}},
		},
	}
}

// restore brings one object back; what is there already is left as it is.
func (b backup) restore(t *testing.T, namespace, what string) {
	t.Helper()
	var err error
	switch what {
	case "definition":
		define(t, b.kind, users)
	case "secret":
		_, err = admin().CoreV1().Secrets(namespace).Create(t.Context(), b.secret, metav1.CreateOptions{})
	case "role":
		_, err = admin().RbacV1().Roles(namespace).Create(t.Context(), b.role, metav1.CreateOptions{})
	case "release":
		_, err = servers().Apply(t.Context(), namespace, b.release)
	}
	if !apierrors.IsAlreadyExists(err) {
		require.NoError(t, err)
	}
}

func orders(of []string) [][]string {
	if len(of) < 2 {
		return [][]string{of}
	}
	var all [][]string
	for i := range of {
		for _, rest := range orders(slices.Concat(of[:i], of[i+1:])) {
			all = append(all, append([]string{of[i]}, rest...))
		}
	}
	return all
}

func TestARestoreInWhateverOrderLocksNobodyOut(t *testing.T) {
	run(t)
	ns := tenant(t, "tenant-restored")
	sequences := orders([]string{"definition", "secret", "role", "release"})
	require.Len(t, sequences, 24)
	var backups []backup
	for i := range sequences {
		backups = append(backups, newBackup(t, ns, fmt.Sprint("Restored", string(rune('a'+i)))))
	}
	for step := range 4 {
		for i, sequence := range sequences {
			backups[i].restore(t, ns, sequence[step])
		}
		time.Sleep(2500 * time.Millisecond) // times of objects are whole seconds, and a tie makes an application the older
	}
	for i, b := range backups {
		eventually(t, fmt.Sprintf("the account is its application's again (%q)", sequences[i]), func() bool {
			s := secret(t, ns, b.secret.Name)
			return s != nil && len(s.OwnerReferences) == 1
		})
		s := secret(t, ns, b.secret.Name)
		assert.Equal(t, b.secret.Data, s.Data, "%q", sequences[i])
		assert.Equal(t, b.secret.Annotations, s.Annotations, "%q", sequences[i])
	}
}

func TestAnotherWhoWritesTheSameSecretAllTheTimeDoesNotKeepItsLabelsFromBeingPutBack(t *testing.T) {
	run(t)
	ns := tenant(t, "tenant-busy")
	serve(t, "Busy", users)
	install(t, ns, "Busy", "app")
	before := awaitSecret(t, ns, "busy-orders.app.account")
	secrets := admin().CoreV1().Secrets(ns)
	// Secrets take annotations of 256 KiB in all: it is full.
	full := strings.Repeat("x", 200_000)
	for i := range 40 {
		require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			s := secret(t, ns, before.Name)
			s.Annotations["kubectl.kubernetes.io/last-applied-configuration"] = full
			s.Annotations["theirs"] = fmt.Sprint(i)
			if i%4 == 0 {
				s.Labels["cnpg.io/reload"] = "drifted"
			}
			_, err := secrets.Update(t.Context(), s, metav1.UpdateOptions{})
			return err
		}))
	}
	eventually(t, "the label is back", func() bool { return secret(t, ns, before.Name).Labels["cnpg.io/reload"] == "true" })
	after := secret(t, ns, before.Name)
	assert.Equal(t, "39", after.Annotations["theirs"])
	assert.Equal(t, before.Data, after.Data)
	assert.Equal(t, before.Annotations[ledger.Annotation], after.Annotations[ledger.Annotation])
	install(t, ns, "Busy")
	awaitNoSecret(t, ns, before.Name)
}
