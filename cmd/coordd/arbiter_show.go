package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// shownAtATime is how many registers arbiter show reads at a time.
const shownAtATime = 16

func newArbiterShow() *cobra.Command {
	var (
		store storeFlags
		all   bool
		out   output
	)
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show what the arbiter's registers hold",
		Long: `Reads the registers of the cluster --name itself, without asking a member: the root
register, which says who has authority, and the shards, in which the leases are while
the arbiter has taken over. It changes nothing. The exit code is

   0  they are shown, or there is no such cluster, which is said
  65  a register holds what this release of coordd cannot read, which is said too:
      another program's data, or a later release's
  69  the store was not reached, or refuses

Of the shards, those are shown that hold anything. Their state is open (holders may
reclaim leases), closed (no more), or left over: in mode raft what is in them is of an
earlier takeover, and counts no more. --leases shows each lease in them. Only members
know when a lease ends: see coordd lease list.

With -o json the fields are name, key, version, root (as the register holds it; left
out where there is no cluster), shards [{shard, version, epoch, state, leases, bytes,
held (with --leases) [{name, token, owner, ttl_ms, broken, stamp}]}].`,
		Example: `  coordd arbiter show --table coordd --region eu-central-1
  coordd arbiter show --name billing --leases
  coordd arbiter show -o json | jq .root.mode`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			table, err := store.dynamoDB(cmd.Context(), nil)
			if err != nil {
				return err
			}
			defer table.Close()
			view, err := inspect(cmd.Context(), table, store.name, all)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), view)
		},
	}
	store.registerBare(cmd.Flags())
	store.registerBareName(cmd.Flags())
	cmd.Flags().BoolVar(&all, "leases", false, "show each lease in the shards")
	out.register(cmd)
	return cmd
}

// registersView is what arbiter show prints.
type registersView struct {
	Name    string          `json:"name"`
	Key     string          `json:"key"`
	Version arbiter.Version `json:"version"`
	Root    *authority.Root `json:"root,omitempty"` // nil: there is no such cluster
	Shards  []shardView     `json:"shards"`
}

// shardView is what one shard register holds.
type shardView struct {
	Shard   uint32          `json:"shard"`
	Version arbiter.Version `json:"version"`
	Epoch   uint32          `json:"epoch"`
	State   string          `json:"state"`
	Leases  int             `json:"leases"`
	Bytes   uint32          `json:"bytes"`
	Held    []heldView      `json:"held,omitempty"`
}

// heldView is a lease in a shard.
type heldView struct {
	Name   string       `json:"name"`
	Token  tokens.Token `json:"token"`
	Owner  leases.Owner `json:"owner"`
	TTLMS  int64        `json:"ttl_ms"`
	Broken bool         `json:"broken,omitempty"`
	Stamp  uint64       `json:"stamp"`
}

// inspect reads the registers of the cluster of that name; all: each lease too.
func inspect(ctx context.Context, store arbiter.Store, name string, all bool) (registersView, error) {
	view := registersView{Name: name, Key: authority.RootKey(name), Shards: []shardView{}}
	reg, err := store.Load(ctx, view.Key)
	if err != nil || reg.Version == 0 {
		return view, err
	}
	root, err := authority.DecodeRoot(reg.Data)
	if err != nil {
		return view, unreadable(view.Key, reg, err)
	}
	view.Version, view.Root = reg.Version, &root
	shards := make([]shardView, root.Params.Shards.Count)
	reads, ctx := errgroup.WithContext(ctx)
	reads.SetLimit(shownAtATime)
	for i := range shards {
		reads.Go(func() (err error) {
			shards[i], err = inspectShard(ctx, store, name, root, uint32(i), all)
			return err
		})
	}
	if err := reads.Wait(); err != nil {
		return view, err
	}
	for _, s := range shards {
		if s.Leases > 0 {
			view.Shards = append(view.Shards, s)
		}
	}
	return view, nil
}

func inspectShard(ctx context.Context, store arbiter.Store, name string, root authority.Root, shard uint32, all bool) (shardView, error) {
	key := authority.ShardKey(name, root.Cluster, shard)
	reg, err := store.Load(ctx, key)
	if err != nil {
		return shardView{}, err
	}
	content, err := leases.DecodeShard(reg.Data)
	if err != nil {
		return shardView{}, unreadable(key, reg, err)
	}
	view := shardView{Shard: shard, Version: reg.Version, Epoch: content.Epoch, State: shardState(content, root), Leases: len(content.Leases)}
	for _, fill := range leases.OpenShard(content, shard, root.Params.Shards, 0).Fill() {
		view.Bytes = fill
	}
	if !all {
		return view, nil
	}
	for _, l := range content.Leases {
		view.Held = append(view.Held, heldView{l.Name, l.Token, l.Owner, l.TTL.Milliseconds(), l.Broken, l.Stamp})
	}
	return view, nil
}

