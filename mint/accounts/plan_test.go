package accounts

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"runtime"
	"slices"
	"testing"
	"testing/quick"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mintlog/mintlog/mint/account"
	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/mint/webhook"
)

var sight = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var usersBlock = definition.Block{
	Format:       definition.Format{Name: "sha256", Kind: definition.BuiltIn},
	Sources:      []definition.Source{{Kind: definition.ValuesMap, Path: "users"}},
	SecretLabels: map[string]string{"cnpg.io/reload": "true"},
}

// an application that was created so long after its kind's block was first seen, and has these users.
func application(after time.Duration, users ...string) situation {
	names := map[string]any{}
	for _, u := range users {
		names[u] = nil
	}
	return situation{
		sight: sight, block: usersBlock,
		release: &cluster.Release{
			Namespace: "tenant-acme", Name: "pg-orders", UID: "app-uid", Kind: "Postgres", Application: "orders",
			Values: map[string]any{"users": names}, CreationTimestamp: sight.Add(after),
		},
	}
}

// withSecret adds the account Secret of a username as it was seeded, changed as said.
func (s situation) withSecret(username string, changes ...func(*corev1.Secret)) situation {
	segment, err := definition.Segment(username)
	if err != nil {
		panic(err)
	}
	name, err := definition.SecretName(s.release.Name, segment)
	if err != nil {
		panic(err)
	}
	secret := account.NewSecret(s.release, definition.Account{Username: username, SecretName: name}, s.block)
	secret.UID = types.UID("uid-" + segment)
	secret.CreationTimestamp = metav1.NewTime(s.release.CreationTimestamp.Add(time.Second))
	for _, change := range changes {
		change(secret)
	}
	s.secrets = append(slices.Clone(s.secrets), secret)
	return s
}

func (s situation) recorded(found ...string) situation {
	s.record = record{sight: s.sight, found: found}
	return s
}

func seeded(p plan) []string {
	names := []string{}
	for _, a := range p.seed {
		names = append(names, a.Name)
	}
	return names
}

func namesOf(secrets []*corev1.Secret) []string {
	names := []string{}
	for _, s := range secrets {
		names = append(names, s.Name)
	}
	return names
}

func reasons(p plan) []string {
	var found []string
	for _, problem := range p.problems {
		found = append(found, problem.reason)
	}
	return found
}

func TestAnApplicationYoungerThanItsKindsBlockIsSeeded(t *testing.T) {
	for _, after := range []time.Duration{2 * time.Second, time.Hour} {
		p := decide(t.Context(), application(after, "app", "Report.Reader"), nil)
		assert.Equal(t, []string{"Report.Reader", "app"}, seeded(p))
		assert.Equal(t, record{sight: sight}, p.record)
		assert.Equal(t, []string{"pg-orders.app.account", "pg-orders.report-reader.account"}, p.secretNames())
	}
}

func TestOfAnApplicationThatRanBeforeItsKindsBlockNothingIsSeeded(t *testing.T) {
	for _, after := range []time.Duration{-time.Hour, 0, time.Second} {
		p := decide(t.Context(), application(after, "app", "Report.Reader"), nil)
		assert.Empty(t, p.seed, after)
		assert.Equal(t, record{sight: sight, found: []string{"Report.Reader", "app"}}, p.record)
		assert.Len(t, p.secretNames(), 2, "a mint creates the Secret, which the projector must reach")
	}
}

func TestAnAccountAddedAfterTheApplicationWasRecordedIsSeeded(t *testing.T) {
	p := decide(t.Context(), application(-time.Hour, "app", "new").recorded("app"), nil)
	assert.Equal(t, []string{"new"}, seeded(p))
	assert.Equal(t, []string{"app"}, p.record.found)
}

func TestAFoundAccountIsNeverSeededHoweverOftenItIsRemovedAndAdded(t *testing.T) {
	s := application(-time.Hour).recorded("app")
	assert.Equal(t, []string{"app"}, decide(t.Context(), s, nil).record.found)
	s.release.Values = map[string]any{"users": map[string]any{"app": nil}}
	assert.Empty(t, decide(t.Context(), s, nil).seed)
}

func TestAnAccountWithAPasswordElsewhereIsNotSeededAndRemembered(t *testing.T) {
	p := decide(t.Context(), application(time.Hour, "app", "new").recorded(), nil)
	p.spare(func(name string) bool { return name == "app" })
	assert.Equal(t, []string{"new"}, seeded(p))
	assert.Equal(t, []string{"app"}, p.record.found)
}

func TestABlockThatWasTakenAwayAndCameBackFindsWhatCameBetween(t *testing.T) {
	s := application(-time.Hour, "app", "between").recorded("app")
	s.sight = sight.Add(24 * time.Hour)
	p := decide(t.Context(), s, nil)
	assert.Empty(t, p.seed)
	assert.Equal(t, record{sight: s.sight, found: []string{"app", "between"}}, p.record)
}

