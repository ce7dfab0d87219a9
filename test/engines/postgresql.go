package engines

import (
	"context"
	"errors"
	"io"

	"github.com/mintlog/mintlog/test/postgres"
)

// PostgreSQL is a running PostgreSQL.
type PostgreSQL struct{ *postgres.Postgres }

// StartPostgreSQL starts it. Progress goes to progress, a line each; nil: nowhere.
func StartPostgreSQL(ctx context.Context, progress io.Writer) (*PostgreSQL, error) {
	started, err := postgres.Start(ctx, "", progress)
	if err != nil {
		return nil, err
	}
	return &PostgreSQL{started}, nil
}

// Apply sets the password of a role as CloudNativePG does, with ALTER ROLE.
func (p *PostgreSQL) Apply(ctx context.Context, username, stored string) error {
	return p.SetPassword(ctx, username, stored)
}

// Login logs in with libpq.
func (p *PostgreSQL) Login(ctx context.Context, username, password string) error {
	err := p.Postgres.Login(ctx, username, password)
	if errors.Is(err, postgres.ErrRefused) {
		return errors.Join(ErrRefused, err)
	}
	return err
}
