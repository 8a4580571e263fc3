package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/coordd/coordd/internal/drill"
	"github.com/coordd/coordd/internal/drill/report"
	"github.com/coordd/coordd/internal/version"
)

// exitViolated is the code of a drill that has shown what must not be.
const exitViolated = 1

// exitInterrupted is that of a process that SIGINT has ended.
const exitInterrupted = 128 + int(syscall.SIGINT)

// allDrills stands for every drill.
const allDrills = "all"

// maxRounds bounds --rounds: what all rounds have shown is kept until the end.
const maxRounds = 1000

func newDrill() *cobra.Command {
	return group(&cobra.Command{
		Use:   "drill COMMAND",
		Short: "Rehearse failovers, in a cluster of this process",
		Long: `Runs failover drills: a leader is killed, a site is lost, the arbiter is out, a worker is a
zombie. Each runs in a cluster of its own, in this process, whose members speak to each
other over real sockets on loopback; no other cluster is touched.`,
		Example: `  coordd drill list
  coordd drill run quorum-lost --report quorum-lost.html`,
		DisableFlagsInUseLine: true,
	}, newDrillList(), newDrillRun())
}

func newDrillList() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show which drills there are",
		Long: `Shows every drill: what happens in it, what it shows, and for how long nothing may be
granted anew. L is the authority lease, the ceiling the longest TTL, ρ 1 %.

With -o json the fields are drills [{name, what, shows, bound, not_promised}]; the
last has, by promise (I1 to I4), why it is not made in that drill.`,
		Example: `  coordd drill list
  coordd drill list -o json | jq -r '.drills[].name'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return out.print(cmd.OutOrStdout(), drillsView{drill.Scenarios()})
		},
	}
	out.register(cmd)
	return cmd
}

func newDrillRun() *cobra.Command {
	o := drillOptions{rounds: 1}
	cmd := &cobra.Command{
		Use:   "run NAME...|all",
		Short: "Run failover drills, and say whether every promise was kept",
		Long: `Runs the drills of those names, one after the other, or all; each takes 5 to 30 s. Every one
starts four members at two sites, with an arbiter, and six workers that take leases
and write under their tokens to a register that refuses older ones. One more client keeps one
lease through everything, another asks for new names again and again, which shows
when fresh grants stop and begin. Then the drill does what its name says.

From the record of all that happened it judges the promises of the protocol:

  I1  never may a Raft leader with an open window and a fallback epoch both grant
  I2  at any moment at most one client relies on a lease
  I3  the token of a later grant is greater, and no token is granted twice
  I4  a lease that is renewed is kept, with its token

It prints the time without fresh grants beside the bound that the design gives. A time
over its bound breaks no promise: on a busy machine a leader may lose its term by that
alone, and it is said where this machine was late. --report writes a page with a timeline
of each drill, for any browser.

The arbiter is in memory, or by --arbiter dynamodb in a table of DynamoDB, or of an
emulator of it. There each drill leaves about 20 registers behind, under names that begin
with --arbiter-name.

On a terminal it says what goes on. --seed fixes which nodes and names are chosen, not
the timing. --rounds repeats each drill, with the next seeds, and adds the median.
With Ctrl-C it prints, and reports, the drills that are done.

The exit code is

   0  every promise that was made was kept
   1  a promise was broken or could not be judged, or the cluster did not recover
  69  the arbiter's store was not reached, or refuses
  70  a drill could not be run: no free port, or its cluster did not start

With -o json the fields are ok, drills [{name, what, shows, bound, not_promised, without_grants
{median_ms, max_ms}, phases [{name, without_grants, bound {limit_ms, why}, within_bound}],
verdicts [{invariant, name, outcome, detail, evidence}], rounds [{scenario, seed, took_ms,
failure, verdicts, without_grants_ms, late_ms, phases [{name, from_ms, to_ms, without_grants_ms,
bound}], counts {grants, renewals, releases, writes_accepted, writes_refused, samples}, events
[{at_ms, kind, text}], timeline}]}]. An outcome is kept, broken, not promised or not known.
Times are counted from the start of the drill; later releases may add fields.`,
		Example: `  coordd drill run leader-killed planned
  coordd drill run all --report drills.html
  coordd drill run quorum-lost --rounds 5 -o json | jq .drills[0].without_grants
  coordd drill run all --arbiter dynamodb --arbiter-endpoint http://127.0.0.1:8000 --arbiter-region local`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			names, err := drillNames(args)
			if err != nil {
				return err
			}
			return o.run(cmd, names)
		},
		ValidArgsFunction: cobra.FixedCompletions(append(drillNamed(), allDrills), cobra.ShellCompDirectiveNoFileComp),
	}
	o.register(cmd)
	return cmd
}

// drillOptions has the flags of drill run.
type drillOptions struct {
	store   storeFlags
	report  string
	seed    uint64
	rounds  int
	verbose bool
	out     output
}

