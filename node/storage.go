package node

import (
	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/node/internal/boltstore"
	"github.com/coordd/coordd/node/internal/raftlog"
	"github.com/coordd/coordd/node/internal/stall"
)

// storage is what Raft keeps, behind the guard against stalled writes.
type storage struct {
	logs      raft.LogStore
	stable    raft.StableStore
	snapshots raft.SnapshotStore
	guard     *stall.Guard
	close     func() error
}

// release closes the storage once Raft has ended. One with a write that hangs
// is left alone: closing it would hang too.
func (s storage) release() error {
	if s.guard.Close() != nil {
		return nil
	}
	return s.close()
}

// wipe discards the log and the snapshots, once their storage was closed.
func (n *Node) wipe() error {
	switch t := n.cfg.Testing.Storage; {
	case t != nil:
		return t.Wipe()
	case n.cfg.InMemory:
		return nil // it went with the storage
	}
	return boltstore.Remove(n.cfg.Data)
}

func (n *Node) openStorage() (storage, error) {
	var s storage
	if t := n.cfg.Testing.Storage; t != nil {
		s = storage{logs: t.Logs, stable: t.Stable, snapshots: t.Snapshots, close: func() error { return nil }}
	} else {
		kept := boltstore.Memory()
		if !n.cfg.InMemory {
			var err error
			if kept, err = boltstore.Open(n.cfg.Data, raftlog.New(n.log)); err != nil {
				return s, err
			}
		}
		s = storage{logs: kept.Logs, stable: kept.Stable, snapshots: kept.Snapshots, close: kept.Close}
	}
	s.guard = stall.New(s.logs, s.stable, 2*n.cfg.ElectionTimeout, n.die)
	s.stable = s.guard.Stable()
	var err error
	s.logs, err = raft.NewLogCache(cachedEntries, s.guard.Logs())
	return s, err
}
