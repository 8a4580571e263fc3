package leases

import (
	"fmt"

	"github.com/coordd/coordd/internal/rules"
)

// Shards says how leases are shared out among the registers of an arbiter. It is
// fixed for the life of a cluster; the zero value is a cluster without an arbiter.
type Shards struct {
	Count uint32 `json:"count"` // 1 to MaxShards
	Bytes uint32 `json:"bytes"` // how much the leases of one shard may take up, encoded
}

// Bounds and defaults of Shards.
const (
	DefaultShards     = 256
	MaxShards         = 4096
	DefaultShardBytes = 64 << 10
	MinShardBytes     = 1 << 10
	MaxShardBytes     = 256 << 10
)

// ShardHash names how a name's shard is found, for people and later releases.
const ShardHash = "fnv-1a-64"

// Of returns the shard of a lease name: its FNV-1a hash of 64 bits, modulo Count.
func (s Shards) Of(name string) uint32 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * prime
	}
	return uint32(h % uint64(s.Count))
}

func (s Shards) invalid() *InvalidError {
	switch {
	case s.Count < 1 || s.Count > MaxShards:
		return &InvalidError{Field: "shards", Value: fmt.Sprint(s.Count), Bounds: fmt.Sprintf("1 to %d", MaxShards)}
	case s.Bytes < MinShardBytes || s.Bytes > MaxShardBytes:
		return &InvalidError{Field: "shard bytes", Value: fmt.Sprint(s.Bytes), Bounds: fmt.Sprintf("%d to %d", MinShardBytes, MaxShardBytes)}
	}
	return nil
}

// Shard is the content of one shard register.
type Shard struct {
	// Epoch is the one in which it is served; 0: the register was never written.
	Epoch uint32
	// Closed says that no lease of an earlier epoch can be reclaimed any more.
	Closed bool
	// Counter is that of the last grant in this epoch: its token is of counter
	// Counter·Count + index. 0: nothing was granted in it.
	Counter uint32
	// Leases are in the order of their names. Each one's Stamp is the version of the
	// register with which it was last granted, renewed or reclaimed.
	Leases []*Lease
}

// MoveShard brings a shard to a greater epoch, in which it is to be served or sealed.
// One whose epoch is at most raftEpoch, the last epoch in which the mode was raft, is
// emptied, since a Raft group has served its leases since, and open to reclaims.
// Otherwise its leases are current: they are kept, and the shard is closed, since a
// node that knows of no greater epoch may have granted there. A shard that is of
// that epoch already, or beyond it, stays as it is.
func MoveShard(s Shard, epoch, raftEpoch uint32) Shard {
	return MoveShardUnder(rules.Set{}, s, epoch, raftEpoch)
}

// MoveShardUnder is MoveShard for this module's own tests, which switch rules off.
func MoveShardUnder(set rules.Set, s Shard, epoch, raftEpoch uint32) Shard {
	if s.Epoch >= epoch {
		return s
	}
	current := s.Epoch > raftEpoch
	moved := Shard{Epoch: epoch, Closed: current && set.On(rules.KeptShardCloses)}
	if current || !set.On(rules.MoveByRaftEpoch) {
		moved.Leases = s.Leases
	}
	return moved
}

// openShard is what the table of a shard has beside those of a Raft group.
type openShard struct {
	index  uint32
	stamp  uint64
	closed bool
}

// OpenShard returns the table of one shard's leases, to which ops are applied
// before it is written back; it has changed if its Revision is not 0. index is the
// shard's, of shards. stamp is the version that the write will make: the Stamp of
// every lease that is granted, renewed or reclaimed. Birth, Bump, ImportPart, Import
// and Adopt are Ignored by it, as are names of other shards. It remembers the leases
// that have ended since it was opened. The lease pointers are shared with s.
func OpenShard(s Shard, index uint32, shards Shards, stamp uint64) *Table {
	return OpenShardUnder(rules.Set{}, s, index, shards, stamp)
}

// OpenShardUnder is OpenShard for this module's own tests, which switch rules off.
func OpenShardUnder(set rules.Set, s Shard, index uint32, shards Shards, stamp uint64) *Table {
	if index >= shards.Count {
		panic(fmt.Sprintf("leases: shard %d of %d", index, shards.Count))
	}
	t := NewTableUnder(set)
	t.epoch, t.counter = s.Epoch, s.Counter
	t.shard = &openShard{index: index, stamp: stamp, closed: s.Closed}
	t.held.shards, t.held.fill = shards, make([]uint32, 1)
	for _, l := range s.Leases {
		t.held.put(l)
	}
	return t
}

// Shard returns the content of a shard's table.
func (t *Table) Shard() Shard {
	s := Shard{Epoch: t.epoch, Counter: t.counter}
	if t.shard != nil {
		s.Closed = t.shard.closed
	}
	for l := range t.All() {
		s.Leases = append(s.Leases, l)
	}
	return s
}

// number is the counter of the token of the n-th grant in this epoch; 0 of none. It
// grows with n, and no two shards have an equal one.
func (t *Table) number(n uint64) uint64 {
	if t.shard == nil || n == 0 {
		return n
	}
	return n*uint64(t.held.shards.Count) + uint64(t.shard.index)
}

// granted notes a fresh grant: what is reclaimed after it could bring back a lease
// that has been granted anew (S14).
func (s *openShard) granted(set rules.Set) {
	s.closed = s.closed || set.On(rules.ShardCloses)
}

// stamp is the Stamp of a lease that is changed now; before is what it was, nil for a
// new one.
func (t *Table) stamp(before *Lease) uint64 {
	switch {
	case t.shard == nil:
		return t.revision + 1 // the revision that this op makes
	case t.rules.On(rules.StampUnique):
		return t.shard.stamp
	case before == nil:
		return 1
	}
	return before.Stamp + 1 // how often it was renewed, which may come again
}
