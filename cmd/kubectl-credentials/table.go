package main

import (
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"k8s.io/cli-runtime/pkg/printers"
)

// between is the room between two columns, as printers.GetNewTabWriter leaves it.
const between = 3

// A grid is a table of cells that are safe to print.
type grid struct {
	header []string
	rows   [][]string
}

// fit leaves columns out, in the order given, until the grid is no wider than width, and returns their names. Width 0 is
// any.
func (g *grid) fit(width int, expendable ...string) []string {
	var missing []string
	for _, name := range expendable {
		if width == 0 || g.width() <= width {
			break
		}
		i := slices.Index(g.header, name)
		if i < 0 {
			continue
		}
		g.header = slices.Delete(slices.Clone(g.header), i, i+1)
		for r, row := range g.rows {
			g.rows[r] = slices.Delete(slices.Clone(row), i, i+1)
		}
		missing = append(missing, name)
	}
	return missing
}

// width is how many columns of a terminal the grid needs.
func (g *grid) width() int {
	all := 0
	for i, name := range g.header {
		widest := utf8.RuneCountInString(name)
		for _, row := range g.rows {
			if i < len(row) {
				widest = max(widest, utf8.RuneCountInString(row[i]))
			}
		}
		all += widest + between
	}
	return all - between
}

func (g *grid) print(to io.Writer, headed bool) error {
	w := printers.GetNewTabWriter(to)
	line := func(cells []string) { _, _ = io.WriteString(w, strings.Join(cells, "\t")+"\n") } // Flush has the error
	if headed {
		line(g.header)
	}
	for _, row := range g.rows {
		line(row)
	}
	return w.Flush()
}

// wrapped is a text as lines of at most width runes where its words allow, each with the indent. Width 0: one line.
func wrapped(text, indent string, width int) string {
	if width == 0 {
		return indent + text + "\n"
	}
	var b strings.Builder
	line := indent
	for _, word := range strings.Split(text, " ") {
		if line != indent && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			b.WriteString(line + "\n")
			line = indent
		}
		if line != indent {
			line += " "
		}
		line += word
	}
	return b.String() + line + "\n"
}
