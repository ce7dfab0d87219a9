package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mintlog/mintlog/cmd/printable"
	"github.com/mintlog/mintlog/mint/api/v1alpha1"
)

// A form is how a new password is written down.
type form struct {
	name      string // empty: the bare password
	envPrefix string
	scheme    string
	host      string
	port      uint16 // 0: none
	database  string
}

// formFlags are the flags of a form, each with the forms that it means something to.
var formFlags = map[string][]string{
	"env-prefix": {"env"},
	"scheme":     {"uri"},
	"host":       {"env", "pgpass", "netrc", "uri"},
	"port":       {"env", "pgpass", "uri"},
	"database":   {"env", "pgpass", "uri"},
}

var (
	formNames    = []string{"env", "json", "netrc", "pgpass", "uri"}
	variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	schemeName   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*$`)
	hostName     = regexp.MustCompile(`^[A-Za-z0-9_.:%-]+$`)
	plainToken   = regexp.MustCompile(`^[A-Za-z0-9_.@%+=:,/-]+$`)
)

func (f *form) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&f.name, "output", "o", "", "How to write it down: env, json, netrc, pgpass or uri; the bare password if absent.")
	flags.StringVar(&f.envPrefix, "env-prefix", "CREDENTIAL_", "What the names of variables begin with, for -o env.")
	flags.StringVar(&f.scheme, "scheme", "postgresql", "The scheme, for -o uri.")
	flags.StringVar(&f.host, "host", "", "The engine's host, for -o env, pgpass, netrc (needed) and uri (needed).")
	flags.Uint16Var(&f.port, "port", 0, "The engine's port, for -o env, pgpass and uri.")
	flags.StringVar(&f.database, "database", "", "The database, for -o env, pgpass and uri.")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formNames, cobra.ShellCompDirectiveNoFileComp))
}

// check tells of flags that cannot stand together, before anything is asked of a server.
func (f *form) check(cmd *cobra.Command) error {
	if f.name != "" && !slices.Contains(formNames, f.name) {
		return usage("there is no output format %q: it is one of %s", f.name, strings.Join(formNames, ", "))
	}
	for flag, forms := range formFlags {
		if cmd.Flags().Changed(flag) && !slices.Contains(forms, f.name) {
			return usage("--%s means something to -o %s only", flag, strings.Join(forms, ", "))
		}
	}
	switch {
	case (f.name == "netrc" || f.name == "uri") && f.host == "":
		return usage("-o %s needs --host", f.name)
	case f.host != "" && !hostName.MatchString(f.host):
		return usage("--host %q is not a host", f.host)
	case !schemeName.MatchString(f.scheme):
		return usage("--scheme %q is not the scheme of a URI", f.scheme)
	case !variableName.MatchString(f.envPrefix + "X"):
		return usage("--env-prefix %q cannot begin the name of a variable", f.envPrefix)
	case strings.ContainsAny(f.database, "\x00\r\n"):
		return usage("--database %q cannot be written down", f.database)
	}
	return nil
}

// picky reports whether there are names that the form cannot hold.
func (f *form) picky() bool { return f.name == "env" || f.name == "pgpass" || f.name == "netrc" }

// write is the text that holds the answer's password, and ends with a line break. The error is for a name that the form
// cannot hold, and does not quote the password.
func (f *form) write(a call, answer v1alpha1.MintStatus) (string, error) {
	switch f.name {
	case "json":
		return f.json(a, answer)
	case "uri":
		return f.uri(answer), nil
	case "env":
		return f.env(answer)
	case "pgpass":
		return f.pgpass(answer)
	case "netrc":
		return f.netrc(answer)
	default:
		return answer.Password + "\n", nil
	}
}

func (f *form) json(a call, answer v1alpha1.MintStatus) (string, error) {
	text, err := json.Marshal(struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
		Username  string `json:"username"`
		Password  string `json:"password"`
		ID        string `json:"id"`
		Revision  int64  `json:"revision"`
		At        string `json:"at"`
	}{a.namespace, a.credential, answer.Username, answer.Password, answer.ID, answer.Revision, answer.At.UTC().Format(time.RFC3339Nano)})
	if err != nil {
		return "", err
	}
	return string(printable.JSON(text)) + "\n", nil
}

// env are assignments as a POSIX shell reads them.
func (f *form) env(answer v1alpha1.MintStatus) (string, error) {
	if strings.Contains(answer.Username, "\x00") {
		return "", fmt.Errorf("no variable can hold the user name %q", answer.Username)
	}
	var b strings.Builder
	variable := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s%s='%s'\n", f.envPrefix, name, strings.ReplaceAll(value, `'`, `'\''`))
		}
	}
	variable("USERNAME", answer.Username)
	variable("PASSWORD", answer.Password)
	variable("HOST", f.host)
	variable("PORT", f.portText(""))
	variable("DATABASE", f.database)
	return b.String(), nil
}

// pgpass is a line as libpq reads it: * is any, unless it is part of something longer or escaped.
func (f *form) pgpass(answer v1alpha1.MintStatus) (string, error) {
	if strings.ContainsAny(answer.Username, "\x00\r\n") {
		return "", fmt.Errorf("no line of a .pgpass can hold the user name %q", answer.Username)
	}
	field := func(value, absent string) string {
		switch value {
		case "":
			return absent
		case "*":
			return `\*`
		}
		return strings.NewReplacer(`\`, `\\`, `:`, `\:`).Replace(value)
	}
	return strings.Join([]string{
		field(f.host, "*"), f.portText("*"), field(f.database, "*"), field(answer.Username, ""), field(answer.Password, ""),
	}, ":") + "\n", nil
}

func (f *form) netrc(answer v1alpha1.MintStatus) (string, error) {
	for _, r := range answer.Username {
		if r < ' ' || r == 0x7f {
			return "", fmt.Errorf("no .netrc can hold the user name %q", answer.Username)
		}
	}
	token := func(value string) string {
		if plainToken.MatchString(value) {
			return value
		}
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value) + `"`
	}
	return fmt.Sprintf("machine %s login %s password %s\n", f.host, token(answer.Username), token(answer.Password)), nil
}

func (f *form) uri(answer v1alpha1.MintStatus) string {
	host := strings.ReplaceAll(f.host, "%", "%25") // before a zone
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if f.port != 0 {
		host += ":" + f.portText("")
	}
	path := ""
	if f.database != "" {
		path = "/" + percent(f.database)
	}
	return fmt.Sprintf("%s://%s:%s@%s%s\n", f.scheme, percent(answer.Username), percent(answer.Password), host, path)
}

func (f *form) portText(absent string) string {
	if f.port == 0 {
		return absent
	}
	return strconv.Itoa(int(f.port))
}

// percent encodes all but what RFC 3986 calls unreserved: some readers take a + for a space.
func percent(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
