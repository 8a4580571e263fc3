//go:build !linux

package dynamolocal

import "syscall"

// life makes a process the leader of its own group. Where this process is killed
// before it stops it, it stays.
func life() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
