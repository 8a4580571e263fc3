package warden

import "golang.org/x/sys/unix"

// closeOnExec says whether programs started by this one inherit file fd.
func closeOnExec(fd int, yes bool) error {
	flags := 0
	if yes {
		flags = unix.FD_CLOEXEC
	}
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, flags)
	return err
}
