package engines_test

import (
	"context"
	"crypto/rand"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/mint/format"
	"github.com/mintlog/mintlog/test/engines"
)

// A cluster is an application of the kind Postgres, without a Kubernetes.
type cluster struct {
	cloudNativePG
	folder  string // of its chart
	release string
}

func newCluster(t *testing.T, release string, find secrets) *cluster {
	t.Helper()
	return &cluster{
		cloudNativePG: cloudNativePG{server: running.postgresql.get(t), secrets: find, applied: map[string]string{}},
		folder:        t.TempDir(), release: release,
	}
}

// upgrade does what Helm and the operator do with new values: the hook before, the operator, the hook after.
func (c *cluster) upgrade(ctx context.Context, values object) (said string, err error) {
	objects, err := render(ctx, c.folder, "postgres", c.release, values)
	if err != nil {
		return "", err
	}
	if said, err := runJob(ctx, objects, "pre-upgrade", c.server); err != nil {
		return said, err
	}
	if err := c.reconcile(ctx, objects); err != nil {
		return "", err
	}
	return runJob(ctx, objects, "post-upgrade", c.server)
}

func (c *cluster) upgraded(t *testing.T, values object) {
	t.Helper()
	said, err := c.upgrade(t.Context(), values)
	require.NoError(t, err, said)
}

func (c *cluster) query(t *testing.T, statements string) string {
	t.Helper()
	said, err := c.server.Query(t.Context(), statements)
	require.NoError(t, err)
	return said
}

func TestARoleThatSomebodyPlantedStopsTheUpgradeBeforeItIsAdopted(t *testing.T) {
	c := newCluster(t, "postgres-planted", noSecrets)
	c.upgraded(t, object{"users": object{"planted.admin": object{"createrole": true}}})
	c.upgraded(t, usersOf("planted.admin", "planted.app"))

	c.query(t, `CREATE ROLE "planted.victim" LOGIN PASSWORD 'known to who planted it'; CREATE SCHEMA trap AUTHORIZATION "planted.victim";`)
	said, err := c.upgrade(t.Context(), usersOf("planted.admin", "planted.app", "planted.victim"))
	require.Error(t, err)
	assert.Contains(t, said, "these roles were not made by this application: planted.victim")
	assert.Empty(t, c.query(t, `SELECT 1 FROM pg_auth_members WHERE member = '"planted.victim"'::regrole`), "it is adopted")
	c.upgraded(t, usersOf("planted.admin", "planted.app"))

	// What the refusal is for: without it the operator adopts the role with its password and what it owns.
	objects, err := render(t.Context(), c.folder, "postgres", c.release, usersOf("planted.admin", "planted.app", "planted.victim"))
	require.NoError(t, err)
	require.NoError(t, c.reconcile(t.Context(), objects))
	require.NoError(t, c.server.Login(t.Context(), "planted.victim", "known to who planted it"))
}

func TestAMarkerThatARoleWithCreateroleGrantedCountsForNothing(t *testing.T) {
	c := newCluster(t, "postgres-marked", noSecrets)
	c.upgraded(t, object{"users": object{"marked.admin": object{"createrole": true}}})
	c.query(t, `SET ROLE "marked.admin"; CREATE ROLE "marked.victim" LOGIN PASSWORD 'known';`)
	if _, err := c.server.Query(t.Context(), `SET ROLE "marked.admin"; GRANT "cozystack:managed" TO "marked.victim";`); err != nil {
		require.GreaterOrEqual(t, c.query(t, "SHOW server_version_num"), "160000", "before 16 it may: %v", err)
	}
	said, err := c.upgrade(t.Context(), usersOf("marked.admin", "marked.victim"))
	require.Error(t, err)
	assert.Contains(t, said, "not made by this application: marked.victim. Rename")
}

func TestTheRefusalFailsClosedWhereTheDatabaseDoesNotAnswer(t *testing.T) {
	c := newCluster(t, "postgres-closed", noSecrets)
	objects, err := render(t.Context(), c.folder, "postgres", c.release, usersOf("closed.app"))
	require.NoError(t, err)
	gone, err := engines.StartPostgreSQL(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, gone.Stop())
	_, err = runJob(t.Context(), objects, "pre-upgrade", gone)
	require.Error(t, err)
}

