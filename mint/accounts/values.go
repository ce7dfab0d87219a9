package accounts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/store/ledger"
)

const (
	// requestAnnotation makes Flux look at a HelmRelease whenever its value changes. It then compares the values with
	// those it last deployed, so that a new stored form is upgraded to without its being forced.
	requestAnnotation = "reconcile.fluxcd.io/requestedAt"
	// fieldManager is whose the field spec.valuesFrom is after a write of ours.
	fieldManager = "mintlog-accounts"

	// Entries that another takes away are put back putBacks times within putBackWindow; each costs an upgrade. Cozystack
	// takes them away with every change of an application, so it is more than those there may be in an hour.
	putBacks      = 12
	putBackWindow = time.Hour
	// deliveryAttempts is how often a write is tried again at once when only the status has changed meanwhile.
	deliveryAttempts = 5
	// namedInEvent is how many accounts a message names.
	namedInEvent = 5
)

// A valuesRecord is what is remembered of an application's entries in spec.valuesFrom, so that neither a restart nor a
// HelmRelease written anew makes a fight of it.
type valuesRecord struct {
	Put  []string    `json:"put,omitempty"`  // the account Secrets that had an entry, or were about to get it; sorted
	Back []time.Time `json:"back,omitempty"` // when entries that had been taken away were put back; oldest first
}

func (r valuesRecord) isZero() bool { return len(r.Put) == 0 && len(r.Back) == 0 }

// wantedEntries are the entries that spec.valuesFrom should hold beside others': one for each account that is served and
// has a Secret or is about to get it. What is there of a declared account that is not served stays.
func (s situation) wantedEntries(p plan) ([]cluster.ValuesEntry, []problem) {
	if p.unknown {
		return s.release.ValuesFrom, nil
	}
	if s.block.ValuesPath == "" {
		return nil, nil
	}
	secrets := s.ofRelease()
	var problems []problem
	want := map[string]cluster.ValuesEntry{}
	for _, entry := range s.release.ValuesFrom {
		_, segment, _ := definition.SplitSecretName(entry.Secret)
		if secret := secrets[segment]; secret != nil && ours(secret, s.release) && !slices.Contains(p.remove, secret) {
			want[entry.Secret] = entry
		}
	}
	for _, a := range p.accounts {
		secret := secrets[a.Segment]
		delete(want, a.SecretName)
		entry, problem := s.entryOf(a, secret)
		switch {
		case problem != "":
			problems = append(problems, valuesProblem(problem))
		case holdsPassword(secret, s.release) || slices.Contains(p.seed, a):
			want[a.SecretName] = entry
		}
	}
	return slices.SortedFunc(maps.Values(want), func(a, b cluster.ValuesEntry) int { return strings.Compare(a.Secret, b.Secret) }), problems
}

// holdsPassword reports whether a Secret is the application's and Flux can read a password in it: one that lacks the key
// would fail the whole release.
func holdsPassword(secret *corev1.Secret, release *cluster.Release) bool {
	return secret != nil && secret.DeletionTimestamp == nil && ours(secret, release) && len(secret.Data[corev1.BasicAuthPasswordKey]) > 0
}

// entryOf is the entry of an account, or why it can have none. Its Secret may not be there yet.
func (s situation) entryOf(a definition.Account, secret *corev1.Secret) (entry cluster.ValuesEntry, problem string) {
	path, err := s.block.ValuesPath.TargetPath(a, s.release.Values)
	if err != nil {
		return cluster.ValuesEntry{}, err.Error()
	}
	if secret != nil && !definition.Literal(string(secret.Data[corev1.BasicAuthPasswordKey])) {
		return cluster.ValuesEntry{}, fmt.Sprintf("the account %q: Flux would read its stored form as something else than a string", a.Name)
	}
	return cluster.ValuesEntry{Secret: a.SecretName, TargetPath: path}, ""
}

// A settlement is what comes of the entries that are there and those that are wanted.
type settlement struct {
	entries  []cluster.ValuesEntry // as they are to be; what was there keeps its place
	record   valuesRecord
	putBack  bool
	withheld []string  // the Secrets whose entries were taken away too often
	until    time.Time // when those may be put back
}

