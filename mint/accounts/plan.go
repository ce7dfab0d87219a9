package accounts

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mintlog/mintlog/mint/account"
	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/store/ledger"
)

// A situation is all that decides what is to be done for one application.
type situation struct {
	release *cluster.Release
	block   definition.Block
	sight   time.Time        // when the kind's block was first seen, in whole seconds of the API server's clock
	record  record           // what was recorded of the application
	secrets []*corev1.Secret // the account Secrets of its namespace
}

// A record is what is remembered of an application, so that nothing that ran before is ever seeded.
type record struct {
	sight time.Time // the first sight of the kind's block under which it was recorded; zero: never recorded
	found []string  // the logins that ran before that, or whose password is kept elsewhere; sorted

	values valuesRecord
}

// A plan is what is to be done.
type plan struct {
	unknown  bool // a source failed: nothing is known of the accounts, and nothing is done
	record   record
	accounts []definition.Account // all that are served
	seed     []definition.Account // those that get a Secret
	repair   []*corev1.Secret     // whose labels or owner have been changed
	remove   []*corev1.Secret     // whose account is no longer declared
	waiting  bool                 // for a Secret of an earlier application to go
	again    time.Time            // when to look again, if it is known
	problems []problem
}

// tie is how long after the first sight of its kind's block an application still counts as older: both times are whole
// seconds.
const tie = time.Second

// decide is the rule by which accounts get and lose their Secrets. It asks nobody but the sources that are webhooks.
func decide(ctx context.Context, s situation, webhooks definition.Webhooks) plan {
	secrets := s.ofRelease()
	accounts, refused, err := s.release.Accounts(ctx, s.block, webhooks, recordedIn(secrets))
	if err != nil {
		return plan{unknown: true, problems: []problem{{reasonSourceFailed,
			fmt.Sprintf("which accounts there are is not known, and nothing is created or removed: %v", err)}}}
	}
	p := plan{accounts: accounts, record: s.newRecord(accounts, refused)}
	for _, r := range refused {
		if !r.Platform {
			p.problems = append(p.problems, problem{reasonRefused, r.Reason})
		}
	}
	for _, a := range accounts {
		p.place(s, a, secrets[a.Segment])
	}
	declared := declarationsOf(accounts, refused)
	for _, segment := range slices.Sorted(maps.Keys(secrets)) {
		secret := secrets[segment]
		if account.Owned(secret, s.release) && secret.DeletionTimestamp == nil && !declared.standBehind(segment, usernameOf(secret)) {
			p.remove = append(p.remove, secret)
		}
	}
	return p
}

// place decides about one account that is served, and the Secret of its name.
func (p *plan) place(s situation, a definition.Account, secret *corev1.Secret) {
	switch {
	case secret == nil:
		if !slices.Contains(p.record.found, a.Username) {
			p.seed = append(p.seed, a)
		}
	case secret.DeletionTimestamp != nil || ofEarlierApplication(secret, s.release):
		p.waiting = true
	case !ours(secret, s.release):
		p.problems = append(p.problems, foreignSecret(secret.Name))
	case drifted(secret, s.release, s.block):
		p.repair = append(p.repair, secret)
	}
}

// spare takes from the accounts to be seeded those that have a password elsewhere, and remembers that they had.
func (p *plan) spare(held func(name string) bool) {
	var seed []definition.Account
	for _, a := range p.seed {
		if held(a.Name) || held(a.Username) {
			p.record.found = append(p.record.found, a.Username)
			continue
		}
		seed = append(seed, a)
	}
	p.seed = seed
	slices.Sort(p.record.found)
}

// secretNames are the names of all Secrets that the served accounts have or may get by a mint, sorted.
func (p *plan) secretNames() []string {
	var names []string
	for _, a := range p.accounts {
		names = append(names, a.SecretName)
	}
	slices.Sort(names)
	return names
}

// newRecord is the application's record under the present first sight of its kind's block. An application that is older
// than that, or came out of a backup, and was not recorded since, has all its logins found: whoever uses them has a
// password already, whatever name the account is given later.
func (s situation) newRecord(accounts []definition.Account, refused []definition.Refused) record {
	if s.record.sight.Equal(s.sight) {
		return s.record
	}
	found := slices.Clone(s.record.found)
	if s.isOlder() {
		for _, a := range accounts {
			found = append(found, a.Username)
		}
		for _, r := range refused {
			if !r.Platform {
				found = append(found, r.Username)
			}
		}
	}
	slices.Sort(found)
	return record{sight: s.sight, found: slices.Compact(found), values: s.record.values}
}