// unreadable says that a register holds what is not this release's.
func unreadable(key string, reg arbiter.Register, err error) error {
	return &exit{exitForeign, fmt.Errorf("register %s, at version %d, cannot be read: %w", key, reg.Version, err)}
}

// shardState says what the leases in a shard count for.
func shardState(s leases.Shard, root authority.Root) string {
	switch {
	case s.Epoch <= root.RaftEpoch:
		return "left over"
	case s.Closed:
		return "closed"
	}
	return "open"
}

func (v registersView) writeText(w io.Writer) {
	if v.Root == nil {
		fmt.Fprintf(w, "there is no cluster %s: register %s was never written\n", v.Name, v.Key)
		return
	}
	v.writeRoot(w)
	if len(v.Root.Members) > 0 {
		fmt.Fprintln(w)
		writeTable(w, "MEMBER\tADDRESS\tSERVER ID", len(v.Root.Members), func(i int) []string {
			m := v.Root.Members[i]
			return []string{m.Name, m.Address, m.ServerID}
		})
	}
	if len(v.Root.History) > 0 {
		fmt.Fprintln(w)
		writeChanges(w, viewTransferrals(v.Root.History))
	}
	fmt.Fprintln(w)
	v.writeShards(w)
}

func (v registersView) writeRoot(w io.Writer) {
	r := v.Root
	epoch := strconv.FormatUint(uint64(r.Epoch), 10)
	if r.RaftEpoch < r.Epoch {
		epoch += fmt.Sprintf("; the last of Raft was %d", r.RaftEpoch)
	}
	grace := "over"
	if !r.GraceDone {
		grace = fmt.Sprintf("not over: it ends %v after the takeover", r.Grace())
	}
	if r.Mode == authority.Raft {
		grace = ""
	}
	writeFields(w,
		"cluster", fmt.Sprintf("%s, id %v", v.Name, r.Cluster),
		"root register", fmt.Sprintf("%s, written %d times, last by %s", v.Key, v.Version, owner(r.Owner.Node, r.Owner.Term)),
		"mode", string(r.Mode)+kept(r.Held),
		"epoch", epoch,
		"group", r.Group.String(),
		"grace", grace,
		"may take over", orNone(strings.Join(r.Takers, ", ")),
		"longest TTL", fmt.Sprintf("%v, never under %v", r.Ceiling(), r.Params.Floor()),
		"authority lease", fmt.Sprintf("%v, for clocks that differ by at most %g%%", r.Params.Lease(), r.Params.Rho*100),
		"shards", fmt.Sprintf("%d of %d bytes each, by %s", r.Params.Shards.Count, r.Params.Shards.Bytes, r.Params.Hash))
}

// viewTransferrals are the changes that a root register remembers.
func viewTransferrals(all []authority.Transferral) (views []transferralView) {
	for _, t := range all {
		views = append(views, transferralView(t))
	}
	return views
}

func (v registersView) writeShards(w io.Writer) {
	if len(v.Shards) == 0 {
		fmt.Fprintln(w, "no shard holds a lease")
		return
	}
	writeTable(w, "SHARD\tEPOCH\tSTATE\tLEASES\tBYTES\tWRITES", len(v.Shards), func(i int) []string {
		s := v.Shards[i]
		return []string{
			strconv.FormatUint(uint64(s.Shard), 10), strconv.FormatUint(uint64(s.Epoch), 10), s.State, strconv.Itoa(s.Leases),
			fill(s.Bytes, v.Root.Params.Shards.Bytes), strconv.FormatUint(uint64(s.Version), 10),
		}
	})
	var held []heldView
	for _, s := range v.Shards {
		held = append(held, s.Held...)
	}
	if len(held) == 0 {
		return
	}
	fmt.Fprintln(w)
	writeTable(w, "LEASE\tTOKEN\tHELD BY\tTTL", len(held), func(i int) []string {
		l := held[i]
		ttl := (time.Duration(l.TTLMS) * time.Millisecond).String()
		if l.Broken {
			ttl += ", broken"
		}
		return []string{l.Name, l.Token.String(), l.Owner.String(), ttl}
	})
}
