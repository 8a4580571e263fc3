// Package fsm is the Raft replicator: it runs the lease table as the state
// machine of a hashicorp/raft group, and groups the ops that wait while a round
// of Raft is in flight into the next entry of the log.
package fsm

import (
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// Applied is what the state machine answers for one entry of the log.
type Applied struct {
	// StaleTerm says that the entry was decided in another term than the one it
	// got into the log in; then nothing of it was applied.
	StaleTerm bool
	// Results has one result per op.
	Results []leases.Result
}

// FSM is the lease table as a raft.FSM. View, Position and Changes are safe for
// concurrent use; the rest is called by Raft.
type FSM struct {
	rules rules.Set
	fatal func(error)

	mu     sync.RWMutex // guards what follows
	table  *leases.Table
	feed   *feed
	broken error       // set once; nothing is applied any more
	ops    []leases.Op // memory for those of an entry
}

var _ raft.FSM = (*FSM)(nil)

// New returns an empty state machine. fatal is called once, from Raft's
// goroutine, when an entry or a snapshot cannot be read: from then on nothing
// is applied, and the node has to stop.
func New(set rules.Set, fatal func(error)) *FSM {
	return &FSM{rules: set, fatal: fatal, table: leases.NewTableUnder(set), feed: newFeed(RememberedChanges)}
}

// View calls f with the table as of the newest applied entry. f must neither
// keep the table nor call back into the FSM.
func (f *FSM) View(look func(*leases.Table)) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	look(f.table)
}

// Apply applies one entry and returns an Applied.
func (f *FSM) Apply(l *raft.Log) any {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken != nil {
		return Applied{}
	}
	entry, err := decodeEntry(l.Data, f.ops)
	if err != nil {
		f.halt(fmt.Errorf("entry %d of the log cannot be applied: %w", l.Index, err))
		return Applied{}
	}
	if f.rules.On(rules.DecidedTerm) && entry.Term != l.Term {
		return Applied{StaleTerm: true}
	}
	a := Applied{Results: make([]leases.Result, len(entry.Ops))}
	for i, op := range entry.Ops {
		a.Results[i] = f.apply(op)
	}
	clear(entry.Ops)
	f.ops = entry.Ops
	return a
}

// apply is called with mu held.
func (f *FSM) apply(op leases.Op) leases.Result {
	before := f.table.Revision()
	r := f.table.Apply(op)
	switch now := f.table.Revision(); {
	case r.Outcome == leases.Imported: // any lease may be another one, or gone
		f.restart()
	case now != before:
		change, _ := leases.ChangeOf(r, now)
		f.feed.add(revision{f.table.Epoch(), change})
	}
	return r
}

// restart lets watchers find that they have missed what made the table what it is. It
// is called with mu held.
func (f *FSM) restart() {
	f.feed.restart(leases.Position{Epoch: f.table.Epoch(), Revision: f.table.Revision()})
}

// halt is called with mu held.
func (f *FSM) halt(err error) {
	f.broken = err
	f.fatal(err)
}

// Snapshot captures the table; it is written while entries go on being applied.
func (f *FSM) Snapshot() (raft.FSMSnapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken != nil {
		return nil, f.broken
	}
	return snapshot{f.table.Snapshot()}, nil
}

// Restore replaces the table by a snapshot's.
func (f *FSM) Restore(r io.ReadCloser) error {
	defer r.Close()
	table, err := leases.ReadTableUnder(f.rules, r)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		err = fmt.Errorf("a snapshot cannot be restored: %w", err)
		f.halt(err)
		return err
	}
	f.table = table
	f.restart()
	return nil
}

type snapshot struct{ table *leases.Snapshot }

func (s snapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := s.table.WriteTo(sink); err != nil {
		sink.Cancel()
		return fmt.Errorf("write snapshot %s: %w", sink.ID(), err)
	}
	return sink.Close()
}

func (snapshot) Release() {}
