package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/holder"
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
	// graceRest is the longest rest between two claims in the grace after a takeover.
	graceRest = time.Second
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
// ErrWrongCluster, ErrGrace. At once it fails with leases.ErrInvalid, leases.ErrExhausted
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
// say that, it goes on trying until ctx ends. So it does while, after a takeover
// by the arbiter, nothing is granted anew; an error that matches leases.ErrGrace
// then says how long that still takes.
func (c *Client) TryAcquire(ctx context.Context, name string, opts ...LeaseOption) (*Lease, error) {
	return c.acquire(ctx, name, false, opts)
}

func (c *Client) acquire(ctx context.Context, name string, queue bool, opts []LeaseOption) (*Lease, error) {
	w := wish{ttl: DefaultTTL, owner: c.owner}
	for _, opt := range opts {
		opt(&w)
	}
	for n := 0; ; n++ {
		c.rest(ctx, backoff(n, patience(w.ttl)))
		claim := leases.Claim{Name: name, Attempt: c.naive.attempt(name, c.session), TTL: w.ttl, Owner: w.owner, Attributes: w.attributes}
		if err := claim.Validate(); err != nil {
			return nil, err
		}
		a := &attempt{lease: newLease(ctx, c, claim), queue: queue, onQueued: w.onQueued}
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

// rest sleeps for d, or until ctx ends or Close begins.
func (c *Client) rest(ctx context.Context, d time.Duration) {
	if d > 0 {
		ctx, cancel := bound(ctx, c.waits)
		defer cancel()
		sleep(ctx, c.clock, d)
	}
}

// attempt is one attempt at a lease, under an id of its own. All that is sent
// for it before it is granted are copies of one claim. One goroutine has it.
type attempt struct {
	lease    *Lease
	queue    bool
	onQueued func(place int)

	copies int             // sent so far
	ctx    context.Context // theirs
	sent   clock.Instant   // when the newest was
	unsure int             // how many may have been granted, or may yet be
	place  int             // in the queue, the last one told; 0: in none
	word   error           // the newest word on why there is no lease
	fresh  clock.Instant   // when fresh grants begin, where word tells of a grace
}

// run returns nil once the lease is held. Else it leaves nothing behind.
func (a *attempt) run(ctx context.Context) error {
	c := a.lease.client
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a.lease.endWait = cancel
	if err := c.enter(a.lease); err != nil {
		return err
	}
	copies, end := c.naive.copies(ctx, c.ctx)
	defer end()
	a.ctx = copies
	for tries := 0; ctx.Err() == nil; {
		rest := patience(a.lease.claim.TTL)
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
		case errors.Is(err, leases.ErrGrace):
			rest = a.grace(err)
		case errors.Is(err, leases.ErrHeld) && a.queue: // the wait that was asked for is over
			tries = 0
		case errors.Is(err, errAttemptOver), certain(err):
			return a.quit(err)
		}
		if !errors.Is(err, errEnded) {
			a.word = err
		}
		tries++
		sleep(ctx, c.clock, backoff(tries, rest))
	}
	return a.quit(a.failure(ctx))
}

// send sends one more copy of the claim.
func (a *attempt) send(ctx context.Context, s leases.Session) {
	claim := a.lease.claim
	if a.queue {
		claim.Wait = wait(ctx)
	}
	a.copies++
	a.unsure++
	n := a.copies
	a.sent = a.lease.attempted()
	answered := func(g leases.Grant, err error) {
		a.lease.post(func(in *inbox) { in.answers = append(in.answers, answer{n, g, err}) })
	}
	if s, ok := s.(starter); ok && s.StartAcquire(claim, answered) {
		return
	}
	a.lease.client.spawn(func() { answered(s.Acquire(a.ctx, claim)) })
}

// starter is a leases.Session whose Acquire can be begun without a goroutine
// that waits in it: over a connection, and with a node in the same process.
type starter interface {
	// StartAcquire begins an Acquire, unless it returns false: then Acquire tells
	// why not, or may do. done gets the answer, once, at the latest when the
	// session has ended; it must not block, nor call the session.
	StartAcquire(c leases.Claim, done func(leases.Grant, error)) bool
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
	l, c, usual := a.lease, a.lease.client, patience(a.lease.claim.TTL)
	talk, began, queued := c.conversation, time.Now(), false
	// That is by Go's clock, as in ask: it costs little to read.
	inTime := func() bool { return queued || time.Since(began) <= usual }
	limit := talk.stretched(usual)
	until := a.sent.Add(limit)
	c.silences.watch(&l.silence, until)
	defer c.silences.forget(&l.silence)
	for {
		select {
		case <-l.wake:
		case <-ctx.Done():
			return errEnded
		}
		in := l.read()
		r, answered := a.count(in.answers)
		switch {
		case answered && ctx.Err() != nil && !certain(r.err):
			return errEnded // which is all that it says
		case answered:
			talk.answered(s, r.err, inTime())
			return a.answered(ctx, r)
		case in.place != 0:
			talk.answered(s, nil, inTime())
			queued = true
			until = c.clock.Now().Add(quiet + rand.N(quiet))
			c.silences.watch(&l.silence, until)
			a.stands(in.place)
		case !in.silent || c.clock.Now().Before(until):
		case !queued:
			talk.unanswered(s, limit)
			return fmt.Errorf("%w: no answer within %v", leases.ErrUnknownOutcome, limit)
		case left(ctx) > 2*lastWord: // else the last word is under way
			return errQuiet
		}
	}
}

// count takes note of answers. It returns the one that counts, if there is one:
// the others are displaced by the newest, or of a conversation that is over.
func (a *attempt) count(all []answer) (counts answer, ok bool) {
	for _, r := range all {
		if r.err == nil || harmless(r.err) {
			a.unsure--
		}
		if r.err == nil || r.copy == a.copies && !ok {
			counts, ok = r, true
		}
	}
	return counts, ok
}

// answered takes the answer that counts.
func (a *attempt) answered(ctx context.Context, r answer) error {
	switch {
	case r.err == nil:
		return a.granted(ctx, r.grant)
	case errors.Is(r.err, leases.ErrNotHeld):
		return fmt.Errorf("%w: %w", errAttemptOver, r.err)
	}
	return r.err
}

// grace notes how long nothing is granted anew, and returns the longest rest before
// the next claim.
func (a *attempt) grace(err error) time.Duration {
	var left time.Duration
	var grace *leases.GraceError
	if errors.As(err, &grace) {
		left = grace.FreshIn
	}
	a.fresh = a.lease.client.clock.Now().Add(left)
	return min(max(left, backoffBase), graceRest)
}

// inGrace reports whether the newest word is of a grace that is not over yet.
func (a *attempt) inGrace() bool {
	return errors.Is(a.word, leases.ErrGrace) && a.lease.client.clock.Now().Before(a.fresh)
}

// stands takes the place in the queue.
func (a *attempt) stands(place int) {
	if !errors.Is(a.word, leases.ErrHeld) && !a.inGrace() {
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
	l.step(func(h *holder.Holder, now clock.Instant) holder.Verdict {
		l.loose, l.acquiredAt = a.unsure > 0, g.AcquiredAt
		v := h.Granted(g, now)
		switch v {
		case holder.Believe:
			l.client.renewer.keep(l, h.Since().Add(period(l.claim.TTL)))
		case holder.Send:
			l.client.renewer.keep(l, now)
		}
		return v
	})
	for {
		switch stage, why := l.stage(); stage {
		case holder.Held:
			return nil
		case holder.Over:
			return fmt.Errorf("%w: its grant was not confirmed: %w", errAttemptOver, why)
		}
		select {
		case <-l.wake:
		case <-ctx.Done():
			return errEnded
		}
	}
}

// failure is the error of an attempt whose ctx has ended.
func (a *attempt) failure(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, leases.ErrClosed) {
		return cause
	}
	var grace *leases.GraceError
	switch {
	case a.word == nil:
		a.word = fmt.Errorf("%w: no answer yet", leases.ErrUnknownOutcome)
	case errors.As(a.word, &grace):
		a.word = &leases.GraceError{Epoch: grace.Epoch, FreshIn: max(0, a.fresh.Sub(a.lease.client.clock.Now()))}
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
		case <-a.lease.wake:
		case <-a.lease.settled:
			return err
		}
		if r, ok := a.count(a.lease.read().answers); ok && r.err == nil {
			return a.granted(a.ctx, r.grant)
		}
	}
}
