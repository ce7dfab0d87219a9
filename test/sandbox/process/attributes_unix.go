//go:build unix && !linux

package process

import "syscall"

// Only Linux ends a child with its parent; elsewhere what a killed parent leaves has to be stopped by hand.
func attributes(options Options) *syscall.SysProcAttr {
	if options.Detached {
		return &syscall.SysProcAttr{Setsid: true, Credential: options.Credential}
	}
	return &syscall.SysProcAttr{Setpgid: true, Credential: options.Credential}
}
