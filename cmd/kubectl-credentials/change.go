package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mintlog/mintlog/cmd/printable"
	"github.com/mintlog/mintlog/mint/api/v1alpha1"
)

const ownTime = "It is stored; the application's engine applies it in its own time"

// changeFlags are what mint and revoke have in common.
type changeFlags struct {
	id       string
	revision int64
	dryRun   string
}

func (f *changeFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.id, "if-id", "", "Only if this is the id of the newest operation, as history and mint show it. What scripts should use.")
	cmd.Flags().Int64Var(&f.revision, "if-revision", 0, "Only if this is the revision of the newest operation; 0: only if the account Secret does not exist yet.")
	cmd.Flags().StringVar(&f.dryRun, "dry-run", "none", `"server": have everything checked, change nothing and print nothing on standard output.`)
}

// call is what the flags ask for. An empty --if-id is a script's unset variable, and must not mean "whatever it is".
func (f *changeFlags) call(cmd *cobra.Command, subresource, argument string) (call, *v1alpha1.Preconditions, error) {
	a := call{credential: credentialName(argument), subresource: subresource, dryRun: f.dryRun == "server"}
	var p v1alpha1.Preconditions
	if cmd.Flags().Changed("if-id") {
		if f.id == "" {
			return a, nil, usage("--if-id is empty")
		}
		p.ID, a.conditional = &f.id, true
	}
	if cmd.Flags().Changed("if-revision") {
		if f.revision < 0 {
			return a, nil, usage("--if-revision is %d, and no revision is below 0", f.revision)
		}
		p.Revision, a.conditional = &f.revision, true
	}
	if f.dryRun != "none" && f.dryRun != "server" {
		return a, nil, usage("--dry-run is %q: it is server or none, for nothing but the server can tell", f.dryRun)
	}
	if !a.conditional {
		return a, nil, nil
	}
	return a, &p, nil
}

// open is call with a connection to make it on. Flags that are wrong are told of before anything is opened.
func (f *changeFlags) open(cmd *cobra.Command, c *connection, subresource, argument string) (*client, call, *v1alpha1.Preconditions, error) {
	a, preconditions, err := f.call(cmd, subresource, argument)
	if err != nil {
		return nil, a, nil, err
	}
	client, err := c.open()
	if err != nil {
		return nil, a, nil, err
	}
	a.namespace = client.namespace
	return client, a, preconditions, nil
}

func newRevoke(c *connection) *cobra.Command {
	var flags changeFlags
	var yes bool
	cmd := &cobra.Command{
		Use:   "revoke NAME",
		Short: "Replace the password by one that nobody knows",
		Long: `Replace the password of a credential by one that nobody knows. Standard output stays empty. Without a terminal to
ask on, --yes is needed.

The replacement is stored when the command returns. The application's engine applies it in its own time, and until then
the password before is valid; connections that are open may stay open. To let somebody in again, mint.`,
		Example: `  kubectl credentials revoke postgres-orders.app
  kubectl credentials revoke postgres-orders.app --yes --if-revision 4
  kubectl credentials revoke postgres-orders.app --dry-run=server`,
		Args:              oneName,
		ValidArgsFunction: c.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, a, preconditions, err := flags.open(cmd, c, v1alpha1.RevokeSubresource, args[0])
			if err != nil {
				return err
			}
			if !yes && !a.dryRun {
				if err := confirmRevoke(cmd.Context(), c.terminal, a); err != nil {
					return err
				}
			}
			answer, err := client.change(cmd.Context(), a, v1alpha1.CredentialRevokeKind, preconditions)
			if err != nil {
				return err
			}
			return showRevoke(c.terminal, a, answer)
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "Do not ask.")
	return cmd
}

func showRevoke(t terminal, a call, answer v1alpha1.MintStatus) error {
	if a.dryRun {
		sayDryRun(t, a, "the password would be replaced by one that nobody knows", answer)
		return nil
	}
	if answer.ID == "" {
		return other(a.unknown(), "the server answered without saying what it did")
	}
	fmt.Fprintf(t.err, "The password of user %s of %s in %s is replaced by one that nobody knows.\n", printable.Name(answer.Username), printable.Name(a.credential), printable.Name(a.namespace))
	sayOperation(t, a, answer)
	fmt.Fprintf(t.err, "%s: until then the password before, if one was issued, is valid, and connections that are open may stay open.\n", ownTime)
	return nil
}

func confirmRevoke(ctx context.Context, t terminal, a call) error {
	if !t.interactive {
		return usage("there is no terminal to ask on: give --yes to revoke %s without being asked", printable.Name(a.credential))
	}
	return confirm(ctx, t, fmt.Sprintf("Revoke the password of %s in %s? Whoever uses it will be locked out.", printable.Name(a.credential), printable.Name(a.namespace)))
}

// confirm asks a question on the terminal, and gives up when the context ends.
func confirm(ctx context.Context, t terminal, question string) error {
	fmt.Fprintf(t.err, "%s [y/N] ", question)
	answered := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(t.in).ReadString('\n') // the end of the input is no "yes"
		answered <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case answer := <-answered:
		if answer == "y" || answer == "yes" {
			return nil
		}
	case <-ctx.Done():
		fmt.Fprintln(t.err)
	}
	return other("", "not confirmed, nothing was changed")
}

// change asks for a mint or revoke. The answer to a revoke is that to a mint without a password.
func (c *client) change(ctx context.Context, a call, kind string, preconditions *v1alpha1.Preconditions) (v1alpha1.MintStatus, error) {
	var asked request
	asked.APIVersion, asked.Kind = v1alpha1.SchemeGroupVersion.String(), kind
	asked.Spec.Preconditions = preconditions
	body, err := json.Marshal(asked)
	if err != nil {
		return v1alpha1.MintStatus{}, fmt.Errorf("encoding the request: %w", err)
	}
	var answer v1alpha1.CredentialMint
	if err := c.post(ctx, a, body, &answer); err != nil {
		return v1alpha1.MintStatus{}, err
	}
	return answer.Status, nil
}

// A request is a CredentialMint or CredentialRevoke without what the server fills in.
type request struct {
	metav1.TypeMeta `json:",inline"`
	Spec            v1alpha1.MintSpec `json:"spec"`
}

func sayDryRun(t terminal, a call, would string, answer v1alpha1.MintStatus) {
	fmt.Fprintf(t.err, "Dry run: for user %s of %s in %s %s", printable.Name(answer.Username), printable.Name(a.credential), printable.Name(a.namespace), would)
	if answer.Revision > 0 {
		fmt.Fprintf(t.err, ", as revision %d", answer.Revision)
	}
	fmt.Fprintln(t.err, ". Nothing was changed.")
}

func sayOperation(t terminal, a call, answer v1alpha1.MintStatus) {
	at := printable.None
	if !answer.At.IsZero() {
		at = exact(answer.At.Time)
	}
	fmt.Fprintf(t.err, "Revision %d at %s, id %s (as --if-id, the next one fails if somebody came in between).\n", answer.Revision, at, printable.Name(answer.ID))
	fmt.Fprintf(t.err, "Who asked, on the audit log's word: %s\n", a.history())
}
