// Package auditlog makes audit logs as kube-apiserver writes them, for benchmarks and tests: the same log for the same
// seed, line by line, so that a log of any length costs no memory.
//
// Every line is encoded as kube-apiserver encodes it: from the types of audit.k8s.io/v1, with encoding/json, which
// escapes the & of a query as \u0026.
//
// # The mix
//
// It is that of a busy multi-tenant cluster of 60 nodes that runs operators and Flux, whose policy records everything
// at level Metadata without RequestReceived, and bodies of a few resources. In 1,000 lines of other things than ours:
//
//	verb      lines  of them
//	update      300  leases 270 (kubelets 130, leader elections 140), endpointslices 15, status of others 15
//	get         255  leases 90, secrets 35, configmaps 35, helmreleases 25, pods 20, nodes 20, probes and metrics 30
//	list        170  pods 40, helmreleases 35, secrets 20, configmaps 20, endpointslices 15, tenants' applications 40
//	patch       105  pods/status 50, nodes/status 20, helmreleases/status 20, applications' objects 15
//	create      115  events 35, subjectaccessreviews 35, tokenreviews 15, serviceaccounts/token 20, pods/binding 10
//	watch        45  secrets, helmreleases, configmaps: half of the lines at ResponseStarted, half at ResponseComplete
//	delete       10  pods 6, events and configmaps 4
//
// One in a thousand of these lines looks like ours and is not: a tenant's list of its credentials, an operator's read
// of an account Secret, a Role that names one in its recorded body.
//
// No public figure gives a whole mix. That leases, endpoints, nodes' status and the controllers' reads are the bulk of
// it is what kubernetes#46897 found in a cluster observed for a day, and why policies leave them out; gardener#813
// counted 634,402 events and 581 MB in 3 h 50 min, 30.6 % of them lists and 0.35 % watches, from controllers that keep
// no caches; k8s-gitops#4200 saw 100 MB in half an hour from a small cluster at level Metadata; tigera/operator#5054 saw
// lines of 77 KB.
//
// # Sizes
//
// A typical line has about 1,150 bytes (the median; lines at level Metadata lie between 650 and 1,700). Four in a
// thousand hold bodies, of 2 to 100 KB, each factor of two as frequent as the next. The mean is about 1,250 bytes:
// 400,000 lines are 500 MB.
//
// # Ours
//
// One line in Options.OursEvery, at a place among these that the seed chooses, is of the requests that mintlog records,
// in the order in which one operation's lines come: a mint (one in six of them by impersonation), with RequestReceived,
// the mint server's write of the account Secret under the same audit id, ResponseComplete, and the projector's patch; a
// revoke likewise; a mint that is refused, with RequestReceived and ResponseComplete; an account Secret that is seeded.
// Of 20 operations 12 are mints, 3 revokes, 2 refused and 3 seeded.
package auditlog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// Options say what log is made.
type Options struct {
	Seed uint64
	// OursEvery is in how many lines one is ours: 1 makes every line ours, 0 none.
	OursEvery int
	// Start is the time of the first line; 2026-01-01 if zero.
	Start time.Time
}

// step is the time between two lines: 4,000 events a second.
const step = 250 * time.Microsecond

// A Generator makes the lines of one log. It is not for concurrent use.
type Generator struct {
	options Options
	random  *rand.Rand
	now     time.Time
	buffer  bytes.Buffer
	encoder *json.Encoder

	line  int             // of the present stretch of OursEvery lines
	ours  int             // the place among these of the one that is ours
	queue []auditv1.Event // what is left of the operation that was begun
}

// New begins a log.
func New(o Options) *Generator {
	if o.Start.IsZero() {
		o.Start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	g := &Generator{options: o, random: rand.New(rand.NewPCG(o.Seed, 1)), now: o.Start}
	g.encoder = json.NewEncoder(&g.buffer)
	return g
}

// Next is the next event, and whether it is ours.
func (g *Generator) Next() (auditv1.Event, bool) {
	g.now = g.now.Add(step)
	if !g.oursNow() {
		return g.other(), false
	}
	if len(g.queue) == 0 {
		g.queue = g.operation()
	}
	e := g.queue[0]
	g.queue = g.queue[1:]
	return e, true
}

// oursNow reports whether the next line is ours: one of each stretch is.
func (g *Generator) oursNow() bool {
	if g.options.OursEvery == 0 {
		return false
	}
	if g.line == 0 {
		g.ours = g.random.IntN(g.options.OursEvery)
	}
	now := g.line == g.ours
	g.line = (g.line + 1) % g.options.OursEvery
	return now
}

// Line is the next event as a line of a log file, with its line break; valid until the next call.
func (g *Generator) Line() (line []byte, ours bool, err error) {
	e, ours := g.Next()
	e.Kind, e.APIVersion = "Event", "audit.k8s.io/v1"
	g.buffer.Reset()
	if err := g.encoder.Encode(&e); err != nil {
		return nil, false, fmt.Errorf("encoding an audit event: %w", err)
	}
	return g.buffer.Bytes(), ours, nil
}

// Written says what was written of a log.
type Written struct {
	Lines, Ours int
	Bytes       int64
}

// Write writes the next lines of the log. It holds one of them at a time.
func (g *Generator) Write(w io.Writer, lines int) (Written, error) {
	var total Written
	for range lines {
		line, ours, err := g.Line()
		if err != nil {
			return total, err
		}
		n, err := w.Write(line)
		total.Bytes += int64(n)
		if err != nil {
			return total, fmt.Errorf("writing an audit log: %w", err)
		}
		total.Lines++
		if ours {
			total.Ours++
		}
	}
	return total, nil
}

// Batch is the next events as kube-apiserver's webhook posts them, and how many of them are ours. Its items have no
// kind.
func (g *Generator) Batch(events int) (body []byte, ours int, err error) {
	g.buffer.Reset()
	g.buffer.WriteString(`{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":[`)
	for i := range events {
		e, is := g.Next()
		if is {
			ours++
		}
		if i > 0 {
			g.buffer.WriteByte(',')
		}
		if err := g.encoder.Encode(&e); err != nil {
			return nil, 0, fmt.Errorf("encoding an audit event: %w", err)
		}
		g.buffer.Truncate(g.buffer.Len() - 1) // the line break
	}
	g.buffer.WriteString("]}\n")
	return bytes.Clone(g.buffer.Bytes()), ours, nil
}

func (g *Generator) uuid() types.UID {
	a, b := g.random.Uint64(), g.random.Uint64()
	return types.UID(fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", a>>32, a>>16&0xffff, a&0xfff, b>>48&0x3fff|0x8000, b&0xffffffffffff))
}

func pick[T any](g *Generator, from []T) T { return from[g.random.IntN(len(from))] }
