package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/mintlog/mintlog/mint/certificate"
)

func certificatesCommand() *cobra.Command {
	var from clusterFlags
	var namespace, authority, apiService string
	var serving []string
	c := &cobra.Command{
		Use:   "certificates",
		Short: "Make and renew the serving certificates, where there is no other issuer",
		Long: `certificates makes serving certificates under an authority of mintlog's own, has the
APIService trust it, and renews what is past two thirds of its life: a serving
certificate after 60 days, the authority after six years. Run it once a day. It ends
when it is done, and changes nothing when nothing is due. The Secrets must be there,
empty at first.`,
		Example: `  mintlog certificates --namespace mintlog --serving mintlog-mint-tls=mintlog-mint.mintlog.svc`,
		RunE: func(c *cobra.Command, _ []string) error {
			wanted, err := parseServing(serving)
			if err != nil {
				return err
			}
			restConfig, err := config(from.kubeconfig, "certificates")
			if err != nil {
				return err
			}
			client, err := kubernetes.NewForConfig(restConfig)
			if err != nil {
				return fmt.Errorf("--kubeconfig: %w", err)
			}
			objects, err := dynamic.NewForConfig(restConfig)
			if err != nil {
				return fmt.Errorf("--kubeconfig: %w", err)
			}
			wrote, err := certificate.Renew(c.Context(), certificate.Options{
				Client: client, Objects: objects, Namespace: namespace, Authority: authority, Serving: wanted,
				APIService: apiService, Now: time.Now,
			})
			for _, object := range wrote {
				fmt.Fprintln(c.OutOrStdout(), object, "renewed")
			}
			return err
		},
	}
	flags := c.Flags()
	from.bind(flags)
	flags.StringVar(&namespace, "namespace", "mintlog", "namespace of mintlog itself, where the Secrets are")
	flags.StringVar(&authority, "authority", "mintlog-ca", "Secret of the authority")
	flags.StringArrayVar(&serving, "serving", nil, "a serving certificate's Secret and the names that it is for, as SECRET=NAME,NAME; repeatable")
	flags.StringVar(&apiService, "api-service", "v1alpha1.credentials.cozystack.io", "APIService whose caBundle is kept")
	return noArguments(c)
}

func parseServing(flags []string) ([]certificate.Serving, error) {
	if len(flags) == 0 {
		return nil, errors.New("--serving is needed: it says which certificates are wanted")
	}
	var all []certificate.Serving
	for _, flag := range flags {
		secret, hosts, ok := strings.Cut(flag, "=")
		if !ok || secret == "" || hosts == "" {
			return nil, fmt.Errorf("--serving %q: it is like mintlog-mint-tls=mintlog-mint.mintlog.svc", flag)
		}
		all = append(all, certificate.Serving{Secret: secret, Hosts: strings.Split(hosts, ",")})
	}
	return all, nil
}
