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
after 1 s. Stopped (Ctrl-Z) for longer than its lease lasts, it is killed.

--timeout bounds the search for a node that serves leases at the beginning. From
then on the job waits for as long as --wait says, also while no node is heard.

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
	fs.DurationVar(&o.ttl, "ttl", client.DefaultTTL, "how long the lease outlives its last renewal, from 3s to 5m")
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
