package fallback

import (
	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// NewSeal returns the machine that brings one shard of shards to epoch, that of an
// import into a Raft group (F2). Its result is the leases that the group takes over:
// those that no Raft group has served since raftEpoch or an earlier one (S12). They
// stay in the register, in case this import comes to nothing. From then on no node
// can write the shard in an earlier epoch. One that is at epoch already has been
// sealed by this import, whose answer was lost.
func NewSeal(index uint32, shards leases.Shards, set rules.Set, nonce func() arbiter.Nonce, epoch, raftEpoch uint32) *Rewrite {
	return &Rewrite{
		index: index, epoch: epoch, nonce: nonce,
		change: func(found leases.Shard, _ uint64) (leases.Shard, bool, []*leases.Lease) {
			sealed := leases.MoveShardUnder(set, found, epoch, raftEpoch)
			current := sealed.Leases
			if !set.On(rules.ExportCurrent) {
				current = found.Leases
			}
			return sealed, found.Epoch != epoch && set.On(rules.Sealing), current
		},
	}
}
