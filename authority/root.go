// Package authority decides who may grant and renew leases: a Raft leader within
// an open window, or, in a fallback epoch, every node by the arbiter's registers. It is
// sections 3 to 8 of docs/protocol.md as a pure state machine: events and clock
// readings in, actions out; no goroutine, no I/O, no clock and no chance of its own.
package authority

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// Mode says which replicator has authority.
type Mode string

// The modes of the root register.
const (
	Raft      Mode = "raft"      // the leader of the root's group, within its window
	Fallback  Mode = "fallback"  // every node, by the shard registers
	Importing Mode = "importing" // nobody: a group takes the leases over from the registers
)

// Root is the root register R: one per cluster, written as JSON that a person can
// read. What the protocol calls seq is the version of its register.
type Root struct {
	Format    int           `json:"format"`
	Cluster   leases.ID     `json:"cluster"`
	Params    Params        `json:"params"`
	Epoch     uint32        `json:"epoch"`
	RaftEpoch uint32        `json:"raft_epoch"` // the last epoch in which the mode was raft
	Mode      Mode          `json:"mode"`
	Group     leases.ID     `json:"group"` // the one Raft group that may act
	Owner     Owner         `json:"owner"`
	Takers    []string      `json:"takers"` // names of the nodes that may start a takeover
	CeilingMs int64         `json:"ttl_ceiling_ms"`
	GraceDone bool          `json:"grace_done"`
	Held      bool          `json:"held,omitempty"` // an operator keeps it in fallback
	Members   []Member      `json:"members"`        // where the nodes are, for those that look for them
	History   []Transferral `json:"history"`        // the newest changes of authority, the oldest first
}

// Params are fixed at a cluster's birth, for all of its nodes.
type Params struct {
	LeaseMs int64         `json:"lease_ms"` // L, the authority lease
	Rho     float64       `json:"rho"`
	Hash    string        `json:"hash"`
	Shards  leases.Shards `json:"shards"`
	FloorMs int64         `json:"ttl_ceiling_floor_ms"`
}

// Defaults and bounds of Params.
const (
	DefaultLease   = 10 * time.Second
	MinLease       = time.Second
	MaxLease       = time.Minute
	DefaultCeiling = 30 * time.Second
)

// Lease is L.
func (p Params) Lease() time.Duration { return time.Duration(p.LeaseMs) * time.Millisecond }

// Floor is the lowest that the ceiling of TTLs gets.
func (p Params) Floor() time.Duration { return time.Duration(p.FloorMs) * time.Millisecond }

// Owner is the leader that wrote R last, or the node that took over.
type Owner struct {
	Node string `json:"node"`
	Term uint64 `json:"term,omitempty"`
}

// Member is a node and where it is.
type Member struct {
	Name     string `json:"name"`
	ServerID string `json:"server_id"`
	Address  string `json:"address"`
}

// Transferral is one change of mode or epoch.
type Transferral struct {
	Epoch uint32    `json:"epoch"`
	Mode  Mode      `json:"mode"`
	Node  string    `json:"node"`
	Why   Why       `json:"why"`
	At    time.Time `json:"at"` // by that node's clock, for people only
}

// Why says what changed the authority.
type Why string

// The reasons of a Transferral.
const (
	Birth    Why = "birth"    // the cluster was born
	Takeover Why = "takeover" // a node took over, since nobody wrote R for long
	Forced   Why = "forced"   // an operator made a node do so that is no taker
	HandOver Why = "handover" // a leader passed authority on, as planned
	Failback Why = "failback" // a Raft group begins to take the leases over from the registers
	Imported Why = "imported" // it has taken them over, and serves
	Bump     Why = "bump"     // half of the epoch's tokens were used
	Adopted  Why = "adopted"  // a running cluster got an arbiter
)

// Ceiling is the longest TTL that is granted.
func (r *Root) Ceiling() time.Duration { return time.Duration(r.CeilingMs) * time.Millisecond }

// Grace is how long after a takeover nothing is granted anew.
func (r *Root) Grace() time.Duration { return leases.Stretch(r.Ceiling()) }

const (
	rootFormat  = 1
	historyKept = 32
	maxMembers  = 64
)

// changed notes a change of authority.
func (r *Root) changed(node string, why Why, at time.Time) {
	h := append(slices.Clone(r.History), Transferral{Epoch: r.Epoch, Mode: r.Mode, Node: node, Why: why, At: at.UTC().Truncate(time.Millisecond)})
	r.History = h[max(len(h)-historyKept, 0):]
}

