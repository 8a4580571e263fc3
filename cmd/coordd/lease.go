package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

func newLease() *cobra.Command {
	return group(&cobra.Command{
		Use:   "lease COMMAND",
		Short: "Acquire, renew and look at leases, from scripts",
		Long: `The single steps of a lease, for scripts and for people. Each is one process: what
it acquires outlives it, and nobody renews it but you. To run a command under a
lease use coordd run, which renews it, and ends the command when it is lost.

Whoever holds a lease proves it by its session and its token.`,
		Example: `  vars=$(coordd lease acquire nightly --ttl 1m -o shell) || exit
  eval "$vars"                                # COORDD_SESSION, COORDD_FENCING_TOKEN
  ./first-step && coordd lease renew nightly && ./second-step
  coordd lease release nightly`,
		DisableFlagsInUseLine: true,
	}, newLeaseAcquire(), newLeaseRenew(), newLeaseRelease(), newLeaseTransfer(),
		newLeaseGet(), newLeaseList(), newLeaseQueue(), newLeaseWatch(), newLeaseBreak())
}

// holder has the flags of one who holds a lease.
type holder struct {
	conn    connection
	session idFlag
	token   tokenFlag
}

func (h *holder) register(fs *pflag.FlagSet) {
	fs.Var(&h.session, "session", "the holder's session, as lease acquire printed it (required)")
	fs.Var(&h.token, "token", "the lease's fencing token, as lease acquire printed it (required)")
	h.conn.register(fs)
}

// held is the lease of that name, if all that is needed was given.
func (h *holder) held(name string) (leases.Held, error) {
	if err := leases.ValidateName(name); err != nil {
		return leases.Held{}, err
	}
	if h.session.String() == "" {
		return leases.Held{}, usagef("--session (or %s) is missing: want the one that coordd lease acquire printed", envName("session"))
	}
	if h.token == 0 {
		return leases.Held{}, usagef("--token (or %s) is missing: want the one that coordd lease acquire printed", envName("token"))
	}
	return leases.Held{Name: name, Token: tokens.Token(h.token)}, nil
}

func newLeaseRenew() *cobra.Command {
	var (
		h          holder
		out        output
		reclaim    time.Duration
		label      string
		attributes string
	)
	cmd := &cobra.Command{
		Use:   "renew NAME",
		Short: "Give a lease its full TTL again",
		Long: `Renews the lease NAME, so that it lasts for its full TTL again, counted from before
this call. Renew it whenever a third of the TTL has passed. The exit code is

   0  it is held, and was renewed, or reclaimed
  69  nothing is known: it may have been renewed or not; try again; or the arbiter has
      taken over, and it would have to be reclaimed, which is said
  76  it is not held any more: stop the work

Code 76 also says that an operator has broken the lease. Then stop, and release it.

When the arbiter of a cluster has taken over it knows no leases: each holder has to
reclaim its own, before its deadline. --reclaim does so where it is needed, with the
TTL, the --label and the --attributes that the lease was acquired with. Give it only
while you rely on the lease: never when the TTL has passed since the last renewal
that succeeded was begun, since somebody else may have had it meanwhile.

With -o json the fields are name, token, reclaimed (true, or left out).`,
		Example: `  coordd lease renew nightly --session "$COORDD_SESSION" --token "$COORDD_FENCING_TOKEN"
  coordd lease renew nightly                  # they are taken from the environment
  coordd lease renew nightly --reclaim 1m     # it was acquired with --ttl 1m`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			held, err := h.held(args[0])
			if err != nil {
				return err
			}
			r := renewal{held: held}
			if reclaim != 0 {
				r.claimed = &leases.Claimed{Held: held, TTL: reclaim, Owner: caller(label), Attributes: []byte(attributes)}
				if err := r.claimed.Validate(); err != nil {
					return err
				}
			}
			err = h.conn.converse(cmd.Context(), leases.ID(h.session), r.call)
			if gone, ok := errors.AsType[*leases.NotHeldError](err); ok && gone.Why == leases.WhyBroken {
				err = fmt.Errorf("%w: stop the work, then release it, so that the name is free at once", err)
			}
			if err != nil {
				return err
			}
			if r.grace != nil {
				return fmt.Errorf("lease %q was not renewed: %w; --reclaim with the TTL that it was acquired with does that", held.Name, r.grace)
			}
			return out.print(cmd.OutOrStdout(), renewedView{held, r.reclaimed})
		},
		ValidArgsFunction: completeLease,
	}
	cmd.Flags().DurationVar(&reclaim, "reclaim", 0, "reclaim the lease, which you rely on and which has this TTL, if the arbiter has taken over")
	cmd.Flags().StringVar(&label, "label", defaultLabel, "`text` that says who holds it, for people; for --reclaim")
	cmd.Flags().StringVar(&attributes, "attributes", "", "`text` to keep with the lease, for people and tools; for --reclaim")
	h.register(cmd.Flags())
	out.register(cmd)
	return cmd
}

// renew renews one lease.
func renew(ctx context.Context, s leases.Session, held leases.Held) error {
	each, err := s.Renew(ctx, []leases.Held{held})
	if err != nil {
		return err
	}
	return each[0]
}

