package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/leases"
	adminv1 "github.com/coordd/coordd/transport/api/coordd/admin/v1"
)

func newArbiterAdopt() *cobra.Command {
	var (
		op     operation
		out    output
		shards leases.Shards
		lease  time.Duration
	)
	cmd := &cobra.Command{
		Use:   "adopt",
		Short: "Give a running cluster an arbiter",
		Long: `Gives a cluster that was founded by --bootstrap an arbiter, for good, while it runs.
Leases and their tokens stay, and a greater epoch begins. First restart its members one
by one, with --arbiter and the flags that go with it and without --bootstrap; until it
is adopted they ignore the arbiter and say so. Then call this once, on any of them.

It is refused unless every voter has reported that it can write to the table, if the
leases do not fit the shards, and if a cluster of that name is there already. If no
answer comes it may be done all the same: coordd status shows it.

It speaks to a node on this machine over the socket in its data folder, which only
that node's user and root may open. The node passes the call on to the leader.

With -o json the field is epoch.`,
		Example: `  coordd arbiter check                        # on every member's machine
  coordd arbiter adopt --data /var/lib/coordd`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := validateAdoption(shards, lease); err != nil {
				return err
			}
			var view adoptedView
			err := op.run(cmd.Context(), func(ctx context.Context, c adminv1.AdminClient) error {
				resp, err := c.Adopt(ctx, &adminv1.AdoptRequest{
					Shards: shards.Count, ShardBytes: shards.Bytes, LeaseMs: uint32(lease.Milliseconds()),
				})
				view.Epoch = resp.GetEpoch()
				return err
			})
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), view)
		},
	}
	fs := cmd.Flags()
	fs.Uint32Var(&shards.Count, "shards", 0, "how many registers the leases are shared out among; 0: as the node was started with")
	fs.Uint32Var(&shards.Bytes, "shard-bytes", 0, "how many bytes the leases of one register may take up; 0: as the node was started with")
	fs.DurationVar(&lease, "authority-lease", 0, "the one that the nodes were started with, to be sure")
	op.register(fs, operationTimeout)
	out.register(cmd)
	return cmd
}

// validateAdoption says what is wrong with the flags, before anybody is asked.
func validateAdoption(shards leases.Shards, lease time.Duration) error {
	switch {
	case shards.Count > leases.MaxShards:
		return usagef("invalid --shards %d: want 1 to %d", shards.Count, leases.MaxShards)
	case shards.Bytes != 0 && shards.Bytes < leases.MinShardBytes || shards.Bytes > leases.MaxShardBytes:
		return usagef("invalid --shard-bytes %d: want %d to %d", shards.Bytes, leases.MinShardBytes, leases.MaxShardBytes)
	case lease != 0 && lease < authority.MinLease || lease > authority.MaxLease || lease%time.Millisecond != 0:
		return usagef("invalid --authority-lease %v: want %v to %v, in whole milliseconds", lease, authority.MinLease, authority.MaxLease)
	}
	return nil
}

// adoptedView is what arbiter adopt prints.
type adoptedView struct {
	Epoch uint32 `json:"epoch"`
}

func (v adoptedView) writeText(w io.Writer) {
	fmt.Fprintf(w, "the cluster has its arbiter: epoch %d has begun\n", v.Epoch)
}
