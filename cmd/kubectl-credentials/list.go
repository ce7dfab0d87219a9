package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	k8sjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/mintlog/mintlog/cmd/printable"
	"github.com/mintlog/mintlog/mint/api/v1alpha1"
)

const acceptTable = "application/json;as=Table;v=v1;g=meta.k8s.io"

var listFormats = []string{"wide", "json", "yaml", "name"}

// A listing is one command `list`, as its flags say.
type listing struct {
	output    string // empty: a table
	selector  string
	all       bool // namespaces
	noHeaders bool
}

func newList(c *connection) *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls", "get"},
		Short:   "List the credentials of a namespace, or of all that you may read",
		Long: `List the credentials of the namespace: where each password came from, when it last changed, by whom, and whether
the audit log agrees. A declared account that has no password yet may not be listed; it can be minted all the same.

With --all-namespaces each namespace that you may see is asked. Those that are not enrolled, or in which you may not list
credentials, are passed over and named on standard error.

On a terminal that is too narrow, columns are left out, and said to be; -o wide leaves none out.`,
		Example: `  kubectl credentials list
  kubectl credentials list -n tenant-acme -o wide
  kubectl credentials list -A -l apps.cozystack.io/application.kind=Postgres
  kubectl credentials list -o json | jq -r '.items[] | select(.status.findings) | .metadata.name'`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := l.check(); err != nil {
				return err
			}
			client, err := c.open()
			if err != nil {
				return err
			}
			return l.run(cmd.Context(), client, c.terminal)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&l.output, "output", "o", "", "Output format: json, yaml, name or wide; a table if absent.")
	flags.StringVarP(&l.selector, "selector", "l", "", "Labels, as in -l apps.cozystack.io/application.name=orders.")
	flags.BoolVarP(&l.all, "all-namespaces", "A", false, "All namespaces in which you may list credentials.")
	flags.BoolVar(&l.noHeaders, "no-headers", false, "Print the table without its headers.")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(listFormats, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("this command takes no argument, and %q is one", args[0])
	}
	return nil
}

func (l *listing) check() error {
	if l.output != "" && !slices.Contains(listFormats, l.output) {
		return usage("there is no output format %q: it is json, yaml, name or wide", l.output)
	}
	if _, err := labels.Parse(l.selector); err != nil {
		return usage("--selector: %s", err)
	}
	return nil
}

// A page is the body of one namespace's list.
type page struct {
	namespace string
	body      []byte
}

func (l *listing) run(ctx context.Context, c *client, t terminal) error {
	accept := runtime.ContentTypeJSON
	if l.output == "" || l.output == "wide" {
		accept = acceptTable
	}
	pages, err := l.pages(ctx, c, t, accept)
	if err != nil {
		return err
	}
	switch l.output {
	case "", "wide":
		return l.printTable(t, c.namespace, pages)
	case "name":
		return l.printNames(t, pages)
	default:
		return l.printObjects(t, pages)
	}
}

func (l *listing) pages(ctx context.Context, c *client, t terminal, accept string) ([]page, error) {
	if l.all {
		return c.listAll(ctx, t, l.selector, accept)
	}
	body, err := c.list(ctx, c.namespace, l.selector, accept)
	return []page{{c.namespace, body}}, err
}

// printTable prints the tables that the server makes of the lists.
func (l *listing) printTable(t terminal, namespace string, pages []page) error {
	var g grid
	for _, p := range pages {
		if err := l.append(&g, p); err != nil {
			return err
		}
	}
	if len(g.rows) == 0 {
		where := "in " + printable.Name(namespace)
		if l.all {
			where = "in any namespace that could be read"
		}
		fmt.Fprintf(t.err, "No credentials %s.\n", where)
		return nil
	}
	if l.output != "wide" {
		if missing := g.fit(t.width, "AGE", "USERNAME"); len(missing) > 0 {
			defer fmt.Fprintf(t.err, "Too wide for this terminal: %s. All of it: -o wide.\n", strings.Join(missing, ", "))
		}
	}
	return written(g.print(t.out, !l.noHeaders))
}

// append adds one namespace's table to the grid. Cells hold user names, which a terminal must not act on; the columns are
// the server's too. What the server put in angle brackets stays as it is: <pending> is its word for a name that is not
// there.
func (l *listing) append(g *grid, p page) error {
	var table metav1.Table
	if err := k8sjson.UnmarshalCaseSensitivePreserveInts(p.body, &table); err != nil || table.Kind != "Table" {
		return other("", "the server's answer is not a table")
	}
	var header []string
	if l.all {
		header = append(header, "NAMESPACE")
	}
	for _, column := range table.ColumnDefinitions {
		if l.output == "wide" || column.Priority == 0 {
			header = append(header, strings.ToUpper(printable.Escape(column.Name)))
		}
	}
	if g.header != nil && !slices.Equal(g.header, header) {
		return other("", "the server's tables of two namespaces have different columns; -o json does without")
	}
	g.header = header
	for _, row := range table.Rows {
		var cells []string
		if l.all {
			cells = append(cells, printable.Name(p.namespace))
		}
		for i, cell := range row.Cells {
			if i < len(table.ColumnDefinitions) && (l.output == "wide" || table.ColumnDefinitions[i].Priority == 0) {
				cells = append(cells, cellText(cell))
			}
		}
		g.rows = append(g.rows, cells)
	}
	return nil
}

func cellText(cell any) string {
	s, isText := cell.(string)
	switch {
	case cell == nil:
		return ""
	case !isText:
		return printable.Escape(fmt.Sprint(cell))
	case s == "" || strings.HasPrefix(s, "<"):
		return printable.Escape(s)
	default:
		return printable.Name(s)
	}
}

func (l *listing) printNames(t terminal, pages []page) error {
	for _, p := range pages {
		names, err := names(p.body)
		if err != nil {
			return other("", "%w", err)
		}
		for _, n := range names {
			if _, err := fmt.Fprintf(t.out, "credential.%s/%s\n", v1alpha1.GroupName, printable.Name(n)); err != nil {
				return written(err)
			}
		}
	}
	return nil
}

// printObjects prints one list: what the server sent, or the lists of all namespaces in one.
func (l *listing) printObjects(t terminal, pages []page) error {
	if !l.all {
		return printObject(t.out, pages[0].body, l.output)
	}
	list := struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        struct{}          `json:"metadata"`
		Items           []json.RawMessage `json:"items"`
	}{Items: []json.RawMessage{}}
	list.APIVersion, list.Kind = v1alpha1.SchemeGroupVersion.String(), v1alpha1.CredentialListKind
	for _, p := range pages {
		var one struct {
			Items []json.RawMessage `json:"items"`
		}
		if err := json.Unmarshal(p.body, &one); err != nil {
			return other("", "the server's answer is not a list: %w", err)
		}
		list.Items = append(list.Items, one.Items...)
	}
	body, err := json.Marshal(list)
	if err != nil {
		return other("", "putting the lists together: %w", err)
	}
	return printObject(t.out, body, l.output)
}

// printObject prints what the server sent, as json or yaml.
func printObject(w io.Writer, text []byte, format string) error {
	var object any
	if err := k8sjson.UnmarshalCaseSensitivePreserveInts(text, &object); err != nil {
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
