package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

const (
	// quiet is how long a place in the queue is trusted without a word; then the
	// claim is sent again, which keeps the place and shows whether the node
	// still answers. A random part of up to as much again is added.
	quiet = 4 * time.Second
	// lastWord is how much before the end of its wait a claim is answered who
	// holds the lease, so that Acquire can say it when ctx ends.
	lastWord = 100 * time.Millisecond
	// longest is the longest wait that is put into a claim as a number.
	longest = 1000 * time.Hour
)

var (
	errClosed    = fmt.Errorf("%w: the client is closed", leases.ErrClosed)
	errWithdrawn = errors.New("the attempt was withdrawn")
	// errQuiet: nothing was heard for a while, which is no failure yet.
	errQuiet = errors.New("nothing was heard of the claim for a while")
	// errEnded: the caller waits no longer.
	errEnded = errors.New("the wait is over")
	// errAttemptOver: another attempt may be made.
	errAttemptOver = errors.New("the attempt is over")
)

// Acquire waits for the lease until ctx ends. Then the error, joined with ctx's
// cause, matches leases.ErrHeld (and is a *leases.HeldError) if somebody holds
// the lease, else it is what the last node that was asked, or looked for, said:
// one of leases.ErrUnavailable, ErrUnknownOutcome, ErrNotLeader, ErrNoQuorum,
// ErrWrongCluster. At once it fails with leases.ErrInvalid, leases.ErrExhausted
// and leases.ErrClosed.
//
// An Acquire that fails leaves nothing behind: what it may have been granted
// meanwhile is withdrawn, also after it has returned.
//
// A client that holds a lease and acquires it once more waits like anybody else.
func (c *Client) Acquire(ctx context.Context, name string, opts ...LeaseOption) (*Lease, error) {
	return c.acquire(ctx, name, true, opts)
}

// TryAcquire is Acquire without a wait: if somebody holds the lease, this client
// included, it fails with a *leases.HeldError at once. As long as no node can
// say that, it goes on trying until ctx ends.
func (c *Client) TryAcquire(ctx context.Context, name string, opts ...LeaseOption) (*Lease, error) {
	return c.acquire(ctx, name, false, opts)
}

func (c *Client) acquire(ctx context.Context, name string, queue bool, opts []LeaseOption) (*Lease, error) {
	w := wish{ttl: DefaultTTL, owner: c.owner}
	for _, opt := range opts {
		opt(&w)
	}
	values := ctx
	ctx, cancel := bound(ctx, c.waits)
	defer cancel()
	for n := 0; ; n++ {
		sleep(ctx, c.clock, backoff(n, patience(w.ttl)))
		claim := leases.Claim{Name: name, Attempt: c.naive.attempt(name, c.session), TTL: w.ttl, Owner: w.owner, Attributes: w.attributes}
		if err := claim.Validate(); err != nil {
			return nil, err
		}
		a := &attempt{lease: newLease(values, c, claim), queue: queue, onQueued: w.onQueued}
		if err := c.enter(a.lease); err != nil {
			return nil, err
		}
		err := a.run(ctx)
		switch {
		case err == nil:
			return a.lease, nil
		case !errors.Is(err, errAttemptOver):
			return nil, err
		}
		c.log.Info("the lease is asked for anew", "lease", name, "error", err)
	}
}

// attempt is one attempt at a lease, under an id of its own. All that is sent
// for it before it is granted are copies of one claim. One goroutine has it.
type attempt struct {
	lease    *Lease
	queue    bool
	onQueued func(place int)

	copies  int             // sent so far
	unsure  int             // of those, how many may have been granted, or may yet be
	place   int             // in the queue, the last one told; 0: in none
	word    error           // the newest word on why there is no lease
	answers chan answer     // of the copies
	ctx     context.Context // theirs
}

// answer is what became of one copy.
type answer struct {
	copy  int
	grant leases.Grant
	err   error
}

// run returns nil once the lease is held. Else it leaves nothing behind.
func (a *attempt) run(ctx context.Context) error {
	c := a.lease.client
	copies, cancel := context.WithCancel(c.ctx)
	defer cancel()
	a.ctx, a.answers = copies, make(chan answer)
	for tries := 0; ctx.Err() == nil; {
		s, err := c.conversation.with(ctx)
		if err == nil {
			a.send(ctx, s)
			err = a.await(ctx, s)
		} else if ctx.Err() == nil { // the backend is closed
			return a.quit(err)
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errQuiet):
			tries = 0
			continue
		case errors.Is(err, leases.ErrHeld) && a.queue: // the wait that was asked for is over
			tries = 0
		case errors.Is(err, errAttemptOver), certain(err):
			return a.quit(err)
		}
		if !errors.Is(err, errEnded) {
			a.word = err
		}
		tries++
		sleep(ctx, c.clock, backoff(tries, patience(a.lease.claim.TTL)))
	}
	return a.quit(a.failure(ctx))
}

