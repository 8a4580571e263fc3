package node

import (
	"context"

	"github.com/coordd/coordd/leases"
)

// drain is the end of a tenure that hands its authority over as planned (section 8).
// The tenure's mutex guards it.
type drain struct {
	reason   error         // why nothing is taken in any more; nil: it is
	proposed int           // ops that are not answered yet
	done     chan struct{} // closed once there are none; nil: nobody waits for that
}

// drain takes nothing in from now on, answers what waits as unavailable, and returns
// once every op that has been proposed is answered (S9, S39). The tenure does not
// serve again.
func (t *tenure) drain(ctx context.Context) error {
	done := t.shut()
	for t.turnSomeAway() {
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// drains reports whether it has been drained, or is being.
func (t *tenure) drains() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.draining.reason != nil
}

func (t *tenure) shut() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := &t.draining
	if d.reason == nil {
		d.reason = &leases.UnavailableError{Reason: t.node + " is handing its authority over to the arbiter"}
		d.done = make(chan struct{})
		t.drained()
	}
	return d.done
}

// drained is called with mu held, after an answer.
func (t *tenure) drained() {
	if d := &t.draining; d.proposed == 0 && d.done != nil {
		select {
		case <-d.done:
		default:
			close(d.done)
		}
	}
}

// turnSomeAway answers some of the claims that wait, and reports whether there may be more.
func (t *tenure) turnSomeAway() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	some := 0
	for _, q := range t.lines {
		if q.proposed != nil {
			q.proposed.Wait = 0 // it does not come back into the line
		}
		for len(q.waiting) > 0 {
			c := q.waiting[0]
			t.leave(c)
			c.reply(leases.Grant{}, t.draining.reason)
			if some++; some == atOnce {
				return true
			}
		}
	}
	return false
}
