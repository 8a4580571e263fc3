package client

import (
	"context"
	"sync"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/holder"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// Lease is a lease that is held, or was. It renews itself until it is released
// or its client is closed. It is safe for concurrent use.
type Lease struct {
	client   *Client
	claim    leases.Claim
	values   context.Context         // ctx has them
	endWait  context.CancelCauseFunc // ends its attempt's wait
	wake     chan struct{}           // has a value where the inbox or the stage may have changed
	renewed  chan struct{}           // see Renewed
	settled  chan struct{}           // closed once the cluster need not be told anything more
	outcome  error                   // of the release, once settled
	passedOn bool                    // by it to an heir, once settled

	// mu guards what follows. Whether an answer counts is decided under it, and
	// so is the end of the lease before a Withdraw, Release or Transfer is sent.
	mu         sync.Mutex
	holder     holder.Holder
	acquiredAt time.Time // as the grant told it, for people
	inbox      inbox     // of its attempt
	loose      bool      // of a lease that is held: some copy of its claim was not answered
	releasing  bool
	ctx        context.Context // nil until it is asked for
	cancel     context.CancelCauseFunc
	cause      error // of ctx's end, asked for or not

	// Each is guarded by its watcher, or the renewer.
	lapse   turn
	silence turn
	renewal renewal
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
		client:  c,
		claim:   claim,
		values:  values,
		wake:    make(chan struct{}, 1),
		renewed: make(chan struct{}, 1),
		settled: make(chan struct{}),
		holder:  holder.New(claim.Name, claim.TTL, c.rules),
	}
	l.lapse.lease, l.silence.lease, l.renewal.lease = l, l, l
	return l
}

// Name is the lease's name.
func (l *Lease) Name() string { return l.claim.Name }

// Token is the fencing token. It is the same as long as the lease is held, also
// across changes of the cluster's leader, and takeovers by its arbiter.
func (l *Lease) Token() tokens.Token {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holder.Token()
}

// Deadline is the instant, of the client's clock, at which the lease is no
// longer believed in unless it is renewed before. Each renewal moves it.
func (l *Lease) Deadline() clock.Instant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holder.Deadline()
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
// still held, and Release is expected soon. So it is when an operator has broken
// the lease: then there is a *leases.NotHeldError with leases.WhyBroken in a
// cause that matches leases.ErrLost, and nobody else gets the name before it is
// released, or its deadline has passed.
func (l *Lease) Context() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil {
		values := context.WithValue(context.WithoutCancel(l.values), leaseKey{}, l)
		l.ctx, l.cancel = context.WithCancelCause(values)
		if l.cause != nil {
			l.cancel(l.cause)
		}
	}
	return l.ctx
}

// end ends the context. It is called with mu held.
func (l *Lease) end(cause error) {
	if l.cause != nil {
		return
	}
	l.cause = cause
	if l.ctx != nil {
		l.cancel(cause)
	}
}

// Done is closed when Context ends.
func (l *Lease) Done() <-chan struct{} { return l.Context().Done() }

// Err is nil until Context has ended, and then its cause. It reads the clock:
// it is not nil after the deadline even if Done has not been closed yet.
func (l *Lease) Err() error {
	l.step((*holder.Holder).Lapse)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// step lets an event happen and does what the holder then asks for; a renewal
// or reclaim is the caller's to send.
func (l *Lease) step(event func(*holder.Holder, clock.Instant) holder.Verdict) holder.Verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := event(&l.holder, l.client.clock.Now())
	switch v {
	case holder.Believe:
		l.client.naive.believed(l)
		l.arm()
	case holder.End:
		l.finish()
	case holder.Settle:
		l.settle()
	}
	return v
}

// arm sets a new deadline. It is called with mu held.
func (l *Lease) arm() {
	l.client.deadlines.watch(&l.lapse, l.holder.Deadline())
	signal(l.wake)
	signal(l.renewed)
}

// finish does what the end of the lease asks for. It is called with mu held.
func (l *Lease) finish() {
	signal(l.wake)
	l.end(l.holder.Why())
	l.client.renewer.drop(l)
	if !l.holder.Owed() {
		l.settle()
	}
}

// settle does what there is to do once nothing is left to give back; the lease
// of an attempt that was never believed in is the attempt's. It is called with
// mu held.
func (l *Lease) settle() {
	if l.holder.Deadline() == 0 {
		return
	}
	l.client.deadlines.forget(&l.lapse)
	if !l.releasing {
		l.client.settle(l, nil)
	}
}

// attempted notes that a copy of the claim is about to be sent, and when.
func (l *Lease) attempted() (sent clock.Instant) {
	l.step(func(h *holder.Holder, now clock.Instant) holder.Verdict {
		sent = now
		l.inbox.place, l.inbox.silent = 0, false // of an earlier copy
		return h.Attempted(now)
	})
	return sent
}

// unanswered notes that nothing is known of a renewal or a reclaim.
func (l *Lease) unanswered(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holder.Unanswered(err)
}

// news returns the event of what the cluster tells of a lease without having
// been asked, for the holder that it is about.
func news(of leases.Held, err error, event func(*holder.Holder, error, clock.Instant) holder.Verdict) func(*holder.Holder, clock.Instant) holder.Verdict {
	return func(h *holder.Holder, now clock.Instant) holder.Verdict {
		if h.Held() != of {
			return holder.Ignore
		}
		return event(h, err, now)
	}
}

// stage is how far it has come and, once it is over, why.
func (l *Lease) stage() (holder.Stage, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holder.Stage(), l.holder.Why()
}

// claimed is the lease as it is presented to be reclaimed.
func (l *Lease) claimed() leases.Claimed {
	l.mu.Lock()
	defer l.mu.Unlock()
	return leases.Claimed{Held: l.holder.Held(), TTL: l.claim.TTL, Owner: l.claim.Owner, Attributes: l.claim.Attributes, AcquiredAt: l.acquiredAt}
}
