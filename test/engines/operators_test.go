package engines_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mintlog/mintlog/test/engines"
)

// The appliers of this file stand in for the engines' operators: each does with the objects that a chart renders, and
// with account Secrets, what its operator does as far as passwords go, and nothing more.

// secrets finds a Secret of the application's namespace.
type secrets func(ctx context.Context, name string) (*corev1.Secret, error)

// noSecrets has none.
func noSecrets(_ context.Context, name string) (*corev1.Secret, error) {
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
}

// cloudNativePG keeps the roles of PostgreSQL as a Cluster's spec.managed.roles has them.
type cloudNativePG struct {
	server  *engines.PostgreSQL
	secrets secrets
	applied map[string]string // resourceVersion of the Secret by role: the Cluster's status
}

type managedRole struct {
	Name           string   `json:"name"`
	Ensure         string   `json:"ensure"`
	Login          bool     `json:"login"`
	Superuser      bool     `json:"superuser"`
	CreateRole     bool     `json:"createrole"`
	BypassRLS      bool     `json:"bypassrls"`
	InRoles        []string `json:"inRoles"`
	PasswordSecret struct {
		Name string `json:"name"`
	} `json:"passwordSecret"`
}

func (c *cloudNativePG) reconcile(ctx context.Context, objects []object) error {
	cluster, err := one(objects, "Cluster")
	if err != nil {
		return err
	}
	var spec struct {
		Spec struct {
			Managed struct {
				Roles []managedRole `json:"roles"`
			} `json:"managed"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(cluster, &spec); err != nil {
		return err
	}
	for _, role := range spec.Spec.Managed.Roles {
		if err := c.ensure(ctx, role); err != nil {
			return fmt.Errorf("the role %s: %w", role.Name, err)
		}
	}
	return nil
}

// ensure creates a role or adopts the one that is there, whoever made it. Attributes that are not asked for are taken
// away, and so are memberships that are not listed. A role whose Secret is missing keeps its password.
func (c *cloudNativePG) ensure(ctx context.Context, role managedRole) error {
	name := identifier(role.Name)
	there, err := c.server.Query(ctx, "SELECT 1 FROM pg_roles WHERE rolname = "+literal(role.Name))
	if err != nil {
		return err
	}
	verb := "CREATE"
	if there != "" {
		verb = "ALTER"
	}
	statements := []string{verb + " ROLE " + name + attribute(role.Login, "LOGIN") + attribute(role.Superuser, "SUPERUSER") +
		attribute(role.CreateRole, "CREATEROLE") + attribute(role.BypassRLS, "BYPASSRLS")}
	if verb == "ALTER" {
		is, err := c.server.Query(ctx, "SELECT g.rolname FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid JOIN pg_roles r ON r.oid = m.member WHERE r.rolname = "+literal(role.Name))
		if err != nil {
			return err
		}
		for _, other := range strings.Fields(is) {
			if !slices.Contains(role.InRoles, other) {
				statements = append(statements, "REVOKE "+identifier(other)+" FROM "+name)
			}
		}
	}
	for _, other := range role.InRoles {
		statements = append(statements, "GRANT "+identifier(other)+" TO "+name)
	}
	if _, err := c.server.Query(ctx, "SET client_min_messages = error;"+strings.Join(statements, ";")+";"); err != nil {
		return err
	}
	return c.password(ctx, role)
}

func (c *cloudNativePG) password(ctx context.Context, role managedRole) error {
	if role.PasswordSecret.Name == "" {
		return nil
	}
	secret, err := c.secrets(ctx, role.PasswordSecret.Name)
	if apierrors.IsNotFound(err) || err == nil && secret.ResourceVersion == c.applied[role.Name] {
		return nil
	}
	if err != nil {
		return err
	}
	if secret.Type != corev1.SecretTypeBasicAuth || string(secret.Data["username"]) != role.Name {
		return errors.New("its Secret is of another type or of another user")
	}
	if _, err := c.server.Query(ctx, "ALTER ROLE "+identifier(role.Name)+" PASSWORD "+literal(string(secret.Data["password"]))+";"); err != nil {
		return err
	}
	c.applied[role.Name] = secret.ResourceVersion
	return nil
}

func attribute(has bool, name string) string {
	if has {
		return " " + name
	}
	return " NO" + name
}

func identifier(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func literal(text string) string { return `'` + strings.ReplaceAll(text, `'`, `''`) + `'` }

// runJob runs a Job's container as kubelet does, with the server's superuser in place of what its Secret has. It returns
// what the container said.
func runJob(ctx context.Context, objects []object, hook string, server *engines.PostgreSQL) (string, error) {
	for _, o := range objects {
		job := unstructured.Unstructured{Object: o}
		if job.GetKind() != "Job" || job.GetAnnotations()["helm.sh/hook"] != hook {
			continue
		}
		var spec struct {
			Spec struct {
				Template corev1.PodTemplateSpec `json:"template"`
			} `json:"spec"`
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o, &spec); err != nil {
			return "", err
		}
		container := spec.Spec.Template.Spec.Containers[0]
		command := exec.CommandContext(ctx, container.Command[0], container.Command[1:]...)
		for _, variable := range container.Env {
			command.Env = append(command.Env, variable.Name+"="+variable.Value)
		}
		command.Env = append(command.Env, server.Environment()...)
		command.Env = append(command.Env, "PATH="+server.Programs()+":"+os.Getenv("PATH"))
		command.Dir = "/"
		said, err := command.CombinedOutput()
		return string(said), err
	}
	return "", fmt.Errorf("there is no Job with the hook %s", hook)
}

// mariadbOperator keeps the password of a User.
func mariadbOperator(ctx context.Context, server *engines.MariaDB, find secrets, objects []object) error {
	user, err := one(objects, "User")
	if err != nil {
		return err
	}
	name, _, _ := unstructured.NestedString(user, "spec", "name")
	reference, found, _ := unstructured.NestedStringMap(user, "spec", "passwordHashSecretKeyRef")
	if !found {
		return server.Lock(ctx, name)
	}
	secret, err := find(ctx, reference["name"])
	if err != nil {
		return err
	}
	return server.Apply(ctx, name, string(secret.Data[reference["key"]]))
}

// clickhouseOperator writes the users of a ClickHouseInstallation into ClickHouse's files.
func clickhouseOperator(ctx context.Context, server *engines.ClickHouse, objects []object) error {
	installation, err := one(objects, "ClickHouseInstallation")
	if err != nil {
		return err
	}
	users, _, err := unstructured.NestedStringMap(installation, "spec", "configuration", "users")
	if err != nil {
		return err
	}
	profiles, _, err := unstructured.NestedMap(installation, "spec", "configuration", "profiles")
	if err != nil || len(profiles) == 0 {
		return errors.Join(errors.New("there are no profiles"), err)
	}
	for setting, value := range users {
		if strings.HasSuffix(setting, "/profile") && value != "default" {
			users[setting] = "default" // the tests' server has no other
		}
	}
	return server.Configure(ctx, users)
}

// redisOperator keeps the one password of a RedisFailover, which its Secret holds under "password".
func redisOperator(ctx context.Context, server *engines.Redis, find secrets, objects []object) error {
	failover, err := one(objects, "RedisFailover")
	if err != nil {
		return err
	}
	name, _, _ := unstructured.NestedString(failover, "spec", "auth", "secretPath")
	secret, err := find(ctx, name)
	if err != nil {
		return err
	}
	return server.Apply(ctx, "default", string(secret.Data["password"]))
}

// kubelet mounts the projected Secrets of a Deployment.
func kubelet(ctx context.Context, server *engines.Nginx, find secrets, objects []object) error {
	deployment, err := one(objects, "Deployment")
	if err != nil {
		return err
	}
	var spec struct {
		Spec struct {
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(deployment, &spec); err != nil {
		return err
	}
	files := map[string]string{}
	for _, volume := range spec.Spec.Template.Spec.Volumes {
		if volume.Projected == nil {
			continue
		}
		for _, source := range volume.Projected.Sources {
			secret, err := find(ctx, source.Secret.Name)
			if apierrors.IsNotFound(err) && source.Secret.Optional != nil && *source.Secret.Optional {
				continue
			}
			if err != nil {
				return err
			}
			for _, item := range source.Secret.Items {
				files[item.Path] = string(secret.Data[item.Key])
			}
		}
	}
	return server.Mount(ctx, files)
}

// flux is what Flux gives to Helm for a HelmRelease: its values, and an argument of --set for each entry of valuesFrom
// that has a target path. An entry whose Secret is missing fails the release.
func flux(ctx context.Context, release *unstructured.Unstructured, find secrets) (values object, set []string, err error) {
	values, _, _ = unstructured.NestedMap(release.Object, "spec", "values")
	entries, _, err := unstructured.NestedSlice(release.Object, "spec", "valuesFrom")
	if err != nil {
		return nil, nil, err
	}
	for _, entry := range entries {
		from, _ := entry.(object)
		path, _ := from["targetPath"].(string)
		if path == "" {
			continue // Cozystack's own, of which nothing here depends
		}
		secret, err := find(ctx, fmt.Sprint(from["name"]))
		if err != nil {
			return nil, nil, err
		}
		set = append(set, path+"="+string(secret.Data[fmt.Sprint(from["valuesKey"])]))
	}
	return values, set, nil
}

// usersOf are values with these users.
func usersOf(names ...string) object {
	users := object{}
	for _, name := range names {
		users[name] = object{}
	}
	return object{"users": users}
}
