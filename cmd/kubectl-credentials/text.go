package main

import (
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/mintlog/mintlog/cmd/printable"
)

// age is how long ago a time was, as kubectl says it. A time ahead of this machine's clock was just now.
func age(now, at time.Time) string {
	if at.IsZero() {
		return printable.None
	}
	return duration.HumanDuration(max(0, now.Sub(at)))
}

// exact is a time in UTC to the millisecond; -o json has the microseconds.
func exact(at time.Time) string {
	if at.IsZero() {
		return printable.None
	}
	return at.UTC().Format("2006-01-02T15:04:05.000Z")
}
