package server

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/path"
	"k8s.io/apiserver/pkg/authorization/union"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	restclient "k8s.io/client-go/rest"
)

const (
	authorizationTimeout = 10 * time.Second
	authorizationCache   = 10 * time.Second
)

// newReviewer builds the client that asks kube-apiserver who may. It is held to no rate: every request waits for it, so
// whoever asks for many names would make all others wait. What is too much for kube-apiserver, it says itself.
func newReviewer(config *restclient.Config) (authorizationclient.AuthorizationV1Interface, error) {
	config = restclient.CopyConfig(config)
	config.QPS, config.RateLimiter = -1, nil
	config.Timeout = authorizationTimeout
	client, err := authorizationclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("build the client that asks who may: %w", err)
	}
	return client, nil
}

// newAuthorizer asks kube-apiserver whether the user may. An answer is good for authorizationCache.
func newAuthorizer(config *restclient.Config) (authorizer.Authorizer, error) {
	client, err := newReviewer(config)
	if err != nil {
		return nil, err
	}
	health, err := path.NewAuthorizer(healthPaths)
	if err != nil {
		return nil, fmt.Errorf("build the authorizer of the health checks: %w", err)
	}
	delegated, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: client,
		AllowCacheTTL:             authorizationCache,
		DenyCacheTTL:              authorizationCache,
		WebhookRetryBackoff:       &wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 4},
	}.New()
	if err != nil {
		return nil, fmt.Errorf("build the authorizer: %w", err)
	}
	return union.New(
		union.NamedAuthorizer{AuthorizerName: "health", Authorizer: health},
		union.NamedAuthorizer{AuthorizerName: "kube-apiserver", Authorizer: anyNameFirst(delegated)},
	)
}

// anyNameFirst asks whether the user may do this to any name, and if not, whether to this one: most users' rights are to
// any, and then the answer is in the cache for all the accounts of a namespace.
//
// It refuses nobody whom kube-apiserver would let pass, and lets nobody pass whom kube-apiserver refused: every request
// served here was authorized there under its own name, before the front proxy sent it.
func anyNameFirst(a authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, exact authorizer.Attributes) (authorizer.Decision, string, error) {
		if exact.IsResourceRequest() && exact.GetName() != "" {
			decision, reason, err := a.Authorize(ctx, anyName{exact})
			if err == nil && decision == authorizer.DecisionAllow {
				return decision, reason, nil
			}
		}
		return a.Authorize(ctx, exact)
	})
}

// anyName is a request for an object of any name.
type anyName struct{ authorizer.Attributes }

// GetName is no name, which is how a right to every name is asked for.
func (anyName) GetName() string { return "" }
