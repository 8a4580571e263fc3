// Package warden runs a command so that all of its processes end before a
// lease can be granted to somebody else: when the wrapper that holds the lease
// dies, hangs, or fails to renew it, whatever the command's processes did to
// get away (setsid, double fork, stopped).
//
//	wrapper (Start) --deadlines, signals--> warden (same binary) --> command --> ...
//	                <-----started, ended---
//
// The warden is told each new deadline of the lease. When one comes too near
// it sends TERM, and then KILL to everything, by itself: the wrapper may be
// stopped or hang. It does the same when the command has run for as long as it
// may. When the wrapper dies its end of the pipe is closed, and the warden kills
// everything at once.
//
// On Linux wrapper and warden are both child subreapers: a descendant that
// loses its parent becomes the warden's child, and the wrapper's when the
// warden is gone. So none gets away: whichever of the two dies, the other kills
// every descendant, and wait's ECHILD proves that none is left. Elsewhere only
// the command's process group is reached.
//
// Out of reach: wrapper and warden killed at the same instant (the command
// itself still dies with the warden, its descendants do not), or both frozen;
// setuid programs, for a wrapper without privileges; processes in an
// uninterruptible wait, until it ends; work handed to another daemon (cron,
// docker, ssh, systemd-run). The lease's fencing token is for those.
package warden

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coordd/coordd/clock"
)

// subcommand is the first argument of a warden's process.
const subcommand = "__warden"

// ErrTooLate says that nothing was started: so little is left of the lease
// that the command would have been ended at once.
var ErrTooLate = errors.New("too little is left of the lease to start the command")

// Hook must be the first call in main: in a warden's process it never returns.
func Hook() {
	if len(os.Args) > 1 && os.Args[1] == subcommand {
		os.Exit(serve(os.Args[2:]))
	}
}

// Command says what is run.
type Command struct {
	Path     string   // the executable
	Args     []string // with the command's name as Args[0]
	Env      []string
	Limits   Limits
	Deadline clock.Instant // the lease's first one, on clock.System
}

// Result tells how a command ended, once none of its processes is left.
type Result struct {
	Status syscall.WaitStatus // the command's own; not known if Deserted
	// Lost: the lease's deadline came too near, or End or Kill was called, and
	// the command was ended for that, or it was seen too late to have ended.
	Lost bool
	// Overtime: the command was ended because it had run for Limits.AtMost.
	Overtime bool
	// Deserted: the warden was killed, and therefore everything else was.
	Deserted bool
}

// Tree is a running command with all of its descendants. Its methods are safe
// for concurrent use.
type Tree struct {
	limits   Limits
	warden   *exec.Cmd
	orders   *os.File     // to the warden
	backstop *clock.Timer // kills the warden if it fails to act in time
	overdue  atomic.Bool  // it had to

	mu       sync.Mutex // guards the three below
	deadline clock.Instant
	latest   clock.Instant // the backstop comes by then, however often the lease is renewed
	killed   bool          // nothing can be extended any more

	began   chan frame // the first report, if any
	group   int        // set, if it is known, before Start returns
	stopped chan syscall.Signal
	done    chan struct{}
	result  Result // set before done is closed
}

// Start runs c with this process's standard files, in a process group of its
// own, under a warden, which inherits this process's other files as well. It
// returns once the command runs, or the warden has been killed, which Wait then
// tells. Errors: ErrTooLate, an *exec.Error if the command could not be
// executed.
//
// This process becomes a child subreaper, and when the warden is killed it
// waits for all of its children: nothing else in it may start any meanwhile.
func Start(c Command) (*Tree, error) {
	if err := adopt(); err != nil {
		return nil, err
	}
	theirOrders, orders, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	reports, theirReports, err := os.Pipe()
	if err != nil {
		theirOrders.Close()
		orders.Close()
		return nil, err
	}
	t := &Tree{
		limits: c.Limits, deadline: c.Deadline, latest: math.MaxInt64, orders: orders,
		began: make(chan frame, 1), stopped: make(chan syscall.Signal, 1), done: make(chan struct{}),
	}
	spare := children(os.Getpid())
	t.warden, err = startWarden(c, theirOrders, theirReports)
	theirOrders.Close()
	theirReports.Close()
	if err != nil {
		orders.Close()
		reports.Close()
		return nil, fmt.Errorf("start the warden: %w", err)
	}
	t.backstop = clock.AfterFunc(clock.System(), c.Limits.backstop(c.Deadline), t.takeOver)
	t.send(frame{orderDeadline, int64(c.Deadline)})
	go t.follow(reports, spare)
	return t.awaitStart(c.Path)
}

