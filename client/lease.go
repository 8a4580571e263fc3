package client

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// Lease is a lease that is held, or was. It renews itself until it is released
// or its client is closed. It is safe for concurrent use.
type Lease struct {
	client *Client
	claim  leases.Claim
	ctx    context.Context
	cancel context.CancelCauseFunc

	queued   chan int      // the newest place in the queue
	renewed  chan struct{} // see Renewed
	believed chan struct{} // closed once the lease is held
	ended    chan struct{} // closed once it is over
	settled  chan struct{} // closed once the cluster need not be told anything more
	outcome  error         // of the release, once settled

	// mu guards what follows. Whether an answer counts is decided under it, and
	// so is the end of the lease before a Withdraw or Release is sent.
	mu        sync.Mutex
	holder    holder
	timer     *clock.Timer // at the deadline, once there is one
	loose     bool         // of a lease that is held: some copy of its claim was not answered
	releasing bool
}

type leaseKey struct{}

// FromContext returns the lease whose Context ctx comes from; so the function
// that Run calls finds its lease.
func FromContext(ctx context.Context) (*Lease, bool) {
	l, ok := ctx.Value(leaseKey{}).(*Lease)
	return l, ok
}

// newLease returns the lease of an attempt that has not been sent yet. values
// are those that its context has.
func newLease(values context.Context, c *Client, claim leases.Claim) *Lease {
	l := &Lease{
		client:   c,
		claim:    claim,
		queued:   make(chan int, 1),
		renewed:  make(chan struct{}, 1),
		believed: make(chan struct{}),
		ended:    make(chan struct{}),
		settled:  make(chan struct{}),
		holder:   holder{name: claim.Name, ttl: claim.TTL, rules: c.rules},
	}
	values = context.WithValue(context.WithoutCancel(values), leaseKey{}, l)
	l.ctx, l.cancel = context.WithCancelCause(values)
	return l
}

// Name is the lease's name.
func (l *Lease) Name() string { return l.claim.Name }

// Token is the fencing token. It is the same as long as the lease is held, also
// across changes of the cluster's leader.
func (l *Lease) Token() tokens.Token {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holder.token
}

// Deadline is the instant, of the client's clock, at which the lease is no
// longer believed in unless it is renewed before. Each renewal moves it.
func (l *Lease) Deadline() clock.Instant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holder.deadline
}

// Renewed has a value whenever the deadline has moved since the last receive;
// Deadline then tells the newest one. It is meant for one receiver and is never
// closed: select on Done beside it.
func (l *Lease) Renewed() <-chan struct{} { return l.renewed }

// Context has the values of the context given to Acquire, but not its end. It
// ends when the lease does, with a cause that matches leases.ErrLost (the
// cluster said so), leases.ErrExpired (the deadline came; no network is needed
// for that, and after a suspend it takes at most 500 ms) or leases.ErrReleased.
// With leases.ErrClosed it ends when the client is being closed: the lease is
// still held, and Release is expected soon.
func (l *Lease) Context() context.Context { return l.ctx }

// Done is closed when Context ends.
func (l *Lease) Done() <-chan struct{} { return l.ctx.Done() }

// Err is nil until Context has ended, and then its cause. It reads the clock:
// it is not nil after the deadline even if Done has not been closed yet.
func (l *Lease) Err() error {
	l.step((*holder).lapse)
	return context.Cause(l.ctx)
}

// Release gives the lease back. As soon as it is called the lease is over, and
// never used again. The request is repeated until it is answered, also beyond
// the end of ctx, as long as there is something to give back; ctx, which must
// outlive the work's, bounds only how long Release waits for that. Whoever
// calls it again waits for the same answer.
//
// Errors: leases.ErrNotHeld, joined with leases.ErrLost or leases.ErrExpired
// where the lease is known to have ended before; leases.ErrUnknownOutcome,
// joined with ctx's cause, where no answer came.
func (l *Lease) Release(ctx context.Context) error {
	if err := l.release(); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	select {
	case <-l.settled:
		return l.outcome
	default:
	}
	select {
	case <-l.settled:
		return l.outcome
	case <-ctx.Done():
		return fmt.Errorf("release of lease %q: %w: no answer yet; it is repeated until the lease lapses, within %v: %w",
			l.Name(), leases.ErrUnknownOutcome, leases.Stretch(l.claim.TTL), context.Cause(ctx))
	}
}

