package nodetest

import (
	"context"
	"strings"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/arbiter/faulty"
	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/leases"
)

// Steps are what Step says of the calls that a cluster makes on its way from birth
// through a takeover, a failback, a hand-over and back.
var Steps = []string{
	"birth", "window", "takeover", "move", "write of a shard", "read of a shard", "read of the root", "end of the grace",
	"failback", "import", "imported", "hand-over", "release",
}

// Step names what a call of a cluster's arbiter is for, by what the store holds now.
func Step(ctx context.Context, store arbiter.Store, call faulty.Call) string {
	before, err := store.Load(ctx, call.Key)
	switch shard := strings.Contains(call.Key, "/shard/"); {
	case err != nil:
		return "unknown"
	case shard && !call.Swap:
		return "read of a shard"
	case !call.Swap:
		return "read of the root"
	case shard:
		return stepOfShard(before.Data, call.Write.Data)
	case call.From == 0:
		return "birth"
	}
	return stepOfRoot(before.Data, call.Write.Data)
}

func stepOfShard(before, after []byte) string {
	was, err1 := leases.DecodeShard(before)
	is, err2 := leases.DecodeShard(after)
	switch {
	case err1 != nil || err2 != nil:
		return "unknown"
	case was.Epoch == is.Epoch:
		return "write of a shard"
	case len(is.Leases) == len(was.Leases) && is.Closed: // sealed, or moved with what it had
		return "import"
	}
	return "move"
}

func stepOfRoot(before, after []byte) string {
	was, err1 := authority.DecodeRoot(before)
	is, err2 := authority.DecodeRoot(after)
	same := was.Mode == is.Mode && was.Epoch == is.Epoch
	switch {
	case err1 != nil || err2 != nil:
		return "unknown"
	case was.Mode == authority.Raft && is.Mode == authority.Raft:
		return "window"
	case same && was.GraceDone != is.GraceDone:
		return "end of the grace"
	case same && was.Held && !is.Held:
		return "release"
	case same:
		return "other"
	case is.Held && !was.Held:
		return "hand-over"
	case is.Mode == authority.Fallback:
		return "takeover"
	case is.Mode == authority.Importing:
		return "failback"
	}
	return "imported"
}
