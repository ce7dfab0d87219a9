package definition

import (
	"context"
	"fmt"
	"io"

	"github.com/mintlog/mintlog/mint/format"
)

// Stored is the stored form of an account's password, by the format of the block. A format that is a webhook is asked
// through webhooks, until ctx is done. kind is the application's. Errors quote neither the password nor its stored form.
func (b Block) Stored(_ context.Context, _ string, _ Webhooks, random io.Reader, a Account, password string) ([]byte, error) {
	formatter, ok := format.Built(b.Format.Name)
	if !ok {
		return nil, fmt.Errorf("the format %q is not known to this version", b.Format.Name)
	}
	stored, err := formatter.Format(random, a.Username, password)
	if err != nil {
		return nil, fmt.Errorf("format a password as %s: %w", b.Format.Name, err)
	}
	return stored, nil
}
