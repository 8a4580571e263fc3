package main

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/coordd/coordd/cmd/coordd/internal/warden"
)

// terminal is this process's controlling terminal. If this process's group is
// in its foreground, the command's group takes that place while it runs, so
// that it can read from the terminal and gets Ctrl-C and Ctrl-Z. nil, without
// a terminal, does nothing.
type terminal struct {
	file     *os.File
	own      int  // this process's group
	onDemand bool // see openTerminal
}

// openTerminal returns the terminal. onDemand: the command gets it when it asks,
// so that until then Ctrl-C reaches this process, which passes it on.
func openTerminal(onDemand bool) *terminal {
	file, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	return &terminal{file: file, own: unix.Getpgrp(), onDemand: onDemand}
}

// foreground is the group in the foreground; 0 if that cannot be told.
func (t *terminal) foreground() int {
	group, err := unix.IoctlGetInt(int(t.file.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

// offer gives the command's group the foreground, unless it has to ask for it.
func (t *terminal) offer(group int) {
	if t != nil && !t.onDemand {
		t.give(group)
	}
}

// give puts the command's group in this process's place in the foreground, and
// tells whether it is there now.
func (t *terminal) give(group int) bool {
	if t == nil || group == 0 {
		return false
	}
	if t.foreground() == t.own {
		unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, group)
	}
	return t.foreground() == group
}

// take puts this process's group back in the command's place in the
// foreground, and tells whether that was there.
func (t *terminal) take(group int) bool {
	if t == nil || group == 0 || t.foreground() != group {
		return false
	}
	// Whoever is not in the foreground is stopped by TTOU for changing that. It
	// is ignored from here on; a later command is spared that by its warden, which
	// catches it.
	signal.Ignore(unix.SIGTTOU)
	return unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, t.own) == nil
}

// stopped follows a command that sig has stopped. The shell that waits for this
// process's group can only see, and continue, that one.
func (t *terminal) stopped(tree *warden.Tree, sig syscall.Signal) {
	if t == nil {
		return
	}
	wants := sig == unix.SIGTTIN || sig == unix.SIGTTOU
	switch {
	case wants && t.give(tree.Group()):
		tree.Signal(unix.SIGCONT) // it asked for the terminal before it had it
	case wants, t.take(tree.Group()), t.foreground() == t.own:
		unix.Kill(0, unix.SIGSTOP)
	}
}

// close takes the terminal back from a command that has ended as r tells, and
// returns the signal that it ended by if that was typed (Ctrl-C, Ctrl-\), else 0.
// forwarded are the signals that this process has sent it.
func (t *terminal) close(group int, r warden.Result, forwarded map[syscall.Signal]bool) (typed syscall.Signal) {
	if t == nil {
		return 0
	}
	defer t.file.Close()
	took, sig := t.take(group), r.Status.Signal()
	if !took || (sig != unix.SIGINT && sig != unix.SIGQUIT) || forwarded[sig] {
		return 0
	}
	// It came from the terminal, and would have reached this group too: a script
	// of which this process is one line may end by it. Here it is caught.
	unix.Kill(0, sig)
	return sig
}