// renewal gives one lease its full TTL again.
type renewal struct {
	held    leases.Held
	claimed *leases.Claimed // to reclaim it with; nil: its holder may not rely on it

	reclaimed bool
	grace     *leases.GraceError // it was not renewed, and would have to be reclaimed
}

// call makes it, in one conversation.
func (r *renewal) call(ctx context.Context, s leases.Session) error {
	err := renew(ctx, s, r.held)
	grace, ok := errors.AsType[*leases.GraceError](err)
	if !ok {
		return err
	}
	if r.claimed == nil { // nor will it be, however often it is tried
		r.grace = grace
		return nil
	}
	each, err := s.Reclaim(ctx, grace.Epoch, []leases.Claimed{*r.claimed})
	if err != nil {
		return err
	}
	r.reclaimed = each[0] == nil
	return each[0]
}

type renewedView struct {
	leases.Held
	Reclaimed bool `json:"reclaimed,omitempty"`
}

func (v renewedView) writeText(w io.Writer) {
	how := "renewed"
	if v.Reclaimed {
		how = "reclaimed, since the arbiter has taken over"
	}
	fmt.Fprintf(w, "lease %q is %s (token %v)\n", v.Name, how, v.Token)
}

func newLeaseRelease() *cobra.Command {
	var (
		h   holder
		out output
	)
	cmd := &cobra.Command{
		Use:   "release NAME",
		Short: "Give a lease back",
		Long: `Gives the lease NAME back; the next in its queue gets it. The exit code is

   0  it is released, by this call or by one before
  69  nothing is known: it may have been released or not; try again, or let it lapse
  76  it had ended before in another way, which is said

Whatever the code, it is not yours any more.

With -o json the fields are name, token.`,
		Example: `  coordd lease release nightly --session "$COORDD_SESSION" --token "$COORDD_FENCING_TOKEN"
  coordd lease release nightly                # they are taken from the environment`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			held, err := h.held(args[0])
			if err != nil {
				return err
			}
			err = h.conn.converse(cmd.Context(), leases.ID(h.session), func(ctx context.Context, s leases.Session) error {
				return s.Release(ctx, held)
			})
			if err != nil && endedBy(err) != leases.WhyReleased {
				return err
			}
			return out.print(cmd.OutOrStdout(), releasedView{held})
		},
		ValidArgsFunction: completeLease,
	}
	h.register(cmd.Flags())
	out.register(cmd)
	return cmd
}

type releasedView struct{ leases.Held }

func (v releasedView) writeText(w io.Writer) {
	fmt.Fprintf(w, "lease %q is released (token %v)\n", v.Name, v.Token)
}

// endedBy is how a lease that is not held has ended: where its holder asks for
// an end again, its first request may have been what did it.
func endedBy(err error) leases.Why {
	if gone, ok := errors.AsType[*leases.NotHeldError](err); ok {
		return gone.Why
	}
	return leases.WhyUnknown
}

func newLeaseTransfer() *cobra.Command {
	var (
		h   holder
		to  idFlag
		out output
	)
	cmd := &cobra.Command{
		Use:   "transfer NAME --to ATTEMPT",
		Short: "Pass a lease on to one who waits for it",
		Long: `Gives the lease NAME back and passes it on to the waiter of that attempt, past all
who stand before it; coordd lease queue shows the attempts. The waiter gets a new
token. Where nobody waits under that attempt, or nothing can be granted just then,
it is a plain release, and the answer says so. The exit code is

   0  it was passed on, or else released
  69  nothing is known: it may have been passed on or not; try again, or let it lapse
  76  it had ended before in another way, which is said

Whatever the code, it is not yours any more.

With -o json the fields are name, token, transferred (false: it was released).`,
		Example: `  coordd lease queue nightly
  coordd lease transfer nightly --to 6b0f7a5c0d1e4f2a9b8c7d6e5f4a3b2c \
    --session "$COORDD_SESSION" --token "$COORDD_FENCING_TOKEN"`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			held, err := h.held(args[0])
			if err != nil {
				return err
			}
			if to.String() == "" {
				return usagef("--to (or %s) is missing: want the attempt of a waiter, as coordd lease queue %s shows it", envName("to"), args[0])
			}
			view := transferredView{Held: held}
			err = h.conn.converse(cmd.Context(), leases.ID(h.session), func(ctx context.Context, s leases.Session) error {
				var err error
				view.Transferred, err = s.Transfer(ctx, held, leases.ID(to))
				return err
			})
			if why := endedBy(err); why == leases.WhyTransferred || why == leases.WhyReleased {
				view.Transferred, err = why == leases.WhyTransferred, nil
			}
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), view)
		},
		ValidArgsFunction: completeLease,
	}
	cmd.Flags().Var(&to, "to", "attempt of the waiter who is to get it (required)")
	h.register(cmd.Flags())
	out.register(cmd)
	return cmd
}

type transferredView struct {
	leases.Held
	Transferred bool `json:"transferred"`
}

func (v transferredView) writeText(w io.Writer) {
	if v.Transferred {
		fmt.Fprintf(w, "lease %q is passed on (token %v is over)\n", v.Name, v.Token)
		return
	}
	fmt.Fprintf(w, "lease %q is released (token %v): it could not be passed on\n", v.Name, v.Token)
}
