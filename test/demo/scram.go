package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/xdg-go/scram"
)

// applied are the stored forms by role, where no PostgreSQL takes them.
var applied sync.Map

// scramLogin does the exchange that PostgreSQL and its client do, against the stored form.
func scramLogin(_ context.Context, role, password string) error {
	client, err := scram.SHA256.NewClientUnprepped(role, password, "")
	if err != nil {
		return err
	}
	server, err := scram.SHA256.NewServer(func(string) (scram.StoredCredentials, error) {
		stored, _ := applied.Load(role)
		text, _ := stored.(string)
		return parseVerifier(text)
	})
	if err != nil {
		return err
	}
	one, other := client.NewConversation(), server.NewConversation()
	message := ""
	for !one.Done() {
		if message, err = one.Step(message); err != nil {
			return fmt.Errorf("%w: %w", errRefused, err)
		}
		if one.Done() {
			break
		}
		if message, err = other.Step(message); err != nil {
			return fmt.Errorf("%w: %w", errRefused, err)
		}
	}
	if !one.Valid() {
		return errRefused
	}
	return nil
}

// parseVerifier reads SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>.
func parseVerifier(stored string) (scram.StoredCredentials, error) {
	parts := strings.FieldsFunc(stored, func(r rune) bool { return r == '$' || r == ':' })
	if len(parts) != 5 || parts[0] != "SCRAM-SHA-256" {
		return scram.StoredCredentials{}, errRefused
	}
	iterations, err := strconv.Atoi(parts[1])
	if err != nil {
		return scram.StoredCredentials{}, err
	}
	var decoded [3][]byte
	for i := range decoded {
		if decoded[i], err = base64.StdEncoding.DecodeString(parts[i+2]); err != nil {
			return scram.StoredCredentials{}, err
		}
	}
	return scram.StoredCredentials{
		KeyFactors: scram.KeyFactors{Salt: string(decoded[0]), Iters: iterations},
		StoredKey:  decoded[1], ServerKey: decoded[2],
	}, nil
}
