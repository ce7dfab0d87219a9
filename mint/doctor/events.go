package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/store/archive"
	"github.com/mintlog/mintlog/store/event"
	"github.com/mintlog/mintlog/store/ledger"
)

// pollEvery is how often stream and archive are asked for the events of the dry run.
const pollEvery = 300 * time.Millisecond

// clocksApart bounds how far the clocks of kube-apiserver and of this machine may be apart for its events to be found.
const clocksApart = 10 * time.Minute

// An arrival is when the events of a request were first seen in a place, counted from its end; nil: not yet.
type arrival struct {
	asked           bool  // the place can be asked
	err             error // why it could not be the last time
	received, final *time.Duration
}

func (a *arrival) complete() bool { return a.received != nil && a.final != nil }

// see notes events of the request.
func (a *arrival) see(list []event.Event, auditID string, after time.Duration) {
	for i := range list {
		switch {
		case list[i].AuditID != auditID:
		case list[i].Stage == event.RequestReceived:
			if a.received == nil {
				a.received = &after
			}
		case a.final == nil:
			a.final = &after
		}
	}
}

// eventFacts are a dry run and what came of it.
type eventFacts struct {
	credential      types.NamespacedName
	auditID         string
	answer          answer
	waited          time.Duration
	stream, archive arrival
}

func (d *Doctor) lookAtEvents(ctx context.Context) []Finding {
	credential, unchosen := d.chooseCredential()
	if unchosen != nil {
		return []Finding{*unchosen}
	}
	discovery, err := d.ask(ctx, http.MethodGet, groupPath, "", nil)
	if err != nil || discovery.code != http.StatusOK {
		return []Finding{warn("see the check api", "not tried: the credentials API does not answer")}
	}
	f := eventFacts{credential: credential, auditID: d.NewAuditID(), stream: arrival{asked: d.Stream != nil}, archive: arrival{asked: d.Archive != nil}}
	f.answer, err = d.dryRun(ctx, credential, f.auditID)
	if err != nil {
		return []Finding{fail("see that kube-apiserver can be reached with this kubeconfig", "the dry-run mint of %s had no answer: %s", credential, words(err))}
	}
	if f.answer.code == http.StatusCreated {
		d.await(ctx, &f)
	}
	return judgeEvents(f)
}

// chooseCredential is what the dry run is asked of: what whoever looks has named, else an account that has a Secret.
func (d *Doctor) chooseCredential() (types.NamespacedName, *Finding) {
	if d.Credential.Name != "" {
		return d.Credential, nil
	}
	not := func(err error, right string) (types.NamespacedName, *Finding) {
		f := unseen(err, right)
		f.Mend += "; or name one with --credential"
		return types.NamespacedName{}, &f
	}
	secrets, err := d.secrets()
	if err != nil {
		return not(err, rightSecrets)
	}
	releases, err := d.releases()
	if err != nil {
		return not(err, rightReleases)
	}
	definitions, err := d.definitions()
	if err != nil {
		return not(err, rightDefinitions)
	}
	enrolled, err := d.enrolled()
	if err != nil {
		return not(err, rightBindings)
	}
	served := servedKinds(definitions)
	has := map[types.NamespacedName]bool{}
	for _, r := range releases {
		has[r.NamespacedName] = served[r.kind] && !r.leaving
	}
	works := map[string]bool{}
	for _, e := range enrolled {
		works[e.Namespace] = e.Mint
	}
	for _, s := range secrets {
		if s.labelled && !s.leaving && works[s.namespace] && has[types.NamespacedName{Namespace: s.namespace, Name: s.release}] {
			return types.NamespacedName{Namespace: s.namespace, Name: s.name[:len(s.name)-len(event.AccountSecretSuffix)]}, nil
		}
	}
	f := warn("name one with --credential, or install an application of a served kind in an enrolled namespace", "not tried: there is no account whose mint could be tried")
	return types.NamespacedName{}, &f
}

// dryRun asks for a mint that changes nothing and returns no password.
func (d *Doctor) dryRun(ctx context.Context, credential types.NamespacedName, auditID string) (answer, error) {
	path := fmt.Sprintf("%s/namespaces/%s/credentials/%s/mint?dryRun=All", groupPath, credential.Namespace, credential.Name)
	body := fmt.Sprintf(`{"apiVersion": "%s/v1alpha1", "kind": "CredentialMint"}`, v1alpha1.GroupName)
	return d.ask(ctx, http.MethodPost, path, body, http.Header{"Content-Type": {"application/json"}, "Audit-Id": {auditID}})
}

