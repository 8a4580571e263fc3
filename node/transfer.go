package node

import (
	"context"
	"errors"
	"slices"

	"github.com/coordd/coordd/fsm"
	"github.com/coordd/coordd/leases"
)

// transfer is a release with an heir (W8): one who waits for the name, out of
// its turn. Where there is no such waiter it is a plain release.
func (t *tenure) transfer(ctx context.Context, session leases.ID, h leases.Held, to leases.ID) (bool, error) {
	if err := h.Validate(); err != nil {
		return false, err
	}
	if to.IsZero() {
		return false, &leases.InvalidError{Field: "to", Value: "none", Bounds: "the attempt of one who waits for the lease"}
	}
	answer, wait := awaited()
	if !t.bequeath(session, h, to, answer) {
		return false, t.release(ctx, session, h)
	}
	r, err := wait(ctx)
	if err == nil && r.Outcome == leases.Transferred {
		return true, nil
	}
	return false, released(h, r, err)
}

// bequeath proposes the transfer, if anybody waits under that attempt. The heir
// leaves its place for as long as that takes; answer is called with mu held.
func (t *tenure) bequeath(session leases.ID, h leases.Held, to leases.ID, answer fsm.Answer) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	q, l := t.lines[h.Name], t.find(h.Name)
	if q == nil || q.proposed != nil || l == nil || l.Token != h.Token || l.Session != session {
		return false // a late copy does not disturb those who wait
	}
	place := slices.IndexFunc(q.waiting, func(c *claim) bool { return c.Attempt == to })
	if place < 0 {
		return false
	}
	heir := t.take(q, place)
	q.proposed = heir
	op := heir.op(leases.KindTransfer)
	op.Session, op.Heir, op.Token = session, heir.session.id, h.Token
	t.ask(op, func(r leases.Result, err error) {
		t.inherited(q, r, err)
		answer(r, err)
	})
	return true
}

// inherited takes what became of a transfer. An heir that got nothing has its
// place again. It is called with mu held.
func (t *tenure) inherited(q *line, r leases.Result, err error) {
	heir := q.proposed
	q.proposed = nil
	switch {
	case err == nil && r.Outcome == leases.Transferred:
		t.metrics.endings[leases.WhyTransferred].Inc()
		heir.reply(t.grant(heir, r), nil)
	case errors.Is(err, leases.ErrUnknownOutcome):
		heir.reply(leases.Grant{}, err)
	case t.withdrawn(heir) != nil:
		heir.reply(leases.Grant{}, t.withdrawn(heir))
	case heir.Wait == 0: // its wait was over meanwhile
		heir.reply(leases.Grant{}, &leases.UnavailableError{Reason: "the lease could not be passed on"})
	default:
		t.put(q, heir)
	}
	t.advance(heir.Name)
}
