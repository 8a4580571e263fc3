package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
	adminv1 "github.com/coordd/coordd/transport/api/coordd/admin/v1"
)

// Who gets the authority by a failover.
const (
	toFallback = "fallback"
	toRaft     = "raft"
)

func newFailover() *cobra.Command {
	var (
		op  operation
		out output
		to  = choice{among: []string{toFallback, toRaft}}
	)
	cmd := &cobra.Command{
		Use:   "failover --to fallback|raft",
		Short: "Pass authority to the arbiter's registers, or back to Raft, as planned",
		Long: `With --to fallback the leader passes authority to the arbiter's registers: it finishes
what it has begun, writes all leases there, and from then on every member grants them,
until --to raft. So a majority of the members may be stopped. Nothing is granted
for a moment, which is printed; holders keep their leases and tokens. A leader that
has just been elected waits for the authority lease first.

With --to raft a Raft group takes the leases over from the registers: the last one, or
a new one of the members that see each other. It needs a majority of that group. After a
takeover that nobody planned this happens by itself.

The exit code is 0 when it is done. With 69 it was not, or that is not known: coordd
authority history tells. To call it again harms nothing.

It speaks to a node on this machine over the socket in its data folder, which only
that node's user and root may open. The node passes the call on to the leader.

With -o json the fields are to, epoch (that has begun), took_ms (how long nothing was
granted).`,
		Example: `  coordd failover --to fallback --data /var/lib/coordd
  coordd failover --to raft --data /var/lib/coordd`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if to.value == "" {
				return usagef("--to (or %s) is missing: want %s, which lets the arbiter's registers have authority, or %s", envName("to"), toFallback, toRaft)
			}
			view := handedView{To: to.value}
			what := "authority passes to the arbiter's registers"
			if to.value == toRaft {
				what = "authority passes to Raft"
			}
			defer showProgress(cmd.ErrOrStderr(), what, op.timeout)()
			err := op.run(cmd.Context(), func(ctx context.Context, c adminv1.AdminClient) error {
				resp, err := c.HandOver(ctx, &adminv1.HandOverRequest{To: to.value})
				view.Epoch, view.TookMS = resp.GetEpoch(), resp.GetTookMs()
				return err
			})
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), view)
		},
	}
	cmd.Flags().Var(&to, "to", "who gets authority (required)")
	op.register(cmd.Flags(), failoverTimeout)
	out.register(cmd)
	return cmd
}

// failoverTimeout is long enough for an authority lease to run out and for every
// shard to be written, more than once.
const failoverTimeout = 2 * time.Minute

// handedView is what failover prints.
type handedView struct {
	To     string `json:"to"`
	Epoch  uint32 `json:"epoch"`
	TookMS uint32 `json:"took_ms"`
}

func (v handedView) writeText(w io.Writer) {
	who := "Raft has authority"
	if v.To == toFallback {
		who = "the arbiter's registers have authority, and every member grants leases"
	}
	fmt.Fprintf(w, "%s: epoch %d has begun; nothing was granted for %v\n", who, v.Epoch, milliseconds(v.TookMS))
}

func newTakeover() *cobra.Command {
	var (
		op    operation
		out   output
		force bool
	)
	cmd := &cobra.Command{
		Use:   "takeover --force",
		Short: "Let a member take over that may not, when all that may are gone",
		Long: `Lets the node on this machine take over by the arbiter's registers. It is the way out when
all members are gone for good that may take over by themselves ("may take over" in coordd
status and coordd arbiter show): as long as one of them may come back, wait for it. If
all of them live after all, but are cut off from the arbiter, their leader may go on
granting beside the registers: only stores that check fencing tokens are protected then.

It waits like any takeover, until nobody has written the root register for the authority
lease and 1 %. As long as a leader writes it that never comes to pass, and the call ends
at --timeout with code 69. After the takeover holders reclaim their leases; fresh grants
begin when the grace is over, which coordd status shows.

It speaks to the node over the socket in its data folder, which only that node's user
and root may open. Every node can take over, one that never was a member too.

With -o json the field is epoch (that has begun).`,
		Example: `  coordd arbiter show                         # who may take over
  coordd takeover --force --data /var/lib/coordd`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !force {
				return usagef("--force is missing: it says that all members are gone for good that may take over by themselves (coordd arbiter show tells which)")
			}
			var view tookView
			defer showProgress(cmd.ErrOrStderr(), "waiting until nobody has written the root register for the authority lease", op.timeout)()
			err := op.run(cmd.Context(), func(ctx context.Context, c adminv1.AdminClient) error {
				resp, err := c.TakeOver(ctx, &adminv1.TakeOverRequest{})
				view.Epoch = resp.GetEpoch()
				return err
			})
			if errors.Is(err, leases.ErrUnknownOutcome) {
				err = fmt.Errorf("%w; where a leader writes the root register nobody takes over: coordd authority history tells", err)
			}
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), view)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "all members are gone for good that may take over by themselves")
	op.register(cmd.Flags(), failoverTimeout)
	out.register(cmd)
	return cmd
}

// tookView is what takeover prints.
type tookView struct {
	Epoch uint32 `json:"epoch"`
}

func (v tookView) writeText(w io.Writer) {
	fmt.Fprintf(w, "the arbiter's registers have authority: epoch %d has begun; coordd status tells when fresh grants begin\n", v.Epoch)
}

// showProgress says on a terminal, each second, what goes on and for how long it has.
// What it returns ends that, and leaves no trace of it.
func showProgress(w io.Writer, what string, atMost time.Duration) (end func()) {
	file, ok := w.(*os.File)
	if !ok || !isTerminal(file) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		const clearLine = "\r\x1b[K"
		c := clock.System()
		began := c.Now()
		for next := began; clock.Wait(ctx, c, next) == nil; next = next.Add(time.Second) {
			fmt.Fprintf(w, "%s%s: %v of at most %v", clearLine, what, next.Sub(began), atMost)
		}
		fmt.Fprint(w, clearLine)
	}()
	return func() {
		cancel()
		<-done
	}
}
