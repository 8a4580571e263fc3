package warden

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coordd/coordd/clock"
)

// ward is the warden's process. All of it happens in one goroutine, so that no
// process is signalled after it has been reaped.
type ward struct {
	plan     plan
	tree     tree
	danger   bool // the lease's deadline came too near while the command ran
	overtime bool // or else: the command ran for as long as it may
	left     bool // what the command left running has been told to end
	alarm    *alarm
	orders   <-chan frame
	child    chan os.Signal // SIGCHLD
	reports  *os.File
}

// serve is the warden's main.
func serve(args []string) int {
	orders, reports, limits, err := parseArgs(args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s %s is for coordd's own use: %v\n", os.Args[0], subcommand, err)
		return int(unix.EINVAL)
	}
	// The command dies with the thread that forked it: keep to one that stays.
	runtime.LockOSThread()
	w := &ward{reports: reports, child: make(chan os.Signal, 1)}
	signal.Notify(w.child, unix.SIGCHLD)
	withstand()
	if err := w.start(orders, limits, args[5], args[6:]); err != nil {
		return w.refuse(err)
	}
	w.watch()
	return 0
}

// parseArgs reads: orders, reports, margin, grace, at most, path, the command's
// words.
func parseArgs(args []string) (orders, reports *os.File, l Limits, err error) {
	if len(args) < 7 {
		return nil, nil, l, errors.New("too few arguments")
	}
	var files [2]*os.File
	for i := range files {
		fd, err := strconv.Atoi(args[i])
		if err != nil {
			return nil, nil, l, err
		}
		if err := closeOnExec(fd, true); err != nil {
			return nil, nil, l, fmt.Errorf("file %d: %w", fd, err)
		}
		files[i] = os.NewFile(uintptr(fd), "wrapper")
	}
	for i, d := range []*time.Duration{&l.Margin, &l.Grace, &l.AtMost} {
		if *d, err = time.ParseDuration(args[2+i]); err != nil {
			return nil, nil, l, err
		}
	}
	return files[0], files[1], l, nil
}

// withstand keeps signals from outside from ending or stopping the warden. It
// catches them: ignored ones would stay ignored in the command. One that is
// ignored already (nohup) stays so, for the command too.
func withstand() {
	deaf := make(chan os.Signal, 1) // never read
	for _, sig := range []os.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGPIPE, unix.SIGALRM,
		unix.SIGUSR1, unix.SIGUSR2, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGXCPU,
	} {
		if !signal.Ignored(sig) {
			signal.Notify(deaf, sig)
		}
	}
}

// errLate says that the wrapper is gone or the deadline too near.
var errLate = errors.New("too late")

// start runs the command if the first deadline allows for it.
func (w *ward) start(orders *os.File, l Limits, path string, argv []string) error {
	if err := adopt(); err != nil {
		return err
	}
	var err error
	if w.alarm, err = newAlarm(); err != nil {
		return err
	}
	first, err := readFrame(orders)
	if err != nil {
		return errLate
	}
	w.plan = newPlan(l, clock.Instant(first.value))
	if step, _ := w.plan.next(clock.System().Now()); step != wait {
		return errLate
	}
	attr := &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: commandAttr()}
	if w.tree.command, err = syscall.ForkExec(path, argv, attr); err != nil {
		return &exec.Error{Name: path, Err: err}
	}
	w.plan.end = l.end(clock.System().Now())
	w.tree.stopped = func(by syscall.Signal) { w.report(reportStopped, int64(by)) }
	w.report(reportStarted, int64(w.tree.command))
	frames := make(chan frame)
	w.orders = frames
	go func() {
		defer close(frames)
		for {
			f, err := readFrame(orders)
			if err != nil {
				return
			}
			frames <- f
		}
	}()
	return nil
}

// refuse reports why start has not started anything.
func (w *ward) refuse(err error) int {
	var execution *exec.Error
	errno := unix.ENOTSUP
	errors.As(err, &errno)
	switch {
	case errors.Is(err, errLate):
		w.report(reportLate, 0)
	case errors.As(err, &execution):
		w.report(reportFailed, int64(errno))
	default:
		w.report(reportUnable, int64(errno))
	}
	return 1
}

func (w *ward) report(k kind, value int64) { frame{k, value}.writeTo(w.reports) }

// watch returns when no process is left.
func (w *ward) watch() {
	for !w.tree.reap() {
		now := clock.System().Now()
		if w.tree.status != nil && !w.left {
			w.left = true
			w.plan.tellNow(now.Add(linger))
			w.tree.signal(unix.SIGTERM)
			w.tree.signal(unix.SIGCONT)
		}
		step, again := w.plan.next(now)
		switch step {
		case kill:
			w.tree.kill()
			w.finish()
			return
		case tell:
			w.tell(now)
		case wait:
			w.alarm.set(again)
			if !w.await() {
				w.tree.kill()
				return
			}
		}
	}
	w.finish()
}

// tell asks the command to end, for the lease's sake or because it has run for
// long enough.
func (w *ward) tell(now clock.Instant) {
	w.danger = !now.Before(w.plan.dangerAt())
	w.overtime = !w.danger
	w.plan.tellNow(min(w.plan.killAt(), now.Add(w.plan.limits.Grace)))
	w.tree.signalGroup(unix.SIGTERM)
	w.tree.signalGroup(unix.SIGCONT) // a stopped one could not end otherwise
}

// await waits until there is something to look at, and carries orders out. It
// returns false when the wrapper is gone.
func (w *ward) await() bool {
	select {
	case <-w.child:
	case <-w.alarm.c:
	case f, ok := <-w.orders:
		if !ok {
			return false
		}
		switch f.kind {
		case orderDeadline:
			w.plan.deadline = clock.Instant(f.value)
		case orderSignal:
			w.tree.signalGroup(syscall.Signal(f.value))
		}
	}
	return true
}

// finish tells the wrapper how the command ended, now that all have.
func (w *ward) finish() {
	k := reportEnded
	switch {
	case w.danger || w.plan.tooLate(clock.System().Now()):
		k = reportLost
	case w.overtime:
		k = reportOvertime
	}
	w.report(k, int64(*w.tree.status))
}
