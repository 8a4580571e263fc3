package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coordd/coordd/client"
	"github.com/coordd/coordd/cmd/coordd/internal/warden"
	"github.com/coordd/coordd/leases"
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
after 1 s. Stopped (Ctrl-Z) for longer than its lease lasts, it is killed. When an
operator breaks the lease, the command gets TERM and its grace, too.

--timeout bounds the search for a node that serves leases at the beginning. From
then on the job waits for as long as --wait says, also while no node is heard.

A takeover by the cluster's arbiter does not concern a command that runs: its lease is
reclaimed. Who has none yet waits as --wait says, and without it ends with 69 while
nothing is granted anew.

Signals to this process reach the command's process group.

--at-least keeps the lease, although the command has ended, until so long after
its start: so schedulers on several machines that start a job a little apart run
it once, as long as none of them waits for the lease. Only this process can keep
it, so it stays for that time, and then ends with the command's own code. INT,
TERM, HUP and QUIT end that at once, with the same code, except that this process
then ends by an INT; nor does it stay if INT, TERM or QUIT came while the command
ran. In these cases, and if this process is killed, the lease is not released: it
lapses, and is free after its TTL.

--at-most ends a command that has run so long: it gets TERM, and after --grace all
that it has started is killed, as if the lease were lost. The exit code is the
same, 76, and the lease is released.

With --elect this process campaigns for the lease until a signal ends it, and runs
the command in each term, under a token that is new each time. When the lease is
lost the command is ended, and this process waits for its next term. When the
command ends by itself, with whatever code, or by --at-most, the lease is released
for others to have. This process campaigns again after 1s, and after 2s, 4s and up
to 30s while the command fails within 30s each time. INT, TERM and QUIT end all of
that, and so does another signal that the command ends by, or HUP while none runs.
The exit code is then the command's, or 128+n if none ran. The command gets the
terminal only when it reads from it.`,
		Example: `  coordd run nightly -- ./backup.sh             # or leave, if another machine does it
  coordd run --wait forever billing ./worker    # one at a time, the next takes over
  coordd run --elect billing ./worker           # the same, and again after each end
  coordd run nightly --at-least 10m --at-most 2h -- ./backup.sh
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
			if err := o.validate(name, cmd.Flags().Changed); err != nil {
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
	elect    bool
	grace    time.Duration
	atLeast  time.Duration // 0: no longer than the command runs
	atMost   time.Duration // 0: as long as it runs
	heldExit int
	quiet    bool
	limits   warden.Limits // from ttl, grace and atMost
}

func (o *runOptions) register(fs *pflag.FlagSet) {
	fs.SetInterspersed(false) // COMMAND's flags are not ours
	fs.DurationVar(&o.ttl, "ttl", client.DefaultTTL, "how long the lease outlives its last renewal, from 3s to 5m")
	fs.Var(&o.wait, "wait", "how long to wait for the lease if somebody holds it, or forever")
	fs.BoolVar(&o.elect, "elect", false, "campaign for the lease again and again, and run the command in each term")
	fs.DurationVar(&o.atLeast, "at-least", 0, "keep the lease until so long after the command's start, although it has ended")
	fs.DurationVar(&o.atMost, "at-most", 0, "end the command when it has run so long")
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

// validate checks the values, and derives from them what follows. given tells
// whether a flag was.
func (o *runOptions) validate(name string, given func(flag string) bool) error {
	if err := leases.ValidateName(name); err != nil {
		return err
	}
	if err := o.limit(given("grace")); err != nil {
		return err
	}
	if o.elect {
		if given("wait") || given("held-exit") {
			return usagef("--elect waits for the lease for as long as it takes: leave out --wait and --held-exit")
		}
		o.wait = waitFlag(leases.Forever)
	}
	if o.heldExit < 0 || o.heldExit > 255 {
		return usagef("invalid --held-exit %d: want from 0 to 255", o.heldExit)
	}
	return nil
}

// limit checks how long things last, and derives the command's limits from that.
func (o *runOptions) limit(graceGiven bool) error {
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
	switch {
	case o.atLeast < 0:
		return usagef("invalid --at-least %v: want more than 0s", o.atLeast)
	case o.atMost < 0:
		return usagef("invalid --at-most %v: want more than 0s", o.atMost)
	case o.atMost > 0 && o.atLeast > o.atMost:
		return usagef("invalid --at-least %v: want at most what --at-most says, %v", o.atLeast, o.atMost)
	}
	o.limits.AtMost = o.atMost
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
