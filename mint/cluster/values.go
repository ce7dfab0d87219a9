package cluster

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/mintlog/mintlog/mint/definition"
)

const (
	// RequestedAnnotation on a HelmRelease says for which state of its accounts the accounts role last asked Flux to look
	// at it. Whoever may write a HelmRelease may write it: lost, it costs one reconcile too many.
	RequestedAnnotation = "credentials.cozystack.io/requested"
	// WatchLabel on a Secret makes Flux, from 2.7 on, look at the HelmReleases that name it when it changes.
	WatchLabel = "reconcile.fluxcd.io/watch"
)

// restoreLabel stands on what Velero has brought back.
const restoreLabel = "velero.io/restore-name"

// A ValuesEntry is an entry of a HelmRelease's spec.valuesFrom that brings the stored form of one of its accounts.
type ValuesEntry struct {
	Secret     string // the account Secret's name
	TargetPath string // where in the values it goes, as Helm's --set has it
}

// Raw is the entry as it stands in spec.valuesFrom. It is not optional: without its Secret a release is not upgraded,
// and goes on as it was; it does not run without its password.
func (e ValuesEntry) Raw() map[string]any {
	return map[string]any{"kind": "Secret", "name": e.Secret, "valuesKey": corev1.BasicAuthPasswordKey, "targetPath": e.TargetPath}
}

// AsValuesEntry reads an entry of the spec.valuesFrom of a HelmRelease of this name. It returns false for one that
// brings no account's stored form: it is somebody else's.
func AsValuesEntry(raw any, release string) (ValuesEntry, bool) {
	fields, _ := raw.(map[string]any)
	name, _ := fields["name"].(string)
	of, _, ok := definition.SplitSecretName(name)
	if !ok || of != release || fields["kind"] != "Secret" || fields["valuesKey"] != corev1.BasicAuthPasswordKey {
		return ValuesEntry{}, false
	}
	path, _ := fields["targetPath"].(string)
	return ValuesEntry{Secret: name, TargetPath: path}, true
}

func readEntries(u *unstructured.Unstructured) []ValuesEntry {
	field, _, _ := unstructured.NestedFieldNoCopy(u.Object, "spec", "valuesFrom")
	list, _ := field.([]any)
	var entries []ValuesEntry
	for _, raw := range list {
		if entry, ok := AsValuesEntry(raw, u.GetName()); ok {
			entries = append(entries, entry)
		}
	}
	return entries
}

// readDeployed is when the newest release that Flux knows of was deployed, zero if it was not, or is not known.
func readDeployed(u *unstructured.Unstructured) time.Time {
	field, _, _ := unstructured.NestedFieldNoCopy(u.Object, "status", "history")
	list, _ := field.([]any)
	if len(list) == 0 {
		return time.Time{}
	}
	newest, _ := list[0].(map[string]any)
	text, _ := newest["lastDeployed"].(string)
	at, err := time.Parse(time.RFC3339, text)
	if err != nil || newest["status"] != "deployed" {
		return time.Time{}
	}
	return at
}

func readSuspended(u *unstructured.Unstructured) bool {
	suspended, _, _ := unstructured.NestedBool(u.Object, "spec", "suspend")
	return suspended
}
