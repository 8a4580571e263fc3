package fallback

import (
	"slices"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// NewInstall returns the machine that writes the leases of a Raft group's table into
// one shard of shards, for fallback epoch epoch (section 8). It moves the shard there
// first, in the same write; a shard that is closed is left alone (S10), since this
// node may have slept while others have ended the grace and granted anew.
//
// It presents the leases as their holders would: by the rule of reclaim. What differs
// is what the group's table knows and a holder does not, or would not say:
//
//   - A broken lease stays broken (S51).
//   - A lease keeps its attempt, so that a holder whose answer was lost in the
//     hand-over gets its token by a repeat instead of blocking its own name for a TTL.
//     That is as safe as a repeat to the group: a repeat moves no deadline, its sender
//     counts from the first sending, before the grant, and the lease stays in the
//     register for TTL(1+ρ) from now at least; that token was granted to nobody else,
//     and an attempt that was withdrawn or released is repeated by nobody (S47).
func NewInstall(index uint32, shards leases.Shards, set rules.Set, nonce func() arbiter.Nonce, epoch, raftEpoch uint32, held []*leases.Lease) *Rewrite {
	return &Rewrite{
		index: index, epoch: epoch, nonce: nonce,
		change: func(found leases.Shard, stamp uint64) (leases.Shard, bool, []*leases.Lease) {
			moved := leases.MoveShardUnder(set, found, epoch, raftEpoch)
			if !set.On(rules.HandOverReclaims) {
				return overwritten(moved, held, stamp), true, nil
			}
			if moved.Closed {
				return found, false, nil
			}
			t := leases.OpenShardUnder(set, moved, index, shards, stamp)
			taken := present(t, held)
			return withAttempts(t.Shard(), taken), t.Revision() != 0, nil
		},
	}
}

// present applies reclaims of held to t, and returns the leases that it took, by name.
func present(t *leases.Table, held []*leases.Lease) map[string]*leases.Lease {
	taken := map[string]*leases.Lease{}
	for _, l := range held {
		// One that is there has been reclaimed by its holder, after the hand-over.
		if h, ok := t.Get(l.Name); !ok || h.Token != l.Token {
			r := t.Apply(leases.Op{
				Kind: leases.KindReclaim, Epoch: t.Epoch(), Name: l.Name, Session: l.Session, Token: l.Token,
				TTL: l.TTL, Owner: l.Owner, Attributes: l.Attributes, AcquiredAt: l.AcquiredAt,
			})
			if r.Outcome != leases.Reclaimed {
				continue
			}
			taken[l.Name] = l
		}
		if l.Broken {
			t.Apply(leases.Op{Kind: leases.KindBreak, Epoch: t.Epoch(), Name: l.Name, Token: l.Token})
		}
	}
	return taken
}

func withAttempts(s leases.Shard, taken map[string]*leases.Lease) leases.Shard {
	for i, l := range s.Leases {
		if from := taken[l.Name]; from != nil {
			kept := *l
			kept.Attempt = from.Attempt
			s.Leases[i] = &kept
		}
	}
	return s
}

// overwritten is what a hand-over that does not look would write.
func overwritten(s leases.Shard, held []*leases.Lease, stamp uint64) leases.Shard {
	s.Leases = slices.Clone(held)
	for i, l := range s.Leases {
		copied := *l
		copied.Stamp = stamp
		s.Leases[i] = &copied
	}
	return s
}
