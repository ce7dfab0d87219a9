package doctor

import (
	"context"
	"strings"
	"time"

	"github.com/mintlog/mintlog/store/event"
)

func (d *Doctor) lookAtHistories(context.Context) []Finding {
	secrets, err := d.secrets()
	if err != nil {
		return []Finding{unseen(err, rightSecrets)}
	}
	newest, err := d.newest()
	if err != nil {
		newest = nil // what became of its event is not known; the check archive says why
	}
	return judgeHistories(secrets, newest, d.Now())
}

// judgeHistories looks whether the newest operation of each account bears a name, once its event has had the time to come.
func judgeHistories(secrets []secretFacts, newest *operationFacts, now time.Time) []Finding {
	var unnamed []string
	named, stuck := 0, ""
	for _, s := range secrets {
		if !s.labelled || s.leaving || len(s.entries) == 0 {
			continue
		}
		entry := s.entries[0]
		switch {
		case entry.Operation.ByPlatform() || now.Sub(entry.At) < settled:
			continue
		case s.named[entry.ID]:
			named++
			continue
		}
		credential := s.namespace + "/" + strings.TrimSuffix(s.name, event.AccountSecretSuffix)
		if newest != nil && newest.found && newest.entry.ID == entry.ID && !s.judged[entry.Revision] {
			stuck = credential
		} else {
			unnamed = append(unnamed, credential)
		}
	}
	var findings []Finding
	if stuck != "" {
		findings = append(findings, fail("see that the projector runs, and its log and mintlog_projector_failures_total",
			"the newest operation, on %s, bears no name, and the archive has its audit event: the projector does not write histories", stuck))
	}
	if len(unnamed) > 0 {
		findings = append(findings, warn("kubectl credentials history tells of each; if the checks events, stream and grants are well, go by docs/alerts.md, MintlogUnattributedOperation",
			"%d accounts whose newest operation bears no name: %s", len(unnamed), some(unnamed)))
	}
	switch {
	case len(findings) == 0 && named == 0:
		findings = append(findings, good("no account has an operation that should bear a name by now"))
	case len(findings) == 0:
		findings = append(findings, good("the newest operation of each of %d accounts that were minted bears a name", named))
	}
	return findings
}