// isOlder reports whether the application ran before its kind had a block, or may have.
func (s situation) isOlder() bool {
	return s.release.Restored || !s.release.CreationTimestamp.After(s.sight.Add(tie))
}

// ofRelease are the account Secrets of the application's name by their account's part.
func (s situation) ofRelease() map[string]*corev1.Secret {
	secrets := map[string]*corev1.Secret{}
	for _, secret := range s.secrets {
		if release, segment, ok := definition.SplitSecretName(secret.Name); ok && release == s.release.Name {
			secrets[segment] = secret
		}
	}
	return secrets
}

func recordedIn(secrets map[string]*corev1.Secret) func(string) (string, bool) {
	return func(segment string) (string, bool) {
		secret, ok := secrets[segment]
		if !ok {
			return "", false
		}
		return usernameOf(secret), true
	}
}

func usernameOf(secret *corev1.Secret) string {
	return string(secret.Data[corev1.BasicAuthUsernameKey])
}

// declarations are what stands behind account Secrets, by the account's part in their names.
type declarations map[string]*usernames

type usernames struct {
	all      map[string]bool
	platform bool // the name is the platform's own
}

func declarationsOf(accounts []definition.Account, refused []definition.Refused) declarations {
	d := declarations{}
	add := func(a definition.Account, platform bool) {
		of := d[a.Segment]
		if of == nil {
			of = &usernames{all: map[string]bool{}}
			d[a.Segment] = of
		}
		of.all[a.Username], of.platform = true, of.platform || platform
	}
	for _, a := range accounts {
		add(a, false)
	}
	for _, r := range refused {
		add(r.Account, r.Platform)
	}
	return d
}

// standBehind reports whether some declaration stands behind a Secret. A Secret with a username that does not make its
// name has been tampered with, and stays as long as anybody declares its name; one of the platform's names stays too.
func (d declarations) standBehind(segment, username string) bool {
	of := d[segment]
	if of == nil || of.platform || of.all[username] {
		return of != nil
	}
	own, err := definition.Segment(username)
	return err != nil || own != segment
}

// ofEarlierApplication reports whether an account Secret or a Role belongs to an application of this name that is no more.
func ofEarlierApplication(object metav1.Object, release *cluster.Release) bool {
	if account.Owned(object, release) {
		return false
	}
	want := account.Owner(release)
	for _, owner := range object.GetOwnerReferences() {
		if owner.Kind == want.Kind && owner.Name == want.Name {
			return true
		}
	}
	return false
}

// ours reports whether an account Secret is this application's: owned by it, or owned by nobody and either come after it
// or as mintlog wrote it. The last is what a restore brings back that brought the HelmRelease back later.
func ours(secret *corev1.Secret, release *cluster.Release) bool {
	if secret.Type != corev1.SecretTypeBasicAuth {
		return false
	}
	return account.Owned(secret, release) ||
		len(secret.OwnerReferences) == 0 && (!secret.CreationTimestamp.Time.Before(release.CreationTimestamp) || intact(secret))
}

// intact reports whether a Secret holds what the newest entry of its ledger wrote.
func intact(secret *corev1.Secret) bool {
	book, err := ledger.Parse(secret.Annotations[ledger.Annotation])
	if err != nil {
		return false
	}
	newest := book.Newest()
	return newest.Stored == book.StoredDigest(newest.AuditID, secret.Data[corev1.BasicAuthPasswordKey])
}

// drifted reports whether labels or owner are other than they should be.
func drifted(secret *corev1.Secret, release *cluster.Release, block definition.Block) bool {
	return len(driftedLabels(secret, release, block)) > 0 || !account.Owned(secret, release)
}

func driftedLabels(secret *corev1.Secret, release *cluster.Release, block definition.Block) map[string]string {
	labels := account.Labels(release, block)
	maps.DeleteFunc(labels, func(name, value string) bool {
		is, ok := secret.Labels[name]
		return ok && is == value
	})
	return labels
}
