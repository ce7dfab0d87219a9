package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/store/archive"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/test/postgres"
	"github.com/mintlog/mintlog/test/sandbox"
)

func TestDeclaredAccountsStartNotIssuedUnderTheirMappedNames(t *testing.T) {
	t.Parallel()
	c := shared.awaitCredential(t, "postgres-orders.report-reader", func(*v1alpha1.Credential) error { return nil })
	assert.Equal(t, "Report.Reader", c.Spec.Username)
	assert.Equal(t, "scram-sha-256", c.Spec.Format)
	assert.Equal(t, v1alpha1.ApplicationReference{Kind: "Postgres", Name: "orders"}, c.Spec.Application)
	assert.Equal(t, "NotIssued", c.Status.Password.Origin)
	require.Len(t, c.Status.History, 1)
	assert.Equal(t, "Create", c.Status.History[0].Operation)
	assert.Equal(t, "Platform", c.Status.History[0].Attribution)
	assert.Empty(t, c.Status.Findings)

	secret := shared.secret(t, "postgres-orders.report-reader")
	assert.Equal(t, secret.UID, c.UID)
	assert.Equal(t, corev1.SecretTypeBasicAuth, secret.Type)
	assert.Equal(t, "true", secret.Labels["cnpg.io/reload"])
	assert.Equal(t, "false", secret.Labels["internal.cozystack.io/tenantresource"])
	assert.Equal(t, "true", secret.Labels["internal.cozystack.io/managed-by-cozystack"])
	assert.NotContains(t, secret.Labels, "apps.cozystack.io/user-secret")
}

func TestAMintedPasswordLogsInAndTheReplacedAndRevokedOnesDoNot(t *testing.T) {
	t.Parallel()
	server, err := postgres.Start(ctx(t), "", t.Output())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, server.Stop()) })
	version, err := server.Version(ctx(t))
	require.NoError(t, err)
	t.Logf("PostgreSQL %s", version)

	credential := shared.application(t, "login", "app") + ".app"
	apply := func() { // as the database's operator does
		secret := shared.secret(t, credential)
		require.NoError(t, server.SetPassword(ctx(t), string(secret.Data["username"]), string(secret.Data["password"])))
	}
	first := shared.mint(t, sandbox.Jane, 0, credential)
	apply()
	require.NoError(t, server.Login(ctx(t), first.Username, first.Password))

	second := shared.mint(t, sandbox.Jane, 1, credential)
	apply()
	require.NoError(t, server.Login(ctx(t), second.Username, second.Password))
	require.ErrorIs(t, server.Login(ctx(t), first.Username, first.Password), postgres.ErrRefused, "the replaced password")

	a, err := shared.do(ctx(t), call{person: sandbox.Jane, path: credential + "/revoke"})
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, a.code, "%s", a)
	apply()
	require.ErrorIs(t, server.Login(ctx(t), second.Username, second.Password), postgres.ErrRefused, "the revoked password")
}

func TestAnApplicationDeletedAndRecreatedHasNewAccountsWithoutAPast(t *testing.T) {
	t.Parallel()
	release := shared.application(t, "phoenix", "app")
	credential := release + ".app"
	for range 3 {
		shared.mint(t, sandbox.Jane, 0, credential)
	}
	before := shared.awaitBy(t, credential, "jane", "")
	id := newAuditID()
	shared.minted(t, call{person: sandbox.Jane, apiserver: 1, path: credential + "/mint", header: auditID(id)}) // its event is on the way while the application goes
	require.NoError(t, shared.DeleteRelease(ctx(t), acme, release))
	_, err := shared.InstallRelease(ctx(t), acme, "Postgres", "phoenix", values("app"))
	require.NoError(t, err)

	after := shared.awaitWithin(t, 2*time.Minute, credential, func(c *v1alpha1.Credential) error {
		if c.UID == before.UID {
			return errors.New("it is still the old account")
		}
		return nil
	})
	assert.NotEqual(t, before.UID, after.UID)
	shared.awaitArchive(t, archive.Query{Namespace: acme, Credential: credential, AuditID: id}, func(events []event.Event) error {
		for _, e := range events {
			if _, is := e.Operation(); is && e.Stage == event.ResponseComplete {
				return nil
			}
		}
		return errors.New("the old event is not in the archive")
	})
	time.Sleep(2 * time.Second) // for it to leak in by the other way, if it could
	after = shared.awaitCredential(t, credential, func(*v1alpha1.Credential) error { return nil })
	require.Len(t, after.Status.History, 1)
	assert.Equal(t, "Create", after.Status.History[0].Operation)
	assert.Empty(t, after.Status.Findings)

	require.NoError(t, shared.AwaitServed(ctx(t), acme, []string{credential}))
	shared.mint(t, sandbox.Jane, 0, credential)
	c := shared.awaitBy(t, credential, "jane", "")
	assert.Len(t, c.Status.History, 2)
	assert.Empty(t, c.Status.Findings)
}

