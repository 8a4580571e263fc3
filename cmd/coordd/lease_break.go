package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
	adminv1 "github.com/coordd/coordd/transport/api/coordd/admin/v1"
)

func newLeaseBreak() *cobra.Command {
	var (
		op    operation
		out   output
		token tokenFlag
		now   bool
		yes   bool
	)
	cmd := &cobra.Command{
		Use:   "break NAME --token TOKEN",
		Short: "End a lease against its holder's will",
		Long: `Breaks the lease NAME that was granted under TOKEN, which coordd lease get shows: if
it has ended meanwhile, whoever holds the name next is left alone. It is renewed
no more, its holder is told to stop, and the name is free when the holder has
released it or its deadline has passed, which is printed. The exit code is

   0  it is broken; it may be held for a while still
  69  no node that serves leases was reached
  76  it is not held under that token

--now frees the name at once. Its holder may then go on for up to the TTL beside
the next one: only stores that check fencing tokens are protected. On a terminal
it asks for the name once more; a script says --yes.

It speaks to a node on this machine over the socket in its data folder, which only
that node's user and root may open. The node passes the call on to the leader.

With -o json the fields are name, token, ended, at_most_ms (where it has not: so
long after this answer at the latest it has).`,
		Example: `  coordd lease get nightly                    # shows the token
  coordd lease break nightly --token 4294967297 --data /var/lib/coordd
  coordd lease break nightly --token 4294967297 --data /var/lib/coordd --now`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			held := leases.Held{Name: args[0], Token: tokens.Token(token)}
			if err := leases.ValidateName(held.Name); err != nil {
				return err
			}
			if token == 0 {
				return usagef("--token (or %s) is missing: want that of the lease that is meant; coordd lease get %s shows it", envName("token"), held.Name)
			}
			if now && !yes {
				if err := confirmNow(cmd.InOrStdin(), cmd.ErrOrStderr(), held); err != nil {
					return err
				}
			}
			view := brokenView{Held: held}
			op.patient = true // a break may be repeated
			err := op.run(cmd.Context(), func(ctx context.Context, c adminv1.AdminClient) error {
				resp, err := c.Break(ctx, &adminv1.BreakRequest{Name: held.Name, Token: uint64(held.Token), Now: now})
				view.AtMostMS = resp.GetAtMostMs()
				view.Ended = resp.GetEnded()
				return err
			})
			if endedBy(err) == leases.WhyBroken { // by a call before
				view.Ended, err = true, nil
			}
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), view)
		},
		ValidArgsFunction: completeLease,
	}
	cmd.Flags().Var(&token, "token", "the fencing token of the lease that is meant (required)")
	cmd.Flags().BoolVar(&now, "now", false, "free the name at once, although its holder may go on for a while")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for the name again with --now")
	op.register(cmd.Flags(), operationTimeout)
	out.register(cmd)
	return cmd
}

// confirmNow returns nil if somebody at a terminal has typed the name again.
func confirmNow(in io.Reader, out io.Writer, held leases.Held) error {
	if file, ok := in.(*os.File); !ok || !isTerminal(file) {
		return usagef("--now lets the holder of lease %q go on beside the next one, with fencing alone to protect from that: "+
			"say --yes too, since there is no terminal to ask at", held.Name)
	}
	fmt.Fprintf(out, "The holder of lease %q may go on for a while beside the next one: only stores that check fencing tokens are protected.\n", held.Name)
	if !confirmed(in, out, "Type the lease's name to free it now: ", held.Name) {
		return usagef("nothing was broken: the name was not typed")
	}
	return nil
}

// brokenView is what lease break prints.
type brokenView struct {
	leases.Held
	Ended    bool   `json:"ended"`
	AtMostMS uint32 `json:"at_most_ms,omitempty"`
}

func (v brokenView) writeText(w io.Writer) {
	if v.Ended {
		fmt.Fprintf(w, "lease %q is broken and has ended (token %v)\n", v.Name, v.Token)
		return
	}
	fmt.Fprintf(w, "lease %q is broken (token %v): the name is free when its holder has released it, after %v at the latest\n",
		v.Name, v.Token, milliseconds(v.AtMostMS))
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}
