package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/store/ledger"
)

// AwaitServed waits until every account Secret of the credentials is there, and the mint servers, which read from caches,
// show it with its ledger's newest entry and would mint. Without servers it is the one at MintAddress. They are asked as
// the front proxy asks, so that no request for a credential comes into the audit log.
func (s *Sandbox) AwaitServed(ctx context.Context, namespace string, credentials []string, servers ...string) error {
	return s.eachServed(ctx, namespace, credentials, servers, func(ctx context.Context, server *mintServer, credential string) error {
		return errors.Join(s.showsNewest(ctx, server, namespace, credential), server.mints(ctx, namespace, credential))
	})
}

// AwaitShown is AwaitServed but for the mint.
func (s *Sandbox) AwaitShown(ctx context.Context, namespace string, credentials []string, servers ...string) error {
	return s.eachServed(ctx, namespace, credentials, servers, func(ctx context.Context, server *mintServer, credential string) error {
		return s.showsNewest(ctx, server, namespace, credential)
	})
}

// AwaitMint waits until the mint servers would mint the credentials, whose account Secrets need not be there.
func (s *Sandbox) AwaitMint(ctx context.Context, namespace string, credentials []string, servers ...string) error {
	return s.eachServed(ctx, namespace, credentials, servers, func(ctx context.Context, server *mintServer, credential string) error {
		return server.mints(ctx, namespace, credential)
	})
}

func (s *Sandbox) eachServed(ctx context.Context, namespace string, credentials, servers []string, step func(context.Context, *mintServer, string) error) error {
	if len(servers) == 0 {
		servers = []string{s.mintAddress}
	}
	for _, address := range servers {
		server, err := s.asFrontProxy(address)
		if err != nil {
			return err
		}
		defer server.client.CloseIdleConnections()
		for _, credential := range credentials {
			if err := until(ctx, func(ctx context.Context) error { return step(ctx, server, credential) }); err != nil {
				return fmt.Errorf("waiting for the mint server at %s to serve %s/%s: %w", address, namespace, credential, err)
			}
		}
	}
	return nil
}

// showsNewest is an error unless the server's view of a credential is that of its account Secret, and begins with the
// newest entry of its ledger.
func (s *Sandbox) showsNewest(ctx context.Context, server *mintServer, namespace, credential string) error {
	secret, err := s.Kubernetes(ClusterAdmin, 0).CoreV1().Secrets(namespace).Get(ctx, credential+".account", metav1.GetOptions{})
	if err != nil {
		return err
	}
	book, err := ledger.Parse(secret.Annotations[ledger.Annotation])
	if err != nil {
		return err
	}
	var view v1alpha1.Credential
	if err := server.ask(ctx, http.MethodGet, namespace, credential, "", http.StatusOK, &view); err != nil {
		return err
	}
	if view.UID != secret.UID || len(view.Status.History) == 0 || view.Status.History[0].ID != book.Newest().ID {
		return errors.New("its view is behind its account Secret")
	}
	return nil
}

// A mintServer is asked as kube-apiserver's front proxy asks, as cluster-admin.
type mintServer struct {
	url    string
	client *http.Client
}

func (s *Sandbox) asFrontProxy(address string) (*mintServer, error) {
	certificate, key, err := s.frontProxy.Issue(Identity{Name: frontProxyName})
	if err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{
		CAData: s.serving.PEM(), CertData: certificate, KeyData: key, ServerName: ServiceName + "." + Namespace + ".svc",
	}})
	return &mintServer{url: "https://" + address + v1alpha1Path, client: client}, err
}

const v1alpha1Path = "/apis/credentials.cozystack.io/v1alpha1/namespaces/"

// mints is an error unless a dry run of a mint goes well.
func (m *mintServer) mints(ctx context.Context, namespace, credential string) error {
	return m.ask(ctx, http.MethodPost, namespace, credential+"/mint?dryRun=All",
		`{"apiVersion": "credentials.cozystack.io/v1alpha1", "kind": "CredentialMint"}`, http.StatusCreated, &v1alpha1.CredentialMint{})
}

func (m *mintServer) ask(ctx context.Context, method, namespace, path, body string, want int, into any) error {
	request, err := http.NewRequestWithContext(ctx, method, m.url+namespace+"/credentials/"+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Audit-ID", uuid.NewString())
	request.Header.Set("X-Remote-User", ClusterAdmin)
	request.Header.Set("X-Remote-Group", "system:masters")
	answer, err := m.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != want {
		return fmt.Errorf("it answers %s to %s: %s", answer.Status, method, text) // neither a view nor a dry run has a password
	}
	return json.Unmarshal(text, into)
}
