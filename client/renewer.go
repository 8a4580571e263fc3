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
	"github.com/coordd/coordd/internal/holder"
	"github.com/coordd/coordd/leases"
)

// maxBatch is how many leases go into one request.
const maxBatch = 1024

// renewer sends the renewals of all of a client's leases, those due at about
// the same time in one request, and reclaims them after a takeover. A request
// without an answer holds up no other.
type renewer struct {
	client *Client

	mu    sync.Mutex // guards what follows; nothing is called with it held. It may be taken under a lease's
	due   agenda     // those that are not being asked for
	epoch uint32     // of the last takeover that was noticed
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

// renew renews a batch, and reclaims at once what a takeover calls for.
func (r *renewer) renew(batch []*Lease) {
	todo := []round{{leases: batch}}
	for len(todo) > 0 {
		next := todo[0]
		todo = append(todo[1:], r.ask(next)...)
	}
}

// round is one request for a batch: the leases are renewed or, in an epoch other
// than zero, reclaimed.
type round struct {
	epoch  uint32
	leases []*Lease
}

// ask makes the request, passes the answers on and returns what is to be reclaimed.
func (r *renewer) ask(n round) []round {
	c := r.client
	first, last := n.leases[0].claim.TTL, n.leases[0].claim.TTL
	for _, l := range n.leases {
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
		if asked = r.ready(n); len(asked) == 0 {
			return nil
		}
		var err error
		if answers, err = n.send(ctx, s, asked); err != nil {
			answers = nil
			return err
		}
		return nothingKnown(answers)
	})
	if len(answers) == 0 && err != nil {
		for _, l := range n.leases {
			r.unanswered(l, err)
		}
		return nil
	}
	return r.answer(n.epoch, sent, asked, answers)
}

// ready returns the leases that may be asked for now. What has ended meanwhile has
// no turn any more.
func (r *renewer) ready(n round) (asked []*Lease) {
	for _, l := range n.leases {
		event, want := (*holder.Holder).Renew, holder.Send
		if n.epoch != 0 {
			event, want = reclaim(n.epoch), holder.SendReclaim
		}
		if l.step(event) == want {
			asked = append(asked, l)
		} else {
			r.again(l)
		}
	}
	return asked
}

// reclaim is the event that a takeover calls for.
func reclaim(epoch uint32) func(*holder.Holder, clock.Instant) holder.Verdict {
	return func(h *holder.Holder, now clock.Instant) holder.Verdict { return h.Reclaim(epoch, now) }
}

// send returns one answer for each lease.
func (n round) send(ctx context.Context, s leases.Session, asked []*Lease) (answers []error, err error) {
	if n.epoch == 0 {
		held := make([]leases.Held, len(asked))
		for i, l := range asked {
			held[i] = leases.Held{Name: l.Name(), Token: l.Token()}
		}
		answers, err = s.Renew(ctx, held)
	} else {
		claimed := make([]leases.Claimed, len(asked))
		for i, l := range asked {
			claimed[i] = l.claimed()
		}
		answers, err = s.Reclaim(ctx, n.epoch, claimed)
	}
	if err == nil && len(answers) != len(asked) {
		err = &leases.UnavailableError{Reason: fmt.Sprintf("%d leases were renewed or reclaimed with %d answers", len(asked), len(answers))}
	}
	return answers, err
}

// nothingKnown returns the first of the answers if none of them says anything: a
// node that is cut off from the arbiter answers for each lease that nothing is known.
func nothingKnown(answers []error) error {
	if slices.ContainsFunc(answers, certain) {
		return nil
	}
	return answers[0]
}

// answer passes the answers on and returns what is to be reclaimed: that in each
// epoch in one round, mostly one.
func (r *renewer) answer(epoch uint32, sent clock.Instant, asked []*Lease, answers []error) (todo []round) {
	lost := map[uint32][]*Lease{}
	for i, l := range asked {
		err := answers[i]
		switch {
		case err == nil:
			r.renewed(l, sent)
		case errors.Is(err, leases.ErrNotHeld):
			l.step(func(h *holder.Holder, now clock.Instant) holder.Verdict { return h.Refused(err, now) })
		default:
			if later := l.lostIn(err, epoch); later != 0 {
				lost[later] = append(lost[later], l)
			} else {
				r.unanswered(l, err)
			}
		}
	}
	for epoch, all := range lost {
		n := round{epoch, all}
		r.notice(n)
		todo = append(todo, n)
	}
	return todo
}

// lostIn returns the epoch, after the one that was asked in, in which err says that
// l is to be reclaimed; 0: in none, or that cannot be any more.
func (l *Lease) lostIn(err error, asked uint32) uint32 {
	var grace *leases.GraceError
	if !errors.As(err, &grace) || grace.Epoch <= asked || l.step(reclaim(grace.Epoch)) != holder.SendReclaim {
		return 0
	}
	return grace.Epoch
}

// notice tells of a takeover, once.
func (r *renewer) notice(n round) {
	r.mu.Lock()
	news := n.epoch > r.epoch
	r.epoch = max(r.epoch, n.epoch)
	r.mu.Unlock()
	if news {
		r.client.log.Info("the arbiter has taken over: reclaiming leases", "epoch", n.epoch, "leases", len(n.leases))
	}
}

// renewed takes a positive answer to what was sent at sent.
func (r *renewer) renewed(l *Lease, sent clock.Instant) {
	v := l.step(func(h *holder.Holder, now clock.Instant) holder.Verdict { return h.Renewed(sent, now) })
	if v == holder.Send {
		r.again(l) // an answer that came too late to count
		return
	}
	r.next(l, sent)
}

// unanswered notes that nothing is known, and lets l be renewed again.
func (r *renewer) unanswered(l *Lease, err error) {
	l.unanswered(err)
	r.again(l)
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
