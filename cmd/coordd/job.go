package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/cmd/coordd/internal/warden"
	"github.com/coordd/coordd/leases"
)

const (
	// releaseTimeout bounds the release of a lease, which lapses anyhow.
	releaseTimeout = 5 * time.Second
	// withdrawTimeout bounds the withdrawal of an attempt, whose waiter is gone
	// with the connection anyhow.
	withdrawTimeout = time.Second
	// lookEvery is how often a job that has no lease yet looks whether the cluster
	// is heard. Twice in a row not is worth a word: an election takes less.
	lookEvery = 3 * time.Second
	// safeElections is how many election timeouts a TTL should be at least, so
	// that a lease is likely to outlive a change of leader.
	safeElections = 8
)

// job is a command that runs under a lease: once, or in each term of --elect.
type job struct {
	runOptions
	name    string
	argv    []string
	stderr  io.Writer
	path    string // of the command's file
	signals chan os.Signal

	found       bool // a node that serves has been
	told        bool // by a signal to end
	interrupted bool // by Ctrl-C
	lapses      bool // the lease, which is not given back
}

// term is how the time under one lease has ended.
type term struct {
	err    error         // what the process ends with, if it does now
	last   bool          // it has to
	failed bool          // the command has ended by itself, and not well
	ran    time.Duration // how long the command did
}

// run looks the command up, and has it run in its term, or its terms.
func (j *job) run(ctx context.Context) (err error) {
	j.path, err = lookUp(j.argv[0])
	if err != nil {
		return err
	}
	j.signals = catchSignals()
	defer signal.Stop(j.signals)

	conn, err := j.conn.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	c := client.New(conn, client.WithOwner(j.owner()))
	defer j.leave(ctx, c)
	if j.elect {
		return j.campaign(ctx, c)
	}
	return j.term(ctx, c).err
}

// term acquires the lease, has the command run under it, and releases it once
// none of the command's processes is left, and --at-least is over.
func (j *job) term(ctx context.Context, c *client.Client) term {
	lease, err := j.acquire(ctx, c)
	if err != nil {
		j.release(ctx, lease)
		return term{err: j.refused(err), last: true}
	}
	if j.elect {
		j.note("run %s: elected, under token %v", j.name, lease.Token())
	}
	result, began, err := j.work(lease)
	if err != nil {
		j.release(ctx, lease)
		return term{err: j.notStarted(err), last: !errors.Is(err, warden.ErrTooLate)}
	}
	ran, lost := clock.System().Now().Sub(began), lease.Err()
	if result.Lost && lost == nil { // the command was ended before the lease was
		lost = unheard(c)
	}
	if j.keep(lease, began.Add(j.atLeast)) {
		j.release(ctx, lease)
	}
	code, _ := j.verdict(result)
	return term{err: j.ended(result, lost), last: j.told, failed: code != 0 && !result.Lost && !result.Overtime, ran: ran}
}

// owner is whom others see as the lease's holder.
func (j *job) owner() leases.Owner {
	owner := leases.Owner{Label: filepath.Base(j.argv[0]), PID: uint32(os.Getpid())}
	owner.Host, _ = os.Hostname() // for people only
	if (leases.Claim{Name: j.name, Attempt: leases.NewID(), TTL: j.ttl, Owner: owner}).Validate() != nil {
		owner.Label, owner.Host = "", ""
	}
	return owner
}

// acquire looks for a node that serves, and acquires the lease from it, while
// it takes care of signals. A lease that comes with an error is not wanted.
func (j *job) acquire(ctx context.Context, c *client.Client) (*client.Lease, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	type answer struct {
		lease *client.Lease
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		lease, err := j.ask(ctx, c)
		answers <- answer{lease, err}
	}()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for silent := 0; ; {
		select {
		case <-look.C:
			why := unheard(c)
			if why == nil {
				silent = 0
			} else if silent++; silent == 2 {
				j.note("%v; trying on", why)
			}
		case a := <-answers:
			if ctx.Err() != nil { // a signal, perhaps too late to keep the lease from being granted
				a.err = context.Cause(ctx)
			}
			return a.lease, a.err
		case sig := <-j.signals:
			switch {
			case sig == unix.SIGTSTP:
				stopSelf()
			case endsWait(sig):
				cancel(&signalled{sig.(syscall.Signal)})
			}
		}
	}
}

// unheard says why no node that serves leases is heard, as far as is known by
// now; nil if one is.
func unheard(c *client.Client) error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // it is not waited for
	_, err := c.Info(ctx)
	if err == nil {
		return nil
	}
	return allOf(err)[0] // without the context's end
}