// settle keeps to the number of times that entries are put back.
func settle(is, want []cluster.ValuesEntry, record valuesRecord, now time.Time) settlement {
	var missing []string
	for _, entry := range want {
		if !slices.ContainsFunc(is, sameSecret(entry)) && slices.Contains(record.Put, entry.Secret) {
			missing = append(missing, entry.Secret)
		}
	}
	s := settlement{record: valuesRecord{Back: record.Back}}
	for _, entry := range want {
		s.record.Put = append(s.record.Put, entry.Secret)
	}
	if len(missing) > 0 {
		recent := slices.DeleteFunc(slices.Clone(record.Back), func(at time.Time) bool { return now.Sub(at) >= putBackWindow })
		if len(recent) < putBacks {
			s.putBack, s.record.Back = true, append(recent, now.UTC().Truncate(time.Second))
		} else {
			s.withheld, s.until = missing, recent[0].Add(putBackWindow)
		}
	}
	s.entries = arrange(is, slices.DeleteFunc(slices.Clone(want), func(e cluster.ValuesEntry) bool { return slices.Contains(s.withheld, e.Secret) }))
	return s
}

// arrange is what is wanted in the order of what is there, with what is new behind it.
func arrange(is, want []cluster.ValuesEntry) []cluster.ValuesEntry {
	var entries []cluster.ValuesEntry
	add := func(e cluster.ValuesEntry) {
		if !slices.ContainsFunc(entries, sameSecret(e)) {
			entries = append(entries, e)
		}
	}
	for _, there := range is {
		if i := slices.IndexFunc(want, sameSecret(there)); i >= 0 {
			add(want[i])
		}
	}
	for _, entry := range want {
		add(entry)
	}
	return entries
}

func sameSecret(as cluster.ValuesEntry) func(cluster.ValuesEntry) bool {
	return func(e cluster.ValuesEntry) bool { return e.Secret == as.Secret }
}

// stateOf stands for the passwords behind entries: it is another after each operation on one of them.
func stateOf(entries []cluster.ValuesEntry, secrets map[string]*corev1.Secret) string {
	if len(entries) == 0 {
		return ""
	}
	digest := sha256.New()
	for _, entry := range slices.SortedFunc(slices.Values(entries), func(a, b cluster.ValuesEntry) int { return strings.Compare(a.Secret, b.Secret) }) {
		_, segment, _ := definition.SplitSecretName(entry.Secret)
		id := ""
		if secret := secrets[segment]; secret != nil {
			if book, err := ledger.Parse(secret.Annotations[ledger.Annotation]); err == nil {
				id = book.Newest().ID
			}
		}
		_, _ = io.WriteString(digest, entry.Secret+" "+id+"\n")
	}
	return hex.EncodeToString(digest.Sum(nil)[:16])
}

// A delivery is what is to be written to a HelmRelease so that its accounts' stored forms reach the application.
type delivery struct {
	live *unstructured.Unstructured // nil if nothing is to be written
	settlement
}

// planDelivery reads the HelmRelease itself if the cache says that something is to be written. What there is to remember
// goes into the plan's record, which is written before.
func (a *Accounts) planDelivery(ctx context.Context, s situation, p *plan, g grant) (delivery, error) {
	if s.block.ValuesPath == "" && len(s.release.ValuesFrom) == 0 {
		p.record.values = valuesRecord{}
		return delivery{}, nil
	}
	want, problems := s.wantedEntries(*p)
	p.problems = append(p.problems, problems...)
	if added := func(e cluster.ValuesEntry) bool { return !slices.ContainsFunc(s.release.ValuesFrom, sameSecret(e)) }; g.foreign && slices.ContainsFunc(want, added) {
		want = slices.DeleteFunc(slices.Clone(want), added)
		p.problems = append(p.problems, valuesProblem("what is put there could not be remembered in the Role "+grantName(s.release)))
	}
	d := delivery{settlement: settle(s.release.ValuesFrom, want, s.record.values, a.Now())}
	if slices.Equal(d.entries, s.release.ValuesFrom) && len(d.withheld) == 0 && stateOf(d.entries, s.ofRelease()) == requestedOf(s.release, d.entries) {
		p.record.values = d.record
		return d, nil
	}
	live, err := a.Cluster.HelmReleases(s.release.Namespace).Get(ctx, s.release.Name, metav1.GetOptions{})
	if err != nil {
		return delivery{}, fmt.Errorf("read the HelmRelease: %w", quiet(err))
	}
	release := cluster.ReadRelease(live)
	if !release.Declares(s.release) {
		return delivery{}, fmt.Errorf("the HelmRelease has just changed: %w", errNotYet)
	}
	if p.unknown {
		want = release.ValuesFrom
	}
	d = delivery{live: live, settlement: settle(release.ValuesFrom, want, s.record.values, a.Now())}
	p.record.values, p.again = d.record, d.until
	if len(d.withheld) > 0 {
		p.problems = append(p.problems, takenAway(d.withheld, managersOf(live)))
	}
	return d, nil
}

// requestedOf is what was last asked of Flux, "" if nothing need be.
func requestedOf(release *cluster.Release, entries []cluster.ValuesEntry) string {
	if len(entries) == 0 {
		return ""
	}
	return release.Requested
}

