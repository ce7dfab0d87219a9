package cluster

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mintlog/mintlog/mint/definition"
)

// The resources that say which applications there are.
var (
	ReleaseResource    = schema.GroupVersionResource{Group: "helm.toolkit.fluxcd.io", Version: "v2", Resource: "helmreleases"}
	DefinitionResource = schema.GroupVersionResource{Group: "cozystack.io", Version: "v1alpha1", Resource: "applicationdefinitions"}
)

// The labels by which Cozystack says which application an object belongs to.
const (
	KindLabel  = "apps.cozystack.io/application.kind"
	GroupLabel = "apps.cozystack.io/application.group"
	NameLabel  = "apps.cozystack.io/application.name"
)

// A Release is one application, as its HelmRelease has it.
type Release struct {
	Namespace         string
	Name              string // the HelmRelease's: prefix and application
	UID               types.UID
	ResourceVersion   string
	Kind              string // the application's, by label
	Application       string // the application's name, by label
	Values            map[string]any
	ValuesErr         error     // why the values cannot be read: then nothing is known of its accounts
	CreationTimestamp time.Time // whole seconds of the API server's clock
	Deleting          bool
	Restored          bool // it came out of a backup: it is older than its CreationTimestamp

	ValuesFrom []ValuesEntry // those of spec.valuesFrom that bring accounts' stored forms, in order
	Requested  string        // what stands under RequestedAnnotation
	Suspended  bool          // Flux leaves it alone
	Deployed   time.Time     // when what runs was deployed, zero if that is not known; whole seconds of Flux's clock
}

// same reports whether two states of an application say the same, but for what wakes nobody: what was asked of Flux, and
// how far it has come.
func (r *Release) same(other *Release) bool {
	return slices.Equal(r.ValuesFrom, other.ValuesFrom) && r.Declares(other)
}

// Declares reports whether two states of an application are of one and declare the same accounts.
func (r *Release) Declares(other *Release) bool {
	a, b := *r, *other
	sameTime := a.CreationTimestamp.Equal(b.CreationTimestamp)
	for _, one := range []*Release{&a, &b} {
		one.CreationTimestamp, one.Deployed = time.Time{}, time.Time{}
		one.ValuesFrom, one.Requested, one.Suspended, one.ResourceVersion = nil, "", false, ""
	}
	return sameTime && reflect.DeepEqual(a, b)
}

// Accounts are the application's accounts by its kind's block, as definition.Block.Accounts has them. Values that cannot
// be read are a source that fails.
func (r *Release) Accounts(ctx context.Context, block definition.Block, webhooks definition.Webhooks, recorded func(segment string) (username string, ok bool)) ([]definition.Account, []definition.Refused, error) {
	if r.ValuesErr != nil {
		return nil, nil, r.ValuesErr
	}
	return block.Accounts(ctx, definition.Application{
		Namespace: r.Namespace, Release: r.Name, Kind: r.Kind, Name: r.Application, Values: r.Values,
	}, webhooks, recorded)
}

// A Definition says which credentials the applications of a kind have.
type Definition struct {
	Name            string // of the ApplicationDefinition
	UID             types.UID
	ResourceVersion string
	Kind            string
	HasBlock        bool // there is a spec.credentials
	Block           definition.Block
	Err             error // why the kind is not served; nil if it is, or has no block
}

// A releaseObject is what the cache keeps of a HelmRelease.
type releaseObject struct {
	metav1.ObjectMeta
	release *Release
}

type definitionObject struct {
	metav1.ObjectMeta
	definition *Definition
}

// keptMeta is what a cache needs of an object's metadata.
func keptMeta(o *unstructured.Unstructured) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()}
}

// transformRelease reads a HelmRelease into what is kept of it.
func transformRelease(o any) (any, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return o, nil // seen before
	}
	return &releaseObject{ObjectMeta: keptMeta(u), release: ReadRelease(u)}, nil
}

// ReadRelease reads a HelmRelease. What is returned shares the values of u.
func ReadRelease(u *unstructured.Unstructured) *Release {
	values, err := readValues(u)
	labels := u.GetLabels()
	return &Release{
		Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion(),
		Kind: labels[KindLabel], Application: labels[NameLabel],
		Values: values, ValuesErr: err, CreationTimestamp: u.GetCreationTimestamp().Time,
		Deleting: u.GetDeletionTimestamp() != nil, Restored: labels[restoreLabel] != "",
		ValuesFrom: readEntries(u), Requested: u.GetAnnotations()[RequestedAnnotation],
		Suspended: readSuspended(u), Deployed: readDeployed(u),
	}
}

// readValues returns none where there are none, and an error where there is something else: that declares no account,
// but is no word that there is none.
func readValues(u *unstructured.Unstructured) (map[string]any, error) {
	value, _, err := unstructured.NestedFieldNoCopy(u.Object, "spec", "values")
	if err != nil || value == nil {
		return nil, err
	}
	values, ok := value.(map[string]any)
	if !ok {
		return nil, errors.New("spec.values of its HelmRelease is no object")
	}
	return values, nil
}

// transformDefinition reads an ApplicationDefinition into what is kept of it.
func transformDefinition(o any) (any, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return o, nil // seen before
	}
	return &definitionObject{ObjectMeta: keptMeta(u), definition: ReadDefinition(u)}, nil
}

// ReadDefinition is what an ApplicationDefinition says. It keeps of a block that cannot be read the reason why its kind is not served.
func ReadDefinition(u *unstructured.Unstructured) *Definition {
	d := &Definition{Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion()}
	d.Kind, _, _ = unstructured.NestedString(u.Object, "spec", "application", "kind")
	if block, found, _ := unstructured.NestedFieldNoCopy(u.Object, "spec", "credentials"); found && block != nil {
		d.HasBlock = true
		d.Block, d.Err = definition.Parse(block)
	}
	return d
}

// same reports whether two states of a definition say the same.
func (o *definitionObject) same(other *definitionObject) bool {
	a, b := *o.definition, *other.definition
	if fmt.Sprint(a.Err) != fmt.Sprint(b.Err) {
		return false
	}
	a.Err, b.Err = nil, nil
	a.UID, b.UID, a.ResourceVersion, b.ResourceVersion = "", "", "", ""
	return reflect.DeepEqual(a, b)
}

// ambiguous is what several definitions of one kind come to.
func ambiguous(kind string, objects []any) *Definition {
	d := &Definition{Kind: kind}
	var names []string
	for _, o := range objects {
		names = append(names, definitionOf(o).Name)
		d.HasBlock = d.HasBlock || definitionOf(o).HasBlock
	}
	slices.Sort(names)
	d.Name = names[0]
	d.Err = fmt.Errorf("several ApplicationDefinitions are of this kind: %s", strings.Join(names, ", "))
	return d
}

// reasonOf says in words that quote no object why a watch fails, and whether it does: one that merely ended does not.
func reasonOf(err error) (string, bool) {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.IsTooManyRequests(err) {
		return "", false
	}
	if apierrors.IsNotFound(err) {
		return "the resource is not served: its CRD is not there yet", true
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Reason != "" {
		return string(status.Status().Reason), true
	}
	if errors.As(err, &status) {
		return fmt.Sprintf("status %d", status.Status().Code), true
	}
	return "the API server cannot be reached, or its answer not be read", true
}
