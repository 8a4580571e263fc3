package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coordd/coordd/internal/version"
)

// run carries out one command line and returns the process's exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	running := false
	root := newRoot()
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		err := applyEnv(cmd.Flags())
		running = err == nil
		return err
	}
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	addCompletion(root)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	if !running { // whatever goes wrong before a command runs lies in how it was called
		err = usagef("%w (see '%s --help')", err, cmd.CommandPath())
	}
	code := exitCode(err)
	if e, ok := errors.AsType[*exit](err); !ok || e.err != nil {
		if code == exitUsage {
			err = withSource(cmd.Flags(), err)
		}
		fmt.Fprintf(stderr, "coordd: %s\n", oneLine(err))
	}
	if _, ok := errors.AsType[*interrupted](err); ok {
		interruptSelf()
	}
	return code
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "coordd",
		Short: "Leases that survive their leader, with fencing tokens",
		Long: `coordd grants leases: at any moment at most one of all the processes that ask for
a name holds it. Every grant carries a fencing token, greater than all before, by
which a store can refuse the late write of a former holder.

Every flag can be given as an environment variable too: --election-timeout as
COORDD_ELECTION_TIMEOUT. A flag on the command line comes first. A --token is
COORDD_FENCING_TOKEN, under which coordd run and coordd lease acquire hand it out.
Only what is dangerous has to be typed: --yes, --now, --force, --holders-stopped.

` + exitTable,
		Example: `  coordd dev                                       # a cluster to play with
  coordd run nightly -- ./backup.sh                # one at a time, on all machines
  coordd status                                    # who leads, who is a member
  coordd lease get nightly                         # who holds the lease
  coordd lease watch                               # every change, as it happens`,
		Version:       version.String(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate("coordd {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	run := newRun()
	run.ValidArgsFunction = completeRun
	group(root, newArbiter(), newAuthority(), newCopyTo(), newDev(), newDrill(), newFailover(), newLease(), newRecover(), newRemove(), run,
		newServe(), newStatus(), newTakeover(), newTransferLeadership(), newVersion())
	root.SetHelpCommand(newHelp(root))
	for _, cmd := range below(root) {
		cmd.Flags().SortFlags = false
		bindEnv(cmd.Flags())
		if cmd.Args != nil && !cmd.HasSubCommands() {
			cmd.Args = inUsage(cmd.Args)
		}
		completeValues(cmd)
	}
	return root
}

// below is every command under cmd.
func below(cmd *cobra.Command) (all []*cobra.Command) {
	for _, c := range cmd.Commands() {
		all = append(append(all, c), below(c)...)
	}
	return all
}

// group makes cmd one that only has others below it.
func group(cmd *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return unknownCommand(cmd, args[0])
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.SuggestionsMinimumDistance = 2
	cmd.AddCommand(commands...)
	return cmd
}

func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show what a command does, and its flags",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return usagef("%w (see '%s --help')", unknownCommand(cmd, rest[0]), cmd.CommandPath())
			}
			cmd.InitDefaultHelpFlag() // so that the help shows them
			cmd.InitDefaultVersionFlag()
			return cmd.Help()
		},
	}
}

func unknownCommand(root *cobra.Command, name string) error {
	return fmt.Errorf("unknown command %q%s", name, didYouMean(root.SuggestionsFor(name)))
}

// inUsage says in a command's own words that it takes other arguments.
func inUsage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case check(cmd, args) == nil:
			return nil
		case len(args) == 0:
			return fmt.Errorf("an argument is missing: want %s", cmd.UseLine())
		}
		return fmt.Errorf("wrong arguments %q: want %s", args, cmd.UseLine())
	}
}

// flagError says what is wrong with a flag in words of the command line, and
// which one was meant where it is unknown.
func flagError(cmd *cobra.Command, err error) error {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return fmt.Errorf("invalid --%s %q: %s", invalid.GetFlag().Name, invalid.GetValue(), wanted(invalid.GetFlag(), invalid.Unwrap()))
	}
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || unknown.GetSpecifiedShortnames() != "" {
		return err
	}
	suggestions := nearest(cmd.Flags(), unknown.GetSpecifiedName())
	for i := range suggestions {
		suggestions[i] = "--" + suggestions[i]
	}
	return fmt.Errorf("%w%s", err, didYouMean(suggestions))
}

// nearest is the names of the flags that are much like name.
func nearest(fs *pflag.FlagSet, name string) []string {
	// Cobra measures how far words are apart for commands only: the flags pose as such.
	flags := &cobra.Command{SuggestionsMinimumDistance: 2}
	fs.VisitAll(func(f *pflag.Flag) {
		flags.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
	})
	return flags.SuggestionsFor(name)
}

func didYouMean(suggestions []string) string {
	if len(suggestions) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(suggestions, " or ") + "?"
}
