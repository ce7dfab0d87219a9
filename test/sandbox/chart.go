package sandbox

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mintlog/mintlog/mint/admission"
)

// BreakGlassGroup is whose members the admission policies let through. Cluster-admin is in it: what tests forge, they
// forge as cluster-admin.
const BreakGlassGroup = "sandbox:break-glass"

// RenderChart renders mintlog's chart as a release named mintlog in the sandbox's namespace, with more arguments for
// helm ("--set", "--values", "--show-only").
func (s *Sandbox) RenderChart(ctx context.Context, arguments ...string) ([]byte, error) {
	return s.helm(ctx, append([]string{"template", "mintlog", filepath.Join(s.root, "deploy", "chart", "mintlog"), "--namespace", Namespace}, arguments...)...)
}

func (s *Sandbox) helm(ctx context.Context, arguments ...string) ([]byte, error) {
	var out, complaint bytes.Buffer
	command := exec.CommandContext(ctx, s.binary("helm"), arguments...)
	command.Stdout, command.Stderr = &out, &complaint
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("helm (run \"make tools\" if it is missing): %w: %s", err, bytes.TrimSpace(complaint.Bytes()))
	}
	return out.Bytes(), nil
}

// layPolicies lays the chart's admission policies and waits until every kube-apiserver holds to them.
func (s *Sandbox) layPolicies(ctx context.Context) error {
	policies, err := s.RenderChart(ctx, "--skip-schema-validation", "--show-only", "templates/policies.yaml", "--set", "policies.breakGlassGroup="+BreakGlassGroup)
	if err != nil {
		return err
	}
	if err := s.ApplyManifest(ctx, Namespace, policies); err != nil {
		return err
	}
	return s.AwaitPolicies(ctx)
}

// AwaitPolicies waits until every kube-apiserver holds to the admission policies.
func (s *Sandbox) AwaitPolicies(ctx context.Context) error {
	waits := make([]func() error, len(s.apiServers))
	for number := range waits {
		waits[number] = func() error {
			check, err := s.policyCheck(number)
			if err != nil {
				return err
			}
			return until(ctx, check.Await)
		}
	}
	if err := together(waits...); err != nil {
		return fmt.Errorf("waiting for the admission policies: %w", err)
	}
	return nil
}

// policyCheck asks a kube-apiserver as the accounts role.
func (s *Sandbox) policyCheck(apiserver int) (*admission.Check, error) {
	configuration, err := clientcmd.BuildConfigFromFlags("", s.serviceAccountKubeconfig("accounts", apiserver))
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(configuration)
	if err != nil {
		return nil, err
	}
	return admission.New(admission.Options{
		Client: client, Namespace: Namespace, Part: "sandbox", Policies: admission.All(),
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
}
