package node

import (
	"context"
	"errors"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
)

// withdraw undoes an attempt. As an op it comes after a grant that is already
// proposed; a late copy of the Acquire is refused for some minutes.
func (t *tenure) withdraw(ctx context.Context, session leases.ID, name string, attempt leases.ID) error {
	if err := leases.ValidateName(name); err != nil {
		return err
	}
	if attempt.IsZero() {
		return &leases.InvalidError{Field: "attempt", Value: "none", Bounds: "16 random bytes"}
	}
	t.mu.Lock()
	t.gone.add(drawn{session, attempt}, t.clock.Now())
	if q := t.lines[name]; q != nil {
		if c := q.find(session, attempt); c != nil && t.drop(q, c) {
			c.reply(leases.Grant{}, &leases.NotHeldError{Name: name, Why: leases.WhyWithdrawn})
		}
	}
	t.mu.Unlock()
	_, err := t.decide(ctx, leases.Op{Kind: leases.KindWithdraw, Name: name, Session: session, Attempt: attempt})
	if errors.Is(err, leases.ErrGrace) {
		return nil // nothing is held under it, and nobody reclaims what it has withdrawn
	}
	return err
}

// withdrawn returns an error if a claim's attempt was withdrawn. It is called
// with mu held.
func (t *tenure) withdrawn(c *claim) error {
	if !t.gone.has(drawn{c.session.id, c.Attempt}, t.clock) {
		return nil
	}
	return &leases.NotHeldError{Name: c.Name, Why: leases.WhyWithdrawn}
}

// drawn is an attempt and whose it is. Attempts are told to everybody who asks
// for a queue; who may withdraw one is known by its session.
type drawn struct{ session, attempt leases.ID }

// withdrawals remembers which attempts were withdrawn. The tenure's mutex
// guards it.
type withdrawals struct {
	at    map[drawn]clock.Instant
	order []drawn // the oldest first
}

const (
	rememberWithdrawn    = 5 * time.Minute
	maxRememberWithdrawn = 100_000
)

func newWithdrawals() withdrawals { return withdrawals{at: map[drawn]clock.Instant{}} }

func (w *withdrawals) add(attempt drawn, now clock.Instant) {
	if _, ok := w.at[attempt]; !ok {
		w.order = append(w.order, attempt)
	}
	w.at[attempt] = now
	for len(w.order) > maxRememberWithdrawn || now.Sub(w.at[w.order[0]]) > rememberWithdrawn {
		delete(w.at, w.order[0])
		w.order = w.order[1:]
	}
}

// has reads the clock only for an attempt that it remembers: it is asked of each claim.
func (w *withdrawals) has(attempt drawn, c clock.Clock) bool {
	at, ok := w.at[attempt]
	return ok && c.Now().Sub(at) <= rememberWithdrawn
}
