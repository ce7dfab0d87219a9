// Package definition reads the block spec.credentials of an ApplicationDefinition, which says which accounts the
// applications of a kind have and how their passwords are stored, and yields the accounts of one application.
package definition

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/mintlog/mintlog/mint/format"
	"github.com/mintlog/mintlog/mint/webhook"
)

// root is where the block stands; every error names the path of its field from here.
const root = "spec.credentials"

// The kinds of formats. Webhook is one as well.
const BuiltIn = "BuiltIn" // needs nobody

// The kinds of sources.
const (
	ValuesMap  = "ValuesMap"  // the keys of a map in the values
	ValuesList = "ValuesList" // the elements of a list in the values
	Static     = "Static"     // one account named in the block
	Expression = "Expression" // what CEL makes of the values
	Webhook    = "Webhook"    // what somebody else says, and the kind of format that somebody else knows
)

var sourceKinds = []string{ValuesMap, ValuesList, Static, Expression, Webhook}

// PlatformOwner is the owner of accounts that are left alone: no Secret, no credential, no mint.
const PlatformOwner = "platform"

// maxSources is how many sources a block may have.
const maxSources = 16

// A Block is what spec.credentials says. It is plain data: two that say the same are equal in depth.
type Block struct {
	Format       Format
	Sources      []Source          // `accounts`: their union counts
	SecretLabels map[string]string // what the engine's operator wants on an account Secret
	ValuesPath   ValuesPath        // where the stored form goes in the values, if it does
}

// A Format is how a kind's passwords are stored.
type Format struct {
	Name       string            // a webhook's is none of the built-in ones
	Kind       string            // BuiltIn or Webhook
	Parameters format.Parameters // BuiltIn: what differs from the format's default
	Webhook    webhook.Config    // Webhook: whom to ask
}

// A Source yields accounts.
type Source struct {
	Kind string

	Path          string // ValuesMap, ValuesList: where in the values it stands, dotted
	NameField     string // ValuesList: the field of an element that names the account
	UsernameField string // ValuesList: the field of an element that holds the login; empty: it is the name

	Name     string // Static
	Username string // Static: the login, if it is not the name
	When     string // Static: where in the values a boolean stands that must be true, dotted; empty: always
	Owner    string // Static: "" or PlatformOwner

	Expression string         // Expression: CEL that compiles
	Webhook    webhook.Config // Webhook: whom to ask
}

// Parse reads a block as JSON decodes it. What it does not know is an error: a kind whose block is half understood is
// not served. An error names every field at fault and, where it helps, what is known.
func Parse(raw any) (Block, error) {
	p := &parser{}
	fields := p.object(root, raw, "format", "accounts", "secretLabels", "valuesPath")
	block := Block{
		Format:       p.format(root+".format", fields["format"]),
		Sources:      p.sources(root+".accounts", fields["accounts"]),
		SecretLabels: p.secretLabels(root+".secretLabels", fields["secretLabels"]),
	}
	block.ValuesPath = p.targetPath(root, fields, block.Sources)
	if len(p.problems) > 0 {
		return Block{}, fmt.Errorf("%s", strings.Join(p.problems, "; "))
	}
	return block, nil
}

// A parser collects what is wrong, so that an author sees all of it at once.
type parser struct{ problems []string }

func (p *parser) refuse(path, problem string, args ...any) {
	p.problems = append(p.problems, path+": "+fmt.Sprintf(problem, args...))
}

// object is raw as an object with no fields but the known ones.
func (p *parser) object(path string, raw any, known ...string) map[string]any {
	fields, ok := raw.(map[string]any)
	if !ok {
		p.refuse(path, "must be an object")
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(known, name) {
			p.refuse(path+"."+name, "this field is unknown to this version (known: %s)", strings.Join(known, ", "))
		}
	}
	return fields
}

