package main

import (
	"errors"
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// administrator is the connection that a kubeconfig describes: of that file, or where kubectl looks for one if it is
// empty, in a context of it, or the current one if that is empty.
func administrator(kubeconfig, context, userAgent string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	c, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: context}).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("no kubeconfig names a cluster: give --kubeconfig or set KUBECONFIG")
	}
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	c.UserAgent = userAgent
	return c, nil
}
