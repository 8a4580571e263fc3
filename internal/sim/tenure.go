package sim

import (
	"time"

	"github.com/coordd/coordd/authority"
	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/rules"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// tenure is the serving of a Raft leader while its window is open: the part of it that
// is no pure state machine in the node, small and by the protocol's letter (W2 to W8).
type tenure struct {
	n      *node
	v      *server
	term   uint64
	opened clock.Instant // the first window of the term
	over   bool          // its window has closed, or its term is over
	flying int           // ops that are proposed and not answered
	empty  func()        // called when there are none; nil: nobody waits for that

	watched [names]watched
	lines   [names]line
	gone    []leases.ID // attempts that were withdrawn

	// Of the ceiling (W5).
	wanted time.Duration // a claim waits for it to be raised; 0: none does
	limit  time.Duration // no longer TTL is taken in; 0: none
	idle   Time          // since when it is higher than need be; 0: it is not
	longer [names]int    // of claims by name: TTLs that are proposed, in ms
}

// watched is what a leader knows of a lease beside the table.
type watched struct {
	token    tokens.Token
	deadline clock.Instant
	waited   bool // not renewed since it was granted to one who waited
	expiring bool
}

// serveWindow begins a tenure when the window opens, and ends it when it closes.
func (n *node) serveWindow() {
	left, by := n.window()
	if by == authority.ByUnanimity && !n.unanimous {
		n.s.counts.Unanimous++
	}
	n.unanimous = by == authority.ByUnanimity
	t := n.tenure
	if t != nil && !t.over {
		if t.goesOn(left > 0) {
			t.advanceAll()
			return
		}
		t.end()
	}
	if left > 0 && (t == nil || !t.unfinished()) {
		n.tenure = newTenure(n, n.server)
	}
}

// goesOn reports whether the tenure serves still. Without the rules for that it does so
// in another term, or proposes what has waited though there is no window.
func (t *tenure) goesOn(open bool) bool {
	v, on := t.n.server, t.n.s.rules.On
	switch {
	case v != t.v || !v.leads:
		return false
	case !open:
		return !on(rules.WindowPropose)
	case t.term != v.term && on(rules.WindowTerm) || t.opened != t.n.machine.Opened(v.term):
		return false
	}
	t.term = v.term
	return true
}

// unfinished reports whether ops of the tenure may yet be applied in its term: they are
// not to be in the time of the next.
func (t *tenure) unfinished() bool {
	v := t.n.server
	return t.flying > 0 && t.v == v && v.leads && t.term == v.term
}

// newTenure takes the table as it is: every lease may have been renewed until now (W4).
func newTenure(n *node, v *server) *tenure {
	t := &tenure{n: n, v: v, term: v.term, opened: n.machine.Opened(v.term)}
	now := n.clock()
	for l := range v.table.All() {
		deadline := n.machine.Deadline(now, l.TTL)
		if !n.s.rules.On(rules.NewTermDeadlines) {
			deadline = now
		}
		t.watch(l, deadline, false)
	}
	if n.s.tracing {
		left, by := n.window()
		n.s.trace("%s serves in term %d, epoch %d: a window of %v by %s", n.name, v.term, v.table.Epoch(), left, by)
	}
	return t
}

// end answers all that waits: it is never proposed (S39).
func (t *tenure) end() {
	t.over = true
	if t.n.s.tracing {
		t.n.s.trace("%s serves no more in term %d", t.n.name, t.term)
	}
	for i := range t.lines {
		q := &t.lines[i]
		for _, c := range q.waiting {
			t.n.reply(c.request, answer{err: errNoWindow})
		}
		q.waiting = nil
	}
}

var errNoWindow = &leases.UnavailableError{Reason: "no window"}

// open reports whether the tenure may grant and renew now.
func (t *tenure) open() bool {
	left, _ := t.n.window()
	return left > 0 && t.n.tenure == t && !t.over
}

// watch notes the deadline of a lease, and looks at it then.
func (t *tenure) watch(l *leases.Lease, deadline clock.Instant, waited bool) {
	name := nameIndex(l.Name)
	t.watched[name] = watched{token: l.Token, deadline: deadline, waited: waited}
	t.expireAt(name, l.Token, deadline)
}

func (t *tenure) expireAt(name int, token tokens.Token, at clock.Instant) {
	n := t.n
	n.s.at(n.skew.when(at), &n.process, driver, func() { t.expire(name, token) })
}

// expire proposes the end of a lease whose deadline has passed (W4).
func (t *tenure) expire(name int, token tokens.Token) {
	n, w := t.n, &t.watched[name]
	switch {
	case n.tenure != t || t.over || w.token != token || w.expiring:
		return
	case n.clock().Before(w.deadline):
		t.expireAt(name, token, w.deadline)
		return
	}
	w.expiring = true
	if n.s.tracing {
		n.s.trace("%s decides to expire %s under %s", n.name, leaseNames[name], show(token))
	}
	t.propose(&leases.Op{Kind: leases.KindExpire, Name: leaseNames[name], Token: token}, func(res leases.Result, err error) {
		if w := &t.watched[name]; err != nil && w.token == token {
			w.expiring = false
			t.expireAt(name, token, n.clock().Add(retry))
		}
	})
}

const retry = 100 * time.Millisecond

// propose brings an op into the log under the present epoch, and anew where a bump came
// in between.
func (t *tenure) propose(op *leases.Op, done func(leases.Result, error)) {
	n := t.n
	op.Epoch = t.v.table.Epoch()
	t.flying++
	t.v.propose(op, t.term, batch, t.may(), func(res leases.Result, err error) {
		t.flying--
		switch {
		case err == nil && res.Outcome == leases.StaleEpoch && n.tenure == t && !t.over:
			again := *op
			t.propose(&again, done)
			return
		case err == nil && res.Outcome == leases.StaleEpoch:
			err = errNoWindow
		}
		if err == nil && (res.Outcome == leases.Freed || res.Outcome == leases.Transferred) {
			t.forget(res.Ending.Name, res.Ending.Token)
		}
		done(res, err)
		if t.flying == 0 && t.empty != nil {
			t.empty()
		}
		if n.tenure == t && !t.over {
			t.advanceAll()
		}
	})
}

// may is asked when the op gets to the log: the window must be open still (W2).
func (t *tenure) may() func() error {
	if !t.n.s.rules.On(rules.WindowPropose) {
		return nil
	}
	return func() error {
		if left, _ := t.n.window(); left <= 0 {
			return errNoWindow
		}
		return nil
	}
}

func (t *tenure) forget(name string, token tokens.Token) {
	if w := &t.watched[nameIndex(name)]; w.token == token {
		*w = watched{}
	}
}

// appliedForeign is called for an op that this node's tenure has not proposed. A table
// that has caught up sees none (S6).
func (n *node) appliedForeign(v *server, res leases.Result) {
	t := n.tenure
	if t == nil || t.v != v {
		return
	}
	switch res.Outcome {
	case leases.Granted, leases.Transferred:
		t.watch(res.Lease, n.clock().Add(leases.Stretch(res.Lease.TTL)), false)
	case leases.Freed:
		t.forget(res.Ending.Name, res.Ending.Token)
	}
}

// handle answers a client's request.
func (t *tenure) handle(r *request) {
	switch r.kind {
	case acquire:
		t.acquire(r)
	case renew:
		t.renew(r)
	case reclaim:
		t.n.reply(r, answer{err: errNoGrace})
	case release:
		t.finish(r, leases.Op{Kind: leases.KindRelease, Token: r.token})
	case withdraw:
		t.withdraw(r)
	case transfer:
		t.transfer(r)
	}
}

var errNoGrace = &leases.UnavailableError{Reason: "there is no grace"}

// find returns the lease of a name, or nil.
func (t *tenure) find(name int) *leases.Lease {
	l, _ := t.v.table.Get(leaseNames[name])
	return l
}

// renew moves a deadline in the leader's memory alone (W3).
func (t *tenure) renew(r *request) {
	if t.renewed(r) {
		t.n.reply(r, answer{})
		return
	}
	t.round(func(ok bool) { // a refusal has to be certain (V1)
		switch {
		case !ok:
			t.n.reply(r, answer{err: errNoWindow})
		case t.renewed(r):
			t.n.reply(r, answer{})
		default:
			t.n.reply(r, answer{err: &leases.NotHeldError{Name: leaseNames[r.name], Token: r.token}})
		}
	})
}

func (t *tenure) renewed(r *request) bool {
	l, w, now := t.find(r.name), &t.watched[r.name], t.n.clock()
	if l == nil || l.Token != r.token || l.Session != r.session || w.token != r.token || w.expiring || !now.Before(w.deadline) {
		return false
	}
	w.deadline = max(w.deadline, now.Add(leases.Stretch(l.TTL)))
	w.waited = false
	return true
}

// finish proposes the end of a lease, and answers as done whatever it finds.
func (t *tenure) finish(r *request, op leases.Op) {
	op.Name, op.Session = leaseNames[r.name], r.session
	t.propose(&op, func(_ leases.Result, err error) { t.n.reply(r, answer{err: err}) })
}

func (t *tenure) withdraw(r *request) {
	t.gone = append(t.gone, r.attempt)
	t.lines[r.name].drop(t.n, r.attempt)
	t.finish(r, leases.Op{Kind: leases.KindWithdraw, Attempt: r.attempt})
}

// transfer is a release with an heir who waits (W8); without one it is a release.
func (t *tenure) transfer(r *request) {
	q, l := &t.lines[r.name], t.find(r.name)
	if q.proposed != nil || l == nil || l.Token != r.token || l.Session != r.session || len(q.waiting) == 0 {
		t.finish(r, leases.Op{Kind: leases.KindRelease, Token: r.token})
		return
	}
	heir := q.waiting[0]
	if !t.allows(heir.request.ttl) {
		t.finish(r, leases.Op{Kind: leases.KindRelease, Token: r.token})
		return
	}
	q.waiting = q.waiting[1:]
	q.proposed = heir
	h := heir.request
	t.longer[r.name] = int(h.ttl / time.Millisecond)
	t.propose(&leases.Op{
		Kind: leases.KindTransfer, Name: leaseNames[r.name], Session: r.session, Token: r.token,
		Heir: h.session, Attempt: h.attempt, TTL: h.ttl,
	}, func(res leases.Result, err error) {
		q.proposed = nil
		t.longer[r.name] = 0
		switch {
		case err == nil && res.Outcome == leases.Transferred:
			t.grant(heir, res.Lease)
		case t.over || err != nil:
			t.n.reply(heir.request, answer{err: errNoWindow})
		default:
			q.waiting = append([]*claim{heir}, q.waiting...)
		}
		t.n.reply(r, answer{err: err})
	})
}

// drain lets what was proposed finish, and passes a barrier (section 8, S9).
func (n *node) drain(a authority.Drain) {
	done := false
	end := func(err error) {
		if !done {
			done = true
			n.done(a, err)
		}
	}
	barrier := func() {
		v := n.server
		if v == nil || !v.leads {
			n.after(0, func() { end(errNotLeading) })
			return
		}
		v.append(entry{of: &proposal{func(_ leases.Result, err error) { end(err) }}})
		v.soon()
	}
	n.after(n.s.lease/2, func() { end(errDeposed) })
	if t := n.tenure; t != nil && t.flying > 0 {
		t.empty = barrier
		return
	}
	barrier()
}
