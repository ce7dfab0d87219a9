package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mintlog/mintlog/cmd/printable"
	"github.com/mintlog/mintlog/mint/credential"
	"github.com/mintlog/mintlog/mint/doctor"
	"github.com/mintlog/mintlog/store/stream"
)

// checkTimeout is how long a check may take, but for the one that waits for audit events.
const checkTimeout = 15 * time.Second

// errSick ends a doctor that has found something that does not work.
var errSick = errors.New("something does not work; what to mend stands above")

// doctorFlags say what is looked at, and with whose rights.
type doctorFlags struct {
	administrator enrolFlags
	archive       archiveFlags
	stream        streamFlags
	retention     time.Duration
	credential    string
	mintAddress   string
	servingSecret string
	metrics       []string
	wait, timeout time.Duration
	output        string
}

func (f *doctorFlags) bind(flags *pflag.FlagSet) {
	f.administrator.bind(flags)
	f.archive.bind(flags)
	f.stream.bindServer(flags)
	flags.DurationVar(&f.retention, "retention", 30*24*time.Hour, "--retention of the mint server, which the archive must keep events for")
	flags.StringVar(&f.credential, "credential", "", "NAMESPACE/RELEASE.ACCOUNT whose mint is tried in a dry run; default: one that is there")
	flags.StringVar(&f.mintAddress, "mint-address", "", "host:port where this machine reaches the mint server, to see its certificate; default: where its Service leads to")
	flags.StringVar(&f.servingSecret, "serving-secret", "mintlog-mint-tls", "Secret in which its certificate is looked at where it cannot be reached")
	flags.StringArrayVar(&f.metrics, "metrics", nil, "URL of a part's metrics, like http://mintlog-mint:9404/metrics, to compare versions; repeatable")
	flags.DurationVar(&f.wait, "wait", 35*time.Second, "for how long the audit events of the dry run are waited for; a webhook holds them back for up to 30s")
	flags.DurationVar(&f.timeout, "timeout", time.Minute, "for how long everything together may take")
	flags.StringVarP(&f.output, "output", "o", "table", "table or json")
}

