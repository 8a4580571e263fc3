package leases

// renew gives a lease its full TTL again: whoever watches the shard sees another
// stamp. A broken one is renewed no more (W7).
func (t *Table) renew(op *Op) Result {
	l, ok := t.Get(op.Name)
	switch {
	case !ok || l.Session != op.Session || l.Token != op.Token:
		return t.absent(op)
	case l.Broken:
		return broken(l)
	}
	return Result{Outcome: Renewed, Lease: t.touch(l)}
}

// reclaim takes a lease of an earlier epoch back in as its holder presents it, which
// keeps its token. It has no attempt: none gets it again. Room is no reason to refuse
// it (W9).
func (t *Table) reclaim(op *Op) Result {
	switch {
	case !isText(op.Name, op.Owner):
		return Result{Outcome: Ignored}
	case t.shard.closed:
		return Result{Outcome: Closed}
	case op.Token.Epoch() >= t.epoch: // every token of this epoch is granted here, and later ones must exceed it
		return Result{Outcome: Absent, Ending: Ending{Name: op.Name, Token: op.Token}}
	}
	l, ok := t.Get(op.Name)
	switch {
	case ok && l.Token == op.Token && l.Session == op.Session:
		if l.Broken {
			return broken(l)
		}
		return Result{Outcome: Reclaimed, Lease: t.touch(l)}
	case ok && l.Token >= op.Token:
		return Result{Outcome: Refused, Lease: l}
	}
	l = leaseOf(op, op.Session)
	l.Attempt, l.Token, l.Stamp = ID{}, op.Token, t.stamp(nil)
	t.held.put(l)
	return Result{Outcome: Reclaimed, Lease: l}
}

// touch stamps a copy: whoever was handed the lease may still read it.
func (t *Table) touch(l *Lease) *Lease {
	touched := *l
	touched.Stamp = t.stamp(l)
	t.held.replace(&touched)
	return &touched
}

func broken(l *Lease) Result {
	return Result{Outcome: Absent, Ending: Ending{Name: l.Name, Token: l.Token, Why: WhyBroken}}
}
