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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/cmd/coordd/internal/warden"
	"github.com/coordd/coordd/leases"
)

const (
	// leaveTimeout bounds the release of a lease, which lapses anyhow.
	leaveTimeout = 5 * time.Second
	// safeElections is how many election timeouts a TTL should be at least, so
	// that a lease is likely to outlive a change of leader.
	safeElections = 8
)

func newRun() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run NAME [flags] [--] COMMAND [ARGUMENT...]",
		Short: "Run a command while holding a lease",
		Long: `Acquires the lease NAME, runs COMMAND while it is held, and releases it when the
command, and all that it has started, has ended. Flags go before or after NAME,
up to -- or the first word of COMMAND. No shell is involved.

The command finds in its environment COORDD_LEASE (the name),
COORDD_FENCING_TOKEN (a decimal number, greater at each grant: pass it to the
store that you write to, and let it refuse a smaller one) and COORDD_ADDR.

When the lease cannot be renewed the command gets TERM, --grace before it is
killed. That happens a margin of a twentieth of the TTL, at least 250 ms, before
somebody else can have the lease, also when this process is stopped or killed,
and reaches every process that the command has started (on macOS those of its
process group). What the command leaves running when it ends gets TERM, and KILL
after 1 s. Stopped (Ctrl-Z) for longer than its lease lasts, it is killed.

Signals to this process reach the command's process group.`,
		Example: `  coordd run nightly -- ./backup.sh             # or leave, if another machine does it
  coordd run --wait forever billing ./worker    # one at a time, the next takes over
  coordd run nightly --ttl 60s --grace 20s -- sh -c 'pg_dump app > dump.$COORDD_FENCING_TOKEN'`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, argv, err := splitArgs(cmd.Flags(), args)
			if help, _ := cmd.Flags().GetBool("help"); help {
				return cmd.Help()
			}
			if err != nil {
				return usagef("%w (see 'coordd run --help')", flagError(cmd, err))
			}
			if err := o.validate(name, cmd.Flags().Changed("grace")); err != nil {
				return err
			}
			j := &job{runOptions: o, name: name, argv: argv, stderr: cmd.ErrOrStderr()}
			return j.run(cmd.Context())
		},
	}
	o.register(cmd.Flags())
	return cmd
}

// runOptions has the flags.
type runOptions struct {
	conn     connection
	ttl      time.Duration
	wait     waitFlag
	grace    time.Duration
	heldExit int
	quiet    bool
	limits   warden.Limits // from ttl and grace
}

func (o *runOptions) register(fs *pflag.FlagSet) {
	fs.SetInterspersed(false) // COMMAND's flags are not ours
	fs.DurationVar(&o.ttl, "ttl", client.DefaultTTL, "how long the lease outlives its last renewal")
	fs.Var(&o.wait, "wait", "how long to wait for the lease if somebody holds it, or forever")
	fs.DurationVar(&o.grace, "grace", 0, "how long the command has between TERM and KILL, at most a third of the TTL (default a quarter, at most 5s)")
	fs.IntVar(&o.heldExit, "held-exit", exitHeld, "exit code if somebody else holds the lease")
	fs.BoolVarP(&o.quiet, "quiet", "q", false, "say nothing of ordinary ends: held by somebody else, a signal, the command's own code")
	o.conn.register(fs)
}

// splitArgs takes the lease's name off args, reads the flags behind it, and
// returns the command. args are what is left after the flags before the name.
func splitArgs(fs *pflag.FlagSet, args []string) (name string, argv []string, err error) {
	if len(args) == 0 {
		return "", nil, errors.New("run needs the NAME of a lease and a COMMAND")
	}
	name, argv = args[0], args[1:]
	if fs.ArgsLenAtDash() != 0 { // no -- has ended the flags yet
		if err := fs.Parse(argv); err != nil {
			return "", nil, err
		}
		argv = fs.Args()
	} else if len(argv) > 0 && argv[0] == "--" {
		argv = argv[1:]
	}
	if len(argv) == 0 {
		return name, nil, fmt.Errorf("run %s needs a COMMAND", name)
	}
	return name, argv, nil
}

