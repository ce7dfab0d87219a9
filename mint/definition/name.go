package definition

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	maxSegment  = validation.DNS1123LabelMaxLength
	maxUsername = 253
	// secretSuffix ends the name of every account Secret.
	secretSuffix = ".account"
)

var usernamePattern = regexp.MustCompile(`^[-._a-zA-Z0-9]+$`)

// Segment is an account's part in the name of its Secret: the name in lower case, every character outside [a-z0-9-]
// replaced by `-`, leading and trailing `-` taken away. A chart computes the same with the library chart
// deploy/helm/mintlog-credentials. It is an error if nothing is left or more than 63 characters are.
func Segment(name string) (string, error) {
	replaced := strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, strings.ToLower(name))
	segment := strings.Trim(replaced, "-")
	if segment == "" {
		return "", errors.New("its name has no letter and no digit, so nothing is left to name a Secret with")
	}
	if len(segment) > maxSegment {
		return "", fmt.Errorf("its name makes a part of %d characters in its Secret's name, more than the %d that are allowed", len(segment), maxSegment)
	}
	return segment, nil
}

// SecretName is the name of the account Secret of a release's account, <release>.<segment>.account. It is an error if
// that is no name of a Secret: over 253 characters, or no DNS name with parts of at most 63.
func SecretName(release, segment string) (string, error) {
	name := release + "." + segment + secretSuffix
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return "", fmt.Errorf("its Secret would be named with %d characters, and %s", len(name), problems[0])
	}
	for part := range strings.SplitSeq(name, ".") {
		if len(part) > maxSegment {
			return "", fmt.Errorf("a part of its Secret's name has %d characters, more than the %d that are allowed", len(part), maxSegment)
		}
	}
	return name, nil
}

// SplitSecretName is the release and the segment that an account Secret's name is made of.
func SplitSecretName(name string) (release, segment string, ok bool) {
	credential, ok := strings.CutSuffix(name, secretSuffix)
	dot := strings.LastIndexByte(credential, '.')
	if !ok || dot <= 0 || dot == len(credential)-1 {
		return "", "", false
	}
	return credential[:dot], credential[dot+1:], true
}

func checkUsername(username string) error {
	switch {
	case username == "":
		return errors.New("its username is empty")
	case len(username) > maxUsername:
		return fmt.Errorf("its username has %d characters, more than the %d that are allowed", len(username), maxUsername)
	case !usernamePattern.MatchString(username):
		return errors.New("its username has characters other than letters, digits, '-', '.' and '_'")
	case username == "." || strings.HasPrefix(username, ".."):
		return errors.New("its username is '.' or begins with '..'")
	}
	return nil
}