// send sends one more copy of the claim.
func (a *attempt) send(ctx context.Context, s leases.Session) {
	claim := a.lease.claim
	if a.queue {
		claim.Wait = wait(ctx)
	}
	select {
	case <-a.lease.queued: // a word on an earlier copy
	default:
	}
	a.copies++
	a.unsure++
	n := a.copies
	a.lease.step((*holder).attempted)
	a.lease.client.spawn(func() {
		g, err := s.Acquire(a.ctx, claim)
		select {
		case a.answers <- answer{n, g, err}:
		case <-a.ctx.Done():
		}
	})
}

// wait is how long a claim may stand in the queue: until ctx's deadline, less
// what a last word takes.
func wait(ctx context.Context) time.Duration {
	d := left(ctx)
	switch {
	case d > longest:
		return leases.Forever
	case d > 2*lastWord:
		d -= lastWord
	}
	return max(d.Truncate(time.Millisecond), time.Millisecond)
}

// left is the time until ctx's deadline.
func left(ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return time.Until(end)
	}
	return leases.Forever
}

// await waits for what becomes of the newest copy, sent over s. A grant counts
// whichever copy it answers.
func (a *attempt) await(ctx context.Context, s leases.Session) error {
	c, usual := a.lease.client, patience(a.lease.claim.TTL)
	talk, began, queued := c.conversation, c.clock.Now(), false
	inTime := func() bool { return queued || c.clock.Now().Sub(began) <= usual }
	limit := talk.stretched(usual)
	silence := time.NewTimer(limit)
	defer silence.Stop()
	for {
		select {
		case r := <-a.answers:
			if r.err == nil || harmless(r.err) {
				a.unsure--
			}
			if r.err != nil && r.copy != a.copies {
				continue // displaced by the newest, or of a conversation that is over
			}
			talk.answered(s, r.err, inTime())
			switch {
			case r.err == nil:
				return a.granted(ctx, r.grant)
			case errors.Is(r.err, leases.ErrNotHeld):
				return fmt.Errorf("%w: %w", errAttemptOver, r.err)
			}
			return r.err
		case place := <-a.lease.queued:
			talk.answered(s, nil, inTime())
			queued = true
			silence.Reset(quiet + rand.N(quiet))
			a.stands(place)
		case <-silence.C:
			switch {
			case queued && left(ctx) <= 2*lastWord:
				continue // the last word is under way
			case queued:
				return errQuiet
			}
			talk.unanswered(s, limit)
			return fmt.Errorf("%w: no answer within %v", leases.ErrUnknownOutcome, limit)
		case <-s.Done():
			return fmt.Errorf("%w: the conversation broke: %v", leases.ErrUnknownOutcome, s.Err())
		case <-ctx.Done():
			return errEnded
		}
	}
}

// stands takes the place in the queue.
func (a *attempt) stands(place int) {
	if !errors.Is(a.word, leases.ErrHeld) {
		a.word = &leases.HeldError{Name: a.lease.Name(), Waiters: place}
	}
	if place != a.place && a.onQueued != nil {
		a.onQueued(place)
	}
	a.place = place
}

// granted takes a grant, and waits until it is believed in or over.
func (a *attempt) granted(ctx context.Context, g leases.Grant) error {
	l := a.lease
	renewer := l.client.renewer
	switch l.step(func(h *holder, now clock.Instant) verdict {
		l.loose = a.unsure > 0
		return h.granted(g, now)
	}) {
	case believe:
		renewer.keep(l, l.Deadline().Add(period(l.claim.TTL)-leases.Shrink(l.claim.TTL)))
	case send:
		renewer.keep(l, l.client.clock.Now())
	}
	select {
	case <-l.believed:
		return nil
	case <-l.ended:
		return fmt.Errorf("%w: its grant was not confirmed: %w", errAttemptOver, context.Cause(l.ctx))
	case <-ctx.Done():
		return errEnded
	}
}

// failure is the error of an attempt whose ctx has ended.
func (a *attempt) failure(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, leases.ErrClosed) {
		return cause
	}
	if a.word == nil {
		a.word = fmt.Errorf("%w: no answer yet", leases.ErrUnknownOutcome)
	}
	return fmt.Errorf("acquire lease %q: %w: %w", a.lease.Name(), a.word, cause)
}

// quit ends the attempt and withdraws it, if it may have been granted. It
// returns err, unless the lease has come to be held meanwhile.
func (a *attempt) quit(err error) error {
	l := a.lease
	if held, sent := l.withdraw(a.unsure > 0); held {
		return nil
	} else if sent && !l.client.rules.On(rules.AttemptOver) {
		return a.linger(err)
	}
	return err
}

// linger takes a grant that comes before the answer to the Withdraw.
func (a *attempt) linger(err error) error {
	for {
		select {
		case r := <-a.answers:
			if r.err == nil {
				return a.granted(a.ctx, r.grant)
			}
		case <-a.lease.settled:
			return err
		}
	}
}
