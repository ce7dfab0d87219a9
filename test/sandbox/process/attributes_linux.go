package process

import "syscall"

func attributes(options Options) *syscall.SysProcAttr {
	if options.Detached {
		return &syscall.SysProcAttr{Setsid: true, Credential: options.Credential}
	}
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: options.DeathSignal, Credential: options.Credential}
}