// startWarden passes the pipes on under the numbers that they have here: so
// everything else that was inherited keeps its number too, unlike with
// exec.Cmd's ExtraFiles.
func startWarden(c Command, orders, reports *os.File) (*exec.Cmd, error) {
	self, err := executable()
	if err != nil {
		return nil, err
	}
	args := []string{os.Args[0], subcommand}
	for _, f := range []*os.File{orders, reports} {
		fd := int(f.Fd())
		if err := closeOnExec(fd, false); err != nil {
			return nil, err
		}
		args = append(args, strconv.Itoa(fd))
	}
	args = append(args, c.Limits.Margin.String(), c.Limits.Grace.String(), c.Limits.AtMost.String(), c.Path)
	cmd := &exec.Cmd{
		Path: self, Args: append(args, c.Args...), Env: c.Env,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		// A group of its own: what is sent to the wrapper's group spares it.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	return cmd, cmd.Start()
}

// closeOnExec says whether programs that this one starts get its file fd.
func closeOnExec(fd int, yes bool) error {
	flags := 0
	if yes {
		flags = unix.FD_CLOEXEC
	}
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, flags)
	return err
}

func (t *Tree) awaitStart(path string) (*Tree, error) {
	first, ok := <-t.began
	if ok && first.kind == reportStarted {
		t.group = int(first.value)
		t.bound(clock.System().Now())
		return t, nil
	}
	<-t.done
	switch {
	case !ok && t.result.Deserted && !t.result.Lost:
		return t, nil // the command may have run, and have done it
	case ok && first.kind == reportFailed:
		return nil, &exec.Error{Name: path, Err: syscall.Errno(first.value)}
	case ok && first.kind == reportUnable:
		return nil, fmt.Errorf("set the warden up: %w", syscall.Errno(first.value))
	}
	return nil, ErrTooLate
}

// bound sets the backstop for a command that started then and may not run on.
func (t *Tree) bound(started clock.Instant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.latest = t.limits.end(started).Add(t.limits.Grace + t.limits.Margin)
	t.backstop.Reset(min(t.limits.backstop(t.deadline), t.latest))
}

// Extend tells the lease's new deadline. After End and Kill it does nothing.
func (t *Tree) Extend(deadline clock.Instant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.killed {
		return
	}
	t.deadline = deadline
	t.backstop.Reset(min(t.limits.backstop(deadline), t.latest))
	t.send(frame{orderDeadline, int64(deadline)})
}

// End ends the command as if the lease's deadline had come so near just now: it
// is lost, but will be nobody else's until then.
func (t *Tree) End() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.killed = true
	t.deadline = min(t.deadline, clock.System().Now().Add(t.limits.Grace+t.limits.Margin))
	t.backstop.Reset(t.limits.backstop(t.deadline))
	t.send(frame{orderDeadline, int64(t.deadline)})
}

// Kill ends everything at once: the lease is lost.
func (t *Tree) Kill() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.killed, t.deadline = true, 0
	t.backstop.Reset(clock.System().Now().Add(t.limits.Margin / 2))
	t.send(frame{orderDeadline, 0})
}

// Signal sends sig to the command's process group.
func (t *Tree) Signal(sig syscall.Signal) { t.send(frame{orderSignal, int64(sig)}) }

// Group is the number of the command's process group; 0 if it is not known.
func (t *Tree) Group() int { return t.group }

// Stopped receives the signal by which the command has been stopped. If nobody
// receives, later ones are dropped.
func (t *Tree) Stopped() <-chan syscall.Signal { return t.stopped }

// Done is closed when none of the command's processes is left.
func (t *Tree) Done() <-chan struct{} { return t.done }

// Wait waits until none of the command's processes is left.
func (t *Tree) Wait() Result {
	<-t.done
	return t.result
}

// send never blocks for long: a warden that is stopped reads nothing. The
// backstop takes care of one that misses a deadline.
func (t *Tree) send(f frame) {
	t.orders.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	f.writeTo(t.orders)
}

// takeOver lets the command's processes fall to this one.
func (t *Tree) takeOver() {
	t.overdue.Store(true)
	t.warden.Process.Kill()
}

// follow waits for the warden's end, and does its work if it was killed. spare
// are children that this process had before.
func (t *Tree) follow(reports *os.File, spare map[int]bool) {
	defer close(t.done)
	left := tree{spare: spare}
	final := t.read(reports, &left)
	t.warden.Wait()
	t.backstop.Stop()
	reports.Close()
	t.orders.Close()
	if final {
		return
	}
	left.kill()
	t.mu.Lock()
	defer t.mu.Unlock()
	now := clock.System().Now()
	tooLate, overtime := newPlan(t.limits, t.deadline).tooLate(now), !now.Before(t.latest)
	t.result = Result{Deserted: true, Lost: tooLate || t.overdue.Load() && !overtime, Overtime: overtime}
}

// read handles the warden's reports until it is gone, and tells whether the
// final one was among them.
func (t *Tree) read(reports *os.File, left *tree) (final bool) {
	defer close(t.began)
	for {
		f, err := readFrame(reports)
		if err != nil {
			return final
		}
		switch f.kind {
		case reportStarted:
			left.command = int(f.value)
			t.began <- f
		case reportStopped:
			select {
			case t.stopped <- syscall.Signal(f.value):
			default:
			}
		case reportLate, reportFailed, reportUnable:
			t.began <- f
			final = true
		case reportEnded, reportLost, reportOvertime:
			t.result = Result{Status: syscall.WaitStatus(f.value), Lost: f.kind == reportLost, Overtime: f.kind == reportOvertime}
			final = true
		}
	}
}
