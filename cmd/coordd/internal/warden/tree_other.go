//go:build unix && !linux

package warden

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tree is the command's process group: this system has no way to find the
// processes that have left it.
type tree struct {
	command int                  // its process id, and the number of its process group; 0: none was started
	status  *syscall.WaitStatus  // how the command ended; nil while it runs
	stopped func(syscall.Signal) // if not nil, called when the command has been stopped
	spare   map[int]bool         // not needed here
}

func adopt() error { return nil }

func executable() (string, error) { return os.Executable() }

func commandAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func children(int) map[int]bool { return nil }

// reap takes note of the command's end, and tells whether its group is empty.
func (t *tree) reap() (none bool) {
	if t.command == 0 {
		return true
	}
	for t.status == nil {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(t.command, &ws, unix.WNOHANG|unix.WUNTRACED, nil)
		switch {
		case err == unix.EINTR:
		case err != nil: // not our child: the warden was killed
			return !t.running()
		case pid == 0:
			return false
		case ws.Stopped():
			if t.stopped != nil {
				t.stopped(ws.StopSignal())
			}
		default:
			t.status = &ws
		}
	}
	return !t.running()
}

// running tells whether the group has a member that is more than a zombie.
func (t *tree) running() bool { return unix.Kill(-t.command, 0) == nil }

func (t *tree) signalGroup(sig syscall.Signal) {
	if t.status == nil && t.command != 0 {
		unix.Kill(-t.command, sig)
	}
}

func (t *tree) signal(sig syscall.Signal) {
	if t.command != 0 {
		unix.Kill(-t.command, sig)
	}
}

func (t *tree) kill() {
	for !t.reap() {
		t.signal(unix.SIGKILL)
		time.Sleep(time.Millisecond)
	}
}
