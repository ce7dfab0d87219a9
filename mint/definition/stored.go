package definition

import (
	"context"
	"fmt"
	"io"

	"github.com/mintlog/mintlog/mint/format"
)

// Stored is the stored form of an account's password, by the format of the block. A format that is a webhook is asked
// through webhooks, until ctx is done, and is given the password. kind is the application's. Errors quote neither the
// password nor its stored form.
func (b Block) Stored(ctx context.Context, kind string, webhooks Webhooks, random io.Reader, a Account, password string) ([]byte, error) {
	stored, err := b.Format.stored(ctx, kind, webhooks, random, a.Username, password)
	return b.reachable(stored, err)
}

// Unissued is what an account stores for which no password was ever issued: as Stored has it for a password that nobody
// sees, or, where the format allows, a form that no password opens.
func (b Block) Unissued(ctx context.Context, kind string, webhooks Webhooks, random io.Reader, a Account) ([]byte, error) {
	if b.Format.Kind == Webhook {
		password, err := format.NewPassword(random)
		if err != nil {
			return nil, err
		}
		return b.Stored(ctx, kind, webhooks, random, a, password)
	}
	stored, err := format.Unissued(b.Format.Name, b.Format.Parameters, random, a.Username)
	return b.reachable(stored, err)
}

// reachable refuses a stored form that would not reach the engine as it is.
func (b Block) reachable(stored []byte, err error) ([]byte, error) {
	if err != nil {
		return nil, fmt.Errorf("the format %s: %w", b.Format.Name, err)
	}
	if b.ValuesPath == "" || Literal(string(stored)) {
		return stored, nil
	}
	err = fmt.Errorf("the format %s: the stored form would be read as something else in a HelmRelease's values", b.Format.Name)
	if b.Format.Kind == Webhook {
		err = &WebhookError{err}
	}
	return nil, err
}

func (f Format) stored(ctx context.Context, kind string, webhooks Webhooks, random io.Reader, username, password string) ([]byte, error) {
	if f.Kind == Webhook {
		if webhooks == nil {
			return nil, ErrNotAsked
		}
		stored, err := webhooks.Format(ctx, kind, f.Webhook, f.Name, username, password)
		if err != nil {
			return nil, &WebhookError{err}
		}
		return []byte(stored), nil
	}
	formatter, err := format.New(f.Name, f.Parameters)
	if err != nil {
		return nil, err
	}
	return formatter.Format(random, username, password)
}
