package definition

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
)

// An Account is one login of an application that the block declares.
type Account struct {
	Name       string // as declared
	Username   string // the login, as declared
	Segment    string // its part in the names of Secret and credential
	SecretName string // <release>.<segment>.account
}

// A Refused account is declared and yet not served.
type Refused struct {
	Account
	Platform bool   // it is the platform's own and left alone: nothing is wrong
	Reason   string // in words for the tenant; it names the account
}

// Accounts are the accounts of one application: the union of the block's sources, sorted by name. The sources that are
// webhooks are asked through webhooks, until ctx is done: this is nothing for a read.
//
// recorded tells which username the existing account Secret of a segment holds. Where two names meet in one segment,
// that username keeps it and the others are refused; if it is nobody's, all are. The same goes for two names with one
// username, of which only the one with a Secret is served. The platform's own accounts go before all others.
//
// An error means that a source failed: it says nothing about which accounts there are, so nothing may be removed.
func (b Block) Accounts(ctx context.Context, app Application, webhooks Webhooks, recorded func(segment string) (username string, ok bool)) ([]Account, []Refused, error) {
	declared, err := b.declared(ctx, app, webhooks)
	if err != nil {
		return nil, nil, err
	}
	var accounts []Account
	var refused []Refused
	rivals := rivalsAmong(declared)
	for _, d := range declared {
		if reason := d.refusal(rivals, recorded); reason != "" {
			refused = append(refused, Refused{Account: d.Account, Platform: d.platform, Reason: fmt.Sprintf("the account %s: %s", quoted(d.Name), reason)})
			continue
		}
		accounts = append(accounts, d.Account)
	}
	return accounts, refused, nil
}

// A declaration is one account that some source yields.
type declaration struct {
	Account
	platform bool
	problem  string // why it cannot be served, whatever else is declared
}

// declared are the declarations of all sources, sorted by name. What has one username and one Secret name is one
// account, by whatever name it is declared; if one of those is the platform's, so it is.
func (b Block) declared(ctx context.Context, app Application, webhooks Webhooks) ([]declaration, error) {
	type identity struct{ username, segment, unnamed string }
	unique := map[identity]declaration{}
	all, err := b.askAll(ctx, app, webhooks)
	if err != nil {
		return nil, err
	}
	for _, d := range all {
		d.resolve(app.Release)
		id := identity{username: d.Username, segment: d.Segment}
		if d.Segment == "" {
			id.unnamed = d.Name
		}
		if earlier, again := unique[id]; again {
			d.Name, d.platform = min(d.Name, earlier.Name), d.platform || earlier.platform
		}
		unique[id] = d
	}
	return slices.SortedFunc(maps.Values(unique), func(a, b declaration) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Username, b.Username))
	}), nil
}

// askAll asks all sources at once: several webhooks take no longer than the slowest. An error names every one that
// failed, in their order.
func (b Block) askAll(ctx context.Context, app Application, webhooks Webhooks) ([]declaration, error) {
	found, problems := make([][]declaration, len(b.Sources)), make([]error, len(b.Sources))
	var asking sync.WaitGroup
	for i := range b.Sources {
		asking.Go(func() {
			var err error
			if found[i], err = b.accounts(ctx, i, app, webhooks); err != nil {
				problems[i] = fmt.Errorf("%s.accounts[%d]: %w", root, i, err)
			}
		})
	}
	asking.Wait()
	if problems = slices.DeleteFunc(problems, func(p error) bool { return p == nil }); len(problems) > 0 {
		return nil, failures(problems)
	}
	all := slices.Concat(found...)
	if len(all) > maxAccounts {
		return nil, fmt.Errorf("%s.accounts: %w", root, tooMany(len(all)))
	}
	return all, nil
}

// maxAccounts is how many accounts the sources of a block may yield for one application: tenants choose its values.
const maxAccounts = 4096

func tooMany(count int) error {
	return fmt.Errorf("%d accounts are declared, more than the %d that are allowed", count, maxAccounts)
}

// failures are errors in one line.
type failures []error

func (f failures) Error() string {
	var all []string
	for _, err := range f {
		all = append(all, err.Error())
	}
	return strings.Join(all, "; ")
}

// Unwrap are the errors.
func (f failures) Unwrap() []error { return f }

// resolve names the account's Secret, or notes why it can have none.
func (d *declaration) resolve(release string) {
	segment, err := Segment(d.Name)
	if err == nil {
		err = checkUsername(d.Username)
	}
	if err == nil {
		d.SecretName, err = SecretName(release, segment)
	}
	if d.Segment = segment; err != nil {
		d.problem = err.Error()
	}
}

// rivals are the declarations by what no two of them may share. One that cannot be served anyway is nobody's rival.
type rivals struct{ bySegment, byUsername map[string][]declaration }

func rivalsAmong(all []declaration) rivals {
	r := rivals{bySegment: map[string][]declaration{}, byUsername: map[string][]declaration{}}
	for _, d := range all {
		if d.problem != "" && !d.platform {
			continue
		}
		r.bySegment[d.Segment] = append(r.bySegment[d.Segment], d)
		r.byUsername[d.Username] = append(r.byUsername[d.Username], d)
	}
	return r
}

// of are a declaration's rivals, itself among them. There may be thousands, and each is asked for its own: nothing is
// copied.
func (r rivals) of(d declaration) iter.Seq[declaration] {
	return func(yield func(declaration) bool) {
		for _, some := range [][]declaration{r.bySegment[d.Segment], r.byUsername[d.Username]} {
			for _, other := range some {
				if !yield(other) {
					return
				}
			}
		}
	}
}

// refusal is why a declaration is not served beside its rivals, "" if it is.
func (d declaration) refusal(rivals rivals, recorded func(string) (string, bool)) string {
	if d.platform {
		return "it is the platform's own"
	}
	if d.problem != "" {
		return d.problem
	}
	holder, held := recorded(d.Segment)
	if held && holder != d.Username {
		return "the Secret of its name holds another username, which keeps it"
	}
	for other := range rivals.of(d) {
		sameSegment, sameUsername := other.Segment == d.Segment, other.Username == d.Username
		switch {
		case other == d || !sameSegment && !sameUsername:
		case other.platform:
			return "it meets the platform's own account " + quoted(other.Name)
		case sameSegment && !held && other.Name == d.Name:
			return fmt.Sprintf("it is declared with two usernames, %s and %s", quoted(d.Username), quoted(other.Username))
		case sameSegment && !held:
			return fmt.Sprintf("it meets the account %s in one Secret name", quoted(other.Name))
		case sameUsername && !(held && !recordedAs(recorded, other)):
			return "it has the username of the account " + quoted(other.Name)
		}
	}
	return ""
}

// recordedAs reports whether the Secret of the declaration's segment holds its username.
func recordedAs(recorded func(string) (string, bool), d declaration) bool {
	username, ok := recorded(d.Segment)
	return ok && username == d.Username
}

// quoted is a name in quotes; what is far too long to be one is cut.
func quoted(name string) string {
	const shown = 64
	if len(name) > shown {
		return fmt.Sprintf("%q…", name[:shown])
	}
	return fmt.Sprintf("%q", name)
}
