package definition

import (
	"context"

	"github.com/mintlog/mintlog/mint/webhook"
)

// An Application is what the sources see of one instance of a kind.
type Application struct {
	Namespace string
	Release   string // its HelmRelease's name
	Kind      string
	Name      string
	Values    map[string]any // it is not changed
}

// A WebhookError is what a webhook that failed, or answered wrong, comes to: asked again, it may come right.
type WebhookError struct{ Err error }

func (e *WebhookError) Error() string { return e.Err.Error() }

// Unwrap is what failed.
func (e *WebhookError) Unwrap() error { return e.Err }

// Webhooks asks the webhooks that a block names. kind is the kind whose definition names them. Without an error the
// answer has the right shape. An error is for the eyes of tenants: it quotes nothing of request or answer.
type Webhooks interface {
	Accounts(ctx context.Context, kind string, c webhook.Config, app webhook.Application) ([]webhook.Account, error)
	Format(ctx context.Context, kind string, c webhook.Config, format, username, password string) (stored string, err error)
}