// await asks stream and archive until both have the events, or the wait is over.
func (d *Doctor) await(ctx context.Context, f *eventFacts) {
	if !f.stream.asked && !f.archive.asked {
		return
	}
	end := f.answer.asked.Add(f.answer.took)
	ctx, cancel := context.WithTimeout(ctx, d.Wait)
	defer cancel()
	query := archive.Query{
		Namespace: f.credential.Namespace, Credential: f.credential.Name, AuditID: f.auditID,
		Start: f.answer.asked.Add(-clocksApart), End: end.Add(clocksApart),
	}
	for {
		if f.stream.asked && !f.stream.complete() {
			var list []event.Event
			list, f.stream.err = d.Stream.LastRefused(ctx, f.credential.Namespace, f.credential.Name, ledger.Mint)
			f.stream.see(list, f.auditID, d.Now().Sub(end))
		}
		if f.archive.asked && !f.archive.complete() {
			var list []event.Event
			f.archive.err = d.Archive.Query(ctx, query, func(e event.Event) error {
				list = append(list, e)
				return nil
			})
			f.archive.see(list, f.auditID, d.Now().Sub(end))
		}
		f.waited = d.Now().Sub(end)
		if done := func(a *arrival) bool {
			return !a.asked || a.complete() || a.err != nil && !errors.Is(a.err, context.DeadlineExceeded)
		}; done(&f.stream) && done(&f.archive) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pollEvery):
		}
	}
}

func judgeEvents(f eventFacts) []Finding {
	switch {
	case f.answer.code == http.StatusForbidden || f.answer.code == http.StatusUnauthorized:
		return []Finding{warn("look with an identity that may create credentials/mint in the namespace "+f.credential.Namespace, "not tried: the right to create credentials/mint of %s is missing", f.credential)}
	case f.answer.code != http.StatusCreated:
		return []Finding{fail("see what the mint server says", "the dry-run mint of %s was answered %d: %s", f.credential, f.answer.code, f.answer.message)}
	}
	findings := []Finding{good("a dry-run mint of %s was answered in %s (audit id %s)", f.credential, f.answer.took.Round(time.Millisecond), f.auditID)}
	if !f.stream.asked && !f.archive.asked {
		return append(findings, warn("give --victorialogs or --nats", "whether its audit events arrive was not looked at: no place to ask was given"))
	}
	waited := f.waited.Round(time.Second)
	if f.stream.asked {
		findings = append(findings, judgeArrival("the stream", f.stream, waited,
			"see that ingest runs and follows the log of every kube-apiserver (its log, mintlog_ingest metrics), and that kube-apiserver writes one: --audit-policy-file with deploy/audit/policy.yaml, --audit-log-path or --audit-webhook-config-file",
			"see the check stream"))
	}
	if f.archive.asked {
		mend := "see that ingest, the stream and the archiver run, and that kube-apiserver writes an audit log; with --nats this check tells which of them"
		switch {
		case f.stream.complete():
			mend = "see that the archiver runs, and its log: the events are in the stream"
		case f.stream.asked && f.stream.err == nil && !f.archive.complete() && f.archive.err == nil: // said above
			return findings
		}
		findings = append(findings, judgeArrival("the archive", f.archive, waited, mend, "see the check archive"))
	}
	return findings
}

func judgeArrival(place string, a arrival, waited time.Duration, mend, unasked string) Finding {
	const policy = "take deploy/audit/policy.yaml as kube-apiserver's --audit-policy-file, or put its rules first in yours"
	switch {
	case a.complete():
		return good("both its audit events arrived in %s, the last after %s", place, max(*a.received, *a.final).Round(10*time.Millisecond))
	case a.err != nil && !errors.Is(a.err, context.DeadlineExceeded):
		return warn(unasked, "whether its audit events arrived in %s is not known: %s", place, words(a.err))
	case a.final != nil:
		return fail(policy+": it must not omit the stage RequestReceived of mint and revoke", "its final audit event arrived in %s, and RequestReceived did not within %s", place, waited)
	case a.received != nil:
		return fail(policy+": it must record the stage ResponseComplete", "its RequestReceived arrived in %s, and the final audit event did not within %s", place, waited)
	}
	return fail(mend, "none of its audit events arrived in %s within %s: whatever is minted now is Unattributed", place, waited)
}
