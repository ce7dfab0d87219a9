// Package definition reads the block spec.credentials of an ApplicationDefinition, which says which accounts the
// applications of a kind have and how their passwords are stored, and yields the accounts of one application.
package definition

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/mintlog/mintlog/mint/format"
)

// root is where the block stands; every error names the path of its field from here.
const root = "spec.credentials"

// BuiltIn is the kind of format that needs no webhook.
const BuiltIn = "BuiltIn"

// The kinds of sources.
const (
	ValuesMap = "ValuesMap" // the keys of a map in the values
	Static    = "Static"    // one account named in the block
)

// PlatformOwner is the owner of accounts that are left alone: no Secret, no credential, no mint.
const PlatformOwner = "platform"

// A Block is what spec.credentials says.
type Block struct {
	Format       Format
	Sources      []Source          // `accounts`: their union counts
	SecretLabels map[string]string // what the engine's operator wants on an account Secret
	ValuesPath   ValuesPath        // where the stored form goes in the values, if it does
}

// A Format is how a kind's passwords are stored.
type Format struct {
	Name string
	Kind string // BuiltIn
}

// A Source yields accounts.
type Source struct {
	Kind string // ValuesMap or Static

	Path string // ValuesMap: where in the values the map stands, dotted

	Name     string // Static
	Username string // Static: the login, if it is not the name
	When     string // Static: where in the values a boolean stands that must be true, dotted; empty: always
	Owner    string // Static: "" or PlatformOwner
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

// valuesPath is the dotted path in a field: parts that are not empty.
func (p *parser) valuesPath(path, name, value string) string {
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
	fields := p.object(path, raw, "name", "kind")
	if fields == nil {
		return Format{}
	}
	f := Format{Kind: p.text(path, fields, "kind", BuiltIn), Name: p.required(path, fields, "name")}
	if f.Kind != BuiltIn {
		p.refuse(path+".kind", "%q is unknown to this version (known: %s)", f.Kind, BuiltIn)
		return f
	}
	if _, known := format.Built(f.Name); f.Name != "" && !known {
		p.refuse(path+".name", "%q is unknown to this version (known: %s)", f.Name, strings.Join(format.Names(), ", "))
	}
	return f
}

func (p *parser) sources(path string, raw any) []Source {
	list, ok := raw.([]any)
	if !ok || len(list) == 0 {
		p.refuse(path, "must be a list of at least one source")
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
	switch kind := p.required(path, fields, "kind"); kind {
	case "":
		return Source{}
	case ValuesMap:
		p.object(path, raw, "kind", "path")
		return Source{Kind: kind, Path: p.valuesPath(path, "path", p.required(path, fields, "path"))}
	case Static:
		return p.static(path, fields)
	default:
		p.refuse(path+".kind", "%q is unknown to this version (known: %s, %s)", kind, ValuesMap, Static)
		return Source{}
	}
}

func (p *parser) static(path string, fields map[string]any) Source {
	p.object(path, fields, "kind", "name", "when", "owner", "username")
	s := Source{
		Kind:  Static,
		Name:  p.required(path, fields, "name"),
		When:  p.valuesPath(path, "when", p.text(path, fields, "when", "")),
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
