package sim

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/coordd/coordd/clock"
	"github.com/coordd/coordd/internal/holder"
	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/tokens"
)

// client wants leases, and drives a holder.Holder for each of its attempts.
type client struct {
	process
	s       *Sim
	id      int
	name    string
	rng     *rand.Rand
	skew    skew
	session leases.ID
	node    int  // that it asks first
	pinned  bool // it asks no other
	now     [names]*attempt
}

// attempt is one try at a lease, from the drawing of its id.
type attempt struct {
	c      *client
	name   int
	id     leases.ID
	ttl    time.Duration
	wait   bool
	holder holder.Holder
	ended  bool // its Release, Transfer or Withdraw has been sent, or its client is dead
	handed bool // its token is in Sim.handed
	turn   int  // counts the timers of its renewals: only the newest counts
	tries  int
}

// kind is what a request asks for.
type kind uint8

const (
	acquire kind = iota
	renew
	reclaim
	release
	withdraw
	transfer
)

var kinds = [...]string{"acquire", "renew", "reclaim", "release", "withdraw", "transfer"}

// request is a message from a client to a node. It is not written to once it is sent.
type request struct {
	kind    kind
	a       *attempt
	name    int
	session leases.ID
	attempt leases.ID
	token   tokens.Token
	ttl     time.Duration
	wait    bool
	epoch   uint32
	sent    clock.Instant // by its client's clock
}

// answer is a node's to a request.
type answer struct {
	grant leases.Grant
	err   error
}

func (c *client) clock() clock.Instant { return c.skew.at(c.s.now) }

func (c *client) after(d time.Duration, do func()) { c.s.after(d, &c.process, driver, do) }

// patience is for how long a request is waited for before another node is asked.
func (a *attempt) patience() time.Duration { return min(a.ttl/6, a.c.s.lease/3) }

// send sends a request to the node that served last, or to any.
func (a *attempt) send(k kind, epoch uint32) {
	c := a.c
	r := &request{
		kind: k, a: a, name: a.name, session: c.session, attempt: a.id, token: a.holder.Token(), ttl: a.ttl, wait: a.wait,
		epoch: epoch, sent: c.clock(),
	}
	to := c.node
	if c.chance(c.s.p.Stray) {
		to = c.rng.IntN(len(c.s.nodes))
	}
	c.s.deliver(r, to, c.lateness())
	copies, late := c.s.p.Copy, c.s.p.LateBy
	if k == reclaim { // a late one does most harm (S13, S14)
		copies, late = 10*copies, 4*late
	}
	if c.chance(copies) { // the network repeats it, perhaps much later, perhaps to another
		c.s.deliver(r, c.rng.IntN(len(c.s.nodes)), time.Duration(c.rng.Int64N(int64(late))))
	}
	if c.s.tracing {
		c.s.trace("%s asks %s: %s %s %s", c.name, c.s.nodes[to].name, kinds[k], leaseNames[a.name], show(r.token))
	}
}

func (c *client) chance(p float64) bool { return p > 0 && c.rng.Float64() < p }

// lateness is how long a message between the client and a node takes.
func (c *client) lateness() time.Duration {
	if c.chance(c.s.p.LateMessage) {
		return time.Duration(c.rng.Int64N(int64(c.s.p.LateBy)))
	}
	return short(c.rng)
}

// deliver brings a request to a node, unless it is lost.
func (s *Sim) deliver(r *request, to int, d time.Duration) {
	n, c := s.nodes[to], r.a.c
	if c.chance(s.p.Lose) {
		return
	}
	s.after(d, &n.process, driver, func() {
		if n.up && s.clientCut[c.id][to] <= s.now {
			n.handle(r)
		}
	})
}

// handle answers a request by the authority that the node has.
func (n *node) handle(r *request) {
	if left, _ := n.window(); left > 0 && n.tenure != nil && n.tenure.open() {
		n.tenure.handle(r)
		return
	}
	if n.registers.regime.Epoch != 0 {
		n.registers.handle(r)
		return
	}
	n.reply(r, answer{err: errNoWindow})
}

// reply sends an answer to the client, unless it is lost.
func (n *node) reply(r *request, a answer) {
	s, c := n.s, r.a.c
	s.refused(n, r, a)
	if c.chance(s.p.Lose) || s.answersCut[n.id][c.id] > s.now {
		return
	}
	c.after(c.lateness(), func() {
		if a.err == nil && !c.pinned {
			c.node = n.id
		}
		r.a.take(r, a)
		if c.chance(s.p.Copy) {
			c.after(time.Duration(c.rng.Int64N(int64(s.p.LateBy))), func() { r.a.take(r, a) })
		}
	})
}

// elsewhere lets the next request go to another node.
func (c *client) elsewhere() {
	if !c.pinned {
		c.node = c.rng.IntN(len(c.s.nodes))
	}
}

// take takes the answer to a request.
func (a *attempt) take(r *request, ans answer) {
	now := a.c.clock()
	if a.c.s.tracing {
		a.c.s.trace("%s hears: %s %s %s: %v %v", a.c.name, kinds[r.kind], leaseNames[a.name], show(r.token), show(ans.grant.Token), ans.err)
	}
	switch r.kind {
	case acquire:
		a.acquired(ans, now)
	case renew, reclaim:
		a.kept(r, ans, now)
	default:
		if ans.err != nil && !errors.Is(ans.err, leases.ErrNotHeld) && a.tries < 3 {
			a.tries++
			a.c.elsewhere()
			a.c.after(a.patience(), func() { a.send(r.kind, 0) }) // a copy of its last request
		}
	}
}