// validate checks the values, and derives the limits from them.
func (o *runOptions) validate(name string, graceGiven bool) error {
	if err := leases.ValidateName(name); err != nil {
		return err
	}
	if o.ttl < leases.MinCommandTTL || o.ttl > leases.MaxTTL || o.ttl%time.Millisecond != 0 {
		return usagef("invalid --ttl %v: want from %v to %v, in whole milliseconds", o.ttl, leases.MinCommandTTL, leases.MaxTTL)
	}
	o.limits = warden.LimitsFor(o.ttl)
	if graceGiven {
		// A renewal is due after a third of the TTL: it then has as long to come.
		if most := o.ttl / 3; o.grace < 0 || o.grace > most {
			return usagef("invalid --grace %v: want from 0s to a third of --ttl, %v", o.grace, most)
		}
		o.limits.Grace = o.grace
	}
	if o.heldExit < 0 || o.heldExit > 255 {
		return usagef("invalid --held-exit %d: want from 0 to 255", o.heldExit)
	}
	return nil
}

// waitFlag is a duration, or forever.
type waitFlag time.Duration

func (w *waitFlag) Type() string { return "duration|forever" }

func (w *waitFlag) String() string {
	if *w == waitFlag(leases.Forever) {
		return "forever"
	}
	return time.Duration(*w).String()
}

func (w *waitFlag) Set(s string) error {
	if s == "forever" {
		*w = waitFlag(leases.Forever)
		return nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return errors.New("want a duration such as 30s, 0 for no wait, or forever")
	}
	*w = waitFlag(d)
	return nil
}

// job is one command under one lease.
type job struct {
	runOptions
	name    string
	argv    []string
	stderr  io.Writer
	signals chan os.Signal
}