func TestARefusedAccountOfAnOlderApplicationIsFoundToo(t *testing.T) {
	p := decide(t.Context(), application(-time.Hour, "Bob.Smith", "bob-smith"), nil)
	assert.Equal(t, []string{"Bob.Smith", "bob-smith"}, p.record.found)
	assert.Equal(t, []string{reasonRefused, reasonRefused}, reasons(p))

	p = decide(t.Context(), application(-time.Hour, "bob-smith").recorded("Bob.Smith", "bob-smith"), nil)
	assert.Empty(t, p.seed, "when one of the two has gone")
}

func TestALoginThatRanBeforeIsNotSeededUnderAnotherName(t *testing.T) {
	s := application(-time.Hour, "app")
	s.record = decide(t.Context(), s, nil).record
	f := func(name string) {
		t.Helper()
		s.block.Sources = []definition.Source{{Kind: definition.Static, Name: name, Username: "app"}}
		assert.Empty(t, decide(t.Context(), s, nil).seed, name)
	}
	f("App")
	f("main")

	p := decide(t.Context(), s.recorded(), nil)
	require.Equal(t, []string{"main"}, seeded(p))
	p.spare(func(name string) bool { return name == "main" })
	assert.Equal(t, []string{"app"}, p.record.found)
}

func TestThousandsOfRefusedNamesCostNoMoreThanOthers(t *testing.T) {
	allocated := func(name string) uint64 {
		s := application(time.Hour).recorded()
		users := map[string]any{}
		for i := range 1000 {
			served := fmt.Sprintf("user%d", i)
			users[served], users[fmt.Sprintf(name, i)] = nil, nil
			s = s.withSecret(served)
		}
		s.release.Values = map[string]any{"users": users}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		p := decide(t.Context(), s, nil)
		runtime.ReadMemStats(&after)
		assert.Empty(t, p.remove)
		return after.TotalAlloc - before.TotalAlloc
	}
	assert.Less(t, allocated("no login %d"), 5*allocated("other%d"))
}

func TestWhatIsInStepIsLeftAlone(t *testing.T) {
	p := decide(t.Context(), application(time.Hour, "app").recorded().withSecret("app"), nil)
	assert.Equal(t, plan{accounts: p.accounts, record: record{sight: sight}}, p)
}

func TestTheSecretOfAnAccountThatIsNoLongerDeclaredIsRemoved(t *testing.T) {
	p := decide(t.Context(), application(time.Hour, "app").recorded().withSecret("app").withSecret("old"), nil)
	assert.Equal(t, []string{"pg-orders.old.account"}, namesOf(p.remove))

	p = decide(t.Context(), application(time.Hour, "bob-smith").recorded().withSecret("Bob.Smith"), nil)
	assert.Equal(t, []string{"pg-orders.bob-smith.account"}, namesOf(p.remove), "also when another name comes in its place")
	assert.Empty(t, p.seed, "which waits until the Secret is gone")
}

func TestNothingIsRemovedThatIsNotThisApplications(t *testing.T) {
	f := func(change func(*corev1.Secret)) {
		t.Helper()
		assert.Empty(t, decide(t.Context(), application(time.Hour).recorded().withSecret("old", change), nil).remove)
	}
	f(func(s *corev1.Secret) { s.OwnerReferences[0].UID = "another" })
	f(func(s *corev1.Secret) { s.OwnerReferences = nil })
	f(func(s *corev1.Secret) { s.Name = "pg-billing.old.account" })
	f(func(s *corev1.Secret) { s.Name = "pg-orders.x.old.account" })
	f(func(s *corev1.Secret) { s.Name = "old" })
	f(func(s *corev1.Secret) { s.DeletionTimestamp = &metav1.Time{Time: sight} })
}

func TestNothingIsRemovedWhenASourceFails(t *testing.T) {
	s := application(time.Hour).withSecret("app")
	s.release.Values = map[string]any{"users": []any{"app"}}
	p := decide(t.Context(), s, nil)
	assert.True(t, p.unknown)
	assert.Empty(t, p.remove)
	assert.Equal(t, []string{reasonSourceFailed}, reasons(p))
}

func TestNothingIsRemovedOfANameThatIsThePlatformsOwn(t *testing.T) {
	for _, holder := range []string{"root", "Root"} {
		s := application(time.Hour).recorded().withSecret(holder)
		s.block.Sources = append(slices.Clone(s.block.Sources), definition.Source{Kind: definition.Static, Name: "root", Username: "root", Owner: definition.PlatformOwner})
		assert.Equal(t, plan{record: record{sight: sight}}, decide(t.Context(), s, nil), holder)
	}
}

func TestASecretWhoseUsernameWasTamperedWithStaysAndItsAccountIsRefused(t *testing.T) {
	p := decide(t.Context(), application(time.Hour, "app").recorded().withSecret("app", func(s *corev1.Secret) { s.Data["username"] = []byte("other") }), nil)
	assert.Empty(t, p.remove)
	assert.Empty(t, p.seed)
	assert.Equal(t, []string{reasonRefused}, reasons(p))
}