func doctorCommand() *cobra.Command {
	var f doctorFlags
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check a running installation from the outside, and say what to mend",
		Long: `doctor looks at a running installation with your own rights and prints, check by check,
OK, WARN or FAIL, what it saw and what to mend. It changes nothing: it asks for one mint
in a dry run, which stands in the audit log, and sees how long its audit events take to
arrive; and, as each part does at its start, for dry runs that the admission policies
must deny. Of Secrets it reads names, labels and annotations; but where the mint server
cannot be reached from here, it reads the certificate in --serving-secret. Where a right
is missing it says which, and looks at the rest.

It ends with status 1 if anything is FAIL. Give --victorialogs, and --nats where the
stream is not embedded: then it can tell which part an event got stuck behind.`,
		Example: `  mintlog doctor --victorialogs http://victoria-logs:9428
  mintlog doctor --victorialogs http://victoria-logs:9428 --nats nats://nats:4222 -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), f.timeout)
			defer cancel()
			options, closeAll, err := f.options(ctx)
			if err != nil {
				return err
			}
			d, err := doctor.New(options)
			if err != nil {
				return errors.Join(err, closeAll())
			}
			results := d.Run(ctx, func(r doctor.Result, finished, of int) {
				fmt.Fprintf(c.ErrOrStderr(), "[%d/%d] %s: %s after %.1fs\n", finished, of, r.Check, r.Verdict, r.Seconds)
			})
			err = errors.Join(printResults(c.OutOrStdout(), f.output, terminalWidth(c.OutOrStdout()), results), closeAll(), c.Context().Err())
			for _, r := range results {
				if r.Verdict == doctor.Fail {
					return errors.Join(err, errSick)
				}
			}
			return err
		},
	}
	f.bind(c.Flags())
	return noArguments(c)
}

// options are what the flags say. closeAll closes what was opened for them.
func (f *doctorFlags) options(ctx context.Context) (o doctor.Options, closeAll func() error, err error) {
	closeAll = func() error { return nil }
	if err := f.validate(); err != nil {
		return o, closeAll, err
	}
	config, err := f.administrator.config("doctor")
	if err != nil {
		return o, closeAll, err
	}
	config.QPS = -1
	o = doctor.Options{
		Config: config, Identities: f.administrator.identities, Retention: f.retention, MintAddress: f.mintAddress, ServingSecret: f.servingSecret,
		Metrics: f.metrics, Version: version(), Wait: f.wait, CheckTimeout: checkTimeout, Now: time.Now, NewAuditID: uuid.NewString,
	}
	o.Credential.Namespace, o.Credential.Name, _ = strings.Cut(f.credential, "/")
	if f.archive.url != "" {
		if o.Archive, err = f.archive.open(); err != nil {
			return o, closeAll, err
		}
	}
	if f.stream.url != "" {
		// What becomes of the connection stands in the check's own words.
		o.Stream, err = stream.Open(ctx, stream.Options{URL: f.stream.url, CredentialsFile: f.stream.credentials, NKeyFile: f.stream.nkey, Existing: true, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			return o, closeAll, fmt.Errorf("--nats: %w", err)
		}
		closeAll = o.Stream.Close
	}
	return o, closeAll, nil
}

func (f *doctorFlags) validate() error {
	name := types.NamespacedName{}
	name.Namespace, name.Name, _ = strings.Cut(f.credential, "/")
	switch {
	case f.output != "table" && f.output != "json":
		return fmt.Errorf("--output %q: use table or json", f.output)
	case f.wait <= 0:
		return fmt.Errorf("--wait %s: it is more than 0", f.wait)
	case f.timeout <= 0:
		return fmt.Errorf("--timeout %s: it is more than 0", f.timeout)
	case f.retention < credential.Settling:
		return fmt.Errorf("--retention %s: it is at least %s", f.retention, credential.Settling)
	case f.credential != "" && (name.Namespace == "" || name.Name == "" || strings.ContainsAny(name.Name, "/?#%") || strings.ContainsAny(name.Namespace, "?#%")):
		return fmt.Errorf("--credential %q: it is like tenant-acme/postgres-orders.app", f.credential)
	}
	if f.mintAddress != "" {
		if err := checkAddress("--mint-address", f.mintAddress); err != nil {
			return err
		}
	}
	for _, one := range f.metrics {
		if u, err := url.Parse(one); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return errors.New("--metrics: each is a URL like http://mintlog-mint:9404/metrics")
		}
	}
	return f.stream.validate()
}

// terminalWidth is how many columns a terminal has; 0: out is none, and lines may be as long as they are.
func terminalWidth(out io.Writer) int {
	file, ok := out.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return width
}

func printResults(out io.Writer, as string, width int, results []doctor.Result) error {
	if as == "json" {
		text, err := printable.Indented(map[string]any{"verdict": worst(results), "checks": results})
		if err != nil {
			return err
		}
		_, err = out.Write(text)
		return err
	}
	room := width
	if width > 0 {
		longest := 0
		for _, r := range results {
			longest = max(longest, len(r.Check))
		}
		room = max(width-longest-len("  VERDICT  "), 20)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "CHECK\tVERDICT\tSEEN")
	for _, r := range results {
		name := r.Check
		for _, f := range r.Findings {
			lines := folded(printable.Escape(f.Seen), "", room)
			if f.Mend != "" && f.Verdict != doctor.OK {
				lines = append(lines, folded("mend: "+printable.Escape(f.Mend), "  ", room)...)
			}
			verdict := string(f.Verdict)
			for _, line := range lines {
				fmt.Fprintf(table, "%s\t%s\t%s\n", name, verdict, line)
				name, verdict = "", ""
			}
		}
	}
	return table.Flush()
}

// folded breaks a text between its words into indented lines of at most so many characters, unless a word is longer; 0:
// it is one line.
func folded(text, indent string, width int) []string {
	if width == 0 {
		return []string{indent + text}
	}
	lines := []string{indent}
	for _, word := range strings.Fields(text) {
		last := &lines[len(lines)-1]
		switch {
		case strings.TrimSpace(*last) == "":
			*last += word
		case utf8.RuneCountInString(*last)+1+utf8.RuneCountInString(word) <= width:
			*last += " " + word
		default:
			lines = append(lines, indent+word)
		}
	}
	return lines
}

// worst is the verdict on all checks.
func worst(results []doctor.Result) doctor.Verdict {
	verdict := doctor.OK
	for _, r := range results {
		if r.Verdict == doctor.Fail || r.Verdict == doctor.Warn && verdict == doctor.OK {
			verdict = r.Verdict
		}
	}
	return verdict
}
