package node

import (
	"context"
	"slices"
	"time"

	"github.com/coordd/coordd/fsm"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// line is who wants one name: the claim that is proposed and those that wait,
// first come first served. Whoever asks while others wait stands behind them.
type line struct {
	proposed *claim
	waiting  []*claim
}

// claim is one Acquire that has come in and not been answered.
type claim struct {
	leases.Claim
	session *session
	waited  bool            // it has stood in line
	answer  chan<- answered // has room for its one answer
}

type answered struct {
	grant leases.Grant
	err   error
}

func (c *claim) reply(g leases.Grant, err error) {
	select {
	case c.answer <- answered{g, err}:
	default:
	}
}

// acquire answers a claim: at once, or when its turn has come, its wait is over
// or ctx has ended.
func (t *tenure) acquire(ctx context.Context, s *session, c leases.Claim) (leases.Grant, error) {
	if err := c.Validate(); err != nil {
		return leases.Grant{}, err
	}
	answer := make(chan answered, 1)
	asked := &claim{Claim: c, session: s, answer: answer}
	if c.Wait == 0 {
		if err := t.certainlyFree(ctx, asked); err != nil {
			return leases.Grant{}, err
		}
	}
	position, err := t.enter(asked)
	if err != nil {
		return leases.Grant{}, err
	}
	if position > 0 {
		s.on(leases.Queued{Name: c.Name, Attempt: c.Attempt, Position: position})
	}
	// Nothing but the patience of whoever waits hangs on this timer, so it may
	// be one that stands still in suspend; there can be very many of them. Who is
	// proposed at once has one too: the name may turn out to be taken.
	var expired <-chan time.Time
	if c.Wait != leases.Forever {
		timer := time.NewTimer(c.Wait)
		defer timer.Stop()
		expired = timer.C
	}
	for {
		select {
		case a := <-answer:
			return a.grant, a.err
		case <-expired:
			if t.leave(asked) {
				return leases.Grant{}, t.heldAfterRound(ctx, c.Name)
			}
			expired = nil // it is proposed: its answer is under way
		case <-ctx.Done():
			if t.leave(asked) && t.ctx.Err() != nil {
				return leases.Grant{}, t.over()
			}
			return leases.Grant{}, unknown(ctx)
		case <-t.ctx.Done():
			if t.leave(asked) {
				return leases.Grant{}, t.over()
			}
			a := <-answer // the proposer answers everything when the term ends
			return a.grant, a.err
		}
	}
}

// certainlyFree refuses a claim that does not wait for a name that is taken.
// The table of a leader that has lost its term without knowing it may be old,
// so the refusal needs a round of the voters (N5).
func (t *tenure) certainlyFree(ctx context.Context, c *claim) error {
	t.mu.Lock()
	taken := t.taken(c)
	t.mu.Unlock()
	if !taken {
		return nil
	}
	if _, err := t.rounds.join(ctx); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.taken(c) {
		return nil
	}
	return t.heldBy(c.Name)
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

func (t *tenure) heldAfterRound(ctx context.Context, name string) error {
	if _, err := t.rounds.join(ctx); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.heldBy(name)
}

// heldBy is called with mu held, after a round.
func (t *tenure) heldBy(name string) error {
	e := &leases.HeldError{Name: name, AtMost: t.left(name)}
	q := t.lines[name]
	if q != nil {
		e.Waiters = len(q.waiting)
	}
	switch l := t.find(name); {
	case l != nil:
		e.By, e.Since = l.Owner, l.AcquiredAt
	case q != nil && q.proposed != nil:
		e.By = q.proposed.Owner
	}
	return e
}

// enter puts a claim into the line of its name, or proposes it if it is first.
// It returns its position, 0 if it need not wait.
func (t *tenure) enter(c *claim) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() != nil {
		return 0, t.over()
	}
	if t.gone.has(c.Attempt, t.clock.Now()) {
		return 0, &leases.NotHeldError{Name: c.Name, Why: leases.WhyWithdrawn}
	}
	q := t.lines[c.Name]
	if q == nil {
		q = &line{}
		t.lines[c.Name] = q
	}
	defer t.tidy(c.Name)
	if old := q.find(c.session.id, c.Attempt); old != nil { // a repeat takes its place over (S53)
		c.waited = old.waited
		if err := old.mismatch(c); err != nil {
			return 0, err
		}
		return q.replace(old, c), nil
	}
	l := t.find(c.Name)
	first := l == nil && q.proposed == nil && len(q.waiting) == 0
	switch {
	case l != nil && held(l, c):
		t.ask(c, func(r leases.Result, err error) { t.repeated(c, r, err) })
		return 0, nil
	case first && t.claims >= t.limits.claims:
		return 0, &leases.ExhaustedError{What: "claims in flight", Bound: uint64(t.limits.claims), Flag: "--max-claims"}
	case first:
		t.submit(q, c)
		return 0, nil
	case len(q.waiting) >= t.limits.waitersPerName:
		return 0, &leases.ExhaustedError{What: "waiters for one name", Bound: uint64(t.limits.waitersPerName), Flag: "--max-waiters-per-name"}
	case t.waiters >= t.limits.waiters:
		return 0, &leases.ExhaustedError{What: "waiters in all", Bound: uint64(t.limits.waiters), Flag: "--max-waiters"}
	}
	c.waited = true
	q.waiting = append(q.waiting, c)
	t.waiters++
	return len(q.waiting), nil
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

// replace answers old as displaced and puts c in its place.
func (q *line) replace(old, c *claim) (position int) {
	old.reply(leases.Grant{}, &leases.UnavailableError{Reason: "the same attempt was sent again; its newest copy is answered"})
	if q.proposed == old {
		q.proposed = c // its result is the newest copy's
		return 0
	}
	i := slices.Index(q.waiting, old)
	q.waiting[i] = c
	return i + 1
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
// not if it is proposed now and the name turns out to be taken.
func (t *tenure) leave(c *claim) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
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
	q.waiting = slices.Delete(q.waiting, i, i+1)
	t.waiters--
	t.tidy(c.Name)
	return true
}

// tidy forgets an empty line. It is called with mu held.
func (t *tenure) tidy(name string) {
	if q := t.lines[name]; q != nil && q.proposed == nil && len(q.waiting) == 0 {
		delete(t.lines, name)
	}
}

// advance proposes the first in line, if its turn has come. It is called with
// mu held.
func (t *tenure) advance(name string) {
	defer t.tidy(name)
	q := t.lines[name]
	for q != nil && q.proposed == nil && len(q.waiting) > 0 && t.find(name) == nil {
		c := q.waiting[0]
		q.waiting = slices.Delete(q.waiting, 0, 1)
		t.waiters--
		t.submit(q, c)
	}
}

// submit proposes a claim whose turn has come. It is called with mu held.
func (t *tenure) submit(q *line, c *claim) {
	q.proposed = c
	t.ask(c, func(r leases.Result, err error) { t.granted(q, r, err) })
}

// ask proposes a claim. It is called with mu held.
func (t *tenure) ask(c *claim, answer fsm.Answer) {
	t.claims++
	t.propose(leases.Op{
		Kind: leases.KindAcquire, Name: c.Name, Session: c.session.id, Attempt: c.Attempt, TTL: c.TTL,
		Owner: c.Owner, Attributes: c.Attributes, AcquiredAt: time.Now().UTC().Truncate(time.Millisecond),
	}, func(r leases.Result, err error) {
		t.claims--
		answer(r, err)
	})
}

// repeated takes what became of the repeat of an attempt that had been granted;
// it may have been released since. It is called with mu held.
func (t *tenure) repeated(c *claim, r leases.Result, err error) {
	switch {
	case err == nil && (r.Outcome == leases.Granted || r.Outcome == leases.Repeated):
		c.reply(t.grant(c, r), nil)
	case err == nil && r.Outcome == leases.Refused:
		c.reply(leases.Grant{}, &leases.UnavailableError{Reason: "the attempt's lease has just ended"})
	default:
		c.reply(leases.Grant{}, refusal(r, err))
	}
}

// refusal is the error of a claim that was neither granted nor found the name taken.
func refusal(r leases.Result, err error) error {
	switch {
	case err != nil:
		return err
	case r.Outcome == leases.Mismatch:
		return &leases.InvalidError{Field: r.Field, Value: "another", Bounds: "what the attempt was granted with"}
	case r.Outcome == leases.UsedUp:
		return &leases.ExhaustedError{What: "fencing tokens of this epoch", Bound: 1 << 32}
	default:
		return &leases.UnavailableError{Reason: "the table answered " + r.Outcome.String()}
	}
}

// granted takes what became of a line's proposed claim. It is called with mu
// held.
func (t *tenure) granted(q *line, r leases.Result, err error) {
	c := q.proposed
	q.proposed = nil
	switch {
	case err == nil && (r.Outcome == leases.Granted || r.Outcome == leases.Repeated):
		c.reply(t.grant(c, r), nil)
		t.bump()
	case err == nil && r.Outcome == leases.Refused && c.Wait == 0:
		c.reply(leases.Grant{}, t.heldBy(c.Name))
	case err == nil && r.Outcome == leases.Refused: // taken in between: it is first again
		c.waited = true
		q.waiting = slices.Insert(q.waiting, 0, c)
		t.waiters++
	default:
		c.reply(leases.Grant{}, refusal(r, err))
	}
	t.advance(c.Name)
}

// grant notes the first deadline of a new lease (N3). A repeat moves none: with
// an attempt repeated one gets the same token, and no time (S40).
func (t *tenure) grant(c *claim, r leases.Result) leases.Grant {
	if r.Outcome == leases.Granted {
		life := c.TTL
		if c.waited {
			life = min(life, leases.FirstDeadline)
		}
		t.watch(r.Lease, t.clock.Now().Add(leases.Stretch(life)), c.waited)
	}
	w := t.leases[c.Name]
	waited := c.waited || w != nil && w.waited && t.rules.On(rules.WaitedRepeats)
	return leases.Grant{Token: r.Lease.Token, AcquiredAt: r.Lease.AcquiredAt, Waited: waited}
}