func (j *job) ask(ctx context.Context, c *client.Client) (*client.Lease, error) {
	search, cancel := giveUp(ctx, j.conn.timeout, "--timeout")
	defer cancel()
	if err := j.find(search, c); err != nil {
		return nil, err
	}
	if j.wait == 0 {
		return c.TryAcquire(search, j.name, client.TTL(j.ttl))
	}
	if j.wait != waitFlag(leases.Forever) {
		ctx, cancel = giveUp(ctx, time.Duration(j.wait), "--wait")
		defer cancel()
	}
	told := false
	return c.Acquire(ctx, j.name, client.TTL(j.ttl), client.OnQueued(func(place int) {
		if !told {
			j.note("waiting for lease %q, at place %d in the queue", j.name, place)
		}
		told = true
	}))
}

// find looks for a node that serves, before the first lease is asked for.
func (j *job) find(ctx context.Context, c *client.Client) error {
	if j.found {
		return nil
	}
	info, err := c.Info(ctx)
	if err != nil {
		return err
	}
	j.found = true
	if safe := safeElections * info.ElectionTimeout; j.ttl < safe {
		j.note("--ttl %v is short: a change of leader may cost the lease; %v (%d election timeouts) or more is safe", j.ttl, safe, safeElections)
	}
	return nil
}

// work runs the command and returns when none of its processes is left: how it
// ended, and when it began.
func (j *job) work(lease *client.Lease) (result warden.Result, began clock.Instant, err error) {
	tree, err := warden.Start(warden.Command{
		Path: j.path, Args: j.argv,
		Env: append(os.Environ(),
			"COORDD_LEASE="+j.name,
			"COORDD_FENCING_TOKEN="+lease.Token().String(),
			"COORDD_ADDR="+j.conn.addrs.String()),
		Limits: j.limits, Deadline: lease.Deadline(),
	})
	if err != nil {
		return result, began, err
	}
	began = clock.System().Now()
	tty := openTerminal(j.elect)
	tty.offer(tree.Group())
	forwarded := map[syscall.Signal]bool{}
	for over := lease.Done(); ; {
		select {
		case <-lease.Renewed():
			tree.Extend(lease.Deadline())
		case <-over:
			if broken(lease.Err()) {
				tree.End()
			} else {
				tree.Kill()
			}
			over = nil
		case s := <-j.signals:
			sig := s.(syscall.Signal)
			if sig == unix.SIGCONT {
				tty.offer(tree.Group())
			}
			if sig != unix.SIGPIPE {
				forwarded[sig] = true
				tree.Signal(sig)
			}
		case sig := <-tree.Stopped():
			tty.stopped(tree, sig)
		case <-tree.Done():
			result = tree.Wait()
			typed := tty.close(tree.Group(), result, forwarded)
			j.interrupted = typed == unix.SIGINT
			j.told = typed != 0 || endsJob(forwarded, result.Status)
			return result, began, nil
		}
	}
}

// broken tells whether an operator has ended the lease that is lost. It is its
// holder's to give back, within its deadline.
func broken(lost error) bool {
	gone, ok := errors.AsType[*leases.NotHeldError](lost)
	return ok && gone.Why == leases.WhyBroken
}

// keep holds the lease until then, although the command has ended, and tells
// whether it may be released. Where nobody stays to hold it, only its TTL keeps
// the name.
func (j *job) keep(lease *client.Lease, until clock.Instant) (free bool) {
	left := until.Sub(clock.System().Now())
	if left <= 0 || lease.Err() != nil {
		return true
	}
	if !j.told {
		j.note("run %s: the command has ended; keeping the lease for %v more (--at-least %v)", j.name, left.Round(time.Millisecond), j.atLeast)
		sig := j.idle(until, lease.Done())
		j.told, j.interrupted = sig != 0, sig == unix.SIGINT
		lost := lease.Err()
		if lost != nil {
			j.say("run %s: the lease was lost before --at-least %v was over: %s", j.name, j.atLeast, oneLine(lost))
		}
		if !j.told || lost != nil {
			return true
		}
	}
	j.lapses = true
	j.note("lease %q is not released, as --at-least %v is not over: it is free after %v at the latest", j.name, j.atLeast, j.ttl)
	return false
}

// idle waits until then, or over is closed, and returns the signal that has
// ended it before.
func (j *job) idle(until clock.Instant, over <-chan struct{}) (sig syscall.Signal) {
	done := make(chan struct{})
	timer := clock.AfterFunc(clock.System(), until, func() { close(done) })
	defer timer.Stop()
	for {
		select {
		case <-done:
			return 0
		case <-over:
			return 0
		case sig := <-j.signals:
			switch {
			case sig == unix.SIGTSTP:
				stopSelf()
			case endsWait(sig):
				return sig.(syscall.Signal)
			}
		}
	}
}