func TestARoleHasTheAttributesThatTheValuesGiveItAndTheMarker(t *testing.T) {
	c := newCluster(t, "postgres-attributes", noSecrets)
	c.upgraded(t, object{"users": object{"attributes.admin": object{"createrole": true, "bypassrls": true}, "attributes.app": object{}}})
	of := func(name string) string {
		return c.query(t, `SELECT rolcanlogin, rolsuper, rolcreaterole, rolbypassrls, pg_has_role(oid, 'cozystack:managed', 'member') FROM pg_roles WHERE rolname = `+literal(name))
	}
	assert.Equal(t, "t|f|t|t|t", of("attributes.admin"))
	assert.Equal(t, "t|f|f|f|t", of("attributes.app"))
	assert.Equal(t, "f|f|f|f|t", of("cozystack:managed"))
	c.query(t, `CREATE ROLE "attributes.other"; GRANT "attributes.other" TO "attributes.app"; ALTER ROLE "attributes.app" CREATEROLE;`)
	c.upgraded(t, usersOf("attributes.admin", "attributes.app"))
	assert.Equal(t, "t|f|f|f|t", of("attributes.admin"))
	assert.Equal(t, "t|f|f|f|t", of("attributes.app"))
	assert.Equal(t, "f", c.query(t, `SELECT pg_has_role('attributes.app', 'attributes.other', 'member')`))
}

// A Secret that was missing for a moment has cost roles their password.
func TestARoleWhoseSecretIsMissingKeepsItsPassword(t *testing.T) {
	secret := accountSecret(t, "postgres-missing", "missing.app", "right")
	find := func(ctx context.Context, name string) (*corev1.Secret, error) {
		if secret == nil || name != secret.Name {
			return noSecrets(ctx, name)
		}
		return secret, nil
	}
	c := newCluster(t, "postgres-missing", find)
	c.upgraded(t, usersOf("missing.app"))
	require.NoError(t, c.server.Login(t.Context(), "missing.app", "right"))
	secret = nil
	c.upgraded(t, usersOf("missing.app"))
	require.NoError(t, c.server.Login(t.Context(), "missing.app", "right"))
}

func TestAnUndeclaredUserIsLockedAndOneThatIsDeclaredAgainComesBack(t *testing.T) {
	secret := accountSecret(t, "postgres-locked", "locked.app", "right")
	find := func(ctx context.Context, name string) (*corev1.Secret, error) {
		if name != secret.Name {
			return noSecrets(ctx, name)
		}
		return secret, nil
	}
	c := newCluster(t, "postgres-locked", find)
	c.upgraded(t, usersOf("locked.app", "locked.other"))
	c.query(t, `CREATE ROLE "locked.bystander" LOGIN PASSWORD 'theirs'; CREATE SCHEMA locked AUTHORIZATION "locked.app";`)
	require.NoError(t, c.server.Login(t.Context(), "locked.app", "right"))

	c.upgraded(t, usersOf("locked.other"))
	require.ErrorIs(t, c.server.Login(t.Context(), "locked.app", "right"), engines.ErrRefused)
	require.NoError(t, c.server.Login(t.Context(), "locked.bystander", "theirs"), "a role that is not the application's")
	assert.Equal(t, "locked.app", c.query(t, `SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'locked'`))

	secret = accountSecret(t, "postgres-locked", "locked.app", "new")
	secret.ResourceVersion = "2"
	c.upgraded(t, usersOf("locked.app", "locked.other"))
	require.NoError(t, c.server.Login(t.Context(), "locked.app", "new"))
	require.ErrorIs(t, c.server.Login(t.Context(), "locked.app", "right"), engines.ErrRefused)
}

// accountSecret is what CloudNativePG reads of an account Secret.
func accountSecret(t *testing.T, release, username, password string) *corev1.Secret {
	t.Helper()
	formatter, ok := format.Built("scram-sha-256")
	require.True(t, ok)
	stored, err := formatter.Format(rand.Reader, username, password)
	require.NoError(t, err)
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: release + "." + segment(t, username) + ".account", ResourceVersion: "1"},
		Type:       corev1.SecretTypeBasicAuth,
		Data:       map[string][]byte{"username": []byte(username), "password": stored},
	}
}

func segment(t *testing.T, name string) string {
	t.Helper()
	s, err := definition.Segment(name)
	require.NoError(t, err)
	return s
}
