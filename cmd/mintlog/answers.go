package main

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mintlog/mintlog/cmd/printable"
	"github.com/mintlog/mintlog/store/archive"
	"github.com/mintlog/mintlog/store/event"
)

// An answer is one request, in the form of -o json.
type answer struct {
	Time         time.Time      `json:"time"` // of kube-apiserver's reception
	Namespace    string         `json:"namespace"`
	Credential   string         `json:"credential"`
	Operation    string         `json:"operation"`
	Who          string         `json:"who"`
	Through      string         `json:"through,omitempty"`      // the authenticated user, where it is another
	CredentialID string         `json:"credentialID,omitempty"` // of the authenticated user's token or certificate
	Pod          string         `json:"pod,omitempty"`          // whose token it was
	Node         string         `json:"node,omitempty"`
	Address      string         `json:"address,omitempty"` // the one that the client did not choose; a load balancer's perhaps
	UserAgent    string         `json:"userAgent,omitempty"`
	Code         int            `json:"code,omitempty"` // a client can skew it
	Stage        event.Stage    `json:"stage"`
	Effect       archive.Effect `json:"effect"`
	AuditID      string         `json:"auditID"`
	AccountUID   string         `json:"accountUID,omitempty"` // of the account Secret, where there is a commit
	EventID      string         `json:"eventID"`
}

func newAnswer(a *archive.Asked) answer {
	e := &a.Event
	operation, _ := e.Operation()
	namespace, credential := e.Account()
	shown := answer{
		Time: e.RequestReceivedTimestamp, Namespace: namespace, Credential: credential, Operation: string(operation),
		Who: e.EffectiveUser(), Through: e.Impersonator(),
		CredentialID: extra(e, "credential-id"), Pod: extra(e, "pod-name"), Node: extra(e, "node-name"),
		UserAgent: e.UserAgent, Stage: e.Stage, Effect: a.Effect(), AuditID: e.AuditID, EventID: e.Identity(),
	}
	if len(e.SourceIPs) > 0 {
		shown.Address = e.SourceIPs[len(e.SourceIPs)-1]
	}
	if e.ResponseStatus != nil {
		shown.Code = e.ResponseStatus.Code
	}
	if shown.Effect == archive.Done && a.Commit.ObjectRef != nil {
		shown.AccountUID = a.Commit.ObjectRef.UID
	}
	return shown
}

// extra is what kube-apiserver notes of how the authenticated user authenticated. Of the impersonated user it would be
// the impersonator's to choose.
func extra(e *event.Event, key string) string {
	return strings.Join(e.User.Extra["authentication.kubernetes.io/"+key], ",")
}

// with is the credential, and the pod whose it was.
func (a *answer) with() string {
	switch {
	case a.Pod != "" && a.CredentialID != "":
		return a.CredentialID + " of pod " + a.Pod
	case a.Pod != "":
		return "pod " + a.Pod
	}
	return a.CredentialID
}

// code is the answer, as far as there was one.
func (a *answer) code() string {
	if a.Code == 0 {
		return ""
	}
	return strconv.Itoa(a.Code)
}

// answers are printed one after the other. flush prints what was held back.
type answers interface {
	add(a *archive.Asked) error
	flush() error
}

// newAnswers prints to out, which is a terminal of so many columns or, with 0, none.
func newAnswers(output string, out io.Writer, width int) (answers, error) {
	switch output {
	case "table":
		return &tableAnswers{out: out, width: width}, nil
	case "json":
		return jsonAnswers{bufio.NewWriterSize(out, 16<<10)}, nil
	case "csv":
		return &csvAnswers{writer: csv.NewWriter(out)}, nil
	}
	return nil, fmt.Errorf("--output %q: it is table, json or csv", output)
}

var answerColumns = []string{"TIME", "NAMESPACE", "CREDENTIAL", "OPERATION", "WHO", "THROUGH", "WITH", "ANSWER", "EFFECT"}

func (a *answer) cells() []string {
	return []string{
		a.Time.UTC().Format("2006-01-02T15:04:05.000Z"), a.Namespace, a.Credential, a.Operation, a.Who, a.Through, a.with(), a.code(), string(a.Effect),
	}
}

// tableRows is how many rows a table's columns are fitted to at a time, so that the first come soon.
const tableRows = 50

// How a table stands in a terminal, in the order in which it is tried with the first rows.
const (
	wholeTable = iota
	cutTable   // long ids of credentials are cut
	twoLines   // for each answer
)

// tableAnswers is a table for people: what a terminal would act on stands quoted.
type tableAnswers struct {
	out   io.Writer
	width int // of the terminal, in columns; 0: none, and any
	rows  []answer
	begun bool
	form  int
	wide  []int // columns that the cells took until now, so that later rows stand below
}

