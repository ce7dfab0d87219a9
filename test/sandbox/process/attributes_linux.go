package process

import "syscall"

func attributes(options Options) *syscall.SysProcAttr {
	if options.Detached {
		return &syscall.SysProcAttr{Setsid: true, Credential: options.Credential}
	}
	death := syscall.SIGKILL
	if options.StopSignal == syscall.SIGQUIT {
		death = syscall.SIGQUIT // a server that must take its children along
	}
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: death, Credential: options.Credential}
}