// release ends the lease and begins to tell the cluster, once.
func (l *Lease) release() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.releasing {
		return nil
	}
	before := l.holder.stage
	if err := l.holder.release(l.client.clock.Now()); err != nil {
		if before != over {
			l.finish()
		}
		if errors.Is(err, leases.ErrExpired) {
			err = fmt.Errorf("%w: %w", &leases.NotHeldError{Name: l.Name(), Token: l.holder.token, Why: leases.WhyExpired}, err)
		}
		return err
	}
	l.releasing = true
	if l.holder.stage == over {
		l.finish()
	}
	l.client.naive.releasing(l)
	l.client.part(l, l.sendRelease(), l.released)
	return nil
}

// released takes what became of the release.
func (l *Lease) released(err error) {
	if !l.client.rules.On(rules.AttemptOver) {
		l.client.naive.released(l)
		l.step(func(h *holder, _ clock.Instant) verdict { return h.released() })
	}
	switch {
	case errors.Is(err, leases.ErrNotHeld):
		err = fmt.Errorf("release: %w: %w", leases.ErrLost, err)
	case !final(err):
		err = fmt.Errorf("release of lease %q: %w: it was never answered, and lapses: %w", l.Name(), leases.ErrUnknownOutcome, err)
	}
	l.client.settle(l, err)
}

// withdraw ends an attempt and begins to tell the cluster, if that may know of
// it; loose says that some copy of its claim may have been granted. held: it is
// believed in, and goes on.
func (l *Lease) withdraw(loose bool) (held, sent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.holder.stage
	if !l.holder.withdraw(errWithdrawn) {
		return true, false
	}
	if before != l.holder.stage {
		l.finish()
	}
	if !loose && before != confirming {
		l.client.settle(l, nil)
		return false, false
	}
	l.client.part(l, func(ctx context.Context, s leases.Session) error {
		return s.Withdraw(ctx, l.Name(), l.claim.Attempt)
	}, func(err error) { l.client.settle(l, err) })
	return false, true
}

// sendRelease returns the request that gives the lease back. A copy of its claim
// that has not been answered may yet arrive and be granted anew, so then the
// attempt is withdrawn too. It is called with mu held.
func (l *Lease) sendRelease() request {
	h, loose := leases.Held{Name: l.Name(), Token: l.holder.token}, l.loose
	maybe, done := false, false // an earlier copy may have been, was carried out
	return func(ctx context.Context, s leases.Session) error {
		if !done {
			err := s.Release(ctx, h)
			var gone *leases.NotHeldError
			switch {
			case err == nil,
				errors.Is(err, leases.ErrNotHeld) && maybe,
				errors.As(err, &gone) && gone.Why == leases.WhyReleased:
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

// step lets an event happen and does what the holder then asks for; a renewal
// is the caller's to send.
func (l *Lease) step(event func(*holder, clock.Instant) verdict) verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := event(&l.holder, l.client.clock.Now())
	switch v {
	case believe:
		l.arm()
	case end:
		l.finish()
	}
	return v
}

// arm sets the timer to a new deadline. It is called with mu held.
func (l *Lease) arm() {
	at := l.holder.deadline
	if l.timer == nil {
		close(l.believed)
	}
	// A timer that has just fired finds that the lease has not lapsed.
	if l.timer == nil || !l.timer.Reset(at) {
		l.timer = clock.AfterFunc(l.client.clock, at, func() { l.step((*holder).lapse) })
	}
	select {
	case l.renewed <- struct{}{}:
	default:
	}
}

// finish does what the end of the lease asks for. It is called with mu held.
func (l *Lease) finish() {
	close(l.ended)
	l.cancel(l.holder.why)
	l.client.renewer.drop(l)
	if l.timer != nil {
		l.timer.Stop()
		if !l.releasing {
			l.client.settle(l, nil)
		}
	}
}

// unanswered notes that nothing is known of a renewal.
func (l *Lease) unanswered(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holder.unanswered(err)
}

// lost takes the news that a lease has ended.
func (l *Lease) lost(e leases.Ended) {
	l.step(func(h *holder, now clock.Instant) verdict {
		if h.name != e.Held.Name || h.token != e.Held.Token {
			return ignore
		}
		return h.refused(e.Err, now)
	})
}

// standing takes the place in the queue. Only the newest one is kept.
func (l *Lease) standing(place int) {
	for {
		select {
		case l.queued <- place:
			return
		default:
		}
		select {
		case <-l.queued:
		default:
		}
	}
}
