package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/fsm"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// line is who wants one name: the claim that is proposed and those that wait,
// first come first served. Whoever asks while others wait stands behind them.
type line struct {
	proposed *claim
	waiting  []*claim
	resting  bool // nobody is proposed for a moment
}

// claim is one Acquire that has come in and not been answered.
type claim struct {
	leases.Claim
	request
	turn   uint64        // of those of this term, in the order in which they came in
	waited bool          // it has stood in line
	since  clock.Instant // when it came into the line
	until  clock.Instant // when its wait is over, unless it is leases.Forever
	told   int           // the place in line that its session was told last
}

// claim makes a claim of the session's; done must not block.
func (s *session) claim(c leases.Claim, done func(leases.Grant, error)) *claim {
	asked := &claim{Claim: c, request: request{session: s, done: done}}
	if c.Wait != leases.Forever {
		asked.until = s.tenure.clock.Now().Add(c.Wait)
	}
	return asked
}

type answered struct {
	grant leases.Grant
	err   error
}

// acquire answers a claim: at once, or when its turn has come, its wait is over
// or ctx has ended.
func (t *tenure) acquire(ctx context.Context, s *session, c leases.Claim) (leases.Grant, error) {
	if err := c.Validate(); err != nil {
		return leases.Grant{}, err
	}
	answer := make(chan answered, 1)
	asked := s.claim(c, func(g leases.Grant, err error) { answer <- answered{g, err} })
	if err := t.admissible(ctx, asked); err != nil {
		return leases.Grant{}, err
	}
	if err := t.start(asked); err != nil {
		return leases.Grant{}, err
	}
	select {
	case a := <-answer:
		return a.grant, a.err
	case <-ctx.Done():
		t.mu.Lock()
		t.leave(asked)
		asked.reply(leases.Grant{}, unknown(ctx)) // unless it has been answered just now
		t.mu.Unlock()
		a := <-answer
		return a.grant, a.err
	}
}

// admissible waits for what has to be so before a claim is taken in.
func (t *tenure) admissible(ctx context.Context, c *claim) error {
	if t.allow == nil && c.Wait > 0 {
		return nil
	}
	ctx, done := c.session.bound(ctx)
	defer done()
	if t.allow != nil {
		if err := t.allow(ctx, c.TTL); err != nil {
			return err
		}
	}
	if c.Wait > 0 {
		return nil
	}
	return t.certainlyFree(ctx, c)
}

// start takes a claim in: it is answered from then on, at the latest when its
// session ends. An error says that it was not taken in.
func (t *tenure) start(c *claim) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.admit(&c.request, c); err != nil {
		return err
	}
	if t.may != nil && !t.may(c.TTL) { // with mu held, lest the ceiling is lowered meanwhile (W5)
		c.forget()
		return &leases.UnavailableError{Reason: "the ceiling of TTLs has just been lowered"}
	}
	if err := t.enter(c); err != nil {
		c.forget()
		return err
	}
	return nil
}

// certainlyFree refuses a claim that does not wait for a name that is taken.
func (t *tenure) certainlyFree(ctx context.Context, c *claim) error {
	if !t.takenNow(c) {
		return nil
	}
	if err := t.replicator.certain(ctx, c.Name); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.taken(c) {
		return nil
	}
	return t.heldBy(c.Name)
}

func (t *tenure) takenNow(c *claim) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.taken(c)
}

// taken reports whether c would have to wait. It is called with mu held.
func (t *tenure) taken(c *claim) bool {
	l := t.find(c.Name)
	if l != nil {
		return !held(l, c)
	}
	q := t.lines[c.Name]
	return q != nil && !(q.proposed != nil && q.proposed.Attempt == c.Attempt)
}

// held reports whether l is the lease that c's attempt has been granted.
func held(l *leases.Lease, c *claim) bool {
	return l.Attempt == c.Attempt && l.Session == c.session.id
}

func (t *tenure) certainlyHeldBy(ctx context.Context, name string) error {
	if err := t.replicator.certain(ctx, name); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.heldBy(name)
}

