package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/mintlog/mintlog/cmd/printable"
	"github.com/mintlog/mintlog/mint/api/v1alpha1"
)

const acceptTable = "application/json;as=Table;v=v1;g=meta.k8s.io"

func newList(c *connection) *cobra.Command {
	var output string
	var noHeaders bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls", "get"},
		Short:   "List the credentials of the namespace",
		Long: `List the credentials of the namespace: where each password came from, when it last changed, by whom, and whether
the audit log agrees. A declared account that has no password yet may not be listed; it can be minted all the same.`,
		Example: `  kubectl credentials list
  kubectl credentials list -n tenant-acme -o wide
  kubectl credentials list -o json | jq -r '.items[] | select(.status.findings) | .metadata.name'`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := c.open()
			if err != nil {
				return err
			}
			switch output {
			case "", "wide":
				return client.printTable(cmd.Context(), c.terminal, printers.PrintOptions{Wide: output == "wide", NoHeaders: noHeaders})
			case "name":
				return client.printNames(cmd.Context(), c.terminal.out)
			case "json", "yaml":
				text, err := client.list(cmd.Context(), runtime.ContentTypeJSON)
				if err != nil {
					return err
				}
				return printObject(c.terminal.out, text, output)
			default:
				return usage("there is no output format %q: it is json, yaml, name or wide", output)
			}
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "Output format: json, yaml, name or wide; a table if absent.")
	cmd.Flags().BoolVar(&noHeaders, "no-headers", false, "Print the table without its headers.")
	return cmd
}

func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("this command takes no argument, and %q is one", args[0])
	}
	return nil
}

// printTable prints the table that the server makes of the list.
func (c *client) printTable(ctx context.Context, t terminal, options printers.PrintOptions) error {
	text, err := c.list(ctx, acceptTable)
	if err != nil {
		return err
	}
	var table metav1.Table
	if err := json.UnmarshalCaseSensitivePreserveInts(text, &table); err != nil || table.Kind != "Table" {
		return other("", "the server's answer is not a table")
	}
	if len(table.Rows) == 0 {
		fmt.Fprintf(t.err, "No credentials in %s.\n", printable.Name(c.namespace))
		return nil
	}
	makePrintable(&table)
	w := printers.GetNewTabWriter(t.out)
	if err := printers.NewTablePrinter(options).PrintObj(&table, w); err != nil {
		return other("", "printing the table: %w", err)
	}
	return written(w.Flush())
}

// makePrintable quotes what a terminal would act on. Cells hold user names; the columns are the server's too. What the
// server put in angle brackets stays as it is: <pending> is its word for a name that is not there.
func makePrintable(table *metav1.Table) {
	for i := range table.ColumnDefinitions {
		table.ColumnDefinitions[i].Name = printable.Escape(table.ColumnDefinitions[i].Name)
	}
	for _, row := range table.Rows {
		for i, cell := range row.Cells {
			if s, ok := cell.(string); ok && !strings.HasPrefix(s, "<") && s != "" {
				row.Cells[i] = printable.Name(s)
			} else if ok {
				row.Cells[i] = printable.Escape(s)
			}
		}
	}
}

func (c *client) printNames(ctx context.Context, w io.Writer) error {
	names, err := c.names(ctx)
	if err != nil {
		return err
	}
	for _, n := range names {
		if _, err := fmt.Fprintf(w, "credential.%s/%s\n", v1alpha1.GroupName, printable.Name(n)); err != nil {
			return written(err)
		}
	}
	return nil
}

// printObject prints what the server sent, as json or yaml.
func printObject(w io.Writer, text []byte, format string) error {
	var object any
	if err := json.UnmarshalCaseSensitivePreserveInts(text, &object); err != nil {
		return other("", "the server's answer is not JSON")
	}
	out, err := printable.Indented(object)
	if err == nil && format == "yaml" {
		// YAML may show a character as it is that JSON can hide: then the JSON will do, which is YAML as well.
		if y, failed := yaml.Marshal(object); failed == nil && printable.Safe(y) {
			out = y
		}
	}
	if err != nil {
		return other("", "printing the server's answer: %w", err)
	}
	_, err = w.Write(out)
	return written(err)
}
