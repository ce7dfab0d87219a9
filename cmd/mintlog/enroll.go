package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mintlog/mintlog/cmd/printable"
	"github.com/mintlog/mintlog/mint/enrolment"
)

// enrolFlags say as whom namespaces are enrolled, and in which installation.
type enrolFlags struct {
	kubeconfig, context string
	identities          enrolment.Identities
	dryRun              bool
}

func (f *enrolFlags) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of an administrator; default: $KUBECONFIG, or ~/.kube/config")
	flags.StringVar(&f.context, "context", "", "context in it")
	flags.StringVar(&f.identities.Namespace, "namespace", "mintlog", "namespace of mintlog itself")
	flags.StringVar(&f.identities.Mint, "mint-service-account", "mint", "ServiceAccount of the mint server")
	flags.StringVar(&f.identities.Accounts, "accounts-service-account", "accounts", "ServiceAccount of the accounts role")
	flags.StringVar(&f.identities.Projector, "projector-service-account", "projector", "ServiceAccount of the projector")
}

func (f *enrolFlags) bindDryRun(flags *pflag.FlagSet) {
	flags.BoolVar(&f.dryRun, "dry-run", false, "ask kube-apiserver, and change nothing")
}

func (f *enrolFlags) open() (*enrolment.Enroller, error) {
	c, err := f.config("enroll")
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	return &enrolment.Enroller{Client: client, Identities: f.identities, DryRun: f.dryRun}, nil
}

// config is the connection of the administrator.
func (f *enrolFlags) config(userAgent string) (*rest.Config, error) {
	if f.identities.Namespace == "" || f.identities.Mint == "" || f.identities.Accounts == "" || f.identities.Projector == "" {
		return nil, errors.New("--namespace and the --…-service-account flags are needed: the bindings name them")
	}
	return administrator(f.kubeconfig, f.context, "mintlog-"+userAgent)
}

// forEach does something for each namespace, and goes on with the next where it fails.
func (f *enrolFlags) forEach(ctx context.Context, out io.Writer, namespaces []string, do func(context.Context, string) ([]enrolment.Change, error)) error {
	var failures []error
	for _, namespace := range namespaces {
		changes, err := do(ctx, namespace)
		for _, c := range changes {
			fmt.Fprintf(out, "%s: %s %s%s\n", c.Namespace, printable.Escape(c.Object), c.Done, f.note())
		}
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}

func (f *enrolFlags) note() string {
	if f.dryRun {
		return " (dry run)"
	}
	return ""
}

func enrollCommand() *cobra.Command {
	var f enrolFlags
	c := &cobra.Command{
		Use:   "enroll NAMESPACE…",
		Short: "Let mintlog make and serve the accounts of namespaces",
		Long: `enroll binds the ClusterRoles mintlog-mint and mintlog-accounts in each namespace, to
the mint server and the accounts role. There they can then read every Secret: RBAC
cannot narrow a list to account Secrets. It runs with your rights: you must be allowed
to write RoleBindings there, and to bind these roles or hold what they grant.

Done twice it changes nothing. A tenant's chart can render the two RoleBindings itself.

The accounts role sees within three minutes that a namespace was let in, and makes its
accounts and the projector's grants.`,
		Example: `  mintlog enroll tenant-acme tenant-beta
  mintlog enroll tenant-acme --dry-run`,
		Args: someNamespaces,
		RunE: func(c *cobra.Command, namespaces []string) error {
			e, err := f.open()
			if err != nil {
				return err
			}
			if err := e.Check(c.Context()); err != nil {
				return err
			}
			return f.forEach(c.Context(), c.OutOrStdout(), namespaces, e.Enroll)
		},
	}
	f.bind(c.Flags())
	f.bindDryRun(c.Flags())
	return c
}

func someNamespaces(_ *cobra.Command, namespaces []string) error {
	if len(namespaces) == 0 {
		return errors.New("name the namespaces")
	}
	return nil
}

func unenrollCommand() *cobra.Command {
	var f enrolFlags
	c := &cobra.Command{
		Use:   "unenroll NAMESPACE…",
		Short: "Take mintlog out of namespaces",
		Long: `unenroll deletes the RoleBindings of the mint server and the accounts role in each
namespace, and after them the grants of the projector, each RoleBinding before its
Role. It runs with your rights.

Account Secrets stay, and the passwords in them go on working: delete the Secrets
yourself if they must not (it takes the break-glass group while the admission policies
are in force). A RoleBinding that a tenant's chart renders comes back with its next
upgrade. kube-apiserver lets a watch that is open go on for up to ten minutes: until then
the parts that run still see account Secrets that change; a restart ends it.`,
		Example: `  mintlog unenroll tenant-acme --dry-run
  mintlog unenroll tenant-acme`,
		Args: someNamespaces,
		RunE: func(c *cobra.Command, namespaces []string) error {
			e, err := f.open()
			if err != nil {
				return err
			}
			return f.forEach(c.Context(), c.OutOrStdout(), namespaces, func(ctx context.Context, namespace string) ([]enrolment.Change, error) {
				changes, err := e.Unenroll(ctx, namespace)
				if err != nil {
					return changes, err
				}
				count, err := e.Remaining(ctx, namespace)
				if err == nil {
					fmt.Fprintf(c.OutOrStdout(), "%s: %d account Secrets stay%s\n", namespace, count, f.note())
				}
				return changes, err
			})
		},
	}
	f.bind(c.Flags())
	f.bindDryRun(c.Flags())
	return c
}

func enrolledCommand() *cobra.Command {
	var f enrolFlags
	c := &cobra.Command{
		Use:   "enrolled",
		Short: "List the namespaces that mintlog is let into",
		Long: `enrolled lists the namespaces where mint server or accounts role are bound, how many
applications the projector is granted there, and whoever else holds one of the roles.`,
		Example: `  mintlog enrolled`,
		RunE: func(c *cobra.Command, _ []string) error {
			e, err := f.open()
			if err != nil {
				return err
			}
			all, err := e.Enrolled(c.Context())
			if err != nil {
				return err
			}
			if len(all) == 0 {
				fmt.Fprintln(c.ErrOrStderr(), "no namespace is enrolled")
				return nil
			}
			return printEnrolments(c.OutOrStdout(), all)
		},
	}
	f.bind(c.Flags())
	return noArguments(c)
}

func printEnrolments(out io.Writer, all []enrolment.Enrolment) error {
	yes := map[bool]string{true: "yes", false: "no"}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "NAMESPACE\tMINT\tACCOUNTS\tGRANTS\tOTHERS")
	for _, n := range all {
		others := "-"
		if len(n.Others) > 0 {
			others = printable.Escape(strings.Join(n.Others, ", "))
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\n", n.Namespace, yes[n.Mint], yes[n.Accounts], n.Grants, others)
	}
	return table.Flush()
}