// heldBy says why a name was not granted. It is called with mu held, once what is
// known of the name is certain.
func (t *tenure) heldBy(name string) error {
	e := &leases.HeldError{Name: name}
	q := t.lines[name]
	if q != nil {
		e.Waiters = len(q.waiting)
	}
	switch l := t.find(name); {
	case l != nil:
		e.By, e.Since, e.AtMost = l.Owner, l.AcquiredAt, t.replicator.atMost(l)
	case q != nil && q.proposed != nil:
		e.By = q.proposed.Owner
	default:
		if grace := t.fresh(); grace != nil {
			return grace
		}
	}
	return e
}

// enter puts a claim into the line of its name, or proposes it if it is first.
// It is called with mu held.
func (t *tenure) enter(c *claim) error {
	if err := t.withdrawn(c); err != nil {
		return err
	}
	q := t.lines[c.Name]
	if q == nil {
		q = &line{}
		t.lines[c.Name] = q
	}
	defer t.tidy(c.Name)
	if old := q.find(c.session.id, c.Attempt); old != nil { // a repeat takes its place over (S53)
		if err := old.mismatch(c); err != nil {
			return err
		}
		t.replace(q, old, c)
		return nil
	}
	t.turns++
	c.turn = t.turns
	l, grace := t.find(c.Name), t.fresh()
	first := l == nil && grace == nil && q.proposed == nil && len(q.waiting) == 0
	switch {
	case l != nil && held(l, c):
		go t.repeat(c)
		return nil
	case l == nil && grace != nil && c.Wait == 0:
		return grace
	case first && t.claims >= t.limits.claims:
		return &leases.ExhaustedError{What: "claims in flight", Bound: uint64(t.limits.claims), Flag: "--max-claims"}
	case first:
		t.submit(q, c)
		return nil
	case len(q.waiting) >= t.limits.waitersPerName:
		return &leases.ExhaustedError{What: "waiters for one name", Bound: uint64(t.limits.waitersPerName), Flag: "--max-waiters-per-name"}
	case t.waiters >= t.limits.waiters:
		return &leases.ExhaustedError{What: "waiters in all", Bound: uint64(t.limits.waiters), Flag: "--max-waiters"}
	}
	t.put(q, c)
	return nil
}

// put lets a claim wait in its turn, behind all that came in before it: also
// where it has been out of the line for a while. It is called with mu held.
func (t *tenure) put(q *line, c *claim) {
	place, _ := slices.BinarySearchFunc(q.waiting, c.turn, func(other *claim, turn uint64) int { return cmp.Compare(other.turn, turn) })
	if !t.rules.On(rules.Turns) {
		place = 0
	}
	q.waiting = slices.Insert(q.waiting, place, c)
	t.waiters++
	t.ttls.add(c.TTL)
	if len(q.waiting) == 1 {
		t.replicator.interest(c.Name, true)
	}
	if !c.waited {
		c.waited, c.since = true, t.clock.Now()
	}
	t.limit(c)
	c.place(place + 1)
	if place < len(q.waiting)-1 {
		t.places.moved(c.Name)
	}
}

// take takes the claim at a place out of the line. It is called with mu held.
func (t *tenure) take(q *line, place int) *claim {
	c := q.waiting[place]
	q.waiting = slices.Delete(q.waiting, place, place+1)
	t.waiters--
	t.ttls.remove(c.TTL)
	if len(q.waiting) == 0 {
		t.replicator.interest(c.Name, false)
	}
	if place < len(q.waiting) {
		t.places.moved(c.Name)
	}
	return c
}

// find returns the claim of a session's attempt, proposed or waiting, or nil.
func (q *line) find(session, attempt leases.ID) *claim {
	same := func(c *claim) bool { return c.Attempt == attempt && c.session.id == session }
	if q.proposed != nil && same(q.proposed) {
		return q.proposed
	}
	if i := slices.IndexFunc(q.waiting, same); i >= 0 {
		return q.waiting[i]
	}
	return nil
}