// text is the string in a field, or fallback where the field is absent.
func (p *parser) text(path string, fields map[string]any, name, fallback string) string {
	raw, present := fields[name]
	if !present {
		return fallback
	}
	s, ok := raw.(string)
	if !ok || s == "" {
		p.refuse(path+"."+name, "must be a string that is not empty")
	}
	return s
}

func (p *parser) required(path string, fields map[string]any, name string) string {
	if _, present := fields[name]; !present {
		p.refuse(path+"."+name, "is required")
		return ""
	}
	return p.text(path, fields, name, "")
}

// dotted is the path in a field: parts that are not empty.
func (p *parser) dotted(path, name, value string) string {
	if value != "" && slices.Contains(strings.Split(value, "."), "") {
		p.refuse(path+"."+name, "must be names joined by dots")
	}
	return value
}

func (p *parser) format(path string, raw any) Format {
	if raw == nil {
		p.refuse(path, "is required")
		return Format{}
	}
	fields, ok := raw.(map[string]any)
	if !ok {
		p.refuse(path, "must be an object")
		return Format{}
	}
	f := Format{Kind: p.text(path, fields, "kind", BuiltIn), Name: p.required(path, fields, "name")}
	switch f.Kind {
	case BuiltIn:
		p.object(path, raw, "name", "kind", "parameters")
		if _, known := format.Built(f.Name); f.Name != "" && !known {
			p.refuse(path+".name", "%q is unknown to this version (known: %s)", f.Name, strings.Join(format.Names(), ", "))
		}
		f.Parameters = p.parameters(path+".parameters", f.Name, fields["parameters"])
	case Webhook:
		p.object(path, raw, "name", "kind", "webhook")
		if _, known := format.Built(f.Name); known {
			p.refuse(path+".name", "%q is a built-in format: a webhook's needs a name of its own", f.Name)
		} else if problems := validation.IsDNS1123Label(f.Name); f.Name != "" && len(problems) > 0 {
			p.refuse(path+".name", "%s", problems[0])
		}
		f.Webhook = p.webhook(path+".webhook", fields["webhook"])
	default:
		p.refuse(path+".kind", "%q is unknown to this version (known: %s, %s)", f.Kind, BuiltIn, Webhook)
	}
	return f
}

// parameters are those of a built-in format, each within its bounds.
func (p *parser) parameters(path, name string, raw any) format.Parameters {
	var parameters format.Parameters
	if raw == nil {
		return parameters
	}
	var known []string
	limits := format.Limits(name)
	for _, limit := range limits {
		known = append(known, limit.Field)
	}
	fields := p.object(path, raw, known...)
	for _, limit := range limits {
		if _, present := fields[limit.Field]; !present {
			continue
		}
		n := p.number(path, fields, limit.Field, 0, int64(limit.Least), int64(limit.Most))
		limit.Set(&parameters, int(n))
	}
	return parameters
}

// wholeNumber is a number as JSON decoders hand it out.
func wholeNumber(raw any) (int64, bool) {
	switch n := raw.(type) {
	case int64:
		return n, true
	case float64:
		return int64(n), n == math.Trunc(n) && math.Abs(n) < 1<<53
	}
	return 0, false
}

func (p *parser) sources(path string, raw any) []Source {
	list, ok := raw.([]any)
	if !ok || len(list) == 0 {
		p.refuse(path, "must be a list of at least one source")
		return nil
	}
	if len(list) > maxSources {
		p.refuse(path, "has %d sources, more than the %d that are allowed", len(list), maxSources)
		return nil
	}
	var sources []Source
	for i, item := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		source := p.source(at, item)
		for j, earlier := range sources {
			p.compare(at, source, fmt.Sprintf("%s[%d]", path, j), earlier)
		}
		sources = append(sources, source)
	}
	return sources
}

// compare refuses a source that repeats an earlier one, or says something else of the same static account.
func (p *parser) compare(at string, source Source, earlierAt string, earlier Source) {
	if source.Kind == "" || source.Kind != earlier.Kind {
		return
	}
	if reflect.DeepEqual(source, earlier) {
		p.refuse(at, "repeats %s", earlierAt)
		return
	}
	if source.Kind == Static && source.Name == earlier.Name && (source.Username != earlier.Username || source.Owner != earlier.Owner) {
		p.refuse(at+".name", "%q is another account's name in %s", source.Name, earlierAt)
	}
}

