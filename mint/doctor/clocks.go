package doctor

import (
	"context"
	"net/http"
	"time"
)

// A reading is one clock, which shows whole seconds, between two looks at this machine's.
type reading struct {
	clock, asked, answered time.Time
}

// ahead is by how much the clock is ahead of this machine's at least; negative: behind; 0: no difference is certain.
func (r reading) ahead() time.Duration {
	switch behind := r.asked.Sub(r.clock.Add(time.Second)); {
	case r.clock.IsZero():
		return 0
	case r.clock.After(r.answered):
		return r.clock.Sub(r.answered)
	case behind > 0:
		return -behind
	}
	return 0
}

// clockFacts are the clocks that could be read; zero where one could not.
type clockFacts struct {
	now                      time.Time
	apiServer, mint, archive reading
	newest                   *operationFacts
}

// Bounds of how far clocks are apart without harm.
const (
	drift        = 2 * time.Second
	archiveDrift = time.Minute
)

func (d *Doctor) lookAtClocks(ctx context.Context) []Finding {
	read := func(path string) reading {
		a, err := d.ask(ctx, http.MethodGet, path, "", nil)
		if err != nil || path == groupPath && a.code != http.StatusOK {
			return reading{}
		}
		return reading{clock: a.date, asked: a.asked, answered: a.asked.Add(a.took)}
	}
	f := clockFacts{apiServer: read("/version"), mint: read(groupPath)}
	if d.Archive != nil {
		if state, err := d.Archive.State(ctx); err == nil {
			f.archive = reading{clock: state.Clock, asked: state.Asked, answered: state.Answered}
		}
	}
	if newest, err := d.newest(); err == nil {
		f.newest = newest
	}
	f.now = d.Now()
	return judgeClocks(f)
}

func judgeClocks(f clockFacts) []Finding {
	const ntp = "keep the clocks of all nodes in step (NTP)"
	if f.apiServer.clock.IsZero() {
		return []Finding{warn("see the check api", "not looked at: kube-apiserver does not tell its time")}
	}
	api := f.apiServer.ahead()
	var findings []Finding
	if apart := api.Abs(); apart > drift {
		findings = append(findings, warn("set this machine's clock: times that you give to who and replay are its", "this machine's clock and kube-apiserver's are %s apart", apart.Round(time.Second)))
	}
	if !f.mint.clock.IsZero() {
		switch apart := (f.mint.ahead() - api).Abs(); {
		case apart > joinSkew:
			findings = append(findings, fail(ntp, "the mint server's clock and kube-apiserver's are %s apart: operations are Skewed from %s on", apart.Round(time.Second), joinSkew))
		case apart > drift:
			findings = append(findings, warn(ntp, "the mint server's clock and kube-apiserver's are %s apart", apart.Round(time.Second)))
		}
	}
	if !f.archive.clock.IsZero() {
		if apart := (f.archive.ahead() - api).Abs(); apart > archiveDrift {
			findings = append(findings, warn(ntp, "VictoriaLogs' clock and kube-apiserver's are %s apart: it refuses what lies too far in its future", apart.Round(time.Second)))
		}
	}
	if o := f.newest; o != nil {
		at := o.entry.At
		switch {
		case at.After(f.now.Add(api + joinSkew)):
			findings = append(findings, fail(ntp, "the newest ledger entry (%s/%s) is %s in the future", o.namespace, o.credential, at.Sub(f.now.Add(api)).Round(time.Second)))
		case o.found && (at.Before(o.from.Add(-joinSkew)) || at.After(o.until.Add(joinAfter+joinSkew))):
			findings = append(findings, fail(ntp, "the newest ledger entry (%s/%s) is of %s, its audit event of %s", o.namespace, o.credential, at.UTC().Format(time.RFC3339), o.from.UTC().Format(time.RFC3339)))
		}
	}
	if len(findings) == 0 {
		findings = append(findings, good("the clocks that could be read are in step, to a second"))
	}
	return findings
}
