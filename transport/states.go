package transport

import (
	"fmt"
	"math"
	"time"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
)

// maxQueue is how many waiters one answer tells at most, so that it fits into a
// message: those whose turn comes first.
const maxQueue = 8192

// ToLeaseStatus is s as the wire carries it.
func ToLeaseStatus(s leases.State) *coorddv1.LeaseStatus {
	l := &coorddv1.LeaseStatus{Name: text(s.Name, maxDetail), Held: s.Held, Waiters: count(s.Waiters)}
	if s.Held {
		l.Token, l.Owner, l.Attributes, l.Broken = uint64(s.Token), toOwner(s.Owner), s.Attributes, s.Broken
		l.TtlMs, l.AtMostMs, l.AcquiredAtUnixMs = MillisUp(s.TTL), MillisUp(s.AtMost), toUnixMillis(s.AcquiredAt)
	}
	if s.Last.Token != 0 {
		l.Last = &coorddv1.NotHeld{Name: l.Name, Token: uint64(s.Last.Token), Why: coorddv1.Why(s.Last.Why), NextToken: uint64(s.Last.Next)}
	}
	return l
}

func fromLeaseStatus(l *coorddv1.LeaseStatus) (leases.State, error) {
	s := leases.State{Name: l.GetName(), Held: l.GetHeld(), Waiters: int(l.GetWaiters())}
	if err := leases.ValidateName(s.Name); err != nil {
		return leases.State{}, badAnswer(err)
	}
	if s.Held {
		s.Token, s.Owner, s.Attributes, s.Broken = tokens.Token(l.Token), fromOwner(l.Owner), l.Attributes, l.Broken
		s.TTL, s.AtMost, s.AcquiredAt = fromMillis(l.TtlMs), fromMillis(l.AtMostMs), fromUnixMillis(l.AcquiredAtUnixMs)
		if err := (leases.Held{Name: s.Name, Token: s.Token}).Validate(); err != nil {
			return leases.State{}, badAnswer(err)
		}
	}
	if last := l.Last; last != nil {
		if last.Token > uint64(tokens.Max) || last.NextToken > uint64(tokens.Max) {
			return leases.State{}, badAnswer(fmt.Errorf("tokens %d and %d of the last lease of %q are out of range", last.Token, last.NextToken, s.Name))
		}
		s.Last = leases.Ending{Token: tokens.Token(last.Token), Why: fromWhy(last.Why), Next: tokens.Token(last.NextToken)}
	}
	return s, nil
}

func toListResponse(p leases.Page) *coorddv1.ListResponse {
	r := &coorddv1.ListResponse{Epoch: p.At.Epoch, Revision: p.At.Revision, Next: p.Next, Leases: make([]*coorddv1.LeaseStatus, len(p.Leases))}
	for i, s := range p.Leases {
		r.Leases[i] = ToLeaseStatus(s)
	}
	return r
}

func fromListResponse(r *coorddv1.ListResponse) (leases.Page, error) {
	p := leases.Page{At: leases.Position{Epoch: r.Epoch, Revision: r.Revision}, Next: r.Next}
	for _, l := range r.Leases {
		s, err := fromLeaseStatus(l)
		if err != nil {
			return leases.Page{}, err
		}
		p.Leases = append(p.Leases, s)
	}
	return p, nil
}

func toQueueResponse(waiters []leases.Waiter) *coorddv1.QueueResponse {
	r := &coorddv1.QueueResponse{}
	for _, w := range waiters[:min(len(waiters), maxQueue)] {
		r.Waiters = append(r.Waiters, &coorddv1.Waiter{
			Position: count(w.Position), Attempt: w.Attempt.String(), Owner: toOwner(w.Owner), WaitingMs: uint64(max(w.Waiting, 0) / time.Millisecond),
		})
	}
	return r
}

func fromQueueResponse(r *coorddv1.QueueResponse) ([]leases.Waiter, error) {
	var waiters []leases.Waiter
	for _, w := range r.Waiters {
		attempt, err := parseID("attempt", w.Attempt)
		if err != nil {
			return nil, badAnswer(err)
		}
		waiting := leases.Forever
		if w.WaitingMs <= uint64(leases.Forever/time.Millisecond) {
			waiting = time.Duration(w.WaitingMs) * time.Millisecond
		}
		waiters = append(waiters, leases.Waiter{Position: int(w.Position), Attempt: attempt, Owner: fromOwner(w.Owner), Waiting: waiting})
	}
	return waiters, nil
}

func toWatchResponse(b leases.Batch) *coorddv1.WatchResponse {
	r := &coorddv1.WatchResponse{Epoch: b.At.Epoch, Revision: b.At.Revision}
	for _, c := range b.Changes {
		r.Changes = append(r.Changes, &coorddv1.Change{
			Revision: c.Revision, Kind: coorddv1.ChangeKind(c.Kind), Name: text(c.Name, maxDetail), Token: uint64(c.Token), NextToken: uint64(c.Next), Free: c.Free,
			Owner: toOwner(c.Owner), TtlMs: MillisUp(c.TTL), Attributes: c.Attributes, AcquiredAtUnixMs: toUnixMillis(c.AcquiredAt),
		})
	}
	return r
}

func fromWatchResponse(r *coorddv1.WatchResponse) (leases.Batch, error) {
	b := leases.Batch{At: leases.Position{Epoch: r.Epoch, Revision: r.Revision}}
	for _, c := range r.Changes {
		change, err := fromChange(c)
		if err != nil {
			return leases.Batch{}, err
		}
		b.Changes = append(b.Changes, change)
	}
	return b, nil
}

// fromChange lets a kind through that this release does not know: what it did to
// the name is told by Free.
func fromChange(c *coorddv1.Change) (leases.Change, error) {
	if err := (leases.Held{Name: c.Name, Token: tokens.Token(c.Token)}).Validate(); err != nil {
		return leases.Change{}, badAnswer(err)
	}
	if c.Kind <= 0 || c.Kind > math.MaxUint8 || c.NextToken > uint64(tokens.Max) {
		return leases.Change{}, badAnswer(fmt.Errorf("the change of %q of kind %d and next token %d is none", c.Name, c.Kind, c.NextToken))
	}
	return leases.Change{
		Revision: c.Revision, Kind: leases.ChangeKind(c.Kind), Name: c.Name, Token: tokens.Token(c.Token), Next: tokens.Token(c.NextToken), Free: c.Free,
		Owner: fromOwner(c.Owner), TTL: fromMillis(c.TtlMs), Attributes: c.Attributes, AcquiredAt: fromUnixMillis(c.AcquiredAtUnixMs),
	}, nil
}

// badAnswer is what a client makes of an answer that no node of this release
// gives: nothing is known.
func badAnswer(err error) error {
	return &leases.UnavailableError{Reason: text("the node's answer makes no sense: "+err.Error(), maxReason)}
}

func toPosition(p leases.Position) *coorddv1.Position {
	return &coorddv1.Position{Epoch: p.Epoch, Revision: p.Revision}
}

func fromPosition(p *coorddv1.Position) leases.Position {
	return leases.Position{Epoch: p.GetEpoch(), Revision: p.GetRevision()}
}

// fromWhy is WhyUnknown for a reason that this release does not know.
func fromWhy(w coorddv1.Why) leases.Why {
	if w < 0 || w > coorddv1.Why_WHY_TRANSFERRED {
		return leases.WhyUnknown
	}
	return leases.Why(w)
}

// count is n for the wire.
func count(n int) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }
