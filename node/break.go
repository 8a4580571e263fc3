package node

import (
	"context"
	"errors"

	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// breakLease ends a lease against its holder's will (W7). It names the token,
// so that a copy that comes late harms nobody else's lease (S51).
func (t *tenure) breakLease(ctx context.Context, h leases.Held, now bool) (leases.Broken, error) {
	if err := h.Validate(); err != nil {
		return leases.Broken{}, err
	}
	if l := t.find(h.Name); l != nil && !t.rules.On(rules.BreakToken) {
		h.Token = l.Token
	}
	t.log.Info("an operator breaks a lease", "lease", h.Name, "token", uint64(h.Token), "now", now)
	r, err := t.decide(ctx, leases.Op{Kind: leases.KindBreak, Name: h.Name, Token: h.Token, Now: now})
	if err == nil && (r.Outcome == leases.Marked || r.Outcome == leases.Freed && !r.Lease.Broken) {
		t.metrics.breaks.Inc()
	}
	switch {
	case errors.Is(err, leases.ErrGrace):
		return leases.Broken{}, &leases.UnavailableError{Reason: err.Error()}
	case err != nil:
		return leases.Broken{}, err
	case r.Outcome == leases.Freed:
		return leases.Broken{Ended: true}, nil
	case r.Outcome == leases.Marked, r.Outcome == leases.Repeated:
		t.mu.Lock()
		defer t.mu.Unlock()
		if l := t.find(h.Name); l != nil && l.Token == h.Token {
			return leases.Broken{AtMost: t.replicator.atMost(l)}, nil
		}
		return leases.Broken{Ended: true}, nil // meanwhile
	default:
		return leases.Broken{}, notHeld(h, r.Ending)
	}
}