// replace answers old as displaced and puts c in its place. It is called with mu
// held.
func (t *tenure) replace(q *line, old, c *claim) {
	old.reply(leases.Grant{}, &leases.UnavailableError{Reason: "the same attempt was sent again; its newest copy is answered"})
	c.since, c.turn, c.waited = old.since, old.turn, old.waited
	if q.proposed == old {
		q.proposed = c // its result is the newest copy's
		return
	}
	i := slices.Index(q.waiting, old)
	q.waiting[i] = c
	t.limit(c)
	c.place(i + 1)
}

// limit ends a waiting claim's wait in time. Nothing but the patience of whoever
// waits hangs on this timer, so it may be one that stands still in suspend;
// there can be very many of them. It is called with mu held.
func (t *tenure) limit(c *claim) {
	if c.timer != nil || c.Wait == leases.Forever {
		return
	}
	c.timer = time.AfterFunc(c.until.Sub(t.clock.Now()), func() {
		t.mu.Lock()
		left := t.leave(c)
		t.mu.Unlock()
		if !left {
			return // it is proposed, or answered: its answer is under way
		}
		err := t.certainlyHeldBy(c.session.ctx, c.Name)
		t.mu.Lock()
		defer t.mu.Unlock()
		c.reply(leases.Grant{}, err)
	})
}

// mismatch refuses a repeat that asks for something else than its attempt did.
func (c *claim) mismatch(repeat *claim) error {
	switch {
	case c.TTL != repeat.TTL:
		return &leases.InvalidError{Field: "ttl", Value: repeat.TTL.String(), Bounds: "the attempt's own, " + c.TTL.String()}
	case string(c.Attributes) != string(repeat.Attributes):
		return &leases.InvalidError{Field: "attributes", Value: "others", Bounds: "the attempt's own"}
	case c.Owner != repeat.Owner:
		return &leases.InvalidError{Field: "owner", Value: repeat.Owner.String(), Bounds: "the attempt's own, " + c.Owner.String()}
	}
	return nil
}

// leave takes a waiting claim out of its line. false: it does not wait, and will
// not if it is proposed now and the name turns out to be taken. It is called
// with mu held.
func (t *tenure) leave(c *claim) bool {
	c.Wait = 0
	q := t.lines[c.Name]
	if q == nil {
		return false
	}
	return t.drop(q, c)
}

// drop is called with mu held.
func (t *tenure) drop(q *line, c *claim) bool {
	i := slices.Index(q.waiting, c)
	if i < 0 {
		return false
	}
	t.take(q, i)
	t.tidy(c.Name)
	return true
}

// tidy forgets an empty line. It is called with mu held.
func (t *tenure) tidy(name string) {
	if q := t.lines[name]; q != nil && q.proposed == nil && len(q.waiting) == 0 {
		delete(t.lines, name)
	}
}

// advance proposes the first in line, if its turn has come. When the tenure is
// over all that wait are answered by themselves. It is called with mu held.
func (t *tenure) advance(name string) {
	defer t.tidy(name)
	q := t.lines[name]
	for q != nil && q.proposed == nil && !q.resting && len(q.waiting) > 0 && t.serves() == nil && t.find(name) == nil && t.fresh() == nil {
		t.submit(q, t.take(q, 0))
	}
}

// submit proposes a claim whose turn has come. It is called with mu held.
func (t *tenure) submit(q *line, c *claim) {
	q.proposed = c
	t.ask(c.op(leases.KindAcquire), func(r leases.Result, err error) { t.granted(q, r, err) })
}

// ask proposes a claim's op. It is called with mu held.
func (t *tenure) ask(op leases.Op, answer fsm.Answer) {
	t.claims++
	t.ttls.add(op.TTL)
	ttl := op.TTL // the closure would keep all of op
	t.propose(op, func(r leases.Result, err error) {
		t.claims--
		t.ttls.remove(ttl)
		answer(r, err)
	})
}

// op is the op that grants the claim its lease.
func (c *claim) op(kind leases.Kind) leases.Op {
	return leases.Op{
		Kind: kind, Name: c.Name, Session: c.session.id, Attempt: c.Attempt, TTL: c.TTL,
		Owner: c.Owner, Attributes: c.Attributes, AcquiredAt: time.Now(),
	}
}

