package fsm

import (
	"strings"
	"sync/atomic"

	"github.com/coordd/coordd/leases"
)

// RememberedChanges is how many changes of its table a node remembers.
const RememberedChanges = 10_000

// MaxBatch is how many changes one batch has at most.
const MaxBatch = 512

// feed remembers what made the table's last revisions. The FSM's mutex guards
// it. Whoever watches reads from it at its own pace: so nobody waits for a slow
// watcher, who finds at last that changes were forgotten.
type feed struct {
	kept   int             // how many revisions at most
	floor  leases.Position // everything after it is remembered
	ring   []revision      // those after floor, one by one; grows up to kept
	oldest int             // where in ring; 0 until the ring is full

	more    chan struct{} // closed at the next revision, if it is awaited
	awaited atomic.Bool   // set by readers, who share the mutex
}

// revision is what made one revision of the table.
type revision struct {
	epoch  uint32        // the table's from then on
	change leases.Change // without a kind: no lease has changed, as by a bump
}

func newFeed(kept int) *feed { return &feed{kept: kept, more: make(chan struct{})} }

// restart forgets everything: the table has become another one, which stands there.
func (f *feed) restart(there leases.Position) {
	f.floor, f.ring, f.oldest = there, nil, 0
	f.notify()
}

// add remembers what made the next revision, and forgets the oldest one if
// there are too many.
func (f *feed) add(r revision) {
	if n := len(f.ring); n < f.kept {
		if n == cap(f.ring) { // append would make room for more than are kept
			f.ring = append(make([]revision, 0, min(2*n+64, f.kept)), f.ring...)
		}
		f.ring = append(f.ring, r)
	} else {
		f.floor = f.position(f.floor.Revision + 1)
		f.ring[f.oldest] = r
		f.oldest = (f.oldest + 1) % f.kept
	}
	f.notify()
}

// at is what made the n-th revision, which must be remembered.
func (f *feed) at(n uint64) *revision {
	i := uint64(f.oldest) + n - f.floor.Revision - 1
	return &f.ring[i%uint64(len(f.ring))]
}

// position is the place of the n-th revision, which must be remembered or floor's.
func (f *feed) position(n uint64) leases.Position {
	if n == f.floor.Revision {
		return f.floor
	}
	return leases.Position{Epoch: f.at(n).epoch, Revision: n}
}

func (f *feed) newest() leases.Position {
	return f.position(f.floor.Revision + uint64(len(f.ring)))
}

// missed returns a *leases.MissedError unless everything after from is
// remembered or still to come.
func (f *feed) missed(from leases.Position) error {
	now := f.newest()
	switch {
	case from.Revision >= now.Revision && from.Epoch >= now.Epoch: // the table may still come there
	case from.Revision < f.floor.Revision, from.Revision > now.Revision, f.position(from.Revision) != from:
		return &leases.MissedError{From: from, Oldest: f.floor, Newest: now}
	}
	return nil
}

// since returns the changes after from of the names that begin with prefix, at
// most MaxBatch, and none after a place that the table may still come to. The
// error is a *leases.MissedError.
func (f *feed) since(prefix string, from leases.Position) (leases.Batch, error) {
	if err := f.missed(from); err != nil {
		return leases.Batch{}, err
	}
	b, newest := leases.Batch{At: from}, f.newest().Revision
	for at := from.Revision; at < newest && len(b.Changes) < MaxBatch; {
		at++
		if c := &f.at(at).change; c.Kind != 0 && strings.HasPrefix(c.Name, prefix) {
			b.Changes = append(b.Changes, *c)
		}
		b.At = f.position(at)
	}
	return b, nil
}

// wait is closed at the next revision.
func (f *feed) wait() <-chan struct{} {
	f.awaited.Store(true)
	return f.more
}

func (f *feed) notify() {
	if f.awaited.Swap(false) {
		close(f.more)
		f.more = make(chan struct{})
	}
}
