package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coordd/coordd/authority"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

func newAuthority() *cobra.Command {
	return group(&cobra.Command{
		Use:   "authority COMMAND",
		Short: "Look at who had authority, in a cluster that has an arbiter",
		Long: `Who may grant leases: the leader of a Raft group, within a window that it renews, or,
after a takeover, every member by the arbiter's registers. Each change begins a
greater epoch, and every later token is greater than all before. coordd status shows
who has authority now; coordd failover passes it on.`,
		Example:               `  coordd authority history`,
		DisableFlagsInUseLine: true,
	}, newAuthorityHistory())
}

func newAuthorityHistory() *cobra.Command {
	var (
		conn connection
		out  output
	)
	cmd := &cobra.Command{
		Use:   "history",
		Short: "Show the last changes of authority",
		Long: `Shows the last 32 changes of authority, the newest last, as the arbiter's root register
remembers them. The times are by the clock of the node that made the change. Why is

  birth     the cluster was born
  adopted   a running cluster got its arbiter
  takeover  a node began a fallback, since nobody had led for the authority lease
  forced    an operator made a node do so (coordd takeover)
  handover  a leader passed authority to the registers, as planned (coordd failover)
  failback  a Raft group began to take the leases over from the registers
  imported  it has taken them over, and serves
  bump      half of an epoch's tokens were used

Of a cluster without an arbiter there is nothing to show.

With -o json the fields are epoch, history [{epoch, mode, node, why, at}].`,
		Example: `  coordd authority history
  coordd authority history -o json | jq -r '.history[-1].why'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			answer, err := conn.status(cmd.Context(), knowsRoot)
			if err != nil {
				return err
			}
			return printHistory(cmd.OutOrStdout(), out, answer)
		},
	}
	conn.register(cmd.Flags())
	out.register(cmd)
	return cmd
}

// knowsRoot reports whether a node has read its cluster's root register, if there is one.
func knowsRoot(r *coorddv1.StatusResponse) bool {
	a := r.GetCluster().GetAuthority()
	return a == nil || a.GetMode() != ""
}

func printHistory(w io.Writer, out output, answer *coorddv1.StatusResponse) error {
	c := answer.GetCluster()
	if !knowsRoot(answer) {
		health := viewHealth(c.GetAuthority().GetArbiter())
		return &exit{exitUnavailable, fmt.Errorf("node %s has not read the root register yet: %s", c.GetNode(), health)}
	}
	view := historyView{Epoch: c.GetEpoch(), Changes: viewChanges(c.GetAuthority().GetHistory())}
	if a := c.GetAuthority(); a != nil {
		view.Epoch, view.arbiter = a.GetEpoch(), true
	}
	return out.print(w, view)
}

// historyView is what authority history prints.
type historyView struct {
	Epoch   uint32            `json:"epoch"`
	Changes []transferralView `json:"history"`

	arbiter bool // there is one
}

// transferralView is one change of mode or epoch.
type transferralView struct {
	Epoch uint32         `json:"epoch"`
	Mode  authority.Mode `json:"mode"`
	Node  string         `json:"node"`
	Why   authority.Why  `json:"why"`
	At    time.Time      `json:"at"`
}

func viewChanges(changes []*coorddv1.AuthorityChange) []transferralView {
	all := []transferralView{}
	for _, c := range changes {
		all = append(all, transferralView{
			Epoch: c.GetEpoch(), Mode: authority.Mode(c.GetMode()), Node: c.GetNode(), Why: authority.Why(c.GetWhy()),
			At: time.UnixMilli(c.GetAtUnixMs()).UTC(),
		})
	}
	return all
}

func (v historyView) writeText(w io.Writer) {
	if !v.arbiter {
		fmt.Fprintf(w, "the cluster has no arbiter: authority is with its Raft group, in epoch %d\n", v.Epoch)
		return
	}
	writeChanges(w, v.Changes)
}

func writeChanges(w io.Writer, changes []transferralView) {
	writeTable(w, "EPOCH\tMODE\tWHY\tBY\tAT", len(changes), func(i int) []string {
		c := changes[i]
		return []string{strconv.FormatUint(uint64(c.Epoch), 10), string(c.Mode), string(c.Why), c.Node, c.At.Format(time.RFC3339)}
	})
}

// authorityView is what status prints about a cluster that has an arbiter: what the
// answering node knows of the root register, and of its own right to act.
type authorityView struct {
	Mode         authority.Mode    `json:"mode,omitempty"` // empty: the register was not read yet
	Epoch        uint32            `json:"epoch"`
	RaftEpoch    uint32            `json:"raft_epoch"`
	Group        string            `json:"group,omitempty"`
	Owner        string            `json:"owner,omitempty"`
	OwnerTerm    uint64            `json:"owner_term,omitempty"`
	Sequence     uint64            `json:"sequence"`
	Takers       []string          `json:"takers"`
	TTLCeilingMS uint32            `json:"ttl_ceiling_ms"`
	GraceDone    bool              `json:"grace_done"`
	GraceLeftMS  uint32            `json:"grace_left_ms"`
	Held         bool              `json:"held"`
	LeaseMS      uint32            `json:"lease_ms"`
	Rho          float64           `json:"rho"`
	WindowLeftMS uint32            `json:"window_left_ms"`
	WindowBy     string            `json:"window_by,omitempty"`
	Arbiter      healthView        `json:"arbiter"`
	Shards       shardsView        `json:"shards"`
	History      []transferralView `json:"history"`
}

// healthView is the arbiter's store as the answering node sees it.
type healthView struct {
	Store       string `json:"store"`
	Reachable   bool   `json:"reachable"`
	RoundTripUS uint32 `json:"round_trip_us,omitempty"`
	Errors      uint64 `json:"errors"`
	Error       string `json:"error,omitempty"`
}

// shardsView is how the leases are shared out among registers.
type shardsView struct {
	Count        uint32 `json:"count"`
	Bytes        uint32 `json:"bytes"`
	Fullest      uint32 `json:"fullest"`
	FullestBytes uint32 `json:"fullest_bytes"`
}

// viewAuthority returns nil for a cluster without an arbiter.
func viewAuthority(a *coorddv1.Authority) *authorityView {
	if a == nil {
		return nil
	}
	return &authorityView{
		Mode: authority.Mode(a.GetMode()), Epoch: a.GetEpoch(), RaftEpoch: a.GetRaftEpoch(), Group: a.GetGroup(),
		Owner: a.GetOwner(), OwnerTerm: a.GetOwnerTerm(), Sequence: a.GetSequence(), Takers: append([]string{}, a.GetTakers()...),
		TTLCeilingMS: a.GetTtlCeilingMs(), GraceDone: a.GetGraceDone(), GraceLeftMS: a.GetGraceLeftMs(), Held: a.GetHeld(),
		LeaseMS: a.GetLeaseMs(), Rho: a.GetRho(), WindowLeftMS: a.GetWindowLeftMs(), WindowBy: a.GetWindowBy(),
		Arbiter: viewHealth(a.GetArbiter()),
		Shards: shardsView{
			Count: a.GetShards().GetCount(), Bytes: a.GetShards().GetBytes(),
			Fullest: a.GetShards().GetFullest(), FullestBytes: a.GetShards().GetFullestBytes(),
		},
		History: viewChanges(a.GetHistory()),
	}
}

func viewHealth(h *coorddv1.ArbiterHealth) healthView {
	return healthView{
		Store: h.GetStore(), Reachable: h.GetReachable(), RoundTripUS: h.GetRoundTripUs(),
		Errors: h.GetErrors(), Error: h.GetError(),
	}
}

// grace reports whether the arbiter has taken over, and nothing is granted anew yet.
func (v *authorityView) grace() bool {
	return v != nil && v.Mode == authority.Fallback && !v.GraceDone
}

// granting says who grants the leases, where it is not the leader.
func (v *authorityView) granting() string {
	if v != nil && v.Mode == authority.Fallback {
		return " (by the arbiter)"
	}
	return ""
}

// why says why nothing is granted, as far as the reason lies with the arbiter. leads:
// the answering node is the leader.
func (v *authorityView) why(leads bool) string {
	var why string
	switch {
	case v == nil:
		return ""
	case v.Mode == "":
		why = "the root register was not read yet"
	case v.grace():
		why = "the arbiter has taken over: " + v.graceText()
	case v.Mode == authority.Importing:
		why = v.Owner + " takes the leases over from the arbiter's registers"
	case v.Mode == authority.Raft && leads && v.WindowLeftMS == 0:
		why = "the leader has no window: it needs an answer of the arbiter, or of all of " + strings.Join(v.Takers, ", ")
	}
	if !v.Arbiter.Reachable || v.Arbiter.Error != "" {
		why = strings.TrimPrefix(why+"; arbiter: "+v.Arbiter.String(), "; ")
	}
	return why
}

// graceText says when the grace ends.
func (v *authorityView) graceText() string {
	return fmt.Sprintf("fresh grants begin within %v, until then holders renew and reclaim their leases", milliseconds(v.GraceLeftMS))
}

// fields are the lines of status about the authority. leads: the answering node is
// the leader.
func (v *authorityView) fields(leads bool) []string {
	if v == nil {
		return nil
	}
	pairs := []string{"authority", v.text(), "group", v.Group}
	if v.Mode == "" {
		return append(pairs, "arbiter", v.Arbiter.String())
	}
	switch {
	case v.grace():
		pairs = append(pairs, "grace", v.graceText())
	case v.Mode == authority.Raft && (leads || v.WindowLeftMS > 0):
		pairs = append(pairs, "window", v.window())
	}
	return append(pairs,
		"root register", fmt.Sprintf("written %d times, last by %s", v.Sequence, owner(v.Owner, v.OwnerTerm)),
		"may take over", orNone(strings.Join(v.Takers, ", ")),
		"longest TTL", milliseconds(v.TTLCeilingMS).String(),
		"arbiter", v.Arbiter.String(),
		"shards", v.Shards.String())
}

func (v *authorityView) text() string {
	if v.Mode == "" {
		return "not known: the root register was not read yet"
	}
	s := fmt.Sprintf("%s, epoch %d", v.Mode, v.Epoch)
	if n := len(v.History); n > 0 {
		last := v.History[n-1]
		s += fmt.Sprintf(" since %s (%s by %s)", last.At.Format(time.RFC3339), last.Why, last.Node)
	}
	return s + kept(v.Held)
}

// window says how long the leader may still grant, and by whose answers.
func (v *authorityView) window() string {
	if v.WindowLeftMS == 0 {
		return "closed"
	}
	by := map[string]string{"arbiter": "by the arbiter", "unanimity": "by unanimity of those that may take over"}[v.WindowBy]
	return fmt.Sprintf("open for %v more, %s", milliseconds(v.WindowLeftMS), by)
}

// kept says that an operator keeps authority in a fallback.
func kept(held bool) string {
	if !held {
		return ""
	}
	return ", kept there by an operator (coordd failover --to raft)"
}

// owner is who has written the root register last.
func owner(node string, term uint64) string {
	if term == 0 {
		return node
	}
	return fmt.Sprintf("%s in term %d", node, term)
}

func (v healthView) String() string {
	s := v.Store + ", reachable"
	if !v.Reachable {
		s = v.Store + ", not reachable"
	} else if v.RoundTripUS != 0 {
		s += fmt.Sprintf(", round trip %.1fms", float64(v.RoundTripUS)/1000)
	}
	if v.Error != "" { // one that is reachable may hold what is not the cluster's
		s += ": " + v.Error
	}
	if v.Errors > 0 {
		s += fmt.Sprintf(", %d errors since the node's start", v.Errors)
	}
	return s
}

func (v shardsView) String() string {
	s := fmt.Sprintf("%d of %d bytes each", v.Count, v.Bytes)
	if v.FullestBytes == 0 { // the node does not know, or there are no leases
		return s
	}
	return fmt.Sprintf("%s, the fullest (%d) has %s", s, v.Fullest, fill(v.FullestBytes, v.Bytes))
}

// fill is how much of its bound a shard takes up.
func fill(bytes, bound uint32) string {
	return fmt.Sprintf("%d (%d%%)", bytes, uint64(bytes)*100/uint64(max(bound, 1)))
}
