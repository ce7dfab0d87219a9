package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/mintlog/mintlog/cmd/printable"
)

// A definitionsReport is what a check of definitions found; its JSON is what -o json prints.
type definitionsReport struct {
	Definitions []definitionReport `json:"definitions"`
	Unreadable  []unreadableReport `json:"unreadable,omitempty"`
	Problems    int                `json:"problems"`
}

// An unreadableReport is a file, or a document in it, that cannot be read.
type unreadableReport struct {
	From    string `json:"from"`
	Problem string `json:"problem"`
}

type definitionReport struct {
	Name         string              `json:"name"`
	Kind         string              `json:"kind"`
	From         string              `json:"from,omitempty"` // the file
	HasBlock     bool                `json:"hasBlock"`
	Problem      string              `json:"problem,omitempty"` // why the kind is not served, or would not be minted
	Format       *formatReport       `json:"format,omitempty"`
	Applications []applicationReport `json:"applications,omitempty"`
}

type formatReport struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`
	Shape string `json:"shape"` // of a stored password
}

type applicationReport struct {
	Namespace string          `json:"namespace"`
	Release   string          `json:"release"`
	Problem   string          `json:"problem,omitempty"` // why its accounts are not known
	Note      string          `json:"note,omitempty"`    // what was not looked at
	Accounts  []accountReport `json:"accounts"`
}

type accountReport struct {
	Name       string `json:"name"`
	Username   string `json:"username"`
	Served     bool   `json:"served"`
	Credential string `json:"credential,omitempty"`
	Secret     string `json:"secret,omitempty"`
	ValuesPath string `json:"valuesPath,omitempty"` // where the stored form goes in the values
	Platform   bool   `json:"platform,omitempty"`   // left alone, and nothing is wrong
	Reason     string `json:"reason,omitempty"`     // why it is not served
}

// add takes a definition in, and counts what is wrong with it.
func (r *definitionsReport) add(d definitionReport) {
	r.Definitions = append(r.Definitions, d)
	problem := func(wrong bool) {
		if wrong {
			r.Problems++
		}
	}
	problem(d.Problem != "")
	for _, a := range d.Applications {
		problem(a.Problem != "")
		for _, account := range a.Accounts {
			problem(!account.Served && !account.Platform)
		}
	}
}

func (r *definitionsReport) count(unreadable []unreadableReport) {
	r.Unreadable = unreadable
	r.Problems += len(unreadable)
}

func (r *definitionsReport) print(out io.Writer, as string) error {
	if as == "json" {
		var text bytes.Buffer
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(r); err != nil {
			return err
		}
		_, err := out.Write(printable.JSON(text.Bytes()))
		return err
	}
	return r.printTable(out)
}

// printTable prints a table of definitions, one of accounts, and what could not be read or was not looked at.
func (r *definitionsReport) printTable(out io.Writer) error {
	var tail strings.Builder
	definitions := [][]string{{"KIND", "DEFINITION", "STORED AS", "RESULT"}}
	accounts := [][]string{{"KIND", "NAMESPACE", "RELEASE", "ACCOUNT", "USERNAME", "SECRET", "VALUES PATH", "RESULT"}}
	for _, d := range r.Definitions {
		definitions = append(definitions, []string{printable.Name(d.Kind), printable.Name(d.Name), d.shape(), printable.Escape(d.result())})
		for _, a := range d.Applications {
			accounts = append(accounts, a.rows(d.Kind)...)
			if a.Note != "" {
				fmt.Fprintf(&tail, "note: %s/%s: %s\n", printable.Name(a.Namespace), printable.Name(a.Release), printable.Escape(a.Note))
			}
		}
	}
	for _, u := range r.Unreadable {
		fmt.Fprintf(&tail, "cannot be read: %s: %s\n", printable.Name(u.From), printable.Escape(u.Problem))
	}
	for i, rows := range [][][]string{definitions, accounts} {
		if len(rows) == 1 {
			continue
		}
		if i > 0 {
			fmt.Fprintln(out)
		}
		table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
		for _, row := range rows {
			fmt.Fprintln(table, strings.Join(row, "\t"))
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	if tail.Len() > 0 {
		_, err := fmt.Fprintf(out, "\n%s", tail.String())
		return err
	}
	return nil
}

func (d definitionReport) shape() string {
	if d.Format == nil {
		return printable.None
	}
	return fmt.Sprintf("%s: %s", d.Format.Name, d.Format.Shape)
}

func (d definitionReport) result() string {
	switch {
	case d.Problem != "":
		return "not served: " + d.Problem
	case !d.HasBlock:
		return "no spec.credentials"
	}
	return "served"
}

// rows are an application's accounts, or one that says why there are none.
func (a applicationReport) rows(kind string) [][]string {
	cells := func(account, username, secret, path, result string) []string {
		return []string{printable.Name(kind), printable.Name(a.Namespace), printable.Name(a.Release), account, username, secret, path, printable.Escape(result)}
	}
	if a.Problem != "" {
		return [][]string{cells(printable.None, printable.None, printable.None, printable.None, a.Problem)}
	}
	if len(a.Accounts) == 0 {
		return [][]string{cells(printable.None, printable.None, printable.None, printable.None, "no accounts")}
	}
	var rows [][]string
	for _, account := range a.Accounts {
		rows = append(rows, cells(printable.Name(account.Name), printable.Name(account.Username), printable.Name(account.Secret), printable.Name(account.ValuesPath), account.result()))
	}
	return rows
}

func (a accountReport) result() string {
	switch {
	case a.Served:
		return "served"
	case a.Platform:
		return "left alone: " + a.Reason
	}
	return "refused: " + a.Reason
}
