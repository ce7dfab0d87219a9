package doctor

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/pager"

	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/store/history"
	"github.com/mintlog/mintlog/store/ledger"
)

// releaseFacts are one application.
type releaseFacts struct {
	types.NamespacedName
	uid     types.UID
	kind    string
	created time.Time
	leaving bool
}

func (d *Doctor) readReleases(ctx context.Context) ([]releaseFacts, error) {
	var all []releaseFacts
	err := d.eachMetadata(ctx, cluster.ReleaseResource, metav1.ListOptions{LabelSelector: cluster.KindLabel}, func(m *metav1.PartialObjectMetadata) {
		all = append(all, releaseFacts{
			NamespacedName: types.NamespacedName{Namespace: m.Namespace, Name: m.Name}, uid: m.UID, kind: m.Labels[cluster.KindLabel],
			created: m.CreationTimestamp.Time, leaving: m.DeletionTimestamp != nil,
		})
	})
	return all, err
}

// eachMetadata lists the metadata of objects in all namespaces, and nothing of what is in them.
func (d *Doctor) eachMetadata(ctx context.Context, resource schema.GroupVersionResource, o metav1.ListOptions, handle func(*metav1.PartialObjectMetadata)) error {
	return pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return d.metadata.Resource(resource).List(ctx, o)
	}).EachListItem(ctx, o, func(object runtime.Object) error {
		m, ok := object.(*metav1.PartialObjectMetadata)
		if !ok {
			return fmt.Errorf("kube-apiserver listed a %T", object)
		}
		handle(m)
		return nil
	})
}

// secretFacts are the metadata of one account Secret.
type secretFacts struct {
	namespace, name string
	release         string
	labelled        bool
	created         time.Time
	leaving         bool
	entries         []ledger.Entry  // newest first
	named           map[string]bool // ids of the entries whose authors the history names
	judged          map[int64]bool  // revisions about which the history has a finding
}

func (d *Doctor) readSecrets(ctx context.Context) ([]secretFacts, error) {
	var all []secretFacts
	err := d.eachMetadata(ctx, corev1.SchemeGroupVersion.WithResource("secrets"), metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeBasicAuth)}, func(m *metav1.PartialObjectMetadata) {
		release, _, ok := definition.SplitSecretName(m.Name)
		if !ok {
			return
		}
		f := secretFacts{
			namespace: m.Namespace, name: m.Name, release: release, labelled: m.Labels[cluster.AccountLabel] == "true",
			created: m.CreationTimestamp.Time, leaving: m.DeletionTimestamp != nil,
		}
		if book, err := ledger.Parse(m.Annotations[ledger.Annotation]); err == nil {
			f.entries = book.Entries
		}
		if written, err := history.Parse(m.Annotations[history.Annotation]); err == nil {
			f.named, f.judged = map[string]bool{}, map[int64]bool{}
			for _, e := range written.Entries {
				f.named[e.ID] = e.By != ""
			}
			for _, finding := range written.Findings {
				f.judged[finding.Revision] = true
			}
		}
		all = append(all, f)
	})
	return all, err
}

const (
	rightReleases = "list helmreleases.helm.toolkit.fluxcd.io in all namespaces"
	rightSecrets  = "list secrets in all namespaces"
	rightBindings = "list rolebindings in all namespaces"
	rightRoles    = "list roles in all namespaces"
)
