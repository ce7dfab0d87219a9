package credential

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/store/event"
)

// Options of the storage of credentials.
type Options struct {
	Cluster *cluster.Cluster
	// Client reads and writes account Secrets live, with the mint server's own identity.
	Client corev1client.CoreV1Interface
	// Webhooks asks the webhooks of definitions, at a mint or revoke alone.
	Webhooks definition.Webhooks
	// Random is a CSPRNG: passwords, salts and ids come from it.
	Random io.Reader
	Now    func() time.Time
	// Retention is how long evidence lasts: an older operation without it is Expired, not Unattributed.
	Retention time.Duration
	// Gaps explain operations without an event; nil: none is known of.
	Gaps Gaps
	// LastChange has a metric tell of each account when its password last changed.
	LastChange bool
	// Log tells of operations that failed on this side; nil: slog.Default().
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// New returns the storage of credentials and their operations, by resource path.
func New(o Options) map[string]rest.Storage {
	s := &Storage{cluster: o.Cluster, client: o.Client, viewer: viewer{now: o.Now, retention: o.Retention, gaps: o.Gaps}}
	m := newMinter(o)
	o.Registerer.MustRegister(accountsCollector{storage: s, lastChange: o.LastChange})
	return map[string]rest.Storage{
		event.Resource:             s,
		event.Resource + "/mint":   &mintStorage{minter: m},
		event.Resource + "/revoke": &revokeStorage{minter: m},
	}
}

// Storage is the read view of account Secrets: get, list and the table.
type Storage struct {
	cluster *cluster.Cluster
	client  corev1client.SecretsGetter
	viewer  viewer
}

var _ interface {
	rest.Storage
	rest.Scoper
	rest.Getter
	rest.Lister
	rest.SingularNameProvider
	rest.ShortNamesProvider
} = &Storage{}

// New returns an empty Credential.
func (s *Storage) New() runtime.Object { return &v1alpha1.Credential{} }

// NewList returns an empty CredentialList.
func (s *Storage) NewList() runtime.Object { return &v1alpha1.CredentialList{} }

// Destroy has nothing to close.
func (s *Storage) Destroy() {}

// NamespaceScoped is true: a credential stands in its application's namespace.
func (s *Storage) NamespaceScoped() bool { return true }

// GetSingularName is what kubectl calls one of them.
func (s *Storage) GetSingularName() string { return "credential" }

// ShortNames are what kubectl takes for "credentials".
func (s *Storage) ShortNames() []string { return []string{"cred", "creds"} }

// Get returns one credential from the cache. What is not there is looked up once more, live, to say why.
func (s *Storage) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	namespace := genericapirequest.NamespaceValue(ctx)
	secret, err := s.cluster.AccountSecret(ctx, namespace, secretName(name))
	if apierrors.IsNotFound(err) {
		return nil, notFound(name, s.whyNot(ctx, namespace, name))
	}
	if err != nil {
		return nil, err
	}
	c, err := s.view(secret)
	if err != nil {
		return nil, notFound(name, err.Error())
	}
	return c, nil
}

// lookTimeout bounds the live look at a Secret that is not in the cache.
const lookTimeout = 2 * time.Second

// whyNot says why a credential is not in the cache: nobody sees an account Secret without its label. Nothing is told of
// Secrets that are none of an account by their type. It asks kube-apiserver only for names that an account can have.
func (s *Storage) whyNot(ctx context.Context, namespace, name string) string {
	const none = "there is no such account"
	if !strings.Contains(name, ".") || len(validation.IsDNS1123Subdomain(secretName(name))) > 0 {
		return none
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	secret, err := s.client.Secrets(namespace).Get(ctx, secretName(name), metav1.GetOptions{})
	if err != nil || secret.Type != corev1.SecretTypeBasicAuth || secret.Labels[cluster.AccountLabel] == "true" {
		return none
	}
	return fmt.Sprintf("the Secret %s is there, but lacks the label %s=true, without which it is no account's", secret.Name, cluster.AccountLabel)
}

// view is the credential of an account Secret whose kind is served; an error says why it is not.
func (s *Storage) view(secret *corev1.Secret) (*v1alpha1.Credential, error) {
	definition, err := servedDefinition(s.cluster, secret.Labels[cluster.KindLabel])
	if err != nil {
		return nil, err
	}
	c := s.viewer.view(secret, definition.Block.Format.Name)
	if release, ok := s.cluster.Release(secret.Namespace, releaseOf(c.Name)); ok && c.Status.Password.At != nil {
		c.Status.Password.Waiting = waiting(release, definition.Block, secret.Name, c.Status.Password.At.Time)
	}
	return c, nil
}

// releaseOf is what stands before the last dot of a credential's name: an account's part has none.
func releaseOf(credential string) string {
	return credential[:max(strings.LastIndexByte(credential, '.'), 0)]
}

// List returns the credentials of one namespace from the cache, by name.
func (s *Storage) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	namespace := genericapirequest.NamespaceValue(ctx)
	if namespace == "" {
		return nil, apierrors.NewBadRequest("credentials are listed in one namespace at a time: name it with -n")
	}
	labelSelector, fieldSelector := labels.Everything(), fields.Everything()
	if options != nil && options.LabelSelector != nil {
		labelSelector = options.LabelSelector
	}
	if options != nil && options.FieldSelector != nil {
		fieldSelector = options.FieldSelector
	}
	secrets, err := s.cluster.AccountSecrets(ctx, namespace)
	if err != nil {
		return nil, err
	}
	list := &v1alpha1.CredentialList{Items: make([]v1alpha1.Credential, 0, len(secrets))}
	for _, secret := range secrets {
		c, err := s.view(secret)
		if err != nil {
			continue // its kind is not served; a get of it says why
		}
		if labelSelector.Matches(labels.Set(c.Labels)) && fieldSelector.Matches(selectableFields(c)) {
			list.Items = append(list.Items, *c)
		}
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.Credential) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func selectableFields(c *v1alpha1.Credential) fields.Set {
	return fields.Set{"metadata.name": c.Name, "metadata.namespace": c.Namespace}
}

// servedDefinition is the definition of a kind whose credentials are served.
func servedDefinition(c *cluster.Cluster, kind string) (*cluster.Definition, error) {
	definition, ok := c.Definition(kind)
	switch {
	case !ok:
		return nil, fmt.Errorf("no ApplicationDefinition defines the kind %q", kind)
	case definition.Err != nil:
		return nil, fmt.Errorf("the credentials of kind %q are not served: %w", kind, definition.Err)
	case !definition.HasBlock:
		return nil, fmt.Errorf("the ApplicationDefinition of kind %q has no spec.credentials", kind)
	}
	return definition, nil
}

func notFound(name, why string) error {
	err := apierrors.NewNotFound(v1alpha1.Resource(event.Resource), name)
	err.ErrStatus.Message += ": " + why
	return err
}
