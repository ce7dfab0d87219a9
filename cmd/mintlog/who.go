package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mintlog/mintlog/cmd/printable"
	"github.com/mintlog/mintlog/store/archive"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/ledger"
)

// whoFlags say what is asked of the archive.
type whoFlags struct {
	archive                         archiveFlags
	since, until                    moment
	namespace, credential, by, verb string
	denied, follow                  bool
	limit                           int
	output                          string
	mintUsers                       []string
}

func whoCommand() *cobra.Command {
	f := &whoFlags{since: moment{text: "24h", ago: 24 * time.Hour}}
	c := &cobra.Command{
		Use:   "who",
		Short: "Ask the archive who rotated which password",
		Long: `who asks VictoriaLogs who asked for mints and revokes, newest first: who (WHO), on
behalf of whom somebody else logged in (THROUGH is who really did), with which
credential (WITH: the id of a token or the digest of a certificate, and the pod of a
ServiceAccount), with what answer, and what became of it (EFFECT):

  Done      the mint server's write of the password stands in the log as well
  Reported  the mint server answered with success; the archive has no write
  Unknown   no answer that proves anything and no write: a client can skew the answer
            that is logged. "kubectl credentials history" knows, from the ledger

Without --denied, what was refused and what was a dry run is left out: it changed
nothing. Events are found in both shapes, mintlog's own and Cozystack's pipeline's.`,
		Example: `  mintlog who --since 30d --namespace tenant-acme
  mintlog who --credential postgres-orders.app --until 2026-03-01 -o json
  mintlog who --by jane --operation revoke
  mintlog who --denied --since 1h
  mintlog who --follow`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := checkGiven(c.Flags(), "namespace", "credential", "by", "operation"); err != nil {
				return err
			}
			return f.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), time.Now)
		},
	}
	flags := c.Flags()
	f.archive.bind(flags)
	flags.Var(&f.since, "since", "begin there: a duration before now (90m, 30d), a day or a time (2026-03-01T12:00:00Z)")
	flags.Var(&f.until, "until", "end there, in the same words; default: now")
	flags.StringVarP(&f.namespace, "namespace", "n", "", "only this namespace; default: all")
	flags.StringVar(&f.credential, "credential", "", "only this credential, <release>.<account>")
	flags.StringVar(&f.by, "by", "", "only what this user asked for, or asked for on behalf of another")
	flags.StringVar(&f.verb, "operation", "", "mint or revoke; default: both")
	flags.BoolVar(&f.denied, "denied", false, "only what was refused")
	flags.IntVar(&f.limit, "limit", 0, "the newest this many; default: all")
	flags.BoolVarP(&f.follow, "follow", "f", false, "go on with what comes, oldest first, until interrupted")
	flags.StringVarP(&f.output, "output", "o", "table", "table, json (one object a line) or csv")
	flags.StringSliceVar(&f.mintUsers, "mint-user", []string{"system:serviceaccount:mintlog:mint"}, "user names of the mint server: the write of nobody else is a commit")
	return noArguments(c)
}

// checkGiven wants a text in the flags that narrow an answer: one that a script left empty would give everybody's.
func checkGiven(flags *pflag.FlagSet, names ...string) error {
	for _, name := range names {
		if flag := flags.Lookup(name); flag.Changed && flag.Value.String() == "" {
			return fmt.Errorf("--%s is empty: leave it away to ask about all", name)
		}
	}
	return nil
}

