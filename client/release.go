package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/holder"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// Release gives the lease back. As soon as it is called the lease is over, and
// never used again. The request is repeated until it is answered, also beyond
// the end of ctx, as long as there is something to give back; ctx, which must
// outlive the work's, bounds only how long Release waits for that. Whoever
// calls it again waits for the same answer.
//
// Errors: leases.ErrNotHeld, joined with leases.ErrLost or leases.ErrExpired
// where the lease is known to have ended before; leases.ErrUnknownOutcome,
// joined with ctx's cause, where no answer came. A lease that an operator has
// broken is given back all the same; the error still says that it was lost.
func (l *Lease) Release(ctx context.Context) error {
	_, err := l.giveBack(ctx, leases.ID{})
	return err
}

// Transfer is Release, and passes the lease on to the one who waits for it
// under the attempt to, as Client.Queue tells it, past all the others. It
// reports whether that one is known to have been granted it. Where nobody waits
// under that attempt any more it is a plain Release. As soon as it is called the
// lease is over, whatever the answer. Of several calls of Transfer and Release
// the first one counts.
//
// Errors: those of Release; leases.ErrInvalid, and the lease goes on, if to is zero.
func (l *Lease) Transfer(ctx context.Context, to leases.ID) (bool, error) {
	if to.IsZero() {
		return false, &leases.InvalidError{Field: "to", Value: "none", Bounds: "the attempt of a waiter"}
	}
	return l.giveBack(ctx, to)
}

func (l *Lease) giveBack(ctx context.Context, to leases.ID) (passedOn bool, err error) {
	request, err := l.release(to)
	if err != nil {
		return false, fmt.Errorf("release: %w", err)
	}
	if request != nil {
		l.client.partNow(ctx, l, request, l.released)
	}
	select {
	case <-l.settled:
		return l.passedOn, l.outcome
	default:
	}
	select {
	case <-l.settled:
		return l.passedOn, l.outcome
	case <-ctx.Done():
		return false, l.ifBroken(fmt.Errorf("release of lease %q: %w: no answer yet; it is repeated until the lease lapses, within %v: %w",
			l.Name(), leases.ErrUnknownOutcome, leases.Stretch(l.claim.TTL), context.Cause(ctx)))
	}
}

// release ends the lease and returns the request that tells the cluster; nil: that
// is under way. A heir of zero is none.
func (l *Lease) release(heir leases.ID) (request, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.releasing {
		return nil, nil
	}
	before := l.holder.Stage()
	l.releasing = l.holder.Release(l.client.clock.Now())
	if l.holder.Stage() == holder.Over {
		if before != holder.Over {
			l.finish()
		} else {
			l.settle()
		}
	}
	if !l.releasing {
		err := l.holder.Why()
		if errors.Is(err, leases.ErrExpired) {
			err = fmt.Errorf("%w: %w", &leases.NotHeldError{Name: l.Name(), Token: l.holder.Token(), Why: leases.WhyExpired}, err)
		}
		return nil, err
	}
	l.client.naive.releasing(l)
	return l.sendRelease(heir), nil
}

// released takes what became of the release.
func (l *Lease) released(err error) {
	if !l.client.rules.On(rules.AttemptOver) {
		l.client.naive.released(l)
		l.step(func(h *holder.Holder, _ clock.Instant) holder.Verdict { return h.Released() })
	}
	switch {
	case errors.Is(err, leases.ErrNotHeld):
		err = fmt.Errorf("release: %w: %w", leases.ErrLost, err)
	case !final(err):
		err = fmt.Errorf("release of lease %q: %w: it was never answered, and lapses: %w", l.Name(), leases.ErrUnknownOutcome, err)
	}
	l.client.settle(l, l.ifBroken(err))
}

// ifBroken adds to what became of the release that the lease was broken before.
func (l *Lease) ifBroken(err error) error {
	l.mu.Lock()
	why := l.holder.Why()
	l.mu.Unlock()
	switch {
	case !errors.Is(why, leases.ErrLost):
		return err
	case err == nil || errors.Is(err, leases.ErrNotHeld):
		return fmt.Errorf("release: %w", why)
	default:
		return fmt.Errorf("%w; before that: %w", err, why)
	}
}

// sendRelease returns the request that gives the lease back, to the heir if
// there is one. A copy of its claim that has not been answered may yet arrive
// and be granted anew, so then the attempt is withdrawn too. It is called with
// mu held.
func (l *Lease) sendRelease(heir leases.ID) request {
	h, loose := l.holder.Held(), l.loose
	maybe, done := false, false // an earlier copy may have been, was carried out
	return func(ctx context.Context, s leases.Session) error {
		if !done {
			var err error
			if heir.IsZero() {
				err = s.Release(ctx, h)
			} else {
				l.passedOn, err = s.Transfer(ctx, h, heir)
			}
			var gone *leases.NotHeldError
			switch {
			case err == nil:
				done = true
			case errors.As(err, &gone) && (gone.Why == leases.WhyReleased || gone.Why == leases.WhyTransferred):
				done, l.passedOn = true, gone.Why == leases.WhyTransferred
			case errors.Is(err, leases.ErrNotHeld) && maybe:
				done = true
			default:
				maybe = maybe || !harmless(err)
				return err
			}
		}
		if loose {
			return s.Withdraw(ctx, l.Name(), l.claim.Attempt)
		}
		return nil
	}
}

// withdraw ends an attempt and begins to tell the cluster, if that may know of
// it; loose says that some copy of its claim may have been granted. held: it is
// believed in, and goes on.
func (l *Lease) withdraw(loose bool) (held, sent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, owed := l.holder.Stage(), l.holder.Owed()
	if !l.holder.Withdraw(errWithdrawn) {
		return true, false
	}
	if before != l.holder.Stage() {
		l.finish()
	}
	if !loose && before != holder.Confirming && !owed {
		l.client.settle(l, nil)
		return false, false
	}
	l.client.part(l, func(ctx context.Context, s leases.Session) error {
		return s.Withdraw(ctx, l.Name(), l.claim.Attempt)
	}, func(err error) { l.client.settle(l, err) })
	return false, true
}
