package server

import (
	"flag"
	"fmt"
	"log/slog"
	"strconv"

	"k8s.io/klog/v2"
)

// MaxVerbosity is the highest verbosity of the Kubernetes libraries that is allowed: above it they log the bodies of
// requests and answers, and passwords stand in them.
const MaxVerbosity = 7

// LogKubernetes has the Kubernetes libraries of the whole process log to log, at the given verbosity or MaxVerbosity,
// whichever is lower. It is to be called before anything of Kubernetes is started.
func LogKubernetes(log *slog.Logger, verbosity int) error {
	if err := setVerbosity(min(verbosity, MaxVerbosity)); err != nil {
		return err
	}
	klog.SetSlogLogger(log)
	return nil
}

// capVerbosity lowers a verbosity that somebody else set too high.
func capVerbosity() error {
	if klog.V(MaxVerbosity + 1).Enabled() {
		return setVerbosity(MaxVerbosity)
	}
	return nil
}

func setVerbosity(verbosity int) error {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Set("v", strconv.Itoa(verbosity)); err != nil {
		return fmt.Errorf("set the verbosity of the Kubernetes libraries: %w", err)
	}
	return nil
}
