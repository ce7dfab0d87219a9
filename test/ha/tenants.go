package ha

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/test/sandbox"
)

// Config is a person's connection through the balancer of the kube-apiservers.
func (h *House) Config(person string) *rest.Config {
	config := h.RESTConfig(person, 0)
	config.Host = "https://" + h.apiServers.address()
	return config
}

// Mint mints as a person whose client repeats what is answered 503 or 429, when it is told to, for a while. It returns
// the entry's id, and how often it had to repeat.
func (h *House) Mint(ctx context.Context, client *http.Client, credential string) (id string, repeats int, err error) {
	for deadline := time.Now().Add(patience); ; repeats++ {
		answer, body, err := h.mintOnce(ctx, client, credential)
		if err != nil {
			return "", repeats, fmt.Errorf("a mint of %s: %w", credential, err)
		}
		switch answer.StatusCode {
		case http.StatusCreated:
			var minted v1alpha1.CredentialMint
			if err := json.Unmarshal(body, &minted); err != nil {
				return "", repeats, errors.New("the answer of a mint cannot be read")
			}
			return minted.Status.ID, repeats, nil
		case http.StatusServiceUnavailable, http.StatusTooManyRequests:
			if time.Now().Before(deadline) {
				seconds, _ := strconv.Atoi(answer.Header.Get("Retry-After"))
				time.Sleep(max(time.Duration(seconds)*time.Second, 100*time.Millisecond))
				continue
			}
		}
		return "", repeats, fmt.Errorf("a mint of %s was answered %s: %s", credential, answer.Status, body) // no 201: it holds no password
	}
}

func (h *House) mintOnce(ctx context.Context, client *http.Client, credential string) (*http.Response, []byte, error) {
	url := "https://" + h.apiServers.address() + "/apis/credentials.cozystack.io/v1alpha1/namespaces/" + sandbox.TenantAcme + "/credentials/" + credential + "/mint"
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		return nil, nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response, body, err
}

// Credential reads a view as jane.
func (h *House) Credential(ctx context.Context, client *http.Client, credential string) (*v1alpha1.Credential, error) {
	url := "https://" + h.apiServers.address() + "/apis/credentials.cozystack.io/v1alpha1/namespaces/" + sandbox.TenantAcme + "/credentials/" + credential
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	if err != nil {
		return nil, err
	}
	var c v1alpha1.Credential
	return &c, json.Unmarshal(body, &c)
}

// Application lays an application of the kind Postgres in tenant-acme and waits until each mint server would mint its
// accounts.
func (h *House) Application(ctx context.Context, name string, accounts int) ([]string, error) {
	users, credentials := map[string]any{}, make([]string, accounts)
	for i := range accounts {
		users[fmt.Sprintf("u%d", i)] = map[string]any{}
		credentials[i] = fmt.Sprintf("postgres-%s.u%d", name, i)
	}
	if _, err := h.InstallRelease(ctx, sandbox.TenantAcme, "Postgres", name, map[string]any{"users": users}); err != nil {
		return nil, err
	}
	return credentials, h.AwaitServed(ctx, sandbox.TenantAcme, credentials, h.mintServers()...)
}

// AwaitAttributed waits until the view says who asked for an entry.
func (h *House) AwaitAttributed(ctx context.Context, client *http.Client, limit time.Duration, credential, id, by string) error {
	return eventually(ctx, limit, func(ctx context.Context) error {
		c, err := h.Credential(ctx, client, credential)
		if err != nil {
			return err
		}
		for _, o := range c.Status.History {
			if o.ID == id && o.By == by {
				return nil
			}
		}
		return fmt.Errorf("the mint of %s is not attributed", credential)
	})
}