// source reads one source; one that cannot be read is empty.
func (p *parser) source(path string, raw any) Source {
	fields, ok := raw.(map[string]any)
	if !ok {
		p.refuse(path, "must be an object")
		return Source{}
	}
	kind := p.required(path, fields, "kind")
	switch kind {
	case "":
	case ValuesMap:
		p.object(path, raw, "kind", "path")
		return Source{Kind: kind, Path: p.dotted(path, "path", p.required(path, fields, "path"))}
	case ValuesList:
		return p.valuesList(path, fields)
	case Static:
		return p.static(path, fields)
	case Expression:
		return p.expression(path, fields)
	case Webhook:
		p.object(path, raw, "kind", "webhook")
		return Source{Kind: kind, Webhook: p.webhook(path+".webhook", fields["webhook"])}
	default:
		p.refuse(path+".kind", "%q is unknown to this version (known: %s)", kind, strings.Join(sourceKinds, ", "))
	}
	return Source{}
}

func (p *parser) valuesList(path string, fields map[string]any) Source {
	p.object(path, fields, "kind", "path", "nameField", "usernameField")
	return Source{
		Kind:          ValuesList,
		Path:          p.dotted(path, "path", p.required(path, fields, "path")),
		NameField:     p.required(path, fields, "nameField"),
		UsernameField: p.text(path, fields, "usernameField", ""),
	}
}

func (p *parser) expression(path string, fields map[string]any) Source {
	p.object(path, fields, "kind", "expression")
	text := p.required(path, fields, "expression")
	if text != "" {
		if _, err := compile(text); err != nil {
			p.refuse(path+".expression", "%v", err)
		}
	}
	return Source{Kind: Expression, Expression: text}
}

func (p *parser) static(path string, fields map[string]any) Source {
	p.object(path, fields, "kind", "name", "when", "owner", "username")
	s := Source{
		Kind:  Static,
		Name:  p.required(path, fields, "name"),
		When:  p.dotted(path, "when", p.text(path, fields, "when", "")),
		Owner: p.text(path, fields, "owner", ""),
	}
	s.Username = p.text(path, fields, "username", s.Name)
	if s.Owner != "" && s.Owner != PlatformOwner {
		p.refuse(path+".owner", "%q is unknown to this version (known: %s)", s.Owner, PlatformOwner)
	}
	if s.Name == "" || s.Username == "" {
		return s
	}
	if _, err := Segment(s.Name); err != nil {
		p.refuse(path+".name", "the account cannot be served: %v", err)
	}
	if err := checkUsername(s.Username); err != nil {
		p.refuse(path+".username", "the account cannot be served: %v", err)
	}
	return s
}

// secretLabels refuses the labels that mintlog and Cozystack put on account Secrets themselves.
func (p *parser) secretLabels(path string, raw any) map[string]string {
	if raw == nil {
		return nil
	}
	fields, ok := raw.(map[string]any)
	if !ok {
		p.refuse(path, "must be an object of strings")
		return nil
	}
	labels := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		at := fmt.Sprintf("%s[%q]", path, key)
		value, ok := fields[key].(string)
		switch {
		case !ok:
			p.refuse(at, "must be a string")
		case reserved(key):
			p.refuse(at, "is a label of Cozystack's or mintlog's own")
		default:
			for _, problem := range append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...) {
				p.refuse(at, "%s", problem)
			}
		}
		labels[key] = value
	}
	return labels
}

// reserved reports whether a label decides what an account Secret is or who sees it.
func reserved(key string) bool {
	prefix, _, _ := strings.Cut(key, "/")
	return prefix == "cozystack.io" || strings.HasSuffix(prefix, ".cozystack.io")
}
