package archive

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A retention is which times VictoriaLogs takes. Zero durations are unknown or without bound.
type retention struct {
	past, backfill, future time.Duration
}

// takes reports whether a row of a time is taken now. VictoriaLogs counts retention in whole days of UTC.
func (r retention) takes(t, now time.Time) bool {
	const day = 24 * time.Hour
	now = now.UTC()
	if t.Before(firstTime) || !t.Before(lastTime) {
		return false
	}
	if r.past > 0 && t.Before(now.Add(-r.past).Truncate(day)) {
		return false
	}
	if r.backfill > 0 && t.Before(now.Add(-r.backfill)) {
		return false
	}
	return r.future == 0 || t.Before(now.Add(r.future).Truncate(day).Add(day))
}

// retention reads from VictoriaLogs' metrics how it was configured. Behind a proxy that does not show them the bounds
// stay unknown.
func (a *Archive) retention(ctx context.Context) (retention, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+"/metrics", nil)
	if err != nil {
		return retention{}, fmt.Errorf("ask for the archive's retention: %w", err)
	}
	answer, err := a.do(request, "ask for the archive's retention")
	if err != nil {
		return retention{}, err
	}
	defer answer.Body.Close()
	var r retention
	bounds := map[string]*time.Duration{"retentionPeriod": &r.past, "maxBackfillAge": &r.backfill, "futureRetention": &r.future}
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		name, value, ok := flagOf(lines.Text())
		if bound := bounds[name]; ok && bound != nil {
			*bound = parseAge(value)
		}
	}
	if err := lines.Err(); err != nil {
		return retention{}, fmt.Errorf("ask for the archive's retention: %w", err)
	}
	return r, nil
}

// flagOf reads a line like flag{name="retentionPeriod", value="7d", is_set="false"} 1.
func flagOf(line string) (name, value string, ok bool) {
	rest, ok := strings.CutPrefix(line, `flag{name="`)
	if !ok {
		return "", "", false
	}
	name, rest, _ = strings.Cut(rest, `"`)
	_, rest, _ = strings.Cut(rest, `value="`)
	value, _, ok = strings.Cut(rest, `"`)
	return name, value, ok
}

// parseAge reads a number and one of h, d, w, y; months of 31 days without one. What it cannot read is unknown.
func parseAge(s string) time.Duration {
	const day = 24 * time.Hour
	units := map[string]time.Duration{"h": time.Hour, "d": day, "w": 7 * day, "y": 365 * day, "": 31 * day}
	number := strings.TrimRight(s, "hdwy")
	unit, known := units[s[len(number):]]
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || !known || n < 0 || n*float64(unit) > float64(1<<62) {
		return 0
	}
	return time.Duration(n * float64(unit))
}