// deliver writes the entries and asks Flux once for each state of the passwords behind them, in one write that is void if
// the HelmRelease has changed since it was read: the list is replaced as a whole, and others have entries in it. Flux
// writes the status of the same object all the time, which changes nothing of what was decided.
func (a *Accounts) deliver(ctx context.Context, s situation, p *plan, d delivery) error {
	if d.live == nil {
		return nil
	}
	planned := cluster.ReadRelease(d.live)
	for range deliveryAttempts {
		patch, err := s.deliveryPatch(d, a.Now())
		if err != nil || patch == nil {
			return err
		}
		client := a.Cluster.HelmReleases(s.release.Namespace)
		_, err = client.Patch(ctx, s.release.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
		if err == nil {
			a.delivered(s, d)
			return nil
		}
		if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
			p.problems = append(p.problems, valuesProblem("the API server does not let mintlog write spec.valuesFrom and annotations of the HelmRelease: "+quiet(err).Error()))
		}
		if apierrors.IsNotFound(err) {
			break
		}
		if !apierrors.IsConflict(err) {
			return fmt.Errorf("write spec.valuesFrom of the HelmRelease: %w", quiet(err))
		}
		if d.live, err = client.Get(ctx, s.release.Name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("read the HelmRelease: %w", quiet(err))
		}
		if release := cluster.ReadRelease(d.live); !release.Declares(planned) || !slices.Equal(release.ValuesFrom, planned.ValuesFrom) {
			break
		}
	}
	return fmt.Errorf("the HelmRelease has just changed: %w", errNotYet)
}

func (a *Accounts) delivered(s situation, d delivery) {
	if !d.putBack {
		a.metrics.wrote("helmrelease", "write")
		return
	}
	a.metrics.wrote("helmrelease", "put back")
	a.Log.Info("entries in spec.valuesFrom were taken away; they are put back",
		"namespace", s.release.Namespace, "release", s.release.Name, "by", managersOf(d.live))
}

// deliveryPatch is the JSON merge patch of a delivery, nil if there is nothing to write.
func (s situation) deliveryPatch(d delivery, now time.Time) ([]byte, error) {
	release := cluster.ReadRelease(d.live)
	secrets := s.ofRelease()
	entries := slices.DeleteFunc(slices.Clone(d.entries), func(e cluster.ValuesEntry) bool { // what was not seeded after all
		_, segment, _ := definition.SplitSecretName(e.Secret)
		return !holdsPassword(secrets[segment], s.release) && !slices.ContainsFunc(release.ValuesFrom, sameSecret(e))
	})
	patch := map[string]any{}
	if !slices.Equal(entries, release.ValuesFrom) {
		patch["spec"] = map[string]any{"valuesFrom": replaceEntries(d.live, entries)}
	}
	metadata := map[string]any{"uid": d.live.GetUID(), "resourceVersion": d.live.GetResourceVersion()}
	if state := stateOf(entries, secrets); state != requestedOf(release, entries) {
		metadata["annotations"] = map[string]any{cluster.RequestedAnnotation: state, requestAnnotation: now.UTC().Format(time.RFC3339Nano)}
	}
	if patch["spec"] == nil && metadata["annotations"] == nil {
		return nil, nil
	}
	patch["metadata"] = metadata
	return json.Marshal(patch)
}

// replaceEntries is spec.valuesFrom with these entries of ours. Others' stay as they are, where they are; what is new
// goes to the end.
func replaceEntries(u *unstructured.Unstructured, entries []cluster.ValuesEntry) []any {
	field, _, _ := unstructured.NestedFieldNoCopy(u.Object, "spec", "valuesFrom")
	is, _ := field.([]any)
	next := []any{}
	placed := map[string]bool{}
	for _, raw := range is {
		there, isOurs := cluster.AsValuesEntry(raw, u.GetName())
		if !isOurs {
			next = append(next, raw)
			continue
		}
		if i := slices.IndexFunc(entries, sameSecret(there)); i >= 0 && !placed[there.Secret] {
			next = append(next, entries[i].Raw())
			placed[there.Secret] = true
		}
	}
	for _, entry := range entries {
		if !placed[entry.Secret] {
			next = append(next, entry.Raw())
		}
	}
	return next
}

// managersOf are who else the API server says spec.valuesFrom was written by.
func managersOf(u *unstructured.Unstructured) []string {
	var names []string
	for _, m := range u.GetManagedFields() {
		var fields struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if m.Manager == fieldManager || m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		if _, owns := fields.Spec["f:valuesFrom"]; owns {
			names = append(names, m.Manager)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