// repeat answers the repeat of an attempt that has been granted: the same token,
// no time (S40). It is no op: behind the release of its lease it would be granted
// anew, before those that wait.
func (t *tenure) repeat(c *claim) {
	err := t.replicator.certain(c.session.ctx, c.Name)
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.find(c.Name)
	switch {
	case err != nil:
		c.reply(leases.Grant{}, err)
	case l == nil || !held(l, c):
		c.reply(leases.Grant{}, &leases.UnavailableError{Reason: "the attempt's lease has just ended"})
	default:
		granted := &claim{Claim: leases.Claim{TTL: l.TTL, Owner: l.Owner, Attributes: l.Attributes}}
		if err := granted.mismatch(c); err != nil {
			c.reply(leases.Grant{}, err)
			return
		}
		c.reply(t.grant(c, leases.Result{Outcome: leases.Repeated, Lease: l}), nil)
	}
}

// refusal is the error of a claim that was neither granted nor found the name taken.
func (t *tenure) refusal(name string, r leases.Result, err error) error {
	switch {
	case err != nil:
		return err
	case r.Outcome == leases.Mismatch:
		return &leases.InvalidError{Field: r.Field, Value: "another", Bounds: "what the attempt was granted with"}
	case r.Outcome == leases.UsedUp:
		return &leases.ExhaustedError{What: "fencing tokens of this epoch", Bound: 1 << 32}
	case r.Outcome == leases.NoRoom:
		s, _ := t.replicator.shards()
		return &leases.ExhaustedError{What: fmt.Sprintf("bytes of leases in shard %d of the arbiter's registers", s.Of(name)), Bound: uint64(s.Bytes)}
	default:
		return &leases.UnavailableError{Reason: "the table answered " + r.Outcome.String()}
	}
}

// granted takes what became of a line's proposed claim. It is called with mu
// held.
func (t *tenure) granted(q *line, r leases.Result, err error) {
	c := q.proposed
	q.proposed = nil
	taken := err == nil && r.Outcome == leases.Refused // in between
	moment := t.momentary(c, err)
	switch {
	case err == nil && (r.Outcome == leases.Granted || r.Outcome == leases.Repeated):
		c.reply(t.grant(c, r), nil)
	case (taken || moment) && t.withdrawn(c) != nil:
		c.reply(leases.Grant{}, t.withdrawn(c))
	case taken && c.Wait == 0:
		c.reply(leases.Grant{}, t.heldBy(c.Name))
	case taken, moment && c.Wait != 0: // it is first again
		t.put(q, c)
	default:
		c.reply(leases.Grant{}, t.refusal(c.Name, r, err))
	}
	if moment {
		t.rest(q, c.Name)
	}
	t.advance(c.Name)
}

// momentary reports whether a claim was refused for a moment only, as Raft does too,
// or a shard with a full queue: that must not empty the line. It is called with mu held.
func (t *tenure) momentary(c *claim, err error) bool {
	switch {
	case t.ctx.Err() != nil:
		return false
	case errors.Is(err, leases.ErrGrace): // its end is known here, but not yet there
		return true
	}
	return c.waited && (errors.Is(err, leases.ErrUnavailable) || errors.Is(err, leases.ErrExhausted))
}

// rest lets a line rest before the next claim is proposed. It is called with mu held.
func (t *tenure) rest(q *line, name string) {
	q.resting = true
	clock.AfterFunc(t.clock, t.clock.Now().Add(retry), func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		q.resting = false
		t.advance(name)
	})
}

// grant answers a claim that has been granted. A repeat gets the same token, and no
// time (S40). It is called with mu held.
func (t *tenure) grant(c *claim, r leases.Result) leases.Grant {
	if r.Outcome == leases.Granted || r.Outcome == leases.Transferred {
		t.replicator.granted(r.Lease, c.waited)
		t.metrics.grants.Inc()
	}
	waited := c.waited || t.replicator.unconfirmed(r.Lease)
	return leases.Grant{Token: r.Lease.Token, AcquiredAt: r.Lease.AcquiredAt, Waited: waited}
}
