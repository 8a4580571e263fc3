package leases

import "bytes"

// staging keeps what the parts of an import have handed over until the Import puts
// it into force: a single op with the whole table would be an entry of the log that
// outlasts heartbeats (V9).
type staging struct {
	epoch uint32 // that the Import will begin; 0: nothing is staged
	holding
}

// importPart stages a part. Parts of a greater epoch replace what is there, since the
// owner of the lesser one has been overtaken.
func (t *Table) importPart(op *Op) Result {
	for _, l := range op.Leases {
		if !importable(l, op.Epoch) {
			return Result{Outcome: Ignored}
		}
	}
	switch {
	case op.Epoch < t.staged.epoch:
		return Result{Outcome: StaleEpoch}
	case op.Epoch > t.staged.epoch:
		t.staged = staging{epoch: op.Epoch, holding: newHolding()}
		t.staged.share(t.held.shards)
	}
	for _, l := range op.Leases {
		t.staged.put(staged(l))
	}
	return Result{Outcome: Staged}
}

// importable reports whether an import to epoch may bring l: it was granted before,
// under a name that a table holds.
func importable(l *Lease, epoch uint32) bool { return l.Name[0] != '@' && l.Token.Epoch() < epoch }

// staged copies a lease without its stamp, which the Import gives.
func staged(l *Lease) *Lease {
	s := *l
	s.Stamp, s.AcquiredAt, s.Attributes = 0, fromMillis(toMillis(l.AcquiredAt)), nil
	if len(l.Attributes) > 0 {
		s.Attributes = bytes.Clone(l.Attributes)
	}
	return &s
}

// importAll puts what is staged into force, in the place of all leases.
func (t *Table) importAll(op *Op) Result {
	if op.Epoch < t.staged.epoch {
		return Result{Outcome: StaleEpoch}
	}
	now := newHolding()
	if op.Epoch == t.staged.epoch {
		now = t.staged.holding
	} else {
		now.share(t.held.shards)
	}
	if uint64(now.leases.Len()) != uint64(op.Count) {
		return Result{Outcome: Mismatch, Field: "count"}
	}
	// Nobody has been handed a staged lease, and whoever writes a snapshot of the
	// staging reads no stamps: so they can still be set.
	now.leases.Ascend(func(e entry) bool {
		e.lease.Stamp = t.stamp(nil)
		return true
	})
	t.held = now
	t.advance(op.Epoch)
	t.ended.drop(func(e Ending) bool {
		l, ok := t.held.get(e.Name)
		return ok && e.Token >= l.Token // it has not ended, nor has one come after it
	})
	return Result{Outcome: Imported}
}

// adopt notes how an arbiter's registers share the leases out (N9).
func (t *Table) adopt(op *Op) Result {
	switch t.held.shards {
	case op.Shards:
		return Result{Outcome: Repeated}
	case Shards{}:
	default:
		return Result{Outcome: Mismatch, Field: "shards"}
	}
	shared := t.held
	if !shared.share(op.Shards) {
		return Result{Outcome: NoRoom}
	}
	t.held = shared
	if t.staged.epoch != 0 {
		t.staged.share(op.Shards)
	}
	return Result{Outcome: Adopted}
}
