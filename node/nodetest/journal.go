package nodetest

import (
	"slices"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/fsm"
	"github.com/coordd/coordd/leases"
)

// journal is every entry that was ever written to a node's log: the newest of
// each index, also where the log has been compacted since.
type journal struct {
	mu      sync.Mutex // guards entries, whose own entries never change
	entries map[uint64]*raft.Log
}

func (j *journal) add(entries []*raft.Log) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range entries {
		kept := *e
		j.entries[e.Index] = &kept
	}
}

func (j *journal) at(index uint64) *raft.Log {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.entries[index]
}

// log is the log of node i from its first entry on. What the node has been sent
// as a snapshot is taken from others that had the same entry behind it, and so
// the same ones before.
func (c *Cluster) log(i int) (log []*raft.Log) {
	last, err := c.members[i].disk.store.LastIndex()
	if err != nil {
		c.t.Error(err)
	}
	behind := c.members[i].disk.journal.at(last)
	for at := last; at > 0 && behind != nil; at-- {
		log = append(log, behind)
		var before *raft.Log
		for _, m := range c.members {
			if e := m.disk.journal.at(at); e != nil && e.Term == behind.Term && before == nil {
				before = m.disk.journal.at(at - 1)
			}
		}
		behind = before
	}
	slices.Reverse(log)
	return log
}

// Applied replays node i's log up to a revision, and returns the table as of then
// and all changes of leases on the way.
func (c *Cluster) Applied(i int, revision uint64) (*leases.Table, []leases.Change) {
	table := leases.NewTable()
	var changes []leases.Change
	for _, l := range c.log(i) {
		if l.Type != raft.LogCommand {
			continue
		}
		entry, err := fsm.DecodeEntry(l.Data)
		if err != nil {
			c.Broken("entry %d of the log: %w", l.Index, err)
			break
		}
		for _, op := range entry.Ops {
			if entry.Term != l.Term || table.Revision() == revision {
				break
			}
			if change, ok := leases.ChangeOf(table.Apply(op), table.Revision()); ok {
				changes = append(changes, change)
			}
		}
	}
	return table, changes
}
