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

	mu  sync.Mutex // guards what follows; nothing is called with it held. It may be taken under a lease's
	due agenda     // those that are not being asked for
}

// renewal is a lease's next renewal.
type renewal struct {
	turn
	kept  bool
	tries int // since its last answer
}

func newRenewer(c *Client) *renewer {
	r := &renewer{client: c}
	r.due = agenda{clock: c.clock, look: r.look}
	return r
}

// period is when a lease of that TTL is to be renewed, after the sending that
// it counts from.
func period(ttl time.Duration) time.Duration { return ttl/3 - rand.N(ttl/30) }

// keep begins to renew l, at once if it is to be confirmed. It is called with l's
// mutex held.
func (r *renewer) keep(l *Lease, at clock.Instant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.renewal.kept = true
	r.due.put(&l.renewal.turn, at)
}

// drop ends the renewals of l.
func (r *renewer) drop(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.renewal.kept = false
	r.due.drop(&l.renewal.turn)
}

func (r *renewer) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.due.stop()
}

// look is what the alarm calls.
func (r *renewer) look() {
	for part := range slices.Chunk(r.take(r.client.clock.Now()), maxBatch) {
		r.client.spawn(func() { r.renew(part) })
	}
}

// take returns the leases to renew now. As soon as one is due, those that come
// next go with it: all that are due within a twelfth of its TTL.
func (r *renewer) take(now clock.Instant) (batch []*Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	then := now
	for t := r.due.take(then); t != nil; t = r.due.take(then) {
		if len(batch) == 0 {
			then = now.Add(t.lease.claim.TTL / 12)
		}
		batch = append(batch, t.lease)
	}
	r.due.rang()
	return batch
}

// renew makes one request for a batch.
func (r *renewer) renew(batch []*Lease) {
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
	r.mu.Lock()
	defer r.mu.Unlock()
	l.renewal.tries = 0
	r.turn(l, sent.Add(period(l.claim.TTL)))
}

// again sets the turn of a lease whose renewal was not.
func (r *renewer) again(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.renewal.tries++
	r.turn(l, r.client.clock.Now().Add(backoff(l.renewal.tries, patience(l.claim.TTL))))
}

// turn is called with mu held.
func (r *renewer) turn(l *Lease, at clock.Instant) {
	if l.renewal.kept { // it may have been dropped meanwhile
		r.due.put(&l.renewal.turn, at)
	}
}