// release gives the lease back, if there is one. Signals change nothing any
// more: it does not take long.
func (j *job) release(ctx context.Context, lease *client.Lease) {
	if lease == nil {
		return
	}
	// At its deadline there is nothing left to give back.
	timeout := min(releaseTimeout, lease.Deadline().Sub(clock.System().Now()))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	if err := lease.Release(ctx); errors.Is(err, leases.ErrUnknownOutcome) {
		j.note("lease %q could not be released, it is free after %v at the latest", j.name, j.ttl)
	}
}

// leave ends the client. What could not be told to the cluster lapses.
func (j *job) leave(ctx context.Context, c *client.Client) {
	timeout := withdrawTimeout
	if j.lapses { // nobody waits for its release
		timeout = 0
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	_ = c.Close(ctx)
}

// note says something that nobody needs to act on.
func (j *job) note(format string, args ...any) {
	if !j.quiet {
		j.say(format, args...)
	}
}

func (j *job) say(format string, args ...any) { fmt.Fprintf(j.stderr, "coordd: "+format+"\n", args...) }

// refused is the end of a job that did not get its lease.
func (j *job) refused(err error) error {
	if sig, ok := errors.AsType[*signalled](err); ok {
		j.interrupted = sig.Signal == unix.SIGINT
		return j.ordinary(128+int(sig.Signal), fmt.Errorf("ended by %s before lease %q was acquired", unix.SignalName(sig.Signal), j.name))
	}
	if errors.Is(err, leases.ErrHeld) {
		return j.ordinary(j.heldExit, err)
	}
	return err
}

// notStarted is the end of a job whose command could not be started.
func (j *job) notStarted(err error) error {
	code, hint := exitInternal, ""
	switch execution, _ := errors.AsType[*exec.Error](err); {
	case errors.Is(err, warden.ErrTooLate):
		code = exitLost
	case execution != nil && errors.Is(err, unix.ENOENT): // a script's interpreter
		code, hint = exitNotFound, ": what is missing is the interpreter that its first line names, or its loader"
	case execution != nil:
		code = exitNotExecutable
		if errors.Is(err, unix.ENOEXEC) {
			hint = ": it is no program for this machine; a script needs a first line such as #!/bin/sh"
		}
	}
	return &exit{code, fmt.Errorf("run %s: %w%s", j.name, err, hint)}
}

// ended is the end of a job whose command has run. lost tells why the lease
// was over before the command was, if it was.
func (j *job) ended(r warden.Result, lost error) error {
	code, why := j.verdict(r)
	err := fmt.Errorf("run %s: %s", j.name, why)
	switch {
	case code == 0 && j.interrupted: // while the lease was kept
		return j.ordinary(code, nil)
	case code == 0:
		return nil
	case r.Lost && lost != nil:
		return &exit{code, fmt.Errorf("%w: %w", err, lost)}
	case r.Lost, r.Overtime, r.Deserted:
		return &exit{code, err}
	}
	return j.ordinary(code, err)
}

// ordinary is an end that -q does not speak of.
func (j *job) ordinary(code int, err error) error {
	if j.quiet {
		err = nil
	}
	if j.interrupted {
		return &interrupted{&exit{code, err}}
	}
	return &exit{code, err}
}

// verdict is the exit code that a command's end comes to, and why.
func (j *job) verdict(r warden.Result) (code int, why string) {
	switch {
	case r.Lost:
		return exitLost, "the lease was lost, or not renewed in time, while the command ran, which has been ended"
	case r.Overtime:
		return exitLost, fmt.Sprintf("the command ran longer than --at-most %v, and has been ended", j.atMost)
	case r.Deserted:
		return 128 + int(unix.SIGKILL), "the warden process was killed from outside, so the command was killed"
	case r.Status.Signaled():
		return 128 + int(r.Status.Signal()), fmt.Sprintf("the command was ended by %s", unix.SignalName(r.Status.Signal()))
	case r.Status.ExitStatus() != 0:
		return r.Status.ExitStatus(), fmt.Sprintf("the command ended with code %d", r.Status.ExitStatus())
	}
	return 0, ""
}

// lookUp finds the command's file as a shell would.
func lookUp(command string) (path string, err error) {
	path, err = exec.LookPath(command)
	if err == nil || errors.Is(err, exec.ErrDot) { // whoever has . in PATH wants it
		return path, nil
	}
	if !strings.ContainsRune(command, filepath.Separator) {
		for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
			if info, e := os.Stat(filepath.Join(dir, command)); e == nil && info.Mode().IsRegular() {
				return "", &exit{exitNotExecutable, fmt.Errorf("command %s is not executable", filepath.Join(dir, command))}
			}
		}
		return "", &exit{exitNotFound, fmt.Errorf("command %q was not found in PATH", command)}
	}
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return "", &exit{exitNotFound, fmt.Errorf("command %s was not found", command)}
	}
	return "", &exit{exitNotExecutable, fmt.Errorf("command %s is not executable: %w", command, errors.Unwrap(err))}
}