func (t *tableAnswers) add(a *archive.Asked) error {
	if t.rows = append(t.rows, newAnswer(a)); len(t.rows) < tableRows {
		return nil
	}
	return t.flush()
}

func (t *tableAnswers) flush() error {
	if len(t.rows) == 0 {
		return nil
	}
	var text []byte
	if t.begun {
		text = t.written(t.form, false)
	} else {
		for t.form = wholeTable; ; t.form++ {
			if text = t.written(t.form, true); t.form == twoLines || t.width == 0 || widest(text) <= t.width {
				break
			}
		}
		t.begun = true
	}
	t.rows = nil
	_, err := t.out.Write(text)
	return err
}

// written are the rows in a form. Two lines need no header.
func (t *tableAnswers) written(form int, headed bool) []byte {
	var b bytes.Buffer
	if form == twoLines {
		for _, a := range t.rows {
			b.WriteString(a.lines())
		}
		return b.Bytes()
	}
	table := make([][]string, 0, len(t.rows)+1)
	if headed {
		table, t.wide = append(table, answerColumns), make([]int, len(answerColumns))
	}
	for _, a := range t.rows {
		table = append(table, a.printable(form == cutTable))
	}
	for _, cells := range table {
		for i, cell := range cells {
			t.wide[i] = max(t.wide[i], utf8.RuneCountInString(cell))
		}
	}
	for _, cells := range table {
		last := len(cells) - 1
		for i, cell := range cells[:last] {
			fmt.Fprintf(&b, "%-*s", t.wide[i]+3, cell)
		}
		fmt.Fprintln(&b, cells[last])
	}
	return b.Bytes()
}

// lines are the answer as two lines, the second of who asked.
func (a *answer) lines() string {
	what := []string{a.cells()[0], printable.Word(a.Namespace), printable.Word(a.Credential), a.Operation}
	if a.Code != 0 {
		what = append(what, a.code())
	}
	who := []string{"by", printable.Word(a.Who)}
	if a.Through != "" {
		who = append(who, "through", printable.Word(a.Through))
	}
	if with := a.with(); with != "" {
		who = append(who, "with", printable.Name(with))
	}
	return strings.Join(append(what, string(a.Effect)), " ") + "\n   " + strings.Join(who, " ") + "\n"
}

// widest is the length of a text's longest line, in characters.
func widest(text []byte) int {
	most := 0
	for line := range bytes.Lines(text) {
		most = max(most, utf8.RuneCount(bytes.TrimRight(line, "\n")))
	}
	return most
}

// cutID is how much of a long id of a credential stands in a table that would be too wide.
const cutID = 20

// printable are the cells as a terminal may have them.
func (a *answer) printable(cut bool) []string {
	shown := *a
	if cut && len(shown.CredentialID) > cutID+3 && utf8.RuneCountInString(shown.CredentialID) == len(shown.CredentialID) {
		shown.CredentialID = shown.CredentialID[:cutID] + "..."
	}
	cells := shown.cells()
	for i := range cells {
		if cells[i] == "" {
			cells[i] = "-"
		} else {
			cells[i] = printable.Name(cells[i])
		}
	}
	return cells
}

// jsonAnswers is one object a line.
type jsonAnswers struct{ out *bufio.Writer }

func (j jsonAnswers) add(a *archive.Asked) error {
	text, err := json.Marshal(newAnswer(a))
	if err != nil {
		return err
	}
	_, err = j.out.Write(append(printable.JSON(text), '\n'))
	return err
}

func (j jsonAnswers) flush() error { return j.out.Flush() }

// csvAnswers is for spreadsheets: RFC 4180, with the columns' names.
type csvAnswers struct {
	writer *csv.Writer
	begun  bool
}

func (c *csvAnswers) add(a *archive.Asked) error {
	if !c.begun {
		c.begun = true
		if err := c.writer.Write(answerColumns); err != nil {
			return err
		}
	}
	shown := newAnswer(a)
	cells := shown.cells()
	for i := range cells {
		cells[i] = harmlessCell(cells[i])
	}
	return c.writer.Write(cells)
}

func (c *csvAnswers) flush() error {
	c.writer.Flush()
	return c.writer.Error()
}

// harmlessCell keeps a spreadsheet from taking a name for a formula, and a terminal from acting on it.
func harmlessCell(cell string) string {
	cell = printable.Escape(cell)
	if cell != "" && strings.ContainsRune("=+-@", rune(cell[0])) {
		return "'" + cell
	}
	return cell
}
