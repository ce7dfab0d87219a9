package check

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// A Report writes what is found while it is found, so that it need not be kept.
type Report interface {
	begin(path string) error
	problem(p Problem) error
	end(counts Counts, hidden int64) error // hidden problems were counted, and not reported
	total(logs int, counts Counts) error
}

// name is how a log is called. A path that a terminal would act on is quoted.
func name(path string) string {
	if path == StandardInput {
		return "(standard input)"
	}
	if quoted := strconv.Quote(path); quoted != `"`+path+`"` {
		return quoted
	}
	return path
}

type text struct{ out *bufio.Writer }

// Text reports for people.
func Text(out io.Writer) Report { return &text{bufio.NewWriter(out)} }

func (t *text) begin(path string) error {
	_, err := fmt.Fprintln(t.out, name(path))
	return err
}

func (t *text) problem(p Problem) error {
	fmt.Fprint(t.out, "  could not read ")
	if p.Line > 0 {
		fmt.Fprintf(t.out, "line %d at byte %d", p.Line, p.Offset)
	} else {
		fmt.Fprint(t.out, "the log")
	}
	if p.Bytes > 0 {
		fmt.Fprintf(t.out, " (%d bytes)", p.Bytes)
	}
	fmt.Fprint(t.out, ": ", strings.ReplaceAll(p.Reason, "_", " "))
	if p.Detail != "" {
		fmt.Fprint(t.out, ": ", p.Detail)
	}
	_, err := fmt.Fprintln(t.out)
	return err
}

func (t *text) end(counts Counts, hidden int64) error {
	if hidden > 0 {
		fmt.Fprintf(t.out, "  could not read %d more places; --all prints them\n", hidden)
	}
	last := ""
	if counts.NoLineBreak > 0 {
		last = "the last has no line break"
	}
	return t.counts(counts, last)
}

func (t *text) total(logs int, counts Counts) error {
	if logs < 2 {
		return nil
	}
	fmt.Fprintln(t.out, "total")
	last := ""
	if counts.NoLineBreak > 0 {
		last = fmt.Sprintf("logs that end in one without line break: %d", counts.NoLineBreak)
	}
	return t.counts(counts, last)
}

// counts writes the table of c, and last about its lines.
func (t *text) counts(c Counts, last string) error {
	row := func(label string, n int64, more string) {
		fmt.Fprintln(t.out, strings.TrimRight(fmt.Sprintf("  %-12s %12d  %s", label, n, more), " "))
	}
	row("bytes", c.Bytes, "")
	row("lines", c.Lines, last)
	row("events", c.Events, "")
	row("matches", c.Matches(), "")
	if c.Matches() > 0 {
		row("  mint", c.Mint.sum(), c.Mint.String())
		row("  revoke", c.Revoke.sum(), c.Revoke.String())
		row("  writes", c.Writes, "")
	}
	row("unreadable", c.Unreadable, fmt.Sprintf("%d bytes", c.UnreadableBytes))
	return t.out.Flush()
}

// String lists the stages that there are.
func (s *Stages) String() string {
	var parts []string
	for _, stage := range []struct {
		name string
		n    int64
	}{
		{"RequestReceived", s.RequestReceived}, {"ResponseComplete", s.ResponseComplete}, {"Panic", s.Panic}, {"other", s.Other},
	} {
		if stage.n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", stage.name, stage.n))
		}
	}
	return strings.Join(parts, ", ")
}

type document struct {
	out             *bufio.Writer
	files, problems int // written so far; problems of this file
}

// JSON reports for programs: one document with the list "files", each with its "problems" and "counts", and "total".
func JSON(out io.Writer) Report { return &document{out: bufio.NewWriter(out)} }

func (d *document) write(before string, value any) error {
	encoded, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(d.out, "%s%s", before, encoded)
	return err
}

func (d *document) begin(path string) error {
	before := `{"files":[`
	if d.files > 0 {
		before = ","
	}
	d.files, d.problems = d.files+1, 0
	if err := d.write(before+"\n"+`{"file":`, path); err != nil {
		return err
	}
	_, err := d.out.WriteString(`,"problems":[`)
	return err
}

func (d *document) problem(p Problem) error {
	before := "\n"
	if d.problems > 0 {
		before = ",\n"
	}
	d.problems++
	return d.write(before, p)
}

func (d *document) end(counts Counts, _ int64) error {
	if err := d.write(`],"counts":`, counts); err != nil {
		return err
	}
	d.out.WriteByte('}')
	return d.out.Flush()
}

func (d *document) total(_ int, counts Counts) error {
	if err := d.write("\n"+`],"total":`, counts); err != nil {
		return err
	}
	d.out.WriteString("}\n")
	return d.out.Flush()
}
