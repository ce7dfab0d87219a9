package server

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

func TestNobodyWaitsForTheQuestionsOfOthersWhoMayMint(t *testing.T) {
	for _, config := range []*restclient.Config{
		{Host: "127.0.0.1"},
		{Host: "127.0.0.1", QPS: 1, Burst: 1},
		{Host: "127.0.0.1", RateLimiter: flowcontrol.NewTokenBucketRateLimiter(1, 1)},
	} {
		client, err := newReviewer(config)
		require.NoError(t, err)
		require.Nil(t, client.RESTClient().GetRateLimiter())
	}
}

func TestARightToAnyNameIsAskedForBeforeTheRightToOne(t *testing.T) {
	f := func(rightTo map[string]bool, failing string, request authorizer.AttributesRecord, want authorizer.Decision, asked ...string) {
		t.Helper()
		var questions []string
		decision, _, err := anyNameFirst(authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			questions = append(questions, a.GetName())
			require.Equal(t, "create", a.GetVerb())
			require.Equal(t, "mint", a.GetSubresource())
			if failing == "all" || failing == "any" && a.GetName() == "" {
				return authorizer.DecisionDeny, "", errors.New("unreachable")
			}
			if rightTo[a.GetName()] {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "", nil
		})).Authorize(t.Context(), request)
		require.Equal(t, want, decision)
		require.Equal(t, failing == "all", err != nil)
		require.Equal(t, asked, questions)
	}
	mint := authorizer.AttributesRecord{ResourceRequest: true, Verb: "create", Resource: "credentials", Subresource: "mint", Name: "a"}
	f(map[string]bool{"": true}, "", mint, authorizer.DecisionAllow, "")
	f(map[string]bool{"a": true}, "", mint, authorizer.DecisionAllow, "", "a")
	f(map[string]bool{"b": true}, "", mint, authorizer.DecisionNoOpinion, "", "a")
	f(map[string]bool{"": true, "a": true}, "any", mint, authorizer.DecisionAllow, "", "a")
	f(map[string]bool{"": true}, "all", mint, authorizer.DecisionDeny, "", "a")
	nameless := mint
	nameless.Name = ""
	f(nil, "", nameless, authorizer.DecisionNoOpinion, "")
}