// clone shares nothing that is written to.
func (r Root) clone() Root {
	r.Takers, r.Members, r.History = slices.Clone(r.Takers), slices.Clone(r.Members), slices.Clone(r.History)
	return r
}

// ErrForeign: the root register holds what no release of coordd writes, or what belongs
// to another cluster. It is never overwritten.
var ErrForeign = errors.New("the arbiter's root register is not this cluster's")

// Encode returns the root as its register keeps it.
func (r Root) Encode() []byte {
	r.Format = rootFormat
	b, err := json.Marshal(r)
	if err != nil { // it has no value that could not be encoded
		panic("authority: " + err.Error())
	}
	return b
}

// DecodeRoot reads what Encode has written. Errors match leases.ErrUnreadable, for one of a
// later release, or ErrForeign.
func DecodeRoot(b []byte) (Root, error) {
	var r Root
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	err := d.Decode(&r)
	if err == nil {
		err = r.validate()
	}
	if err == nil {
		return r, nil
	}
	var head struct {
		Format int `json:"format"`
	}
	switch {
	case json.Unmarshal(b, &head) != nil:
		return Root{}, fmt.Errorf("%w: it holds %q, which is no JSON of coordd's", ErrForeign, clip(b))
	case head.Format > rootFormat:
		return Root{}, &leases.UnreadableError{What: "root register", Version: uint32(head.Format), Reads: rootFormat}
	}
	return Root{}, fmt.Errorf("%w: it holds %q: %w", ErrForeign, clip(b), err)
}

func (r *Root) validate() error {
	invalid := func(field string, value any, bounds string) error {
		return &leases.InvalidError{Field: field, Value: fmt.Sprint(value), Bounds: bounds}
	}
	p := r.Params
	switch {
	case r.Format != rootFormat:
		return invalid("format", r.Format, fmt.Sprint(rootFormat))
	case r.Cluster.IsZero() || r.Group.IsZero():
		return invalid("cluster or group", "none", "16 bytes that are not all zero")
	case p.Lease() < MinLease || p.Lease() > MaxLease:
		return invalid("lease_ms", p.LeaseMs, fmt.Sprintf("%d to %d", MinLease.Milliseconds(), MaxLease.Milliseconds()))
	case p.Rho != leases.Rho:
		return invalid("rho", p.Rho, fmt.Sprintf("%v, which this release counts with", leases.Rho))
	case p.Hash != leases.ShardHash:
		return invalid("hash", p.Hash, leases.ShardHash)
	case p.Shards.Count < 1 || p.Shards.Count > leases.MaxShards:
		return invalid("shards", p.Shards.Count, fmt.Sprintf("1 to %d", leases.MaxShards))
	case p.Shards.Bytes < leases.MinShardBytes || p.Shards.Bytes > leases.MaxShardBytes:
		return invalid("shard bytes", p.Shards.Bytes, fmt.Sprintf("%d to %d", leases.MinShardBytes, leases.MaxShardBytes))
	case r.Ceiling() < leases.MinTTL || r.Ceiling() > leases.MaxTTL || p.Floor() < leases.MinTTL || p.Floor() > leases.MaxTTL:
		return invalid("ttl ceiling", r.Ceiling(), fmt.Sprintf("%v to %v", leases.MinTTL, leases.MaxTTL))
	case r.Epoch == 0 || r.Epoch > tokens.MaxEpoch || r.RaftEpoch > r.Epoch:
		return invalid("epoch", r.Epoch, fmt.Sprintf("1 to %d, and at least the raft epoch", tokens.MaxEpoch))
	case r.Mode != Raft && r.Mode != Fallback && r.Mode != Importing:
		return invalid("mode", r.Mode, "raft, fallback or importing")
	case len(r.Members) > maxMembers || len(r.Takers) > maxMembers || len(r.History) > historyKept:
		return invalid("members", len(r.Members), fmt.Sprintf("at most %d", maxMembers))
	}
	return nil
}

func clip(b []byte) []byte { return b[:min(len(b), 80)] }

// RootKey is where the root register of a cluster is: name tells the clusters of one
// store apart.
func RootKey(name string) string { return name + "/root" }

// ShardKey is where a shard register is. The cluster's random id is part of it: a cluster that is
// born after the root was lost never reads its predecessor's.
func ShardKey(name string, cluster leases.ID, shard uint32) string {
	return fmt.Sprintf("%s/%v/shard/%04d", name, cluster, shard)
}

// register is what is known of R.
type register struct {
	version arbiter.Version
	root    Root
	data    []byte // of which root was decoded; nil: it was not
}