func TestTheSecretOfAnEarlierApplicationIsWaitedFor(t *testing.T) {
	f := func(change func(*corev1.Secret)) {
		t.Helper()
		p := decide(t.Context(), application(time.Hour, "app").recorded().withSecret("app", change), nil)
		assert.True(t, p.waiting)
		assert.Empty(t, p.remove)
		assert.Empty(t, p.repair)
		assert.Empty(t, p.seed)
		assert.Empty(t, p.problems)
	}
	f(func(s *corev1.Secret) { s.OwnerReferences[0].UID = "the earlier" })
	f(func(s *corev1.Secret) { s.DeletionTimestamp = &metav1.Time{Time: sight} })
}

func TestAForeignSecretIsReportedAndLeftAlone(t *testing.T) {
	f := func(change func(*corev1.Secret)) {
		t.Helper()
		p := decide(t.Context(), application(time.Hour, "app").recorded().withSecret("app", change), nil)
		assert.Equal(t, plan{accounts: p.accounts, record: p.record, problems: p.problems}, p)
		assert.Equal(t, []string{reasonForeignSecret}, reasons(p))
	}
	f(func(s *corev1.Secret) { s.OwnerReferences[0].UID, s.OwnerReferences[0].Kind = "another", "Deployment" })
	f(func(s *corev1.Secret) { s.OwnerReferences[0].UID, s.OwnerReferences[0].Name = "another", "pg-billing" })
	f(func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque })
	f(func(s *corev1.Secret) { s.OwnerReferences, s.CreationTimestamp = nil, metav1.NewTime(sight) })
}

func TestDriftedLabelsAndOwnersAreRepaired(t *testing.T) {
	f := func(change func(*corev1.Secret)) {
		t.Helper()
		p := decide(t.Context(), application(time.Hour, "app").recorded().withSecret("app", change), nil)
		assert.Equal(t, []string{"pg-orders.app.account"}, namesOf(p.repair))
		assert.Empty(t, p.problems)
	}
	f(func(s *corev1.Secret) { s.OwnerReferences = nil })
	f(func(s *corev1.Secret) { delete(s.Labels, "cnpg.io/reload") })
	f(func(s *corev1.Secret) { s.Labels["internal.cozystack.io/tenantresource"] = "true" })
	p := decide(t.Context(), application(time.Hour, "app").recorded().withSecret("app", func(s *corev1.Secret) { s.Labels["somebodys"] = "own" }), nil)
	assert.Empty(t, p.repair, "others' labels are theirs")
}

func TestWhateverHappensNoAccountThatMayHaveAPasswordIsSeeded(t *testing.T) {
	names := []string{"a", "B", "b", "c.d", "c-d"}
	property := func(seed int64) bool {
		random := rand.New(rand.NewSource(seed))
		users := slices.Clone(names)
		random.Shuffle(len(users), func(i, j int) { users[i], users[j] = users[j], users[i] })
		s := application(time.Duration(random.Intn(7)-3)*time.Second, users[:random.Intn(len(users)+1)]...)
		older := !s.release.CreationTimestamp.After(sight.Add(time.Second))
		first := decide(t.Context(), s, nil)
		if older && len(first.seed) > 0 {
			return false
		}
		// What is carried out, seen again, is in step: nothing more is seeded, and nothing removed.
		s.record = first.record
		for _, a := range first.seed {
			s = s.withSecret(a.Username)
		}
		again := decide(t.Context(), s, nil)
		return assert.ObjectsAreEqual(first.record, again.record) && len(again.seed) == 0 && len(again.remove) == 0 && len(again.repair) == 0
	}
	require.NoError(t, quick.Check(property, &quick.Config{MaxCount: 2000}))
}

// deadlines is a format's webhook that says until when it is waited for.
type deadlines struct{ at chan time.Time }

func (d deadlines) Accounts(context.Context, string, webhook.Config, webhook.Application) ([]webhook.Account, error) {
	return nil, errors.New("not asked for")
}

func (d deadlines) Format(ctx context.Context, _ string, _ webhook.Config, _, _, _ string) (string, error) {
	at, _ := ctx.Deadline()
	d.at <- at
	return "", errors.New("it hangs")
}

func TestAFormatsWebhookThatHangsLeavesTimeForWhatIsNotSeeded(t *testing.T) {
	s := application(time.Hour, "app").recorded()
	s.block.Format = definition.Format{Kind: definition.Webhook, Name: "ours"}
	hook := deadlines{make(chan time.Time, 1)}
	p := decide(t.Context(), s, nil)
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	a := &Accounts{Options: Options{Webhooks: hook, Random: rand.New(rand.NewSource(1))}}
	_, err := a.seedAll(ctx, s, &p)
	require.Error(t, err)
	end, _ := ctx.Deadline()
	assert.Greater(t, end.Sub(<-hook.at), longest/3)
}
