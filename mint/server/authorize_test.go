package server

import (
	"testing"

	"github.com/stretchr/testify/require"
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
