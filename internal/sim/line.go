package sim

import (
	"time"

	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
)

// line is who wants one name.
type line struct {
	proposed *claim
	waiting  []*claim
}

// claim is an Acquire that has come in.
type claim struct {
	request *request
	waited  bool
}

// drop answers a claim that waits and is withdrawn.
func (q *line) drop(n *node, attempt leases.ID) {
	if c := q.take(attempt); c != nil {
		n.reply(c.request, answer{err: withdrawn(c.request)})
	}
}

// take takes a claim that waits out of the line; nil: there is none of that attempt.
func (q *line) take(attempt leases.ID) *claim {
	for i, c := range q.waiting {
		if c.request.attempt == attempt {
			q.waiting = append(q.waiting[:i:i], q.waiting[i+1:]...)
			return c
		}
	}
	return nil
}

func (t *tenure) acquire(r *request) {
	n, q, l := t.n, &t.lines[r.name], t.find(r.name)
	c := &claim{request: r}
	switch {
	case has(t.gone, r.attempt):
		n.reply(r, answer{err: withdrawn(r)})
	case q.takeOver(n, r):
	case l != nil && l.Attempt == r.attempt && l.Session == r.session:
		t.repeat(r)
	case l == nil && q.proposed == nil && len(q.waiting) == 0:
		q.waiting = append(q.waiting, c)
		t.advance(r.name)
	case r.wait:
		c.waited = true
		q.waiting = append(q.waiting, c)
	default:
		n.reply(r, answer{err: errHeld})
	}
}

var errHeld = &leases.HeldError{}

func withdrawn(r *request) error {
	return &leases.NotHeldError{Name: leaseNames[r.name], Why: leases.WhyWithdrawn}
}

func has(ids []leases.ID, id leases.ID) bool {
	for i := range ids {
		if ids[i] == id {
			return true
		}
	}
	return false
}

// takeOver lets a repeat of an attempt that is proposed or waits take its place (S53).
func (q *line) takeOver(n *node, r *request) bool {
	replace := func(c *claim) bool {
		if c == nil || c.request.attempt != r.attempt {
			return false
		}
		n.reply(c.request, answer{err: errDisplaced})
		c.request = r
		return true
	}
	if replace(q.proposed) {
		return true
	}
	for _, c := range q.waiting {
		if replace(c) {
			return true
		}
	}
	return false
}

var errDisplaced = &leases.UnavailableError{Reason: "the same attempt was sent again"}

// repeat answers a repeat of an attempt that was granted: the same token, no time (S40).
func (t *tenure) repeat(r *request) {
	t.round(func(ok bool) {
		l := t.find(r.name)
		if !ok || l == nil || l.Attempt != r.attempt {
			t.n.reply(r, answer{err: errNoWindow})
			return
		}
		w := &t.watched[r.name]
		t.n.reply(r, answer{grant: leases.Grant{Token: l.Token, Waited: w.token == l.Token && w.waited}})
	})
}

// round asks the voters whether this node leads still (4a).
func (t *tenure) round(done func(ok bool)) {
	n := t.n
	if !n.s.rules.On(rules.Round) {
		done(true)
		return
	}
	n.after(2*n.short(), func() { done(t.v.confirms(t.term) && t.open()) })
}

func (t *tenure) advanceAll() {
	for i := range t.lines {
		if len(t.lines[i].waiting) > 0 {
			t.advance(i)
		}
	}
}

// advance proposes the first in line, if its turn has come.
func (t *tenure) advance(name int) {
	q := &t.lines[name]
	for q.proposed == nil && len(q.waiting) > 0 && t.find(name) == nil {
		c := q.waiting[0]
		if !t.allows(c.request.ttl) {
			return
		}
		q.waiting = q.waiting[1:]
		q.proposed = c
		r := c.request
		t.longer[name] = int(r.ttl / time.Millisecond)
		t.propose(&leases.Op{
			Kind: leases.KindAcquire, Name: leaseNames[name], Session: r.session, Attempt: r.attempt, TTL: r.ttl,
		}, func(res leases.Result, err error) { t.granted(q, name, res, err) })
	}
}

// granted takes what became of the claim that was proposed. It is answered after the
// window too: its client counts from its own sending (W2).
func (t *tenure) granted(q *line, name int, res leases.Result, err error) {
	c := q.proposed
	q.proposed = nil
	t.longer[name] = 0
	switch {
	case err != nil:
		t.n.reply(c.request, answer{err: err})
	case res.Outcome == leases.Granted:
		t.grant(c, res.Lease)
	case res.Outcome == leases.Repeated:
		w := &t.watched[name]
		t.n.reply(c.request, answer{grant: leases.Grant{Token: res.Lease.Token, Waited: c.waited || w.waited}})
	case res.Outcome == leases.Refused && c.request.wait && !t.over && !has(t.gone, c.request.attempt):
		c.waited = true
		q.waiting = append([]*claim{c}, q.waiting...) // it is first again
	default:
		t.n.reply(c.request, answer{err: errHeld})
	}
}

// grant notes a new lease's first deadline, and answers (section 3, S45).
func (t *tenure) grant(c *claim, l *leases.Lease) {
	life := l.TTL
	if c.waited && t.n.s.rules.On(rules.FirstDeadline) {
		life = min(life, leases.FirstDeadline)
	}
	t.watch(l, t.n.clock().Add(leases.Stretch(life)), c.waited)
	t.n.reply(c.request, answer{grant: leases.Grant{Token: l.Token, Waited: c.waited}})
}
