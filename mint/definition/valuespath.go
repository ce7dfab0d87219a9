package definition

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// The placeholders of a valuesPath.
const (
	usernamePlaceholder = "{username}" // the account's login
	accountPlaceholder  = "{account}"  // its part in the names of Secret and credential
)

// maxTargetPath is what a HelmRelease's valuesFrom takes, in characters.
const maxTargetPath = 250

var valuesPathPattern = regexp.MustCompile(`^[-_/a-zA-Z0-9]+(\.[-_/a-zA-Z0-9]+)*$`)

// A ValuesPath is where in an application's values the stored form of an account's password goes: names joined by dots,
// with {username} or {account} where accounts differ. It is empty where the engine's operator reads the Secret itself.
type ValuesPath string

// TargetPath is the path for one account as a HelmRelease's valuesFrom takes it: a dot that is part of a username is
// escaped. It is an error if the path is longer than the 250 characters that are allowed there.
func (p ValuesPath) TargetPath(a Account) (string, error) {
	path := p.with(strings.ReplaceAll(a.Username, ".", `\.`), a.Segment)
	if len(path) > maxTargetPath {
		return "", fmt.Errorf("the account %q: its place in the values has %d characters, more than the %d that are allowed", a.Name, len(path), maxTargetPath)
	}
	return path, nil
}

func (p ValuesPath) with(username, account string) string {
	return strings.NewReplacer(usernamePlaceholder, username, accountPlaceholder, account).Replace(string(p))
}

// targetPath reads valuesPath. Without a placeholder all accounts would have one place: that is for a block of one.
func (p *parser) targetPath(path string, fields map[string]any, sources []Source) ValuesPath {
	v := ValuesPath(p.text(path, fields, "valuesPath", ""))
	path += ".valuesPath"
	switch {
	case v == "":
	case !valuesPathPattern.MatchString(v.with("u", "a")):
		p.refuse(path, "must be names of letters, digits, '-', '_' and '/', joined by dots, with %s or %s where accounts differ", usernamePlaceholder, accountPlaceholder)
	case v.with("u", "a") == string(v) && !single(sources):
		p.refuse(path, "must hold %s or %s: all accounts of an application would have one place in its values", usernamePlaceholder, accountPlaceholder)
	}
	return v
}

// single reports whether the sources yield one account at most that is not the platform's.
func single(sources []Source) bool {
	served := slices.DeleteFunc(slices.Clone(sources), func(s Source) bool { return s.Owner == PlatformOwner })
	return len(served) == 1 && served[0].Kind == Static
}
