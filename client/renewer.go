package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/leases"
)

// maxBatch is how many leases go into one request.
const maxBatch = 1024

// renewer sends the renewals of all of a client's leases, those due at about
// the same time in one request. A request without an answer holds up no other.
type renewer struct {
	client *Client
	wake   chan struct{} // tells run to look again

	mu      sync.Mutex // guards what follows; nothing is called with it held
	started bool
	due     map[*Lease]*turn
}

// turn is when a lease is to be renewed next.
type turn struct {
	at     clock.Instant
	tries  int  // since its last answer
	flying bool // a request is under way
}

func newRenewer(c *Client) *renewer {
	return &renewer{client: c, wake: make(chan struct{}, 1), due: map[*Lease]*turn{}}
}

// period is when a lease of that TTL is to be renewed, after the sending that
// it counts from.
func period(ttl time.Duration) time.Duration { return ttl/3 - rand.N(ttl/30) }

// keep begins to renew l, at once if it is to be confirmed.
func (r *renewer) keep(l *Lease, at clock.Instant) {
	r.mu.Lock()
	r.due[l] = &turn{at: at}
	start := !r.started
	r.started = true
	r.mu.Unlock()
	if start {
		r.client.spawn(r.run)
	}
	r.look()
}

// drop ends the renewals of l.
func (r *renewer) drop(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.due, l)
}

func (r *renewer) look() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *renewer) run() {
	c := r.client
	for {
		batch, next := r.take(c.clock.Now())
		for part := range slices.Chunk(batch, maxBatch) {
			c.spawn(func() { r.renew(part) })
		}
		timer := clock.AfterFunc(c.clock, next, r.look)
		select {
		case <-r.wake:
			timer.Stop()
		case <-c.ctx.Done():
			timer.Stop()
			return
		}
	}
}

// take returns the leases to renew now and the instant to look again. As soon
// as one is due, those that are nearly due go with it.
func (r *renewer) take(now clock.Instant) (batch []*Lease, next clock.Instant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next = now.Add(leases.MaxTTL)
	for _, t := range r.due {
		if !t.flying {
			next = min(next, t.at)
		}
	}
	if now.Before(next) {
		return nil, next
	}
	next = now.Add(leases.MaxTTL)
	for l, t := range r.due {
		switch {
		case t.flying:
		case t.at <= now.Add(l.claim.TTL/12):
			t.flying = true
			batch = append(batch, l)
		default:
			next = min(next, t.at)
		}
	}
	return batch, next
}

// renew makes one request for a batch.
func (r *renewer) renew(batch []*Lease) {
	defer r.look()
	c := r.client
	first, last := batch[0].claim.TTL, batch[0].claim.TTL
	for _, l := range batch {
		first, last = min(first, l.claim.TTL), max(last, l.claim.TTL)
	}
	// After the longest TTL only what is not yet believed in is still there.
	ctx, cancel := context.WithTimeout(c.ctx, last)
	defer cancel()
	var sent clock.Instant
	var asked []*Lease
	var answers []error
	err := c.conversation.ask(ctx, patience(first), func(ctx context.Context, s leases.Session) error {
		sent = c.clock.Now() // before the sending, and after any search for a node
		var held []leases.Held
		asked, held = r.ready(batch)
		if len(held) == 0 {
			return nil
		}
		var err error
		if answers, err = s.Renew(ctx, held); err == nil && len(answers) != len(held) {
			err = &leases.UnavailableError{Reason: fmt.Sprintf("%d leases were renewed with %d answers", len(held), len(answers))}
		}
		return err
	})
	if err != nil {
		for _, l := range batch {
			l.unanswered(err)
			r.again(l)
		}
		return
	}
	for i, l := range asked {
		r.answer(l, sent, answers[i])
	}
}

// ready returns the leases of batch that may be renewed, and drops the others.
func (r *renewer) ready(batch []*Lease) (asked []*Lease, held []leases.Held) {
	for _, l := range batch {
		if l.step((*holder).renew) != send {
			r.drop(l)
			continue
		}
		asked = append(asked, l)
		held = append(held, leases.Held{Name: l.Name(), Token: l.Token()})
	}
	return asked, held
}

// answer passes one lease's answer on.
func (r *renewer) answer(l *Lease, sent clock.Instant, err error) {
	switch {
	case err == nil:
		v := l.step(func(h *holder, now clock.Instant) verdict { return h.renewed(sent, now) })
		if v == send {
			r.again(l) // an answer that came too late to count
			return
		}
		r.next(l, sent)
	case errors.Is(err, leases.ErrNotHeld):
		l.step(func(h *holder, now clock.Instant) verdict { return h.refused(err, now) })
	default:
		l.unanswered(err)
		r.again(l)
	}
}

// next sets the turn of a lease whose renewal, sent at sent, was answered.
func (r *renewer) next(l *Lease, sent clock.Instant) {
	r.turn(l, func(t *turn) { t.at, t.tries = sent.Add(period(l.claim.TTL)), 0 })
}

// again sets the turn of a lease whose renewal was not.
func (r *renewer) again(l *Lease) {
	r.turn(l, func(t *turn) {
		t.tries++
		t.at = r.client.clock.Now().Add(backoff(t.tries, patience(l.claim.TTL)))
	})
}

func (r *renewer) turn(l *Lease, set func(*turn)) {
	r.mu.Lock()
	if t := r.due[l]; t != nil { // it may have been dropped meanwhile
		t.flying = false
		set(t)
	}
	r.mu.Unlock()
}