func TestAnAccountThatIsNoLongerDeclaredGoesAndOneThatIsAddedComes(t *testing.T) {
	t.Parallel()
	release := shared.application(t, "change", "a", "b")
	_, err := shared.InstallRelease(ctx(t), acme, "Postgres", "change", values("a", "c"))
	require.NoError(t, err)
	shared.awaitCredential(t, release+".c", func(*v1alpha1.Credential) error { return nil })
	within(t, 2*time.Minute, func() error {
		_, err := shared.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().Secrets(acme).Get(ctx(t), release+".b.account", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("b is still there: %v", err)
	})
	within(t, 2*time.Minute, func() error { // the mint server learns of it by itself
		a, err := shared.do(ctx(t), call{person: sandbox.Jane, path: release + ".b/mint", query: "?dryRun=All"})
		if err != nil || a.code != http.StatusNotFound {
			return fmt.Errorf("a mint of b is answered %v %v", a, err)
		}
		return nil
	})
	shared.refused(t, http.StatusNotFound, call{person: sandbox.Jane, path: release + ".b/mint"})
}

func TestWhatRanBeforeItsKindHadABlockIsLeftAloneUntilItsFirstMint(t *testing.T) {
	t.Parallel()
	const kind = "Mariadb"
	require.NoError(t, shared.InstallDefinition(ctx(t), kind, nil))
	admin := shared.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().Secrets(acme)
	_, err := admin.Create(ctx(t), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "mariadb-old-credentials"},
		StringData: map[string]string{"app": "kept as it was", "report": "this as well"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = shared.InstallRelease(ctx(t), acme, kind, "old", values("app", "report"))
	require.NoError(t, err)
	time.Sleep(2 * time.Second) // creation times are whole seconds
	require.NoError(t, shared.InstallDefinition(ctx(t), kind, map[string]any{
		"format":   map[string]any{"name": "mysql-native"},
		"accounts": []any{map[string]any{"kind": "ValuesMap", "path": "users"}, map[string]any{"kind": "Static", "name": "root", "owner": "platform"}},
	}))
	require.NoError(t, shared.AwaitFirstSight(ctx(t), kind))
	// Somebody who comes later is seeded: then the accounts role has had its turn at the old one as well.
	_, err = shared.InstallRelease(ctx(t), acme, kind, "new", values("app"))
	require.NoError(t, err)
	time.Sleep(3 * time.Second)
	_, err = shared.InstallRelease(ctx(t), acme, kind, "newer", values("app"))
	require.NoError(t, err)
	require.NoError(t, shared.AwaitServed(ctx(t), acme, []string{"mariadb-newer.app"}))

	accountSecrets := func() []string {
		list, err := admin.List(ctx(t), metav1.ListOptions{LabelSelector: "credentials.cozystack.io/account=true,apps.cozystack.io/application.name=old"})
		require.NoError(t, err)
		var names []string
		for _, secret := range list.Items {
			names = append(names, secret.Name)
		}
		return names
	}
	assert.Empty(t, accountSecrets())
	legacy, err := admin.Get(ctx(t), "mariadb-old-credentials", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "kept as it was", string(legacy.Data["app"]))

	require.NoError(t, shared.AwaitMint(ctx(t), acme, []string{"mariadb-old.app"}))
	minted := shared.mint(t, sandbox.Jane, 0, "mariadb-old.app")
	assert.Equal(t, int64(1), minted.Revision)
	c := shared.awaitBy(t, "mariadb-old.app", "jane", "")
	require.Len(t, c.Status.History, 1)
	assert.Equal(t, "Mint", c.Status.History[0].Operation)
	assert.Empty(t, c.Status.Findings)
	assert.Equal(t, []string{"mariadb-old.app.account"}, accountSecrets(), "the one Secret, and no other")

	shared.refused(t, http.StatusNotFound, call{person: sandbox.Jane, path: "mariadb-old.root/mint"})
}

func TestAMintThatMustBeTheFirstCreatesTheSecretOnce(t *testing.T) {
	t.Parallel()
	const kind = "Clickhouse"
	require.NoError(t, shared.InstallDefinition(ctx(t), kind, nil))
	_, err := shared.InstallRelease(ctx(t), acme, kind, "first", values("app"))
	require.NoError(t, err)
	time.Sleep(2 * time.Second)
	require.NoError(t, shared.InstallDefinition(ctx(t), kind, map[string]any{
		"format":   map[string]any{"name": "sha256"},
		"accounts": []any{map[string]any{"kind": "ValuesMap", "path": "users"}},
	}))
	require.NoError(t, shared.AwaitFirstSight(ctx(t), kind))
	require.NoError(t, shared.AwaitMint(ctx(t), acme, []string{"clickhouse-first.app"}))
	body := `{"apiVersion": "credentials.cozystack.io/v1alpha1", "kind": "CredentialMint", "spec": {"preconditions": {"revision": 0}}}`
	shared.minted(t, call{person: sandbox.Jane, path: "clickhouse-first.app/mint", body: body})
	shared.awaitBy(t, "clickhouse-first.app", "jane", "")
	shared.awaitArchive(t, archive.Query{Namespace: acme, Credential: "clickhouse-first.app"}, func(events []event.Event) error {
		newest := shared.ledger(t, "clickhouse-first.app").Newest()
		for _, e := range events {
			if e.IsWrite() && e.Verb == "create" && e.AuditID == newest.AuditID && e.Outcome() == event.Succeeded {
				assert.Equal(t, "system:serviceaccount:mintlog:mint", e.User.Username)
				return nil
			}
		}
		return errors.New("the commit is not in the archive")
	})
	shared.refused(t, http.StatusConflict, call{person: sandbox.Jane, path: "clickhouse-first.app/mint", body: body})
}

func TestANamespaceWithAccountsCanBeDeleted(t *testing.T) {
	t.Parallel()
	const namespace = "tenant-acme-gone"
	require.NoError(t, shared.AddTenant(ctx(t), namespace))
	_, err := shared.InstallRelease(ctx(t), namespace, "Postgres", "x", values("app"))
	require.NoError(t, err)
	admin := shared.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1()
	within(t, 2*time.Minute, func() error {
		_, err := admin.Secrets(namespace).Get(ctx(t), "postgres-x.app.account", metav1.GetOptions{})
		return err
	})
	require.NoError(t, admin.Namespaces().Delete(ctx(t), namespace, metav1.DeleteOptions{}))
	within(t, 5*time.Minute, func() error {
		_, err := admin.Namespaces().Get(ctx(t), namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.New("the namespace is still there")
	})
}
