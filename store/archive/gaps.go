package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/mintlog/mintlog/store/gap"
)

// gapSource marks the rows that say where an audit log is missing. No query for events asks for it.
const gapSource = "mintlog_gap"

// fieldGapRecord names what a row says, so that it is said once.
const fieldGapRecord = "gapRecord"

// archiveGaps has the archive say of each gap when it was found, and when it was closed, once.
func (a *Archiver) archiveGaps(ctx context.Context) {
	err := a.options.Stream.FollowGaps(ctx, func(list []gap.Gap) {
		for failures := 1; ctx.Err() == nil; failures++ {
			err := a.putGaps(ctx, list)
			if err == nil {
				return
			}
			a.metrics.errors.Inc()
			a.options.Log.Warn("archiving gaps", "error", err)
			sleep(ctx, backoff(failures))
		}
	})
	if err != nil {
		a.options.Log.Warn("archiving gaps", "error", err)
	}
}

// putGaps returns nil when the archive has all the rows that it takes, for longer than it needs to write them to disk.
func (a *Archiver) putGaps(ctx context.Context, list []gap.Gap) error {
	bounds := a.bounds(ctx)
	rows := map[string]row{}
	for _, g := range list {
		for _, r := range gapRows(g) {
			if t, err := readTime(r, fieldTime, ""); err == nil && bounds.takes(t, a.options.Now()) {
				rows[r[fieldGapRecord]] = r
			}
		}
	}
	missing, err := a.options.Archive.missingGaps(ctx, rows)
	if err != nil || len(missing) == 0 {
		return err
	}
	var lines [][]byte
	for _, r := range missing {
		line, err := encodeRow(r)
		if err != nil {
			return err
		}
		lines = append(lines, line)
	}
	if err := a.options.Archive.insertLines(ctx, lines); err != nil {
		return err
	}
	sleep(ctx, a.options.Settle)
	if missing, err = a.options.Archive.missingGaps(ctx, missing); err == nil && len(missing) > 0 {
		err = fmt.Errorf("%d gaps were sent and are not in the archive", len(missing))
	}
	return err
}

// missingGaps returns those rows that the archive does not show.
func (a *Archive) missingGaps(ctx context.Context, rows map[string]row) (map[string]row, error) {
	missing := maps.Clone(rows)
	var records []string
	for record := range rows {
		records = append(records, quote(record))
	}
	for len(records) > 0 {
		part := records[:min(len(records), idsPerQuery)]
		records = records[len(part):]
		query := timeFilter(time.Time{}, time.Time{}) + " _stream:{log_source=" + quote(gapSource) + "} " +
			fieldGapRecord + ":in(" + strings.Join(part, ",") + ") | uniq by (" + fieldGapRecord + ")"
		err := a.rows(ctx, query, func(r row) error {
			delete(missing, r[fieldGapRecord])
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return missing, nil
}

// gapRows say that a gap was found, and, if it is closed, that it was.
func gapRows(g gap.Gap) []row {
	bounds := "until " + g.End().Format(time.RFC3339)
	if !g.From.IsZero() {
		bounds = "from " + g.From.Format(time.RFC3339) + " " + bounds
	}
	base := row{
		"log_source": gapSource, "gap": g.Identity(), "source": g.Source, "reason": g.Reason,
		"from": formatTime(g.From), "until": formatTime(g.End()), "foundAt": formatTime(g.FoundAt),
	}
	if g.Bytes > 0 {
		base["bytes"] = strconv.FormatInt(g.Bytes, 10)
	}
	found := maps.Clone(base)
	found["state"], found[fieldTime] = "open", formatTime(g.FoundAt)
	found[fieldMessage] = fmt.Sprintf("the audit log of %s is missing %s: %s", g.Source, bounds, g.Reason)
	all := []row{found}
	if !g.Open() {
		closed := maps.Clone(base)
		closed["state"], closed[fieldTime], closed["closedAt"] = "closed", formatTime(g.ClosedAt), formatTime(g.ClosedAt)
		closed[fieldMessage] = fmt.Sprintf("what was missing of the audit log of %s %s was replayed", g.Source, bounds)
		all = append(all, closed)
	}
	for _, r := range all {
		maps.DeleteFunc(r, func(_, value string) bool { return value == "" })
		digest := sha256.Sum256([]byte(strings.Join([]string{r["gap"], r["state"], r["until"], r["closedAt"]}, "/")))
		r[fieldGapRecord] = hex.EncodeToString(digest[:16])
	}
	return all
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
