package dynamolocal

import "syscall"

// life makes a process the leader of its own group, that ends with this process.
func life() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
