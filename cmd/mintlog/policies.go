package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mintlog/mintlog/mint/admission"
)

// houseFlags say where mintlog itself lives, and whether it runs without its admission policies.
type houseFlags struct {
	namespace string
	policies  string
}

func (f *houseFlags) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.namespace, "namespace", "mintlog", "namespace of mintlog itself: of its records, its ServiceAccounts and what it tries its admission policies with")
	flags.StringVar(&f.policies, "admission-policies", "require", "require: do not run while an admission policy is not in force; warn: say so and run")
}

func (f *houseFlags) validate() error {
	switch {
	case f.namespace == "":
		return errors.New("--namespace is needed: what mintlog tries its admission policies with lies there")
	case f.policies != "require" && f.policies != "warn":
		return fmt.Errorf("--admission-policies %q: use require or warn", f.policies)
	}
	return checkNamespace("--namespace", f.namespace)
}

// guard runs a part once the admission policies are in force for its identity, and looks at them again while it runs.
func (f *houseFlags) guard(p runtime, name string, c *rest.Config, run part, policies ...string) (part, error) {
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("build the client that tries the admission policies: %w", err)
	}
	check, err := admission.New(admission.Options{
		Client: client, Namespace: f.namespace, Part: name, Policies: policies, WarnOnly: f.policies == "warn",
		Log: p.log.With("part", name), Registerer: p.registry,
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if err := check.Await(ctx); err != nil {
			return fmt.Errorf("%s: %w (--admission-policies=warn runs it all the same)", name, err)
		}
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return check.Run(ctx) })
		group.Go(func() error { return run(ctx) })
		return group.Wait()
	}, nil
}
