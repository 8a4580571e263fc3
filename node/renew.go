package node

import (
	"context"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
)

// renew moves the deadlines of leases, in the leader's memory alone. Without an
// arbiter it is answered after a round of the voters begun after the request came in,
// a refusal too: so no leader that has lost its term without knowing it renews, or
// refuses a living holder (W3, V1). With one the open window stands for the round,
// but for a refusal.
func (r *raftReplicator) renew(ctx context.Context, session leases.ID, held []leases.Held) ([]error, error) {
	if r.window != nil {
		return r.renewInWindow(ctx, session, held)
	}
	began, err := r.rounds.join(ctx)
	if err != nil {
		return nil, err
	}
	return r.move(session, held, began)
}

func (r *raftReplicator) renewInWindow(ctx context.Context, session leases.ID, held []leases.Held) ([]error, error) {
	answers, err := r.move(session, held, r.tenure.clock.Now())
	if err != nil {
		return nil, err
	}
	var refused []leases.Held
	for i, err := range answers {
		if err != nil {
			refused = append(refused, held[i])
		}
	}
	if len(refused) == 0 {
		return answers, nil
	}
	again, err := r.refuse(ctx, session, refused)
	for i, refusal := range answers {
		switch {
		case refusal == nil:
		case err != nil:
			answers[i] = err
		default:
			answers[i], again = again[0], again[1:]
		}
	}
	return answers, nil
}

// refuse makes certain that leases cannot be renewed.
func (r *raftReplicator) refuse(ctx context.Context, session leases.ID, held []leases.Held) ([]error, error) {
	if err := r.certain(ctx, ""); err != nil {
		return nil, err
	}
	return r.move(session, held, r.tenure.clock.Now())
}

// move checks and moves under the lock of the expiry decision (S23). began is when the
// round began, or a time after the request came in.
func (r *raftReplicator) move(session leases.ID, held []leases.Held, began clock.Instant) ([]error, error) {
	t := r.tenure
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.serves(); err != nil {
		return nil, err
	}
	if err := r.open(); err != nil {
		return nil, err
	}
	now := t.clock.Now()
	answers := make([]error, len(held))
	for i, h := range held {
		answers[i] = r.moveOne(session, h, began, now)
	}
	return answers, nil
}

// moveOne is called with mu held.
func (r *raftReplicator) moveOne(session leases.ID, h leases.Held, began, now clock.Instant) error {
	w, l := r.leases[h.Name], r.find(h.Name)
	switch {
	case l == nil || l.Token != h.Token || l.Session != session:
		return notHeld(h, r.ending(h))
	case w == nil || w.token != h.Token: // applied, and not yet noted here
		return r.over()
	case l.Broken:
		return notHeld(h, leases.Ending{Why: leases.WhyBroken})
	case w.expiring || !now.Before(w.deadline):
		return notHeld(h, leases.Ending{Why: leases.WhyExpired})
	}
	if moved := began.Add(leases.Stretch(l.TTL)); w.deadline.Before(moved) {
		w.deadline = moved
	}
	w.waited = false
	return nil
}

// ending returns what the table remembers of a lease that has ended.
func (r *raftReplicator) ending(h leases.Held) (e leases.Ending) {
	r.fsm.View(func(table *leases.Table) { e, _ = table.Ended(h.Name, h.Token) })
	return e
}

// reclaim is a renewal: where Raft has authority there is nothing to reclaim, but a
// holder may have been told so a moment before it got it back.
func (r *raftReplicator) reclaim(ctx context.Context, session leases.ID, _ uint32, held []leases.Claimed) ([]error, error) {
	named := make([]leases.Held, len(held))
	for i, c := range held {
		named[i] = c.Held
	}
	return r.renew(ctx, session, named)
}