// query is what the flags ask for, seen from now.
func (f *whoFlags) query(now time.Time) (archive.Query, error) {
	q := archive.Query{Start: f.since.from(now), End: f.until.from(now), Namespace: f.namespace, Credential: f.credential, User: f.by}
	switch strings.ToLower(f.verb) {
	case "":
	case "mint":
		q.Operation = ledger.Mint
	case "revoke":
		q.Operation = ledger.Revoke
	default:
		return q, fmt.Errorf("--operation %q: it is mint or revoke", f.verb)
	}
	switch {
	case !q.End.IsZero() && !q.Start.Before(q.End):
		return q, fmt.Errorf("--since %s is not before --until %s", f.since.text, f.until.text)
	case f.follow && !q.End.IsZero():
		return q, errors.New("--follow goes on for ever: leave --until away")
	case f.follow && f.limit != 0:
		return q, errors.New("--follow goes on for ever: leave --limit away")
	case f.limit < 0:
		return q, fmt.Errorf("--limit %d: it is at least 1; 0 is no limit", f.limit)
	}
	return q, nil
}

// run answers once, or again and again.
func (f *whoFlags) run(ctx context.Context, out, progress io.Writer, now func() time.Time) error {
	archived, err := f.archive.open()
	if err != nil {
		return err
	}
	q, err := f.query(now())
	if err != nil {
		return err
	}
	print, err := newAnswers(f.output, out, terminalWidth(out))
	if err != nil {
		return err
	}
	if f.follow {
		return f.watch(ctx, archived, q, print, progress, now)
	}
	count := 0
	searching := time.AfterFunc(2*time.Second, func() { fmt.Fprintln(progress, "asking the archive …") })
	defer searching.Stop()
	err = archived.Requests(ctx, q, f.mintUsers, func(a archive.Asked) error {
		if !f.wanted(&a) {
			return nil
		}
		searching.Stop()
		if err := print.add(&a); err != nil {
			return err
		}
		if count++; count == f.limit {
			return errLimit
		}
		return nil
	})
	if errors.Is(err, errLimit) {
		err = nil
	}
	if err := errors.Join(err, print.flush()); err != nil {
		return err
	}
	if count == 0 {
		fmt.Fprintln(progress, "The archive has no such request.")
	}
	return nil
}

var errLimit = errors.New("as many as were asked for")

// wanted leaves out what changed nothing, or what was not refused.
func (f *whoFlags) wanted(a *archive.Asked) bool {
	effect := a.Effect()
	return f.denied == (effect == archive.Refused) && effect != archive.DryRun
}

// How --follow looks: every followInterval, at what was received within followWindow, for what has settled.
const (
	followInterval = 2 * time.Second
	followWindow   = 15 * time.Minute
	followSettling = 5 * time.Second
)

// watch prints requests as they come to the archive, oldest first. One that comes later than followWindow is missed. An
// archive that fails once it has answered is asked again, from where it answered last.
func (f *whoFlags) watch(ctx context.Context, archived *archive.Archive, q archive.Query, print answers, progress io.Writer, now func() time.Time) error {
	told := map[string]time.Time{} // by identity: when it was received
	answered, failing := false, false
	for ctx.Err() == nil {
		asked := now()
		var fresh []archive.Asked
		err := archived.Requests(ctx, q, f.mintUsers, func(a archive.Asked) error {
			id := a.Event.Identity()
			settled := a.Commit != nil || a.Effect() == archive.Refused || now().Sub(a.Event.StageTimestamp) > followSettling
			if _, known := told[id]; !known && settled && f.wanted(&a) {
				told[id] = a.Event.RequestReceivedTimestamp
				fresh = append(fresh, a)
			}
			return nil
		})
		switch {
		case err == nil:
			if from := asked.Add(-followWindow); q.Start.Before(from) {
				q.Start = from
			}
			answered, failing = true, false
		case ctx.Err() != nil:
		case !answered:
			return err
		case !failing:
			failing = true
			fmt.Fprintf(progress, "The archive fails, and is asked again: %s\n", shown(err))
		}
		for _, a := range slices.Backward(fresh) {
			if err := print.add(&a); err != nil {
				return err
			}
		}
		if err := print.flush(); err != nil {
			return err
		}
		for id, received := range told {
			if received.Before(q.Start) {
				delete(told, id)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(followInterval):
		}
	}
	return nil
}

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
