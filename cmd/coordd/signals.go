package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// signalled is the cause of a wait's end.
type signalled struct{ syscall.Signal }

func (s *signalled) Error() string { return "ended by " + unix.SignalName(s.Signal) }

// catch receives those of the signals that are not ignored (nohup): they stay so,
// also for a command that is started.
func catch(c chan<- os.Signal, signals ...os.Signal) {
	for _, sig := range signals {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
}

// catchSignals receives what a command's process group is to get. PIPE is caught
// so that a closed stderr does not end this process and thereby the command.
func catchSignals() chan os.Signal {
	c := make(chan os.Signal, 16)
	catch(c, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGWINCH, unix.SIGCONT, unix.SIGTSTP, unix.SIGPIPE)
	return c
}

// untilSignalled ends ctx at a signal, which is its cause then. PIPE is caught
// so that a lease that nobody reads of can be given back.
func untilSignalled(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	catch(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	go func() {
		for {
			select {
			case sig := <-signals:
				if endsWait(sig) {
					cancel(&signalled{sig.(syscall.Signal)})
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// endsWait tells whether sig ends what waits for a lease, or between two of them.
func endsWait(sig os.Signal) bool {
	return sig == unix.SIGINT || sig == unix.SIGTERM || sig == unix.SIGHUP || sig == unix.SIGQUIT
}

// endsJob tells whether nothing follows on a command that has ended with that
// status, and that those signals were forwarded to. HUP and others may only have
// told it something, unless it ended by them.
func endsJob(forwarded map[syscall.Signal]bool, status syscall.WaitStatus) bool {
	return forwarded[unix.SIGINT] || forwarded[unix.SIGTERM] || forwarded[unix.SIGQUIT] ||
		status.Signaled() && forwarded[status.Signal()]
}

// interruptSelf ends this process by SIGINT, unless that was ignored from the
// beginning.
func interruptSelf() {
	signal.Reset(unix.SIGINT)
	unix.Kill(unix.Getpid(), unix.SIGINT)
	time.Sleep(time.Second) // another thread may be the one that gets it
}

// stopSelf stops this process until somebody continues it.
func stopSelf() { unix.Kill(unix.Getpid(), unix.SIGSTOP) }