// run acquires the lease, has the command run under it, and releases it once
// none of the command's processes is left.
func (j *job) run(ctx context.Context) error {
	path, err := lookUp(j.argv[0])
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

	lease, err := j.acquire(ctx, c)
	if err != nil {
		j.leave(ctx, c, lease)
		return j.refused(err)
	}
	result, err := j.work(path, lease)
	lost := lease.Err()
	j.leave(ctx, c, lease)
	if err != nil {
		return j.notStarted(err)
	}
	return j.ended(result, lost)
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
	for {
		select {
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

func (j *job) ask(ctx context.Context, c *client.Client) (*client.Lease, error) {
	search, cancel := giveUp(ctx, j.conn.timeout, "--timeout")
	defer cancel()
	info, err := c.Info(search)
	if err != nil {
		return nil, err
	}
	if safe := safeElections * info.ElectionTimeout; j.ttl < safe {
		j.note("--ttl %v is short: a change of leader may cost the lease; %v (%d election timeouts) or more is safe", j.ttl, safe, safeElections)
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

// giveUp bounds ctx by the value of a flag. Unless somebody holds the lease,
// no node that serves was found then.
func giveUp(ctx context.Context, after time.Duration, flag string) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, after, &exit{exitUnavailable, fmt.Errorf("gave up after %v (%s)", after, flag)})
}

// work runs the command and returns when none of its processes is left.
func (j *job) work(path string, lease *client.Lease) (warden.Result, error) {
	tree, err := warden.Start(warden.Command{
		Path: path, Args: j.argv,
		Env: append(os.Environ(),
			"COORDD_LEASE="+j.name,
			"COORDD_FENCING_TOKEN="+lease.Token().String(),
			"COORDD_ADDR="+j.conn.addrs.String()),
		Limits: j.limits, Deadline: lease.Deadline(),
	})
	if err != nil {
		return warden.Result{}, err
	}
	tty := openTerminal()
	tty.give(tree.Group())
	for over := lease.Done(); ; {
		select {
		case <-lease.Renewed():
			tree.Extend(lease.Deadline())
		case <-over:
			tree.Kill()
			over = nil
		case sig := <-j.signals:
			if sig == unix.SIGCONT {
				tty.give(tree.Group())
			}
			if sig != unix.SIGPIPE {
				tree.Signal(sig.(syscall.Signal))
			}
		case sig := <-tree.Stopped():
			tty.stopped(tree, sig)
		case <-tree.Done():
			result := tree.Wait()
			tty.close(tree.Group(), result)
			return result, nil
		}
	}
}

// leave gives the lease back, if there is one, and ends the client. By then a
// further signal ends this process at once.
func (j *job) leave(ctx context.Context, c *client.Client, lease *client.Lease) {
	signal.Stop(j.signals)
	timeout := leaveTimeout
	if lease != nil { // at its deadline there is nothing left to give back
		timeout = min(timeout, lease.Deadline().Sub(clock.System().Now()))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	if lease != nil {
		if err := lease.Release(ctx); errors.Is(err, leases.ErrUnknownOutcome) {
			j.note("lease %q could not be released, it is free after %v at the latest", j.name, j.ttl)
		}
	}
	_ = c.Close(ctx) // what could not be told to the cluster lapses
}

// note says something that nobody needs to act on.
func (j *job) note(format string, args ...any) {
	if !j.quiet {
		fmt.Fprintf(j.stderr, "coordd: "+format+"\n", args...)
	}
}

// refused is the end of a job that did not get its lease.
func (j *job) refused(err error) error {
	if sig, ok := errors.AsType[*signalled](err); ok {
		return j.ordinary(128+int(sig.Signal), fmt.Errorf("ended by %s before lease %q was acquired", unix.SignalName(sig.Signal), j.name))
	}
	if errors.Is(err, leases.ErrHeld) {
		return j.ordinary(j.heldExit, err)
	}
	return err
}

// notStarted is the end of a job whose command could not be started.
func (j *job) notStarted(err error) error {
	switch {
	case errors.Is(err, warden.ErrTooLate):
		return &exit{exitLost, fmt.Errorf("lease %q: %w", j.name, err)}
	case errors.Is(err, unix.ENOENT): // a script's interpreter, too
		return &exit{exitNotFound, err}
	case errors.As(err, new(*os.PathError)):
		return &exit{exitNotExecutable, err}
	}
	return &exit{exitInternal, err}
}

// ended is the end of a job whose command has run. lost tells why the lease
// was over before the command was, if it was.
func (j *job) ended(r warden.Result, lost error) error {
	code, why := verdict(r)
	switch {
	case code == 0:
		return nil
	case code == exitLost && r.Lost:
		if lost == nil {
			lost = errors.New("it was not renewed in time")
		}
		return &exit{code, fmt.Errorf("lease %q was lost while the command ran, which has been ended: %w", j.name, lost)}
	case r.Deserted:
		return &exit{code, fmt.Errorf("run %s: %s", j.name, why)}
	}
	return j.ordinary(code, fmt.Errorf("run %s: %s", j.name, why))
}

// ordinary is an end that -q does not speak of.
func (j *job) ordinary(code int, err error) error {
	if j.quiet {
		err = nil
	}
	return &exit{code, err}
}

// verdict is the exit code that a command's end comes to, and why.
func verdict(r warden.Result) (code int, why string) {
	switch {
	case r.Lost:
		return exitLost, "the lease was lost"
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
		return "", &exit{exitNotFound, fmt.Errorf("command %s was not found in PATH", strconv.Quote(command))}
	}
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return "", &exit{exitNotFound, fmt.Errorf("command %s was not found", command)}
	}
	return "", &exit{exitNotExecutable, fmt.Errorf("command %s is not executable: %w", command, errors.Unwrap(err))}
}

// signalled is the cause of a wait's end.
type signalled struct{ syscall.Signal }

func (s *signalled) Error() string { return "ended by " + unix.SignalName(s.Signal) }

// catchSignals receives what the command's process group is to get. Signals
// that are ignored (nohup) stay so, for the command too. PIPE is caught so that
// a closed stderr does not end this process and thereby the command.
func catchSignals() chan os.Signal {
	c := make(chan os.Signal, 16)
	for _, sig := range []os.Signal{
		unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGWINCH, unix.SIGCONT, unix.SIGTSTP, unix.SIGPIPE,
	} {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
	return c
}

// endsWait tells whether sig ends a job that has no command yet.
func endsWait(sig os.Signal) bool {
	return sig == unix.SIGINT || sig == unix.SIGTERM || sig == unix.SIGHUP || sig == unix.SIGQUIT
}
