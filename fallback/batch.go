package fallback

import (
	"fmt"
	"time"

	"github.com/coordd/coordd/arbiter"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// batch carries out what waits, as many ops as fit into one write, and ends the leases
// that are due. It returns the write, or nil where nothing is to be written: then it
// has answered those ops that what is known of the register answers for certain.
func (s *Shard) batch(now clock.Instant) Action {
	if s.bad != nil {
		for _, a := range s.take(s.confirmed) {
			a.refuse(s.bad)
		}
		return nil
	}
	n := min(len(s.queue), maxBatch)
	for {
		t, changed := s.apply(s.queue[:n], now)
		if !changed {
			s.certain(n)
			return nil
		}
		data := leases.EncodeShard(t.Shard())
		switch {
		case len(data) <= arbiter.MaxData || n == 0:
			asks := s.queue[:n:n]
			s.queue = s.queue[n:]
			nonce := s.nonce()
			s.begin(flight{from: s.version, nonce: nonce, asks: asks, table: t})
			return Swap{From: s.version, Write: arbiter.Write{Nonce: nonce, Data: data}}
		case n > 1:
			n /= 2
		default:
			// Grants are refused long before: only reclaims come here.
			s.queue[0].refuse(&leases.ExhaustedError{What: fmt.Sprintf("bytes of the leases of shard %d, encoded", s.index), Bound: arbiter.MaxData})
			s.queue = s.queue[1:]
			n = min(len(s.queue), 1) // the next one will hardly fit either
		}
	}
}

// certain answers those of the first n asks that came before the version was
// confirmed that their results, which change nothing, are true of. A reading made before
// the end of the grace was known proves no lease absent: it may have been reclaimed since.
func (s *Shard) certain(n int) {
	if s.confirmed <= s.fresh {
		return
	}
	var served, left []*ask
	for i, a := range s.queue {
		if i < n && a.after < s.confirmed {
			served = append(served, a)
		} else {
			left = append(left, a)
		}
	}
	s.queue = left
	for _, a := range served {
		a.answer()
	}
}

// apply carries the asks out on what is known of the register, moved to the regime's
// epoch by the same write if it is of an earlier one.
func (s *Shard) apply(asks []*ask, now clock.Instant) (t *leases.Table, changed bool) {
	t = leases.OpenShardUnder(s.rules, s.view, s.index, s.shards, uint64(s.version)+1)
	s.expire(t, now)
	for _, a := range asks {
		before := t.Revision()
		a.result, a.err = s.carryOut(t, a.op, now)
		a.changes = t.Revision() != before
	}
	return t, t.Revision() != 0
}

// carryOut applies one op, under the rules that are not the table's: those of the
// grace and of the ceiling.
func (s *Shard) carryOut(t *leases.Table, op leases.Op, now clock.Instant) (leases.Result, error) {
	l, held := t.Get(op.Name)
	inGrace := !s.regime.Fresh && s.rules.On(rules.Grace)
	beyond := op.TTL > s.regime.Ceiling // by ops without a TTL too: never
	switch op.Kind {
	case leases.KindReclaim:
		return s.reclaim(t, op, now)
	case leases.KindAcquire:
		switch {
		case held: // refused, or a repeat
		case inGrace:
			return leases.Result{}, s.grace(now)
		case beyond:
			return leases.Result{}, s.beyondCeiling(op.TTL)
		}
	case leases.KindTransfer:
		// Where it cannot be a grant it is a plain release (W8, S49).
		if inGrace || beyond {
			op = leases.Op{Kind: leases.KindRelease, Name: op.Name, Session: op.Session, Token: op.Token}
		}
	}
	op.Epoch = t.Epoch()
	r := t.Apply(op)
	// What a holder may still reclaim is not certainly absent.
	open := !s.regime.Fresh && !s.view.Closed && op.Token.Epoch() < t.Epoch()
	if r.Outcome == leases.Absent && open && (!held || op.Kind == leases.KindWithdraw || l.Token < op.Token) {
		return r, s.grace(now)
	}
	return r, nil
}

// reclaim applies a Reclaim. One that has been carried out before the shard was closed
// and comes again is a renewal: a lease that is there is not lost.
func (s *Shard) reclaim(t *leases.Table, op leases.Op, now clock.Instant) (leases.Result, error) {
	if op.TTL > s.regime.Ceiling {
		return leases.Result{}, s.beyondCeiling(op.TTL)
	}
	r := t.Apply(op)
	switch {
	case r.Outcome == leases.StaleEpoch && op.Epoch > t.Epoch():
		return r, &leases.UnavailableError{Reason: fmt.Sprintf("this node serves epoch %d, and has not heard of epoch %d yet", t.Epoch(), op.Epoch)}
	case r.Outcome == leases.StaleEpoch:
		return r, s.grace(now)
	case r.Outcome == leases.Closed:
		if l, held := t.Get(op.Name); held && l.Token == op.Token && l.Session == op.Session {
			op.Kind, op.Epoch = leases.KindRenew, t.Epoch()
			return t.Apply(op), nil
		}
	}
	return r, nil
}

func (s *Shard) grace(now clock.Instant) error {
	e := &leases.GraceError{Epoch: s.regime.Epoch}
	if !s.regime.Fresh {
		e.FreshIn = max(s.regime.FreshAt.Sub(now), 0)
	}
	return e
}

func (s *Shard) beyondCeiling(ttl time.Duration) error {
	return &leases.InvalidError{
		Field: "ttl", Value: ttl.String(),
		Bounds: fmt.Sprintf("at most %v, the cluster's ceiling: it is not raised while the arbiter has authority", s.regime.Ceiling),
	}
}
