package node

import (
	"context"

	"github.com/coordd/coordd/leases"
)

// renew moves the deadlines of leases, in the leader's memory alone. It is
// answered after a round of the voters begun after the request came in, a
// refusal too: so no leader that has lost its term without knowing it renews,
// or refuses a living holder (W3, V1).
func (t *tenure) renew(ctx context.Context, session leases.ID, held []leases.Held) ([]error, error) {
	for _, h := range held {
		if err := h.Validate(); err != nil {
			return nil, err
		}
	}
	began, err := t.rounds.join(ctx)
	if err != nil {
		return nil, err
	}
	// Check and move under the lock of the expiry decision (S23).
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() != nil {
		return nil, t.over()
	}
	now := t.clock.Now()
	answers := make([]error, len(held))
	for i, h := range held {
		w, l := t.leases[h.Name], t.find(h.Name)
		switch {
		case l == nil || l.Token != h.Token || l.Session != session:
			answers[i] = notHeld(h, t.ending(h))
		case w == nil || w.token != h.Token: // applied, and not yet noted here
			answers[i] = t.over()
		case l.Broken:
			answers[i] = notHeld(h, leases.Ending{Why: leases.WhyBroken})
		case w.expiring || !now.Before(w.deadline):
			answers[i] = notHeld(h, leases.Ending{Why: leases.WhyExpired})
		default:
			if moved := began.Add(leases.Stretch(l.TTL)); w.deadline.Before(moved) {
				w.deadline = moved
			}
			w.waited = false
		}
	}
	return answers, nil
}