// begin draws an attempt and sends it.
func (c *client) begin(name int, ttl time.Duration, wait bool) {
	a := &attempt{c: c, name: name, id: nonce(c.rng), ttl: ttl, wait: wait}
	a.holder = holder.New(leaseNames[name], ttl, c.s.rules)
	c.now[name] = a
	a.ask()
}

// ask sends a copy of the Acquire, and another one if there is no answer.
func (a *attempt) ask() {
	c := a.c
	if a.holder.Attempted(c.clock()) != holder.Send {
		return
	}
	a.send(acquire, 0)
	a.tries++
	tries := a.tries
	c.after(3*a.patience(), func() {
		if a.tries == tries && a.holder.Stage() == holder.Waiting && !a.ended {
			c.elsewhere()
			a.ask()
		}
	})
}

func (a *attempt) acquired(ans answer, now clock.Instant) {
	switch {
	case ans.err == nil:
		a.verdict(a.holder.Granted(ans.grant, now), 0)
		if a.holder.Stage() == holder.Held {
			a.renewAt(a.holder.Since().Add(a.ttl / 3))
		}
	case a.holder.Stage() != holder.Waiting || a.ended:
	case errors.Is(ans.err, leases.ErrHeld) && !a.wait, errors.Is(ans.err, leases.ErrNotHeld):
		a.holder.Abandon(ans.err)
	default:
		a.c.elsewhere()
		tries := a.tries
		a.c.after(a.patience()/2, func() {
			if a.tries == tries && !a.ended {
				a.ask()
			}
		})
	}
}

// kept takes the answer to a renewal or a reclaim.
func (a *attempt) kept(r *request, ans answer, now clock.Instant) {
	h := &a.holder
	var grace *leases.GraceError
	switch {
	case ans.err == nil:
		v := h.Renewed(r.sent, now)
		a.verdict(v, 0)
		if v == holder.Believe {
			a.renewAt(r.sent.Add(a.ttl / 3))
		}
		return
	case errors.Is(ans.err, leases.ErrNotHeld):
		a.verdict(h.Refused(ans.err, now), 0)
		return
	case errors.As(ans.err, &grace) && (r.kind == renew || grace.Epoch > r.epoch):
		v := h.Reclaim(grace.Epoch, now)
		a.verdict(v, grace.Epoch)
		if v == holder.SendReclaim {
			a.renewAt(now.Add(a.patience()))
		}
		return
	}
	h.Unanswered(ans.err)
	if h.Stage() == holder.Held || h.Stage() == holder.Confirming {
		a.c.elsewhere()
		a.renewAt(now.Add(a.patience() / 2))
	}
}

// verdict does what the holder says.
func (a *attempt) verdict(v holder.Verdict, epoch uint32) {
	s := a.c.s
	switch v {
	case holder.Send:
		a.renew()
	case holder.SendReclaim:
		a.send(reclaim, epoch)
	case holder.Believe:
		s.believed(a)
	case holder.End:
		if s.tracing {
			s.trace("%s has lost %s %s: %v", a.c.name, leaseNames[a.name], show(a.holder.Token()), a.holder.Why())
		}
		if a.holder.Owed() && a.holder.Release(a.c.clock()) {
			a.send(release, 0)
		}
	}
}

// renewAt sets the turn of the next renewal.
func (a *attempt) renewAt(at clock.Instant) {
	c := a.c
	a.turn++
	turn := a.turn
	c.s.at(c.skew.when(at), &c.process, driver, func() {
		if a.turn == turn && !a.ended {
			a.renew()
		}
	})
}

// renew sends a renewal, if that may be, and another one if there is no answer.
func (a *attempt) renew() {
	v := a.holder.Renew(a.c.clock())
	if v == holder.End {
		a.verdict(v, 0)
	}
	if v != holder.Send {
		return
	}
	a.send(renew, 0)
	c := a.c
	a.turn++
	turn := a.turn
	c.after(a.patience(), func() {
		if a.turn == turn && !a.ended {
			c.elsewhere()
			a.renew()
		}
	})
}

// giveBack releases the lease, or hands it to whoever waits for it.
func (a *attempt) giveBack(k kind) {
	if !a.holder.Release(a.c.clock()) {
		return
	}
	a.ended, a.tries = true, 0
	a.send(k, 0)
}

// giveUp withdraws the attempt.
func (a *attempt) giveUp() {
	if !a.holder.Withdraw(errGaveUp) {
		return
	}
	a.ended, a.tries = true, 0
	a.send(withdraw, 0)
}

var errGaveUp = errors.New("withdrawn")

// die ends the client, which comes back as another one, with another session.
func (c *client) die() {
	c.life++
	for i, a := range c.now {
		if a != nil {
			a.ended = true
			a.holder.Abandon(errGaveUp)
			c.now[i] = nil
		}
	}
	c.session = nonce(c.rng)
}

// believes reports whether the attempt's client believes now that it holds the lease.
func (a *attempt) believes() bool {
	return a.holder.Stage() == holder.Held && a.c.clock() < a.holder.Deadline()
}
