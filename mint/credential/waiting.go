package credential

import (
	"slices"
	"time"

	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
)

// waiting says why an application cannot take a password over that was stored at a time, "" if nothing that is known
// stands in the way. Where the engine's operator reads the Secret itself, nothing is known.
func waiting(release *cluster.Release, block definition.Block, secretName string, stored time.Time) string {
	if block.ValuesPath == "" {
		return ""
	}
	// A release that was deployed since has read it. Its time is in whole seconds, so this errs on the side of waiting.
	if release.Suspended && !release.Deployed.After(stored) {
		return "the HelmRelease " + release.Name + " is suspended: the application takes the password over when it is resumed"
	}
	if !slices.ContainsFunc(release.ValuesFrom, func(e cluster.ValuesEntry) bool { return e.Secret == secretName }) {
		return "the HelmRelease " + release.Name + " has no entry in spec.valuesFrom that brings the password; if that lasts, its Events say why"
	}
	return ""
}
