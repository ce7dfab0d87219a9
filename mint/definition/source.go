package definition

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/mintlog/mintlog/mint/webhook"
)

// ErrNotAsked is returned for a webhook where there is nobody to ask it through.
var ErrNotAsked = errors.New("webhooks are not asked here")

// accounts asks the source at an index of the block.
func (b Block) accounts(ctx context.Context, index int, app Application, webhooks Webhooks) ([]declaration, error) {
	s := b.Sources[index]
	switch s.Kind {
	case ValuesMap, ValuesList:
		value, err := lookup(app.Values, s.Path)
		if err != nil || value == nil || b.otherReads(s, value) {
			return nil, err
		}
		if s.Kind == ValuesMap {
			return s.keys(value)
		}
		return s.elements(value)
	case Static:
		return s.itself(app.Values)
	case Expression:
		return evaluate(ctx, s.Expression, app.Values)
	case Webhook:
		return s.ask(ctx, app, webhooks)
	}
	return nil, fmt.Errorf("the kind %q is unknown to this version", s.Kind)
}

// otherReads reports whether a value is for another source of the block: a kind that goes from a map to a list keeps
// both sources for as long as it has applications of both.
func (b Block) otherReads(s Source, value any) bool {
	kind := ""
	switch value.(type) {
	case map[string]any:
		kind = ValuesMap
	case []any:
		kind = ValuesList
	}
	for _, other := range b.Sources {
		if kind != s.Kind && other.Kind == kind && other.Path == s.Path {
			return true
		}
	}
	return false
}

// keys are the accounts of a map.
func (s Source) keys(value any) ([]declaration, error) {
	users, ok := value.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the value at %s is no map", s.Path)
	}
	found := make([]declaration, 0, len(users))
	for name := range users {
		found = append(found, declaration{Account: Account{Name: name, Username: name}})
	}
	return found, nil
}

// elements are the accounts of a list.
func (s Source) elements(value any) ([]declaration, error) {
	list, ok := value.([]any)
	if !ok {
		return nil, fmt.Errorf("the value at %s is no list", s.Path)
	}
	found := make([]declaration, 0, len(list))
	for i, element := range list {
		d, err := s.element(element)
		if err != nil {
			return nil, fmt.Errorf("the value at %s[%d]%w", s.Path, i, err)
		}
		found = append(found, d)
	}
	return found, nil
}

// element is the account of one element of a list; an error continues the words "the value at path[i]".
func (s Source) element(element any) (declaration, error) {
	fields, ok := element.(map[string]any)
	if !ok {
		return declaration{}, errors.New(" is no map")
	}
	name, ok := fields[s.NameField].(string)
	if !ok || name == "" {
		return declaration{}, fmt.Errorf(".%s is no string, or empty", s.NameField)
	}
	username := ""
	if s.UsernameField != "" && fields[s.UsernameField] != nil {
		if username, ok = fields[s.UsernameField].(string); !ok {
			return declaration{}, fmt.Errorf(".%s is no string", s.UsernameField)
		}
	}
	return declaration{Account: Account{Name: name, Username: withDefault(username, name)}}, nil
}

// itself is the account of a static source, if it is there: the value at When must be a boolean, or absent.
func (s Source) itself(values map[string]any) ([]declaration, error) {
	account := []declaration{{Account: Account{Name: s.Name, Username: s.Username}, platform: s.Owner == PlatformOwner}}
	if s.When == "" {
		return account, nil
	}
	value, err := lookup(values, s.When)
	if err != nil || value == nil {
		return nil, err
	}
	declared, ok := value.(bool)
	if !ok {
		return nil, fmt.Errorf("the value at %s is no boolean", s.When)
	}
	if !declared {
		return nil, nil
	}
	return account, nil
}

// ask are the accounts that a webhook answers with.
func (s Source) ask(ctx context.Context, app Application, webhooks Webhooks) ([]declaration, error) {
	if webhooks == nil {
		return nil, ErrNotAsked
	}
	answer, err := webhooks.Accounts(ctx, app.Kind, s.Webhook, webhook.Application{
		Namespace: app.Namespace, Kind: app.Kind, Name: app.Name, Release: app.Release, Values: app.Values,
	})
	if err != nil {
		return nil, &WebhookError{err}
	}
	if len(answer) > maxAccounts {
		return nil, &WebhookError{tooMany(len(answer))}
	}
	found := make([]declaration, 0, len(answer))
	for i, account := range answer {
		d, err := declare(account.Name, account.Username, account.Owner)
		if err != nil {
			return nil, &WebhookError{fmt.Errorf("element %d of the webhook's accounts %w", i, err)}
		}
		found = append(found, d)
	}
	return found, nil
}

// declare is an account that an expression or a webhook yields; an error continues the words "element i of …".
func declare(name, username, owner string) (declaration, error) {
	switch {
	case name == "":
		return declaration{}, errors.New("has no name")
	case owner != "" && owner != PlatformOwner:
		return declaration{}, fmt.Errorf("has an owner other than %q", PlatformOwner)
	}
	return declaration{Account: Account{Name: name, Username: withDefault(username, name)}, platform: owner == PlatformOwner}, nil
}

func withDefault(username, name string) string {
	if username == "" {
		return name
	}
	return username
}

// lookup follows a dotted path through maps; what is absent, or null, is nil.
func lookup(values map[string]any, path string) (any, error) {
	var value any = values
	walked := "the values"
	for part := range strings.SplitSeq(path, ".") {
		if value == nil {
			return nil, nil
		}
		fields, ok := value.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("the value at %s is no map, so there is no %s", walked, path)
		}
		value = fields[part]
		if walked == "the values" {
			walked = part
		} else {
			walked += "." + part
		}
	}
	return value, nil
}