func (o *drillOptions) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&o.report, "report", "", "HTML `file` to write a report to; one that is there is overwritten")
	fs.Uint64Var(&o.seed, "seed", 0, "number that fixes what is chosen by chance (default: a new one, which is printed)")
	fs.IntVar(&o.rounds, "rounds", o.rounds, "how often to run each drill")
	o.store.register(fs, "", memoryArbiter, dynamoDBArbiter)
	fs.BoolVarP(&o.verbose, "verbose", "v", false, "log what members and clients do, to stderr")
	o.out.register(cmd)
}

// drillNamed are the names of all drills.
func drillNamed() (names []string) {
	for _, s := range drill.Scenarios() {
		names = append(names, s.Name)
	}
	return names
}

// drillNames are those that the arguments mean, each once.
func drillNames(args []string) (names []string, err error) {
	all := drillNamed()
	for _, arg := range args {
		switch {
		case arg == allDrills:
			return all, nil
		case !slices.Contains(all, arg):
			return nil, usagef("unknown drill %q: want %s or %s", arg, strings.Join(all, ", "), allDrills)
		case !slices.Contains(names, arg):
			names = append(names, arg)
		}
	}
	return names, nil
}

// run runs the drills, prints what came of them, and tells the exit code.
func (o *drillOptions) run(cmd *cobra.Command, names []string) error {
	if o.rounds < 1 || o.rounds > maxRounds {
		return usagef("invalid --rounds %d: want 1 to %d", o.rounds, maxRounds)
	}
	page, err := o.openReport()
	if err != nil {
		return err
	}
	defer page.Close()
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
	defer stop()
	log := slog.New(slog.DiscardHandler)
	if o.verbose {
		log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
	}
	store, err := o.store.open(ctx, log)
	if err != nil {
		return err
	}
	defer closeStore(store)
	if !cmd.Flags().Changed("seed") {
		o.seed = uint64(rand.Uint32())
	}
	head := report.Head{Release: version.Release, Made: time.Now(), Where: o.where()}
	config := drill.Config{Store: store, Cluster: o.store.name, Log: log}
	done, failed := o.rehearse(ctx, config, names, cmd.ErrOrStderr())
	if ctx.Err() != nil && cmd.Context().Err() == nil {
		stop() // a second signal ends the process at once
		failed = &interrupted{&exit{exitInterrupted, errors.New("interrupted: the drills that were not done are left out")}}
	}
	view := drillView{Drills: done, told: o.tells(cmd.ErrOrStderr())}
	view.OK = failed == nil && !view.bad()
	return o.conclude(cmd.OutOrStdout(), page, head, view, failed)
}

// rehearse runs each drill as often as it is to be. Where one cannot be run, it returns
// those that are done, beside the error.
func (o *drillOptions) rehearse(ctx context.Context, config drill.Config, names []string, stderr io.Writer) (done []drill.Summary, err error) {
	tells := o.tells(stderr)
	for i, name := range names {
		var rounds []drill.Result
		for round := range o.rounds {
			config.Seed = o.seed + uint64(round)
			var tell func(drill.Event)
			if tells {
				fmt.Fprintf(stderr, "drill %d of %d, %s, seed %d\n", i+1, len(names), name, config.Seed)
				tell = func(e drill.Event) { fmt.Fprintf(stderr, "%6.1f s  %s\n", float64(e.AtMS)/1000, e.Text) }
			}
			var r drill.Result
			if r, err = drill.Run(ctx, config, name, tell); err != nil {
				break
			}
			rounds = append(rounds, r)
		}
		if len(rounds) > 0 {
			done = append(done, drill.Summarise(rounds))
		}
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// tells reports whether progress is shown.
func (o *drillOptions) tells(stderr io.Writer) bool {
	file, ok := stderr.(*os.File)
	return ok && isTerminal(file)
}

// where says in words which arbiter the drills have.
func (o *drillOptions) where() string {
	if o.store.kind.value == memoryArbiter {
		return "with an arbiter in memory"
	}
	return "with the arbiter in DynamoDB table " + o.store.table
}

// openReport makes sure, before anything is run, that the report can be written. nil:
// there is to be none.
func (o *drillOptions) openReport() (*os.File, error) {
	if o.report == "" {
		return nil, nil
	}
	file, err := os.Create(o.report)
	if err != nil {
		return nil, usagef("--report cannot be written: %w", err)
	}
	return file, nil
}

// conclude prints what there is, writes the report, and says what that comes to.
func (o *drillOptions) conclude(stdout io.Writer, page *os.File, head report.Head, view drillView, failed error) error {
	if len(view.Drills) > 0 {
		if err := o.out.print(stdout, view); err != nil {
			return err
		}
	}
	if page != nil {
		if err := errors.Join(report.Write(page, head, view.Drills), page.Close()); err != nil {
			return &exit{code: exitInternal, err: fmt.Errorf("--report %s: %w", o.report, err)}
		}
	}
	switch {
	case failed != nil:
		return failed
	case view.bad():
		return &exit{code: exitViolated, err: errors.New("a promise was broken or could not be judged, or the cluster did not recover: see above")}
	}
	return nil
}
