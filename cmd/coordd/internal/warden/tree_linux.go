package warden

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tree is the command with all of its descendants, seen from the process that
// the orphans among them fall to.
type tree struct {
	command int                  // its process id, and the number of its process group; 0: none was started
	status  *syscall.WaitStatus  // how the command ended; nil while it runs
	stopped func(syscall.Signal) // if not nil, called when the command has been stopped
	spare   map[int]bool         // children of this process that do not belong to the tree
}

// adopt makes the descendants of this process fall to it when they lose their
// parents.
func adopt() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a child subreaper (needs Linux 3.4): %w", err)
	}
	if _, err := os.ReadFile("/proc/thread-self/children"); err != nil {
		return fmt.Errorf("find child processes (needs /proc and CONFIG_PROC_CHILDREN): %w", err)
	}
	return nil
}

// executable is this program, even if its file has been replaced since.
func executable() (string, error) { return "/proc/self/exe", nil }

// commandAttr lets the command lead a process group, and die with the thread
// that starts it: that much is left when wrapper and warden are killed at once.
func commandAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
}

// reap takes note of every child that has ended, and tells whether none is left.
func (t *tree) reap() (none bool) {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, unix.WNOHANG|unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil: // ECHILD
			return true
		case pid == 0:
			return false
		case ws.Stopped():
			if pid == t.command && t.stopped != nil {
				t.stopped(ws.StopSignal())
			}
		default:
			delete(t.spare, pid)
			if pid == t.command {
				t.status = &ws
			}
		}
	}
}

// signalGroup sends sig to the command's process group, as long as the command
// has not been reaped: later the number may be another's.
func (t *tree) signalGroup(sig syscall.Signal) {
	if t.status == nil && t.command != 0 {
		unix.Kill(-t.command, sig)
	}
}

// signal sends sig to every process of the tree.
func (t *tree) signal(sig syscall.Signal) { t.signalOf(children(os.Getpid()), sig) }

// signalOf is signal, where this process's children are known.
func (t *tree) signalOf(pids map[int]bool, sig syscall.Signal) {
	for pid := range pids {
		if !t.spare[pid] {
			signalBranch(os.Getpid(), pid, sig)
		}
	}
}

// kill returns when no process of the tree is left.
func (t *tree) kill() {
	var before map[int]bool
	for empty := 0; empty < 3 && !t.reap(); {
		pids := children(os.Getpid())
		t.killGroup(pids)
		t.signalOf(pids, unix.SIGKILL)
		if maps.Equal(pids, before) {
			time.Sleep(time.Millisecond) // they are dying, or cannot be killed for now
		}
		before = pids
		// With children of others about, wait cannot prove that none is left.
		// Three empty listings must do, since one can miss a child that ends.
		if empty++; len(pids) > len(t.spare) || len(t.spare) == 0 {
			empty = 0
		}
	}
}

// killGroup kills the command's process group in one step, which forks within
// it cannot outrun. A child that belongs to it, and that only this process can
// reap, proves that the number is still that group's.
func (t *tree) killGroup(pids map[int]bool) {
	for pid := range pids {
		if g, err := unix.Getpgid(pid); err == nil && g == t.command && t.command != 0 {
			unix.Kill(-t.command, unix.SIGKILL)
			return
		}
	}
}

// signalBranch signals pid, a child of parent, and then its descendants. Whom
// it orphans by that becomes a child of this process, for the next round.
func signalBranch(parent, pid int, sig syscall.Signal) {
	if parent == os.Getpid() {
		unix.Kill(pid, sig) // not reaped yet, so the number is still its own
	} else if fd, err := unix.PidfdOpen(pid, 0); err == nil {
		// A parent that is still the same after the opening proves whom fd means.
		if parentOf(pid) == parent {
			unix.PidfdSendSignal(fd, sig, nil, 0)
		}
		unix.Close(fd)
	}
	for child := range children(pid) {
		signalBranch(pid, child, sig)
	}
}

// children lists the children of each thread of process pid.
func children(pid int) map[int]bool {
	out := map[int]bool{}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		list, _ := os.ReadFile(task)
		for field := range strings.FieldsSeq(string(list)) {
			if child, err := strconv.Atoi(field); err == nil {
				out[child] = true
			}
		}
	}
	return out
}

// parentOf returns 0 for a process that is not there.
func parentOf(pid int) int {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// "12 (name) S 7 …": the name may hold anything, so look for its end.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(string(fields[1]))
	return parent
}
