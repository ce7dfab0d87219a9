package credential

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
)

func TestTheViewSaysWhatAPasswordWaitsForOnItsWayThroughTheValues(t *testing.T) {
	const secret = "clickhouse-orders.app.account"
	stored := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	entries := []cluster.ValuesEntry{{Secret: "clickhouse-orders.other.account"}, {Secret: secret, TargetPath: "passwordHashes.app"}}
	f := func(want string, path definition.ValuesPath, change func(*cluster.Release)) {
		t.Helper()
		release := &cluster.Release{Name: "clickhouse-orders", ValuesFrom: entries}
		change(release)
		got := waiting(release, definition.Block{ValuesPath: path}, secret, stored)
		if want == "" {
			assert.Empty(t, got)
			return
		}
		assert.Contains(t, got, want)
	}
	const path = "passwordHashes.{username}"
	f("", path, func(*cluster.Release) {})
	f("is suspended", path, func(r *cluster.Release) { r.Suspended = true })
	f("is suspended", path, func(r *cluster.Release) { r.Suspended, r.Deployed = true, stored })
	f("", path, func(r *cluster.Release) { r.Suspended, r.Deployed = true, stored.Add(time.Second) })
	f("is suspended", path, func(r *cluster.Release) { r.Suspended, r.ValuesFrom = true, nil })
	f("no entry in spec.valuesFrom", path, func(r *cluster.Release) { r.ValuesFrom = entries[:1] })
	f("", "", func(r *cluster.Release) { r.Suspended, r.ValuesFrom = true, nil })
}
