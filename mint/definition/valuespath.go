package definition

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
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
// escaped. It is an error if the path is longer than the 250 characters that are allowed there, or the application's own
// values hold something at it or on the way to it: they would win over the stored form, or fail the release.
func (p ValuesPath) TargetPath(a Account, values map[string]any) (string, error) {
	parts := p.parts(a)
	var escaped []string
	for _, part := range parts {
		escaped = append(escaped, strings.ReplaceAll(part, ".", `\.`))
	}
	path := strings.Join(escaped, ".")
	if len(path) > maxTargetPath {
		return "", fmt.Errorf("the account %s: its place in the values has %d characters, more than the %d that are allowed", quoted(a.Name), len(path), maxTargetPath)
	}
	if own := ownValue(values, parts); own != "" {
		return "", fmt.Errorf("the account %s: spec.values of the HelmRelease %s, which stands in the way of %s", quoted(a.Name), own, path)
	}
	return path, nil
}

// parts are the names on the path, the placeholders filled in.
func (p ValuesPath) parts(a Account) []string {
	fill := strings.NewReplacer(usernamePlaceholder, a.Username, accountPlaceholder, a.Segment)
	parts := strings.Split(string(p), ".")
	for i, part := range parts {
		parts[i] = fill.Replace(part)
	}
	return parts
}

// ownValue says what values hold at a path or on the way to it, "" if nothing is there.
func ownValue(values map[string]any, path []string) string {
	for i, part := range path {
		value, ok := values[part]
		if !ok {
			return ""
		}
		at := strings.Join(path[:i+1], ".")
		if i == len(path)-1 {
			return "has a value of its own at " + at
		}
		if values, ok = value.(map[string]any); !ok {
			return fmt.Sprintf("has something other than an object at %s (it may be {})", at)
		}
	}
	return ""
}

// Literal reports whether a stored form comes into the values as the string that it is: Flux reads what it gives a target
// path as Helm reads the right side of --set, and takes quotes away before.
func Literal(stored string) bool {
	if strings.ContainsAny(stored, `,\`) || strings.HasPrefix(stored, "{") {
		return false
	}
	for _, quote := range []string{`"`, "'"} {
		if strings.HasPrefix(stored, quote) && strings.HasSuffix(stored, quote) {
			return false
		}
	}
	for _, word := range []string{"true", "false", "null", "0"} {
		if strings.EqualFold(stored, word) {
			return false
		}
	}
	_, err := strconv.ParseInt(stored, 10, 64)
	return err != nil || strings.HasPrefix(stored, "0")
}

// targetPath reads valuesPath. Without a placeholder all accounts would have one place: that is for a block of one. Two
// in one name could make one place of two accounts; one in the first name would let a tenant choose which of the chart's
// values a stored form replaces.
func (p *parser) targetPath(path string, fields map[string]any, sources []Source) ValuesPath {
	v := ValuesPath(p.text(path, fields, "valuesPath", ""))
	path += ".valuesPath"
	sample := strings.Join(v.parts(Account{Username: "u", Segment: "a"}), ".")
	counts := []int{}
	for part := range strings.SplitSeq(string(v), ".") {
		counts = append(counts, strings.Count(part, usernamePlaceholder)+strings.Count(part, accountPlaceholder))
	}
	switch {
	case v == "":
	case !valuesPathPattern.MatchString(sample):
		p.refuse(path, "must be names of letters, digits, '-', '_' and '/', joined by dots, with %s or %s where accounts differ", usernamePlaceholder, accountPlaceholder)
	case counts[0] > 0:
		p.refuse(path, "must begin with a name of the chart's own: an account's name would choose which of the values is replaced")
	case slices.Max(counts) > 1:
		p.refuse(path, "must hold one of %s and %s at most in each name: two accounts might have one place in the values", usernamePlaceholder, accountPlaceholder)
	case sample == string(v) && !single(sources):
		p.refuse(path, "must hold %s or %s: all accounts of an application would have one place in its values", usernamePlaceholder, accountPlaceholder)
	}
	return v
}

// single reports whether the sources yield one account at most that is not the platform's.
func single(sources []Source) bool {
	served := slices.DeleteFunc(slices.Clone(sources), func(s Source) bool { return s.Owner == PlatformOwner })
	return len(served) == 1 && served[0].Kind == Static
}
